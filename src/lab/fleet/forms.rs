//! The same forecast in formulas. With failures at rate f, repairs of length c that a failure
//! starts anew, and work that is kept in quanta of k which take w:
//!
//! * the mean time of a quantum is (e^(f w) - 1) / (f q), where q is the mean of e^(-f c) over the
//!   kinds of failure: Daly's formula for checkpoint/restart (FGCS 22, 2006, equation 13 with
//!   restarts that may fail), and for live repairs that with k a single step;
//! * where seats stay empty for a while, each node and rank is away with a probability that is a
//!   formula too; the goodput is then the mean strength times what repairs leave, which holds as
//!   long as repairs are short against the time between them.

use super::chain::{Rules, Sample};

/// Standard errors that a sample may lie away from the truth: beyond it is no chance.
const ERRORS_MAX: f64 = 5.0;
/// How far off the second formula may be, as a fraction of what is lost.
const APPROXIMATE: f64 = 0.05;
/// Moments of a run at which probabilities are taken.
const MOMENTS: u32 = 64;
/// A run's length follows from its goodput and that from its length: so often in turn.
const TURNS: u32 = 4;
/// Runs whose mean work is less than this much of what was to be done: some were given up.
const ALL_DONE: f64 = 1.0 - 1e-9;
/// 95 % of a normal distribution lie within this many standard errors.
const NORMAL_95: f64 = 1.96;

/// What a formula says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Formula {
    /// The goodput.
    pub value: f64,
    /// Whether it is exact, or holds while repairs are short.
    pub exact: bool,
}

impl Formula {
    /// Whether a sample may have this mean.
    pub fn agrees(&self, rules: &Rules, sample: &Sample) -> bool {
        let runs = sample.n as f64;
        // Where failures are rare a sample shows too little spread: what it must have is known.
        let length = rules.work / self.value;
        let rate = failure_rate(rules);
        let quantum = rules.rank_keeps.max(rules.node_keeps);
        let each = (longest_cost(rules) + quantum) / length;
        let least = each * ((rate * length / runs).sqrt() + 1.0 / runs);
        let error = (sample.half_width / NORMAL_95).max(self.value * least);
        let slack = if self.exact { 0.0 } else { APPROXIMATE * (1.0 - self.value) };
        // A run that was given up has lost up to a quantum that it had begun.
        let given_up = sample.goodput * sample.seconds < rules.work * ALL_DONE;
        let begun = if given_up { quantum / sample.seconds } else { 0.0 };
        (sample.goodput - self.value).abs() <= ERRORS_MAX * error + slack + begun
    }
}

fn failure_rate(rules: &Rules) -> f64 {
    rules.ranks as f64 * rules.rank_rate + rules.nodes as f64 * rules.node_rate
}

/// The most that a failure costs on average: a repair, or the share that an empty seat had of the
/// work.
fn longest_cost(rules: &Rules) -> f64 {
    let away = |back: Option<f64>, seats: u64| {
        back.map_or(0.0, |seconds| seconds.min(rules.work) / seats as f64)
    };
    let repair = rules.rank_cost.max(rules.node_cost).max(rules.shrink_cost).max(rules.grow_cost);
    repair.max(away(rules.rank_return, rules.ranks)).max(away(rules.node_return, rules.nodes))
}

/// The goodput of a run of these rules; `None` where no formula covers them.
pub fn goodput(rules: &Rules) -> Option<Formula> {
    let seats_stay = rules.rank_return.is_none() && rules.node_return.is_none();
    // With a single node, what a failure costs depends on its kind.
    let one_quantum = rules.rank_keeps == rules.node_keeps || rules.node_rate == 0.0;
    match (seats_stay, one_quantum) {
        (true, true) => Some(Formula { value: at_full_strength(rules), exact: true }),
        (false, true) => Some(Formula { value: with_empty_seats(rules), exact: false }),
        (_, false) => None,
    }
}

/// Mean of e^(-rate x cost) over kinds of events, and the sum of their rates.
fn survived(kinds: &[(f64, f64)]) -> (f64, f64) {
    let rate: f64 = kinds.iter().map(|kind| kind.0).sum();
    if rate <= 0.0 {
        return (1.0, 0.0);
    }
    (kinds.iter().map(|(own, cost)| own / rate * (-rate * cost).exp()).sum(), rate)
}

/// Mean time of a quantum that takes `wall` without failures.
fn mean_time(wall: f64, rate: f64, survived: f64) -> f64 {
    if rate > 0.0 { (rate * wall).exp_m1() / (rate * survived) } else { wall }
}

fn at_full_strength(rules: &Rules) -> f64 {
    let ranks = rules.ranks as f64 * rules.rank_rate;
    let nodes = rules.nodes as f64 * rules.node_rate;
    let (survived, rate) = survived(&[(ranks, rules.rank_cost), (nodes, rules.node_cost)]);
    let quantum = rules.rank_keeps.min(rules.work);
    let whole = (rules.work / quantum).floor();
    let rest = (rules.work - whole * quantum).max(0.0);
    let time = |work: f64| mean_time(work / rules.pace, rate, survived);
    rules.work / (whole * time(quantum) + time(rest))
}

/// The probability that something is away `seconds` after a run began with it.
fn away(rate: f64, back: Option<f64>, seconds: f64) -> f64 {
    let Some(mean) = back else { return 0.0 };
    let both = rate + 1.0 / mean;
    rate / both * -(-both * seconds).exp_m1()
}

/// Of `n` things each away with probability `p`: the mean number beyond `spares`, the probability
/// that fewer than `spares` are away, and the mean number away while more than `spares` are.
fn overflow(n: u64, p: f64, spares: u64) -> (f64, f64, f64) {
    let mean = n as f64 * p;
    if spares == 0 || p <= 0.0 {
        return (mean, if spares > 0 { 1.0 } else { 0.0 }, mean);
    }
    // Sums over what fits: the logarithm of each probability from that of the one before.
    let mut ln = n as f64 * (-p).ln_1p();
    let (mut short, mut fewer, mut within) = (0.0, 0.0, 0.0);
    for away in 0..=spares.min(n) {
        let probability = ln.exp();
        short += (spares - away) as f64 * probability;
        fewer += if away < spares { probability } else { 0.0 };
        within += away as f64 * probability;
        ln += ((n - away) as f64 / (away + 1) as f64).ln() + (p / (1.0 - p)).ln();
    }
    ((mean - spares as f64 + short).max(0.0), fewer.min(1.0), (mean - within).max(0.0))
}

fn with_empty_seats(rules: &Rules) -> f64 {
    let mut value = rules.pace;
    for _ in 0..TURNS {
        let length = rules.work / value;
        let at = |moment: u32| (f64::from(moment) + 0.5) / f64::from(MOMENTS) * length;
        let sum: f64 = (0..MOMENTS).map(|moment| speed_at(rules, at(moment))).sum();
        value = sum / f64::from(MOMENTS);
    }
    value
}

/// Work a second, this long after the beginning.
fn speed_at(rules: &Rules, seconds: f64) -> f64 {
    let (nodes, ranks) = (rules.nodes as f64, rules.ranks as f64);
    let node_away = away(rules.node_rate, rules.node_return, seconds);
    let rank_away = away(rules.rank_rate, rules.rank_return, seconds);
    let (empty, spare_left, crowd) = overflow(rules.nodes + rules.spares, node_away, rules.spares);
    let seated = nodes - empty.min(nodes);
    let strength = seated / nodes * (1.0 - rank_away);
    let rank_failures = ranks * (1.0 - rank_away) * rules.rank_rate;
    let node_failures = seated * rules.node_rate;
    let back = |number: f64, mean: Option<f64>| mean.map_or(0.0, |mean| number / mean);
    let replaced = if rules.spares == 0 { 1.0 } else { spare_left };
    let (survived, _) = survived(&[
        (rank_failures, rules.rank_cost),
        (node_failures * replaced, rules.node_cost),
        (node_failures * (1.0 - replaced), rules.shrink_cost),
        (back(ranks * rank_away, rules.rank_return), rules.grow_cost),
        (back(crowd, rules.node_return), rules.grow_cost),
    ]);
    if strength <= 0.0 {
        return 0.0;
    }
    let speed = rules.pace * strength;
    let (step, failures) = (rules.rank_keeps, rank_failures + node_failures);
    survived * step / mean_time(step / speed, failures, 1.0)
}

/// The rule of thumb: 1 / (1 + rate x cost) for repairs that lose nothing, Young's waste
/// 1 - C/T - rate x (T/2 + cost) for checkpoints every T; none where seats stay empty.
pub fn first_order(rules: &Rules) -> Option<f64> {
    if rules.rank_return.is_some() || rules.node_return.is_some() {
        return None;
    }
    let ranks = rules.ranks as f64 * rules.rank_rate;
    let nodes = rules.nodes as f64 * rules.node_rate;
    let lost = ranks * rules.rank_cost + nodes * rules.node_cost;
    if rules.rank_keeps < rules.checkpoint {
        return Some(rules.pace / (1.0 + lost));
    }
    let (interval, cost) = (rules.checkpoint, rules.checkpoint / rules.pace - rules.checkpoint);
    let waste = cost / interval + (ranks + nodes) * interval / 2.0 + lost;
    Some((1.0 - waste).max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overflow_is_that_of_a_binomial() {
        // Three things, each away half of the time, one spare: 1/8, 3/8, 3/8, 1/8.
        let (beyond, fewer, crowd) = overflow(3, 0.5, 1);
        assert!((beyond - (3.0 / 8.0 + 2.0 / 8.0)).abs() < 1e-12);
        assert!((fewer - 1.0 / 8.0).abs() < 1e-12);
        assert!((crowd - (2.0 * 3.0 / 8.0 + 3.0 / 8.0)).abs() < 1e-12);
        assert_eq!(overflow(100_000, 1e-3, 0).0, 100.0);
        // 1,000 spares for 100 away on average: never enough to matter, whatever underflows.
        assert!(overflow(101_000, 1e-3, 1000).0 < 1e-9);
    }

    #[test]
    fn a_quantum_without_failures_takes_its_time() {
        assert_eq!(mean_time(7.0, 0.0, 1.0), 7.0);
        // One failure a quantum, free repairs: e - 1 quanta.
        assert!((mean_time(7.0, 1.0 / 7.0, 1.0) - 7.0 * 1f64.exp_m1()).abs() < 1e-12);
    }
}
