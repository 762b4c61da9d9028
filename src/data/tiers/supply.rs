//! How a rank's training samples come to it: its set, over the storage tiers that the
//! configuration asks for, and what is counted on the way.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::config::{self, CacheSize, Config, Shown, StagingMode};
use crate::data::Occasion;
use crate::data::sampler::Order;
use crate::data::set::DataSet;
use crate::data::staging::folder::Folder;
use crate::data::staging::hands::Workers;
use crate::data::staging::pace::{Pace, Urgent};
use crate::data::staging::porter::{Charge, Porter};
use crate::data::staging::{Staging, place};
use crate::data::store::bucket;
use crate::data::store::tally::Tally;
use crate::observe::notice::act_on;

use super::cache::{self, Cache};
use super::node_memory::NodeMemory;
use super::tiered::Tiered;

/// How long the last look at the files of a set may take: its store may be gone by then.
const LAST_LOOK_MAX: Duration = Duration::from_secs(5);

/// The set, what is nearer of it, and what is counted. Clones share everything.
#[derive(Clone)]
pub struct Supply {
    /// The set, over all its tiers.
    pub set: DataSet,
    /// Copies to this node, where the run makes some.
    pub staging: Option<Arc<Staging>>,
    /// What is counted.
    pub tally: Arc<Tally>,
    /// Whom copying gives way to.
    pub urgent: Arc<Urgent>,
    /// The node's cache, where the run has one.
    pub memory: Option<Arc<NodeMemory>>,
    keeps: bool,
}

impl Supply {
    /// Of a run: starts its copy workers. A tier that cannot be had is left out, with a warning:
    /// the bits are the same without it.
    pub fn of(
        config: &Config,
        set: DataSet,
        order: &Order,
        run_id: &str,
        porters: Vec<Porter>,
        occasion: Occasion,
    ) -> Self {
        let folder = match config.staging.mode {
            StagingMode::None => None,
            _ => staging_folder(config, &set, run_id, occasion),
        };
        let sign = folder.as_ref().map(|folder| folder.urgent_sign());
        let (tally, urgent) = (Arc::new(Tally::of_process()), Arc::new(Urgent::of_node(sign)));
        let staging = folder.clone().map(|folder| {
            let pace = Pace::new(config.staging.rate, Arc::clone(&urgent));
            let counts = Arc::clone(&tally);
            let workers = workers(config, porters, folder.root());
            let (own, order, mode) = (set.clone(), order.clone(), config.staging.mode);
            Staging::start(own, order, folder, mode, pace, counts, workers)
        });
        let (counts, told) = (Arc::clone(&tally), Arc::clone(&urgent));
        let cache = match config.data.cache {
            CacheSize::Off => None,
            CacheSize::Bytes(budget) => open_cache(config, &set, run_id, budget.0, occasion),
        };
        let memory =
            cache.clone().map(|cache| Arc::new(NodeMemory::new(cache, set.clone(), order.clone())));
        let store = Arc::clone(&set.store);
        let store = Arc::new(Tiered::new(store, cache, folder, counts, told));
        let keeps = config.staging.keep;
        Self { set: DataSet { store, ..set }, staging, tally, urgent, keeps, memory }
    }

    /// Least share of misses that so many nodes' caches can have in an epoch after the first, 1-c.
    pub fn miss_bound(&self, nodes: usize) -> Option<f64> {
        self.memory.as_ref().map(|memory| memory.miss_bound(nodes))
    }

    /// This process uses the node's memory no more, however the run goes on.
    pub fn leave_memory(&self) {
        if let Some(memory) = &self.memory {
            memory.cache.retire();
        }
    }

    /// The run has completed: what it left on this node goes, unless its user wants it.
    pub fn retire(&self) {
        if let Some(staging) = self.staging.as_ref().filter(|_| !self.keeps) {
            staging.retire();
        }
    }

    /// Whether a file of many samples was written since the run began, one last look at each that
    /// was read from. One that does not answer in time is as it was, as far as anybody knows.
    pub fn is_rewritten(&self) -> bool {
        if self.set.source.listed().is_empty() {
            return false;
        }
        let (send, answer) = channel();
        let set = self.set.clone();
        let look = move || {
            let listed = set.source.listed();
            let settled = listed.iter().map(|(path, file)| file.settle(&*set.store, path));
            // All of them: who goes on looks again only where it reads.
            let rewritten = settled.fold(false, |any, one| any | one);
            // Nobody listens any more where it took too long.
            let _ = send.send(rewritten);
        };
        let begun = std::thread::Builder::new().name("last-look".into()).spawn(look);
        if begun.is_ok()
            && let Ok(rewritten) = answer.recv_timeout(LAST_LOOK_MAX)
        {
            return rewritten;
        }
        act_on(&format!(
            "files of data.train could not be looked at once more within {} s: whether one was \
             written since it was looked at is not known",
            LAST_LOOK_MAX.as_secs()
        ));
        false
    }

    /// From `step` on this rank computes `owners`.
    pub fn plan(&self, step: u64, owners: &[u32]) {
        if let Some(staging) = &self.staging {
            staging.plan(step, owners);
        }
    }
}

/// Removes what the ranks of a run that has ended left in this machine's memory: those that are
/// ended by a signal remove nothing.
pub fn sweep_memory(run_id: &str) {
    cache::sweep(run_id);
    bucket::sweep();
}

/// Removes the copies of a run that has completed, unless its user wants them.
pub fn sweep_copies(staging: &config::Staging, run_id: &str) {
    if staging.mode != StagingMode::None && !staging.keep {
        place::sweep(staging, run_id);
    }
}

impl From<DataSet> for Supply {
    /// The set as it is, counted.
    fn from(set: DataSet) -> Self {
        let (tally, urgent) = (Arc::new(Tally::default()), Arc::new(Urgent::default()));
        let (store, counts, told) =
            (Arc::clone(&set.store), Arc::clone(&tally), Arc::clone(&urgent));
        let store = Arc::new(Tiered::new(store, None, None, counts, told));
        let set = DataSet { store, ..set };
        Self { set, staging: None, tally, urgent, keeps: true, memory: None }
    }
}

/// Processes where there are some that live, else threads.
fn workers(config: &Config, mut porters: Vec<Porter>, folder: &Path) -> Workers {
    let charge = Charge { data: config.data.clone(), folder: folder.to_owned() };
    porters.retain_mut(|porter| porter.charge(&charge).is_ok());
    if porters.is_empty() { config.staging.workers.into() } else { Workers::Processes(porters) }
}

fn open_cache(
    config: &Config,
    set: &DataSet,
    run_id: &str,
    budget: u64,
    occasion: Occasion,
) -> Option<Arc<Cache>> {
    let root = cache::folder(run_id, set.source.fingerprint());
    match Cache::open(&root, budget, config.data.cache_policy, occasion) {
        Ok(cache) => Some(Arc::new(cache)),
        Err(error) => {
            act_on(&format!("data.cache is off on this node: {}: {error}", root.shown()));
            None
        }
    }
}

fn staging_folder(
    config: &Config,
    set: &DataSet,
    run_id: &str,
    occasion: Occasion,
) -> Option<Arc<Folder>> {
    let root = place::folder(&config.staging, run_id, set.source.fingerprint());
    match Folder::open(&root) {
        Ok(folder) => Some(Arc::new(folder.opened_for(occasion))),
        Err(error) => {
            act_on(&format!(
                "nothing is staged, training reads the shared store: {}: {error}; {}",
                root.shown(),
                place::remedy(&error)
            ));
            None
        }
    }
}
