//! Rules that are known to be wrong, to show that the checkers would see them: apply when one's own
//! all-reduce succeeded and repair only who died; vote while others may still be held in the call
//! that failed; start without looking at what lies in memory;
//! read copies without hashing them.

use std::cell::Cell;

use crate::cluster::comm::sim::SimComm;
use crate::cluster::comm::watched::{Around, Wrapped};
use crate::cluster::comm::{Agreement, Membership};

/// How a step is committed, and gone on from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Rule {
    /// As it should be: everybody votes.
    #[default]
    Vote,
    /// Each rank applies what it received, whatever the others did.
    LocalSuccess,
    /// Everybody votes, but nobody revokes before.
    VoteWithoutRevoke,
    /// Everybody votes; who starts forgets the state that outlived its processes.
    Forgetful,
    /// Everybody votes; whatever bytes a copy on a node has, its hash is right.
    Believing,
}

/// A communicator under that rule.
pub fn under(rule: Rule, comm: SimComm) -> Box<dyn Membership> {
    match rule {
        Rule::Vote | Rule::Forgetful | Rule::Believing => Box::new(comm),
        Rule::LocalSuccess => Box::new(Wrapped(Box::new(comm), LocalSuccess)),
        Rule::VoteWithoutRevoke => {
            Box::new(Wrapped(Box::new(comm), VoteWithoutRevoke(Cell::new(true))))
        }
    }
}

/// Votes of a step carry requests; agreements of a repair carry one bit.
const REPAIR_BITS: u32 = 1;

struct LocalSuccess;

impl Around for LocalSuccess {
    fn call<T>(&self, call: impl FnOnce() -> T) -> T {
        call()
    }

    fn agree(&self, inner: &mut dyn Membership, flags: u32) -> Agreement {
        if flags > REPAIR_BITS {
            return Agreement { flags, outcome: Ok(()) };
        }
        inner.agree(flags)
    }
}

/// Whether a revocation passes: those of a start do, and those after a vote that failed, which are
/// the repair's.
struct VoteWithoutRevoke(Cell<bool>);

impl Around for VoteWithoutRevoke {
    fn call<T>(&self, call: impl FnOnce() -> T) -> T {
        call()
    }

    fn agree(&self, inner: &mut dyn Membership, flags: u32) -> Agreement {
        let agreement = inner.agree(flags);
        if flags > REPAIR_BITS {
            self.0.set(!agreement.committed());
        }
        agreement
    }

    fn revoke(&self, inner: &mut dyn Membership) {
        if self.0.get() {
            inner.revoke();
        }
    }
}
