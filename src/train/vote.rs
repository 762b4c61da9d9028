//! The commit rule: a step commits everywhere or nowhere. Any error in it: revoke the world first,
//! then vote no. It commits if and only if the agreement succeeds **and** all said yes; any other
//! pair is no commit (ARCHITECTURE.md, "The commit rule"; agreement: ULFM's MPIX_Comm_agree).

use crate::cluster::comm::{Agreement, CommError};
use crate::config::Point;

use crate::train::TrainError;
use crate::train::record::reason::{Failure, leave_reason, reason_of};
use crate::train::state::rank::Rank;

/// Bit 0 of the vote. The other bits carry requests, inverted: an agreement is an AND, so a rank
/// clears a bit to ask.
const COMMIT: u32 = 1;
/// Cleared, from here on, by a rank that no repair can help: which kind of failure it met.
const FAILURES: u32 = 8;
const ALL: u32 = (1 << (FAILURES + Failure::ALL.len() as u32)) - 1;

/// What a rank asks of all others with its vote, and what all were asked. It counts only in a step
/// that commits, else it is repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Requests {
    /// A signal: a checkpoint, then the end.
    pub stop: bool,
    /// `train.max_seconds` is over.
    pub out_of_time: bool,
    /// The interval between two evaluations is over, by the writer's clock.
    pub evaluate: bool,
    /// The number of ranks is to be looked at.
    pub resize: bool,
    /// All ranks are to start again at full strength.
    pub renew: bool,
    /// The weights of the last step are not on disk: the run is not complete.
    pub unsaved: bool,
    /// A file of the training set was written while the run went on, as a last look has shown.
    pub rewritten: bool,
}

impl Requests {
    /// Every request with its bit.
    fn bits(&mut self) -> [(&mut bool, u32); 7] {
        [
            (&mut self.stop, 1 << 1),
            (&mut self.out_of_time, 1 << 2),
            (&mut self.evaluate, 1 << 3),
            (&mut self.resize, 1 << 4),
            (&mut self.renew, 1 << 5),
            (&mut self.rewritten, 1 << 6),
            (&mut self.unsaved, 1 << 7),
        ]
    }

    fn to_flags(mut self) -> u32 {
        let asked = self.bits().into_iter().filter(|(asked, _)| **asked);
        asked.fold(ALL, |flags, (_, bit)| flags & !bit)
    }

    fn from_flags(flags: u32) -> Self {
        let mut requests = Self::default();
        for (asked, bit) in requests.bits() {
            *asked = flags & bit == 0;
        }
        requests
    }
}

/// What the votes of all ranks came to; the same on every rank.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Decision {
    /// All apply what they attempted, and do what anybody asked for.
    Commit(Requests),
    /// Nobody applies it; the world is to be repaired.
    Repair(CommError),
    /// Nobody applies it, and no repair helps against what a rank has met.
    End(Failure),
}

/// A rank's own part in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ballot {
    Yes,
    /// A repair may help.
    No,
    /// None does.
    Broken(Failure),
}

fn to_flags(ballot: Ballot, requests: Requests) -> u32 {
    let flags = requests.to_flags();
    match ballot {
        Ballot::Yes => flags,
        Ballot::No => flags & !COMMIT,
        Ballot::Broken(failure) => flags & !COMMIT & !bit(failure),
    }
}

fn bit(failure: Failure) -> u32 {
    1 << (FAILURES + failure as u32)
}

fn decide(agreement: Agreement) -> Decision {
    if agreement.committed() {
        return Decision::Commit(Requests::from_flags(agreement.flags));
    }
    match Failure::ALL.into_iter().find(|failure| agreement.flags & bit(*failure) == 0) {
        Some(met) => Decision::End(met),
        None => Decision::Repair(agreement.outcome.err().unwrap_or(CommError::ProcFailed)),
    }
}

/// Votes on what this rank attempted. Returns it, with what was asked for, if all go on with it,
/// else why nobody does.
pub fn vote<T>(
    rank: &mut Rank,
    requests: Requests,
    attempted: Result<T, TrainError>,
) -> Result<(T, Requests), TrainError> {
    let ballot = match &attempted {
        Ok(_) => Ballot::Yes,
        Err(TrainError::Comm(error)) if error.starts_recovery() => Ballot::No,
        Err(error) if error.leaves_alone() => {
            // Whoever waits for this rank must not wait for its worker threads to end.
            rank.comm.revoke();
            return Err(error.clone());
        }
        Err(error) => {
            leave_reason(rank.storage.as_ref(), error);
            Ballot::Broken(Failure::of(error))
        }
    };
    if ballot != Ballot::Yes {
        rank.comm.revoke();
    }
    let decision = decide(rank.comm.agree(to_flags(ballot, requests)));
    match (attempted, decision) {
        (Ok(value), Decision::Commit(asked)) => {
            rank.process.at(Point::AfterVote);
            Ok((value, asked))
        }
        (Err(error), _) if matches!(ballot, Ballot::Broken(_)) => Err(error),
        (_, Decision::End(failure)) => Err(reason_of(rank.storage.as_ref(), failure)),
        (_, Decision::Repair(error)) => {
            rank.comm.revoke();
            Err(TrainError::Comm(error))
        }
        // No agreement commits against this rank's vote.
        (Err(error), Decision::Commit(_)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_survives_an_agreement_of_all() {
        for index in 0..Requests::default().bits().len() {
            let mut asks = Requests::default();
            *asks.bits()[index].0 = true;
            let flags = to_flags(Ballot::Yes, asks) & to_flags(Ballot::Yes, Requests::default());
            let agreement = Agreement { flags, outcome: Ok(()) };
            assert_eq!(decide(agreement), Decision::Commit(asks));
        }
    }

    #[test]
    fn one_no_or_one_known_failure_is_no_commit() {
        let yes = to_flags(Ballot::Yes, Requests::default());
        let no = yes & to_flags(Ballot::No, Requests::default());
        let agreed = |flags, outcome| decide(Agreement { flags, outcome });
        assert_eq!(agreed(no, Ok(())), Decision::Repair(CommError::ProcFailed));
        let failed = agreed(yes, Err(CommError::ProcFailed));
        assert_eq!(failed, Decision::Repair(CommError::ProcFailed));
        for failure in Failure::ALL {
            let broken = yes & no & to_flags(Ballot::Broken(failure), Requests::default());
            assert_eq!(agreed(broken, Ok(())), Decision::End(failure));
            let end = agreed(broken, Err(CommError::ProcFailed));
            assert_eq!(end, Decision::End(failure));
        }
        let ballots = [Failure::Interrupted, Failure::Data, Failure::Internal].map(Ballot::Broken);
        let flags = ballots.map(|ballot| to_flags(ballot, Requests::default()));
        let several = flags.into_iter().fold(yes, |all, flags| all & flags);
        assert_eq!(agreed(several, Ok(())), Decision::End(Failure::Data));
    }

    #[test]
    fn every_flag_has_its_bit() {
        let ours = |ballot, requests| to_flags(ballot, requests);
        assert_eq!(ours(Ballot::Yes, Requests::default()), 0b11_1111_1111_1111);
        let stop = Requests { stop: true, ..Requests::default() };
        let flags = ours(Ballot::Broken(Failure::StorageLost), stop);
        assert_eq!(flags, 0b11_0111_1111_1100);
    }
}
