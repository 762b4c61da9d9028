//! Several runs at a time, each on processors of its own: who gets which (pure), and the threads
//! that make them.

use std::io;
use std::ops::ControlFlow;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::ScopedJoinHandle;

use kintsugi_ffi::affinity;
use kintsugi_ffi::os::Signal;
use signal_hook::consts::signal::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::cluster::processors::machine::Machine;
use crate::observe::console::say;

/// Where runs are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Share {
    /// On all that this process has.
    Whole,
    /// On these processors.
    Of(Vec<u32>),
}

impl Share {
    /// How many processors a run has, where it does not have all.
    pub fn processors(&self) -> Option<usize> {
        match self {
            Self::Whole => None,
            Self::Of(processors) => Some(processors.len()),
        }
    }
}

/// A share for each of so many runs at a time: equally many processors, neighbours together.
///
/// # Errors
/// There are fewer processors than runs.
pub fn shares(machine: &Machine, jobs: u32) -> Result<Vec<Share>, String> {
    let each = machine.capacity / jobs;
    match (jobs, each) {
        (1, _) => Ok(vec![Share::Whole]),
        (_, 0) => Err(format!(
            "jobs = {jobs}: each run needs a processor of its own, and there are {}: give as many \
             jobs at most",
            machine.capacity
        )),
        _ => {
            let numbers: Vec<u32> = machine.processors.iter().map(|one| one.number).collect();
            let shares = numbers.chunks_exact(each as usize).take(jobs as usize);
            Ok(shares.map(|share| Share::Of(share.to_vec())).collect())
        }
    }
}

/// Makes runs 0 to `runs`, as many at a time as there are shares, begun in their order, until one
/// says that it is enough.
///
/// # Errors
/// The first that making one returned, or binding a thread: it is said at once, and returned once
/// what the others make has ended.
pub fn in_order(
    runs: usize,
    shares: &[Share],
    make: impl Fn(usize) -> io::Result<ControlFlow<()>> + Sync,
) -> io::Result<()> {
    let (next, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let work = |share: &Share| -> io::Result<()> {
        // What a thread starts runs where it does.
        if let Share::Of(processors) = share {
            affinity::bind_thread(processors)?;
        }
        while !is_over.load(Ordering::Relaxed) {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= runs || make(at)?.is_break() {
                break;
            }
        }
        Ok(())
    };
    // Whoever ends has found nothing left to make, or a reason for all to end.
    let ends_all = |share: &Share| {
        let worked = work(share);
        is_over.store(true, Ordering::Relaxed);
        if let (Err(error), true) = (&worked, shares.len() > 1) {
            say!("error: {error}; no further run is begun");
        }
        worked
    };
    std::thread::scope(|scope| {
        let threads = shares.iter().map(|share| scope.spawn(move || ends_all(share)));
        let threads: Vec<_> = threads.collect();
        let mut ended = threads.into_iter().map(ScopedJoinHandle::join);
        ended.try_for_each(|ended| ended.unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

/// What the user asks while runs are made; each of them hears it.
pub struct Requests(Mutex<(Signals, Vec<Signal>)>);

impl Requests {
    /// From now on Ctrl-C and SIGTERM are requests.
    ///
    /// # Errors
    /// The kernel's.
    pub fn listen() -> io::Result<Self> {
        Ok(Self(Mutex::new((Signals::new([SIGINT, SIGTERM])?, Vec::new()))))
    }

    /// All so far, in their order.
    pub fn heard(&self) -> Vec<Signal> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (signals, heard) = &mut *held;
        let passed_on = |signal| match signal {
            SIGTERM => Signal::Terminate,
            _ => Signal::Interrupt,
        };
        heard.extend(signals.pending().map(passed_on));
        heard.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn machine(processors: u32, capacity: usize) -> Machine {
        let allowed: Vec<u32> = (0..processors).collect();
        Machine::of(Path::new("/nowhere"), &allowed, capacity)
    }

    #[test]
    fn shares_are_equal_and_apart() {
        assert_eq!(shares(&machine(8, 8), 1), Ok(vec![Share::Whole]));
        let three = [[0, 1], [2, 3], [4, 5]].map(|pair| Share::Of(pair.to_vec()));
        assert_eq!(shares(&machine(7, 7), 3), Ok(three.to_vec()));
        // A quota of two processors' time on eight of them.
        let two = [[0], [1]].map(|one| Share::Of(one.to_vec()));
        assert_eq!(shares(&machine(8, 2), 2), Ok(two.to_vec()));
        assert!(shares(&machine(8, 2), 3).unwrap_err().contains("there are 2"));
    }

    #[test]
    fn as_many_are_made_at_a_time_as_there_are_shares_and_each_once() {
        let shares = vec![Share::Whole; 3];
        let together = std::sync::Barrier::new(3);
        let made = Mutex::new(Vec::new());
        let make = |at: usize| {
            together.wait();
            made.lock().unwrap().push(at);
            Ok(ControlFlow::Continue(()))
        };
        in_order(6, &shares, make).unwrap();
        let mut made = made.into_inner().unwrap();
        made.sort_unstable();
        assert_eq!(made, [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn whoever_fails_or_has_enough_ends_all() {
        let made = AtomicUsize::new(0);
        let count = |at: usize, end: io::Result<ControlFlow<()>>| {
            made.fetch_add(1, Ordering::Relaxed);
            if at == 1 { end } else { Ok(ControlFlow::Continue(())) }
        };
        in_order(9, &[Share::Whole], |at| count(at, Ok(ControlFlow::Break(())))).unwrap();
        assert_eq!(made.swap(0, Ordering::Relaxed), 2);
        let broken = || Err(io::Error::other("broken"));
        in_order(9, &[Share::Whole], |at| count(at, broken())).unwrap_err();
        assert_eq!(made.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn what_a_share_starts_runs_there() {
        let all = affinity::allowed().unwrap();
        let last = Share::Of(all[all.len() - 1..].to_vec());
        let seen = Mutex::new(Vec::new());
        let make = |_| {
            let mut nproc = std::process::Command::new("nproc");
            let child =
                nproc.env_remove("OMP_NUM_THREADS").env_remove("OMP_THREAD_LIMIT").output()?;
            seen.lock().unwrap().push(String::from_utf8_lossy(&child.stdout).trim().to_string());
            Ok(ControlFlow::Continue(()))
        };
        in_order(1, &[last], make).unwrap();
        assert_eq!(seen.into_inner().unwrap(), ["1"]);
        assert_eq!(affinity::allowed().unwrap(), all, "the caller keeps its own");
    }
}
