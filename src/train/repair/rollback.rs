//! Comparing the replicas, and going back to the last state that all held alike.

use crate::cluster::comm::CommError;
use crate::observe::event::Kind;

use crate::train::TrainError;
use crate::train::repair::integrity::GOING_BACK_MAX;
use crate::train::repair::integrity::Judgement;
use crate::train::repair::integrity::judge;
use crate::train::trainer::Trainer;

impl Trainer {
    /// Compares the states of all ranks; the vote makes the answer the same everywhere.
    pub(in crate::train) fn verify(&mut self) -> Result<(), TrainError> {
        let gathered = self.integrity.gather(self.comm.as_mut(), &self.replica);
        let (votes, _flags) = self.vote(gathered.map_err(TrainError::from))?;
        match judge(&votes) {
            Judgement::Same => {
                self.integrity.keep(&mut self.replica);
                Ok(())
            }
            Judgement::Differ(evicted) => Err(self.go_back(&evicted)),
        }
    }

    /// Goes back to the last state that was found equal, by way of a repair: it replaces those
    /// who leave and gives the state to those who lack it.
    fn go_back(&mut self, evicted: &[usize]) -> TrainError {
        let (rank, step) = (self.comm.rank(), self.replica.position.step);
        let target = self.replica.position.verified;
        let text = self.difference(evicted, step, target);
        if evicted.contains(&rank) {
            return TrainError::Evicted(text);
        }
        let speaks = (0..).find(|rank| !evicted.contains(rank)) == Some(rank);
        if speaks {
            tracing::warn!("{text}");
            self.event(Kind::Warning { message: text.clone() });
            self.keeper.distrust(target);
        }
        if self.replica.position.gone_back >= GOING_BACK_MAX {
            let text = format!("{text}; {GOING_BACK_MAX} times in a row: is the memory sound?");
            return TrainError::JobLost(text);
        }
        self.integrity.go_back(&mut self.replica);
        TrainError::Comm(CommError::ProcFailed)
    }

    fn difference(&self, evicted: &[usize], step: u64, target: u64) -> String {
        let name = |rank: &usize| match self.world.member_at(*rank) {
            Some(member) => format!("rank {rank} (member {}, {})", member.member, member.host),
            None => format!("rank {rank}"),
        };
        let who = match evicted {
            [] => "the ranks hold different states and no majority says which is right".into(),
            evicted => {
                let names: Vec<String> = evicted.iter().map(name).collect();
                format!("{} differs from the other ranks and is evicted", names.join(", "))
            }
        };
        format!("silent corruption: after step {step} {who}; back to step {target}")
    }
}
