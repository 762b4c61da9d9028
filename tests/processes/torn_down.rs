//! A job that is ended from outside: a rank or more die a moment before launch is told. Survivors
//! may go on with fewer ranks meanwhile: the next start of the run goes on with the same bits.

use std::path::Path;
use std::time::Duration;

use kintsugi::cluster::world::{Role, World};
use kintsugi::observe::result::RunResult;
use kintsugi_ffi::os::{Signal, kill};

use crate::support::{
    alone, assert_nothing_runs, has_completed, launch, run, run_dir, start, wait_for_step,
};

/// Seconds any of these runs may take.
const LIMIT: u64 = 120;
/// A world that shrinks, and a rank that is slow until it is stopped: the run lasts until then.
const KEYS: [&str; 5] = [
    "train.steps=40",
    "evaluation.every=never",
    r#"recovery.ladder=["shrink","restart"]"#,
    "recovery.regrow=never",
    r#"faults.plan=[{kind="slow",who="rank",rank=0,step=12,pause="40ms"}]"#,
];
/// When launch is told, after the first death: before survivors could have repaired anything, while
/// they repair, and once they are ready to commit.
const OFFSETS_MS: [u64; 5] = [0, 3, 10, 30, 60];

fn pids_of_ranks(folder: &Path) -> Vec<u32> {
    let text = std::fs::read(folder.join("world.json")).unwrap();
    let members = World::decode(&text).unwrap().members;
    members.into_iter().filter(|m| m.role == Role::Active).map(|m| m.pid).collect()
}

fn finished(folder: &Path) -> RunResult {
    has_completed(&run(&mut launch(folder, &KEYS), LIMIT), folder)
}

/// `victims`: so many of the highest ranks die first. `told`: launch by SIGTERM, or killed.
fn ended_from_outside(name: &str, victims: usize, offset: Duration, told: Signal) -> RunResult {
    let folder = run_dir(name);
    let mut running = start(&mut launch(&folder, &KEYS), Duration::from_secs(LIMIT));
    wait_for_step(&folder, 14, &mut running);
    for pid in pids_of_ranks(&folder).into_iter().rev().take(victims) {
        kill(pid, Signal::Kill).unwrap();
    }
    std::thread::sleep(offset);
    kill(running.pid(), told).unwrap();
    let ended = running.wait();
    assert_ne!(ended.code, Some(0), "it was finished before it was ended: {}", ended.stderr);
    assert_nothing_runs(&folder);
    finished(&folder)
}

#[test]
fn a_job_that_is_ended_rank_by_rank_goes_on_with_its_bits() {
    let _turn = alone();
    let calm = finished(&run_dir("torn-down-calm"));
    for (index, offset) in OFFSETS_MS.into_iter().enumerate() {
        for told in [Signal::Terminate, Signal::Kill] {
            let victims = 1 + index % 3;
            let name = format!("torn-down-{offset}-{told:?}");
            let offset = Duration::from_millis(offset);
            let result = ended_from_outside(&name, victims, offset, told);
            assert!(result.exact, "{name}");
            assert_eq!(result.state_sha256, calm.state_sha256, "{name}: other bits");
        }
    }
}
