//! What other programs read of a run: `metrics.csv`, and the readers in python/, over a real run
//! that was rolled back, killed with its supervisor and gone on with.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use kintsugi::observe::event::Kind;
use kintsugi::observe::log::read_events;

use crate::support::{
    alone, assert_audited, kill_all, launch, project, result_of, run, run_dir, start, wait_for_step,
};

const LIMIT: u64 = 120;
const BACK: [&str; 5] = [
    "train.steps=90",
    "recovery.ladder=[\"restart\"]",
    "recovery.resident=off",
    "checkpoint.every=20steps",
    "faults.plan=[{ kind = \"kill\", rank = 1, step = 33 }]",
];

#[test]
fn rows_are_the_steps_that_stand_and_python_reads_the_same() {
    let _turn = alone();
    let folder = run_dir("readers");
    let limit = std::time::Duration::from_secs(LIMIT);
    let mut running = start(&mut launch(&folder, &BACK), limit);
    wait_for_step(&folder, 65, &mut running);
    kill_all(&folder, None);
    running.wait();
    let ended = run(&mut launch(&folder, &BACK), LIMIT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_audited(&folder);
    let events = read_events(&folder.join("events.jsonl")).unwrap();
    assert!(events.iter().any(|event| matches!(event.kind, Kind::Restarted { .. })), "no rollback");
    let text = std::fs::read_to_string(folder.join("metrics.csv")).unwrap();
    let cell = |line: &str, at: usize| line.split(',').nth(at).unwrap().to_owned();
    let steps: Vec<u64> = text.lines().skip(1).map(|line| cell(line, 0).parse().unwrap()).collect();
    // The last telling of a step stands, unless the run went back before it.
    let mut told: BTreeMap<u64, [String; 2]> = BTreeMap::new();
    let mut evaluations = BTreeSet::new();
    for event in &events {
        match &event.kind {
            Kind::Step { loss, error, .. } => {
                told.retain(|step, _| *step < event.step);
                evaluations.retain(|step| *step < event.step);
                told.insert(event.step, [loss, error].map(ToString::to_string));
            }
            Kind::Evaluation { .. } => {
                evaluations.insert(event.step);
            }
            // Both name the last step that still counts.
            Kind::RunStart { .. } | Kind::Restarted { .. } => {
                told.retain(|step, _| *step <= event.step);
                evaluations.retain(|step| *step <= event.step);
            }
            _ => {}
        }
    }
    let rows = text.lines().skip(1).filter(|line| !cell(line, 3).is_empty());
    let rows: BTreeMap<u64, [String; 2]> =
        rows.map(|line| (cell(line, 0).parse().unwrap(), [cell(line, 3), cell(line, 4)])).collect();
    assert_eq!(rows, told);
    let all = told.keys().chain(&evaluations).copied().collect::<BTreeSet<u64>>();
    assert_eq!(steps, all.into_iter().collect::<Vec<_>>(), "each once, in order");
    let evaluated = |line: &&str| !cell(line, 7).is_empty();
    let evaluated: Vec<u64> =
        text.lines().skip(1).filter(evaluated).map(|line| cell(line, 0).parse().unwrap()).collect();
    assert_eq!(evaluated, [20, 40, 60, 80, 90], "{text}");
    let last = text.lines().last().unwrap();
    let error = result_of(&folder).validation.unwrap().error;
    assert_eq!((cell(last, 0), cell(last, 7)), ("90".into(), error.to_string()));
    python(&folder);
}

/// Its own tests, and those of this run.
fn python(folder: &std::path::Path) {
    let named = std::env::var_os("KINTSUGI_TORCHVISION_PYTHON").unwrap_or("python3".into());
    let mut command = Command::new(&named);
    if Command::new(&named).arg("--version").output().is_err() {
        println!("skipped: python/ (there is no {})", named.display());
        return;
    }
    command.args(["-B", "-m", "unittest", "discover", "-s"]).arg(project("python/tests"));
    command.env("PYTHONPATH", project("python")).env("KINTSUGI_RUN", folder);
    let ended = run(&mut command, LIMIT);
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stderr.contains("Ran 9 tests"), "{}", ended.stderr);
}
