//! The copies that were begun, one queue for each direction, and who waits for them.

use std::collections::VecDeque;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kintsugi_ffi::arena::Hold;

pub use crate::engine::plan::steps::Way;

/// Copies that wait in a direction; who begins one more waits for one to end.
pub const QUEUE_MAX: usize = 256;
/// Longest wait for threads that were told to end: one may hang in a disk that does not answer.
const END_WAIT_MAX: Duration = Duration::from_secs(5);

/// Both, in the order in which tables of them are.
pub const WAYS: [Way; 2] = [Way::Out, Way::In];

/// What went one way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Flow {
    /// Bytes copied.
    pub bytes: u64,
    /// Time in which there was something to copy, that on the emulated link included.
    pub busy: Duration,
}

/// A copy that was begun.
pub struct Job {
    /// Its end in the near tier.
    pub near: Hold,
    /// Where it begins in the far one.
    pub far_offset: usize,
    /// When it was begun.
    pub asked: Instant,
}

/// What becomes of the copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Course {
    #[default]
    Copying,
    /// Nobody wants them any more.
    GivingUp,
    /// Nor any others.
    Over,
}

/// The first error of a direction.
struct Failure {
    number: u64,
    kind: io::ErrorKind,
    text: String,
}

#[derive(Default)]
struct Lane {
    queue: VecDeque<Job>,
    /// A thread takes from the queue, or has one of it in hand.
    served: bool,
    busy: bool,
    /// Copies that have ended, in the order in which they were begun.
    ended: u64,
    failed: Option<Failure>,
    flow: Flow,
}

#[derive(Default)]
struct Board {
    lanes: [Lane; 2],
    course: Course,
}

/// See the module.
#[derive(Default)]
pub struct Lanes {
    board: Mutex<Board>,
    /// There is something to copy, or nobody wants it any more.
    asked: Condvar,
    /// Something has ended, or was taken from a queue.
    ended: Condvar,
}

impl Lanes {
    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change while `unmet`.
    fn until<'a>(
        &self,
        board: MutexGuard<'a, Board>,
        mut unmet: impl FnMut(&Board) -> bool,
    ) -> MutexGuard<'a, Board> {
        let waited = self.ended.wait_while(board, |board| unmet(board));
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a copy behind those that were begun before it, once there is room.
    pub fn put(&self, way: Way, job: Job) {
        let full = |board: &Board| board.lanes[way as usize].queue.len() >= QUEUE_MAX;
        let mut board = self.until(self.board(), full);
        board.lanes[way as usize].queue.push_back(job);
        self.asked.notify_all();
    }

    /// Waits until the copy of this number has ended, the first being 0.
    pub fn wait_for(&self, way: Way, number: u64) -> io::Result<()> {
        let board = self.until(self.board(), |board| board.lanes[way as usize].ended <= number);
        match &board.lanes[way as usize].failed {
            Some(failure) if failure.number <= number => {
                Err(io::Error::new(failure.kind, failure.text.clone()))
            }
            _ => Ok(()),
        }
    }

    /// Waits until one direction has ended `all` copies, and the other `least`; what went each way
    /// by then.
    pub fn wait_for_either(&self, all: u64, least: u64) -> [Flow; 2] {
        let early = |board: &Board| {
            let ended = board.lanes.each_ref().map(|lane| lane.ended);
            ended.iter().all(|ended| *ended < all) || ended.iter().any(|ended| *ended < least)
        };
        let board = self.until(self.board(), early);
        board.lanes.each_ref().map(|lane| lane.flow)
    }

    /// Ends what was begun, copied or not, and forgets errors.
    pub fn drain(&self) {
        let mut board = self.board();
        board.course = Course::GivingUp;
        self.asked.notify_all();
        let dropped = [0, 1].map(|lane: usize| std::mem::take(&mut board.lanes[lane].queue));
        let mut board = self.until(board, |board| board.lanes.iter().any(|lane| lane.busy));
        for (lane, dropped) in board.lanes.iter_mut().zip(&dropped) {
            lane.ended += dropped.len() as u64;
            lane.failed = None;
        }
        board.course = Course::Copying;
    }

    /// What went each way since the last call.
    pub fn take_flows(&self) -> [Flow; 2] {
        let mut board = self.board();
        [0, 1].map(|lane: usize| std::mem::take(&mut board.lanes[lane].flow))
    }

    /// Ends the threads; one that hangs is left alone.
    pub fn close(&self) {
        let mut board = self.board();
        board.course = Course::Over;
        let dropped = [0, 1].map(|lane: usize| std::mem::take(&mut board.lanes[lane].queue));
        self.asked.notify_all();
        let served = |board: &mut Board| board.lanes.iter().any(|lane| lane.served);
        drop(self.ended.wait_timeout_while(board, END_WAIT_MAX, served));
        drop(dropped);
    }

    /// A thread serves this direction, from before it starts.
    pub fn enter(&self, way: Way) {
        self.board().lanes[way as usize].served = true;
    }

    /// It has ended, or did not start.
    pub fn leave(&self, way: Way) {
        self.board().lanes[way as usize].served = false;
        self.ended.notify_all();
    }

    /// For its thread: the next copy of a direction, or the end.
    pub fn next(&self, way: Way) -> Option<Job> {
        let idle = |board: &mut Board| {
            board.course != Course::Over && board.lanes[way as usize].queue.is_empty()
        };
        let waited = self.asked.wait_while(self.board(), idle);
        let mut board = waited.unwrap_or_else(PoisonError::into_inner);
        let lane = &mut board.lanes[way as usize];
        let job = lane.queue.pop_front()?;
        lane.busy = true;
        self.ended.notify_all();
        Some(job)
    }

    /// Whether a copy that its thread has in hand is still wanted.
    pub fn goes_on(&self, way: Way) -> bool {
        let board = self.board();
        board.course == Course::Copying && board.lanes[way as usize].failed.is_none()
    }

    /// Sleeps until then, or until nobody wants it any more.
    pub fn sleep_until(&self, then: Instant) {
        let time = then.saturating_duration_since(Instant::now());
        let wanted = |board: &mut Board| board.course == Course::Copying;
        drop(self.asked.wait_timeout_while(self.board(), time, wanted));
    }

    /// The copy that its thread had in hand has ended, and given back what it had.
    pub fn end(&self, way: Way, flow: Flow, result: io::Result<()>) {
        let mut board = self.board();
        let lane = &mut board.lanes[way as usize];
        lane.flow.bytes += flow.bytes;
        lane.flow.busy += flow.busy;
        if let (Err(error), None) = (result, &lane.failed) {
            let (number, kind, text) = (lane.ended, error.kind(), error.to_string());
            lane.failed = Some(Failure { number, kind, text });
        }
        lane.ended += 1;
        lane.busy = false;
        self.ended.notify_all();
    }
}
