//! The synchronous exchange: every rank sums its owners' gradients, buckets are all-reduced while
//! backward still makes the next ones, and the update, beside it (`beside`), is the same
//! everywhere. Sums are of integers (`fixed_point`), on a grid that the position holds; should a
//! value not fit, all agree to compute the step again on a coarser one, as they would agree to
//! commit it; and again should one be infinite or undefined.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::cluster::comm::Elements;
use crate::config::{Point, Schedule};
use crate::data::sampler::Order;
use crate::data::staging::progress::Progress;
use crate::data::store::tally::{self, Counting, Counts};
use crate::observe::ledger::Committed;
use crate::train::TrainError;
use crate::train::compute::bucket_sum::Complete;
use crate::train::compute::moments::Moments;
use crate::train::compute::pool::Pool;
use crate::train::compute::totals::Totals;
use crate::train::compute::worker::Shared;
use crate::train::exchange::anew::{self, Anew, Next, Reached, Steadiness};
use crate::train::exchange::beside::{Beside, Learns};
use crate::train::exchange::{Context, Exchange, Sums, measure_begin};
use crate::train::fixed_point::Grid;
use crate::train::state::position::Position;
use crate::train::update::optimizer::Optimizer;
use crate::train::update::schedule::{self, Length};

/// One rank's part in it.
pub struct Synchronous {
    pool: Pool,
    update: Beside,
    order: Order,
    schedule: Schedule,
    base_rate: f64,
    length: Length,
    /// The step whose micro-batches are computed (or being computed), and of which owners.
    under_way: Option<(u64, BTreeSet<u32>)>,
    /// What the workers had been busy when it was begun.
    busy_before: u64,
    /// What reading had taken when the last step was committed, and in the one under way.
    counts: Counting,
    /// Whether what was reduced last taught the weights something.
    learned: bool,
    /// Why the step under way is computed anew, where it is.
    again: Option<Anew>,
    /// The grid of the step that follows the one summed last.
    following: Grid,
}

/// What all ranks counted in a step, what becomes of it, and each rank's compute time.
struct Reduced {
    totals: Totals,
    counts: Counts,
    staged: Progress,
    next: Next,
    rank_micros: Vec<u64>,
}

/// Whether a step's computing was started now, or is (being) done already.
enum Started {
    Now,
    Before,
}

impl Synchronous {
    /// `length`: what the schedule scales to.
    pub fn new(
        pool: Pool,
        optimizer: Optimizer,
        order: Order,
        rates: (Schedule, f64),
        length: Length,
    ) -> Self {
        let Shared { graph, layout, frozen, sum, slots, .. } = &*pool.shared;
        let moments = Moments::of(graph, layout, frozen);
        let (parameters, statistics) = (layout.parameters, layout.statistics);
        let slots = Arc::clone(slots);
        let update = Beside::new(optimizer, moments, sum, parameters, statistics, slots);
        let (schedule, base_rate) = rates;
        Self {
            pool,
            update,
            order,
            schedule,
            base_rate,
            length,
            under_way: None,
            busy_before: 0,
            counts: Counting::default(),
            learned: false,
            again: None,
            following: Grid::default(),
        }
    }

    /// On which the step under way is summed.
    fn grid<'a>(&'a self, position: &'a Position) -> &'a Grid {
        self.again.as_ref().map_or(&position.grid, |anew| &anew.grid)
    }

    /// Starts this rank's part of the step, or, when it is under way already (a repair came
    /// between), only what other ranks left to it.
    fn start_computing(&mut self, context: &mut Context<'_>) -> Result<Started, TrainError> {
        let step = context.state.position.step;
        let owners = context.world.owners_of(context.comm.rank());
        match &mut self.under_way {
            Some((under_way, computed)) if *under_way == step => {
                let more: Vec<u32> =
                    owners.iter().copied().filter(|owner| computed.insert(*owner)).collect();
                if !more.is_empty() {
                    context.plan_loading(&self.pool.shared.loader, step, &owners);
                    self.pool.extend(&more);
                }
                Ok(Started::Before)
            }
            _ => {
                // Of a step that was given up, a worker may still be adding to the sums.
                self.pool.finish(|| context.lost_rank())?;
                context.plan_loading(&self.pool.shared.loader, step, &owners);
                self.pool.shared.sum.set_grid(self.grid(&context.state.position));
                self.busy_before = self.pool.busy_micros();
                self.pool.train(&owners, context.process.standing);
                let nothing = owners.is_empty();
                self.under_way = Some((step, owners.into_iter().collect()));
                Ok(if nothing { Started::Before } else { Started::Now })
            }
        }
    }

    fn reduce_buckets(&mut self, context: &mut Context<'_>) -> Result<(), TrainError> {
        let (pool, update) = (&self.pool, &mut self.update);
        let sum = &pool.shared.sum;
        for bucket in 0..sum.buckets() {
            context.process.at(Point::InStep);
            // A death is answered at once, not when this rank has computed its part: its workers
            // go on while the world is repaired.
            sum.await_complete(bucket, || pool.failure().or_else(|| context.lost_rank()))?;
            let reduce = |send: Complete<'_>| {
                let middle = bucket == sum.buckets() / 2;
                context.process.at(if middle { Point::InAllReduce } else { Point::InBucket });
                let comm = &mut *context.comm;
                update.received().take_in(bucket, send, |sum| comm.all_reduce(sum))
            };
            sum.with_complete(bucket, reduce).map_err(TrainError::Comm)?;
            update.arrived(bucket, &pool.board);
        }
        Ok(())
    }

    /// One reduction for all that is counted in a step.
    fn reduce_totals(&mut self, context: &mut Context<'_>) -> Result<Reduced, TrainError> {
        let mut mine = self.pool.finish(|| context.lost_rank())?.words().to_vec();
        let (reaches, statistics) = self.pool.shared.sum.reaches();
        mine.extend(reaches.into_iter().chain([statistics]));
        let counted = mine.len();
        mine.extend_from_slice(&self.counts.take(self.pool.counts()).words());
        mine.extend_from_slice(&self.pool.staged().words());
        // Beside them each rank's own time travels, in a word that only it fills.
        let (rank, ranks, times) = (context.comm.rank(), context.comm.size(), mine.len());
        mine.resize(times + ranks, 0);
        mine[times + rank] = self.pool.busy_micros() - self.busy_before;
        let mut words = vec![0; mine.len()];
        context.comm.all_reduce(Elements::U64(&mine, &mut words))?;
        let rank_micros = words.split_off(times);
        let staged = Progress::from_words(&words.split_off(counted + tally::WORDS));
        let counts = Counts::from_words(&words.split_off(counted));
        let (totals, reaches) = words.split_at(Totals::WORDS);
        let (statistics, reaches) = reaches.split_last().expect("the statistics' own word");
        let reached = Reached { blocks: reaches.to_vec(), statistics: *statistics };
        let next = anew::next(self.again.as_ref(), self.grid(&context.state.position), reached);
        let totals = Totals::from_words(totals);
        Ok(Reduced { totals, counts, staged, next, rank_micros })
    }
}

impl Exchange for Synchronous {
    fn attempt(&mut self, context: &mut Context<'_>) -> Result<Sums, TrainError> {
        context.process.at(Point::BeforeLoad);
        let begun = self.pool.begun();
        let begun = match self.start_computing(context)? {
            Started::Now => begun,
            Started::Before => u64::MAX,
        };
        let begun_seconds = measure_begin(context, &self.pool, begun)?;
        self.pool.shared.pause.release();
        let rate = self.learning_rate(&context.state.position);
        let grid = self.grid(&context.state.position).clone();
        self.update.begin(&self.pool.shared.sum, &grid, rate);
        self.reduce_buckets(context)?;
        let reduced = self.reduce_totals(context)?;
        let Reduced { mut totals, counts, staged, next, rank_micros } = reduced;
        context.process.at(Point::InUpdate);
        let board = &self.pool.board;
        self.learned = match next {
            Next::Counts(_) => self.update.finish(board, Learns::IfSound),
            Next::Zero(_) => self.update.finish(board, Learns::Nothing),
            // Nothing of it is kept.
            Next::Anew(_) => false,
        };
        let wavering = next == Next::Zero(Steadiness::Wavering);
        let again = match next {
            Next::Counts(following) => {
                self.following = following;
                None
            }
            Next::Zero(_) => {
                totals.non_finite = totals.non_finite.max(1);
                self.following.clone_from(&context.state.position.grid);
                None
            }
            Next::Anew(anew) => Some(anew),
        };
        context.process.at(Point::BeforeVote);
        let owner_batches = Vec::new();
        Ok(Sums {
            totals,
            owner_batches,
            rank_micros,
            counts,
            staged,
            begun_seconds,
            again,
            wavering,
        })
    }

    fn apply(&mut self, context: &mut Context<'_>, sums: &Sums) -> Committed {
        self.update.end(&self.pool.board);
        let step = context.state.position.step;
        self.under_way = None;
        self.again = None;
        std::mem::swap(&mut context.state.position.grid, &mut self.following);
        self.counts.commit();
        Committed {
            step: step + 1,
            epoch: self.order.locate(step).epoch,
            cursor: context.state.position.cursor + sums.totals.count,
            count: sums.totals.count,
            skipped: sums.totals.skipped,
            mix: sums.totals.mix,
            attempt: context.world.attempt,
            zero_update: !self.learned,
        }
    }

    fn give_back(&mut self) {
        self.update.end(&self.pool.board);
        // The rank's own sums stay as they are: only what a dead rank owned is computed again. But
        // a newcomer knows nothing of what was agreed to be computed anew: all begin the step.
        if self.again.take().is_some() {
            self.under_way = None;
        }
    }

    fn forget(&mut self) {
        self.update.end(&self.pool.board);
        // Copies of weights may be what is not as it was.
        self.pool.shared.tries.fetch_add(1, Ordering::Relaxed);
        self.again = None;
        self.under_way = None;
    }

    fn compute_again(&mut self, anew: Anew) {
        self.forget();
        self.again = Some(anew);
    }

    fn pool(&mut self) -> &mut Pool {
        &mut self.pool
    }

    fn resume(&mut self, _context: &mut Context<'_>) {}

    fn learning_rate(&self, position: &Position) -> f64 {
        let step = position.step;
        schedule::learning_rate(&self.schedule, self.base_rate, step, self.length)
    }
}
