//! Which processors real ranks may use, as the kernel says it.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use kintsugi_ffi::affinity::allowed;
use kintsugi_ffi::os::{Signal, kill};

use crate::support::{
    alone, assert_nothing_runs, launch, processes_of, run_dir, start, wait_for_step,
};

const LIMIT: Duration = Duration::from_secs(120);
/// Longest wait for a place to be taken.
const TAKEN_MAX: Duration = Duration::from_secs(30);

fn command(folder: &Path, keys: &[&str]) -> Command {
    let calm = ["train.steps=100000", "evaluation.every=never", "checkpoint.every=never"];
    launch(folder, &[&["run.ranks=2"][..], &calm[..], keys].concat())
}

/// The list of processors of every rank and spare of a run, by pid.
fn masks(folder: &Path) -> BTreeMap<u32, String> {
    let of = |pid: u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        Some((pid, line.trim().to_owned()))
    };
    let is_rank = |line: &str| line.split(' ').nth(1) == Some("train");
    let ranks = processes_of(folder).into_iter().filter(|(_, line)| is_rank(line));
    ranks.filter_map(|(pid, _)| of(pid)).collect()
}

/// Ranks look for a place until they have one: the masks, once they are as wanted.
fn wait_for(
    folder: &Path,
    wanted: impl Fn(&BTreeMap<u32, String>) -> bool,
) -> BTreeMap<u32, String> {
    let limit = Instant::now() + TAKEN_MAX;
    loop {
        let masks = masks(folder);
        if wanted(&masks) {
            return masks;
        }
        assert!(Instant::now() < limit, "not taken within {TAKEN_MAX:?}: {masks:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Two ranks have a processor each; one is killed, and whoever replaces it runs on its processor.
fn a_place_is_taken_over(name: &str, spares: &str) {
    let _turn = alone();
    let processors = allowed().expect("Linux says it").len();
    if processors < 2 {
        eprintln!("skipped: one processor");
        return;
    }
    let folder = run_dir(name);
    let mut running = start(&mut command(&folder, &["run.bind=always", spares]), LIMIT);
    wait_for_step(&folder, 5, &mut running);
    let own = |masks: &BTreeMap<u32, String>| {
        let (one, other) = (processors / 2, processors - processors / 2);
        let count = |list: &String| list.split(',').map(count_of).sum::<usize>();
        let bound = masks.iter().filter(|(_, list)| [one, other].contains(&count(list)));
        bound.map(|(pid, list)| (*pid, list.clone())).collect::<Vec<(u32, String)>>()
    };
    let before = wait_for(&folder, |masks| {
        let ranks = own(masks);
        ranks.len() == 2 && ranks[0].1 != ranks[1].1
    });
    let (dead, place) = own(&before)[0].clone();
    kill(dead, Signal::Kill).expect("it lives");
    wait_for(&folder, |masks| masks.iter().any(|(pid, list)| *pid != dead && *list == place));
    kill(running.pid(), Signal::Interrupt).expect("launch lives");
    let ended = running.wait();
    let line = "each rank is bound to its own: ";
    assert!(ended.stderr.contains(line), "{}", ended.stderr);
    assert_nothing_runs(&folder);
}

/// Numbers of a range as the kernel writes it, `3` or `0-3`.
fn count_of(range: &str) -> usize {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let number = |text: &str| text.parse::<usize>().expect("the kernel's list");
    number(last) + 1 - number(first)
}

#[test]
fn a_replacement_runs_on_its_predecessors_processors() {
    a_place_is_taken_over("bound-respawned", "recovery.spares=0");
}

#[test]
fn a_spare_takes_a_dead_ranks_processors_when_it_is_promoted() {
    a_place_is_taken_over("bound-spare", "recovery.spares=1");
}

#[test]
fn nobody_is_bound_where_processors_are_short_nor_starts_more_workers_than_there_are() {
    let _turn = alone();
    let processors = allowed().expect("Linux says it").len();
    let folder = run_dir("unbound");
    let workers = format!("train.workers={}", processors + 1);
    let keys = ["run.bind=always", &workers, "train.owners=1000", "train.global_batch=1000"];
    let keys = [&keys[..], &["data.synthetic_samples=2000"]].concat();
    let mut running = start(&mut command(&folder, &keys), LIMIT);
    wait_for_step(&folder, 2, &mut running);
    let masks = masks(&folder);
    let threads_of = |pid: &u32| {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it lives");
        let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm"));
        let names = tasks.flatten().filter_map(|task| name(task).ok());
        names.filter(|name| name.starts_with("worker")).count()
    };
    let started: Vec<usize> = masks.keys().map(threads_of).collect();
    kill(running.pid(), Signal::Interrupt).expect("launch lives");
    let ended = running.wait();
    let mut lists: Vec<&String> = masks.values().collect();
    lists.dedup();
    assert_eq!((masks.len(), lists.len()), (2, 1), "{masks:?}");
    assert_eq!(started, [processors; 2], "{}", ended.stderr);
    assert!(ended.stderr.contains("no rank is bound"), "{}", ended.stderr);
    let warning = format!("warning: {} with", workers.replace('=', " = "));
    assert!(ended.stderr.contains(&warning), "{}", ended.stderr);
    assert_nothing_runs(&folder);
}
