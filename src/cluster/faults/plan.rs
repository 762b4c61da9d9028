//! The fault plan, pure: whether a planned fault strikes a process that stands at a point, and
//! where the random ones fall. Simulated and real runs read the same plan the same way.

use crate::config::seed::{Stream, purpose};
use crate::config::{PlannedFault, Point, Who};

use super::Standing;

/// A random fault whose point is not reached within this many seconds strikes at the next,
/// whichever it is: every drawn fault fires.
pub const PATIENCE_SECONDS: f64 = 0.5;

/// Whether the process that stands here is the one that the fault is for.
pub fn targets(fault: &PlannedFault, standing: &Standing) -> bool {
    match fault.who {
        Who::Rank => standing.rank == fault.rank && !standing.spare,
        Who::Leader => standing.rank == 0 && !standing.spare,
        Who::Newcomer => standing.newcomer,
        Who::Source => standing.source,
        Who::Spare => standing.spare,
    }
}

/// Whether a fault strikes at this point, time aside: the right process, the right point and, when
/// the fault names a step, the right step.
///
/// Step N is being computed, or repaired, while `standing.step + 1 == N`. Points that lie between
/// steps (snapshot, persist, evaluation, finalize) are not reached in every step, so there the
/// fault strikes the first time they are reached at step N or later.
pub fn strikes(fault: &PlannedFault, point: Point, standing: &Standing) -> bool {
    let between = matches!(
        point,
        Point::InSnapshot | Point::InPersist | Point::InEvaluation | Point::InFinalize
    );
    let current = standing.step.saturating_add(1);
    let step = match fault.step {
        None => true,
        Some(step) if between && fault.phase.is_some() => current >= step,
        Some(step) => current == step,
    };
    step && fault.phase.is_none_or(|p| p == point) && targets(fault, standing)
}

/// Whether a fault's time has come; faults without a time always say yes.
pub fn is_due(fault: &PlannedFault, run_seconds: f64) -> bool {
    fault.seconds.is_none_or(|at| run_seconds >= at)
}

/// A random SIGKILL, drawn before the run begins.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RandomFault {
    /// Its number, from 0.
    pub index: u64,
    /// Seconds since the run's first start.
    pub seconds: f64,
    /// Modulo the current number of ranks: its victim.
    pub draw: u64,
    /// Where it strikes.
    pub point: Point,
}

impl RandomFault {
    /// Whom it strikes in a world of `ranks` (> 0).
    pub fn victim(&self, ranks: u32) -> u32 {
        (self.draw % u64::from(ranks)) as u32
    }

    /// Whether the victim dies at this point.
    pub fn strikes(&self, point: Point, run_seconds: f64) -> bool {
        run_seconds >= self.seconds
            && (point == self.point || run_seconds >= self.seconds + PATIENCE_SECONDS)
    }
}

/// The random faults of a run, in order of time, without end: gaps are exponential with the mean
/// `mtbf_seconds`, so that failures are a Poisson process over the run's seconds.
#[derive(Debug, Clone)]
pub struct RandomFaults {
    mtbf_seconds: f64,
    seed: u64,
    index: u64,
    seconds: f64,
}

impl RandomFaults {
    /// From the run's first second. Nothing is drawn unless `mtbf_seconds` is positive.
    pub fn new(mtbf_seconds: f64, seed: u64) -> Self {
        Self { mtbf_seconds, seed, index: 0, seconds: 0.0 }
    }
}

impl Iterator for RandomFaults {
    type Item = RandomFault;

    fn next(&mut self) -> Option<RandomFault> {
        if !(self.mtbf_seconds > 0.0 && self.mtbf_seconds.is_finite()) {
            return None;
        }
        let index = self.index;
        let mut stream = Stream::new(&[self.seed, purpose::FAULTS, index]);
        self.index += 1;
        self.seconds -= self.mtbf_seconds * (1.0 - stream.unit()).ln();
        let draw = stream.next_u64();
        // Where random faults strike.
        let point = Point::OF_A_STEP[stream.below(Point::OF_A_STEP.len() as u64) as usize];
        Some(RandomFault { index, seconds: self.seconds, draw, point })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::config::FaultKind;

    use super::*;

    fn fault(who: Who, step: Option<u64>, phase: Option<Point>) -> PlannedFault {
        PlannedFault {
            kind: FaultKind::Kill,
            who,
            rank: 2,
            step,
            seconds: None,
            phase,
            pause: None,
        }
    }

    fn standing(rank: u32, step: u64) -> Standing {
        Standing { rank, ranks: 4, step, ..Standing::default() }
    }

    #[test]
    fn step_n_strikes_while_step_n_is_computed() {
        let fault = fault(Who::Rank, Some(40), Some(Point::InAllReduce));
        assert!(strikes(&fault, Point::InAllReduce, &standing(2, 39)));
        assert!(!strikes(&fault, Point::InAllReduce, &standing(2, 38)));
        assert!(!strikes(&fault, Point::InAllReduce, &standing(2, 40)));
        assert!(!strikes(&fault, Point::InForward, &standing(2, 39)));
        assert!(!strikes(&fault, Point::InAllReduce, &standing(1, 39)));
    }

    #[test]
    fn without_a_phase_the_first_point_is_struck() {
        let fault = fault(Who::Leader, Some(1), None);
        assert!(strikes(&fault, Point::InInit, &standing(0, 0)));
        assert!(!strikes(&fault, Point::InPersist, &standing(0, 1)));
    }

    #[test]
    fn phases_between_steps_are_struck_the_first_time_they_are_reached() {
        let fault = fault(Who::Rank, Some(40), Some(Point::InPersist));
        assert!(!strikes(&fault, Point::InPersist, &standing(2, 30)));
        assert!(strikes(&fault, Point::InPersist, &standing(2, 43)));
    }

    #[test]
    fn each_who_names_its_process() {
        let plain = standing(1, 0);
        let cases = [
            (Who::Rank, Standing { rank: 2, ..plain }),
            (Who::Leader, Standing { rank: 0, ..plain }),
            (Who::Newcomer, Standing { newcomer: true, ..plain }),
            (Who::Source, Standing { source: true, ..plain }),
            (Who::Spare, Standing { spare: true, rank: 2, ..plain }),
        ];
        for (i, (who, _)) in cases.iter().enumerate() {
            for (j, (_, standing)) in cases.iter().enumerate() {
                assert_eq!(targets(&fault(*who, None, None), standing), i == j, "{who:?} {j}");
            }
        }
    }

    #[test]
    fn random_gaps_have_the_mean_that_was_asked_for() {
        let last = RandomFaults::new(20.0, 7).take(20_000).last().unwrap();
        let mean = last.seconds / 20_000.0;
        // The mean of 20,000 exponential gaps has a standard error of 0.7 %.
        assert!((mean - 20.0).abs() < 0.6, "{mean}");
    }

    #[test]
    fn without_a_rate_nothing_is_drawn() {
        for mtbf in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(RandomFaults::new(mtbf, 7).next(), None);
        }
    }

    proptest! {
        #[test]
        fn random_faults_are_a_function_of_the_seed_alone(seed in any::<u64>()) {
            let draw = || RandomFaults::new(5.0, seed).take(50).collect::<Vec<_>>();
            prop_assert_eq!(draw(), draw());
            prop_assert!(draw().windows(2).all(|w| w[0].seconds <= w[1].seconds));
            prop_assert!(draw().iter().all(|f| (1..5).all(|ranks| f.victim(ranks) < ranks)));
        }

        #[test]
        fn a_drawn_fault_strikes_at_any_point_once_patience_is_out(seed in any::<u64>()) {
            let fault = RandomFaults::new(5.0, seed).next().unwrap();
            prop_assert!(fault.strikes(fault.point, fault.seconds));
            prop_assert!(!fault.strikes(Point::InInit, fault.seconds));
            prop_assert!(fault.strikes(Point::InInit, fault.seconds + PATIENCE_SECONDS));
            prop_assert!(!fault.strikes(fault.point, fault.seconds - 0.01));
        }
    }
}
