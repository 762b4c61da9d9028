//! Workers without threads: in simulation a rank's micro-batches are computed on its own thread,
//! by something cheaper than the engine. Everything around the arithmetic (loading, sums, totals,
//! injected faults) is that of the threads.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use crate::engine::Compute;

use crate::train::compute::pool::Board;
use crate::train::compute::pool::Item;
use crate::train::compute::pool::Pool;
use crate::train::compute::pool::Shared;
use crate::train::compute::pool::Work;
use crate::train::compute::pool::Worker;

/// The one worker of a pool without threads.
pub(in crate::train) struct Desk(Mutex<Worker<Box<dyn Compute + Send>>>);

impl Pool {
    /// A pool that computes whatever it is given before it returns. Only synchronous runs.
    pub fn inline(shared: Shared, compute: Box<dyn Compute + Send>) -> Self {
        let (shared, board) = (Arc::new(shared), Arc::new(Board::default()));
        let worker = Worker::new(Arc::clone(&shared), compute);
        let inline = Some(Desk(Mutex::new(worker)));
        Self { shared, board, threads: Vec::new(), inline }
    }

    /// Without threads: computes everything that is to be done.
    pub(in crate::train) fn work_inline(&self) {
        let Some(Desk(worker)) = &self.inline else { return };
        let mut worker = worker.lock().unwrap_or_else(PoisonError::into_inner);
        // Every round takes one of the finitely many items of the work at hand.
        while let Some(item) = self.take_item() {
            let performed = worker.perform(&item, &self.board);
            // Real time has no place in a simulated run: it would not replay.
            self.board.busy_micros.store(0, Ordering::Relaxed);
            if let Err(failure) = performed {
                let mut job = self.board.lock();
                job.failure.get_or_insert(failure);
                job.busy = 0;
                return;
            }
        }
    }

    fn take_item(&self) -> Option<Item> {
        let mut job = self.board.lock();
        let index = job.next;
        let item = match &job.work {
            Work::Train { owners, standing } => {
                let standing = *standing;
                owners.get(index).map(|&owner| Item::Train { turn: index, owner, standing })
            }
            Work::Evaluate { ranges } => {
                ranges.get(index).map(|&(first, count)| Item::Evaluate { first, count })
            }
            Work::Nothing | Work::Stop | Work::Free { .. } => None,
        }?;
        job.next += 1;
        job.busy += 1;
        Some(item)
    }
}
