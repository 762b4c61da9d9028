//! Slow ranks: everybody waits for the slowest, so it is worth a name. Each rank's time to compute
//! its part of a step travels with the step's totals; who needs twice as long per owner as the
//! others, by the median over many steps, is reported, and replaced where that is asked for.

use std::collections::VecDeque;
use std::time::Duration;

use kintsugi_ffi::os;

use crate::cluster::guard::report;
use crate::observe::event::Kind;

use crate::train::exchange::Sums;
use crate::train::record::journal::Journal;
use crate::train::state::rank::Rank;

/// Steps that a judgement rests on.
pub const WINDOW: usize = 50;
/// So many times the others' median is slow...
const SLOW_FACTOR: f64 = 2.0;
/// ... and below so many times it is slow no more.
const RECOVERED_FACTOR: f64 = 1.5;
/// Differences below this are the scheduler's.
const DIFFERENCE_MIN_MICROS: f64 = 2000.0;
/// Slow ranks that are replaced in one attempt: where replacements are slow as well, the machine
/// is.
const REPLACED_MAX: usize = 3;
/// A repaired world's first steps say little: nothing is written before so many.
const WRITTEN_FROM: usize = 5;
/// Events of per-rank times are written at most this often.
const EVENT_EVERY: Duration = Duration::from_secs(1);

/// A rank that holds the others up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slow {
    /// Which.
    pub rank: usize,
    /// How many times longer than the others' median it takes for an owner's part.
    pub factor: f64,
}

/// The last steps of every rank of one world.
#[derive(Debug, Default)]
pub struct Pace {
    generation: u32,
    /// Microseconds of the last steps, per rank.
    steps: Vec<VecDeque<u64>>,
    /// Owners that each rank computes.
    owners: Vec<usize>,
    reported: Vec<bool>,
    /// When times were last written down.
    pub written: Option<Duration>,
}

impl Pace {
    /// Takes a committed step: each rank's microseconds. A repaired world begins anew. Returns a
    /// rank that has just become slow.
    pub fn on(&mut self, generation: u32, owners: &[usize], micros: &[u64]) -> Option<Slow> {
        if self.generation != generation || self.owners != owners {
            let none = vec![VecDeque::new(); micros.len()];
            (self.generation, self.steps, self.owners) = (generation, none, owners.to_vec());
            self.reported = vec![false; micros.len()];
        }
        for (steps, &micros) in self.steps.iter_mut().zip(micros) {
            if steps.len() == WINDOW {
                steps.pop_front();
            }
            steps.push_back(micros);
        }
        (0..self.steps.len()).find_map(|rank| self.judge(rank))
    }

    /// Steps of this world that are known, up to the window.
    fn steps(&self) -> usize {
        self.steps.first().map_or(0, VecDeque::len)
    }

    fn judge(&mut self, rank: usize) -> Option<Slow> {
        if self.steps[rank].len() < WINDOW {
            return None;
        }
        let mine = self.per_owner(rank)?;
        let others: Vec<f64> = (0..self.steps.len())
            .filter(|other| *other != rank)
            .filter_map(|other| self.per_owner(other))
            .collect();
        let others = median(others)?;
        let (factor, difference) = (mine / others.max(1.0), mine - others);
        if factor < RECOVERED_FACTOR {
            self.reported[rank] = false;
        }
        let slow = factor >= SLOW_FACTOR && difference >= DIFFERENCE_MIN_MICROS;
        (slow && !std::mem::replace(&mut self.reported[rank], true))
            .then_some(Slow { rank, factor })
    }

    /// Median microseconds for one owner's part; nothing of a rank without owners.
    fn per_owner(&self, rank: usize) -> Option<f64> {
        let owners = self.owners.get(rank).copied().filter(|owners| *owners > 0)?;
        Some(self.median_micros(rank)? / owners as f64)
    }

    fn median_micros(&self, rank: usize) -> Option<f64> {
        median(self.steps[rank].iter().map(|&micros| micros as f64).collect())
    }

    /// Median seconds that each rank computes in a step.
    pub fn rank_seconds(&self) -> Vec<f64> {
        let micros = (0..self.steps.len()).map(|rank| self.median_micros(rank).unwrap_or(0.0));
        micros.map(|micros| micros * 1e-6).collect()
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

impl Pace {
    /// After a commit: reports a rank that has become slow; such a rank leaves if that is asked
    /// for, and the ladder replaces it.
    pub fn watch(&mut self, rank: &Rank, journal: &mut Journal, sums: &Sums) {
        let ranks = rank.comm.size();
        if sums.rank_micros.len() != ranks {
            return;
        }
        let owners: Vec<usize> = (0..ranks).map(|at| rank.world.owners_of(at).len()).collect();
        if let Some(slow) = self.on(rank.world.generation, &owners, &sums.rank_micros) {
            report_slow(rank, journal, slow);
        }
        let now = rank.clock.now();
        let due = self.written.is_none_or(|last| now.saturating_sub(last) >= EVENT_EVERY);
        if due && self.steps() >= WRITTEN_FROM && rank.is_writer() {
            self.written = Some(now);
            journal.event(rank.place(), Kind::Pace { rank_seconds: self.rank_seconds() });
        }
    }
}

fn report_slow(own: &Rank, journal: &mut Journal, Slow { rank, factor }: Slow) {
    let what = format!("{factor:.1} times the others' median over {WINDOW} steps");
    if own.is_writer() {
        let member = own.world.member_at(rank);
        let place = member.map(|m| format!("member {}, pid {} on {}", m.member, m.pid, m.host));
        let place = place.unwrap_or_default();
        let message = format!("rank {rank} ({place}) is slow: it computes {what}");
        journal.event(own.place(), Kind::Warning { message });
    }
    let replaces = own.plan.replaces_slow && rank == own.comm.rank() && own.comm.size() > 1;
    if replaces && report::verdicts_beginning(REPLACED) < REPLACED_MAX {
        report::last_words(&format!("{REPLACED} {what}, recovery.replace_slow"));
        os::kill_self_now();
    }
}

/// How the last words of a replaced rank begin.
const REPLACED: &str = "slow:";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn after(pace: &mut Pace, steps: usize, micros: &[u64]) -> Vec<Slow> {
        let owners = vec![3; micros.len()];
        (0..steps).filter_map(|_| pace.on(1, &owners, micros)).collect()
    }

    #[test]
    fn a_slow_rank_is_named_once() {
        let mut pace = Pace::default();
        let slow = after(&mut pace, 200, &[10_000, 10_500, 31_000, 9_800]);
        assert_eq!(slow.len(), 1, "{slow:?}");
        assert_eq!(slow[0].rank, 2);
        assert!((slow[0].factor - 3.1).abs() < 0.2, "{slow:?}");
        assert!((pace.rank_seconds()[2] - 0.031).abs() < 1e-9);
        // It recovers, and is named again when it is slow again.
        assert_eq!(after(&mut pace, 100, &[10_000; 4]), []);
        assert_eq!(after(&mut pace, 100, &[10_000, 10_000, 25_000, 10_000]).len(), 1);
    }

    #[test]
    fn a_hiccup_a_short_difference_or_more_work_is_not_slowness() {
        let mut pace = Pace::default();
        assert_eq!(after(&mut pace, 100, &[10_000; 4]), []);
        assert_eq!(after(&mut pace, 20, &[10_000, 90_000, 10_000, 10_000]), []);
        assert_eq!(after(&mut Pace::default(), 100, &[100, 900, 100, 100]), []);
        let mut pace = Pace::default();
        for _ in 0..100 {
            let more_owners = pace.on(1, &[1, 3, 1], &[10_000, 30_000, 10_000]);
            assert_eq!(more_owners, None);
        }
    }

    #[test]
    fn a_repaired_world_begins_anew() {
        let mut pace = Pace::default();
        let micros = [10_000, 40_000];
        assert_eq!(after(&mut pace, WINDOW - 1, &micros), []);
        for _ in 0..WINDOW - 1 {
            assert_eq!(pace.on(2, &[3, 3], &micros), None);
        }
        assert!(pace.on(2, &[3, 3], &micros).is_some());
    }

    proptest! {
        #[test]
        fn equal_ranks_are_never_slow(
            micros in proptest::collection::vec(1_000u64..1_900, 4 * 150),
        ) {
            let mut pace = Pace::default();
            for step in micros.chunks_exact(4) {
                prop_assert_eq!(pace.on(1, &[1; 4], step), None);
            }
        }
    }
}
