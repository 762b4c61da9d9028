//! A replacement that its launcher never answers starts itself again. PMIx's server can lose sight
//! of a new process's connection when several died just before (`ulfm-shim/pmix_start.c`); MPI's
//! start then waits for ever, and with it the leader that spawned. The same program in the same
//! process connects anew, which the server takes for a process of the same rank.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use super::judge::Joins;

/// Looks in a row, one a beat, that see it wait: 1 s. A whole spawn takes 0.2 s.
const WAITS_MAX: u32 = 10;
/// The same once it was forgotten: each of several deaths can cost one connection, in a row.
const WAITS_AGAIN_MAX: u32 = 3;
/// How often one process starts itself again: 5 s, of the 10 s that a leader waits.
const AGAIN_MAX: u32 = 12;
/// How often it did so already.
const AGAIN: &str = "KINTSUGI_STARTED_AGAIN";

/// What was seen of the launcher's answer.
#[derive(Debug)]
pub(super) struct Forgotten {
    waits: u32,
    again: u32,
    joins: Joins,
    /// Whether it is still to be told that this process started itself again.
    unwritten: bool,
}

impl Forgotten {
    /// Of this process.
    pub(super) fn new(joins: Joins) -> Self {
        let again = std::env::var(AGAIN).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
        Self { waits: 0, again, joins, unwritten: again > 0 }
    }

    /// One look; whether to start again.
    pub(super) fn looks(&mut self, waits_for_launcher: impl FnOnce() -> bool) -> bool {
        // Only now: the log that a rank writes to is emptied when it starts.
        if std::mem::take(&mut self.unwritten) {
            tracing::warn!("mpirun did not answer this replacement, which started itself again");
        }
        if self.joins == Joins::First || self.again >= AGAIN_MAX {
            return false;
        }
        self.waits = if waits_for_launcher() { self.waits + 1 } else { 0 };
        self.waits >= if self.again == 0 { WAITS_MAX } else { WAITS_AGAIN_MAX }
    }

    /// Starts this process's program again, with the same arguments and pid, and ends its guardian:
    /// the new start has one. Returns where that fails; the bound on MPI's start remains.
    pub(super) fn start_again(&mut self, program: &str, guardian: &mut Child) {
        self.again += 1;
        let mut command = Command::new(program);
        command.args(std::env::args_os().skip(1)).env(AGAIN, self.again.to_string());
        if let Err(error) = guardian.kill().and_then(|()| guardian.wait()) {
            tracing::warn!("this replacement's guardian does not end ({error})");
            return;
        }
        let error = command.exec();
        tracing::warn!("mpirun does not answer, and starting again failed: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(joins: Joins, again: u32) -> Forgotten {
        Forgotten { waits: 0, again, joins, unwritten: false }
    }

    #[test]
    fn a_replacement_that_waits_for_a_second_starts_again() {
        let mut forgotten = of(Joins::Later, 0);
        let verdicts: Vec<bool> = (0..WAITS_MAX).map(|_| forgotten.looks(|| true)).collect();
        let (last, before) = verdicts.split_last().expect("looks");
        assert!(*last && before.iter().all(|again| !again), "{verdicts:?}");
    }

    #[test]
    fn one_that_was_forgotten_before_waits_less() {
        let mut forgotten = of(Joins::Later, 1);
        let verdicts: Vec<bool> = (0..WAITS_AGAIN_MAX).map(|_| forgotten.looks(|| true)).collect();
        assert_eq!(verdicts, [false, false, true]);
    }

    #[test]
    fn an_answer_in_between_starts_the_count_anew() {
        let mut forgotten = of(Joins::Later, 0);
        for look in 0..10 * WAITS_MAX {
            assert!(!forgotten.looks(|| look % WAITS_MAX != 0), "look {look}");
        }
    }

    #[test]
    fn neither_a_first_rank_nor_one_that_tried_too_often_starts_again() {
        for mut forgotten in [of(Joins::First, 0), of(Joins::Later, AGAIN_MAX)] {
            assert!((0..100).all(|_| !forgotten.looks(|| true)), "{forgotten:?}");
        }
    }
}
