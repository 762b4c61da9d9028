//! The files of a rank's owners in the order of their use: from a step on to the end of its epoch,
//! then through the next until every sample has come once.

use std::collections::HashSet;
use std::path::Path;

use crate::data::sampler::Order;
use crate::data::set::DataSet;
use crate::data::store::{Extent, Kind};

/// A place in that order.
pub struct Walk {
    order: Order,
    owners: Vec<u32>,
    /// The micro-batch at hand, and what is left of it.
    step: u64,
    turn: usize,
    left: std::vec::IntoIter<u64>,
    /// Samples that have come. Those of a walk that begins with an epoch repeat none.
    seen: Option<HashSet<u64>>,
    /// Samples to come.
    missing: u64,
}

/// What comes next.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// The next micro-batch begins.
    MicroBatch,
    /// A sample of it, that has not come before.
    Sample(u64),
}

impl Walk {
    /// From `step` on, for these owners.
    pub fn new(order: Order, step: u64, owners: &[u32]) -> Self {
        let missing = owners.iter().map(|&owner| rows(&order, owner)).sum();
        let begins_epoch = order.locate(step).first == 0;
        let seen = (!begins_epoch).then(HashSet::new);
        let (owners, left) = (owners.to_vec(), Vec::new().into_iter());
        // `turn` counts the micro-batches of a step that have begun.
        Self { order, owners, step, turn: 0, left, seen, missing }
    }
}

/// Samples of an owner.
fn rows(order: &Order, owner: u32) -> u64 {
    order.samples.saturating_sub(owner.into()).div_ceil(order.owners.into())
}

impl Iterator for Walk {
    type Item = Next;

    fn next(&mut self) -> Option<Next> {
        for sample in self.left.by_ref() {
            if self.seen.as_mut().is_none_or(|seen| seen.insert(sample)) {
                self.missing -= 1;
                return Some(Next::Sample(sample));
            }
        }
        if self.missing == 0 {
            return None;
        }
        if self.turn == self.owners.len() {
            (self.turn, self.step) = (0, self.step + 1);
        }
        self.left = self.order.owner_samples(self.step, self.owners[self.turn]).into_iter();
        self.turn += 1;
        Some(Next::MicroBatch)
    }
}

/// Files and bytes of the owners' samples; a file of many samples counts once.
pub fn survey(set: &DataSet, order: &Order, owners: &[u32]) -> (u64, u64) {
    let (mut files, mut bytes, mut many) = (0, 0, HashSet::new());
    let owned: HashSet<u32> = owners.iter().copied().collect();
    for position in 0..order.samples {
        if !owned.contains(&((position % u64::from(order.owners)) as u32)) {
            continue;
        }
        // Any epoch holds the same samples of an owner.
        let sample = order.sample(0, position);
        let Some(location) = set.source.location(sample) else { continue };
        match location.extent {
            Extent::Whole { listed } => (files, bytes) = (files + 1, bytes + listed),
            Extent::Range { .. } => {
                let file: &Path = &location.file;
                if !many.contains(file) {
                    many.insert(file.to_owned());
                }
            }
        }
    }
    let sizes = many.iter().map(|file| match set.store.look(file) {
        Ok(Kind::File { bytes }) => bytes,
        _ => 0,
    });
    (files + many.len() as u64, bytes + sizes.sum::<u64>())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_sample_comes_once_in_the_order_of_its_use(
            samples in 1u64..200, owners in 1u32..12, batch in 1u64..40, step in 0u64..60,
            pick: u64,
        ) {
            let owners = owners.min(samples as u32);
            let order = Order::new(samples, owners, 5, batch).expect("valid");
            let mine: Vec<u32> = (0..owners).filter(|owner| pick >> owner & 1 == 1).collect();
            let (mut came, mut at) = (Vec::new(), Vec::new());
            let mut micro_batches = 0usize;
            for next in Walk::new(order.clone(), step, &mine) {
                match next {
                    Next::MicroBatch => micro_batches += 1,
                    Next::Sample(sample) => {
                        came.push(sample);
                        at.push(micro_batches - 1);
                    }
                }
            }
            let unique: BTreeSet<u64> = came.iter().copied().collect();
            prop_assert_eq!(unique.len(), came.len());
            prop_assert_eq!(came.len() as u64, mine.iter().map(|&o| rows(&order, o)).sum::<u64>());
            for (sample, at) in came.iter().zip(at) {
                let (after, turn) = (at / mine.len(), at % mine.len());
                let batch = order.owner_samples(step + after as u64, mine[turn]);
                prop_assert!(batch.contains(sample));
            }
        }
    }
}
