//! Several runs at a time, each on processors of its own: who has which when (pure), the threads
//! that make them, and how a run changes places.

use std::io;
use std::ops::ControlFlow;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use kintsugi_ffi::affinity;
use kintsugi_ffi::os::Signal;
use kintsugi_ffi::process;
use signal_hook::consts::signal::{SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::cluster::processors::machine::Machine;
use crate::launch::stops::Script;
use crate::observe::console::say;

/// For so long a run stays where it is. Processors differ (on a shared machine by several per cent,
/// for minutes), so runs at a time change places: each then has had all of them for as long.
const TURN: Duration = Duration::from_millis(500);

/// Where runs are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Share {
    /// On all that this process has.
    Whole,
    /// On a part of it, on another in the next turn.
    InTurns(Turns),
}

/// Where one of several runs at a time is in which turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turns {
    /// Processors, equally many in each, which are apart.
    places: Vec<Vec<u32>>,
    /// The place in the first turn; then the next one.
    first: usize,
    /// When the first began.
    since: Instant,
}

impl Turns {
    fn turn(&self, now: Instant) -> usize {
        let turn = now.saturating_duration_since(self.since).as_millis() / TURN.as_millis();
        usize::try_from(turn).unwrap_or(0)
    }

    fn place(&self, turn: usize) -> &[u32] {
        &self.places[(self.first + turn) % self.places.len()]
    }

    /// What stands for a processor of any place in one turn; others stand for themselves.
    fn stands_for(&self, number: u32, turn: usize) -> u32 {
        let mut places = self.places.iter();
        let at = places.find_map(|place| place.iter().position(|one| *one == number));
        at.map_or(number, |at| self.place(turn)[at])
    }
}

impl Share {
    /// How many processors a run has, where it does not have all.
    pub fn processors(&self) -> Option<usize> {
        match self {
            Self::Whole => None,
            Self::InTurns(turns) => turns.places.first().map(Vec::len),
        }
    }

    /// Binds the calling thread, and so what it starts, to the place of this turn.
    ///
    /// # Errors
    /// The kernel's.
    fn take(&self) -> io::Result<()> {
        match self {
            Self::Whole => Ok(()),
            Self::InTurns(turns) => affinity::bind_thread(turns.place(turns.turn(Instant::now()))),
        }
    }
}

/// Takes what a run consists of along, from place to place.
pub struct Mover<'a> {
    share: &'a Share,
    moved_in: Option<usize>,
}

impl<'a> Mover<'a> {
    /// Of a run that is made there.
    pub fn new(share: &'a Share) -> Self {
        Self { share, moved_in: None }
    }

    /// To be called several times a turn with who was started for the run. Whoever is started by a
    /// process that is not moved yet is met in the next turn.
    ///
    /// # Errors
    /// The kernel's.
    pub fn tend(&mut self, child: u32) -> io::Result<()> {
        let Share::InTurns(turns) = self.share else { return Ok(()) };
        let turn = turns.turn(Instant::now());
        if self.moved_in.replace(turn) == Some(turn) {
            return Ok(());
        }
        affinity::bind_thread(turns.place(turn))?;
        let stands_for = |number| turns.stands_for(number, turn);
        let below = process::descendants_of(child).into_iter();
        below.chain([child]).try_for_each(|pid| affinity::move_process(pid, stands_for))
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
            let places = numbers.chunks_exact(each as usize).map(<[u32]>::to_vec);
            let places: Vec<Vec<u32>> = places.take(jobs as usize).collect();
            let since = Instant::now();
            let share = |first| Share::InTurns(Turns { places: places.clone(), first, since });
            Ok((0..places.len()).map(share).collect())
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
    make: impl Fn(usize, &Share) -> io::Result<ControlFlow<()>> + Sync,
) -> io::Result<()> {
    let (next, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let work = |share: &Share| -> io::Result<()> {
        while !is_over.load(Ordering::Relaxed) {
            share.take()?;
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= runs || make(at, share)?.is_break() {
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
pub struct Requests(Mutex<(Signals, Script, Vec<Signal>)>);

impl Requests {
    /// From now on Ctrl-C, Ctrl-\, SIGTERM and the end of a job's script are requests.
    ///
    /// # Errors
    /// The kernel's.
    pub fn listen() -> io::Result<Self> {
        Ok(Self(Mutex::new((
            Signals::new([SIGINT, SIGQUIT, SIGTERM])?,
            Script::of_job(),
            Vec::new(),
        ))))
    }

    /// All so far, in their order.
    pub fn heard(&self) -> Vec<Signal> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (signals, script, heard) = &mut *held;
        let passed_on = |signal| match signal {
            SIGTERM => Signal::Terminate,
            _ => Signal::Interrupt,
        };
        heard.extend(signals.pending().map(passed_on));
        if heard.is_empty() && script.has_ended() {
            heard.push(Signal::Terminate);
        }
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

    /// The place of every share in a turn.
    fn places(shares: &[Share], turn: u32) -> Vec<&[u32]> {
        fn place(share: &Share, turn: u32) -> &[u32] {
            let Share::InTurns(turns) = share else { panic!("it moves") };
            turns.place(turns.turn(turns.since + TURN * turn))
        }
        shares.iter().map(|share| place(share, turn)).collect()
    }

    #[test]
    fn shares_are_equal_and_apart_and_change_places() {
        assert_eq!(shares(&machine(8, 8), 1), Ok(vec![Share::Whole]));
        let three = shares(&machine(7, 7), 3).unwrap();
        assert_eq!(places(&three, 0), [[0, 1], [2, 3], [4, 5]]);
        assert_eq!(places(&three, 1), [[2, 3], [4, 5], [0, 1]]);
        assert_eq!(places(&three, 5), [[4, 5], [0, 1], [2, 3]]);
        let Share::InTurns(turns) = &three[0] else { panic!("it moves") };
        assert_eq!([0, 3, 5, 6].map(|number| turns.stands_for(number, 1)), [2, 3, 3, 6]);
        // A quota of two processors' time on eight of them.
        assert_eq!(places(&shares(&machine(8, 2), 2).unwrap(), 0), [[0], [1]]);
        assert!(shares(&machine(8, 2), 3).unwrap_err().contains("there are 2"));
    }

    #[test]
    fn as_many_are_made_at_a_time_as_there_are_shares_and_each_once() {
        let shares = vec![Share::Whole; 3];
        let together = std::sync::Barrier::new(3);
        let made = Mutex::new(Vec::new());
        let make = |at: usize, _: &Share| {
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
        in_order(9, &[Share::Whole], |at, _| count(at, Ok(ControlFlow::Break(())))).unwrap();
        assert_eq!(made.swap(0, Ordering::Relaxed), 2);
        let broken = || Err(io::Error::other("broken"));
        in_order(9, &[Share::Whole], |at, _| count(at, broken())).unwrap_err();
        assert_eq!(made.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn what_a_share_starts_runs_there_and_moves_with_it() {
        let all = affinity::allowed().unwrap();
        let (first, last) = (all[0], all[all.len() - 1]);
        // In the second of places whose turn ends in a thousand years; then in the other.
        let since = Instant::now() + Duration::from_secs(1 << 35);
        let places = vec![vec![first], vec![last]];
        let far = |first| Share::InTurns(Turns { places: places.clone(), first, since });
        let make = |_: usize, _: &Share| {
            let mut child = std::process::Command::new("sleep").arg("60").spawn()?;
            let list = || {
                let status = std::fs::read_to_string(format!("/proc/{}/status", child.id()))?;
                let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
                io::Result::Ok(line.unwrap().trim().to_string())
            };
            assert_eq!(list()?, last.to_string());
            Mover::new(&far(0)).tend(child.id())?;
            assert_eq!(list()?, first.to_string());
            child.kill()?;
            child.wait()?;
            Ok(ControlFlow::Continue(()))
        };
        in_order(1, &[far(1)], make).unwrap();
        assert_eq!(affinity::allowed().unwrap(), all, "the caller keeps its own");
    }
}
