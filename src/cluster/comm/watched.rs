//! Any communicator, with something done around its calls. Seen by the rank's guardian: while a
//! call lasts the rank may be waiting for others, which is no reason to kill it.

use super::{
    Agreement, Call, CommError, Communicator, Elements, Membership, SpawnError, SpawnRequest,
    Waiting,
};
use crate::cluster::guard::report;
use crate::config::Point;

/// What is done around the calls that may wait for others.
pub trait Around: Send {
    /// Makes one of them.
    fn call<T>(&self, call: impl FnOnce() -> T) -> T;

    /// A vote.
    fn agree(&self, inner: &mut dyn Membership, flags: u32) -> Agreement {
        self.call(|| inner.agree(flags))
    }

    /// The end of a world.
    fn revoke(&self, inner: &mut dyn Membership) {
        self.call(|| inner.revoke());
    }
}

/// A communicator, and what is done around its calls.
pub struct Wrapped<H>(pub Box<dyn Membership>, pub H);

/// Tells the guardian.
pub struct Guarded;

impl Around for Guarded {
    fn call<T>(&self, call: impl FnOnce() -> T) -> T {
        report::waiting(call)
    }
}

/// Seen by the rank's guardian.
pub type Watched = Wrapped<Guarded>;

impl Watched {
    /// The same communicator, watched.
    pub fn new(inner: Box<dyn Membership>) -> Self {
        Self(inner, Guarded)
    }
}

impl<H: Around> Communicator for Wrapped<H> {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn size(&self) -> usize {
        self.0.size()
    }

    fn all_reduce(&mut self, elements: Elements<'_>) -> Result<(), CommError> {
        self.1.call(|| self.0.all_reduce(elements))
    }

    fn all_gather_u64(&mut self, send: &[u64]) -> Result<Vec<u64>, CommError> {
        self.1.call(|| self.0.all_gather_u64(send))
    }

    fn broadcast(&mut self, data: &mut [u8], root: usize) -> Result<(), CommError> {
        self.1.call(|| self.0.broadcast(data, root))
    }

    fn send(&mut self, data: &[u8], to: usize, tag: u32) -> Result<(), CommError> {
        self.1.call(|| self.0.send(data, to, tag))
    }

    fn recv(&mut self, data: &mut [u8], from: usize, tag: u32) -> Result<(), CommError> {
        self.1.call(|| self.0.recv(data, from, tag))
    }

    fn agree(&mut self, flags: u32) -> Agreement {
        self.1.agree(&mut *self.0, flags)
    }

    fn revoke(&mut self) {
        self.1.revoke(&mut *self.0);
    }

    fn shrink(&mut self) -> Result<(), CommError> {
        self.1.call(|| self.0.shrink())
    }

    fn warm(&mut self) -> Result<(), CommError> {
        self.1.call(|| self.0.warm())
    }

    fn meet(&mut self, word: u64) -> Result<u64, CommError> {
        self.1.call(|| self.0.meet(word))
    }

    fn wait_by(&mut self, waiting: Waiting) {
        self.0.wait_by(waiting);
    }

    fn is_broken(&mut self) -> bool {
        self.0.is_broken()
    }
}

impl<H: Around> Membership for Wrapped<H> {
    fn ranks(&self) -> usize {
        self.0.ranks()
    }

    fn waits(&self) -> bool {
        self.0.waits()
    }

    fn born(&self) -> u32 {
        self.0.born()
    }

    fn introduce(&mut self, words: &[u64]) -> Result<Vec<u64>, CommError> {
        self.1.call(|| self.0.introduce(words))
    }

    fn spawn_and_merge(
        &mut self,
        request: &SpawnRequest,
        reached: &mut dyn FnMut(Point),
    ) -> Result<(), SpawnError> {
        // Bounded by alarms of its own.
        self.1.call(|| self.0.spawn_and_merge(request, reached))
    }

    fn seat(&mut self, seats: &[Option<usize>]) -> Result<(), CommError> {
        self.1.call(|| self.0.seat(seats))
    }

    fn watch(&mut self, pids: &[u32]) {
        self.0.watch(pids);
    }

    fn lived_through_repair(&mut self) {
        self.0.lived_through_repair();
    }

    fn await_call(&mut self, pids: &[u32], idle: &mut dyn FnMut()) -> Call {
        self.1.call(|| self.0.await_call(pids, idle))
    }

    fn failed_spares(&mut self) -> Vec<usize> {
        self.0.failed_spares()
    }

    fn finalize(&mut self) {
        self.1.call(|| self.0.finalize());
    }
}
