//! A world that shrank sums in another grouping: other bits. If the deaths were the first of a
//! world that is being torn down, nobody wants those bits, since the next start has all ranks
//! again. So no step commits in a smaller world before the launcher has been heard of, and none
//! once this rank was asked to end (ARCHITECTURE.md, "Recovery: a machine and its driver"). The
//! wait overlaps the repair and the computing of what the lost ranks owned.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::cluster::guard::report;
use crate::observe::clock::Clock;
use crate::run_folder::heard::Heard;
use crate::train::TrainError;
use crate::train::vote::Requests;

/// Longest wait for the launcher. It looks every 20 ms; the rest is for slow file systems. Past it
/// the world ends and keeps its state: a launcher that lives starts it again.
const LAUNCHER_WAIT_MAX: Duration = Duration::from_secs(10);
/// How often its word is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// What the launcher has heard of; `None` where nobody launched this rank.
pub type Launcher = Option<Arc<dyn Fn() -> Option<Heard> + Send + Sync>>;

/// How a repaired world groups its sums, beside the world before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grouping {
    /// As that did: the same bits.
    Same,
    /// Otherwise.
    Other,
}

/// See the module.
pub struct Shrunk {
    launcher: Launcher,
    stop: Arc<AtomicBool>,
    /// The newest world since the one that shrank, until a step commits.
    since: Option<Heard>,
    /// The launcher knows of it.
    heard: bool,
    /// Somebody asked this rank to end meanwhile.
    torn_down: bool,
}

impl Shrunk {
    /// A world that has its size. `stop`: set by signals.
    pub fn new(launcher: Launcher, stop: Arc<AtomicBool>) -> Self {
        Self { launcher, stop, since: None, heard: false, torn_down: false }
    }

    /// A repair made this world.
    pub fn repaired(&mut self, world: Heard, grouping: Grouping) {
        if grouping == Grouping::Other || self.since.is_some() {
            (self.since, self.heard) = (Some(world), false);
        }
    }

    /// Its sums have become the run's.
    pub fn committed(&mut self) {
        (self.since, self.torn_down) = (None, false);
    }

    /// What follows for the next vote.
    pub fn ask(&self, requests: &mut Requests) {
        requests.inexact |= self.since.is_some();
        requests.torn_down |= self.torn_down;
    }

    /// Before the vote on a step: waits until the launcher is known to stand, or this rank is asked
    /// to end.
    ///
    /// # Errors
    /// Neither in time: nobody knows what is happening to this world.
    pub fn hear_of_launcher(&mut self, clock: &dyn Clock) -> Result<(), TrainError> {
        let Some(since) = self.since else { return Ok(()) };
        self.torn_down |= self.stop.load(Ordering::Relaxed);
        let Some(launcher) = self.launcher.clone().filter(|_| !self.heard) else { return Ok(()) };
        let end = clock.now().saturating_add(LAUNCHER_WAIT_MAX);
        report::waiting(|| {
            while !self.torn_down {
                self.heard = launcher().is_some_and(|heard| heard >= since);
                // After the answer: a signal that came before it counts.
                self.torn_down = self.stop.load(Ordering::Relaxed);
                if self.heard {
                    break;
                }
                if clock.now() >= end {
                    return Err(TrainError::JobLost(format!(
                        "the world shrank, and launch was not heard of for {} s: no step is \
                         committed by fewer ranks",
                        LAUNCHER_WAIT_MAX.as_secs()
                    )));
                }
                clock.sleep(LOOK_EVERY);
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use crate::observe::clock::RealClock;

    use super::*;

    fn at(generation: u32) -> Heard {
        Heard { attempt: 1, generation }
    }

    fn asked(shrunk: &Shrunk) -> (bool, bool) {
        let mut requests = Requests::default();
        shrunk.ask(&mut requests);
        (requests.inexact, requests.torn_down)
    }

    /// A launcher that answers the third look with this generation.
    fn shrunk(answer: u32) -> (Shrunk, Arc<AtomicBool>) {
        let (looks, stop) = (AtomicU32::new(0), Arc::new(AtomicBool::new(false)));
        let look = move || (looks.fetch_add(1, Ordering::Relaxed) >= 2).then_some(at(answer));
        (Shrunk::new(Some(Arc::new(look)), Arc::clone(&stop)), stop)
    }

    #[test]
    fn a_world_of_its_size_waits_for_nobody() {
        let (mut shrunk, stop) = shrunk(0);
        stop.store(true, Ordering::Relaxed);
        shrunk.repaired(at(7), Grouping::Same);
        shrunk.hear_of_launcher(&RealClock::default()).unwrap();
        assert_eq!(asked(&shrunk), (false, false));
    }

    #[test]
    fn a_smaller_world_commits_once_the_launcher_has_heard_of_it() {
        let (mut shrunk, _stop) = shrunk(2);
        shrunk.repaired(at(1), Grouping::Other);
        shrunk.repaired(at(2), Grouping::Same);
        shrunk.hear_of_launcher(&RealClock::default()).unwrap();
        assert_eq!(asked(&shrunk), (true, false));
        shrunk.committed();
        assert_eq!(asked(&shrunk), (false, false));
    }

    #[test]
    fn a_smaller_world_that_is_asked_to_end_ends_even_after_the_answer() {
        for heard in [false, true] {
            let (mut shrunk, stop) = shrunk(if heard { 1 } else { 0 });
            shrunk.repaired(at(1), Grouping::Other);
            if heard {
                shrunk.hear_of_launcher(&RealClock::default()).unwrap();
            }
            stop.store(true, Ordering::Relaxed);
            shrunk.hear_of_launcher(&RealClock::default()).unwrap();
            assert_eq!(asked(&shrunk), (true, true));
        }
    }
}
