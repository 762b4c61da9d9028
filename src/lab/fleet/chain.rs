//! A run as a Markov chain: how many nodes and ranks are away, how much work is done. All waits
//! are exponential, so the next thing to happen to the whole fleet is one draw, whatever its size.

use crate::config::seed::Stream;
use crate::lab::report::statistics::half_width;

/// A run that needs this many times its work is given up: it makes no headway.
const TIMES_WORK_MAX: f64 = 100.0;
/// Events after which a run is given up.
const EVENTS_MAX: u64 = 20_000_000;
/// Quanta of work are counted in floating point: how far below a whole one still is one.
const ROUNDING: f64 = 1e-9;

/// What happens in a run, how often and with what effect. Times are seconds, rates per second.
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    /// Seats for nodes.
    pub nodes: u64,
    /// Seats for ranks, on all of them.
    pub ranks: u64,
    /// Nodes that wait.
    pub spares: u64,
    /// Failures of one rank.
    pub rank_rate: f64,
    /// Failures of one node, waiting ones too.
    pub node_rate: f64,
    /// Work done in a second at full strength: below 1 by what checkpoints take.
    pub pace: f64,
    /// How long all wait when a rank fails.
    pub rank_cost: f64,
    /// How long all wait when a node fails whose place is taken, or none waits by design.
    pub node_cost: f64,
    /// How long all wait when a node fails and the spares are used up.
    pub shrink_cost: f64,
    /// How long all wait when a seat is filled again.
    pub grow_cost: f64,
    /// How long all wait after the last node was lost.
    pub restart_cost: f64,
    /// When a rank fails, whole multiples of this much work stay done.
    pub rank_keeps: f64,
    /// When a node fails.
    pub node_keeps: f64,
    /// When the last node fails.
    pub checkpoint: f64,
    /// Mean time until a lost rank is back; `None`: the repair itself brings it back.
    pub rank_return: Option<f64>,
    /// Mean time until a lost node is back; `None`: another takes its place at once.
    pub node_return: Option<f64>,
    /// Work of the run.
    pub work: f64,
}

/// How one run went.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Played {
    /// Work that was done.
    pub work: f64,
    /// Wall time.
    pub seconds: f64,
    /// Ranks and nodes that failed.
    pub failures: u64,
}

/// Where a run stands.
struct Walk<'a> {
    rules: &'a Rules,
    nodes_away: u64,
    ranks_away: u64,
    done: f64,
    seconds: f64,
    /// What is left of a repair.
    stall: f64,
    failures: u64,
}

impl Walk<'_> {
    /// Seats without a node.
    fn empty_seats(&self) -> u64 {
        self.nodes_away.saturating_sub(self.rules.spares).min(self.rules.nodes)
    }

    /// Of full strength.
    fn strength(&self) -> f64 {
        let nodes = 1.0 - self.empty_seats() as f64 / self.rules.nodes as f64;
        nodes * (1.0 - self.ranks_away as f64 / self.rules.ranks as f64)
    }

    /// Rates of: a rank fails, a node fails, a rank is back, a node is back.
    fn rates(&self) -> [f64; 4] {
        let rules = self.rules;
        let back = |away: u64, after: Option<f64>| after.map_or(0.0, |mean| away as f64 / mean);
        [
            (rules.ranks - self.ranks_away) as f64 * rules.rank_rate,
            (rules.nodes + rules.spares - self.nodes_away) as f64 * rules.node_rate,
            back(self.ranks_away, rules.rank_return),
            back(self.nodes_away, rules.node_return),
        ]
    }

    fn keep(&mut self, quantum: f64) {
        self.done = (self.done / quantum + ROUNDING).floor() * quantum;
    }

    fn rank_fails(&mut self) {
        self.keep(self.rules.rank_keeps);
        self.ranks_away += u64::from(self.rules.rank_return.is_some());
        self.stall = self.rules.rank_cost;
    }

    fn node_fails(&mut self, draw: f64) {
        let rules = self.rules;
        let seated = rules.nodes - self.empty_seats();
        let idle = (rules.nodes + rules.spares - self.nodes_away) - seated;
        let returns = rules.node_return.is_some();
        self.nodes_away += u64::from(returns);
        if draw * ((seated + idle) as f64) < idle as f64 {
            return;
        }
        self.keep(rules.node_keeps);
        let replaced = !returns || idle > 0 || rules.spares == 0;
        self.stall = if replaced { rules.node_cost } else { rules.shrink_cost };
        if self.empty_seats() == rules.nodes {
            self.keep(rules.checkpoint);
        }
    }

    fn rank_returns(&mut self) {
        self.ranks_away -= 1;
        self.stall = self.rules.grow_cost;
    }

    fn node_returns(&mut self) {
        let empty = self.empty_seats();
        self.nodes_away -= 1;
        if empty == self.rules.nodes {
            self.stall = self.rules.restart_cost;
        } else if empty > 0 {
            self.stall = self.rules.grow_cost;
        }
    }
}

/// Plays one run to the end of its work, or until it is plain that it makes no headway.
pub fn play(rules: &Rules, stream: &mut Stream) -> Played {
    let (nodes_away, ranks_away, failures) = (0, 0, 0);
    let (done, seconds, stall) = (0.0, 0.0, 0.0);
    let mut state = Walk { rules, nodes_away, ranks_away, done, seconds, stall, failures };
    let seconds_max = rules.work * TIMES_WORK_MAX;
    for _ in 0..EVENTS_MAX {
        let rates = state.rates();
        let total: f64 = rates.iter().sum();
        let wait = if total > 0.0 { stream.exponential() / total } else { f64::INFINITY };
        if state.stall > 0.0 && wait >= state.stall {
            // Waits have no memory: the next one is drawn anew.
            state.seconds += state.stall;
            state.stall = 0.0;
            continue;
        }
        if state.stall <= 0.0 {
            let speed = rules.pace * state.strength();
            let left = (rules.work - state.done) / speed;
            if wait >= left {
                state.seconds += left;
                state.done = rules.work;
                break;
            }
            state.done += wait * speed;
        }
        state.seconds += wait;
        if state.seconds > seconds_max {
            break;
        }
        let at = stream.unit() * total;
        let sums = [rates[0], rates[0] + rates[1], rates[0] + rates[1] + rates[2]];
        state.failures += u64::from(at < sums[1]);
        match sums.iter().position(|sum| at < *sum) {
            Some(0) => state.rank_fails(),
            Some(1) => {
                let draw = stream.unit();
                state.node_fails(draw);
            }
            Some(_) => state.rank_returns(),
            None => state.node_returns(),
        }
    }
    Played { work: state.done, seconds: state.seconds, failures: state.failures }
}

/// Many runs in figures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Work of all runs over time of all runs.
    pub goodput: f64,
    /// Half of its 95 % interval, as far as these runs spread.
    pub half_width: f64,
    /// The goodputs between which 95 of 100 runs lie.
    pub runs: [f64; 2],
    /// Runs.
    pub n: usize,
    /// Failures of all of them.
    pub failures: u64,
    /// Mean wall time.
    pub seconds: f64,
}

/// Sums runs up.
///
/// # Panics
/// Of no runs.
pub fn sample(played: &[Played]) -> Sample {
    assert!(!played.is_empty(), "a sample has at least one run");
    let mean = |of: fn(&Played) -> f64| played.iter().map(of).sum::<f64>() / played.len() as f64;
    let (seconds, work) = (mean(|run| run.seconds), mean(|run| run.work));
    let goodput = work / seconds;
    let mut each: Vec<f64> = played.iter().map(|run| run.work / run.seconds).collect();
    each.sort_by(f64::total_cmp);
    let at = |part: f64| each[((each.len() - 1) as f64 * part).round() as usize];
    // A ratio of two means spreads as what each run did beyond its share. Of runs that were given
    // up the times are alike and the work is not.
    let beyond: Vec<f64> = played.iter().map(|run| run.work - goodput * run.seconds).collect();
    Sample {
        goodput,
        half_width: half_width(&beyond).unwrap_or(0.0) / seconds,
        runs: [at(0.025), at(0.975)],
        n: played.len(),
        failures: played.iter().map(|run| run.failures).sum(),
        seconds,
    }
}
