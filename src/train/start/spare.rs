//! A spare's life: it waits beside the world at the price of a look every 10 ms, takes part in
//! repairs, and becomes a rank like any replacement when it gets a dead one's seat. A cold spare
//! has nothing but MPI until then; a warm one (`recovery.warm_spares`) has its model, data index
//! and worker threads ready.

use std::time::Duration;

use crate::cluster::comm::{Call, CommError, Communicator, Membership};
use crate::cluster::faults::Standing;
use crate::cluster::recovery::set::SetIdentity;
use crate::cluster::recovery::{Called, Hooks, Participant, Remark, answer_call};
use crate::cluster::resident::Ahead;
use crate::cluster::world::World;
use crate::config::Point;

use crate::train::TrainError;
use crate::train::plan::policy;
use crate::train::repair::take_over::Repairing;
use crate::train::start::materials::{Preparation, Prepared};
use crate::train::start::surroundings::Surroundings;
use crate::train::start::world::gather_world;
use crate::train::start::{process, rank};
use crate::train::state::State;
use crate::train::state::process::Process;
use crate::train::state::slot_files::SlotFiles;
use crate::train::trainer::Trainer;

/// Waits until the run ends (`None`), or this process becomes a rank.
///
/// # Errors
/// It was needed and is not ready, or every rank is gone.
pub(super) fn wait(
    around: &Surroundings,
    mut comm: Box<dyn Membership>,
    preparation: &mut Preparation<'_>,
) -> Result<Option<Trainer>, TrainError> {
    let policy = policy(&around.arguments.config);
    let mut spare = WaitingSpare::new(around, preparation);
    let mut neighbours = spare.meet_the_world(comm.as_mut())?;
    loop {
        spare.look_ahead();
        match comm.await_call(&neighbours, &mut || spare.idle()) {
            Call::Gather => {}
            Call::Dismissed => {
                comm.finalize();
                return Ok(None);
            }
            Call::Abandoned => {
                return Err(TrainError::JobLost("every rank is gone: no spare can go on".into()));
            }
        }
        spare.process.standing = waiting(around);
        let called = answer_call(comm.as_mut(), &policy, &mut spare);
        if let Some(why) = spare.unready {
            // The ranks repair their world without it.
            return Err(TrainError::Unready(why));
        }
        match called? {
            Called::Waits(pids) => neighbours = pids,
            Called::Seated(world, _) => {
                let Some((state, prepared)) = spare.ready else {
                    let text = "a spare became a rank without a state";
                    return Err(TrainError::Internal(text.into()));
                };
                let own = (state, spare.process);
                return Ok(Some(rank::seated(around, comm, world, own, prepared)));
            }
        }
    }
}

fn waiting(around: &Surroundings) -> Standing {
    let ranks = around.arguments.config.run.ranks;
    Standing { rank: ranks, ranks, spare: true, ..Standing::default() }
}

/// What recovery needs of a process that waits.
struct WaitingSpare<'a, 'scope> {
    around: &'a Surroundings,
    preparation: &'a mut Preparation<'scope>,
    process: Process,
    /// The slots of those whom it may replace.
    ahead: Ahead,
    /// Once it receives a state.
    ready: Option<(State, Prepared)>,
    /// Why it cannot become a rank.
    unready: Option<String>,
}

impl<'a, 'scope> WaitingSpare<'a, 'scope> {
    fn new(around: &'a Surroundings, preparation: &'a mut Preparation<'scope>) -> Self {
        Self {
            around,
            preparation,
            process: rank::process_of(around, 1, waiting(around)),
            ahead: Ahead::default(),
            ready: None,
            unready: None,
        }
    }

    /// The start of an attempt: pids of the ranks on this machine, by rank.
    fn meet_the_world(&mut self, comm: &mut dyn Membership) -> Result<Vec<u32>, TrainError> {
        let attempt = self.around.arguments.attempt.unwrap_or(1);
        let world = gather_world(comm, self.around, attempt, 0);
        let world = world.map_err(|error| {
            TrainError::JobLost(format!("a rank was lost while the world was forming: {error}"))
        })?;
        self.process.who = rank::participant(self.around, world.attempt);
        Ok(world.pids_on(&self.process.who.host))
    }

    /// What is mapped goes first: a file that is removed keeps its memory until then.
    fn look_ahead(&mut self) {
        self.ahead = Ahead::default();
        let (recovery, run_dir) =
            (&self.around.arguments.config.recovery, &self.around.arguments.run_dir);
        self.ahead = SlotFiles::ahead(recovery, run_dir);
    }

    /// At every look while it waits: planned faults with a time strike here.
    fn idle(&self) {
        self.around.injector.at(Point::BeforeLoad, &self.process.standing);
    }

    /// Everything a rank has, its state still empty.
    fn become_ready(&mut self) -> Result<Repairing<'_>, CommError> {
        if self.ready.is_none() {
            let prepared = self.preparation.finish().map_err(|error| {
                let text = format!("this spare cannot be made ready: {error}");
                self.unready = Some(text.clone());
                CommError::Fatal { call: "promotion", class: 0, text }
            })?;
            prepared.foresee(std::mem::take(&mut self.ahead));
            self.ready = Some((rank::state_of(&prepared, None), prepared));
        }
        let (state, prepared) = self.ready.as_mut().expect("made above");
        Ok(Repairing::of(state, &mut self.process, prepared.plan.set))
    }
}

impl Hooks for WaitingSpare<'_, '_> {
    fn now(&self) -> Duration {
        self.around.clock.now()
    }

    fn who(&self) -> &Participant {
        &self.process.who
    }

    fn committed_step(&self) -> Option<u64> {
        None
    }

    fn set(&mut self) -> Result<SetIdentity, CommError> {
        self.become_ready()?.set()
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
        if let Some((state, prepared)) = &mut self.ready {
            Repairing::of(state, &mut self.process, prepared.plan.set).adopt(world);
        }
    }

    fn tell(&mut self, remark: Remark) {
        let standing = &mut self.process.standing;
        match remark {
            Remark::Reached(point) => {
                self.around.injector.at(point, standing);
            }
            Remark::Counted(step) => standing.step = step,
            Remark::Promoted(rank) => {
                process::take_place(&self.around.arguments.config);
                (standing.rank, standing.newcomer) = (rank as u32, true);
                if self.ready.is_none() {
                    self.preparation.hurry();
                }
            }
            Remark::Restoring { rank, step, .. } => {
                (standing.rank, standing.step) = (rank as u32, step);
            }
        }
    }
}
