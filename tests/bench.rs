//! A bench from outside: asked to end, it ends its run and leaves nothing.

#![allow(clippy::unwrap_used, reason = "a test stops at its first surprise")]

#[expect(dead_code, reason = "each test target uses its part of the support")]
mod support;

use std::time::Duration;

use kintsugi_ffi::os::{self, Signal};
use support::{alone, kintsugi, processes_of, project, start, wait_for_step};

#[test]
fn a_bench_that_is_asked_to_end_takes_its_run_along_and_removes_its_folder() {
    let _alone = alone();
    let place = tempfile::tempdir().unwrap();
    for signal in [Signal::Interrupt, Signal::Terminate] {
        let mut bench = kintsugi();
        bench.env("TMPDIR", place.path()).args(["bench", "calm", "--ranks", "2", "--pairs", "1"]);
        bench.args(["--steps", "2000", "--config"]).arg(project("configs/mlp_synthetic.toml"));
        let mut bench = start(&mut bench, Duration::from_secs(60));
        let folder = place.path().join(format!("kintsugi-bench-{}", bench.pid()));
        wait_for_step(&folder.join("fault_tolerant-0"), 3, &mut bench);
        os::kill(bench.pid(), signal).unwrap();
        let ended = bench.wait();
        assert_eq!(ended.code, Some(1), "{}", ended.stderr);
        assert!(ended.stderr.contains("stopped before it was over"), "{}", ended.stderr);
        assert!(!folder.exists(), "{} is left", folder.display());
        assert_eq!(processes_of(&folder), [], "{signal:?}");
    }
}
