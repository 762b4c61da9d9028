//! The board that a rank's workers take their work from, and count it on. Beside micro-batches
//! there are chores, which anybody does who has nothing to compute, and hands who do nothing else.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::cluster::faults::Standing;

use crate::train::TrainError;
use crate::train::compute::committed::Which;
use crate::train::compute::free_run::{FreeRun, Round, Turn};
use crate::train::compute::totals::Totals;

/// How often whoever waits looks again.
const WAKE_EVERY: Duration = Duration::from_millis(50);

/// Work that needs no engine.
pub type Chore = Box<dyn FnOnce() + Send>;

/// What is to be computed.
#[derive(Debug, Clone, Default)]
#[allow(missing_docs)]
pub enum Work {
    #[default]
    Nothing,
    /// Micro-batches of these owners in the step after `standing.step`.
    Train {
        owners: Vec<u32>,
        standing: Standing,
    },
    /// Micro-batches without end, as `FreeRun` deals them.
    Free,
    /// Ranges (first, count) of the validation set.
    Evaluate {
        ranges: Vec<(u64, u64)>,
        which: Which,
    },
    Stop,
}

/// The work under way.
#[derive(Default)]
pub struct Job {
    /// Which: what was begun for one that was given up counts for no other.
    pub number: u64,
    /// What.
    pub work: Work,
    /// The next item that nobody has taken.
    pub next: usize,
    /// Items taken and not finished.
    pub busy: usize,
    /// What was counted.
    pub totals: Totals,
    /// The first worker that could not go on.
    pub failure: Option<TrainError>,
    /// Chores that nobody has taken.
    chores: VecDeque<Chore>,
    /// Chores taken and not done.
    chores_busy: usize,
}

impl Job {
    /// Takes the next of finitely many items; a chore where nothing is left to compute.
    fn take(&mut self) -> Option<Item> {
        self.take_computing().or_else(|| self.take_chore().map(Item::Chore))
    }

    fn take_chore(&mut self) -> Option<Chore> {
        let chore = self.chores.pop_front()?;
        self.chores_busy += 1;
        Some(chore)
    }

    fn take_computing(&mut self) -> Option<Item> {
        let (next, job) = (self.next, self.number);
        let item = match &self.work {
            Work::Train { owners, standing } => {
                let standing = *standing;
                owners.get(next).map(|&owner| Item::Train { job, owner, standing })
            }
            Work::Evaluate { ranges, which } => {
                let which = *which;
                ranges.get(next).map(|&(first, count)| Item::Evaluate { job, first, count, which })
            }
            Work::Nothing | Work::Stop | Work::Free => None,
        }?;
        self.next += 1;
        self.busy += 1;
        Some(item)
    }
}

/// One item, taken.
#[allow(missing_docs)]
pub enum Item {
    Train { job: u64, owner: u32, standing: Standing },
    Evaluate { job: u64, first: u64, count: u64, which: Which },
    Free { turn: Turn, round: Round },
    Chore(Chore),
}

/// The work of one rank's workers.
#[derive(Default)]
pub struct Board {
    job: Mutex<Job>,
    /// The job has changed.
    pub changed: Condvar,
    /// Micro-batches since the start that are computed, their samples being there: "back in the
    /// update loop" is when this moves.
    pub begun: AtomicU64,
    /// Microseconds that workers spent on micro-batches since the start.
    pub busy_micros: AtomicU64,
}

impl Board {
    /// The job at hand.
    pub fn lock(&self) -> MutexGuard<'_, Job> {
        self.job.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for an item; `None` when the pool stops.
    pub fn await_item(&self, free: Option<&FreeRun>) -> Option<Item> {
        let mut job = self.lock();
        loop {
            match job.work {
                Work::Stop => return None,
                Work::Free => {
                    drop(job);
                    let turn = free.and_then(|free| free.next_turn(WAKE_EVERY));
                    if let Some((turn, round)) = turn {
                        return Some(Item::Free { turn, round });
                    }
                    job = self.lock();
                    continue;
                }
                Work::Nothing | Work::Train { .. } | Work::Evaluate { .. } => {}
            }
            if let Some(item) = job.take() {
                return Some(item);
            }
            let waited = self.changed.wait_timeout(job, WAKE_EVERY);
            job = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits for a chore, whatever is being computed; `None` when the pool stops.
    fn await_chore(&self) -> Option<Chore> {
        let mut job = self.lock();
        loop {
            if let Some(chore) = job.take_chore() {
                return Some(chore);
            }
            if matches!(job.work, Work::Stop) {
                return None;
            }
            let waited = self.changed.wait_timeout(job, WAKE_EVERY);
            job = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The life of a hand: chores, until the pool stops.
    pub fn serve(&self) {
        while let Some(chore) = self.await_chore() {
            self.do_chore(chore);
        }
    }

    /// The owner whose micro-batch of the step at hand is taken next.
    pub fn next_owner(&self) -> Option<u32> {
        let job = self.lock();
        match &job.work {
            Work::Train { owners, .. } => owners.get(job.next).copied(),
            _ => None,
        }
    }

    /// The next item, if there is one.
    pub fn take_item(&self) -> Option<Item> {
        self.lock().take()
    }

    /// Begins another job, whatever has become of the one at hand.
    pub fn begin(&self, work: Work) {
        let mut job = self.lock();
        let (chores, chores_busy) = (std::mem::take(&mut job.chores), job.chores_busy);
        let (number, failure) = (job.number + 1, job.failure.take());
        *job = Job { number, work, failure, chores, chores_busy, ..Job::default() };
        drop(job);
        self.changed.notify_all();
    }

    /// More to do for whoever has nothing to compute.
    pub fn put_chores(&self, chores: impl IntoIterator<Item = Chore>) {
        self.lock().chores.extend(chores);
        self.changed.notify_all();
    }

    /// Does a chore that was taken.
    pub fn do_chore(&self, chore: Chore) {
        chore();
        self.lock().chores_busy -= 1;
        self.changed.notify_all();
    }

    /// Does chores until all are done, by whomever.
    pub fn finish_chores(&self) {
        loop {
            let mut job = self.lock();
            if let Some(chore) = job.take_chore() {
                drop(job);
                self.do_chore(chore);
            } else if job.chores_busy == 0 {
                return;
            } else {
                // Whoever has taken it does it or ends the process.
                drop(self.changed.wait_timeout(job, WAKE_EVERY));
            }
        }
    }

    /// Forgets the chores that nobody has taken, and waits for the others.
    pub fn drop_chores(&self) {
        self.lock().chores.clear();
        self.finish_chores();
    }

    /// An item of a job is done, with these sums.
    pub fn done(&self, number: u64, totals: &Totals) {
        let mut job = self.lock();
        if job.number != number {
            return;
        }
        job.totals.add(totals);
        job.busy = job.busy.saturating_sub(1);
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chores_are_done_after_computing_and_all_are_done_when_they_are_finished() {
        use std::sync::Arc;
        use std::sync::atomic::Ordering;
        let (board, done) = (Board::default(), Arc::new(AtomicU64::new(0)));
        board.begin(Work::Evaluate { ranges: vec![(0, 4)], which: Which::Trained });
        let chore = |_| {
            let done = Arc::clone(&done);
            Box::new(move || {
                done.fetch_add(1, Ordering::Relaxed);
            }) as Chore
        };
        board.put_chores((0..5).map(chore));
        assert!(matches!(board.take_item(), Some(Item::Evaluate { .. })));
        let Some(Item::Chore(taken)) = board.take_item() else { panic!("nothing to compute") };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(5));
                board.do_chore(taken);
            });
            board.finish_chores();
            assert_eq!(done.load(Ordering::Relaxed), 5);
        });
        board.put_chores((0..5).map(chore));
        board.drop_chores();
        assert_eq!(done.load(Ordering::Relaxed), 5, "nobody had taken them");
    }

    #[test]
    fn hands_do_chores_while_workers_compute_and_nothing_else() {
        use std::sync::Arc;
        use std::sync::atomic::Ordering;
        let (board, done) = (Board::default(), Arc::new(AtomicU64::new(0)));
        board.begin(Work::Evaluate { ranges: vec![(0, 4)], which: Which::Trained });
        let counted = Arc::clone(&done);
        let chore = move || {
            counted.fetch_add(1, Ordering::Relaxed);
        };
        std::thread::scope(|scope| {
            scope.spawn(|| board.serve());
            board.put_chores((0..3).map(|_| Box::new(chore.clone()) as Chore));
            board.finish_chores();
            assert_eq!(done.load(Ordering::Relaxed), 3);
            assert!(matches!(board.take_item(), Some(Item::Evaluate { .. })), "nobody took it");
            board.begin(Work::Stop);
        });
    }

    #[test]
    fn what_was_begun_for_a_job_that_was_given_up_is_not_counted() {
        let board = Board::default();
        let number = |item: Option<Item>| match item {
            Some(Item::Evaluate { job, .. }) => job,
            _ => panic!("a range is there"),
        };
        let totals = Totals { count: 4, ..Totals::default() };
        board.begin(Work::Evaluate { ranges: vec![(0, 4)], which: Which::Trained });
        let old = number(board.take_item());
        board.begin(Work::Evaluate { ranges: vec![(0, 4)], which: Which::Trained });
        let new = number(board.take_item());
        let counted = || {
            let job = board.lock();
            (job.totals.count, job.busy)
        };
        board.done(old, &totals);
        assert_eq!(counted(), (0, 1));
        board.done(new, &totals);
        assert_eq!(counted(), (4, 0));
    }
}
