//! A launch whose words nobody hears, or whose environment says nothing: training goes on to its
//! end, and the exit code says how.

use std::process::Command;

use kintsugi::observe::result::Status;

use crate::support::{alone, launch, launch_by, result_of, run, run_dir};

const LIMIT_SECONDS: u64 = 60;

/// The shell's line around a launch, which is `"$0" "$@"`.
fn completes(name: &str, line: &str) {
    let folder = run_dir(name);
    let plain = launch(&folder, &["train.steps=3"]);
    let mut command = Command::new("bash");
    command.args(["-c", line]).arg(plain.get_program()).args(plain.get_args());
    let ended = run(&mut command, LIMIT_SECONDS);
    assert_eq!(ended.code, Some(0), "{line}: {}", ended.stderr);
    assert_eq!(result_of(&folder).status, Status::Completed, "{line}");
}

#[test]
fn a_launch_that_nobody_hears_trains_to_its_end() {
    let _turn = alone();
    completes("unheard-full", r#"exec "$0" "$@" >/dev/full 2>&1"#);
    completes("unheard-closed", r#""$0" "$@" 2>&1 | head -1; exit ${PIPESTATUS[0]}"#);
}

/// As a service of systemd has it, which sets neither HOME nor USER.
#[test]
fn a_launch_without_an_environment_trains_to_its_end() {
    let _turn = alone();
    let folder = run_dir("no-environment");
    let mut command = Command::new("env");
    command.args(["-i", "TMPDIR=/no/such/folder", "PATH="]);
    command.arg(env!("CARGO_BIN_EXE_kintsugi"));
    let ended = run(&mut launch_by(command, &folder, &["train.steps=3"]), LIMIT_SECONDS);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(result_of(&folder).status, Status::Completed);
}
