//! The learning rate over time: a pure function of the step, so that a repaired or restarted rank
//! needs no state for it. Only additions, multiplications and divisions are used: the C library's
//! cosine differs in the last bit between processors, and ranks must never differ.

use crate::config::{Schedule, ScheduleKind, WarmUp, first_step};

/// A run's length, as far as a rate follows it.
#[derive(Debug, Clone, Copy)]
pub struct Length {
    /// Of the whole run; `None`: nobody knows.
    pub steps: Option<u64>,
    /// Of an epoch.
    pub steps_per_epoch: u64,
}

/// What is said of a warm-up that the run does not outlast.
pub fn remark(schedule: &Schedule, length: Length) -> Option<String> {
    let steps = schedule.warm_up.steps(length.steps, length.steps_per_epoch);
    let total = length.steps.filter(|&total| steps > total as f64)?;
    Some(format!(
        "schedule.warm_up is {steps} steps and the run has {total}: its rate never rises to \
         optimizer.learning_rate"
    ))
}

/// The learning rate of the step after `step` committed ones (the run's first step has 0). Without
/// a known number of steps it is `base` after a warm-up that has a length of its own.
pub fn learning_rate(schedule: &Schedule, base: f64, step: u64, length: Length) -> f64 {
    let total = length.steps.filter(|&total| total > 0);
    let warm_up_steps = schedule.warm_up.steps(total, length.steps_per_epoch);
    let step = step.min(total.unwrap_or(u64::MAX)) as f64;
    if let Some(total) = total.filter(|_| schedule.kind == ScheduleKind::OneCycle) {
        let rising = match schedule.warm_up {
            WarmUp::Share(share) => share.clamp(0.0, 1.0),
            WarmUp::Epochs(_) | WarmUp::Steps(_) => (warm_up_steps / total as f64).min(1.0),
        };
        return base * one_cycle(step, rising, total as f64);
    }
    if step < warm_up_steps {
        return base * (step + 1.0) / warm_up_steps;
    }
    let Some(total) = total else { return base };
    let total_steps = total as f64;
    let rest_steps = (total_steps - warm_up_steps).max(1.0);
    match schedule.kind {
        ScheduleKind::Constant | ScheduleKind::OneCycle => base,
        ScheduleKind::Step => {
            let is_passed = |at: &&f64| step >= first_step(**at, total_steps);
            let passed = schedule.milestones.iter().filter(is_passed);
            passed.fold(base, |rate, _| rate * schedule.factor)
        }
        ScheduleKind::Cosine => base * half_cosine((step - warm_up_steps) / rest_steps),
        ScheduleKind::Polynomial => {
            let left = (1.0 - (step - warm_up_steps) / rest_steps).max(0.0);
            (0..schedule.power.unwrap_or(1)).fold(base, |rate, _| rate * left)
        }
    }
}

/// A base rate that is meant for `schedule.reference_batch` samples, for `global_batch`: k times
/// the batch, k times the rate (Goyal et al. 2017, section 2.1, "Linear Scaling Rule").
pub fn scaled_rate(schedule: &Schedule, base: f64, global_batch: u64) -> f64 {
    match schedule.reference_batch {
        Some(reference) => base * (global_batch as f64 / reference.max(1) as f64),
        None => base,
    }
}

/// One cycle's first rate, and its last one, as shares of the highest (torch's `OneCycleLR`).
const CYCLE_FIRST: f64 = 1.0 / 25.0;
const CYCLE_LAST: f64 = CYCLE_FIRST / 1e4;

/// The share of the highest rate in a step of one cycle (Smith and Topin 2018, "Super-convergence",
/// section 3, with cosines between the turning points as torch has it): up during the first
/// `rising` of the steps, then down to the last step.
fn one_cycle(step: f64, rising: f64, total_steps: f64) -> f64 {
    let (peak, last) = (rising * total_steps - 1.0, total_steps - 1.0);
    let between = |from: f64, to: f64, share: f64| to + (from - to) * half_cosine(share);
    if step < peak {
        return between(CYCLE_FIRST, 1.0, step / peak);
    }
    let falling = last - peak.max(0.0);
    // Nothing falls where the rise ends with the run.
    let share = if falling > 0.0 { (step - peak.max(0.0)) / falling } else { 0.0 };
    between(1.0, CYCLE_LAST, share)
}

/// `(1 + cos(pi x)) / 2` for x in 0..=1, to 1e-12, from operations that IEEE 754 fixes.
fn half_cosine(x: f64) -> f64 {
    let x = x.clamp(0.0, 1.0);
    if x > 0.5 {
        return 1.0 - half_cosine(1.0 - x);
    }
    // Taylor series of the cosine; the angle is at most pi / 2, so ten terms leave 1e-16.
    let square = (std::f64::consts::PI * x) * (std::f64::consts::PI * x);
    let (mut term, mut sum) = (1.0, 1.0);
    for k in 1..=10 {
        let twice = 2.0 * f64::from(k);
        term *= -square / (twice * (twice - 1.0));
        sum += term;
    }
    0.5 * (1.0 + sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KINDS: [ScheduleKind; 5] = [
        ScheduleKind::Constant,
        ScheduleKind::Step,
        ScheduleKind::Cosine,
        ScheduleKind::OneCycle,
        ScheduleKind::Polynomial,
    ];

    fn schedule(kind: ScheduleKind, share: f64) -> Schedule {
        Schedule { kind, warm_up: WarmUp::Share(share), ..Schedule::default() }
    }

    /// Of a run with epochs of ten steps.
    fn rate(schedule: &Schedule, base: f64, step: u64, steps: Option<u64>) -> f64 {
        learning_rate(schedule, base, step, Length { steps, steps_per_epoch: 10 })
    }

    #[test]
    fn a_warm_up_with_a_length_is_the_share_that_it_is_of_a_run_and_no_longer_in_a_longer_one() {
        let of = |kind, warm_up| Schedule { kind, warm_up, ..Schedule::default() };
        for kind in KINDS {
            let share = schedule(kind, 0.25);
            for step in 0..200 {
                let expected = rate(&share, 0.4, step, Some(200));
                for warm_up in [WarmUp::Epochs(5.0), WarmUp::Steps(50)] {
                    let found = rate(&of(kind, warm_up), 0.4, step, Some(200));
                    assert_eq!(found, expected, "{kind:?} {warm_up} step {step}");
                }
            }
        }
        let constant = of(ScheduleKind::Constant, WarmUp::Epochs(5.0));
        for step in 0..60 {
            let lengths = [None, Some(30), Some(60), Some(1000)];
            let rates = lengths.map(|steps| rate(&constant, 0.4, step.min(29), steps));
            assert!(rates.iter().all(|one| *one == rates[0]), "step {step}: {rates:?}");
        }
    }

    #[test]
    fn a_warm_up_that_the_run_does_not_outlast_is_told() {
        let of = |warm_up, steps| {
            let schedule = Schedule { warm_up, ..Schedule::default() };
            remark(&schedule, Length { steps, steps_per_epoch: 10 })
        };
        assert!(of(WarmUp::Epochs(5.0), Some(49)).unwrap().contains("is 50 steps"));
        for steps in [None, Some(50)] {
            assert_eq!(of(WarmUp::Epochs(5.0), steps), None);
        }
        assert_eq!(of(WarmUp::Share(1.0), Some(49)), None);
    }

    #[test]
    fn the_cosine_is_the_cosine() {
        for i in 0..=1000 {
            let x = f64::from(i) / 1000.0;
            let expected = 0.5 * (1.0 + (std::f64::consts::PI * x).cos());
            assert!((half_cosine(x) - expected).abs() < 1e-12, "{x}");
        }
    }

    #[test]
    fn the_cosine_falls_from_the_base_rate_to_nothing() {
        let cosine = schedule(ScheduleKind::Cosine, 0.0);
        assert_eq!(rate(&cosine, 0.4, 0, Some(100)), 0.4);
        assert!((rate(&cosine, 0.4, 50, Some(100)) - 0.2).abs() < 1e-12);
        assert!(rate(&cosine, 0.4, 99, Some(100)) < 0.001);
        assert_eq!(rate(&cosine, 0.4, 100, Some(100)), 0.0);
    }

    #[test]
    fn steps_multiply_at_their_milestones() {
        let step = schedule(ScheduleKind::Step, 0.0);
        let at = |n| rate(&step, 1.0, n, Some(100));
        assert_eq!((at(0), at(49), at(50), at(74)), (1.0, 1.0, 0.1, 0.1));
        assert!((at(75) - 0.01).abs() < 1e-15);
        // Whose products are a little more than whole.
        let milestones = vec![0.07, 0.55];
        let odd = Schedule { milestones, ..schedule(ScheduleKind::Step, 0.0) };
        let at = |n| rate(&odd, 1.0, n, Some(100));
        assert_eq!((at(6), at(7), at(54)), (1.0, 0.1, 0.1));
        assert!((at(55) - 0.01).abs() < 1e-15);
    }

    #[test]
    fn one_cycle_comes_down_however_late_it_begins_to() {
        for (rising, total) in [(0.3, 100), (0.95, 10), (0.98, 20), (0.0, 5)] {
            let rate = rate(&schedule(ScheduleKind::OneCycle, rising), 1.0, total - 1, Some(total));
            assert!((rate - CYCLE_LAST).abs() < 1e-12, "{rising} of {total}: {rate}");
        }
    }

    #[test]
    fn warm_up_climbs_to_the_base_rate_and_never_starts_at_zero() {
        let constant = schedule(ScheduleKind::Constant, 0.1);
        let rates: Vec<f64> = (0..12).map(|n| rate(&constant, 2.0, n, Some(100))).collect();
        assert!(rates[0] > 0.0 && rates.windows(2).all(|pair| pair[0] <= pair[1]));
        assert_eq!((rates[0], rates[9], rates[11]), (0.2, 2.0, 2.0));
    }

    #[test]
    fn without_an_end_the_rate_is_constant() {
        for kind in KINDS {
            assert_eq!(rate(&schedule(kind, 0.3), 0.7, 12345, None), 0.7);
            assert_eq!(rate(&schedule(kind, 0.3), 0.7, 1, Some(0)), 0.7);
        }
    }

    #[test]
    fn the_rate_is_scaled_with_the_batch_that_it_is_meant_for() {
        let of = |reference_batch| Schedule { reference_batch, ..Schedule::default() };
        assert_eq!(scaled_rate(&of(None), 0.1, 8192), 0.1);
        // Goyal et al. 2017: 0.1 for 256 samples is 3.2 for 8192.
        assert!((scaled_rate(&of(Some(256)), 0.1, 8192) - 3.2).abs() < 1e-12);
    }

    #[test]
    fn one_step_of_one_cycle_is_a_rate_too() {
        for rising in [0.0, 0.3, 1.0] {
            let rate = rate(&schedule(ScheduleKind::OneCycle, rising), 0.4, 0, Some(1));
            assert!((0.0..=0.4).contains(&rate), "{rising}: {rate}");
        }
    }

    proptest! {
        #[test]
        fn the_rate_stays_between_nothing_and_the_base(
            warm_up in 0.0..=1.0f64,
            step in 0u64..10_000,
            total in 1u64..10_000,
            kind in 0..KINDS.len()
        ) {
            let schedule = schedule(KINDS[kind], warm_up);
            let rate = rate(&schedule, 1.5, step, Some(total));
            prop_assert!((0.0..=1.5).contains(&rate), "{rate}");
        }
    }
}
