//! The prefetching loader: decode threads run a bounded number of steps ahead of the workers.
//!
//! `queue` says, as a plain value, which micro-batch is decoded next, what is kept after a
//! change of plan and what is finished; this file adds threads, locks and the decoding itself.
//! What a micro-batch holds depends on (seed, step, owner) only: never on threads or plans.

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::config::{BadImage, Look};
use crate::observe::notice::act_on;
use crate::observe::panics::vital;
use crate::observe::threads::explained;

use super::sampler::{Order, mix};
use super::set::Length;
use super::tiers::supply::Supply;
use super::view::mixing::Mixing;
use super::view::prepare::{Bench, Recipe, View};
use super::{Batch, DataError, Normalization};

mod crew;
mod decoder;
pub mod evaluation;
mod queue;
mod slot;
pub mod viewer;

pub use crew::Threads;

use crew::{Crew, Meter};
use decoder::{Decoder, hold};
use queue::Queue;
use slot::{Chunk, Filled, Ticket};

/// How samples are loaded.
#[derive(Debug, Clone, PartialEq)]
pub struct LoaderOptions {
    /// Those that decode ahead.
    pub threads: Threads,
    /// Steps decoded ahead for each planned owner.
    pub prefetch: usize,
    /// Of the run, where that is known: what nobody asks for from this one on is not decoded.
    pub steps: Option<u64>,
    /// Height and width of what the engine gets, in pixels.
    pub image_size: u32,
    /// 1 or 3: channels of what the engine gets; images are converted.
    pub channels: u32,
    /// Views are drawn; else the middle is looked at.
    pub augment: bool,
    /// How pictures are looked at.
    pub look: Look,
    /// What their levels become.
    pub normalization: Normalization,
    /// `run.seed`.
    pub seed: u64,
    /// Skip bad images or end the run.
    pub bad_image: BadImage,
}

impl LoaderOptions {
    /// What a sample goes through.
    fn recipe(&self) -> Recipe {
        Recipe::new(self.image_size, self.channels, self.seed, self.normalization)
            .looking(self.look)
    }
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
    /// Decode threads that live. Those beyond the crew's number rest.
    threads: usize,
    crew: Crew,
    meter: Meter,
}

impl Loader {
    /// Starts the threads; nothing is decoded before `plan`.
    #[expect(clippy::needless_pass_by_value, reason = "the options are the loader's from here on")]
    pub fn new(supply: impl Into<Supply>, order: Order, options: LoaderOptions) -> Loader {
        let supply = supply.into();
        let set = supply.set.clone();
        let recipe = options.recipe();
        let each = recipe.values();
        let shared = Arc::new(Shared {
            supply,
            decoder: Decoder::new(set, recipe, options.bad_image),
            augment: options.augment,
            state: Mutex::new(Pipeline {
                queue: Queue::new(order, options.prefetch as u64, each).until(options.steps),
                closing: false,
                threads: 0,
                crew: Crew::new(options.threads),
                meter: Meter::default(),
            }),
            benches: Mutex::default(),
            work: Condvar::new(),
            ready: Condvar::new(),
        });
        let loader = Loader { shared, mixing: Mixing::default() };
        loader.hire();
        loader
    }

    /// Starts threads until as many live as are to work; each turn starts one.
    fn hire(&self) {
        loop {
            let mut state = hold(&self.shared.state);
            let index = state.threads;
            if index >= state.crew.active() {
                return;
            }
            state.threads += 1;
            drop(state);
            let own = self.shared.clone();
            let thread = std::thread::Builder::new()
                .name(format!("decode-{index}"))
                .spawn(move || vital(|| own.decode_ahead(index)));
            if let Err(error) = thread {
                hold(&self.shared.state).threads -= 1;
                act_on(&format!(
                    "{index} decode threads and no more: {}; workers help themselves",
                    explained(error)
                ));
                return;
            }
        }
    }

    /// The same, whose pictures are mixed.
    #[must_use]
    pub fn mixing(mut self, mixing: Mixing) -> Loader {
        self.mixing = mixing;
        self
    }

    /// From `step` on this rank computes `owners`: drops what was decoded for another plan, keeps
    /// what still fits. A micro-batch of `step` that was taken already is not decoded ahead again.
    pub fn plan(&self, step: u64, owners: &[u32]) {
        self.shared.supply.plan(step, owners);
        hold(&self.shared.state).queue.plan(step, owners);
        self.shared.work.notify_all();
    }

    /// The owner's micro-batch of that step. Waits for the decode threads and helps them with
    /// it; decodes it here and now if it was never planned. May be called from several threads.
    pub fn take(&self, step: u64, owner: u32) -> Result<Batch, DataError> {
        let begun = Instant::now();
        let mut bench = hold(&self.shared.benches).pop().unwrap_or_default();
        let taken = self.take_with(&mut bench, step, owner);
        // As many as there are callers at the same time.
        hold(&self.shared.benches).push(bench);
        self.measure(begun.elapsed());
        taken.map(|batch| self.mixed(batch, step, owner))
    }

    /// The same where nobody has to wait for it.
    pub fn take_ready(&self, step: u64, owner: u32) -> Option<Result<Batch, DataError>> {
        let mut state = hold(&self.shared.state);
        let slot = match state.queue.is_whole(step, owner) {
            true => state.queue.finish(step, owner)?,
            false => return None,
        };
        drop(state);
        self.shared.work.notify_all();
        self.measure(Duration::ZERO);
        Some(slot.into_batch().map(|batch| self.mixed(batch, step, owner)))
    }

    fn mixed(&self, mut batch: Batch, step: u64, owner: u32) -> Batch {
        self.mixing.apply(&mut batch, step, owner, self.shared.decoder.recipe.side());
        batch
    }

    /// A worker has a micro-batch that it waited for so long: more threads, or fewer.
    fn measure(&self, waited: Duration) {
        let mut state = hold(&self.shared.state);
        let Pipeline { crew, meter, .. } = &mut *state;
        let Some(change) = meter.took(waited, crew) else { return };
        drop(state);
        tracing::info!("{} decode threads instead of {}: {}", change.to, change.from, change.why);
        self.hire();
        self.shared.work.notify_all();
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
    fn decode_ahead(&self, index: usize) {
        let mut bench = Bench::default();
        let mut state = hold(&self.state);
        while !state.closing {
            let works = index < state.crew.active();
            let chunk = if works { state.queue.next() } else { None };
            let Some(chunk) = chunk else {
                let begun = Instant::now();
                state = self.work.wait(state).unwrap_or_else(|poison| poison.into_inner());
                if works {
                    state.meter.idled(begun.elapsed());
                }
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
            let became = self.decoder.fill(bench, sample, view, values)?;
            filled.altered += u64::from(became.fetched.length == Length::Otherwise);
            filled.contents = filled.contents.wrapping_add(became.fetched.contents);
            match became.label {
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
    use crate::data::Split;
    use crate::data::set::open::open;

    /// The loader's threads rest and come back between steps.
    #[test]
    fn a_batch_does_not_depend_on_who_works() {
        let text = "data = { format = \"synthetic\", synthetic_samples = 200 }";
        let config: crate::config::Config = toml::from_str(text).expect("a configuration");
        let loader = |threads| {
            let set = open(&config.data, Split::Train, 1).expect("a synthetic set");
            let order = Order::new(200, 2, 1, 40).expect("valid");
            let options = LoaderOptions {
                threads,
                prefetch: 2,
                steps: None,
                image_size: 8,
                channels: 3,
                augment: true,
                look: config.data.look(),
                normalization: Normalization::of(&config.data),
                seed: 1,
                bad_image: BadImage::Fatal,
            };
            Loader::new(set, order, options)
        };
        let (alone, crew) = (loader(Threads::Fixed(0)), loader(Threads::Fixed(1)));
        crew.plan(0, &[0, 1]);
        for (step, active) in [1, 3, 2, 0, 4, 1].into_iter().enumerate() {
            hold(&crew.shared.state).crew = Crew::new(Threads::Fixed(active));
            crew.hire();
            crew.shared.work.notify_all();
            for owner in [0, 1] {
                let take = |loader: &Loader| loader.take(step as u64, owner).expect("taken");
                assert_eq!(take(&crew), take(&alone), "{active} threads");
            }
        }
        assert_eq!(hold(&crew.shared.state).threads, 4, "none ends");
    }
}
