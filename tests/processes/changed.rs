//! Processes of one run that do not see the same: a set that changes while it is learned from,
//! nodes that list it differently, processors that round otherwise, another build of the program,
//! an edited model file. A run ends with the bits of one that saw no change, or says by name why
//! not.

use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use kintsugi::cluster::world::{Role, World};
use kintsugi::observe::event::Kind;
use kintsugi::observe::log::read_events;
use kintsugi::observe::result::{RunResult, Status};
use kintsugi_ffi::os::{Signal, kill};

use crate::share::{Share, pack};
use crate::support::{
    Ended, PRELOADED, alone, assert_audited, assert_nothing_runs, compiled, result_of, start,
    wait_for_step,
};

const LIMIT: Duration = Duration::from_secs(90);
/// Enough for a change, a death and a repair before the end.
const STEPS: &str = "train.steps=150";
/// The change comes after this step.
const CHANGED_AT: u64 = 5;
const RESPAWN: &str = r#"recovery.ladder=["respawn"]"#;

/// How many ranks are killed at once.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Killed {
    Last,
    All,
}

fn ended(mut command: Command, limit: Duration) -> Ended {
    start(&mut command, limit).wait()
}

fn completed(name: &str, run: &Path, ended: &Ended) -> RunResult {
    assert_eq!(ended.code, Some(0), "{name}: {}", ended.stderr);
    assert_audited(run);
    assert_nothing_runs(run);
    result_of(run)
}

/// Starts the command's run, lets `change` happen in the middle of it, then kills.
fn changed_under(mut command: Command, run: &Path, change: impl FnOnce(), killed: Killed) -> Ended {
    let mut running = start(&mut command, LIMIT);
    wait_for_step(run, CHANGED_AT, &mut running);
    change();
    let world: World =
        serde_json::from_slice(&std::fs::read(run.join("world.json")).unwrap()).unwrap();
    let ranks = world.members.iter().filter(|member| member.role == Role::Active);
    let pids: Vec<u32> = ranks.map(|member| member.pid).collect();
    let victims = match killed {
        Killed::Last => &pids[1..],
        Killed::All => &pids[..],
    };
    for pid in victims {
        kill(*pid, Signal::Kill).unwrap();
    }
    running.wait()
}

/// A picture of the set, and a name in another class under which it is new.
fn picture(set: &Path) -> (PathBuf, PathBuf) {
    let sorted = |folder: &Path| {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let mut paths: Vec<PathBuf> = entries.collect();
        paths.sort();
        paths
    };
    let classes = sorted(set);
    (sorted(&classes[1]).remove(0), classes[0].join("0000-new.jpg"))
}

#[test]
fn a_picture_that_comes_in_mid_run_changes_nothing_whatever_replaces_a_killed_rank() {
    let _turn = alone();
    let share = Share::new("changed-picture");
    let calm = share.0.join("calm");
    let of_calm = ended(share.command("launch", &calm, &[STEPS]), LIMIT);
    let calm = completed("calm", &calm, &of_calm).state_sha256;
    let (from, to) = picture(&share.set().join("train"));
    for (name, killed, keys) in [
        ("respawn", Killed::Last, &[RESPAWN][..]),
        ("spare", Killed::Last, &[r#"recovery.ladder=["spare"]"#, "recovery.spares=1"]),
        ("cold", Killed::Last, &["recovery.spares=1", "recovery.warm_spares=false"]),
        ("shrink", Killed::Last, &[r#"recovery.ladder=["shrink"]"#]),
        ("restart", Killed::All, &[]),
    ] {
        let run = share.0.join(name);
        let command = share.command("launch", &run, &[&[STEPS], keys].concat());
        let change = || {
            std::fs::copy(&from, &to).unwrap();
        };
        let said = changed_under(command, &run, change, killed);
        let result = completed(name, &run, &said);
        assert!(result.exact, "{name}");
        assert_eq!(result.state_sha256, calm, "{name}: {}", said.stderr);
        let told = said.stderr.contains("data.train: 1 pictures have come since the run began");
        assert_eq!(told, name == "restart", "{name}: {}", said.stderr);
        std::fs::remove_file(&to).unwrap();
    }
}

/// The same pictures in the same places with other labels.
fn relabel(shard: &Path) {
    let mut bytes = std::fs::read(shard).unwrap();
    let mut archive = tar::Archive::new(std::io::Cursor::new(bytes.clone()));
    for entry in archive.entries().unwrap() {
        let entry = entry.unwrap();
        if entry.path().unwrap().extension().is_some_and(|ending| ending == "cls") {
            let at = entry.raw_file_position() as usize;
            bytes[at] = b'0' + (b'3' - bytes[at]);
        }
    }
    // Another file under the name, as a copy that is renamed makes it.
    let beside = shard.with_extension("new");
    std::fs::write(&beside, bytes).unwrap();
    std::fs::rename(&beside, shard).unwrap();
}

#[test]
fn a_newcomer_that_finds_other_labels_is_refused_by_name_and_the_next_rung_is_taken() {
    let _turn = alone();
    let share = Share::new("changed-shard");
    let shards = share.0.join("shards");
    pack(&share.set().join("train"), 2, &shards);
    let train = format!("data.train={}", shards.display());
    let keys = [STEPS, "data.format=tar", &train];
    let calm = share.0.join("calm");
    let of_calm = ended(share.command("launch", &calm, &keys), LIMIT);
    let calm = completed("calm", &calm, &of_calm).state_sha256;
    let run = share.0.join("run");
    let ladder = r#"recovery.ladder=["respawn", "shrink"]"#;
    let command = share.command("launch", &run, &[&keys[..], &[ladder]].concat());
    let change = || relabel(&shards.join("train-01.tar"));
    let said = changed_under(command, &run, change, Killed::Last);
    let result = completed("shard", &run, &said);
    // The labels are those that the run began with.
    assert!(result.exact && result.state_sha256 == calm, "{}", said.stderr);
    let events = read_events(&run.join("events.jsonl")).unwrap();
    let mut steps_down = events.iter().filter_map(|event| match &event.kind {
        Kind::RungDown { from, to, reason } => Some((from.clone(), to.clone(), reason.clone())),
        _ => None,
    });
    let (from, to, reason) = steps_down.next().expect("the ladder says why");
    assert_eq!((&*from, &*to), ("respawn", "shrink"));
    let why = "has listed other training samples (as many, with other names, sizes or labels)";
    assert!(reason.contains("newcomer for rank 1") && reason.contains(why), "{reason}");
    // Nor does the run go on with them later.
    let longer = [&keys[1..], &["train.steps=160"]].concat();
    let later = ended(share.command("launch", &run, &longer), LIMIT);
    assert_eq!(later.code, Some(3), "{}", later.stderr);
    assert!(later.stdout.contains("not the training set that the run began with"));
    // It has completed, and stays so.
    let result = result_of(&run);
    assert_eq!((result.status, result.attempt), (Status::Completed, 1));
}

/// Its offsets are of the new file's samples no more, whatever is read there.
#[test]
fn a_shard_that_is_written_in_mid_run_ends_exactness_and_no_run() {
    let _turn = alone();
    let share = Share::new("changed-in-place");
    let shards = share.0.join("shards");
    pack(&share.set().join("train"), 2, &shards);
    let train = format!("data.train={}", shards.display());
    // Time for many looks at it; and nothing of it is read again, which only a last look finds.
    let slow = r#"faults.plan=[{kind="slow", rank=1, step=10, pause="50ms"}]"#;
    let seen = "lie in a file that was written or touched since";
    let cases = [
        ("in-place", slow, 5, seen),
        ("cached", "data.cache=64MiB", 40, "which a look at its end, behind step 60, has shown"),
    ];
    for (name, key, step, reason) in cases {
        let run = share.0.join(name);
        let keys = ["train.steps=60", "data.format=tar", &train, key];
        let mut running = start(&mut share.command("launch", &run, &keys), LIMIT);
        wait_for_step(&run, step, &mut running);
        let shard = std::fs::File::options().write(true).open(shards.join("train-00.tar")).unwrap();
        // Nothing is another byte.
        let bytes = std::fs::read(shards.join("train-00.tar")).unwrap();
        shard.write_all_at(&bytes, 0).unwrap();
        let said = running.wait();
        let result = completed(name, &run, &said);
        assert_eq!((result.exact, result.steps), (false, 60), "{name}: {}", said.stderr);
        assert!(said.stderr.contains(reason), "{name}: {}", said.stderr);
    }
}

/// The library of `changed.c`; nothing where no compiler is.
fn library(place: &Path) -> Option<PathBuf> {
    compiled("changed.c", &PRELOADED, place).ok()
}

#[test]
fn ranks_that_list_different_sets_do_not_begin() {
    let _turn = alone();
    let share = Share::new("changed-start");
    let Some(library) = library(&share.0) else { return };
    let (hidden, _) = picture(&share.set().join("train"));
    // What changes all the time is listed by every rank for itself.
    let soon = SystemTime::now() + Duration::from_secs(3600);
    let class = std::fs::File::open(hidden.parent().unwrap()).unwrap();
    class.set_modified(soon).unwrap();
    let run = share.0.join("run");
    let mut command = share.command("launch", &run, &["train.steps=5"]);
    command.env("LD_PRELOAD", library).env("CHANGED_HIDES", hidden.file_name().unwrap());
    let said = ended(command, LIMIT);
    assert_eq!(said.code, Some(3), "{}", said.stderr);
    // Each of the four classes has a picture of that name.
    let why = "rank 1 has other training samples (92, not 96)";
    assert!(said.stdout.contains(why), "{} {}", said.stdout, said.stderr);
    let result = result_of(&run);
    assert_eq!((result.status, result.attempt, result.steps), (Status::DataError, 1, 0));
    assert!(result.reason.contains(why), "{}", result.reason);
    assert_nothing_runs(&run);
}

#[test]
fn whoever_computes_with_other_instructions_ends_exactness_with_a_cure() {
    let _turn = alone();
    let share = Share::new("changed-instructions");
    let Some(library) = library(&share.0) else { return };
    let older = share.0.join("older");
    let command = |run: &Path, keys: &[&str]| {
        let mut command = share.command("launch", run, keys);
        command.env("LD_PRELOAD", &library).env("CHANGED_ISA", &older);
        command
    };
    let told = |name: &str, run: &Path, said: &Ended| {
        let result = completed(name, run, said);
        assert!(!result.exact, "{name}");
        let lines = said.stderr.lines().filter(|line| line.contains("no longer exact"));
        let lines: Vec<&str> = lines.collect();
        assert_eq!(lines.len(), 1, "{name}: {}", said.stderr);
        assert!(lines[0].contains("computes with oneDNN") && lines[0].contains("sse41"));
        assert!(lines[0].ends_with("ONEDNN_MAX_CPU_ISA=SSE41"), "{}", lines[0]);
    };
    let run = share.0.join("respawn");
    let change = || std::fs::write(&older, "").unwrap();
    let said = changed_under(command(&run, &[STEPS, RESPAWN]), &run, change, Killed::Last);
    told("respawn", &run, &said);
    std::fs::remove_file(&older).unwrap();

    let run = share.0.join("resume");
    let said = ended(command(&run, &["train.steps=5", "checkpoint.every=5steps"]), LIMIT);
    assert!(completed("first", &run, &said).exact);
    std::fs::write(&older, "").unwrap();
    let said = ended(command(&run, &["train.steps=9", "checkpoint.every=5steps"]), LIMIT);
    told("resume", &run, &said);
}

/// As a new build in the place of the old one is.
#[test]
fn a_run_that_another_build_goes_on_with_is_no_longer_exact() {
    let _turn = alone();
    let share = Share::new("changed-build");
    let run = share.0.join("run");
    let first = share.command("launch", &run, &["train.steps=5", "checkpoint.every=5steps"]);
    let said = ended(first, LIMIT);
    assert!(completed("first", &run, &said).exact);
    let rebuilt = share.0.join("rebuilt");
    let mut bytes = std::fs::read(env!("CARGO_BIN_EXE_kintsugi")).unwrap();
    bytes.push(0);
    std::fs::write(&rebuilt, bytes).unwrap();
    std::fs::set_permissions(&rebuilt, PermissionsExt::from_mode(0o755)).unwrap();
    let again = share.command("launch", &run, &["train.steps=9", "checkpoint.every=5steps"]);
    let mut other = Command::new(&rebuilt);
    other.args(again.get_args());
    for (name, value) in again.get_envs() {
        match value {
            Some(value) => other.env(name, value),
            None => other.env_remove(name),
        };
    }
    let said = ended(other, LIMIT);
    let result = completed("rebuilt", &run, &said);
    assert_eq!((result.exact, result.steps), (false, 9));
    let line = said.stderr.lines().find(|line| line.contains("no longer exact"));
    let line = line.unwrap_or_else(|| panic!("nobody said so: {}", said.stderr));
    assert!(line.contains(", build ") && line.ends_with("one build of kintsugi"), "{line}");
}

#[test]
fn a_model_file_that_is_edited_changes_no_run_that_has_begun_and_its_next_start_is_refused() {
    let _turn = alone();
    let share = Share::new("changed-model");
    let file = share.0.join("mine.toml");
    let layers = |hidden: &str| {
        let linear = |name: &str, features: &str| {
            format!("[[layer]]\nname = \"{name}\"\nkind = \"linear\"\nfeatures = {features}\n")
        };
        let (first, last) = (linear("one", "16"), linear("two", "\"classes\""));
        let flat = "[[layer]]\nkind = \"flatten\"\n";
        format!("name = \"mine\"\n{flat}{first}{hidden}{last}")
    };
    let (written, edited) = (layers("[[layer]]\nkind = \"relu\"\n"), layers(""));
    let model = format!("model.name={}", file.display());
    std::fs::write(&file, &written).unwrap();
    let calm = share.0.join("calm");
    let of_calm = ended(share.command("launch", &calm, &[STEPS, &model]), LIMIT);
    let calm_hash = completed("calm", &calm, &of_calm).state_sha256;
    for (name, killed, keys) in
        [("respawn", Killed::Last, &[RESPAWN][..]), ("restart", Killed::All, &[])]
    {
        std::fs::write(&file, &written).unwrap();
        let run = share.0.join(name);
        let command = share.command("launch", &run, &[&[STEPS, &model], keys].concat());
        let said = changed_under(command, &run, || std::fs::write(&file, &edited).unwrap(), killed);
        let result = completed(name, &run, &said);
        assert_eq!((result.exact, &result.state_sha256), (true, &calm_hash), "{name}");
    }
    let longer = |hidden: &str| {
        std::fs::write(&file, hidden).unwrap();
        ended(share.command("launch", &calm, &["train.steps=153", &model]), LIMIT)
    };
    let said = longer(&edited);
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    assert!(said.stderr.contains("the file is not the one that "), "{}", said.stderr);
    let said = longer(&format!("# A remark.\n{written}"));
    assert_eq!(completed("longer", &calm, &said).steps, 153);
}

#[test]
fn a_picture_that_is_rewritten_or_goes_mid_run_ends_exactness_and_no_run() {
    let _turn = alone();
    let share = Share::new("changed-contents");
    let (one, _) = picture(&share.set().join("train"));
    let whole = std::fs::read(&one).unwrap();
    // What follows the end of a JPEG changes its length alone.
    let longer = || std::fs::write(&one, [&whole[..], b"more"].concat()).unwrap();
    let gone = || std::fs::remove_file(&one).unwrap();
    let cut = || {
        let file = std::fs::File::options().write(true).open(&one).unwrap();
        file.set_len(whole.len() as u64 / 2).unwrap();
    };
    // At no moment shorter.
    let no_picture = || {
        let file = std::fs::File::options().write(true).open(&one).unwrap();
        file.write_all_at(&vec![0; whole.len()], 0).unwrap();
    };
    for (name, change, why) in [
        ("longer", &longer as &dyn Fn(), "1 samples of step "),
        ("gone", &gone, "1 samples of step "),
        ("cut", &cut, "1 samples of step "),
        ("other", &no_picture, "were others than those of the first"),
    ] {
        let run = share.0.join(name);
        let keys = [STEPS, "data.bad_images_max=0.5"];
        let mut running = start(&mut share.command("launch", &run, &keys), LIMIT);
        // All were read once.
        wait_for_step(&run, 2 * Share::FILES / 8, &mut running);
        change();
        let said = running.wait();
        let result = completed(name, &run, &said);
        assert_eq!((result.exact, result.steps), (false, 150), "{name}");
        let lines = said.stderr.lines().filter(|line| line.contains("no longer exact"));
        let lines: Vec<&str> = lines.collect();
        assert_eq!(lines.len(), 1, "{name}: {}", said.stderr);
        assert!(lines[0].contains(why), "{}", lines[0]);
        std::fs::write(&one, &whole).unwrap();
    }
}

#[test]
fn validation_pictures_that_a_replacement_finds_rewritten_end_exactness() {
    let _turn = alone();
    let share = Share::new("changed-validation");
    // Of two ranks the last one measures it.
    let picture = |set: &Path| {
        let (first, _) = picture(set);
        let others = std::fs::read_dir(first.parent().unwrap()).unwrap();
        let mut others = others.map(|entry| entry.unwrap().path()).filter(|path| *path != first);
        others.next().expect("two of a class")
    };
    let one = picture(&share.set().join("validation"));
    let [mut whole, mut other] =
        [&one, &picture(&share.set().join("train"))].map(|path| std::fs::read(path).unwrap());
    // What follows the end of a JPEG is nothing: both get one length.
    let bytes = whole.len().max(other.len());
    whole.resize(bytes, 0);
    other.resize(bytes, 0);
    std::fs::write(&one, &whole).unwrap();
    let keys = [STEPS, RESPAWN, "evaluation.every=2steps", "evaluation.batch=1"];
    for (name, now) in [("same", &whole), ("rewritten", &other)] {
        let run = share.0.join(name);
        let change = || {
            let file = std::fs::File::options().write(true).open(&one).unwrap();
            file.write_all_at(now, 0).unwrap();
        };
        let said = changed_under(share.command("launch", &run, &keys), &run, change, Killed::Last);
        let result = completed(name, &run, &said);
        assert_eq!(result.recoveries.len(), 1, "{name}: {}", said.stderr);
        assert_eq!(result.exact, name == "same", "{name}: {}", said.stderr);
        let told = said.stderr.contains("were others than at the first evaluation");
        assert_eq!(told, name == "rewritten", "{name}: {}", said.stderr);
    }
}
