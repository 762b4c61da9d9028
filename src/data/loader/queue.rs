//! Which micro-batch is decoded next: a plain value, without threads. Micro-batches are cut into
//! chunks (`slot`), so that several threads share a large one.

use std::collections::BTreeMap;

use crate::data::DataError;
use crate::data::sampler::Order;

use super::slot::{Chunk, Filled, Key, Slot, Ticket};

/// Buffers of micro-batches that were used and wait for the next ones: as many as workers give back
/// at about the same time.
const SPARE_MAX: usize = 4;

/// What is planned, on its way and decoded.
pub(super) struct Queue {
    order: Order,
    prefetch: u64,
    /// Nothing is planned from this step on.
    end: u64,
    /// Per planned owner, the step after the last one taken.
    next: BTreeMap<u32, u64>,
    slots: BTreeMap<Key, Slot>,
    serial: u64,
    /// Values of a sample.
    each: usize,
    spare: Vec<Vec<f32>>,
}

impl Queue {
    /// `each`: values of a sample, above 0.
    pub(super) fn new(order: Order, prefetch: u64, each: usize) -> Self {
        let (next, slots) = (BTreeMap::new(), BTreeMap::new());
        Self { order, prefetch, end: u64::MAX, next, slots, serial: 0, each, spare: Vec::new() }
    }

    /// What nobody asks for from this step on is not decoded.
    pub(super) fn until(self, end: Option<u64>) -> Self {
        Self { end: end.unwrap_or(u64::MAX), ..self }
    }

    /// Takes back the memory of a micro-batch.
    pub(super) fn reuse(&mut self, images: Vec<f32>) {
        if self.spare.len() < SPARE_MAX && images.capacity() > 0 {
            self.spare.push(images);
        }
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

    /// Whether it could be taken now.
    pub(super) fn is_whole(&self, step: u64, owner: u32) -> bool {
        self.slots.get(&(step, owner)).is_some_and(Slot::is_whole)
    }

    /// The wanted micro-batch, if it is whole; the plan moves on.
    pub(super) fn finish(&mut self, step: u64, owner: u32) -> Option<Slot> {
        if !self.slots.contains_key(&(step, owner)) {
            // Another caller has taken the same one: it is decoded again.
            self.want(step, owner);
        }
        if !self.slots.get(&(step, owner))?.is_whole() {
            return None;
        }
        let slot = self.slots.remove(&(step, owner))?;
        if let Some(next) = self.next.get_mut(&owner) {
            *next = step + 1;
        }
        self.refill();
        Some(slot)
    }

    /// The next chunk of this micro-batch, if one is not being decoded yet.
    pub(super) fn next_of(&mut self, step: u64, owner: u32) -> Option<Chunk> {
        let (key, spare) = ((step, owner), &mut self.spare);
        self.slots.get_mut(&key)?.hand(key, |length| {
            let mut values = spare.pop().unwrap_or_default();
            // In the common case it has the length: nothing is written.
            values.resize(length, 0.0);
            values
        })
    }

    /// The next chunk of any micro-batch: wanted ones first, then by step and owner.
    pub(super) fn next(&mut self) -> Option<Chunk> {
        let found = self.slots.iter().find(|(_, slot)| slot.wanted > 0 && slot.is_open());
        let found = found.or_else(|| self.slots.iter().find(|(_, slot)| slot.is_open()));
        let key = *found?.0;
        self.next_of(key.0, key.1)
    }

    /// A chunk is decoded. Says whether its micro-batch is now whole.
    pub(super) fn deliver(&mut self, ticket: Ticket, part: Result<Filled, DataError>) -> bool {
        self.slots.get_mut(&ticket.key).is_some_and(|slot| slot.deliver(ticket, part))
    }

    /// Opens what the plan reaches, drops what it does not.
    fn refill(&mut self) {
        let next = &self.next;
        let ahead = |from: u64| from..(from + self.prefetch).min(self.end);
        let planned =
            |(step, owner): Key| next.get(&owner).is_some_and(|&from| ahead(from).contains(&step));
        self.slots.retain(|&key, slot| slot.wanted > 0 || planned(key));
        let reached: Vec<Key> = next
            .iter()
            .flat_map(|(&owner, &from)| ahead(from).map(move |step| (step, owner)))
            .collect();
        for key in reached {
            self.slot(key);
        }
    }

    /// The slot, opened if it is not there.
    fn slot(&mut self, key: Key) -> &mut Slot {
        let (order, serial, each) = (&self.order, &mut self.serial, self.each);
        self.slots.entry(key).or_insert_with(|| {
            *serial += 1;
            let ids = order.owner_samples(key.0, key.1);
            Slot::new(*serial, order.locate(key.0).epoch, ids, each)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 6000 samples, 3 owners, 96 a step: micro-batches of 32, two chunks each.
    fn queue(prefetch: u64) -> Queue {
        Queue::new(Order::new(6000, 3, 1, 96).expect("valid"), prefetch, 1)
    }

    fn drain(queue: &mut Queue) -> Vec<(u64, u32, usize)> {
        let mut seen = Vec::new();
        while let Some(chunk) = queue.next() {
            let Chunk { ticket, ids, values, .. } = chunk;
            drop(values);
            seen.push((ticket.key.0, ticket.key.1, ticket.index));
            queue.deliver(ticket, Ok(Filled { count: ids.len() as u64, ..Filled::default() }));
        }
        seen
    }

    /// How many samples the micro-batch has.
    fn take(queue: &mut Queue, step: u64, owner: u32) -> u64 {
        queue.want(step, owner);
        let slot = queue.finish(step, owner).expect("decoded ahead");
        slot.into_batch().expect("nothing failed").count
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
        assert_eq!(take(&mut queue, 5, 0), 32);
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
        assert_eq!(take(&mut queue, 6, 0), 32);
        assert!(!queue.slots.contains_key(&(5, 1)) && !queue.slots.contains_key(&(6, 1)));
    }

    #[test]
    fn nothing_is_decoded_beyond_a_runs_last_step_but_what_is_asked_for() {
        let mut queue = queue(4).until(Some(7));
        queue.plan(5, &[0]);
        assert_eq!(drain(&mut queue), [(5, 0, 0), (5, 0, 1), (6, 0, 0), (6, 0, 1)]);
        assert_eq!(take(&mut queue, 5, 0), 32);
        assert_eq!(drain(&mut queue), []);
        queue.want(7, 0);
        assert_eq!(drain(&mut queue), [(7, 0, 0), (7, 0, 1)]);
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
        assert!(!queue.deliver(late.ticket, Ok(Filled::default())));
        assert_eq!(drain(&mut queue).len(), 2, "both chunks are decoded for the new slot");
    }

    #[test]
    fn an_owner_without_samples_in_a_step_is_whole_at_once() {
        let mut queue = Queue::new(Order::new(10, 4, 1, 9).expect("valid"), 1, 1);
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
        assert_eq!(queue.next().map(|chunk| chunk.ticket.key), Some((7, 2)), "wanted comes first");
        queue.give_up(7, 2);
        assert!(!queue.slots.contains_key(&(7, 2)));
    }
}
