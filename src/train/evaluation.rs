//! The validation set, shared by all ranks; and the word of it, which must not die with the rank
//! that was to write it: it is part of the position, so that newcomers hold it too.

use crate::cluster::comm::ReduceOp;
use crate::cluster::guard::{Activity, pulse};
use crate::config::Phase;
use crate::observe::event::Kind;

use crate::train::TrainError;
use crate::train::compute::totals::Totals;
use crate::train::exchange::Context;
use crate::train::state::position::Evaluated;
use crate::train::trainer::Trainer;

impl Trainer {
    /// The validation set, in parts dealt round robin.
    pub(super) fn evaluate(&mut self) -> Result<(), TrainError> {
        pulse().enter(Activity::Evaluation);
        let began = self.clock.now();
        if self.is_writer() {
            let name = "evaluating".to_string();
            self.event(Kind::Phase { name, seconds: 0.0 });
        }
        self.replica.reached_point(Phase::InEvaluation);
        let attempted = self.evaluate_share();
        let ((totals, [at_ms, took_ms]), _flags) = self.vote(attempted)?;
        let computed = totals.computed().max(1) as f64;
        let (error, loss) = (totals.errors as f64 / computed, totals.loss() / computed);
        let (attempt, step) = (self.world.attempt, self.replica.position.step);
        self.replica.position.evaluated(Evaluated {
            attempt,
            step,
            error,
            loss_bits: loss.to_bits(),
            samples: totals.count,
            at_ms,
            took_ms,
        });
        let mut context = Context {
            comm: self.comm.as_mut(),
            world: &self.world,
            replica: &mut self.replica,
            clock: self.clock.as_ref(),
            begin_limit: self.plan.begin_limit,
            repaired_at: None,
        };
        if context.replica.position.ending.is_none() {
            self.exchange.resume(&mut context);
        }
        if self.is_writer() {
            let seconds = (self.clock.now() - began).as_secs_f64();
            self.event(Kind::Evaluation { error, loss, samples: totals.count, seconds });
        }
        Ok(())
    }

    /// With the sums of all: the run's time and what its share took, in milliseconds, of rank 0.
    fn evaluate_share(&mut self) -> Result<(Totals, [u64; 2]), TrainError> {
        let began = self.clock.now();
        let (rank, ranks) = (self.comm.rank() as u64, self.comm.size() as u64);
        let (samples, part) = (self.plan.validation_samples, self.plan.evaluation_batch);
        let ranges = (0..samples.div_ceil(part))
            .filter(|index| index % ranks == rank)
            .map(|index| (index * part, part.min(samples - index * part)))
            .collect();
        let mine = self.exchange.pool().evaluate(ranges)?;
        let mut words = mine.words().to_vec();
        let took_ms = (self.clock.now() - began).as_millis() as u64;
        let at_ms = (self.journal.seconds() * 1e3) as u64;
        words.extend(if rank == 0 { [at_ms, took_ms] } else { [0, 0] });
        let mut sums = vec![0; words.len()];
        self.comm.all_reduce_u64(&words, &mut sums, ReduceOp::Sum)?;
        Ok((Totals::from_words(&sums), [sums[Totals::WORDS], sums[Totals::WORDS + 1]]))
    }

    /// After a repair: its writer may have died between the vote and the line, and so may whoever
    /// was to make up for that. No later step can have been committed then, since the writer takes
    /// part in that behind the line.
    pub(super) fn make_up_for_evaluation(&mut self) {
        let (attempt, step) = (self.world.attempt, self.replica.position.step);
        let found = self.replica.position.evaluation;
        let Some(found) = found.filter(|found| (found.attempt, found.step) == (attempt, step))
        else {
            return;
        };
        let kind = Kind::Evaluation {
            error: found.error,
            loss: f64::from_bits(found.loss_bits),
            samples: found.samples,
            seconds: found.took_ms as f64 / 1e3,
        };
        if self.reports() && !self.journal.tells(attempt, step, &kind) {
            let stamp = self.journal.stamp_at(self.place(), found.at_ms as f64 / 1e3);
            self.journal.event_of(stamp, kind);
        }
    }
}
