//! The learning rate over time: a pure function of the step, so that a repaired or restarted rank
//! needs no state for it. Only additions, multiplications and divisions are used: the C library's
//! cosine differs in the last bit between processors, and ranks must never differ.

use crate::config::{Schedule, ScheduleKind};

/// The learning rate of the step after `step` committed ones (the run's first step has 0).
/// Without a known number of steps it is `base` throughout.
pub fn learning_rate(schedule: &Schedule, base: f64, step: u64, steps_total: Option<u64>) -> f64 {
    let Some(total) = steps_total.filter(|&total| total > 0) else { return base };
    let total_steps = total as f64;
    let warm_up_steps = (schedule.warm_up.clamp(0.0, 1.0) * total_steps).ceil();
    let step = step.min(total) as f64;
    if step < warm_up_steps {
        return base * (step + 1.0) / warm_up_steps;
    }
    match schedule.kind {
        ScheduleKind::Constant => base,
        ScheduleKind::Step => {
            let passed = schedule.milestones.iter().filter(|&&at| step >= at * total_steps);
            passed.fold(base, |rate, _| rate * schedule.factor)
        }
        ScheduleKind::Cosine => {
            let rest = (total_steps - warm_up_steps).max(1.0);
            base * half_cosine((step - warm_up_steps) / rest)
        }
    }
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

    fn schedule(kind: ScheduleKind, warm_up: f64) -> Schedule {
        Schedule { kind, warm_up, milestones: vec![0.5, 0.75], factor: 0.1 }
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
        assert_eq!(learning_rate(&cosine, 0.4, 0, Some(100)), 0.4);
        assert!((learning_rate(&cosine, 0.4, 50, Some(100)) - 0.2).abs() < 1e-12);
        assert!(learning_rate(&cosine, 0.4, 99, Some(100)) < 0.001);
        assert_eq!(learning_rate(&cosine, 0.4, 100, Some(100)), 0.0);
    }

    #[test]
    fn steps_multiply_at_their_milestones() {
        let step = schedule(ScheduleKind::Step, 0.0);
        let at = |n| learning_rate(&step, 1.0, n, Some(100));
        assert_eq!((at(0), at(49), at(50), at(74)), (1.0, 1.0, 0.1, 0.1));
        assert!((at(75) - 0.01).abs() < 1e-15);
    }

    #[test]
    fn warm_up_climbs_to_the_base_rate_and_never_starts_at_zero() {
        let constant = schedule(ScheduleKind::Constant, 0.1);
        let rates: Vec<f64> =
            (0..12).map(|n| learning_rate(&constant, 2.0, n, Some(100))).collect();
        assert!(rates[0] > 0.0 && rates.windows(2).all(|pair| pair[0] <= pair[1]));
        assert_eq!((rates[0], rates[9], rates[11]), (0.2, 2.0, 2.0));
    }

    #[test]
    fn without_an_end_the_rate_is_constant() {
        for kind in [ScheduleKind::Constant, ScheduleKind::Step, ScheduleKind::Cosine] {
            assert_eq!(learning_rate(&schedule(kind, 0.3), 0.7, 12345, None), 0.7);
            assert_eq!(learning_rate(&schedule(kind, 0.3), 0.7, 1, Some(0)), 0.7);
        }
    }

    proptest! {
        #[test]
        fn the_rate_stays_between_nothing_and_the_base(
            warm_up in 0.0..=1.0f64, step in 0u64..10_000, total in 1u64..10_000, kind in 0..3
        ) {
            let kinds = [ScheduleKind::Constant, ScheduleKind::Step, ScheduleKind::Cosine];
            let schedule = schedule(kinds[kind as usize], warm_up);
            let rate = learning_rate(&schedule, 1.5, step, Some(total));
            prop_assert!((0.0..=1.5).contains(&rate), "{rate}");
        }
    }
}
