//! Silent corruption in real processes: a bit of a rank's weights turns over, a gradient is no
//! number. One run at a time: four ranks share two cores.

use std::path::{Path, PathBuf};

use kintsugi::observe::event::{Event, Kind, ROLLBACK, RecoveryRecord};
use kintsugi::observe::ledger::{self, Entry};
use kintsugi::observe::log::read_events;
use kintsugi::observe::result::RunResult;
use kintsugi::observe::standing::standing;

use crate::support::{self, alone};

fn completed(name: &str, overrides: &[&str]) -> (PathBuf, RunResult) {
    support::completed(&format!("integrity-{name}"), overrides)
}

/// Samples of the step events that stand.
fn told(folder: &Path) -> u64 {
    let events = read_events(&folder.join("events.jsonl")).unwrap();
    let samples = |event: &&Event| match event.kind {
        Kind::Step { samples, .. } => samples,
        _ => 0,
    };
    standing(&events).iter().map(samples).sum()
}

const FLIP: &str = r#"faults.plan=[{kind="bit_flip", rank=2, step=24, phase="in_publish"}]"#;
const EVERY: &str = "recovery.integrity_every=10steps";

fn rollbacks(folder: &Path) -> Vec<u64> {
    let entries = ledger::read(&folder.join("ledger.jsonl")).unwrap();
    let to = |entry: &Entry| match entry {
        Entry::Rollback { to, .. } => Some(*to),
        _ => None,
    };
    entries.iter().filter_map(to).collect()
}

#[test]
fn a_rank_whose_weights_differ_is_evicted_and_the_bits_are_the_calm_runs() {
    let _turn = alone();
    let (_, calm) = completed("calm", &[]);
    let (folder, result) = completed("flip", &[FLIP, EVERY]);
    assert_eq!(result.state_sha256, calm.state_sha256);
    assert_eq!(rollbacks(&folder), [20]);
    assert_eq!(result.recoveries.len(), 1, "{:?}", result.recoveries);
    let lost = &result.recoveries[0].lost;
    assert_eq!(lost.iter().map(|lost| lost.rank).collect::<Vec<_>>(), [2]);
    assert_eq!(result.lost_steps, 10, "steps 21 to 30 were done again");
    let named = read_events(&folder.join("events.jsonl")).unwrap().into_iter().any(|event| {
        matches!(event.kind, Kind::Warning { message }
            if message.contains("silent corruption") && message.contains("rank 2"))
    });
    assert!(named, "the event log names the rank");
}

/// A run of few ranks.
fn of(ranks: &str, name: &str, more: &[&str]) -> (RunResult, PathBuf) {
    let ranks = format!("run.ranks={ranks}");
    let (folder, result) = completed(name, &[&[&*ranks][..], more].concat());
    (result, folder)
}

#[test]
fn two_ranks_go_back_whoever_of_them_dies_first_and_to_no_checkpoint_of_what_differs() {
    let _turn = alone();
    let (calm, _) = of("2", "two-calm", &[]);
    let flip = FLIP.replace("rank=2", "rank=1");
    // An evaluation would end the line of the step that is gone back to, too.
    let quiet = r#"evaluation.every="never""#;
    let (result, folder) = of("2", "two-flip", &[&flip, EVERY, quiet]);
    assert_eq!(result.state_sha256, calm.state_sha256);
    assert_eq!(rollbacks(&folder), [20]);
    assert_eq!(told(&folder), result.samples, "each step that counts is told once");
    let told = |r: &RecoveryRecord| (r.rung.clone(), r.lost.len(), r.lost_steps);
    assert_eq!(result.recoveries.iter().map(told).collect::<Vec<_>>(), [(ROLLBACK.into(), 0, 10)]);
    // A replacement takes the dead rank's memory over, and finds that the survivor's differs.
    for dead in 0..2 {
        let kill = format!(r#"}}, {{kind="kill", rank={dead}, step=27, phase="in_backward"}}]"#);
        let both = flip.replace("}]", &kill);
        let (result, folder) = of("2", &format!("two-flip-kill-{dead}"), &[&both, EVERY]);
        assert_eq!((result.state_sha256, result.exact), (calm.state_sha256.clone(), true));
        assert_eq!(rollbacks(&folder), [20], "rank {dead} died");
        let given_up: u64 = result.recoveries.iter().map(|record| record.lost_steps).sum();
        assert_eq!((given_up, result.lost_steps), (6, 6));
    }
    // The checkpoint of step 30 is begun before the comparison at step 30.
    let restart = [
        r#"recovery.ladder=["restart"]"#,
        r#"recovery.resident="off""#,
        "checkpoint.every=10steps",
        &flip,
        EVERY,
    ];
    let (result, _) = of("2", "two-flip-restart", &restart);
    assert_eq!((result.state_sha256, result.exact), (calm.state_sha256, true));
    let from: Vec<u64> = result.restarts.iter().map(|restart| restart.step).collect();
    assert!(matches!(from[..], [..=20]), "{from:?}");
}

#[test]
fn all_survivors_go_back_where_a_replacement_takes_over_another_state_and_nobody_else_is_lost() {
    let _turn = alone();
    let (calm, _) = of("3", "three-calm", &[]);
    let flip = FLIP.replace("}]", r#"}, {kind="kill", rank=2, step=26, phase="in_forward"}]"#);
    let (result, folder) = of("3", "three-flip-kill", &[&flip, EVERY, "checkpoint.every=6steps"]);
    assert_eq!((result.state_sha256, result.exact), (calm.state_sha256, true));
    assert_eq!(rollbacks(&folder), [20]);
    assert_eq!(result.restarts, []);
    let lost: Vec<u32> = result.recoveries.iter().flat_map(|r| &r.lost).map(|l| l.rank).collect();
    assert_eq!(lost, [2, 2], "it, and the replacement that took its memory over");
}

/// What was given up lies in the memory of a rank that died before it had given it up, and in
/// checkpoints that it has published; and what a flawed rank's gradients went into lies with
/// others, alike.
#[test]
fn a_restart_does_not_take_up_what_was_given_up_nor_what_only_others_hold_alike() {
    let _turn = alone();
    let (calm, _) = of("3", "three-calm", &[]);
    let run = |name: &str, flipped: usize, deaths: &[(usize, &str)], more: &[&str]| {
        let kills: String = deaths
            .iter()
            .map(|(rank, phase)| {
                format!(r#", {{kind="kill", rank={rank}, step=31, phase="{phase}"}}"#)
            })
            .collect();
        let flip = FLIP
            .replace("rank=2", &format!("rank={flipped}"))
            .replace("}]", &format!("}}{kills}]"));
        let restart = r#"recovery.ladder=["restart"]"#;
        of("3", name, &[&[restart, EVERY, &flip], more].concat()).0
    };
    // The checkpoint of step 25 is published before step 30 is compared.
    let (soon, late) = ("checkpoint.every=5steps", "checkpoint.every=10steps");
    let off = r#"recovery.resident="off""#;
    let cases: [(&str, usize, &[&str]); 4] = [
        ("given-up-2", 2, &[late]),
        ("given-up-0", 0, &[late]),
        ("given-up-published", 0, &[soon]),
        ("given-up-on-disk", 0, &[soon, off]),
    ];
    for (name, dead, more) in cases {
        let result = run(name, 2, &[(dead, "after_vote")], more);
        let bits = (result.state_sha256, result.exact);
        assert_eq!(bits, (calm.state_sha256.clone(), true), "{name}");
    }
    let result = run("only-others", 0, &[(1, "before_load"), (2, "before_load")], &[late]);
    assert!(!result.exact || result.state_sha256 == calm.state_sha256);
}

#[test]
fn what_a_restart_does_not_trust_is_in_no_checkpoint() {
    let _turn = alone();
    // Rank 0 writes down what it alone holds; there is time for it until rank 2 dies.
    let keys = [
        r#"recovery.ladder=["restart"]"#,
        "recovery.integrity_every=50steps",
        "checkpoint.every=30steps",
        r#"faults.plan=[{kind="bit_flip", rank=0, step=30, phase="in_publish"},
            {kind="slow", who="rank", rank=2, step=31, pause="1s"},
            {kind="kill", rank=2, step=31, phase="in_backward"}]"#,
    ];
    let (calm, _) = of("3", "three-calm", &[]);
    let (result, folder) = of("3", "untrusted", &keys);
    assert_eq!(result.state_sha256, calm.state_sha256, "the majority's");
    let events = read_events(&folder.join("events.jsonl")).unwrap();
    let published = events.iter().any(|event| {
        let of_30 = |name: &str| name == "step-00000030";
        event.attempt == 1 && matches!(&event.kind, Kind::Checkpoint { name, .. } if of_30(name))
    });
    assert!(!(published && result.exact), "the flaw may be older than the end");
    let kept: Vec<_> = std::fs::read_dir(folder.join("checkpoints")).unwrap().flatten().collect();
    let of_30 = kept.iter().find(|entry| entry.file_name() == "step-00000030");
    assert!(of_30.is_none(), "what rank 0 held is still there: {kept:?}");
}

#[test]
fn gradients_that_are_no_numbers_once_cost_time_and_no_bit() {
    let _turn = alone();
    let nan = r#"faults.plan=[{kind="nan", rank=1, step=30, phase="in_forward"}]"#;
    let killed = nan.replace("}]", r#"}, {kind="kill", rank=2, step=30, phase="in_backward"}]"#);
    let calm = completed("nan-calm", &[]).1;
    for (name, faults, deaths) in [("nan", nan, 0), ("nan-killed", &killed, 1)] {
        let (folder, result) = completed(name, &[faults]);
        assert_eq!((result.state_sha256, result.exact), (calm.state_sha256.clone(), true));
        assert_eq!((result.zero_updates, result.recoveries.len()), (0, deaths), "{name}");
        let events = read_events(&folder.join("events.jsonl")).unwrap();
        let again = |kind: &Kind| match kind {
            Kind::Warning { message } => message.starts_with("step 30: gradients are not finite"),
            _ => false,
        };
        let said = events.iter().filter(|event| again(&event.kind)).count();
        assert!(said == 1 || name == "nan-killed", "{name}: {said}");
    }
}
