//! A spare's life: it waits beside the world at the price of a look every 10 ms, takes part in
//! repairs, and becomes a rank like any replacement when it gets a dead one's seat. A cold spare
//! has nothing but MPI until then; a warm one (`recovery.warm_spares`) has its model, data index
//! and worker threads ready.

use std::io;
use std::sync::Arc;
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use crate::cluster::comm::{Call, CommError, Communicator, Membership};
use crate::cluster::faults::Standing;
use crate::cluster::recovery::set::SetIdentity;
use crate::cluster::recovery::{Called, Environment, Note, StateHolder, answer_call};
use crate::cluster::resident::Ahead;
use crate::cluster::world::World;
use crate::config::Point;
use crate::data::Occasion;
use crate::observe::notice::act_on;
use crate::observe::result::Status;
use crate::observe::threads::explained;
use crate::run_folder::variables;

use crate::train::TrainError;
use crate::train::compute::outage::Outage;
use crate::train::plan::{TrainArguments, policy};
use crate::train::start::prepare::{Prepared, Purpose};
use crate::train::start::surroundings::Surroundings;
use crate::train::start::{assemble, patience, place, prepare};
use crate::train::state::replica::Replica;
use crate::train::state::slot_files::SlotFiles;

/// Starts of new spares that may fail before this spare tries no more.
const REFUSALS_MAX: u32 = 3;

/// What needs no communicator, made in a thread of its own, once; or made already.
pub(in crate::train) enum Preparation<'scope, 'env> {
    Behind(Behind<'scope, 'env>),
    Made(Option<Box<Result<Prepared, TrainError>>>),
}

/// See `Preparation`.
pub(in crate::train) struct Behind<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    arguments: &'env TrainArguments,
    around: &'env Surroundings,
    /// While the data set is away.
    outage: Arc<Outage>,
    thread: Option<io::Result<ScopedJoinHandle<'scope, Result<Prepared, TrainError>>>>,
}

impl<'scope, 'env> Preparation<'scope, 'env> {
    pub(in crate::train) fn new(
        scope: &'scope Scope<'scope, 'env>,
        arguments: &'env TrainArguments,
        around: &'env Surroundings,
    ) -> Self {
        let outage = Arc::new(Outage::new(arguments.config.data.patience.0));
        Self::Behind(Behind { scope, arguments, around, outage, thread: None })
    }

    pub(in crate::train) fn made(prepared: Result<Prepared, TrainError>) -> Self {
        Self::Made(Some(Box::new(prepared)))
    }

    /// Begins it, unless it was begun.
    pub(in crate::train) fn begin(&mut self) {
        if let Self::Behind(behind) = self {
            behind.begin();
        }
    }

    /// Begins it if need be; from here on others wait for it: a data set that is away is an error.
    fn hurry(&mut self) {
        if let Self::Behind(behind) = self {
            behind.outage.close();
            behind.begin();
        }
    }

    /// Waits for its end.
    pub(in crate::train) fn finish(&mut self) -> Result<Prepared, TrainError> {
        let prepared = match self {
            Self::Behind(behind) => behind.finish(),
            Self::Made(prepared) => prepared.take().map(|prepared| *prepared),
        };
        let panicked =
            || TrainError::Internal("preparing the run panicked; see the message above".into());
        prepared.unwrap_or_else(|| Err(panicked()))
    }
}

impl Behind<'_, '_> {
    fn begin(&mut self) {
        let (arguments, around, outage) = (self.arguments, self.around, &self.outage);
        self.thread.get_or_insert_with(|| {
            let outage = Arc::clone(outage);
            let thread = std::thread::Builder::new().name("prepare".into());
            let prepare = move || {
                let (run_id, owners) = (&around.run_id, around.owners);
                let run_dir = &*arguments.run_dir;
                let (config, injector) = (&arguments.config, &around.injector);
                let (print, part) = (around.fingerprint, assemble::part(arguments));
                let occasion = occasion(arguments, around, part);
                let sets = patience::await_data(arguments, around, &outage, occasion)?;
                let prepared = prepare::prepare(
                    (config, run_dir),
                    (sets, around.take_porters()),
                    run_id,
                    print,
                    owners,
                    injector,
                    part,
                );
                prepared.map(|prepared| assemble::place_slots(arguments, around, prepared))
            };
            thread.spawn_scoped(self.scope, prepare)
        });
    }

    /// `None` when it panicked, or was taken before.
    fn finish(&mut self) -> Option<Result<Prepared, TrainError>> {
        self.begin();
        match self.thread.take()? {
            Ok(thread) => thread.join().ok(),
            Err(error) => {
                let error = explained(error);
                Some(Err(TrainError::Internal(format!("nothing can be prepared: {error}"))))
            }
        }
    }
}

/// What this process opens the data sets for. Before the first committed step a start begins the
/// run, whatever an earlier one has kept.
fn occasion(arguments: &TrainArguments, around: &Surroundings, part: Purpose) -> Occasion {
    match arguments.join.is_some() || part == Purpose::Replacement {
        true => Occasion::Joins,
        false if patience::position_by_ledger(around).0.step > 0 => Occasion::GoesOn,
        false => Occasion::Begins,
    }
}

/// Waits until the run ends, or this process is needed; then trains.
pub(in crate::train) fn wait<'env>(
    arguments: &'env TrainArguments,
    around: &'env Surroundings,
    mut comm: Box<dyn Membership>,
    preparation: Preparation<'_, 'env>,
) -> Result<Status, TrainError> {
    let attempt = arguments.attempt.unwrap_or(1);
    let policy = policy(&arguments.config);
    let mut spare = WaitingSpare::new(arguments, around, preparation, attempt);
    let mut neighbours = None;
    if arguments.join.is_none() {
        neighbours = Some(spare.meet_the_world(comm.as_mut())?);
    }
    loop {
        // A recruit comes into a gathering; it was called before it came.
        let call = match &neighbours {
            Some(pids) => {
                spare.refill(comm.as_mut());
                spare.look_ahead();
                comm.await_call(pids, &mut || spare.idle())
            }
            None => Call::Gather,
        };
        match call {
            Call::Gather => {}
            Call::Dismissed => {
                comm.finalize();
                return Ok(Status::Completed);
            }
            Call::Abandoned => {
                return Err(TrainError::JobLost("every rank is gone: no spare can go on".into()));
            }
        }
        spare.standing = spare.waiting();
        let called = answer_call(comm.as_mut(), &policy, &mut spare);
        if let Some(why) = spare.unready {
            // The ranks repair their world without it.
            return Err(TrainError::Unready(why));
        }
        match called? {
            Called::Waits(pids, refills) => {
                (neighbours, spare.refills) = (Some(pids), refills);
            }
            Called::Seated(world, _) => return train(spare, comm, world),
        }
    }
}

/// From here on it is a rank like any other.
fn train(
    spare: WaitingSpare<'_, '_>,
    comm: Box<dyn Membership>,
    world: World,
) -> Result<Status, TrainError> {
    let WaitingSpare { arguments, around, ready, .. } = spare;
    let Some((replica, prepared)) = ready else {
        return Err(TrainError::Internal("a spare became a rank without a state".into()));
    };
    let mut trainer = assemble::trainer(arguments, around, comm, world, replica, prepared);
    trainer.joined();
    assemble::conclude(arguments, around, trainer)
}

/// What recovery needs of a process that waits.
struct WaitingSpare<'scope, 'env> {
    arguments: &'env TrainArguments,
    around: &'env Surroundings,
    preparation: Preparation<'scope, 'env>,
    attempt: u32,
    standing: Standing,
    /// How many spares wait, if it is this one's part to start the missing.
    refills: Option<usize>,
    refusals: u32,
    /// The slots of those whom it may replace.
    ahead: Ahead,
    /// Once it receives a state.
    ready: Option<(Replica, Prepared)>,
    /// Why it cannot become a rank.
    unready: Option<String>,
}

impl<'scope, 'env> WaitingSpare<'scope, 'env> {
    fn new(
        arguments: &'env TrainArguments,
        around: &'env Surroundings,
        preparation: Preparation<'scope, 'env>,
        attempt: u32,
    ) -> Self {
        let standing = Standing::default();
        let (refills, refusals, ready, ahead) = (None, 0, None, Ahead::default());
        let mut spare = Self {
            arguments,
            around,
            preparation,
            attempt,
            standing,
            refills,
            refusals,
            ahead,
            ready,
            unready: None,
        };
        spare.standing = spare.waiting();
        spare
    }

    fn waiting(&self) -> Standing {
        let ranks = self.arguments.config.run.ranks;
        Standing { rank: ranks, ranks, spare: true, ..Standing::default() }
    }

    /// The start of an attempt: pids of the ranks on this machine, by rank.
    fn meet_the_world(&mut self, comm: &mut dyn Membership) -> Result<Vec<u32>, TrainError> {
        let identity = self.identity();
        let owners = self.around.owners;
        let world = prepare::gather_world(comm, self.attempt, owners, 0, &identity);
        let world = world.map_err(|error| {
            TrainError::JobLost(format!("a rank was lost while the world was forming: {error}"))
        })?;
        self.attempt = world.attempt;
        Ok(world.pids_on(&identity.1))
    }

    /// The first spare starts those that are missing, beside the steps of the ranks.
    fn refill(&mut self, comm: &mut dyn Membership) {
        let recovery = &self.arguments.config.recovery;
        let wanted = recovery.spares.unwrap_or(0) as usize;
        let missing = match self.refills {
            Some(waiting) if recovery.refill_spares => wanted.saturating_sub(waiting),
            _ => 0,
        };
        if missing == 0 || comm.recruits() > 0 || self.refusals >= REFUSALS_MAX {
            return;
        }
        let arguments = self.arguments();
        if let Err(error) = comm.recruit(missing, &arguments) {
            self.refusals += 1;
            let refusals = self.refusals;
            act_on(&format!("no new spares (refusal {refusals} of {REFUSALS_MAX}): {error}"));
        }
    }

    /// What is mapped goes first: a file that is removed keeps its memory until then.
    fn look_ahead(&mut self) {
        self.ahead = Ahead::default();
        let (recovery, run_dir) = (&self.arguments.config.recovery, &self.arguments.run_dir);
        self.ahead = SlotFiles::ahead(recovery, run_dir);
    }

    /// At every look while it waits: planned faults with a time strike here.
    fn idle(&self) {
        self.around.injector.at(Point::BeforeLoad, &self.standing);
    }

    /// Everything a rank has, its state still empty.
    fn become_ready(&mut self) -> Result<&mut Replica, CommError> {
        if self.ready.is_none() {
            let prepared = self.preparation.finish().map_err(|error| {
                let text = format!("this spare cannot be made ready: {error}");
                self.unready = Some(text.clone());
                CommError::Fatal { call: "promotion", class: 0, text }
            })?;
            prepared.foresee(std::mem::take(&mut self.ahead));
            let none = World::initial(self.attempt, Vec::new(), self.around.owners);
            let mut replica =
                assemble::replica(self.arguments, self.around, &prepared, &none, None);
            replica.standing = self.standing;
            self.ready = Some((replica, prepared));
        }
        let (replica, _) = self.ready.as_mut().expect("made above");
        Ok(replica)
    }
}

impl StateHolder for WaitingSpare<'_, '_> {
    fn committed_step(&self) -> Option<u64> {
        None
    }

    fn stays(&self, _rank: usize) -> bool {
        true
    }

    fn set(&mut self) -> Result<SetIdentity, CommError> {
        Ok(self.become_ready()?.set)
    }

    fn counted(&mut self, step: u64) {
        self.standing.step = step;
    }

    fn restoring(&mut self, rank: usize, source: usize, step: u64) {
        self.standing.rank = rank as u32;
        self.standing.step = step;
        if let Some((replica, _)) = &mut self.ready {
            replica.restoring(rank, source, step);
        }
    }

    fn transfer(
        &mut self,
        comm: &mut dyn Communicator,
        source: usize,
        receivers: &[usize],
        step: u64,
    ) -> Result<(), CommError> {
        self.become_ready()?.transfer(comm, source, receivers, step)
    }

    fn adopt(&mut self, world: &World) {
        if let Some((replica, _)) = &mut self.ready {
            replica.standing.spare = false;
            replica.adopt(world);
        }
        self.standing.spare = false;
    }
}

impl Environment for WaitingSpare<'_, '_> {
    fn now(&self) -> Duration {
        self.around.clock.now()
    }

    fn identity(&self) -> (u32, String) {
        self.around.identity.clone()
    }

    fn home(&self) -> Option<String> {
        variables::home()
    }

    fn arguments(&self) -> Vec<String> {
        assemble::replacement_arguments(self.arguments, self.around, self.attempt)
    }

    fn reached(&mut self, point: Point) {
        self.around.injector.at(point, &self.standing);
    }

    fn promoted(&mut self, rank: usize) {
        place::take(self.arguments);
        self.standing.rank = rank as u32;
        self.standing.newcomer = true;
        if self.ready.is_none() {
            self.preparation.hurry();
        }
    }

    fn note(&mut self, note: Note) {
        if let Some((replica, _)) = &mut self.ready {
            replica.note(note);
        }
    }

    fn gave_up(&mut self, _living: Vec<(u32, String)>) {}
}
