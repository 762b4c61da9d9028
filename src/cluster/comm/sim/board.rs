//! The board of a simulation, shared by the threads of its processes. One thread runs at a time;
//! when every live process is parked, `settle` decides what happens. So a seed replays exactly,
//! whatever the machine's thread timing, storage and clock included.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::state::{Birth, BoardState, Call, CommRank, Reply, Status};

/// Why a simulated process unwinds without a message.
pub(super) enum Unwind {
    /// It died.
    Died,
    /// The simulation was halted.
    Halted,
}

/// The shared board.
#[derive(Debug)]
pub(super) struct Board {
    state: Mutex<BoardState>,
}

impl Board {
    pub(super) fn new(state: BoardState) -> Self {
        Self { state: Mutex::new(state) }
    }

    /// A panic of a simulated process never leaves the state half changed for the others: the
    /// simulation then ends through `end`.
    pub(super) fn lock(&self) -> MutexGuard<'_, BoardState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the first turn, once all first threads are on their way.
    pub(super) fn start(&self) {
        self.lock().pass_on();
    }

    /// A new thread waits for its first turn and learns what it is.
    pub(super) fn begin(&self, process: usize) -> (CommRank, Option<Birth>) {
        let mut state = self.wait_turn(self.lock(), process);
        if state.halted.is_some() {
            drop(state);
            unwind(Unwind::Halted);
        }
        let process = &mut state.processes[process];
        (process.place, process.birth.take())
    }

    fn wait_turn<'a>(
        &'a self,
        mut state: MutexGuard<'a, BoardState>,
        process: usize,
    ) -> MutexGuard<'a, BoardState> {
        let turn = Arc::clone(&state.processes[process].turn);
        while state.current != Some(process) && state.halted.is_none() {
            state = turn.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    /// Parks the process in a call until the board answers. Unwinds when it dies there.
    pub(super) fn call(&self, process: usize, call: Call) -> Reply {
        let mut state = self.lock();
        if state.halted.is_some() {
            drop(state);
            unwind(Unwind::Halted);
        }
        match state.processes[process].status {
            Status::Live => {}
            Status::Doomed | Status::Dead => {
                drop(state);
                self.die(process);
            }
            Status::Left => {
                drop(state);
                panic!("a call after finalize");
            }
        }
        state.park(process, call);
        state.pass_on();
        let mut state = self.wait_turn(state, process);
        let reply = state.processes[process].reply.take();
        drop(state);
        match reply {
            None => unwind(Unwind::Halted),
            Some(Reply::Die) => unwind(Unwind::Died),
            Some(Reply::Misuse(text)) => panic!("{text}"),
            Some(reply) => reply,
        }
    }

    /// The running process dies here and now.
    pub(super) fn die(&self, process: usize) -> ! {
        let mut state = self.lock();
        state.deaths += u32::from(state.processes[process].status == Status::Live);
        state.bury(process);
        drop(state);
        unwind(Unwind::Died)
    }

    /// The thread of a process is at its end, with the status it had when it got there.
    pub(super) fn end(&self, process: usize, finished: Status) -> Status {
        let mut state = self.lock();
        let before = state.processes[process].status;
        if before == Status::Live && finished == Status::Left {
            state.processes[process].status = Status::Left;
        } else {
            state.bury(process);
        }
        state.processes[process].ended = true;
        state.processes[process].parked = None;
        if state.current == Some(process) {
            state.pass_on();
        }
        if state.processes.iter().all(|process| process.ended) {
            state.births.send(None).ok();
        }
        before
    }

    /// Simulated nanoseconds, readable without the lock.
    pub(super) fn clock(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.lock().clock_nanos)
    }
}

impl BoardState {
    /// Hands the turn on: to the next released process, else after settling.
    pub(super) fn pass_on(&mut self) {
        self.current = None;
        while self.halted.is_none() {
            if let Some(next) = self.runnable.pop_front() {
                self.current = Some(next);
                self.processes[next].turn.notify_all();
                return;
            }
            if self.processes.iter().all(|process| process.ended) {
                return;
            }
            self.settle();
        }
    }
}

/// Unwinds without running the panic hook, so that nothing is printed.
fn unwind(why: Unwind) -> ! {
    std::panic::resume_unwind(Box::new(why))
}
