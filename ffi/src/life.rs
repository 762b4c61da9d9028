//! Whether a process of this machine lives, ends or is gone, as proc(5) says. A killed process
//! computes nothing more from the moment it *ends*; that it is gone (its locks freed, its parent
//! told) comes when the kernel has freed its memory, up to 100 ms later for a large one.

use crate::os;
use crate::proc::Stat;

/// Bits of a mark that hold the start time and the pid space; the rest is the pid, which has 22.
const START_BITS: u32 = 26;
const SPACE_BITS: u32 = 16;

/// How far a process has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// It may do anything.
    Lives,
    /// Not one of its threads executes an instruction of its own any more.
    Ends,
    /// There is none, or it cannot be seen from here.
    Unknown,
}

/// Names one process of this machine in one word, as long as the machine runs: pid, start time and
/// pid namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark(u64);

impl Mark {
    /// Nobody's.
    pub const NONE: Self = Self(0);

    /// This process's.
    pub fn own() -> Self {
        Self::of(std::process::id())
    }

    /// Of a process that is seen from here; `NONE` where there is none.
    pub fn of(pid: u32) -> Self {
        let Some(seen) = Seen::at(pid) else { return Self::NONE };
        let start = seen.start_ticks & ((1 << START_BITS) - 1);
        Self(u64::from(pid) << (START_BITS + SPACE_BITS) | start << SPACE_BITS | space())
    }

    /// As `word` gave it.
    pub fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// To write down.
    pub fn word(self) -> u64 {
        self.0
    }

    /// Whether it ends or is gone. One of another pid namespace is never seen to be.
    pub fn is_over(self) -> bool {
        let seen = self != Self::NONE && self.0 & ((1 << SPACE_BITS) - 1) == space();
        seen && self.life() != Life::Lives
    }

    /// What has become of it.
    pub fn life(self) -> Life {
        if self == Self::NONE || self.0 & ((1 << SPACE_BITS) - 1) != space() {
            return Life::Unknown;
        }
        let pid = (self.0 >> (START_BITS + SPACE_BITS)) as u32;
        match Seen::at(pid) {
            Some(_) if Self::of(pid) != self => Life::Unknown,
            Some(seen) if seen.ends => Life::Ends,
            Some(_) => Life::Lives,
            None => Life::Unknown,
        }
    }
}

fn space() -> u64 {
    os::pid_space() & ((1 << SPACE_BITS) - 1)
}

struct Seen {
    ends: bool,
    start_ticks: u64,
}

impl Seen {
    /// The first thread's line: the kernel need not sum up all of them. When that thread ends, so
    /// does, at its next instruction, every other.
    fn at(pid: u32) -> Option<Self> {
        let stat = Stat::of_thread(pid, pid)?;
        Some(Self { ends: stat.ends(), start_ticks: stat.start_ticks()? })
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_process_lives_then_ends_then_is_gone() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("sleep");
        let mark = Mark::of(child.id());
        assert_eq!((mark.life(), Mark::own().life()), (Life::Lives, Life::Lives));
        assert_eq!(Mark::from_word(mark.word()), mark);
        child.kill().expect("ours");
        let limit = Instant::now() + Duration::from_secs(10);
        while mark.life() == Life::Lives && Instant::now() < limit {
            std::thread::yield_now();
        }
        assert_eq!(mark.life(), Life::Ends, "nobody has waited for it yet");
        assert!(mark.is_over() && !Mark::own().is_over());
        child.wait().expect("ours");
        assert_eq!(mark.life(), Life::Unknown);
        assert!(mark.is_over());
    }

    #[test]
    fn another_process_with_the_same_pid_is_not_it() {
        let own = Mark::own();
        let earlier = Mark::from_word(own.word() ^ 1 << SPACE_BITS);
        let elsewhere = Mark::from_word(own.word() ^ 1);
        assert_eq!([earlier, elsewhere, Mark::NONE].map(Mark::life), [Life::Unknown; 3]);
        assert_eq!([earlier, elsewhere, Mark::NONE].map(Mark::is_over), [true, false, false]);
    }
}
