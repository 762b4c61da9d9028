//! Who belongs to a simulated world: replacements, seats and spares, as the board decides.

use super::super::Call as Called;
use super::super::{CommError, Communicator, Membership, SpawnError, SpawnRequest};
use super::state::{Call, Reply};
use super::{SimComm, error_of};
use crate::config::Point;

impl Membership for SimComm {
    fn ranks(&self) -> usize {
        self.board.waits_for(self.process).unwrap_or(self.place.size)
    }

    fn waits(&self) -> bool {
        self.board.waits_for(self.process).is_some()
    }

    /// Births are not numbered here: of two spares the lower goes first.
    fn born(&self) -> u32 {
        0
    }

    fn introduce(&mut self, words: &[u64]) -> Result<Vec<u64>, CommError> {
        let back = self.board.step_into_pool(self.process);
        let all = self.all_gather_u64(words);
        if let Some(back) = back {
            self.board.step_back(self.process, back);
        }
        all
    }

    fn spawn_and_merge(
        &mut self,
        request: &SpawnRequest,
        reached: &mut dyn FnMut(Point),
    ) -> Result<(), SpawnError> {
        reached(Point::InSpawn);
        let joining = match self.board.call(self.process, Call::Spawn(request.clone())) {
            Reply::Joining(joining) => joining,
            Reply::NoSpawn(error) => return Err(error),
            reply => unreachable!("the board answered a spawn with {reply:?}"),
        };
        reached(Point::InMerge);
        match self.board.call(self.process, Call::Merge(joining)) {
            Reply::Moved(place) => {
                self.place = place;
                Ok(())
            }
            Reply::NoSpawn(error) => Err(error),
            reply => unreachable!("the board answered a merge with {reply:?}"),
        }
    }

    fn seat(&mut self, seats: &[Option<usize>]) -> Result<(), CommError> {
        match self.board.call(self.process, Call::Seat(seats.to_vec())) {
            Reply::Seated(place, _) => {
                self.place = place;
                Ok(())
            }
            reply => Err(error_of(reply)),
        }
    }

    /// The board tells of every death.
    fn watch(&mut self, _pids: &[u32]) {}

    fn lived_through_repair(&mut self) {}

    fn await_call(&mut self, _pids: &[u32], idle: &mut dyn FnMut()) -> Called {
        idle();
        match self.board.call(self.process, Call::Await) {
            Reply::Called(call) => call,
            reply => unreachable!("the board answered a waiting spare with {reply:?}"),
        }
    }

    fn failed_spares(&mut self) -> Vec<usize> {
        self.board.dead_spares(self.process)
    }

    fn finalize(&mut self) {
        self.board.call(self.process, Call::Finalize);
    }
}
