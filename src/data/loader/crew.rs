//! How many of a rank's decode threads work: a pure value that is told what a window of time was
//! like. More of them work while workers wait for data, as long as that makes the run faster, and
//! fewer while more than one has nothing to do. What a micro-batch holds does not depend on it.

use std::num::NonZero;
use std::time::{Duration, Instant};

/// Decode threads of a loader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Threads {
    /// So many; without one the callers of `take` decode.
    Fixed(usize),
    /// As many as workers at first, and then as the windows ask.
    Measured {
        /// Who take micro-batches at the same time.
        workers: usize,
        /// Never more, at least 1.
        most: usize,
    },
}

impl Threads {
    /// Those of a rank that asks for so many, 0: as measured. Never more than there are processors
    /// for this process, by its mask and by the quota of its control group.
    pub fn of_rank(asked: u32, workers: u32) -> Self {
        let most = std::thread::available_parallelism().map_or(usize::MAX, NonZero::get);
        match asked {
            0 => Self::Measured { workers: workers as usize, most },
            asked => Self::Fixed((asked as usize).min(most)),
        }
    }
}

/// A window has at least so many micro-batches...
const TAKEN_MIN: u64 = 16;
/// ...and lasts at least so long.
const WINDOW_MIN: Duration = Duration::from_secs(2);

/// A worker that waits for this share of its time wants more threads.
const WAITED_MANY: f64 = 0.05;
/// One that waits for less than this share has enough.
const WAITED_FEW: f64 = 0.01;
/// With so many threads' idle time one of them is not needed, and there is some left without it.
const IDLE_MANY: f64 = 1.5;
/// Windows in a row that must ask for the same.
const ASKED_MIN: u32 = 3;
/// A thread that was added stays if the run takes at least so many times as many micro-batches.
const GAIN_MIN: f64 = 1.03;
/// Windows in which none is added after one that did not help.
const REST_WINDOWS: u32 = 64;

/// What a window was like.
#[derive(Debug, Clone, Copy)]
struct Window {
    seconds: f64,
    /// Micro-batches that were taken.
    taken: u64,
    /// Workers that took them.
    workers: usize,
    /// Seconds that all of them waited.
    waited_seconds: f64,
    /// Seconds that working threads had nothing to decode, all together.
    idle_seconds: f64,
}

impl Window {
    /// Micro-batches a second.
    fn rate(&self) -> f64 {
        self.taken as f64 / self.seconds
    }

    fn waited(&self) -> f64 {
        self.waited_seconds / self.seconds / self.workers.max(1) as f64
    }

    /// Threads that had nothing to do.
    fn idle(&self) -> f64 {
        self.idle_seconds / self.seconds
    }

    fn asks(&self) -> Asked {
        if self.waited() > WAITED_MANY {
            Asked::More
        } else if self.waited() < WAITED_FEW && self.idle() > IDLE_MANY {
            Asked::Fewer
        } else {
            Asked::Same
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    More,
    Fewer,
    Same,
}

/// Another number of threads, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) why: String,
}

/// The number of threads that work now, and what led to it.
#[derive(Debug)]
pub(super) struct Crew {
    threads: Threads,
    active: usize,
    asked: Asked,
    /// Windows in a row that asked for it.
    times: u32,
    /// Micro-batches a second before the thread that was added last.
    before: Option<f64>,
    /// Windows until one may be added.
    rest: u32,
}

impl Crew {
    /// Those that work at first.
    pub(super) fn new(threads: Threads) -> Self {
        let active = match threads {
            Threads::Fixed(active) => active,
            Threads::Measured { workers, most } => workers.min(most).max(1),
        };
        Self { threads, active, asked: Asked::Same, times: 0, before: None, rest: 0 }
    }

    /// Threads that work.
    pub(super) fn active(&self) -> usize {
        self.active
    }

    /// A window has ended.
    fn on(&mut self, window: &Window, most: usize) -> Option<Change> {
        if let Some(before) = self.before.take()
            && window.rate() < before * GAIN_MIN
        {
            self.rest = REST_WINDOWS;
            return self.to(self.active - 1, "the last one made steps no faster".into());
        }
        self.rest = self.rest.saturating_sub(1);
        let asked = window.asks();
        self.times = if asked == self.asked { self.times + 1 } else { 1 };
        self.asked = asked;
        if self.times < ASKED_MIN {
            return None;
        }
        match asked {
            Asked::More if self.active < most && self.rest == 0 => {
                self.before = Some(window.rate());
                let share = 100.0 * window.waited();
                self.to(self.active + 1, format!("workers waited {share:.0} % of the time"))
            }
            Asked::Fewer if self.active > 1 => {
                let idle = window.idle();
                self.to(self.active - 1, format!("{idle:.1} of them had nothing to do"))
            }
            _ => None,
        }
    }

    fn to(&mut self, to: usize, why: String) -> Option<Change> {
        let from = std::mem::replace(&mut self.active, to);
        self.times = 0;
        Some(Change { from, to, why })
    }
}

/// Counts until a window is over.
#[derive(Debug)]
pub(super) struct Meter {
    begun: Instant,
    taken: u64,
    waited: Duration,
    idle: Duration,
}

impl Default for Meter {
    fn default() -> Self {
        let zero = Duration::ZERO;
        Self { begun: Instant::now(), taken: 0, waited: zero, idle: zero }
    }
}

impl Meter {
    /// A working thread had nothing to decode.
    pub(super) fn idled(&mut self, time: Duration) {
        self.idle += time;
    }

    /// A worker took a micro-batch after so long. What the crew makes of the window, if it is over
    /// now.
    pub(super) fn took(&mut self, waited: Duration, crew: &mut Crew) -> Option<Change> {
        let Threads::Measured { workers, most } = crew.threads else { return None };
        self.taken += 1;
        self.waited += waited;
        let time = self.begun.elapsed();
        if self.taken < TAKEN_MIN || time < WINDOW_MIN {
            return None;
        }
        let [seconds, waited_seconds, idle_seconds] =
            [time, self.waited, self.idle].map(|time| time.as_secs_f64());
        let taken = self.taken;
        *self = Self::default();
        crew.on(&Window { seconds, taken, workers, waited_seconds, idle_seconds }, most)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MOST: usize = 4;

    /// Begins with `first` threads.
    fn crew(first: usize) -> Crew {
        Crew::new(Threads::Measured { workers: first, most: MOST })
    }

    /// Two workers that waited for this share, and so many idle threads.
    fn window(rate: f64, waited: f64, idle: f64) -> Window {
        let (seconds, workers) = (4.0, 2);
        Window {
            seconds,
            taken: (rate * seconds) as u64,
            workers,
            waited_seconds: waited * seconds * workers as f64,
            idle_seconds: idle * seconds,
        }
    }

    fn steps(crew: &mut Crew, windows: &[Window]) -> Vec<usize> {
        windows.iter().filter_map(|window| crew.on(window, MOST)).map(|change| change.to).collect()
    }

    #[test]
    fn threads_come_while_workers_wait_and_stay_while_that_helps() {
        let mut crew = crew(2);
        let slow = window(10.0, 0.4, 0.0);
        assert_eq!(steps(&mut crew, &[slow; 2]), [0; 0], "not at the first sign");
        assert_eq!(steps(&mut crew, &[slow]), [3]);
        // Twice as fast: it stays, and another comes, which helps too. There is no fifth.
        assert_eq!(steps(&mut crew, &[window(20.0, 0.2, 0.0); 3]), [4]);
        assert_eq!(steps(&mut crew, &[window(30.0, 0.2, 0.0); 20]), [0; 0]);
        assert_eq!(crew.active(), 4);
    }

    #[test]
    fn a_thread_that_does_not_help_goes_and_is_not_tried_again_soon() {
        let mut crew = crew(1);
        let bound = window(10.0, 0.4, 0.0);
        let seen = steps(&mut crew, &[bound; 4 + REST_WINDOWS as usize - 1]);
        assert_eq!(seen, [2, 1]);
        assert_eq!(steps(&mut crew, &[bound; 2]), [2, 1], "then it is tried again");
    }

    #[test]
    fn idle_threads_are_parked_down_to_one_but_not_where_workers_wait() {
        let idle = window(10.0, 0.0, 2.5);
        let mut many = crew(4);
        assert_eq!(steps(&mut many, &[idle; 9]), [3, 2, 1]);
        assert_eq!(steps(&mut many, &[idle; 9]), [0; 0]);
        let mut two = crew(2);
        assert_eq!(steps(&mut two, &[window(10.0, 0.03, 2.0); 9]), [0; 0], "they wait a little");
        assert_eq!(steps(&mut two, &[window(10.0, 0.0, 1.4); 9]), [0; 0], "there is little left");
    }

    #[test]
    fn what_changes_from_window_to_window_changes_nothing() {
        let windows = [window(10.0, 0.4, 0.0), window(10.0, 0.0, 1.9)].repeat(20);
        assert_eq!(steps(&mut crew(2), &windows), [0; 0]);
    }

    #[test]
    fn a_window_takes_its_time_and_a_fixed_number_is_not_measured() {
        let (mut meter, mut measured) = (Meter::default(), crew(1));
        let mut fixed = Crew::new(Threads::Fixed(3));
        for _ in 0..10 * TAKEN_MIN {
            assert_eq!(meter.took(Duration::from_secs(9), &mut measured), None, "at once");
            assert_eq!(Meter::default().took(Duration::from_secs(9), &mut fixed), None);
        }
        assert_eq!((meter.taken, fixed.active()), (10 * TAKEN_MIN, 3));
    }

    #[test]
    fn nobody_gets_more_threads_than_there_are_processors() {
        let processors = std::thread::available_parallelism().expect("Linux says it").get();
        let active = |asked, workers| Crew::new(Threads::of_rank(asked, workers)).active();
        assert_eq!([active(1, 9), active(u32::MAX, 9)], [1, processors]);
        assert_eq!([active(0, 1), active(0, u32::MAX)], [1, processors]);
    }

    proptest! {
        #[test]
        fn there_is_always_one_and_never_more_than_the_quota(
            first in 1..=MOST,
            windows in prop::collection::vec((0.0f64..50.0, 0.0f64..1.0, 0.0f64..6.0), 0..300),
        ) {
            let mut crew = crew(first);
            let mut now = first;
            for (rate, waited, idle) in windows {
                if let Some(Change { from, to, .. }) = crew.on(&window(rate, waited, idle), MOST) {
                    prop_assert_eq!((from, from.abs_diff(to)), (now, 1));
                    now = to;
                }
                prop_assert!((1..=MOST).contains(&crew.active()) && crew.active() == now);
            }
        }
    }
}
