//! The asynchronous exchange: Algorithm 1 of Tsuji et al. Worker threads run free: each
//! copies the current w, computes a micro-batch's gradient g and adds -γ g to Δw; the rank sends
//! `w / n + Δw` round after round, with n read from the communicator at the moment of sending, and
//! applies momentum to what it receives.
//!
//! Every round ends in a vote. On no commit the part of Δw that was taken is given back. How many
//! micro-batches of each owner a round contained travels with it, so a replacement continues each
//! owner after its last *committed* micro-batch and nothing is counted twice.
//!
//! Where this is not the paper's, and why:
//!
//! - A vote a round; the paper looks at what `MPI_Allreduce` returned. Of one sum some ranks get
//!   the result and others an error, and those would be a round apart from then on.
//! - γ is divided by the global batch: a sweep over all owners moves w as a synchronous step does,
//!   and one learning rate suits both exchanges.
//! - Weight decay is part of Δw, with the weights that are committed when the gradient is there.
//!   The paper's equation has none.
//! - Running statistics are sent like w, `s / n + Δs`, without momentum: the paper does not say
//!   what becomes of them, and all ranks are to evaluate with the same. Each micro-batch moves them
//!   from where the round began: of many a variance can come below 0, and is 0 then.
//! - An owner is at most one micro-batch ahead of the committed ones (`BATCHES_AHEAD_MAX`), and a
//!   round waits for half of a rank's owners, for a second at most: momentum tolerates little
//!   delay, and a round moves all weights.
//! - Workers hear of a commit when its weights are there, so that no micro-batch begins with older
//!   ones than it has to.
//! - A sum that is no finite number moves no weight; its round is counted, marked and told.
//! - The world does not grow, and who lives keeps its owners: one that moved between living ranks
//!   would leave a part of Δw behind that its new rank computes again.

use std::ops::Range;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use crate::cluster::comm::Elements;
use crate::config::{Point, Schedule};
use crate::data::sampler::Order;
use crate::data::staging::progress::{self, Progress};
use crate::data::store::tally::{self, Counting, Counts};
use crate::model::TensorSpec;
use crate::model::layout::{LARGEST_WEIGHT, are_below};
use crate::model::parts::{PARAMETERS, STATISTICS, W_OLD};
use crate::observe::ledger::Committed;
use crate::train::TrainError;
use crate::train::compute::free_run::{FreeRun, Round, Taken};
use crate::train::compute::pool::Pool;
use crate::train::compute::totals::Totals;
use crate::train::exchange::{Context, Exchange, Sums, measure_begin};
use crate::train::state::position::Position;
use crate::train::update::schedule::{self, Length};

/// Longest wait of a round for half a sweep over the rank's own owners. A round moves all weights:
/// sent after every micro-batch it would cost more than it carries. The other half is computed
/// while the first is summed.
const ROUND_WAIT_MAX: Duration = Duration::from_secs(1);

/// `SendBuf <- w / n + Δw`: summed over n ranks that hold the same w it is w + ΣΔw, whatever n.
pub fn send_buffer(w: &[f32], delta: &[f32], ranks: usize, send: &mut [f32]) {
    assert!(ranks > 0 && w.len() == send.len() && delta.len() == send.len());
    let share = 1.0 / ranks as f32;
    for ((send, w), delta) in send.iter_mut().zip(w).zip(delta) {
        *send = w * share + delta;
    }
}

/// `w <- RecvBuf + μ (RecvBuf - w_old); w_old <- RecvBuf`. False when either holds something that
/// is no weight then.
pub fn apply_received(
    received: &[f32],
    old: &[f32],
    momentum: f32,
    w: &mut [f32],
    kept: &mut [f32],
) -> bool {
    let mut sound = true;
    for (((w, kept), &received), old) in w.iter_mut().zip(kept).zip(received).zip(old) {
        *w = received + momentum * (received - old);
        *kept = received;
        // What is not finite in what was received is not finite in w either.
        sound &= w.abs() < LARGEST_WEIGHT;
    }
    sound
}

/// Takes over statistics as they were received. False when one is no finite number.
fn take_statistics(received: &[f32], variances: &[Range<usize>], running: &mut [f32]) -> bool {
    running.copy_from_slice(received);
    for own in variances {
        for variance in &mut running[own.clone()] {
            *variance = if *variance < 0.0 { 0.0 } else { *variance };
        }
    }
    are_below(running, f32::INFINITY)
}

/// One rank's part in it.
pub struct Asynchronous {
    pool: Pool,
    free: Arc<FreeRun>,
    order: Order,
    schedule: Schedule,
    base_rate: f64,
    momentum: f32,
    length: Length,
    send: Vec<f32>,
    received: Vec<f32>,
    parameters: usize,
    /// Where variances lie in the statistics.
    variances: Vec<Range<usize>>,
    /// What the round under way took from the workers.
    taken: Option<Taken>,
    /// What the last committed round took, until the workers hear of it.
    committed: Option<Taken>,
    /// The world's generation that the workers' owners come from.
    planned: Option<(u32, u32)>,
    counts: Counting,
}

impl Asynchronous {
    /// `rates`: schedule, base learning rate, momentum.
    pub fn new(pool: Pool, order: Order, rates: (Schedule, f64, f64), length: Length) -> Self {
        let layout = &pool.shared.layout;
        let (parameters, all) = (layout.parameters, layout.parameters + layout.statistics);
        let free = Arc::clone(pool.shared.free.as_ref().expect("asynchronous pools run free"));
        let (schedule, base_rate, momentum) = rates;
        let variances = layout.tensors.iter().filter(|tensor| tensor.is_variance());
        let variances = variances.map(TensorSpec::range).collect();
        Self {
            pool,
            free,
            order,
            schedule,
            base_rate,
            momentum: momentum as f32,
            length,
            send: vec![0.0; all],
            received: vec![0.0; all],
            parameters,
            variances,
            taken: None,
            committed: None,
            planned: None,
            counts: Counting::default(),
        }
    }

    /// Tells the workers what was committed, so that owners in it go on, with its weights; and
    /// which owners are theirs, after a repair, from where.
    fn plan_workers(&mut self, context: &mut Context<'_>) {
        let now = (context.world.attempt, context.world.generation);
        let learning_rate = self.learning_rate(&context.state.position);
        self.free.begin_round(Round { learning_rate, standing: context.process.standing });
        if let Some(taken) = self.committed.take() {
            self.free.committed(taken);
        }
        if self.planned == Some(now) {
            return;
        }
        let position = &mut context.state.position;
        position.owner_batches.resize(self.order.owners as usize, 0);
        let owners = context.world.owners_of(context.comm.rank());
        self.free.assign(&owners, &position.owner_batches);
        let first = owners.iter().map(|&owner| position.owner_batches[owner as usize]).min();
        let loader = &self.pool.shared.loader;
        context.plan_loading(loader, first.unwrap_or(0), &owners);
        self.planned = Some(now);
        self.pool.run_free();
    }

    /// Until Δw holds micro-batches of half the own owners. Bounded, so that a rank without
    /// owners, or with slow ones, still takes part in the round; one that waits for storage is
    /// bounded by `data.patience`.
    fn wait_for_workers(&self, context: &mut Context<'_>) -> Result<(), TrainError> {
        while !self.free.wait_for_half_sweep(Duration::ZERO) && self.pool.compute_free() {}
        let limit = Instant::now() + ROUND_WAIT_MAX;
        let outage = &self.pool.shared.outage;
        // A rank that cannot read has nothing to send, and a round without samples is none.
        while Instant::now() < limit || (outage.lasts() && !self.free.has_delta()) {
            if let Some(failure) = self.pool.failure() {
                return Err(failure);
            }
            if let Some(lost) = context.lost_rank() {
                return Err(lost);
            }
            if self.free.wait_for_half_sweep(Duration::from_millis(20)) {
                break;
            }
        }
        Ok(())
    }
}

impl Exchange for Asynchronous {
    fn attempt(&mut self, context: &mut Context<'_>) -> Result<Sums, TrainError> {
        context.process.at(Point::BeforeLoad);
        let begun = self.pool.begun();
        let at_work = self.free.is_at_work(begun);
        self.plan_workers(context);
        // One whose owners are through has nothing to begin.
        let begun = if at_work || self.free.is_through() { u64::MAX } else { begun };
        let begun_seconds = measure_begin(context, &self.pool, begun)?;
        self.wait_for_workers(context)?;
        let taken = self.taken.insert(self.free.take());
        {
            let slots = context.state.slots.read().unwrap_or_else(PoisonError::into_inner);
            let committed = slots.committed();
            let ranks = context.comm.size();
            let (w_delta, s_delta) = taken.delta.split_at(self.parameters);
            let (w_send, s_send) = self.send.split_at_mut(self.parameters);
            send_buffer(committed.part(PARAMETERS), w_delta, ranks, w_send);
            send_buffer(committed.part(STATISTICS), s_delta, ranks, s_send);
        }
        context.process.at(Point::InAllReduce);
        self.pool.compute_beside(&context.process.standing);
        context.comm.all_reduce(Elements::F32(&self.send, &mut self.received))?;
        let mut mine = taken.totals.words().to_vec();
        mine.extend_from_slice(&self.counts.take(self.pool.counts()).words());
        mine.extend_from_slice(&self.pool.staged().words());
        mine.extend_from_slice(&taken.owner_batches);
        let mut words = vec![0; mine.len()];
        context.comm.all_reduce(Elements::U64(&mine, &mut words))?;
        context.process.at(Point::BeforeVote);
        let of_reading = tally::WORDS + progress::WORDS;
        let owner_batches = words.split_off(Totals::WORDS + of_reading);
        let staged = Progress::from_words(&words.split_off(Totals::WORDS + tally::WORDS));
        let counts = Counts::from_words(&words.split_off(Totals::WORDS));
        let (totals, rank_micros) = (Totals::from_words(&words), Vec::new());
        let sums = Sums { totals, owner_batches, rank_micros, counts, staged, ..Sums::default() };
        Ok(Sums { begun_seconds, ..sums })
    }

    fn apply(&mut self, context: &mut Context<'_>, sums: &Sums) -> Committed {
        self.counts.commit();
        self.committed = self.taken.take();
        let step = context.state.position.step;
        let zero_update = {
            let mut slots = context.state.slots.write().unwrap_or_else(PoisonError::into_inner);
            let (current, next) = slots.begin();
            let (w, statistics) = self.received.split_at(self.parameters);
            let (momentum, old) = (self.momentum, current.part(W_OLD));
            let [next, kept, running] = next.take([PARAMETERS, W_OLD, STATISTICS]);
            let sound = apply_received(w, old, momentum, next, kept)
                && take_statistics(statistics, &self.variances, running);
            if !sound {
                next.copy_from_slice(current.part(PARAMETERS));
                kept.copy_from_slice(old);
                running.copy_from_slice(current.part(STATISTICS));
            }
            context.process.at(Point::InUpdate);
            !sound
        };
        let position = &mut context.state.position;
        position.owner_batches.resize(self.order.owners as usize, 0);
        for (sum, batches) in position.owner_batches.iter_mut().zip(&sums.owner_batches) {
            *sum += batches;
        }
        let cursor = position.cursor + sums.totals.count;
        Committed {
            step: step + 1,
            epoch: cursor / self.order.samples,
            cursor,
            count: sums.totals.count,
            skipped: sums.totals.skipped,
            mix: sums.totals.mix,
            attempt: context.world.attempt,
            zero_update,
        }
    }

    fn give_back(&mut self) {
        if let Some(taken) = self.taken.take() {
            self.free.give_back(&taken);
        }
    }

    fn pool(&mut self) -> &mut Pool {
        &mut self.pool
    }

    fn resume(&mut self, _context: &mut Context<'_>) {
        self.pool.run_free();
    }

    fn learning_rate(&self, position: &Position) -> f64 {
        let step = position.cursor / self.order.global_batch;
        schedule::learning_rate(&self.schedule, self.base_rate, step, self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A stale n would rescale every weight by (n-1)/n.
        #[test]
        fn no_weight_is_rescaled_whatever_the_number_of_ranks(
            ranks in 1usize..64,
            w in proptest::collection::vec(-10.0f32..10.0, 1..20),
        ) {
            let delta = vec![0.0; w.len()];
            let mut sum = vec![0.0f64; w.len()];
            let mut send = vec![0.0; w.len()];
            for _ in 0..ranks {
                send_buffer(&w, &delta, ranks, &mut send);
                for (sum, send) in sum.iter_mut().zip(&send) {
                    *sum += f64::from(*send);
                }
            }
            for (sum, w) in sum.iter().zip(&w) {
                prop_assert!((sum - f64::from(*w)).abs() <= 1e-6 * f64::from(w.abs()).max(1e-3));
            }
        }
    }

    #[test]
    fn momentum_acts_on_what_was_received() {
        let (mut w, mut kept) = ([0.0], [0.0]);
        assert!(apply_received(&[3.0], &[1.0], 0.5, &mut w, &mut kept));
        assert_eq!((w, kept), ([4.0], [3.0]));
    }

    #[test]
    fn a_variance_is_not_below_0_and_a_mean_may_be() {
        let (mut running, variances) = ([9.0; 5], [1..2, 3..5]);
        assert!(take_statistics(&[-1.0, 2.0, -3.0, -0.5, 3.0], &variances, &mut running));
        assert_eq!(running, [-1.0, 2.0, -3.0, 0.0, 3.0]);
        assert!(!take_statistics(&[0.0, 0.0, 0.0, f32::NAN, 0.0], &variances, &mut running));
    }

    #[test]
    fn what_is_no_finite_number_is_told() {
        let (mut w, mut kept) = ([0.0; 2], [0.0; 2]);
        for received in [f32::NAN, f32::INFINITY, f32::MAX, 2f32.powi(40)] {
            let sound = apply_received(&[1.0, received], &[1.0, -1.0], 0.9, &mut w, &mut kept);
            assert!(!sound, "{received}");
        }
    }
}
