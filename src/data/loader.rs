//! The prefetching loader: decode threads run a bounded number of steps ahead of the workers.
//!
//! `queue` says, as a plain value, which micro-batch is decoded next, what is kept after a
//! change of plan and what is finished; this file adds threads, locks and the decoding itself.
//! What a micro-batch holds depends on (seed, step, owner) only: never on threads or plans.

use std::num::NonZero;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::config::{BadImage, Look};
use crate::observe::notice::act_on;
use crate::observe::panics::vital;

use super::decoder::{Decoder, hold};
use super::mixing::Mixing;
use super::prepare::{Bench, Recipe, View};
use super::queue::Queue;
use super::sampler::{Order, mix};
use super::slot::{Chunk, Filled, Ticket};
use super::supply::Supply;
use super::{Batch, DataError};

/// How samples are loaded.
#[derive(Debug, Clone, PartialEq)]
pub struct LoaderOptions {
    /// Decode threads; with 0 the callers of `take` decode.
    pub threads: usize,
    /// Steps decoded ahead for each planned owner.
    pub prefetch: usize,
    /// Height and width of what the engine gets, in pixels.
    pub image_size: u32,
    /// 1 or 3: channels of what the engine gets; images are converted.
    pub channels: u32,
    /// Views are drawn; else the middle is looked at.
    pub augment: bool,
    /// How pictures are looked at.
    pub look: Look,
    /// `run.seed`.
    pub seed: u64,
    /// Skip bad images or end the run.
    pub bad_image: BadImage,
}

/// Decode threads of a rank that asks for so many: never more than there are processors for this
/// process, by its mask and by the quota of its control group.
pub fn threads(asked: u32) -> usize {
    (asked as usize).min(std::thread::available_parallelism().map_or(usize::MAX, NonZero::get))
}

/// Longest that `take` waits for another thread's decoding.
const TAKE_LIMIT: Duration = Duration::from_secs(600);
/// Longest that a dropped loader waits for its threads, which finish the sample at hand.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// How often a wait for files looks whether the loader closes.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Decodes micro-batches ahead of the workers that take them.
pub struct Loader {
    shared: Arc<Shared>,
    mixing: Mixing,
}

struct Shared {
    supply: Supply,
    decoder: Decoder,
    augment: bool,
    state: Mutex<Pipeline>,
    /// What callers of `take` decode with, while none does.
    benches: Mutex<Vec<Bench>>,
    /// There may be something to decode, or the loader closes.
    work: Condvar,
    /// A micro-batch is whole, or a thread ended.
    ready: Condvar,
}

struct Pipeline {
    queue: Queue,
    closing: bool,
    /// Decode threads that live.
    threads: usize,
}

impl Loader {
    /// Starts the threads; nothing is decoded before `plan`.
    #[expect(clippy::needless_pass_by_value, reason = "the options are the loader's from here on")]
    pub fn new(supply: impl Into<Supply>, order: Order, options: LoaderOptions) -> Loader {
        let supply = supply.into();
        let set = supply.set.clone();
        let constants = set.source.normalization();
        let recipe = Recipe::new(options.image_size, options.channels, options.seed, constants)
            .looking(options.look);
        let each = recipe.values();
        let shared = Arc::new(Shared {
            supply,
            decoder: Decoder::new(set, recipe, options.bad_image),
            augment: options.augment,
            state: Mutex::new(Pipeline {
                queue: Queue::new(order, options.prefetch as u64, each),
                closing: false,
                threads: 0,
            }),
            benches: Mutex::default(),
            work: Condvar::new(),
            ready: Condvar::new(),
        });
        for index in 0..options.threads {
            hold(&shared.state).threads += 1;
            let own = shared.clone();
            let thread = std::thread::Builder::new()
                .name(format!("decode-{index}"))
                .spawn(move || vital(|| own.decode_ahead()));
            if let Err(error) = thread {
                hold(&shared.state).threads -= 1;
                act_on(&format!("no decode threads: {error}; workers decode for themselves"));
                break;
            }
        }
        Loader { shared, mixing: Mixing::default() }
    }

    /// The same, whose pictures are mixed.
    #[must_use]
    pub fn mixing(mut self, mixing: Mixing) -> Loader {
        self.mixing = mixing;
        self
    }

    /// From `step` on this rank computes `owners`: drops what was decoded for another plan, keeps
    /// what still fits. A micro-batch of `step` that was taken already is not decoded ahead again.
    /// `generation`: of the world, for the record.
    pub fn plan(&self, step: u64, owners: &[u32], generation: u32) {
        self.shared.supply.plan(step, owners, generation);
        hold(&self.shared.state).queue.plan(step, owners);
        self.shared.work.notify_all();
    }

    /// The owner's micro-batch of that step. Waits for the decode threads and helps them with
    /// it; decodes it here and now if it was never planned. May be called from several threads.
    pub fn take(&self, step: u64, owner: u32) -> Result<Batch, DataError> {
        let mut bench = hold(&self.shared.benches).pop().unwrap_or_default();
        let taken = self.take_with(&mut bench, step, owner);
        // As many as there are callers at the same time.
        hold(&self.shared.benches).push(bench);
        let side = self.shared.decoder.recipe.side();
        taken.map(|mut batch| {
            self.mixing.apply(&mut batch, step, owner, side);
            batch
        })
    }

    /// Takes back the memory of a micro-batch that was used: a later one gets it.
    pub fn give_back(&self, batch: Batch) {
        hold(&self.shared.state).queue.reuse(batch.images);
    }

    fn take_with(&self, bench: &mut Bench, step: u64, owner: u32) -> Result<Batch, DataError> {
        let shared = &*self.shared;
        let until = Instant::now() + TAKE_LIMIT;
        let mut state = hold(&shared.state);
        state.queue.want(step, owner);
        loop {
            if let Some(slot) = state.queue.finish(step, owner) {
                drop(state);
                shared.work.notify_all();
                return slot.into_batch();
            }
            if let Some(chunk) = state.queue.next_of(step, owner) {
                drop(state);
                let (ticket, part) = shared.decode(bench, chunk);
                state = hold(&shared.state);
                if state.queue.deliver(ticket, part) {
                    shared.ready.notify_all();
                }
                continue;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                state.queue.give_up(step, owner);
                return Err(DataError::Store(format!(
                    "the images of step {step}, owner {owner} were not decoded within {} s: is \
                     the storage of the data set reachable?",
                    TAKE_LIMIT.as_secs()
                )));
            }
            let waited = shared.ready.wait_timeout(state, left);
            state = waited.unwrap_or_else(|poison| poison.into_inner()).0;
        }
    }

    /// Waits until the files of the owner's micro-batch are on this node, so long at most; whether
    /// they are. Always true where nothing is staged.
    pub fn wait_staged(&self, step: u64, owner: u32, limit: Duration) -> bool {
        let staging = self.shared.supply.staging.as_ref();
        staging.is_none_or(|staging| staging.wait(step, owner, limit))
    }

    /// How its samples come.
    pub fn supply(&self) -> &Supply {
        &self.shared.supply
    }

    /// Names of bad images that were skipped since the last call, each once in a loader's life
    /// (the first thousand).
    pub fn skipped(&self) -> Vec<String> {
        self.shared.decoder.skipped()
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        if let Some(staging) = &self.shared.supply.staging {
            staging.close();
        }
        let mut state = hold(&self.shared.state);
        state.closing = true;
        self.shared.work.notify_all();
        let until = Instant::now() + CLOSE_LIMIT;
        while state.threads > 0 && Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now());
            let waited = self.shared.ready.wait_timeout(state, left);
            state = waited.unwrap_or_else(|poison| poison.into_inner()).0;
        }
    }
}

impl Shared {
    /// The life of a decode thread.
    fn decode_ahead(&self) {
        let mut bench = Bench::default();
        let mut state = hold(&self.state);
        while !state.closing {
            let Some(chunk) = state.queue.next() else {
                state = self.work.wait(state).unwrap_or_else(|poison| poison.into_inner());
                continue;
            };
            drop(state);
            let (ticket, part) = self.decode(&mut bench, chunk);
            state = hold(&self.state);
            if state.queue.deliver(ticket, part) {
                self.ready.notify_all();
            }
        }
        state.threads -= 1;
        self.ready.notify_all();
    }

    /// Decodes a chunk; cut short when the loader closes.
    fn decode(&self, bench: &mut Bench, chunk: Chunk) -> (Ticket, Result<Filled, DataError>) {
        let ticket = chunk.ticket;
        self.await_staged(ticket);
        let begun = Instant::now();
        let decoded = self.decode_now(bench, chunk);
        self.supply.tally.loaded(begun.elapsed());
        (ticket, decoded)
    }

    /// Until the files of a chunk are on this node, or the loader closes.
    fn await_staged(&self, ticket: Ticket) {
        let Some(staging) = &self.supply.staging else { return };
        let (step, owner) = ticket.key;
        while !staging.wait(step, owner, LOOK_EVERY) && !hold(&self.state).closing {}
    }

    fn decode_now(&self, bench: &mut Bench, chunk: Chunk) -> Result<Filled, DataError> {
        let Chunk { epoch, ids, mut values, .. } = chunk;
        let (each, mut filled) = (self.decoder.recipe.values(), Filled::default());
        for sample in ids {
            if hold(&self.state).closing {
                break;
            }
            let view = match self.augment {
                true => View::Drawn { epoch, sample },
                false => View::Centre,
            };
            filled.count += 1;
            filled.mix = filled.mix.wrapping_add(mix(epoch, sample));
            let start = filled.labels.len() * each;
            let values = &mut values[start..start + each];
            match self.decoder.fill(bench, sample, view, values)? {
                Some(label) => filled.labels.push(label),
                None => filled.skipped += 1,
            }
        }
        Ok(filled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_gets_more_threads_than_there_are_processors() {
        let processors = std::thread::available_parallelism().expect("Linux says it").get();
        assert_eq!((threads(1), threads(u32::MAX)), (1, processors));
    }
}
