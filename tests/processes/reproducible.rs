//! Sums over real processes: the same bits for any number of ranks, and after a shrink. Each claim
//! compares whole runs by their `state_sha256`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use kintsugi::observe::event::Kind;
use kintsugi::observe::log::read_events;
use kintsugi::observe::result::RunResult;
use kintsugi_ffi::os::{Signal, kill};

use crate::support::{
    alone, assert_nothing_runs, completed, has_completed, launch, run, run_dir, start,
    wait_for_step,
};

/// Seconds any of these runs may take.
const LIMIT: u64 = 120;

const SHRINK: &str = r#"recovery.ladder=["shrink"]"#;

/// A whole run on so many ranks.
fn trained(name: &str, ranks: usize, overrides: &[&str]) -> (PathBuf, RunResult) {
    let ranks = format!("run.ranks={ranks}");
    let keys = [&[&*ranks, "recovery.regrow=never"][..], overrides].concat();
    let (folder, result) = completed(&format!("reproducible-{name}"), &keys);
    assert!(result.exact, "{name}: sums are exact whatever happened");
    assert_eq!(result.lost_steps, 0, "{name}");
    (folder, result)
}

/// The run on four ranks that lost none.
fn four() -> &'static RunResult {
    static FOUR: OnceLock<RunResult> = OnceLock::new();
    FOUR.get_or_init(|| trained("four", 4, &[]).1)
}

#[test]
fn any_number_of_ranks_ends_with_the_same_bits() {
    let _turn = alone();
    for ranks in [1, 2, 3] {
        let (_, result) = trained(&format!("of-{ranks}"), ranks, &[]);
        assert_eq!(result.state_sha256, four().state_sha256, "{ranks} ranks");
        let error = |result: &RunResult| result.validation.map(|measured| measured.error);
        assert_eq!(error(&result), error(four()), "{ranks} ranks: another validation error");
    }
}

fn long_run(folder: &Path, ranks: usize) -> Command {
    let ranks = format!("run.ranks={ranks}");
    let keys = ["train.steps=300", "evaluation.every=never", "recovery.regrow=never"];
    launch(folder, &[&[&*ranks][..], &keys].concat())
}

/// The bits of the long run on four ranks that nobody ended.
fn long_calm() -> Option<String> {
    let folder = run_dir("reproducible-long-calm");
    has_completed(&run(&mut long_run(&folder, 4), LIMIT), &folder).state_sha256
}

/// Starts a long run on four ranks, ends it somewhere on the way, and goes on with so many.
fn gone_on_with(ranks: usize, end: Signal) -> RunResult {
    let folder = run_dir(&format!("reproducible-on-{ranks}-{end:?}"));
    let mut running = start(&mut long_run(&folder, 4), Duration::from_secs(LIMIT));
    wait_for_step(&folder, 20, &mut running);
    kill(running.pid(), end).expect("launch lives");
    running.wait();
    assert_nothing_runs(&folder);
    let result = has_completed(&run(&mut long_run(&folder, ranks), LIMIT), &folder);
    assert_eq!((result.lost_steps, result.attempt), (0, 2), "it was gone on with");
    result
}

/// From a checkpoint (Ctrl-C), and from memory (SIGKILL).
#[test]
fn a_run_that_another_number_of_ranks_goes_on_with_keeps_its_bits() {
    let _turn = alone();
    let calm = long_calm();
    for end in [Signal::Interrupt, Signal::Kill] {
        for ranks in [4, 3] {
            let result = gone_on_with(ranks, end);
            assert!(result.exact, "{end:?}: sums do not depend on the number");
            assert_eq!(result.state_sha256, calm, "{end:?}: {ranks} ranks went on");
        }
    }
}

#[test]
fn batch_statistics_are_the_same_for_any_number_of_ranks() {
    let _turn = alone();
    let network = [
        "model.name=resnet20",
        "model.width=1.0",
        "train.steps=6",
        "train.owners=6",
        "train.global_batch=24",
        "train.workers=2",
        "evaluation.every=never",
        r#"faults.plan=[{kind="kill", rank=1, step=4, phase="in_backward"}]"#,
        SHRINK,
    ];
    let ((_, three), (_, two)) =
        (trained("norm-3", 3, &network), trained("norm-2", 2, &network[..7]));
    assert_eq!(three.recoveries.len(), 1, "{:?}", three.recoveries);
    assert_eq!(three.state_sha256, two.state_sha256);
}

/// A rate at which this network's gradients outgrow their grid within a few steps.
#[test]
fn steps_whose_gradients_do_not_fit_are_computed_again_on_every_rank() {
    let _turn = alone();
    let diverging = ["optimizer.learning_rate=100.0", "train.steps=5", "evaluation.every=never"];
    let ((folder, four), (_, two)) =
        (trained("wide-4", 4, &diverging), trained("wide-2", 2, &diverging));
    assert_eq!(four.state_sha256, two.state_sha256);
    let events = read_events(&folder.join("events.jsonl")).unwrap();
    let said = |kind: &Kind| matches!(kind, Kind::StepAgain { .. });
    assert_eq!(events.iter().filter(|event| said(&event.kind)).count(), 1);
    let kill = r#"faults.plan=[{kind="kill", rank=3, step=3, phase="before_vote"}]"#;
    for ladder in [SHRINK, r#"recovery.ladder=["respawn"]"#] {
        let overrides = [diverging[0], diverging[1], diverging[2], kill, ladder];
        let (_, struck) = trained("wide-struck", 4, &overrides);
        assert_eq!(struck.recoveries.len(), 1, "{:?}", struck.recoveries);
        assert_eq!(struck.state_sha256, four.state_sha256, "{ladder}");
    }
}
