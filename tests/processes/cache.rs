//! A node's cache among real ranks: it misses what it has no room for, and no more, whoever dies.

use std::path::Path;

use kintsugi::observe::result::RunResult;
use kintsugi::run_folder;

use crate::share::Share;
use crate::support::{alone, has_completed, run};

const LIMIT_SECONDS: u64 = 180;
/// Pictures, each smaller than a page.
const FILES: u64 = 2_400;
const BATCH: u64 = 24;
/// The first one finds nothing.
const EPOCHS: u64 = 5;
const PAGE_BYTES: u64 = 4_096;
/// How far misses may be from the bound.
const OFF_MAX: f64 = 0.01;

/// A run of five epochs with room for half of the pictures.
fn complete(share: &Share, name: &str, overrides: &[&str]) -> RunResult {
    let dir = share.0.join(name);
    let half = format!("data.cache={}B", FILES / 2 * PAGE_BYTES);
    let (batch, epochs) = (format!("train.global_batch={BATCH}"), format!("train.epochs={EPOCHS}"));
    // What is read ahead beyond the last step, or again after a death, would be found.
    let ahead = "data.prefetch=1";
    let overrides = [&[half.as_str(), &batch, &epochs, ahead], overrides].concat();
    let ended = run(&mut share.command("launch", &dir, &overrides), LIMIT_SECONDS);
    let result = has_completed(&ended, &dir);
    assert_eq!(left_of(&dir), Vec::<String>::new(), "{name}");
    result
}

/// What is left of a run's cache in this machine's memory.
fn left_of(run: &Path) -> Vec<String> {
    let prefix = format!("kintsugi-cache-{}-", run_folder::id(run));
    let entries = std::fs::read_dir("/dev/shm").unwrap().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(&prefix)).collect()
}

/// Share of the reads after the first epoch that missed. What a newcomer reads again of the step at
/// hand and of those ahead is counted, and so is what is read ahead beyond the last step.
fn missed(result: &RunResult) -> f64 {
    let data = &result.data;
    (data.misses - FILES) as f64 / (data.hits + data.misses - FILES) as f64
}

/// LRU misses up to b/e more than the bound in alternating bundles of b, unless the cache is a
/// whole number of them, as it is here. Nothing depends on which rank filled it: what goes is what
/// any of them used least recently.
#[test]
fn a_nodes_cache_misses_what_the_bound_says_with_a_rank_killed_and_with_one_lost() {
    let _alone = alone();
    let share = Share::of("cache-bound", FILES);
    let kill = "faults.plan=[{kind=\"kill\", rank=1, step=230}]";
    let bundles = ["data.bundle_ratio=0.01", "data.alternating=true", "data.cache_policy=lru"];
    let tenths = ["data.bundle_ratio=0.1", "data.alternating=true", "data.cache_policy=lru"];
    let shrinks = "recovery.ladder=[\"shrink\", \"restart\"]";
    let plain = complete(&share, "plain", &["data.cache=off"]);
    assert_eq!((plain.data.hits, plain.data.bound), (0, None));
    let mut states = Vec::new();
    for (name, keys, recoveries) in [
        ("keep-kill", &[kill][..], 1),
        ("lru", &bundles[..], 0),
        ("lru-kill", &[&bundles[..], &[kill]].concat(), 1),
        ("lru-tenths-kill", &[&tenths[..], &[kill]].concat(), 1),
        ("lru-shrink", &[&bundles[..], &[kill, shrinks]].concat(), 1),
    ] {
        let result = complete(&share, name, keys);
        let off = missed(&result) - 0.5;
        println!("{name}: misses {:.4} of warm reads, bound 0.5", missed(&result));
        assert_eq!((result.recoveries.len(), result.data.bound), (recoveries, Some(0.5)), "{name}");
        assert!(off.abs() <= OFF_MAX, "{name}: off by {off}: {:?}", result.data);
        states.push(result.state_sha256);
    }
    assert!(states[0].is_some() && states[1].is_some());
    assert_eq!(states[0], plain.state_sha256, "with a rank killed");
    assert_eq!(states[1], states[2], "with a rank killed");
}
