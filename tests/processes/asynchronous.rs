//! The asynchronous exchange after repairs: what its ranks hold, read from their slots when
//! everything was killed at one instant. Its deaths, phase by phase, are rows of the matrix
//! (`matrix/rounds.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use kintsugi::cluster::resident::file::{body_at, body_bytes};
use kintsugi::cluster::resident::folder::inventory;
use kintsugi::cluster::resident::{Key, Look};
use kintsugi::config::seed;

use crate::support::{
    alone, assert_audited, assert_nothing_runs, kill_all, launch, result_of, run, run_dir, start,
    wait_for_step,
};

/// Seconds that any of these runs may take.
const LIMIT: u64 = 120;
const RANKS: usize = 4;

/// Hashes of tensors and positions in the slots that a run left, by state, one a member.
fn held(folder: &Path) -> BTreeMap<Key, Vec<u64>> {
    let name = folder.display().to_string();
    let mut held: BTreeMap<Key, Vec<u64>> = BTreeMap::new();
    for found in
        inventory(Path::new("/dev/shm")).unwrap().iter().filter(|found| found.run_dir == name)
    {
        let look = Look::at(&found.path).unwrap();
        let bytes = body_bytes(found.bytes).unwrap();
        for (slot, header) in look.headers().unwrap().into_iter().enumerate() {
            let Ok(header) = header else { continue };
            let mut body = vec![0f32; bytes / size_of::<f32>()];
            look.copy(&mut body, body_at(slot, bytes)).unwrap();
            let bits = body.iter().map(|value| u64::from(value.to_bits()));
            let hash = seed::key(&[seed::key(&bits.collect::<Vec<_>>()), header.extra_checksum]);
            held.entry(header.key).or_default().push(hash);
        }
    }
    held
}

#[test]
fn all_ranks_hold_the_same_bits_after_repairs_and_what_was_killed_goes_on() {
    let _turn = alone();
    let folder = run_dir("asynchronous-held");
    let kills = r#"faults.plan=[{kind="kill", rank=0, step=20, phase="in_update"},
        {kind="kill", rank=2, step=30, phase="in_backward"}]"#;
    let free = ["train.exchange=asynchronous", "optimizer.momentum=0.5", kills];
    let mut running = start(&mut launch(&folder, &free), Duration::from_secs(LIMIT));
    wait_for_step(&folder, 45, &mut running);
    kill_all(&folder, None);
    drop(running.wait());
    let held = held(&folder);
    let all = held.values().find(|hashes| hashes.len() == RANKS);
    let all = all.unwrap_or_else(|| panic!("no state that all ranks hold: {held:?}"));
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 1, "replicas differ: {held:?}");
    let ended = run(&mut launch(&folder, &free), LIMIT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let result = result_of(&folder);
    let repaired: Vec<&str> = result.recoveries.iter().map(|r| r.rung.as_str()).collect();
    let from: Vec<&str> = result.restarts.iter().map(|restart| restart.from.as_str()).collect();
    assert_eq!((repaired, from), (vec!["respawn"; 2], vec!["resident"]));
    assert_eq!((result.lost_steps, result.samples, result.exact), (0, 3 * 960, false));
    assert_audited(&folder);
    assert_nothing_runs(&folder);
}
