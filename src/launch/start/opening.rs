//! What a person should know before a run starts: limits, needs, what there is too little of,
//! processors, nodes.

use std::cmp::Ordering;

use kintsugi_ffi::cgroup;

use crate::cluster::processors::{machine, places};
use crate::config::{Config, DataFormat, Shown};
use crate::engine;
use crate::launch::limits::Limits;
use crate::launch::machine::ceilings::{self, Ceilings};
use crate::launch::machine::network;
use crate::launch::nodes::allocation::stray;
use crate::launch::traces::folders;
use crate::model::spec::ModelError;
use crate::model::{Graph, catalogue};
use crate::needs::{Load, Needs, needs, planned};
use crate::run_folder;

use super::job::Job;

/// All of it, a line each.
pub fn lines(job: &Job, limits: Limits) -> Vec<String> {
    let mut lines = vec![limits.line()];
    lines.extend(warned(doubts(limits)));
    let Room { needs, short } = room(job);
    lines.extend(needs.map(|needs| format!("this run needs {needs}")));
    lines.extend(warned(short));
    let Processors { line, warnings, .. } = processors(job);
    lines.push(line);
    lines.extend(warned(warnings));
    lines.extend(cards(job));
    lines.extend(several(job));
    lines
}

/// How many cards there are for how many workers, where cards compute; those of other nodes are
/// shared out alike.
pub fn cards(job: &Job) -> Option<String> {
    let config = &job.config;
    // Of those that cannot be asked the ranks tell.
    let cards = engine::cards(&config.device).ok().flatten()?;
    let ranks = u64::from(job.plan(1, 0.0).ranks_here());
    Some(cards_line(cards as u64, ranks, u64::from(config.train.workers)))
}

fn cards_line(cards: u64, ranks: u64, each: u64) -> String {
    let workers = ranks * each;
    match workers.cmp(&cards) {
        Ordering::Less => {
            format!("cards: {cards}, for {ranks} x {each} workers (train.workers): some are idle")
        }
        Ordering::Equal => format!("cards: {cards}, one for each worker"),
        Ordering::Greater => format!("cards: {cards}, which {ranks} x {each} workers share"),
    }
}

fn warned(lines: Vec<String>) -> impl Iterator<Item = String> {
    lines.into_iter().map(|line| format!("warning: {line}"))
}

/// What is odd of limits and surroundings.
pub fn doubts(limits: Limits) -> Vec<String> {
    let mut doubts = limits.doubts();
    doubts.extend(network::complaints());
    doubts.extend(folders::detour());
    doubts.extend(stray().map(|stray| stray.told()));
    doubts
}

/// What a run takes of this machine's memory and disk.
#[derive(Debug)]
pub struct Room {
    /// Part by part; `None` where the model cannot be described from the configuration alone.
    pub needs: Option<String>,
    /// What there is too little of.
    pub short: Vec<String>,
}

/// That of a job. Disk is that of its folder, or of where that will be made.
pub fn room(job: &Job) -> Room {
    let folder = run_folder::nearest(job.run.path());
    let have = Ceilings::granted(cgroup::read()).with_free(folder, held_bytes(job));
    let needs = needs_of_job(job);
    Room { short: short(job, have, needs.as_ref()), needs: needs.map(|need| need.line()) }
}

/// What the kernel and control groups grant too little of for this run.
pub fn scarce(job: &Job) -> Vec<String> {
    short(job, Ceilings::granted(cgroup::read()), least_of_job(job).as_ref())
}

fn short(job: &Job, have: Ceilings, needs: Option<&Needs>) -> Vec<String> {
    let (ranks, spares) = job.processes_here();
    let crowd = (ranks + spares, u64::from(job.config.train.workers));
    needs.map_or(Vec::new(), |need| ceilings::complaints(have, need, crowd))
}

/// What an earlier attempt left in shared memory, for this one to use; what cannot be looked at is
/// no more than room that is not there.
fn held_bytes(job: &Job) -> u64 {
    let slots = job.slots();
    let shared = slots.path().starts_with(ceilings::SHARED);
    let files = slots.files().unwrap_or_default().into_iter().filter(|_| shared);
    files.filter_map(|path| std::fs::metadata(path).ok()).map(|facts| facts.len()).sum()
}

/// What the run needs of this machine.
fn needs_of_job(job: &Job) -> Option<Needs> {
    needs_of(&job.config, models_here(job))
}

/// The least of it, without a plan: that is at hand at once.
pub fn least_of_job(job: &Job) -> Option<Needs> {
    let graph = graph_of(&job.config).ok()?;
    let load = Load { ranks: models_here(job), samples: u64::MAX, planned: None };
    Some(needs(&job.config, &graph, load))
}

/// Processes of a job here that hold a model.
fn models_here(job: &Job) -> u64 {
    let (ranks, spares) = job.processes_here();
    ranks + if job.config.recovery.warm_spares { spares } else { 0 }
}

/// With so many ranks here. `None` where the model cannot be described from the configuration
/// alone; the ranks will say why.
pub fn needs_of(config: &Config, ranks: u64) -> Option<Needs> {
    let graph = graph_of(config).ok()?;
    let samples = u64::MAX;
    let load = Load { ranks, samples, planned: planned(config, &graph, samples) };
    Some(needs(config, &graph, load))
}

/// The model, with as many classes as can be known before the set is opened.
///
/// # Errors
/// There is none of that name, or it cannot be made for such pictures.
pub fn graph_of(config: &Config) -> Result<Graph, ModelError> {
    let channels = if config.data.format == DataFormat::Mnist { 1 } else { 3 };
    let side = config.data.image_size as usize;
    catalogue::of(&config.model, [channels, side, side], classes(config))
}

/// Good enough for an estimate: the data set itself is opened by the ranks.
fn classes(config: &Config) -> usize {
    let data = &config.data;
    match (data.format, &data.train) {
        (DataFormat::Cifar100, _) => 100,
        (DataFormat::Cifar10 | DataFormat::Mnist, _) => 10,
        (DataFormat::ImageFolder, Some(folder)) => {
            std::fs::read_dir(folder).map_or(2, |entries| entries.count().max(2))
        }
        _ => data.synthetic_classes as usize,
    }
}

/// Which processors of this machine a run's ranks get.
#[derive(Debug)]
pub struct Processors {
    /// In one line.
    pub line: String,
    /// Of those that were asked for and cannot be had.
    pub warnings: Vec<String>,
    /// Whether ranks take turns on them.
    pub crowded: bool,
}

/// Those of a job here. Those of other nodes decide alike.
pub fn processors(job: &Job) -> Processors {
    let ranks = job.plan(1, 0.0).ranks_here();
    let wish = places::Wish::of(&job.config, ranks);
    let machine = machine::Machine::here();
    let line = places::line(&machine, wish, &places::places(&machine, wish));
    let line = if job.nodes.is_some() { format!("this node's {line}") } else { line };
    let (warnings, crowded) = (places::warnings(&machine, wish), wish.crowds(machine.capacity));
    Processors { line, warnings, crowded }
}

/// What a person should know of several nodes.
pub fn several(job: &Job) -> Option<String> {
    let nodes = job.nodes.as_ref()?;
    let recovery = &job.config.recovery;
    let (all, kept) = (nodes.allocation.nodes.len(), nodes.spare);
    let rungs: Vec<String> =
        recovery.rungs().iter().map(|rung| format!("{rung:?}").to_lowercase()).collect();
    let launcher = match &job.runtime {
        Some(runtime) => format!("survived by prterun of {}", runtime.prefix.shown()),
        None => "the end of mpirun, which is started again".into(),
    };
    Some(format!(
        "nodes: {all}, {kept} of them kept back, {} spares on each; a node is lost when its \
         agent's connection closes or after {} of silence: {launcher}; ladder {}",
        nodes.spares_per_node,
        recovery.node_timeout,
        rungs.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_shared_cards_are_told() {
        let idle = "cards: 4, for 1 x 1 workers (train.workers): some are idle";
        assert_eq!(cards_line(4, 1, 1), idle);
        assert_eq!(cards_line(4, 2, 2), "cards: 4, one for each worker");
        assert_eq!(cards_line(1, 4, 1), "cards: 1, which 4 x 1 workers share");
    }
}
