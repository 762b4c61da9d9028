//! The loop: task, attempt, vote, commit; and the repair that follows a failure. The same task on
//! every rank. Everything that moves is behind a trait, so that the same code runs over MPI, alone
//! and in simulation.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::cluster::comm::CommError;
use crate::config::{Every, Point};
use crate::observe::result::Status;

use crate::train::agenda::{self, Boundary, Outside, Task};
use crate::train::exchange::{Context, Exchange, Sums};
use crate::train::record::repairs::Begin;
use crate::train::record::steps::Step;
use crate::train::record::{Record, inexact, waiting};
use crate::train::repair::comparison::{self, Proved};
use crate::train::repair::integrity::Integrity;
use crate::train::repair::resize::{self, Resized};
use crate::train::repair::rollback;
use crate::train::repair::size::{InEpoch, Resizer};
use crate::train::repair::spares::Spares;
use crate::train::repair::world::{self, Lasting, Tries};
use crate::train::state::position::Ending;
use crate::train::state::rank::Rank;
use crate::train::vote::{self, Requests};
use crate::train::{TrainError, evaluation, soundness};

/// How a rank's part in a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All ranks agreed to end.
    Ended(Status),
    /// This rank left a world that became smaller on purpose.
    Left,
}

/// One rank's loop.
pub struct Trainer {
    /// Who this is, in which world, with which state.
    pub rank: Rank,
    /// How gradients meet.
    pub exchange: Box<dyn Exchange>,
    /// What is written.
    pub record: Record,
    /// Set by signals.
    stop: Arc<AtomicBool>,
    spares: Spares,
    lasting: Lasting,
    integrity: Integrity,
}

impl Trainer {
    /// Puts the parts together.
    pub fn new(
        rank: Rank,
        mut exchange: Box<dyn Exchange>,
        record: Record,
        stop: Arc<AtomicBool>,
    ) -> Self {
        let regrow = rank.plan.regrow.unwrap_or(Every::Never);
        let tries_max = rank.plan.policy.tries_max;
        let mut resizer = Resizer::new(Arc::clone(&rank.storage), regrow, tries_max);
        resizer.shrunk(rank.clock.now());
        let integrity = Integrity::new(rank.plan.integrity);
        let lasting = Lasting { resizer, tries: Tries::default() };
        let tell = waiting::teller(&rank, &record.journal);
        exchange.pool().shared.outage.watch(Arc::clone(&stop), tell);
        Self { rank, exchange, record, stop, spares: Spares::default(), lasting, integrity }
    }

    /// A replacement has just joined: its first commit ends the repair it came from.
    pub fn joined(&mut self) {
        self.record.repairs.begins(self.rank.clock.now(), Begin::Joined);
    }

    /// All ranks of an attempt have just started together.
    pub fn started(&mut self) {
        self.record.repairs.begins(self.rank.clock.now(), Begin::Started);
        self.integrity.begin(&mut self.rank.state);
    }

    /// Trains to the end. Errors that recovery answers are answered here.
    pub fn run(&mut self) -> Result<Outcome, TrainError> {
        loop {
            match self.advance() {
                Ok(None) => {}
                Ok(Some(outcome)) => return Ok(outcome),
                Err(TrainError::Comm(error)) if error.starts_recovery() => self.repair(&error)?,
                Err(error) => return Err(error),
            }
        }
    }

    /// One task, the same on every rank.
    fn advance(&mut self) -> Result<Option<Outcome>, TrainError> {
        self.rank.update_standing();
        match agenda::next(&self.rank.state.position, &self.rank.plan) {
            Task::Compare => self.compare()?,
            Task::Evaluate => self.evaluate()?,
            Task::Finish(ending) => return self.finish(ending).map(Some),
            Task::Resize => return self.resize(),
            Task::Step => self.step()?,
        }
        Ok(None)
    }

    /// One step: gradients, sums, vote, update.
    fn step(&mut self) -> Result<(), TrainError> {
        self.rank.process.at(Point::InStep);
        if self.record.repairs.unproved() {
            self.rank.process.at(Point::BeforeFirstCommit);
        }
        let began = self.rank.clock.now();
        let repaired_at = self.record.repairs.whole_since();
        let attempted = self.exchange.attempt(&mut Context::of(&mut self.rank, repaired_at));
        if attempted.is_err() {
            self.hold_workers();
        }
        let (position, plan) = (&self.rank.state.position, &self.rank.plan);
        let attempted = attempted.and_then(|sums| {
            soundness::check_step(position, &sums.totals, plan)?;
            if self.rank.is_writer() {
                self.record.keeper.look_at_place()?;
                self.record.settle_best(&self.rank);
            }
            Ok(sums)
        });
        match self.vote(attempted) {
            Ok((Sums { again: Some(anew), .. }, _)) => {
                // Agreed like a commit; requests are repeated with the next vote.
                self.record.steps.report_anew(&self.rank, &mut self.record.journal, anew.why);
                self.exchange.compute_again(anew);
                Ok(())
            }
            Ok((sums, asked)) => {
                self.commit(&sums, began, asked);
                Ok(())
            }
            Err(error) => {
                self.exchange.give_back();
                Err(error)
            }
        }
    }

    /// A repair needs the cores: workers stop at their next gradient where there are too few.
    fn hold_workers(&mut self) {
        let pool = self.exchange.pool();
        if self.rank.cores_are_short(pool.workers()) {
            pool.shared.pause.hold();
        }
    }

    /// All apply what they attempted, or nobody does. A newcomer's state is proven first, so that
    /// nothing it computed counts otherwise.
    fn vote<T>(&mut self, attempted: Result<T, TrainError>) -> Result<(T, Requests), TrainError> {
        self.vote_and_ask(Requests::default(), attempted)
    }

    /// The same, asking `also` for this.
    fn vote_and_ask<T>(
        &mut self,
        also: Requests,
        attempted: Result<T, TrainError>,
    ) -> Result<(T, Requests), TrainError> {
        let mut proved = Proved::Before;
        let proven = attempted.and_then(|value| {
            proved = comparison::prove(&mut self.rank)?;
            Ok(value)
        });
        let (seconds, stops) = (self.record.journal.seconds(), self.stop.load(Ordering::Relaxed));
        let now = Outside { seconds, stops };
        let mut requests = agenda::requests(&self.rank, now, &self.spares, &self.lasting.resizer);
        (requests.unsaved, requests.rewritten) = (also.unsaved, also.rewritten);
        let voted = vote::vote(&mut self.rank, requests, proven)?;
        // All have heard it, or none.
        match proved {
            Proved::Before => {}
            Proved::Alike(kinds) => self.compute_with(&kinds),
            Proved::Differ(newcomers) => {
                let Self { rank, record, integrity, exchange, .. } = self;
                exchange.forget();
                return Err(rollback::answer_newcomers(rank, record, integrity, &newcomers));
            }
        }
        Ok(voted)
    }

    /// A repaired world computes with these, in rank order.
    fn compute_with(&mut self, kinds: &[String]) {
        let Rank { state, world, .. } = &mut self.rank;
        let otherwise = inexact::compute_with(&mut state.position, kinds, world);
        if let Some(otherwise) = otherwise.filter(|_| self.rank.is_writer()) {
            self.record.event(&self.rank, otherwise);
        }
    }

    /// One commit word makes what was written into the other slot the state.
    fn commit(&mut self, sums: &Sums, began: Duration, asked: Requests) {
        self.record.keeper.wait_for_copy();
        let rank = &mut self.rank;
        // Of this step: the update moves the position on.
        let learning_rate = self.exchange.learning_rate(&rank.state.position);
        let line = self.exchange.apply(&mut Context::of(rank, None), sums);
        let (position, samples) = (&mut rank.state.position, rank.plan.samples_per_epoch);
        let epoch_before = position.cursor / samples;
        position.commit(line);
        position.contents.add(sums.totals.contents);
        let mut otherwise = inexact::altered(position, sums.totals.altered)
            .or_else(|| inexact::wavering(position, sums.wavering));
        let ends_epoch = position.cursor / samples > epoch_before;
        let epoch_skipped = position.skipped_in_epoch;
        if ends_epoch {
            position.skipped_in_epoch = 0;
            otherwise = inexact::at_epochs_end(position).or(otherwise);
        }
        let stands = if ends_epoch { InEpoch::Last } else { InEpoch::Within };
        let regrows = self.lasting.resizer.due_after(&rank.world, position.step, stands);
        agenda::after_commit(position, &rank.plan, asked, Boundary { ends_epoch, regrows });
        rank.process.at(Point::InPublish);
        rank.state.commit(rank.world.generation);
        if rank.process.takes_flip() {
            rank.state.flip_a_bit(rank.world.generation);
        }
        rank.process.standing.newcomer = false;
        self.lasting.tries.committed();
        if rank.is_writer() {
            self.spares.look(rank, &mut self.record.journal);
            self.record.committed(rank);
        }
        if let Some(otherwise) = otherwise.filter(|_| rank.is_writer()) {
            self.record.event(rank, otherwise);
        }
        let step = Step { sums, began, ends_epoch, learning_rate, epoch_skipped };
        let shared = &self.exchange.pool().shared;
        self.record.report_step(rank, &step, &shared.loader);
        self.record.report_memory(rank, &shared.expected);
    }

    /// Makes the world whole again; the failed step is done once more by whoever is in it then.
    fn repair(&mut self, error: &CommError) -> Result<(), TrainError> {
        self.lasting.tries.count()?;
        let Self { rank, record, spares, lasting, .. } = self;
        world::repair(rank, record, spares, lasting, error)
    }

    /// Compares the states of all ranks; the vote makes the answer the same everywhere.
    fn compare(&mut self) -> Result<(), TrainError> {
        self.rank.process.at(Point::InComparison);
        let gathered = self.integrity.gather(self.rank.comm.as_mut(), &self.rank.state);
        let (votes, _) = self.vote(gathered.map_err(TrainError::from))?;
        let Self { rank, record, integrity, exchange, .. } = self;
        // Copies of weights that differ are not computed with again.
        rollback::answer(rank, record, integrity, &votes).inspect_err(|_| exchange.forget())
    }

    /// The validation set; what it said is part of the position.
    fn evaluate(&mut self) -> Result<(), TrainError> {
        let began = self.rank.clock.now();
        let found = evaluation::evaluate(&mut self.rank, self.exchange.pool(), &mut self.record);
        let (found, _) = self.vote(found)?;
        let evaluated = found.evaluated(&self.rank);
        let Rank { state, plan, .. } = &mut self.rank;
        state.position.evaluated(evaluated, plan);
        let (listed, sum) = (plan.set.validation.hash, found.contents());
        let altered = found.altered();
        let otherwise = inexact::at_evaluation(&mut state.position, listed, sum, altered);
        if self.rank.state.position.ending.is_none() {
            self.exchange.resume(&mut Context::of(&mut self.rank, None));
        }
        if self.rank.is_writer() {
            let seconds = (self.rank.clock.now() - began).as_secs_f64();
            self.record.event(&self.rank, evaluated.event(seconds));
            if let Some(otherwise) = otherwise {
                self.record.event(&self.rank, otherwise);
            }
            self.record.bad_images(&self.rank, found.bad_images());
            self.record.evaluated(&self.rank);
        }
        Ok(())
    }

    /// Another number of ranks, once all have heard which.
    fn resize(&mut self) -> Result<Option<Outcome>, TrainError> {
        self.rank.process.at(Point::InResize);
        let heard = resize::hear_wish(&mut self.rank, &self.lasting.resizer);
        let (wish, _) = self.vote(heard)?;
        let resized = resize::resize(&mut self.rank, &mut self.record, &mut self.lasting, wish)?;
        Ok((resized == Resized::Leaves).then_some(Outcome::Left))
    }

    /// The run's bits are of a set that was written meanwhile: whoever goes on from memory knows.
    fn doubt_set(&mut self) {
        self.record.keeper.wait_for_copy();
        let Rank { state, world, .. } = &mut self.rank;
        let Some(otherwise) = inexact::rewritten(&mut state.position) else { return };
        let doubted = state.copy(None);
        state.put(&doubted, world.generation);
        if self.rank.is_writer() {
            self.record.doubted(&self.rank, otherwise);
        }
    }

    /// The last agreements: the result is written before the last one, so that a writer's death
    /// here is repaired like any other.
    fn finish(&mut self, ending: Ending) -> Result<Outcome, TrainError> {
        self.rank.process.at(Point::InFinalize);
        let status = ending.status();
        self.record.report_rest(&mut self.rank);
        // Another rank than the writer may be the one that writes those down.
        let rewritten = self.exchange.pool().shared.loader.supply().is_rewritten();
        let ((), asked) =
            self.vote_and_ask(Requests { rewritten, ..Requests::default() }, Ok(()))?;
        if asked.rewritten {
            self.doubt_set();
        }
        let mut kept = Ok(status);
        if self.rank.is_writer() {
            kept = self.record.finish(&self.rank, status);
        }
        let unsaved = kept.as_ref().is_ok_and(|kept| *kept != status);
        let (_, asked) = self.vote_and_ask(Requests { unsaved, ..Requests::default() }, kept)?;
        // As the writer has written it down.
        let status = if asked.unsaved { Status::Interrupted } else { status };
        // A renewed run goes on from what its ranks leave in memory.
        let memory_is_needed = ending == Ending::Renewed || !self.record.has_saved(&self.rank);
        if status == Status::Completed || !memory_is_needed {
            self.rank.state.retire();
        }
        if status == Status::Completed {
            self.exchange.pool().shared.loader.supply().retire();
        }
        Ok(Outcome::Ended(status))
    }
}
