//! Rules that are known to be wrong, to show that the checkers would see them: apply when one's own
//! all-reduce succeeded and repair only who died; start without looking at what lies in memory;
//! read copies without hashing them.

use crate::cluster::comm::sim::SimComm;
use crate::cluster::comm::{
    Agreement, Call, CommError, Communicator, Elements, Membership, ReduceOp, SpawnError,
    SpawnRequest, Waiting,
};
use crate::config::Point;

/// How a step is committed, and gone on from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Rule {
    /// As it should be: everybody votes.
    #[default]
    Vote,
    /// Each rank applies what it received, whatever the others did.
    LocalSuccess,
    /// Everybody votes; who starts forgets the state that outlived its processes.
    Forgetful,
    /// Everybody votes; whatever bytes a copy on a node has, its hash is right.
    Believing,
}

/// A communicator under that rule.
pub fn under(rule: Rule, comm: SimComm) -> Box<dyn Membership> {
    match rule {
        Rule::Vote | Rule::Forgetful | Rule::Believing => Box::new(comm),
        Rule::LocalSuccess => Box::new(LocalSuccess(comm)),
    }
}

/// Votes of a step carry requests; agreements of a repair carry one bit.
const REPAIR_BITS: u32 = 1;

struct LocalSuccess(SimComm);

impl Communicator for LocalSuccess {
    fn agree(&mut self, flags: u32) -> Agreement {
        if flags > REPAIR_BITS {
            return Agreement { flags, outcome: Ok(()) };
        }
        self.0.agree(flags)
    }
    fn rank(&self) -> usize {
        self.0.rank()
    }
    fn size(&self) -> usize {
        self.0.size()
    }
    fn all_reduce(&mut self, elements: Elements<'_>, op: ReduceOp) -> Result<(), CommError> {
        self.0.all_reduce(elements, op)
    }
    fn all_gather_u64(&mut self, send: &[u64]) -> Result<Vec<u64>, CommError> {
        self.0.all_gather_u64(send)
    }
    fn broadcast(&mut self, data: &mut [u8], root: usize) -> Result<(), CommError> {
        self.0.broadcast(data, root)
    }
    fn send(&mut self, data: &[u8], to: usize, tag: u32) -> Result<(), CommError> {
        self.0.send(data, to, tag)
    }
    fn recv(&mut self, data: &mut [u8], from: usize, tag: u32) -> Result<(), CommError> {
        self.0.recv(data, from, tag)
    }
    fn revoke(&mut self) {
        self.0.revoke();
    }
    fn shrink(&mut self) -> Result<(), CommError> {
        self.0.shrink()
    }
    fn warm(&mut self) -> Result<(), CommError> {
        self.0.warm()
    }
    fn meet(&mut self, word: u64) -> Result<u64, CommError> {
        self.0.meet(word)
    }
    fn is_broken(&mut self) -> bool {
        self.0.is_broken()
    }
    fn wait_by(&mut self, waiting: Waiting) {
        self.0.wait_by(waiting);
    }
}

impl Membership for LocalSuccess {
    fn ranks(&self) -> usize {
        self.0.ranks()
    }
    fn waits(&self) -> bool {
        self.0.waits()
    }
    fn introduce(&mut self, words: &[u64]) -> Result<Vec<u64>, CommError> {
        self.0.introduce(words)
    }
    fn spawn_and_merge(
        &mut self,
        request: &SpawnRequest,
        reached: &mut dyn FnMut(Point),
    ) -> Result<(), SpawnError> {
        self.0.spawn_and_merge(request, reached)
    }
    fn seat(&mut self, seats: &[Option<usize>]) -> Result<(), CommError> {
        self.0.seat(seats)
    }
    fn await_call(&mut self, pids: &[u32], idle: &mut dyn FnMut()) -> Call {
        self.0.await_call(pids, idle)
    }
    fn failed_spares(&mut self) -> Vec<usize> {
        self.0.failed_spares()
    }
    fn finalize(&mut self) {
        self.0.finalize();
    }
    fn born(&self) -> u32 {
        self.0.born()
    }
    fn watch(&mut self, pids: &[u32]) {
        self.0.watch(pids);
    }
    fn lived_through_repair(&mut self) {
        self.0.lived_through_repair();
    }
    fn recruit(&mut self, count: usize, arguments: &[String]) -> Result<(), SpawnError> {
        self.0.recruit(count, arguments)
    }
    fn recruits(&self) -> usize {
        self.0.recruits()
    }
    fn recruits_wait(&mut self) -> bool {
        self.0.recruits_wait()
    }
    fn admit(&mut self, leader: usize) -> Result<(), CommError> {
        self.0.admit(leader)
    }
}
