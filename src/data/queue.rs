//! Which micro-batch is decoded next: a plain value, without threads. Micro-batches are cut into
//! chunks, so that several threads share a large one.

use std::collections::BTreeMap;

use super::sampler::Order;
use super::{Batch, DataError};

/// Samples of a chunk.
const CHUNK: usize = 16;

/// A micro-batch: (step, owner), in the order in which they are decoded.
type Key = (u64, u32);

/// What one thread decodes at a time.
#[derive(Debug)]
pub(super) struct Chunk {
    key: Key,
    /// Which slot it belongs to: a dropped and planned again one is another.
    serial: u64,
    index: usize,
    /// The epoch of its step.
    pub(super) epoch: u64,
    /// Its samples.
    pub(super) ids: Vec<u64>,
    /// Samples to make room for: the first chunk is what the others are joined to.
    pub(super) room: usize,
}

impl Chunk {
    /// The micro-batch it belongs to: step and owner.
    pub(super) fn key(&self) -> (u64, u32) {
        self.key
    }
}

/// A micro-batch on its way.
struct Slot {
    serial: u64,
    epoch: u64,
    ids: Vec<u64>,
    /// Chunks that a thread has taken.
    handed: usize,
    parts: Vec<Option<Result<Batch, DataError>>>,
    missing: usize,
    /// Callers that wait for it: it stays whatever the plan says.
    wanted: u32,
}

/// What is planned, on its way and decoded.
pub(super) struct Queue {
    order: Order,
    prefetch: u64,
    /// Per planned owner, the step after the last one taken.
    next: BTreeMap<u32, u64>,
    slots: BTreeMap<Key, Slot>,
    serial: u64,
}

impl Queue {
    pub(super) fn new(order: Order, prefetch: u64) -> Self {
        Self { order, prefetch, next: BTreeMap::new(), slots: BTreeMap::new(), serial: 0 }
    }

    /// See `Loader::plan`.
    pub(super) fn plan(&mut self, step: u64, owners: &[u32]) {
        let next = owners.iter().filter(|&&owner| owner < self.order.owners).map(|&owner| {
            let taken = self.next.get(&owner) == Some(&(step + 1));
            (owner, if taken { step + 1 } else { step })
        });
        self.next = next.collect();
        self.refill();
    }

    /// Somebody waits for this micro-batch.
    pub(super) fn want(&mut self, step: u64, owner: u32) {
        self.slot((step, owner)).wanted += 1;
    }

    /// Somebody waits no longer.
    pub(super) fn give_up(&mut self, step: u64, owner: u32) {
        if let Some(slot) = self.slots.get_mut(&(step, owner)) {
            slot.wanted = slot.wanted.saturating_sub(1);
        }
        self.refill();
    }

    /// The wanted micro-batch in parts, if it is whole; the plan moves on.
    pub(super) fn finish(
        &mut self,
        step: u64,
        owner: u32,
    ) -> Option<Vec<Result<Batch, DataError>>> {
        if !self.slots.contains_key(&(step, owner)) {
            // Another caller has taken the same one: it is decoded again.
            self.want(step, owner);
        }
        if self.slots.get(&(step, owner))?.missing > 0 {
            return None;
        }
        let slot = self.slots.remove(&(step, owner))?;
        if let Some(next) = self.next.get_mut(&owner) {
            *next = step + 1;
        }
        self.refill();
        Some(slot.parts.into_iter().flatten().collect())
    }

    /// The next chunk of this micro-batch, if one is not being decoded yet.
    pub(super) fn next_of(&mut self, step: u64, owner: u32) -> Option<Chunk> {
        hand((step, owner), self.slots.get_mut(&(step, owner))?)
    }

    /// The next chunk of any micro-batch: wanted ones first, then by step and owner.
    pub(super) fn next(&mut self) -> Option<Chunk> {
        let open = |slot: &Slot| slot.handed < slot.parts.len();
        let found = self.slots.iter().find(|(_, slot)| slot.wanted > 0 && open(slot));
        let found = found.or_else(|| self.slots.iter().find(|(_, slot)| open(slot)));
        let key = *found?.0;
        self.next_of(key.0, key.1)
    }

    /// A chunk is decoded. Says whether its micro-batch is now whole.
    pub(super) fn deliver(&mut self, chunk: &Chunk, part: Result<Batch, DataError>) -> bool {
        let slot = self.slots.get_mut(&chunk.key).filter(|slot| slot.serial == chunk.serial);
        let Some(slot) = slot else { return false };
        if slot.parts[chunk.index].replace(part).is_none() {
            slot.missing -= 1;
        }
        slot.missing == 0
    }

    /// Opens what the plan reaches, drops what it does not.
    fn refill(&mut self) {
        let (next, prefetch) = (&self.next, self.prefetch);
        let planned = |(step, owner): Key| {
            next.get(&owner).is_some_and(|&from| step >= from && step - from < prefetch)
        };
        self.slots.retain(|&key, slot| slot.wanted > 0 || planned(key));
        let reached: Vec<Key> = next
            .iter()
            .flat_map(|(&owner, &from)| (from..from + prefetch).map(move |step| (step, owner)))
            .collect();
        for key in reached {
            self.slot(key);
        }
    }

    /// The slot, opened if it is not there.
    fn slot(&mut self, key: Key) -> &mut Slot {
        let (order, serial) = (&self.order, &mut self.serial);
        self.slots.entry(key).or_insert_with(|| {
            *serial += 1;
            let ids = order.owner_samples(key.0, key.1);
            let chunks = ids.len().div_ceil(CHUNK);
            Slot {
                serial: *serial,
                epoch: order.locate(key.0).epoch,
                ids,
                handed: 0,
                parts: (0..chunks).map(|_| None).collect(),
                missing: chunks,
                wanted: 0,
            }
        })
    }
}

fn hand(key: Key, slot: &mut Slot) -> Option<Chunk> {
    let ids = slot.ids.chunks(CHUNK).nth(slot.handed)?.to_vec();
    let index = slot.handed;
    slot.handed += 1;
    let room = if index == 0 { slot.ids.len() } else { ids.len() };
    Some(Chunk { key, serial: slot.serial, index, epoch: slot.epoch, ids, room })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 6000 samples, 3 owners, 96 a step: micro-batches of 32, two chunks each.
    fn queue(prefetch: u64) -> Queue {
        Queue::new(Order::new(6000, 3, 1, 96).expect("valid"), prefetch)
    }

    fn drain(queue: &mut Queue) -> Vec<(u64, u32, usize)> {
        let mut seen = Vec::new();
        while let Some(chunk) = queue.next() {
            seen.push((chunk.key.0, chunk.key.1, chunk.index));
            queue.deliver(&chunk, Ok(Batch { count: 1, ..Batch::default() }));
        }
        seen
    }

    fn take(queue: &mut Queue, step: u64, owner: u32) -> usize {
        queue.want(step, owner);
        queue.finish(step, owner).expect("decoded ahead").len()
    }

    #[test]
    fn work_goes_by_step_then_owner_and_stops_at_the_horizon() {
        let mut queue = queue(2);
        queue.plan(5, &[2, 0]);
        let expected = [(5, 0), (5, 2), (6, 0), (6, 2)];
        let expected: Vec<_> = expected
            .iter()
            .flat_map(|&(step, owner)| [(step, owner, 0), (step, owner, 1)])
            .collect();
        assert_eq!(drain(&mut queue), expected);
        assert_eq!(take(&mut queue, 5, 0), 2);
        assert_eq!(drain(&mut queue), [(7, 0, 0), (7, 0, 1)], "owner 2 has not moved on");
    }

    #[test]
    fn a_new_plan_keeps_what_fits_and_does_not_repeat_what_was_taken() {
        let mut queue = queue(2);
        queue.plan(5, &[0, 1]);
        drain(&mut queue);
        take(&mut queue, 5, 0);
        drain(&mut queue);
        // Owner 1 goes, owner 2 comes; step 5 is repaired.
        queue.plan(5, &[0, 2]);
        let fresh: Vec<_> =
            drain(&mut queue).iter().map(|&(step, owner, _)| (step, owner)).collect();
        assert_eq!(fresh, [(5, 2), (5, 2), (6, 2), (6, 2)]);
        assert_eq!(take(&mut queue, 6, 0), 2);
        assert!(!queue.slots.contains_key(&(5, 1)) && !queue.slots.contains_key(&(6, 1)));
    }

    #[test]
    fn a_rollback_plans_the_earlier_steps_again() {
        let mut queue = queue(1);
        queue.plan(9, &[0]);
        drain(&mut queue);
        take(&mut queue, 9, 0);
        queue.plan(3, &[0]);
        assert_eq!(drain(&mut queue), [(3, 0, 0), (3, 0, 1)]);
    }

    #[test]
    fn a_part_for_a_dropped_micro_batch_is_dropped_too() {
        let mut queue = queue(1);
        queue.plan(0, &[0]);
        let late = queue.next().expect("planned");
        queue.plan(4, &[1]);
        queue.plan(0, &[0]);
        assert!(!queue.deliver(&late, Ok(Batch::default())));
        assert_eq!(drain(&mut queue).len(), 2, "both chunks are decoded for the new slot");
    }

    #[test]
    fn an_owner_without_samples_in_a_step_is_whole_at_once() {
        let mut queue = Queue::new(Order::new(10, 4, 1, 9).expect("valid"), 1);
        // The last step of the epoch holds position 9 alone: owner 1.
        assert_eq!(take(&mut queue, 1, 0), 0);
        queue.want(1, 1);
        assert!(queue.finish(1, 1).is_none());
    }

    #[test]
    fn what_was_wanted_survives_a_plan_and_goes_when_given_up() {
        let mut queue = queue(1);
        queue.want(7, 2);
        queue.plan(0, &[0]);
        assert!(queue.slots.contains_key(&(7, 2)));
        assert_eq!(queue.next().map(|chunk| chunk.key), Some((7, 2)), "wanted comes first");
        queue.give_up(7, 2);
        assert!(!queue.slots.contains_key(&(7, 2)));
    }
}
