//! How a rank's training samples come to it: its set, over the storage tiers that the
//! configuration asks for, and what is counted on the way.

use std::sync::Arc;

use crate::config::{Config, Shown, StagingMode};
use crate::observe::notice::act_on;

use super::sampler::Order;
use super::set::DataSet;
use super::staging::folder::Folder;
use super::staging::pace::{Pace, Urgent};
use super::staging::{Staging, place};
use super::store::tiered::Tiered;
use super::tally::Tally;

/// See the module. Copies share everything.
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
    keeps: bool,
}

impl Supply {
    /// Of a run: starts its copy workers. A tier that cannot be had is left out, with a warning:
    /// the bits are the same without it.
    pub fn of(config: &Config, set: DataSet, order: &Order, run_id: &str) -> Self {
        let (tally, urgent) = (Arc::new(Tally::default()), Arc::new(Urgent::default()));
        let folder = match config.staging.mode {
            StagingMode::None => None,
            _ => staging_folder(config, &set, run_id),
        };
        let staging = folder.clone().map(|folder| {
            let pace = Pace::new(config.staging.rate, Arc::clone(&urgent));
            let counts = Arc::clone(&tally);
            let (mode, workers) = (config.staging.mode, config.staging.workers);
            Staging::start((set.clone(), order.clone()), folder, (mode, pace), counts, workers)
        });
        let counts = (Arc::clone(&tally), Arc::clone(&urgent));
        let store = Arc::new(Tiered::new(Arc::clone(&set.store), folder, counts));
        let keeps = config.staging.keep;
        Self { set: DataSet { store, ..set }, staging, tally, urgent, keeps }
    }

    /// The run has completed: what it left on this node goes, unless its user wants it.
    pub fn retire(&self) {
        if let Some(staging) = self.staging.as_ref().filter(|_| !self.keeps) {
            staging.retire();
        }
    }

    /// From `step` on this rank computes `owners`, in a world of that generation.
    pub fn plan(&self, step: u64, owners: &[u32], generation: u32) {
        if let Some(staging) = &self.staging {
            staging.plan(step, owners, generation);
        }
    }
}

impl From<DataSet> for Supply {
    /// The set as it is, counted.
    fn from(set: DataSet) -> Self {
        let (tally, urgent) = (Arc::new(Tally::default()), Arc::new(Urgent::default()));
        let counts = (Arc::clone(&tally), Arc::clone(&urgent));
        let store = Arc::new(Tiered::new(Arc::clone(&set.store), None, counts));
        Self { set: DataSet { store, ..set }, staging: None, tally, urgent, keeps: true }
    }
}

fn staging_folder(config: &Config, set: &DataSet, run_id: &str) -> Option<Arc<Folder>> {
    let root = place::folder(&config.staging, run_id, set.source.fingerprint());
    match Folder::open(&root) {
        Ok(folder) => Some(Arc::new(folder)),
        Err(error) => {
            act_on(&format!(
                "nothing is staged, training reads the shared store: {}: {error}; set \
                 staging.folder to a local folder that this user can write",
                root.shown()
            ));
            None
        }
    }
}
