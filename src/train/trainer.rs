//! One rank's run from its first step to its last: steps, votes, evaluations, repairs. Everything
//! that moves is behind a trait, so that the same code runs over MPI, alone and in simulation.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::cluster::comm::{CommError, Communicator};
use crate::cluster::guard::pulse;
use crate::cluster::recovery::Policy;
use crate::cluster::world::World;
use crate::config::{Every, Interval, Phase};
use crate::observe::clock::Clock;
use crate::observe::event::Kind;
use crate::observe::result::Status;

use crate::train::TrainError;
use crate::train::compute::totals::Totals;
use crate::train::exchange::Context;
use crate::train::exchange::Exchange;
use crate::train::exchange::Sums;
use crate::train::record::journal::Journal;
use crate::train::record::journal::Place;
use crate::train::record::keeper::Keeper;
use crate::train::record::owed::Owed;
use crate::train::record::owed::Patience;
use crate::train::record::pace::Pace;
use crate::train::repair::integrity::Integrity;
use crate::train::repair::mending::Begin;
use crate::train::repair::mending::Mended;
use crate::train::repair::mending::Recruits;
use crate::train::repair::resize::Resizer;
use crate::train::requests::COMMIT;
use crate::train::requests::EXACT;
use crate::train::requests::NO_EVALUATION;
use crate::train::requests::NO_RECRUITS;
use crate::train::requests::NO_RENEWAL;
use crate::train::requests::NO_RESIZE;
use crate::train::requests::NO_STOP;
use crate::train::requests::NOT_BROKEN;
use crate::train::requests::TIME_LEFT;
use crate::train::state::position::Ending;
use crate::train::state::position::Position;
use crate::train::state::replica::Replica;
use crate::train::state::stage::Stage;

/// Step events are written at most this often; shorter steps are summed up in one.
const STEP_EVENT_EVERY: Duration = Duration::from_millis(100);

/// What a run is to do: constants of this start.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Ends after so many steps.
    pub steps_max: Option<u64>,
    /// Ends after so many samples (asynchronous runs, where a step has no fixed size).
    pub samples_max: Option<u64>,
    /// Ends after so many seconds of the run.
    pub max_seconds: Option<f64>,
    /// Samples of an epoch.
    pub samples_per_epoch: u64,
    /// When to evaluate.
    pub evaluation: Every,
    /// Validation samples; 0 = no validation set.
    pub validation_samples: u64,
    /// Validation samples per part.
    pub evaluation_batch: u64,
    /// Longest wait for this rank's workers to begin.
    pub begin_limit: Duration,
    /// `recovery.replace_slow`.
    pub replaces_slow: bool,
    /// The ladder.
    pub policy: Policy,
    /// Whether a run whose spares are used up is started again at a step boundary.
    pub renews: bool,
    /// Whether sums are the same for any number of ranks (`train.reproducible`).
    pub reproducible: bool,
    /// When ranks that were lost come back; `None` where the number of ranks cannot grow.
    pub regrow: Option<Every>,
    /// How long the word of a lost rank's guardian is waited for before its repair is written
    /// down; zero where nobody has a guardian.
    pub witness_wait: Duration,
    /// How often replicas are compared.
    pub integrity: Interval,
}

impl Plan {
    /// Whether validation errors are measured at all.
    pub fn evaluates(&self) -> bool {
        self.validation_samples > 0 && self.evaluation != Every::Never
    }
}

/// What step events sum up.
#[derive(Debug, Default)]
struct Recent {
    totals: Totals,
    seconds: f64,
    since: Option<Duration>,
}

/// See the module.
pub struct Trainer {
    /// The world's communicator.
    pub comm: Box<dyn Communicator>,
    /// Who is in it.
    pub world: World,
    /// This rank's state.
    pub replica: Replica,
    /// How gradients meet.
    pub exchange: Box<dyn Exchange>,
    /// What is written.
    pub journal: Journal,
    /// Checkpoints, while this rank is the writer.
    pub keeper: Keeper,
    /// Set by signals.
    pub stop: Arc<AtomicBool>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) plan: Plan,
    pub(super) integrity: Integrity,
    recent: Recent,
    pub(super) pace: Pace,
    pub(super) mended: Mended,
    /// Repairs of which the run's files do not know yet, oldest first.
    pub(super) owed: VecDeque<Owed>,
    pub(super) repairs_without_step: u32,
    /// Members that joined in the last repair.
    pub(super) newcomers: Vec<u32>,
    /// Spares that are known to be dead since the last repair.
    pub(super) dead_spares: BTreeSet<u32>,
    /// New spares wait to be taken in: known to the writer, then agreed by all.
    pub(super) recruits: Recruits,
    pub(super) resizer: Resizer,
    /// This rank has left a world that became smaller on purpose.
    pub(super) left: bool,
    /// Whether the last committed step was its epoch's last.
    epoch_ended: bool,
    coarse_grid_said: bool,
}

impl Trainer {
    /// Puts the parts together.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        comm: Box<dyn Communicator>,
        world: World,
        replica: Replica,
        exchange: Box<dyn Exchange>,
        journal: Journal,
        keeper: Keeper,
        stop: Arc<AtomicBool>,
        clock: Arc<dyn Clock>,
        plan: Plan,
    ) -> Self {
        let (recent, pace, mended) = (Recent::default(), Pace::default(), Mended::default());
        let repairs_without_step = 0;
        let regrow = plan.regrow.unwrap_or(Every::Never);
        let mut resizer = Resizer::new(Arc::clone(keeper.storage()), regrow, plan.policy.tries_max);
        resizer.shrunk(clock.now());
        let integrity = Integrity::new(plan.integrity);
        let mut trainer = Self {
            comm,
            world,
            replica,
            exchange,
            journal,
            keeper,
            stop,
            clock,
            plan,
            integrity,
            recent,
            pace,
            mended,
            owed: VecDeque::new(),
            repairs_without_step,
            newcomers: Vec::new(),
            dead_spares: BTreeSet::new(),
            recruits: Recruits::None,
            resizer,
            left: false,
            epoch_ended: false,
            coarse_grid_said: false,
        };
        trainer.watch_neighbours();
        trainer
    }

    /// Who shares this machine with this rank, from now on.
    pub(super) fn watch_neighbours(&mut self) {
        self.comm.watch(&self.world.pids_on(&self.replica.identity.1));
    }

    /// Whether the workers of this machine's ranks alone keep its cores busy.
    fn cores_are_short(&mut self) -> bool {
        let pids = self.world.pids_on(&self.replica.identity.1);
        let here = pids.iter().filter(|pid| **pid != 0).count();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        here * self.exchange.pool().workers() >= cores
    }

    /// A replacement has just joined: its first commit ends the repair it came from.
    pub fn joined(&mut self) {
        self.mended = Mended::since(self.clock.now(), Begin::Joined);
    }

    /// All ranks of an attempt have just started together.
    pub fn started(&mut self) {
        self.mended = Mended::since(self.clock.now(), Begin::Started);
        self.integrity.keep(&mut self.replica);
    }

    /// Trains to the end. Errors that recovery answers are answered here.
    pub fn run(&mut self) -> Result<Status, TrainError> {
        loop {
            match self.advance() {
                Ok(None) => {}
                Ok(Some(status)) => return Ok(status),
                Err(TrainError::Comm(error)) if error.starts_recovery() => self.repair(&error)?,
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether this rank writes what the run publishes.
    pub fn is_writer(&self) -> bool {
        self.comm.rank() == 0
    }

    /// Where the run stands, for a line of the journal.
    pub fn place(&self) -> Place {
        Place {
            attempt: self.world.attempt,
            generation: self.world.generation,
            step: self.replica.position.step,
            rank: self.comm.rank() as u32,
        }
    }

    /// Writes an event from here.
    pub fn event(&mut self, kind: Kind) {
        let place = self.place();
        self.journal.event(place, kind);
    }

    /// One comparison, one evaluation, one step, or the end; the same choice on every rank.
    fn advance(&mut self) -> Result<Option<Status>, TrainError> {
        let ranks = self.comm.size() as u32;
        let standing = &mut self.replica.standing;
        (standing.rank, standing.ranks) = (self.comm.rank() as u32, ranks);
        standing.step = self.replica.position.step;
        if self.recruits == Recruits::Agreed && self.replica.position.ending.is_none() {
            self.replica.stage = Stage::Refill;
            self.take_in_recruits()?;
            return Ok(None);
        }
        let position = &self.replica.position;
        if self.integrity.is_due(&self.replica) {
            self.replica.stage = Stage::Comparison;
            self.verify()?;
            return Ok(None);
        }
        // A run that pauses owes its evaluation to the one that goes on.
        if position.evaluation_due && !position.ending.is_some_and(Ending::is_a_pause) {
            self.replica.stage = Stage::Evaluation;
            self.evaluate()?;
        } else if let Some(ending) = position.ending {
            self.replica.stage = Stage::Finish;
            return self.finish(ending).map(Some);
        } else if position.resize_due {
            self.replica.stage = Stage::Resize;
            return self.resize();
        } else {
            self.replica.stage = Stage::Step;
            self.step()?;
        }
        Ok(None)
    }

    fn step(&mut self) -> Result<(), TrainError> {
        pulse().step(self.replica.position.step + 1);
        if self.mended.unproved() {
            self.replica.reached_point(Phase::BeforeFirstCommit);
        }
        let began = self.clock.now();
        let mut context = Context {
            comm: self.comm.as_mut(),
            world: &self.world,
            replica: &mut self.replica,
            clock: self.clock.as_ref(),
            begin_limit: self.plan.begin_limit,
            repaired_at: self.mended.at,
        };
        let attempted = self.exchange.attempt(&mut context);
        if attempted.is_err() && self.cores_are_short() {
            self.exchange.pool().shared.pause.hold();
        }
        if attempted.is_ok() {
            self.replica.stage = Stage::Vote;
        }
        match self.vote(attempted) {
            Ok((Sums { again: Some(grid), .. }, _)) => {
                // Agreed like a commit; requests are repeated with the next vote.
                self.exchange.compute_again(grid);
                self.report_coarse_grid();
                Ok(())
            }
            Ok((sums, flags)) => {
                self.commit(&sums, flags);
                self.report_step(&sums, began);
                self.watch_pace(&sums);
                Ok(())
            }
            Err(error) => {
                self.exchange.give_back();
                Err(error)
            }
        }
    }

    /// Revoke first, then vote 0: a step commits everywhere or nowhere.
    pub(super) fn vote<T>(
        &mut self,
        attempted: Result<T, TrainError>,
    ) -> Result<(T, u32), TrainError> {
        let attempted = attempted.and_then(|value| self.compare().map(|()| value));
        let mut flags = self.requests();
        match &attempted {
            Ok(_) => {}
            Err(error) if error.leaves_alone() => {
                // Whoever waits for this rank must not wait for its worker threads to end.
                self.comm.revoke();
                return Err(error.clone());
            }
            Err(error) => {
                flags &= !COMMIT;
                if !matches!(error, TrainError::Comm(_)) {
                    flags &= !NOT_BROKEN;
                    self.keeper.leave_reason(error);
                }
                self.comm.revoke();
            }
        }
        let agreement = self.comm.agree(flags);
        if agreement.committed() && attempted.is_ok() {
            self.replica.reached_point(Phase::AfterVote);
            return attempted.map(|value| (value, agreement.flags));
        }
        if let Err(error) = attempted
            && !matches!(error, TrainError::Comm(_))
        {
            return Err(error);
        }
        if agreement.flags & NOT_BROKEN == 0 {
            return Err(self.keeper.read_reason());
        }
        self.comm.revoke();
        Err(TrainError::Comm(agreement.outcome.err().unwrap_or(CommError::ProcFailed)))
    }

    fn commit(&mut self, sums: &Sums, flags: u32) {
        self.keeper.wait_for_copy();
        let line = self.exchange.apply(&mut self.replica, &self.world, sums);
        let position = &mut self.replica.position;
        let epoch_before = position.cursor / self.plan.samples_per_epoch;
        position.commit(line);
        position.exact &= flags & EXACT != 0;
        let step = position.step;
        self.epoch_ended = position.cursor / self.plan.samples_per_epoch > epoch_before;
        position.evaluation_due |= self.plan.evaluates()
            && match self.plan.evaluation {
                Every::Epoch | Every::Auto => self.epoch_ended,
                Every::Steps(steps) => step.is_multiple_of(steps),
                Every::Time(_) => flags & NO_EVALUATION == 0,
                Every::Never => false,
            };
        position.resize_due |=
            flags & NO_RESIZE == 0 || self.resizer.due_after(&self.world, step, self.epoch_ended);
        position.settle(&self.plan);
        if position.ending.is_none() && flags & TIME_LEFT == 0 {
            position.end(Ending::OutOfTime, &self.plan);
        } else if position.ending.is_none() && flags & NO_STOP == 0 {
            position.end(Ending::Interrupted, &self.plan);
        } else if position.ending.is_none() && flags & NO_RENEWAL == 0 {
            position.end(Ending::Renewed, &self.plan);
        }
        if flags & NO_RECRUITS == 0 {
            self.recruits = Recruits::Agreed;
        }
        self.replica.commit(self.world.generation);
        self.replica.flip_if_due();
        self.replica.standing.newcomer = false;
        self.repairs_without_step = 0;
        if self.is_writer() {
            self.look_at_spares();
            let place = self.place();
            self.journal.committed(place, &self.replica.position.ledger_tail);
            self.replica.reached_point(Phase::InSnapshot);
            let seconds = self.journal.seconds();
            let place = self.place();
            self.keeper.after_commit(&self.replica, &mut self.journal, place, seconds);
        }
    }

    /// Said once: a run that diverges would say it with every step.
    fn report_coarse_grid(&mut self) {
        if !std::mem::replace(&mut self.coarse_grid_said, true) && self.is_writer() {
            let step = self.replica.position.step + 1;
            let message = format!(
                "gradients of step {step} are too large for the finest grid of reproducible sums: \
                 the step is computed again on a coarser one, as every later one that is"
            );
            self.event(Kind::Warning { message });
        }
    }

    fn report_step(&mut self, sums: &Sums, began: Duration) {
        let now = self.clock.now();
        self.report_begin(sums.begun_seconds);
        self.settle(Patience::None);
        self.recent.totals.add(&sums.totals);
        self.recent.seconds += (now.saturating_sub(began)).as_secs_f64();
        let since = *self.recent.since.get_or_insert(began);
        let position = &self.replica.position;
        let quiet = position.ending.is_none() && !position.evaluation_due && !self.epoch_ended;
        if quiet && now.saturating_sub(since) < STEP_EVENT_EVERY {
            return;
        }
        let recent = std::mem::take(&mut self.recent);
        if !self.is_writer() {
            return;
        }
        let computed = recent.totals.computed().max(1) as f64;
        let epoch = position.ledger_tail.last().map_or(0, |line| line.epoch);
        let epoch_ends = self.epoch_ended;
        if recent.totals.non_finite > 0 {
            let n = recent.totals.non_finite;
            let message = format!("the loss of {n} micro-batches was not a finite number");
            self.event(Kind::Warning { message });
        }
        let learning_rate = self.exchange.learning_rate(&self.replica);
        self.event(Kind::Step {
            epoch,
            loss: recent.totals.loss() / computed,
            error: recent.totals.errors as f64 / computed,
            samples: recent.totals.count,
            learning_rate,
            seconds: recent.seconds,
        });
        if epoch_ends {
            self.event(Kind::Epoch { epoch });
        }
    }

    /// The position, for the end of the run.
    pub fn position(&self) -> &Position {
        &self.replica.position
    }
}
