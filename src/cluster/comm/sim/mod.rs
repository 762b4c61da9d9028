//! `sim`: all ranks as threads of one process. A seeded board decides what every call returns,
//! and who dies, only when every live rank is parked in a call; then one thread runs at a time.
//! A seed therefore replays exactly. Failures are not uniform, as in real ULFM: of one call some
//! ranks see success with the right data, others an error, others nothing until somebody
//! revokes. Not modelled: partitions, slow links, ranks that hang (a guardian makes those dead),
//! a spawn or merge that ends differently on different survivors (the real one agrees inside).

use std::collections::BTreeMap;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};

use crate::cluster::faults::Strike;
use crate::config::{FaultKind, Point};

use super::{Agreement, CommError, Communicator, Elements, Waiting};

mod board;
mod clock;
mod join;
mod membership;
mod news;
mod options;
mod reduce;
mod settle;
mod spares;
mod state;
#[cfg(test)]
mod tests;

use board::{Board, Unwind};
pub use clock::SimClock;
pub use options::{Death, SimOptions, Trace, When};
use state::{BoardState, Call, CommRank, Kind, Payload, Reply, Status};

/// What a replacement knows when it has joined the full world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinInfo {
    /// Its rank there.
    pub rank: usize,
    /// Ranks there.
    pub ranks: usize,
    /// `SpawnRequest::arguments`.
    pub arguments: Vec<String>,
}

/// How a simulated process ended.
#[derive(Debug, Clone, PartialEq)]
pub enum End<T> {
    /// The program returned.
    Finished(T),
    /// It was killed, by the board or by a strike.
    Died,
    /// A replacement that was never merged.
    NotJoined,
    /// The simulation was stuck; this process was parked.
    Halted,
    /// The program panicked.
    Panicked(String),
}

/// A finished simulation.
#[derive(Debug)]
pub struct SimOutcome<T> {
    /// What replays it.
    pub seed: u64,
    /// By process number: the first ranks, then replacements in order of birth.
    pub ends: Vec<End<T>>,
    /// Why it was halted: nobody could go on, or too many decisions.
    pub stuck: Option<String>,
    /// Processes that died, replacements that never merged not counted.
    pub deaths: u32,
    /// Decisions taken.
    pub settles: u64,
    /// Digest of everything that happened, equal for equal runs.
    pub digest: u64,
    /// One line per event with `Trace::Kept`: decision, process, communicator, rank, what.
    pub trace: Vec<String>,
}

impl<T> SimOutcome<T> {
    /// Results of the processes that returned.
    pub fn finished(&self) -> impl Iterator<Item = &T> {
        self.ends.iter().filter_map(|end| match end {
            End::Finished(result) => Some(result),
            _ => None,
        })
    }
}

/// Runs `program` on `ranks` simulated ranks, on the spares beside them (whose communicator
/// `waits`) and on every replacement they spawn.
pub fn run<T: Send>(
    seed: u64,
    ranks: usize,
    options: SimOptions,
    program: impl Fn(SimComm, Option<JoinInfo>) -> T + Send + Sync,
) -> SimOutcome<T> {
    assert!(ranks > 0, "a world has at least one rank");
    let (births, born) = channel();
    let board = Arc::new(Board::new(BoardState::new(seed, ranks, options, births)));
    let ends = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        board.start();
        while let Ok(Some(process)) = born.recv() {
            let (board, ends, program) = (Arc::clone(&board), &ends, &program);
            scope.spawn(move || {
                let end = live(&board, process, program);
                let mut ends = ends.lock().unwrap_or_else(PoisonError::into_inner);
                ends.insert(process, end);
            });
        }
    });
    let ends = ends.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut state = board.lock();
    SimOutcome {
        seed,
        ends: ends.into_values().collect(),
        stuck: state.halted.take(),
        deaths: state.deaths,
        settles: state.settles,
        digest: state.digest,
        trace: std::mem::take(&mut state.trace),
    }
}

/// The life of one process, from its first turn to its end.
fn live<T>(
    board: &Arc<Board>,
    process: usize,
    program: &(impl Fn(SimComm, Option<JoinInfo>) -> T + Sync),
) -> End<T> {
    let mut joined = true;
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let (place, birth) = board.begin(process);
        let Some(birth) = birth else {
            return program(SimComm::new(board, process, place), None);
        };
        joined = false;
        let Reply::Moved(place) = board.call(process, Call::Merge(birth.joining)) else {
            unreachable!("a newcomer is merged or sent away");
        };
        joined = true;
        let join = JoinInfo { rank: birth.rank, ranks: birth.ranks, arguments: birth.arguments };
        program(SimComm::new(board, process, place), Some(join))
    }));
    let finished = if result.is_ok() { Status::Left } else { Status::Dead };
    let before = board.end(process, finished);
    match result {
        Ok(_) if before == Status::Doomed => End::Died,
        Ok(value) => End::Finished(value),
        Err(payload) => match payload.downcast::<Unwind>() {
            Ok(why) if matches!(*why, Unwind::Halted) => End::Halted,
            Ok(_) if joined => End::Died,
            Ok(_) => End::NotJoined,
            Err(payload) => End::Panicked(panic_text(payload.as_ref())),
        },
    }
}

fn panic_text(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().cloned();
    text.or_else(|| payload.downcast_ref::<&str>().map(ToString::to_string))
        .unwrap_or_else(|| "a panic without a text".into())
}

/// The communicator of one simulated rank.
#[derive(Debug)]
pub struct SimComm {
    board: Arc<Board>,
    process: usize,
    place: CommRank,
}

impl SimComm {
    fn new(board: &Arc<Board>, process: usize, place: CommRank) -> Self {
        Self { board: Arc::clone(board), process, place }
    }

    /// The number of this process in the simulation, never reused.
    pub fn process(&self) -> usize {
        self.process
    }

    /// Kills this process when asked to.
    pub fn strike(&self) -> SimStrike {
        SimStrike { board: Arc::clone(&self.board), process: self.process }
    }

    /// The simulation's clock.
    pub fn clock(&self) -> SimClock {
        SimClock::over(self.board.clock())
    }

    fn collective(&mut self, kind: Kind, payload: Payload) -> Result<Arc<Payload>, CommError> {
        match self.board.call(self.process, Call::Collective(kind, payload)) {
            Reply::Data(data) => Ok(data),
            reply => Err(error_of(reply)),
        }
    }
}

/// What is left of a reply once the call's own answer is ruled out.
fn error_of(reply: Reply) -> CommError {
    match reply {
        Reply::Error(error) => error,
        reply => unreachable!("the board answered a call with {reply:?}"),
    }
}

impl Communicator for SimComm {
    fn rank(&self) -> usize {
        self.place.rank
    }

    fn size(&self) -> usize {
        self.place.size
    }

    fn all_reduce(&mut self, elements: Elements<'_>) -> Result<(), CommError> {
        let sent = match &elements {
            Elements::F32(send, _) => Payload::F32(send.to_vec()),
            Elements::U64(send, _) => Payload::U64(send.to_vec()),
            Elements::I32(send, _) => Payload::I32(send.to_vec()),
            Elements::I64(send, _) => Payload::I64(send.to_vec()),
        };
        let sum = self.collective(Kind::Reduce, sent)?;
        match (elements, sum.as_ref()) {
            (Elements::F32(_, recv), Payload::F32(sum)) => recv.copy_from_slice(sum),
            (Elements::U64(_, recv), Payload::U64(sum)) => recv.copy_from_slice(sum),
            (Elements::I32(_, recv), Payload::I32(sum)) => recv.copy_from_slice(sum),
            (Elements::I64(_, recv), Payload::I64(sum)) => recv.copy_from_slice(sum),
            (_, other) => unreachable!("a reduction gave {:?}", other.shape()),
        }
        Ok(())
    }

    fn all_gather_u64(&mut self, send: &[u64]) -> Result<Vec<u64>, CommError> {
        let all = self.collective(Kind::Gather, Payload::U64(send.to_vec()))?;
        match all.as_ref() {
            Payload::U64(words) => Ok(words.clone()),
            other => unreachable!("a gather of words gave {:?}", other.shape()),
        }
    }

    fn broadcast(&mut self, data: &mut [u8], root: usize) -> Result<(), CommError> {
        assert!(root < self.place.size, "the root of a broadcast is one of its ranks");
        let sent = self.collective(Kind::Broadcast { root }, Payload::Bytes(data.to_vec()))?;
        if let Payload::Bytes(sent) = sent.as_ref() {
            data.copy_from_slice(sent);
        }
        Ok(())
    }

    fn send(&mut self, data: &[u8], to: usize, tag: u32) -> Result<(), CommError> {
        match self.board.call(self.process, Call::Send { to, tag, data: data.to_vec() }) {
            Reply::Done => Ok(()),
            reply => Err(error_of(reply)),
        }
    }

    fn recv(&mut self, data: &mut [u8], from: usize, tag: u32) -> Result<(), CommError> {
        match self.board.call(self.process, Call::Recv { from, tag, bytes: data.len() }) {
            Reply::Data(sent) => {
                if let Payload::Bytes(sent) = sent.as_ref() {
                    data.copy_from_slice(sent);
                }
                Ok(())
            }
            reply => Err(error_of(reply)),
        }
    }

    fn agree(&mut self, flags: u32) -> Agreement {
        match self.board.call(self.process, Call::Agree(flags)) {
            Reply::Agreed(agreement) => agreement,
            reply => unreachable!("the board answered an agree with {reply:?}"),
        }
    }

    fn revoke(&mut self) {
        self.board.call(self.process, Call::Revoke);
    }

    fn shrink(&mut self) -> Result<(), CommError> {
        if let Some(place) = self.board.gather(self.process) {
            self.place = place;
        }
        match self.board.call(self.process, Call::Shrink) {
            Reply::Moved(place) => {
                self.place = place;
                Ok(())
            }
            reply => Err(error_of(reply)),
        }
    }

    fn warm(&mut self) -> Result<(), CommError> {
        self.collective(Kind::Warm, Payload::Empty).map(drop)
    }

    fn meet(&mut self, word: u64) -> Result<u64, CommError> {
        let largest = self.collective(Kind::Meet, Payload::U64(vec![word]))?;
        match largest.as_ref() {
            Payload::U64(words) => Ok(words[0]),
            other => unreachable!("a meeting gave {:?}", other.shape()),
        }
    }

    /// Deaths are heard of in calls only.
    fn is_broken(&mut self) -> bool {
        false
    }

    /// A turn is waited for asleep.
    fn wait_by(&mut self, _waiting: Waiting) {}
}

impl SimStrike {
    /// Adds a line to the trace.
    pub fn note(&self, what: &str) {
        self.board.lock().record(self.process, what);
    }
}

/// Makes a fault real in simulation: every fault that ends or hangs a process kills it (hung
/// ranks are made dead ranks by the guardian); the others are the caller's to perform.
#[derive(Debug, Clone)]
pub struct SimStrike {
    board: Arc<Board>,
    process: usize,
}

impl Strike for SimStrike {
    fn strike(&self, kind: FaultKind, _phase: Point) {
        match kind {
            FaultKind::Slow | FaultKind::Nan | FaultKind::BitFlip => {}
            _ => self.board.die(self.process),
        }
    }
}
