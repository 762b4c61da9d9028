//! The end of a run that all ranks agreed on: its result, and the last vote.

use crate::cluster::guard::{Activity, pulse};
use crate::config::Phase;
use crate::observe::event::Kind;
use crate::observe::result::Status;

use crate::train::TrainError;
use crate::train::state::position::Ending;
use crate::train::trainer::Trainer;

impl Trainer {
    /// The last agreement: the result is written before it, so that a writer's death here is
    /// repaired like any other.
    pub(super) fn finish(&mut self, ending: Ending) -> Result<Status, TrainError> {
        pulse().enter(Activity::Finish);
        self.replica.reached_point(Phase::InFinalize);
        let status = match ending {
            Ending::Completed | Ending::OutOfTime => Status::Completed,
            Ending::Interrupted => Status::Interrupted,
            // What makes the supervisor start it again.
            Ending::Renewed => Status::JobLost,
        };
        // The result is made from events: repairs that no step followed are among them.
        self.report_rest();
        // Another rank than the writer may be the one that writes them down.
        self.vote(Ok(()))?;
        let mut kept = Ok(());
        if self.is_writer() {
            let name = "finishing".to_string();
            self.event(Kind::Phase { name, seconds: 0.0 });
            let place = self.place();
            kept = self.keeper.finish(&self.replica, &mut self.journal, place, status);
        }
        self.vote(kept)?;
        let step = self.replica.position.step;
        // A renewed run goes on from what its ranks leave in memory.
        let written = ending != Ending::Renewed && self.keeper.has_checkpoint_of(step);
        if status == Status::Completed || written {
            self.replica.retire();
        }
        Ok(status)
    }
}
