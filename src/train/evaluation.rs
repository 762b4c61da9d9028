//! The validation set, shared by all ranks; and the word of it, which must not die with the rank
//! that was to write it.

use crate::cluster::comm::ReduceOp;
use crate::cluster::guard::{Activity, pulse};
use crate::config::Phase;
use crate::observe::event::Kind;

use super::TrainError;
use super::exchange::Context;
use super::journal::Stamp;
use super::trainer::Trainer;
use super::worker::Totals;

/// What an evaluation found, on every rank that took part.
#[derive(Debug, Clone)]
pub(super) struct Evaluated {
    step: u64,
    /// Members that know of it.
    holders: Vec<u32>,
    stamp: Stamp,
    kind: Kind,
}

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
        let ((totals, at_ms), _flags) = self.vote(attempted)?;
        let computed = totals.computed().max(1) as f64;
        let error = totals.errors as f64 / computed;
        self.replica.position.evaluated(error, at_ms);
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
        let (loss, samples) = (totals.loss() / computed, totals.count);
        let seconds = (self.clock.now() - began).as_secs_f64();
        self.report_evaluation(Kind::Evaluation { error, loss, samples, seconds });
        Ok(())
    }

    fn evaluate_share(&mut self) -> Result<(Totals, u64), TrainError> {
        let (rank, ranks) = (self.comm.rank() as u64, self.comm.size() as u64);
        let (samples, part) = (self.plan.validation_samples, self.plan.evaluation_batch);
        let ranges = (0..samples.div_ceil(part))
            .filter(|index| index % ranks == rank)
            .map(|index| (index * part, part.min(samples - index * part)))
            .collect();
        let mine = self.exchange.pool().evaluate(ranges)?;
        let mut words = mine.words().to_vec();
        words.push(if rank == 0 { (self.journal.seconds() * 1e3) as u64 } else { 0 });
        let mut sums = vec![0; words.len()];
        self.comm.all_reduce_u64(&words, &mut sums, ReduceOp::Sum)?;
        Ok((Totals::from_words(&sums), sums[Totals::WORDS]))
    }

    fn report_evaluation(&mut self, kind: Kind) {
        let step = self.replica.position.step;
        let ranks = (0..self.world.ranks()).filter_map(|rank| self.world.member_at(rank));
        let holders = ranks.map(|member| member.member).collect();
        let stamp = self.journal.stamp(self.place());
        if self.is_writer() {
            self.journal.event_of(stamp, kind.clone());
        }
        self.evaluated = Some(Evaluated { step, holders, stamp, kind });
    }

    /// After a repair: its writer may have died between the vote and the line. No later step can
    /// have been committed then, since the writer takes part in that behind the line.
    pub(super) fn make_up_for_evaluation(&mut self) {
        let step = self.replica.position.step;
        let Some(found) = self.evaluated.as_ref().filter(|found| found.step == step) else {
            return;
        };
        if self.is_first_of(&found.holders)
            && !self.journal.tells(self.world.attempt, step, &found.kind)
        {
            self.journal.event_of(found.stamp, found.kind.clone());
        }
    }
}
