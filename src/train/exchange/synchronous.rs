//! The synchronous exchange: every rank sums its owners' gradients, buckets are all-reduced while
//! backward still makes the next ones, and the update is the same everywhere.

use std::collections::BTreeSet;
use std::sync::PoisonError;

use crate::cluster::comm::ReduceOp;
use crate::cluster::world::World;
use crate::config::{Phase, Schedule};
use crate::data::sampler::Order;
use crate::observe::ledger::Committed;

use super::{Context, Exchange, Sums, at, measure_begin};
use crate::train::TrainError;
use crate::train::optimizer::{Optimizer, statistics_momentum};
use crate::train::replica::Replica;
use crate::train::schedule;
use crate::train::worker::{Pool, Totals};

/// See the module.
pub struct Synchronous {
    pool: Pool,
    optimizer: Optimizer,
    statistics_momentum: Vec<f32>,
    order: Order,
    schedule: Schedule,
    base_rate: f64,
    steps_total: Option<u64>,
    /// Sums over all ranks: `parameters | statistics`.
    received: Vec<f32>,
    parameters: usize,
    /// The step whose micro-batches are computed (or being computed), and of which owners.
    under_way: Option<(u64, BTreeSet<u32>)>,
}

/// Whether a step's computing was started now, or is (being) done already.
enum Started {
    Now,
    Before,
}

impl Synchronous {
    /// `steps_total`: what the schedule scales to.
    pub fn new(
        pool: Pool,
        optimizer: Optimizer,
        order: Order,
        rates: (Schedule, f64),
        steps_total: Option<u64>,
    ) -> Self {
        let layout = &pool.shared.layout;
        let parameters = layout.parameters;
        let received = vec![0.0; parameters + layout.statistics];
        let statistics_momentum = statistics_momentum(&pool.shared.graph, layout);
        let (schedule, base_rate) = rates;
        Self {
            pool,
            optimizer,
            statistics_momentum,
            order,
            schedule,
            base_rate,
            steps_total,
            received,
            parameters,
            under_way: None,
        }
    }

    /// Starts this rank's part of the step, or, when it is under way already (a repair came
    /// between), only what other ranks left to it.
    fn start_computing(&mut self, context: &Context<'_>) -> Started {
        let step = context.replica.position.step;
        let owners = context.world.owners_of(context.comm.rank());
        match &mut self.under_way {
            Some((under_way, computed)) if *under_way == step => {
                let more: Vec<u32> =
                    owners.iter().copied().filter(|owner| computed.insert(*owner)).collect();
                if !more.is_empty() {
                    self.pool.shared.loader.plan(step, &owners);
                    self.pool.extend(&more);
                }
                Started::Before
            }
            _ => {
                self.pool.shared.loader.plan(step, &owners);
                self.pool.train(&owners, context.replica.standing);
                let nothing = owners.is_empty();
                self.under_way = Some((step, owners.into_iter().collect()));
                if nothing { Started::Before } else { Started::Now }
            }
        }
    }

    fn reduce_buckets(&mut self, context: &mut Context<'_>) -> Result<(), TrainError> {
        let pool = &self.pool;
        let sum = &pool.shared.sum;
        for bucket in 0..sum.buckets() {
            let received = &mut self.received[sum.range(bucket)];
            sum.with_complete(
                bucket,
                || pool.failure(),
                |send| {
                    if bucket == sum.buckets() / 2 {
                        context.replica.reached_point(Phase::InAllReduce);
                    }
                    context.comm.all_reduce_f32(send, received, ReduceOp::Sum)?;
                    Ok(())
                },
            )?;
        }
        Ok(())
    }
}

impl Exchange for Synchronous {
    fn attempt(&mut self, context: &mut Context<'_>) -> Result<Sums, TrainError> {
        at(context, Phase::BeforeLoad);
        let begun = self.pool.begun();
        let begun = match self.start_computing(context) {
            Started::Now => begun,
            Started::Before => u64::MAX,
        };
        let begun_seconds = measure_begin(context, &self.pool, begun)?;
        self.reduce_buckets(context)?;
        let mine = self.pool.finish()?;
        let mut words = [0; Totals::WORDS];
        context.comm.all_reduce_u64(&mine.words(), &mut words, ReduceOp::Sum)?;
        at(context, Phase::BeforeVote);
        Ok(Sums { totals: Totals::from_words(&words), owner_batches: Vec::new(), begun_seconds })
    }

    fn apply(&mut self, replica: &mut Replica, world: &World, sums: &Sums) -> Committed {
        let rate = self.learning_rate(replica);
        let step = replica.position.step;
        let (gradients, statistics) = self.received.split_at(self.parameters);
        let zero_update = {
            let mut slots = replica.slots.write().unwrap_or_else(PoisonError::into_inner);
            let (current, next) = slots.begin();
            let samples = sums.totals.computed();
            let momentum = &self.statistics_momentum;
            let optimizer = &self.optimizer;
            let finite =
                optimizer.apply(current, next, gradients, samples, rate, statistics, momentum);
            replica.reached_point(Phase::InUpdate);
            slots.commit(step + 1, world.generation, Vec::new());
            !finite
        };
        self.under_way = None;
        Committed {
            step: step + 1,
            epoch: self.order.locate(step).epoch,
            cursor: replica.position.cursor + sums.totals.count,
            count: sums.totals.count,
            skipped: sums.totals.skipped,
            mix: sums.totals.mix,
            attempt: world.attempt,
            zero_update,
        }
    }

    fn give_back(&mut self) {
        // The rank's own sums stay as they are: only what a dead rank owned is computed again.
    }

    fn pool(&mut self) -> &mut Pool {
        &mut self.pool
    }

    fn resume(&mut self, _context: &mut Context<'_>) {}

    fn learning_rate(&self, replica: &Replica) -> f64 {
        let step = replica.position.step;
        schedule::learning_rate(&self.schedule, self.base_rate, step, self.steps_total)
    }
}
