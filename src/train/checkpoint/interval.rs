//! How often to write a checkpoint: `checkpoint.every = "auto"`.

/// Never more often than this, however cheap.
const INTERVAL_SECONDS_MIN: f64 = 5.0;
/// Never less often than this, however dependable the machine.
const INTERVAL_SECONDS_MAX: f64 = 3600.0;
/// Writing takes at most a tenth of the time, however bad the machine.
const COSTS_MIN: f64 = 10.0;
/// No checkpoint takes longer than a day; what claims to was not measured.
const COST_SECONDS_MAX: f64 = 86_400.0;

/// Seconds from one checkpoint to the next: those that lose least time, but for the storage, which
/// may be slow and is others' too. `storage_seconds`: what it was busy with the last one, of which
/// it gets at most one in ten; those of best evaluations come on top.
pub fn automatic(cost_seconds: f64, storage_seconds: f64, mtbf_seconds: f64) -> f64 {
    let busy = if storage_seconds.is_nan() { 0.0 } else { storage_seconds };
    let least = busy.clamp(0.0, COST_SECONDS_MAX) * COSTS_MIN;
    young_daly(cost_seconds, mtbf_seconds).max(least)
}

/// Seconds from one checkpoint to the next that lose least time: Daly's higher-order optimum
/// (J. T. Daly, FGCS 22, 2006, equation 37; Young 1974 is its first term), kept between 5 s and
/// one hour and at least ten times the cost. The cost is what the loop loses by one checkpoint.
/// Finite for every input.
pub fn young_daly(checkpoint_cost_seconds: f64, mtbf_seconds: f64) -> f64 {
    let cost = if checkpoint_cost_seconds.is_nan() { 0.0 } else { checkpoint_cost_seconds };
    let cost = cost.clamp(0.0, COST_SECONDS_MAX);
    let lowest = INTERVAL_SECONDS_MIN.max(cost * COSTS_MIN);
    if mtbf_seconds.is_nan() || mtbf_seconds <= 0.0 {
        return lowest;
    }
    optimum(cost, mtbf_seconds).min(INTERVAL_SECONDS_MAX).max(lowest)
}

fn optimum(cost: f64, mtbf: f64) -> f64 {
    if cost >= 2.0 * mtbf {
        return mtbf;
    }
    if mtbf.is_infinite() {
        return f64::INFINITY;
    }
    let ratio = cost / (2.0 * mtbf);
    (2.0 * cost * mtbf).sqrt() * (1.0 + ratio.sqrt() / 3.0 + ratio / 9.0) - cost
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_textbook_case() {
        // C = 60 s, M = 1 day: Young gives 3220 s; Daly's terms add 20.1 and take 60 away.
        assert!((optimum(60.0, 86_400.0) - 3180.1).abs() < 1.0);
        assert_eq!(young_daly(60.0, 86_400.0), optimum(60.0, 86_400.0));
    }

    #[test]
    fn the_optimum_beats_its_neighbours() {
        // Expected time per second of work, failures exponential: M (e^((t + C) / M) - 1) / t.
        let (cost, mtbf): (f64, f64) = (3.0, 600.0);
        let waste = |t: f64| mtbf * (((t + cost) / mtbf).exp() - 1.0) / t;
        let best = optimum(cost, mtbf);
        assert!(waste(best) < waste(best * 1.1) && waste(best) < waste(best / 1.1));
    }

    #[test]
    fn a_slow_storage_is_written_to_for_a_tenth_of_the_time() {
        // It held the loop for nothing, and the disk for four seconds.
        assert_eq!(automatic(0.0, 4.0, 86_400.0), 40.0);
        assert_eq!(automatic(60.0, 4.0, 86_400.0), young_daly(60.0, 86_400.0), "rare enough");
        assert_eq!(automatic(0.0, f64::NAN, 86_400.0), INTERVAL_SECONDS_MIN);
    }

    proptest! {
        #[test]
        fn the_interval_is_always_usable(
            cost in proptest::num::f64::ANY, mtbf in proptest::num::f64::ANY
        ) {
            let seconds = young_daly(cost, mtbf);
            let cost = if cost.is_nan() { 0.0 } else { cost.clamp(0.0, 86_400.0) };
            prop_assert!((5f64.max(10.0 * cost)..=3600f64.max(10.0 * cost)).contains(&seconds));
        }
    }
}
