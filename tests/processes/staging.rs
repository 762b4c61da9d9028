//! Run-time staging among real ranks: whatever brings a sample's bytes, and whoever dies
//! meanwhile, the order of samples and the weights are the same.

use std::path::{Path, PathBuf};

use kintsugi::observe::ledger;
use kintsugi::observe::result::{RunResult, Status};

use crate::share::Share;
use crate::support::{alone, assert_audited, assert_nothing_runs, kintsugi, result_of, run};

const LIMIT_SECONDS: u64 = 120;
const STEPS: u64 = 40;

impl Share {
    /// A run that completes; what it summed, step by step, and its result.
    fn complete(&self, name: &str, overrides: &[&str]) -> (Vec<(u64, u64)>, RunResult) {
        let dir = self.0.join(name);
        let staged = format!("staging.folder={}", self.0.display());
        let steps = format!("train.steps={STEPS}");
        let overrides = [&[staged.as_str(), steps.as_str()], overrides].concat();
        let ended = run(&mut self.command("launch", &dir, &overrides), LIMIT_SECONDS);
        assert_eq!(ended.code, Some(0), "{name}: {}", ended.stderr);
        let stages = overrides.iter().any(|key| key.starts_with("staging.mode="));
        // The last line on staging always comes, with all that is there.
        let whole = format!("staged {0} of {0} files of 2 ranks (", Self::FILES);
        assert!(!stages || ended.stderr.contains("staged "), "{name}: {}", ended.stderr);
        let shards = overrides.contains(&"data.format=tar");
        assert!(!stages || shards || ended.stderr.contains(&whole), "{name}: {}", ended.stderr);
        let result = result_of(&dir);
        assert_eq!(result.status, Status::Completed);
        assert_audited(&dir);
        assert_nothing_runs(&dir);
        (summed(&dir), result)
    }

    fn staged_folders(&self) -> usize {
        let names = std::fs::read_dir(&self.0).unwrap().flatten().map(|entry| entry.file_name());
        names.filter(|name| name.to_string_lossy().starts_with("kintsugi-stage-")).count()
    }
}

/// The pictures of an image folder in so many shards, in the order of the folder.
fn pack(folder: &Path, shards: usize, into: &Path) {
    let sorted = |folder: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let mut paths: Vec<PathBuf> = entries.collect();
        paths.sort();
        paths
    };
    let classes = sorted(folder);
    let pictures: Vec<(usize, PathBuf)> = (classes.iter().enumerate())
        .flat_map(|(class, folder)| sorted(folder).into_iter().map(move |path| (class, path)))
        .collect();
    std::fs::create_dir(into).unwrap();
    let each = pictures.len().div_ceil(shards);
    for (number, part) in pictures.chunks(each).enumerate() {
        let shard = std::fs::File::create(into.join(format!("train-{number:02}.tar"))).unwrap();
        let mut builder = tar::Builder::new(shard);
        let mut append = |name: String, bytes: &[u8]| {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            builder.append_data(&mut header, name, bytes).unwrap();
        };
        for (key, (class, path)) in part.iter().enumerate() {
            append(format!("{key:06}.jpg"), &std::fs::read(path).unwrap());
            append(format!("{key:06}.cls"), class.to_string().as_bytes());
        }
        builder.finish().unwrap();
    }
}

fn summed(dir: &Path) -> Vec<(u64, u64)> {
    let entries = ledger::read(&dir.join("ledger.jsonl")).unwrap();
    ledger::effective(&entries).iter().map(|line| (line.count, line.mix)).collect()
}

#[test]
fn every_mode_of_staging_ends_with_the_same_bits_with_a_rank_killed_in_each() {
    let _alone = alone();
    let share = Share::new("staging-modes");
    let (samples, calm) = share.complete("calm", &["data.prefetch=0"]);
    assert_eq!(calm.data.bytes.local, 0);
    let slow = "data.throttle={rate=\"300kB/s\", latency=\"1ms\"}";
    let kill = "faults.plan=[{kind=\"kill\", rank=1, step=5}]";
    for (name, mode) in [
        ("before", &["staging.mode=before", "staging.workers=2"][..]),
        ("during", &["staging.mode=during", "staging.workers=1", "staging.keep=true"]),
        ("during-0", &["staging.mode=during", "staging.workers=4", "data.prefetch=0"]),
    ] {
        let folders = share.staged_folders();
        let (same, struck) = share.complete(name, &[mode, &[slow, kill]].concat());
        assert_eq!(struck.recoveries.len(), 1, "{name}");
        assert!(same == samples, "{name}: other samples in some step");
        assert_eq!(struck.state_sha256, calm.state_sha256, "{name}");
        let status = run(kintsugi().arg("status").arg(share.0.join(name)), LIMIT_SECONDS).stdout;
        for part in ["staged 96 of 96 files of 2 ranks", "MB from copies", "steps wait: data "] {
            assert!(status.contains(part), "{name}: {part}: {status}");
        }
        // What died in the hands of the dead is copied again, and nothing else.
        let data = struck.data;
        assert!(data.opens <= Share::FILES + 4 && data.bytes.local > 0, "{name}: {data:?}");
        let kept = if name == "during" { 2 } else { 0 };
        assert_eq!(share.staged_folders(), folders + kept, "{name}: folder and lock, or nothing");
    }
}

#[test]
fn shards_give_the_bits_of_the_image_folder_staged_and_cached_with_a_rank_killed() {
    let _alone = alone();
    let share = Share::new("shards");
    pack(&share.0.join("set/train"), 3, &share.0.join("shards"));
    let (samples, calm) = share.complete("folder", &[]);
    let shards = share.0.join("shards/train-{00..02}.tar");
    let train = format!("data.train={}", shards.display());
    let source = ["data.format=tar", &train, "evaluation.every=never"];
    let slow = "data.throttle={rate=\"2MB/s\", latency=\"1ms\"}";
    let kill = "faults.plan=[{kind=\"kill\", rank=1, step=5}]";
    for (name, tiers) in [
        ("plain", &[][..]),
        ("staged", &["staging.mode=during", slow]),
        ("before", &["staging.mode=before", slow, "data.cache=1MiB"]),
    ] {
        let (same, struck) = share.complete(name, &[&source, tiers, &[kill]].concat());
        assert_eq!(struck.recoveries.len(), 1, "{name}");
        assert!(same == samples, "{name}: other samples in some step");
        assert_eq!(struck.state_sha256, calm.state_sha256, "{name}");
        let data = struck.data;
        if name == "before" {
            // Each shard is copied once, whichever rank was first; a killed one may have had one.
            assert!(data.opens <= 3 + 1 && data.hits > 0, "{data:?}");
        }
    }
    let beside = std::fs::read_dir(share.0.join("shards")).unwrap().count();
    assert_eq!(beside, 6, "an index beside each shard, and nothing else");
    assert_eq!(share.staged_folders(), 0);
}

#[test]
fn a_nodes_cache_misses_what_it_has_no_room_for_and_is_warm_for_a_newcomer() {
    let _alone = alone();
    let share = Share::new("cache");
    let (samples, plain) = share.complete("plain", &[]);
    // Every sample takes a page: half of them fit.
    let half = format!("data.cache={}B", Share::FILES / 2 * 4096);
    let kill = "faults.plan=[{kind=\"kill\", rank=1, step=20}]";
    for policy in ["keep", "lru"] {
        let policy_key = format!("data.cache_policy={policy}");
        let (same, struck) = share.complete(policy, &[&half, &policy_key, kill]);
        assert!(same == samples, "{policy}: other samples in some step");
        let data = struck.data;
        assert_eq!((struck.recoveries.len(), data.bound), (1, Some(0.5)), "{policy}");
        assert!(data.misses >= Share::FILES && data.hits > 0, "{policy}: {data:?}");
        assert_eq!(struck.state_sha256, plain.state_sha256);
        if policy == "keep" {
            // The first epoch misses all, later ones half; a newcomer reads a few steps again.
            let expected = Share::FILES + (STEPS * 8 - Share::FILES) / 2;
            assert!(data.misses.abs_diff(expected) <= 40, "{data:?}, about {expected}");
        }
    }
    let left = std::fs::read_dir("/dev/shm").unwrap().flatten();
    let left: Vec<_> = left.map(|entry| entry.file_name()).collect();
    let ours = |name: &&std::ffi::OsString| name.to_string_lossy().starts_with("kintsugi-cache-");
    assert_eq!(left.iter().find(ours), None);
}

/// Nothing is read ahead, so that every sample is one fetch of the step that it belongs to.
#[test]
fn a_steps_reading_is_written_once_whoever_writes() {
    let _alone = alone();
    let share = Share::new("reading");
    let calm = share.complete("calm", &["data.prefetch=0"]).1.data;
    assert_eq!(calm.opens, STEPS * 8);
    for (name, strikes) in [
        ("in-the-middle", "{kind=\"kill\", rank=0, step=7, phase=\"in_all_reduce\"}"),
        ("after-the-vote", "{kind=\"kill\", rank=0, step=9, phase=\"after_vote\"}"),
        ("again", "{kind=\"kill\", rank=0, step=4},{kind=\"kill\", rank=0, step=30}"),
    ] {
        let plan = format!("faults.plan=[{strikes}]");
        let struck = share.complete(name, &["data.prefetch=0", &plan]).1;
        // What the dead read of the step that was under way is told by nobody; in the newcomer's
        // place it is read again, and a survivor has not read it twice.
        let (deaths, read) = (struck.recoveries.len() as u64, struck.data.opens);
        assert!(deaths > 0 && read.abs_diff(STEPS * 8) <= deaths * 4, "{name}: {read}");
    }
}
