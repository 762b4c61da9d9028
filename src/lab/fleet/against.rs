//! A forecast held against a run that was measured. From the run come its length, its step time,
//! what struck it and how long each repair took; the forecast is the spread of runs of the same
//! work under failures of the same rate. Start-up, evaluations and the end are left out on both
//! sides.

use std::collections::BTreeMap;

use crate::config::seed::{Stream, purpose};
use crate::observe::event::{Event, Kind};
use crate::observe::report::episodes::{Episode, episodes};

use super::chain::{self, Rules};
use super::costs::Costs;

/// What a run's events show.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Measured {
    /// Ranks at its start.
    pub ranks: u32,
    /// Steps that count at its end.
    pub steps: u64,
    /// Mean length of a step that counts.
    pub step_seconds: f64,
    /// From the first step's beginning to the last one's end, evaluations left out.
    pub seconds: f64,
    /// Evaluations, left out.
    pub evaluation_seconds: f64,
    /// Steps that were committed and thrown away.
    pub lost_steps: u64,
    /// Steps from one checkpoint to the next, on average; none where there were fewer than two.
    pub checkpoint_steps: Option<f64>,
    /// Repairs by rung: how many, and their mean seconds.
    pub repairs: BTreeMap<String, (u64, f64)>,
}

impl Measured {
    /// The fraction of the time that went into steps that count.
    pub fn goodput(&self) -> f64 {
        self.steps as f64 * self.step_seconds / self.seconds
    }

    /// Failures of any kind.
    pub fn failures(&self) -> u64 {
        self.repairs.values().map(|repair| repair.0).sum()
    }
}

/// Reads a run's events.
///
/// # Errors
/// When they show too little: no steps, or none that count.
pub fn measure(events: &[Event]) -> Result<Measured, String> {
    let mut counted: Vec<(u64, f64)> = Vec::new();
    let (mut ranks, mut begun, mut ended) = (0, None, 0.0);
    let (mut evaluation_seconds, mut lost_steps) = (0.0, 0);
    let mut checkpoints: Vec<u64> = Vec::new();
    for event in events {
        match &event.kind {
            Kind::RunStart { ranks: started, .. } if ranks == 0 => ranks = *started,
            Kind::Step { seconds, .. } => {
                begun.get_or_insert(event.seconds - seconds);
                ended = event.seconds;
                counted.push((event.step, *seconds));
            }
            Kind::Evaluation { seconds, .. } if seconds.is_finite() => {
                evaluation_seconds += seconds;
            }
            Kind::Restarted { lost_steps: lost, .. } => {
                lost_steps += lost;
                counted.retain(|(step, _)| *step <= event.step);
                checkpoints.retain(|step| *step <= event.step);
            }
            Kind::Checkpoint { .. } => checkpoints.push(event.step),
            _ => {}
        }
    }
    let work: f64 = counted.iter().map(|step| step.1).sum();
    let steps = counted.last().map_or(0, |step| step.0);
    let seconds = ended - begun.unwrap_or(0.0) - evaluation_seconds;
    if !(steps > 0 && work > 0.0 && seconds > 0.0) {
        return Err("its events show no steps that count: name a run that trained".into());
    }
    checkpoints.dedup();
    let spacing = checkpoints
        .len()
        .checked_sub(1)
        .filter(|gaps| *gaps > 0)
        .map(|gaps| (checkpoints[gaps].saturating_sub(checkpoints[0])) as f64 / gaps as f64);
    let step_seconds = work / steps as f64;
    let repairs = repairs(&episodes(events));
    let checkpoint_steps = spacing.filter(|steps| *steps > 0.0);
    Ok(Measured {
        ranks,
        steps,
        step_seconds,
        seconds,
        evaluation_seconds,
        lost_steps,
        checkpoint_steps,
        repairs,
    })
}

fn repairs(episodes: &[Episode]) -> BTreeMap<String, (u64, f64)> {
    let mut sums: BTreeMap<String, (u64, f64)> = BTreeMap::new();
    for episode in episodes {
        let sum = sums.entry(episode.rung.clone()).or_default();
        sum.0 += 1;
        sum.1 += episode.seconds();
    }
    sums.into_iter().map(|(rung, (n, seconds))| (rung, (n, seconds / n as f64))).collect()
}

/// What is known without the run; what is not is taken from it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Given {
    /// What repairs take.
    pub costs: Option<Costs>,
    /// Mean seconds between failures of any rank of the run.
    pub mtbf: Option<f64>,
}

/// What the forecast says of the run.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Verdict {
    /// The run's goodput.
    pub measured: f64,
    /// The mean of the forecast.
    pub forecast: f64,
    /// Between these lie 95 of 100 runs.
    pub runs: [f64; 2],
    /// Whether the run does.
    pub inside: bool,
    /// Mean number of failures of the forecast's runs.
    pub failures: f64,
}

/// Plays `replicas` runs of the same work and looks where the measured one lies.
pub fn hold(run: &Measured, given: Given, replicas: u32, seed: u64) -> Verdict {
    let rules = rules(run, given);
    let stream = |replica| Stream::new(&[seed, purpose::FLEET, 0, u64::from(replica)]);
    let played: Vec<_> =
        (0..replicas.max(1)).map(|replica| chain::play(&rules, &mut stream(replica))).collect();
    let sample = chain::sample(&played);
    let measured = run.goodput();
    Verdict {
        measured,
        forecast: sample.goodput,
        runs: sample.runs,
        inside: (sample.runs[0]..=sample.runs[1]).contains(&measured),
        failures: sample.failures as f64 / sample.n as f64,
    }
}

/// Live repairs are failures of ranks; starts of the whole world are those of its one "node".
fn rules(run: &Measured, given: Given) -> Rules {
    let cost_of = |rung: &str, measured: f64| match (given.costs, rung) {
        (Some(costs), "spare") => costs.spare,
        (Some(costs), "respawn") => costs.respawn,
        (Some(costs), "shrink") => costs.shrink,
        (Some(costs), "restart") if run.lost_steps > 0 => costs.restart,
        (Some(costs), "restart") => costs.resident_restart,
        _ => measured,
    };
    let mean = |wanted: &dyn Fn(&str) -> bool| {
        let chosen = run.repairs.iter().filter(|(rung, _)| wanted(rung));
        let (n, sum) = chosen.fold((0, 0.0), |(n, sum), (rung, (each, seconds))| {
            (n + each, sum + *each as f64 * cost_of(rung, *seconds))
        });
        (n as f64, if n > 0 { sum / n as f64 } else { 0.0 })
    };
    let (live, live_cost) = mean(&|rung| rung != "restart");
    let (restarts, restart_cost) = mean(&|rung| rung == "restart");
    let all = (live + restarts).max(1.0);
    let rate = given.mtbf.map_or((live + restarts) / run.seconds, |mtbf| 1.0 / mtbf);
    let checkpoint = match (run.lost_steps, run.checkpoint_steps) {
        (0, _) => run.step_seconds,
        (_, Some(steps)) => steps * run.step_seconds,
        // Every loss was to the only checkpoint there was, or to none.
        (_, None) => run.steps as f64 * run.step_seconds,
    };
    Rules {
        nodes: 1,
        ranks: u64::from(run.ranks.max(1)),
        spares: 0,
        rank_rate: rate * live / all / f64::from(run.ranks.max(1)),
        node_rate: rate * restarts / all,
        pace: 1.0,
        rank_cost: live_cost,
        node_cost: restart_cost,
        shrink_cost: 0.0,
        grow_cost: 0.0,
        restart_cost,
        rank_keeps: run.step_seconds,
        node_keeps: checkpoint,
        checkpoint,
        rank_return: None,
        node_return: None,
        work: run.steps as f64 * run.step_seconds,
    }
}
