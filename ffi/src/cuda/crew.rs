//! Threads of the host that copy together: one alone is slower than memory and link. They wait for
//! the next copy instead of being started for it, which would take longer than most copies do.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::result::{Error, refused};

/// A thread for less costs more than it gains.
const PART_BYTES: usize = 1 << 20;

/// Whoever has a copy to make helps with it. They end when this does.
pub struct Crew {
    shared: Arc<Shared>,
    hands: usize,
}

#[derive(Default)]
struct Shared {
    board: Mutex<Board>,
    /// There are parts, or it is over.
    changed: Condvar,
}

#[derive(Default)]
struct Board {
    parts: VecDeque<Part>,
    over: bool,
}

/// Whose copy comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// The card waits for it, or what it computed.
    First,
    /// It is wanted later.
    Last,
}

/// Bytes that one thread copies.
struct Part {
    from: *const u8,
    to: *mut u8,
    bytes: usize,
    of: Arc<Copying>,
}

// SAFETY: who made the part waits until it is copied, and holds both ends of it meanwhile.
unsafe impl Send for Part {}

/// Parts of one copy that are not copied yet.
struct Copying {
    left: Mutex<usize>,
    done: Condvar,
}

fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Crew {
    /// So many threads, with the one that asks for a copy.
    ///
    /// # Errors
    /// `Refused` where a thread cannot be started.
    pub fn new(threads: usize) -> Result<Self, Error> {
        let hands = threads.saturating_sub(1);
        let crew = Self { shared: Arc::default(), hands };
        for hand in 0..hands {
            let shared = Arc::clone(&crew.shared);
            let thread = std::thread::Builder::new().name(format!("copy-{hand}"));
            if let Err(error) = thread.spawn(move || shared.work()) {
                return refused("clone", error.to_string());
            }
        }
        Ok(crew)
    }

    /// Copies bytes.
    ///
    /// # Safety
    /// `from` can be read and `to` written for so many bytes, and they do not overlap.
    pub(super) unsafe fn copy(&self, from: *const u8, to: *mut u8, bytes: usize, turn: Turn) {
        if bytes <= PART_BYTES || self.hands == 0 {
            // SAFETY: the caller's.
            unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
            return;
        }
        let starts = (0..bytes).step_by(PART_BYTES);
        let of = Arc::new(Copying { left: Mutex::new(starts.len()), done: Condvar::new() });
        let part = |start: usize| Part {
            // SAFETY: it lies within.
            from: unsafe { from.add(start) },
            // SAFETY: as above.
            to: unsafe { to.add(start) },
            bytes: PART_BYTES.min(bytes - start),
            of: Arc::clone(&of),
        };
        let parts = starts.map(part);
        match turn {
            Turn::First => parts.for_each(|part| hold(&self.shared.board).parts.push_front(part)),
            Turn::Last => hold(&self.shared.board).parts.extend(parts),
        }
        self.shared.changed.notify_all();
        // Longer than for its own nobody helps.
        while *hold(&of.left) > 0 {
            let Some(part) = self.shared.take() else { break };
            part.copy();
        }
        let mut left = hold(&of.left);
        while *left > 0 {
            left = of.done.wait(left).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        hold(&self.shared.board).over = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn take(&self) -> Option<Part> {
        hold(&self.board).parts.pop_front()
    }

    /// The life of a thread.
    fn work(&self) {
        let mut board = hold(&self.board);
        while !board.over {
            match board.parts.pop_front() {
                Some(part) => {
                    drop(board);
                    part.copy();
                    board = hold(&self.board);
                }
                None => {
                    board = self.changed.wait(board).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }
}

impl Part {
    fn copy(self) {
        // SAFETY: the parts of a copy do not overlap, and it lasts until this one is counted.
        unsafe { std::ptr::copy_nonoverlapping(self.from, self.to, self.bytes) };
        let mut left = hold(&self.of.left);
        *left -= 1;
        if *left == 0 {
            self.of.done.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_copied_whoever_asks_and_however_many_there_are() {
        let crews = [1, 2, 5].map(|threads| Crew::new(threads).expect("threads"));
        for bytes in [0, 1, PART_BYTES, PART_BYTES + 1, 7 * PART_BYTES - 3] {
            let from: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
            for crew in &crews {
                let copied = |turn| {
                    let mut to = vec![0; bytes];
                    // SAFETY: two vectors of so many bytes.
                    unsafe { crew.copy(from.as_ptr(), to.as_mut_ptr(), bytes, turn) };
                    to == from
                };
                std::thread::scope(|scope| {
                    let turns = [Turn::First, Turn::Last, Turn::Last];
                    let others = turns.map(|turn| scope.spawn(move || copied(turn)));
                    assert!(copied(Turn::First));
                    assert!(others.into_iter().all(|other| other.join().expect("it ends")));
                });
            }
        }
    }
}
