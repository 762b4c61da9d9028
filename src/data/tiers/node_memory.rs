//! A node's cache as one rank has it: which of its samples are whose, and how much of the set it
//! holds.

use std::sync::{Arc, Mutex, PoisonError};

use crate::data::sampler::Order;
use crate::data::set::DataSet;
use crate::data::staging::key::Key;

use super::cache::{self, Cache, Holdings, Keys};

/// One rank's hold on its node's cache.
pub struct NodeMemory {
    /// The cache.
    pub cache: Arc<Cache>,
    /// The training set, over its shared store.
    set: DataSet,
    order: Order,
    /// Share of the set's samples, by what they take, that the cache holds.
    share: f64,
    /// Owners of this rank, and of the others on its node, as they were told last.
    told: Mutex<Option<(Vec<u32>, Vec<u32>)>>,
}

impl NodeMemory {
    /// Reads the sizes of all samples from the set's index.
    pub fn new(cache: Arc<Cache>, set: DataSet, order: Order) -> Self {
        let share = cache.budget_bytes() as f64 / taken(&set);
        Self { cache, set, order, share, told: Mutex::default() }
    }

    /// Least share of misses that so many nodes' caches can have in an epoch after the first, 1-c.
    pub fn miss_bound(&self, nodes: usize) -> f64 {
        (1.0 - self.share * nodes as f64).max(0.0)
    }

    /// This rank computes `mine` from now on, others on its node `beside`. Costs next to nothing
    /// where that is as it was.
    pub fn plan(&self, mine: &[u32], beside: &[u32]) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.as_ref().is_some_and(|(own, others)| own == mine && others == beside) {
            return;
        }
        let begins = told.replace((mine.to_vec(), beside.to_vec())).is_none();
        // Who begins with an empty cache sees all that comes into it.
        if !begins || self.cache.used_bytes() > 0 {
            self.cache.plan(Holdings { mine: self.keys(mine), beside: self.keys(beside) });
        }
    }

    /// The samples of some owners, by name.
    fn keys(&self, owners: &[u32]) -> Keys {
        let (order, source) = (self.order.clone(), Arc::clone(&self.set.source));
        let owners = owners.to_vec();
        let ids = owners.into_iter().flat_map(move |owner| {
            let (order, owner) = (order.clone(), u64::from(owner));
            let bundles = 0..order.cut(owner).count();
            bundles.flat_map(move |bundle| order.bundle_samples(owner, bundle))
        });
        Box::new(ids.filter_map(move |id| Some(Key::of_location(&source.location(id)?))))
    }
}

/// What the samples of a set would take in a cache.
fn taken(set: &DataSet) -> f64 {
    let locations = (0..set.source.len()).filter_map(|id| set.source.location(id));
    let bytes: u64 = locations.map(|location| cache::cost(location.extent.length())).sum();
    bytes.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{CachePolicy, Data};
    use crate::data::painting::synth::{self, SynthOptions};
    use crate::data::set::open::open;
    use crate::data::store::Store;
    use crate::data::tiers::tiered::Tiered;
    use crate::data::{Occasion, Split};

    const PAGES: u64 = 12;
    const PAGE_BYTES: u64 = 4096;

    /// 24 pictures, 6 of each of 4 owners.
    fn set(folder: &std::path::Path) -> DataSet {
        let options = SynthOptions {
            folder: folder.to_owned(),
            classes: 2,
            train_samples: 24,
            validation_samples: 2,
            image_size: 8,
            seed: 1,
        };
        synth::ensure(&options, &|_, _| {}).expect("made");
        let data = Data { train: Some(folder.join("train")), ..Data::default() };
        open(&data, Split::Train, 1).expect("opened")
    }

    /// Two ranks of a node read owners 0, 1 and 2, 3. The second one dies, another node gets owner
    /// 3: its samples make room for those of owner 1, and for nothing more.
    #[test]
    fn samples_whose_owner_has_left_the_node_make_room_for_those_that_stay() {
        let place = tempfile::tempdir().expect("temporary folder");
        let set = set(&place.path().join("set"));
        let order = Order::new(24, 4, 1, 8).expect("valid");
        let rank = |mine: &[u32], beside: &[u32]| {
            let root = place.path().join("cache");
            let cache = Cache::open(&root, PAGES * PAGE_BYTES, CachePolicy::Keep, Occasion::GoesOn);
            let cache = Arc::new(cache.expect("opened"));
            let memory = NodeMemory::new(Arc::clone(&cache), set.clone(), order.clone());
            memory.plan(mine, beside);
            let (store, counts) = (Arc::clone(&set.store), Arc::default());
            (memory, Tiered::new(store, Some(cache), None, counts, Arc::default()))
        };
        let ids = |owner: u64| order.bundle_samples(owner, 0);
        let read = |tiers: &Tiered, ids: &[u64]| {
            for id in ids {
                let location = set.source.location(*id).expect("a file");
                tiers.fetch(&location, &mut Vec::new()).expect("read");
            }
        };
        let kept = |memory: &NodeMemory, ids: &[u64]| {
            let key = |id: &u64| Key::of_location(&set.source.location(*id).expect("a file"));
            ids.iter().filter(|id| memory.cache.fetch(key(id), &mut Vec::new())).count()
        };
        let (heir, its_tiers) = rank(&[0, 1], &[2, 3]);
        assert!((heir.miss_bound(1) - 0.5).abs() < 1e-9 && heir.miss_bound(2) < 1e-9);
        let (dead, dead_tiers) = rank(&[2, 3], &[0, 1]);
        read(&its_tiers, &ids(0));
        read(&dead_tiers, &[&ids(2)[..3], &ids(3)[..3]].concat());
        read(&its_tiers, &ids(1));
        assert_eq!((kept(&heir, &ids(1)), dead.cache.used_bytes()), (0, PAGES * PAGE_BYTES));
        drop((dead, dead_tiers));
        heir.plan(&[0, 1, 2], &[]);
        read(&its_tiers, &ids(1));
        assert_eq!((kept(&heir, &ids(1)), kept(&heir, &ids(3))), (3, 0));
        assert_eq!((kept(&heir, &ids(0)), kept(&heir, &ids(2))), (6, 3), "what is read here stays");
    }
}
