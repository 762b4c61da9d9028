//! Run-time staging among real ranks: whatever brings a sample's bytes, and whoever dies
//! meanwhile, the order of samples and the weights are the same.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kintsugi::observe::event::Kind;
use kintsugi::observe::ledger;
use kintsugi::observe::log::read_events;
use kintsugi::observe::result::{Restart, RunResult};
use kintsugi::run_folder;
use kintsugi_ffi::os::{Signal, kill};

use crate::share::{Share, pack};
use crate::support::{
    Running, alone, assert_audited, assert_nothing_runs, has_completed, kill_all, kintsugi,
    processes_of, result_of, run, start, wait_for_step,
};

const LIMIT_SECONDS: u64 = 120;
const STEPS: u64 = 40;
/// Enough to strike in the middle of.
const LONG_STEPS: u64 = 600;

/// A folder for copies is named where some are made: elsewhere it would be refused.
fn stages(overrides: &[&str]) -> bool {
    overrides.iter().any(|key| key.starts_with("staging.mode="))
}

impl Share {
    /// A run of `STEPS` that completes; what it summed, step by step, and its result.
    fn complete(&self, name: &str, overrides: &[&str]) -> (Vec<(u64, u64)>, RunResult) {
        let dir = self.0.join(name);
        let stages = stages(overrides);
        let staged = format!("staging.folder={}", self.0.display());
        let steps = format!("train.steps={STEPS}");
        let folder = stages.then_some(staged.as_str());
        let overrides: Vec<&str> =
            folder.into_iter().chain([steps.as_str()]).chain(overrides.iter().copied()).collect();
        let ended = run(&mut self.command("launch", &dir, &overrides), LIMIT_SECONDS);
        assert_eq!(ended.code, Some(0), "{name}: {}", ended.stderr);
        // The last line on staging always comes, with all that is there.
        let whole = format!("staged {0} of {0} files of 2 ranks (", Self::FILES);
        assert!(!stages || ended.stderr.contains("staged "), "{name}: {}", ended.stderr);
        let shards = overrides.contains(&"data.format=tar");
        assert!(!stages || shards || ended.stderr.contains(&whole), "{name}: {}", ended.stderr);
        let result = has_completed(&ended, &dir);
        (summed(&dir), result)
    }

    /// Folders and their locks.
    fn staged_folders(&self) -> usize {
        self.staged().len()
    }

    fn staged(&self) -> Vec<PathBuf> {
        let paths = std::fs::read_dir(&self.0).unwrap().flatten().map(|entry| entry.path());
        let name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
        paths.filter(|path| name(path).starts_with("kintsugi-stage-")).collect()
    }

    /// Whole copies in the folder of the only run that stages.
    fn copies(&self) -> Vec<PathBuf> {
        let staged = self.staged();
        // Its lock is made first.
        let Some(root) = staged.iter().find(|path| path.is_dir()) else { return Vec::new() };
        let folders = std::fs::read_dir(root).unwrap().flatten().map(|entry| entry.path());
        let inner = folders.filter(|path| path.is_dir());
        let files = inner.flat_map(|folder| std::fs::read_dir(folder).unwrap().flatten());
        let paths = files.map(|entry| entry.path());
        paths.filter(|path| path.extension().is_none_or(|ending| ending != "part")).collect()
    }

    /// A run of `LONG_STEPS` that stages beside its training.
    fn start_long(&self, name: &str, overrides: &[&str]) -> Running {
        let staged = format!("staging.folder={}", self.0.display());
        let steps = format!("train.steps={LONG_STEPS}");
        let folder = stages(overrides).then_some(staged.as_str());
        let overrides: Vec<&str> =
            folder.into_iter().chain([steps.as_str()]).chain(overrides.iter().copied()).collect();
        let mut command = self.command("launch", &self.0.join(name), &overrides);
        start(&mut command, Duration::from_secs(LIMIT_SECONDS))
    }

    /// Its end, with these bits and nothing left; what it said.
    fn end_long(&self, name: &str, running: Running, sha256: Option<&str>) -> (String, RunResult) {
        let (dir, ended) = (self.0.join(name), running.wait());
        assert_eq!(ended.code, Some(0), "{name}: {}", ended.stderr);
        let result = result_of(&dir);
        assert!(sha256.is_none() || result.state_sha256.as_deref() == sha256, "{name}");
        assert_audited(&dir);
        assert_nothing_runs(&dir);
        assert_eq!(self.staged_folders(), 0, "{name}");
        (ended.stderr, result)
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
        ("processes", &["staging.mode=during", "staging.processes=true"]),
        ("during-0", &["staging.mode=during", "staging.workers=4", "data.prefetch=0"]),
    ] {
        let folders = share.staged_folders();
        let (same, struck) = share.complete(name, &[mode, &[slow, kill]].concat());
        assert_eq!(struck.recoveries.len(), 1, "{name}");
        assert!(same == samples, "{name}: other samples in some step");
        assert_eq!(struck.state_sha256, calm.state_sha256, "{name}");
        let status = run(kintsugi().arg("status").arg(share.0.join(name)), LIMIT_SECONDS).stdout;
        for part in ["staged 96 of 96 files of 2 ranks", "B from copies", "steps wait: data "] {
            assert!(status.contains(part), "{name}: {part}: {status}");
        }
        // What died in the hands of the dead is copied again, and nothing else.
        let data = struck.data;
        assert!(data.opens <= Share::FILES + 4 && data.bytes.local > 0, "{name}: {data:?}");
        let kept = if name == "during" { 2 } else { 0 };
        assert_eq!(share.staged_folders(), folders + kept, "{name}: folder and lock, or nothing");
    }
    let mut remove = kintsugi();
    let ended = run(remove.args(["runs", "remove", "--yes"]).arg(share.0.join("during")), 60);
    assert_eq!((ended.code, share.staged_folders()), (Some(0), 0), "{}", ended.stderr);
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
        assert_eq!(caches(&share.0.join(policy)), Vec::<String>::new());
    }
}

/// What is left of a run's cache in this machine's memory.
fn caches(run: &Path) -> Vec<String> {
    let prefix = format!("kintsugi-cache-{}-", run_folder::id(run));
    let left = std::fs::read_dir("/dev/shm").unwrap().flatten();
    let names = left.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(&prefix)).collect()
}

/// Nothing is read ahead, so that every sample is one fetch of the step that it belongs to.
#[test]
fn a_steps_reading_is_written_once_whoever_writes() {
    let _alone = alone();
    let share = Share::new("reading");
    let calm = share.complete("calm", &["data.prefetch=0"]).1.data;
    // The first step is computed twice, and read twice for it.
    let steps_read = STEPS + 1;
    assert_eq!(calm.opens, steps_read * 8);
    for (name, strikes) in [
        ("in-the-middle", "{kind=\"kill\", rank=0, step=7, phase=\"in_all_reduce\"}"),
        ("after-the-vote", "{kind=\"kill\", rank=0, step=9, phase=\"after_vote\"}"),
        ("again", "{kind=\"kill\", rank=0, step=4},{kind=\"kill\", rank=0, step=30}"),
        ("by-nobody", "{kind=\"kill\", rank=0, step=7},{kind=\"kill\", rank=1, step=7}"),
    ] {
        let plan = format!("faults.plan=[{strikes}]");
        let struck = share.complete(name, &["data.prefetch=0", &plan]).1;
        // What the dead read of the step that was under way is told by nobody; in the newcomer's
        // place it is read again, and a survivor has not read it twice. Where nobody survived,
        // nobody tells of the steps that the dead writer had not told yet either.
        let (restarts, read) = (&struck.restarts, struck.data.opens);
        let deaths = (struck.recoveries.len() + 2 * restarts.len()) as u64;
        let expected = (steps_read - untold(&share.0.join(name), restarts)) * 8;
        let off = read.abs_diff(expected);
        assert!(deaths > 0 && off <= deaths * 4, "{name}: {read}, not {expected}: {restarts:?}");
    }
}

/// Committed steps whose reading no line has told before all ranks were started again.
fn untold(run: &Path, restarts: &[Restart]) -> u64 {
    let events = read_events(&run.join("events.jsonl")).unwrap();
    let told = |restart: &Restart| {
        let before = events.iter().filter(|event| event.attempt < restart.attempt);
        let steps = before.filter(|event| matches!(event.kind, Kind::Data { .. }));
        steps.map(|event| event.step).max().unwrap_or(0).min(restart.step)
    };
    restarts.iter().map(|restart| restart.step - told(restart)).sum()
}

/// Until every file of a run is on its node.
fn wait_for_copies(run: &Path, running: &mut Running) {
    let until = Instant::now() + Duration::from_secs(LIMIT_SECONDS);
    let whole = |kind: &Kind| match kind {
        Kind::Staging(staged) => staged.ranks > 0 && staged.files == staged.files_total,
        _ => false,
    };
    let told = || read_events(&run.join("events.jsonl")).unwrap_or_default();
    while !told().iter().any(|event| whole(&event.kind)) {
        assert!(!running.has_ended() && Instant::now() < until, "not everything was staged");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn copies_that_are_damaged_or_removed_and_sources_that_vanish_change_no_bit() {
    let _alone = alone();
    let share = Share::new("staging-faults");
    let calm = share.end_long("calm", share.start_long("calm", &[]), None).1.state_sha256;
    let sha256 = calm.as_deref();
    let during = "staging.mode=during";
    let strike = |name: &str, how: &dyn Fn(&Share)| {
        let mut running = share.start_long(name, &[during]);
        wait_for_copies(&share.0.join(name), &mut running);
        how(&share);
        share.end_long(name, running, sha256)
    };
    let cannot = |said: &str| said.matches("cannot be used: their files are read").count();

    let (said, result) = strike("truncated", &|share| {
        for copy in share.copies() {
            std::fs::File::options().write(true).open(copy).unwrap().set_len(7).unwrap();
        }
    });
    assert_eq!(cannot(&said), 1, "one warning for all ranks and files: {said}");
    assert!(result.data.opens > Share::FILES, "{:?}", result.data);

    let (said, _) = strike("changed", &|share| {
        for copy in share.copies() {
            let mut bytes = std::fs::read(&copy).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            std::fs::write(copy, bytes).unwrap();
        }
    });
    assert_eq!(cannot(&said), 1, "{said}");

    let (said, _) = strike("removed", &|share| {
        let staged = share.staged();
        let folder = staged.iter().find(|path| path.is_dir()).unwrap();
        // Ranks may be about to read in it.
        while std::fs::remove_dir_all(folder).is_err() {}
    });
    assert_eq!(cannot(&said), 1, "{said}");

    let away = share.0.join("away");
    let (said, result) = strike("vanished", &|share| {
        std::fs::rename(share.set().join("train"), &away).unwrap();
    });
    std::fs::rename(&away, share.set().join("train")).unwrap();
    // A rank may be slow beside others for reasons of its own.
    let warned = said.lines().filter(|l| l.contains("warning") && !l.contains(" is slow: "));
    assert_eq!(warned.count(), 0, "what is staged needs no shared storage: {said}");
    assert_eq!((result.data.opens, result.bad_images.train), (Share::FILES, 0));
}

#[test]
fn after_everything_was_killed_nothing_is_copied_twice_and_nothing_is_left() {
    let _alone = alone();
    let share = Share::new("staging-killed");
    let calm = share.end_long("calm", share.start_long("calm", &[]), None).1.state_sha256;
    let keys = ["staging.mode=during", "data.cache=1MiB"];
    let mut running = share.start_long("killed", &keys);
    let dir = share.0.join("killed");
    wait_for_copies(&dir, &mut running);
    kill_all(&dir, None);
    assert_eq!(running.wait().code, None, "launch was killed, too");
    assert_nothing_runs(&dir);
    let again = share.start_long("killed", &keys);
    let (said, result) = share.end_long("killed", again, calm.as_deref());
    assert!(result.steps == LONG_STEPS && !result.restarts.is_empty(), "{said}");
    let events = read_events(&dir.join("events.jsonl")).unwrap();
    let again = events.iter().filter(|event| event.attempt > 1);
    let opens =
        again.map(|event| if let Kind::Data { used, .. } = &event.kind { used.opens } else { 0 });
    assert_eq!(opens.sum::<u64>(), 0, "nothing is copied twice: {said}");
    assert!(result.data.opens <= Share::FILES, "{said}");
    assert_eq!(caches(&dir), Vec::<String>::new());

    // A run that is given up leaves its copies to the start that goes on with it, and no cache.
    let keys = [&keys[..], &["recovery.ladder=[\"shrink\"]"]].concat();
    let mut running = share.start_long("given-up", &keys);
    let dir = share.0.join("given-up");
    wait_for_step(&dir, 20, &mut running);
    kill_all(&dir, Some(running.pid()));
    let ended = running.wait();
    assert_ne!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(caches(&dir), Vec::<String>::new(), "{}", ended.stderr);
    assert_eq!(share.staged_folders(), 2, "folder and lock");
    share.end_long("given-up", share.start_long("given-up", &keys), calm.as_deref());
}

/// Bytes of all files below.
fn size_of(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).unwrap().flatten();
    let size = |entry: std::fs::DirEntry| match entry.metadata().unwrap() {
        facts if facts.is_dir() => size_of(&entry.path()),
        facts => facts.len(),
    };
    entries.map(size).sum()
}

#[test]
fn a_set_that_was_staged_ahead_is_copied_by_nobody_and_a_stop_leaves_what_is_whole() {
    let _alone = alone();
    let share = Share::new("staged-ahead");
    let dir = share.0.join("run");
    let steps = format!("train.steps={STEPS}");
    let slow = "data.throttle={rate=\"20kB/s\", latency=\"1ms\"}";
    let keys = ["staging.mode=before", &steps, "staging.workers=1", slow];
    let stage = |more: &[&str]| {
        let mut command = kintsugi();
        command.args(["data", "stage"]).arg(share.0.join("run.toml")).env("TMPDIR", &share.0);
        command.arg("--run-dir").arg(&dir).args(more);
        let train = format!("data.train={}", share.set().join("train").display());
        let validation = format!("data.validation={}", share.set().join("validation").display());
        for key in keys.iter().copied().chain([train.as_str(), &validation]) {
            command.args(["-s", key]);
        }
        command
    };
    // Ctrl-C in the middle.
    let running = start(&mut stage(&[]), Duration::from_secs(LIMIT_SECONDS));
    let until = Instant::now() + Duration::from_secs(LIMIT_SECONDS);
    while share.staged_folders() == 0 || share.copies().len() < 3 {
        assert!(Instant::now() < until, "nothing is staged");
        std::thread::sleep(Duration::from_millis(5));
    }
    kill(running.pid(), Signal::Interrupt).unwrap();
    let ended = running.wait();
    assert_eq!(ended.code, Some(85), "{}", ended.stderr);
    assert!(ended.stderr.contains("the same command goes on"), "{}", ended.stderr);
    let copied = share.copies().len();
    assert!((3..Share::FILES as usize).contains(&copied), "{copied}");

    let fast = "data.throttle={rate=\"100MB/s\", latency=\"0ms\"}";
    let ended = run(stage(&["--json"]).args(["-s", fast]), LIMIT_SECONDS);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let report: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    let bytes = size_of(&share.set().join("train"));
    assert_eq!((report["files"].as_u64(), report["bytes"].as_u64()), (Some(96), Some(bytes)));
    let now = report["copied_bytes"].as_u64().unwrap();
    assert!(0 < now && now < bytes, "{report}");

    let mut launch = share.command("launch", &dir, &keys);
    // Of no use to its ranks, which have one of their own.
    let ended = run(launch.env("TMPDIR", &share.0), LIMIT_SECONDS);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let data = result_of(&dir).data;
    assert_eq!((data.opens, data.bytes.shared), (0, 0), "it copied nothing");
    assert_eq!(share.staged_folders(), 0);
    let off = run(stage(&[]).args(["-s", "staging.mode=none"]), LIMIT_SECONDS);
    assert!(off.code == Some(2) && off.stderr.contains("staging.mode"), "{}", off.stderr);
}

#[test]
fn who_goes_on_without_staging_leaves_no_copies_of_before() {
    let _alone = alone();
    let share = Share::new("staging-left");
    let mut running = share.start_long("run", &["staging.mode=during", "staging.workers=1"]);
    wait_for_step(&share.0.join("run"), 3, &mut running);
    kill(running.pid(), Signal::Interrupt).unwrap();
    let ended = running.wait();
    assert_eq!(ended.code, Some(85), "{}", ended.stderr);
    assert_eq!(share.staged_folders(), 2, "folder and lock");
    share.end_long("run", share.start_long("run", &[]), None);
}

#[test]
fn copy_workers_that_are_killed_are_missed_by_nobody_and_when_all_are_gone_the_run_goes_on() {
    let _alone = alone();
    let share = Share::new("porters");
    // After the copy workers' end every sample comes through the slow storage: few steps will do.
    let few = "train.steps=120";
    let calm = share.end_long("calm", share.start_long("calm", &[few]), None).1.state_sha256;
    let slow = "data.throttle={rate=\"50kB/s\", latency=\"1ms\"}";
    let keys = ["staging.mode=during", "staging.processes=true", "staging.rate=10kB/s", slow, few];
    let porters = |dir: &Path| -> Vec<u32> {
        let all = processes_of(dir).into_iter();
        all.filter(|(_, line)| line.contains(" copy ")).map(|(pid, _)| pid).collect()
    };
    for (name, survivors) in [("half", 2), ("none", 0)] {
        let mut running = share.start_long(name, &keys);
        let dir = share.0.join(name);
        let until = Instant::now() + Duration::from_secs(LIMIT_SECONDS);
        let staged = || share.staged().iter().any(|path| path.is_dir());
        while porters(&dir).len() < 4 || !staged() || share.copies().len() < 4 {
            assert!(!running.has_ended() && Instant::now() < until, "{:?}", processes_of(&dir));
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut victims = porters(&dir);
        // Two ranks have two each, and started theirs one after the other: one of each goes on.
        victims.sort_unstable();
        let parent = |pid: u32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1)?.parse::<u32>().ok())
        };
        if survivors > 0 {
            let mut spared = std::collections::BTreeSet::new();
            victims.retain(|pid| !spared.insert(parent(*pid)));
        }
        victims.into_iter().for_each(|pid| kill(pid, Signal::Kill).unwrap());
        let (said, result) = share.end_long(name, running, calm.as_deref());
        let stopped = said.matches("every copy worker has died").count();
        assert_eq!(stopped, usize::from(survivors == 0), "{name}: {said}");
        assert!(result.recoveries.is_empty() && result.data.bytes.local > 0, "{name}: {said}");
    }
}
