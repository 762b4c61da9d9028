//! A run directory that is moved under a launch: it ends with its ranks and says so, nothing grows
//! under the old name, and what was moved is whole. A start folder that goes is nobody's loss.

use std::time::{Duration, Instant};

use kintsugi::observe::event::Kind;
use kintsugi::observe::log::read_events;
use kintsugi_ffi::os::{Signal, kill};

use crate::support::{
    assert_audited, assert_nothing_runs, beside_its_like, launch, processes_of, result_of, run_dir,
    start, wait_for_step,
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

#[test]
fn a_rank_is_replaced_though_the_folder_where_launch_was_started_is_gone() {
    let _turn = beside_its_like();
    let (folder, started) = (run_dir("start-gone"), tempfile::tempdir().unwrap());
    // Lasts until it is ended.
    let keys = ["train.steps=1000000", "evaluation.every=never", "recovery.regrow=never"];
    let respawn = [&keys[..], &[r#"recovery.ladder=["respawn"]"#]].concat();
    let mut running = start(launch(&folder, &respawn).current_dir(started.path()), LIMIT);
    wait_for_step(&folder, 5, &mut running);
    started.close().unwrap();
    let is_rank = |line: &str| line.split_whitespace().nth(1) == Some("train");
    let (victim, _) = processes_of(&folder).into_iter().find(|(_, line)| is_rank(line)).unwrap();
    kill(victim, Signal::Kill).unwrap();
    let recovered = || {
        let events = read_events(&folder.join("events.jsonl")).unwrap_or_default();
        events.iter().any(|event| matches!(event.kind, Kind::Recovered(_)))
    };
    let limit = Instant::now() + LIMIT;
    while !recovered() && !running.has_ended() && Instant::now() < limit {
        std::thread::sleep(Duration::from_millis(20));
    }
    kill(running.pid(), Signal::Terminate).unwrap();
    let ended = running.wait();
    assert_eq!(ended.code, Some(85), "{}", ended.stderr);
    let result = result_of(&folder);
    let rungs: Vec<&str> = result.recoveries.iter().map(|one| one.rung.as_str()).collect();
    assert_eq!((rungs, result.attempt), (vec!["respawn"], 1), "{}", ended.stderr);
    assert_nothing_runs(&folder);
}
