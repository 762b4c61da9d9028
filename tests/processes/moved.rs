//! A run directory that is moved under a launch: it ends with its ranks and says so, nothing grows
//! under the old name, and what was moved is whole.

use std::time::Duration;

use crate::support::{
    assert_audited, assert_nothing_runs, beside_its_like, launch, run_dir, start, wait_for_step,
};

/// Far more than a start and an end take.
const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn a_launch_whose_run_directory_is_renamed_ends_and_nothing_grows_under_the_old_name() {
    let _turn = beside_its_like();
    let (folder, elsewhere) = (run_dir("moved"), run_dir("moved-elsewhere"));
    // Lasts until it is ended.
    let keys = ["train.steps=1000000", "evaluation.every=never", "recovery.resident=off"];
    let mut running = start(&mut launch(&folder, &keys), LIMIT);
    wait_for_step(&folder, 5, &mut running);
    std::fs::rename(&folder, &elsewhere).unwrap();
    let ended = running.wait();
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    let said = &ended.stderr;
    assert!(said.contains("was moved, removed or replaced under the run"), "{said}");
    assert_nothing_runs(&folder);
    assert!(!folder.exists(), "something grew in the old place");
    assert_audited(&elsewhere);
}
