//! A forecast held against a run that was measured. From the run come its length, its step time,
//! what struck it and how long each repair took; the forecast is the spread of runs of the same
//! work under failures of the same rate. Start-up, evaluations and the end are left out on both
//! sides.

use std::collections::BTreeMap;

use crate::config::seed::{Stream, purpose};
use crate::lab::report::episodes::{Episode, episodes};
use crate::observe::event::{Event, Kind};

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
    /// Mean length of the step that a failure strikes: long steps are struck more often.
    pub struck_step_seconds: f64,
    /// From the first step's beginning to the last one's end, evaluations left out.
    pub seconds: f64,
    /// Evaluations, left out.
    pub evaluation_seconds: f64,
    /// Steps that were committed and thrown away.
    pub lost_steps: u64,
    /// Steps from one checkpoint to the next, on average; none where there were fewer than two.
    pub checkpoint_steps: Option<f64>,
    /// The fraction of the time that goes into steps where nothing fails: between two of them lines
    /// are written, and checkpoints begun.
    pub pace: f64,
    /// Repairs by rung, with the seconds of each.
    pub repairs: BTreeMap<String, Vec<f64>>,
}

impl Measured {
    /// The fraction of the time that went into steps that count.
    pub fn goodput(&self) -> f64 {
        self.steps as f64 * self.step_seconds / self.seconds
    }

    /// Failures of any kind.
    pub fn failures(&self) -> u64 {
        self.repairs.values().map(|repairs| repairs.len() as u64).sum()
    }
}

/// Steps that share one event, since they are short.
struct Stretch {
    last: u64,
    steps: u64,
    /// Of all of them.
    seconds: f64,
}

/// The pace of stretches between two step events in which nothing happened but checkpoints; 1 where
/// there are none.
fn pace(events: &[Event]) -> f64 {
    let (mut work, mut passed) = (0.0, 0.0);
    let mut calm_since: Option<f64> = None;
    for event in events {
        match &event.kind {
            Kind::Step { seconds, .. } => {
                if let Some(since) = calm_since {
                    work += seconds;
                    passed += event.seconds - since;
                }
                calm_since = Some(event.seconds);
            }
            Kind::Checkpoint { .. } | Kind::Epoch { .. } => {}
            // The record of a repair may come some steps after it.
            Kind::Recovered(_) if calm_since.is_some_and(|since| event.seconds <= since) => {}
            _ => calm_since = None,
        }
    }
    if work > 0.0 { (work / passed).min(1.0) } else { 1.0 }
}

/// Reads a run's events.
///
/// # Errors
/// When they show too little: no steps, or none that count.
pub fn measure(events: &[Event]) -> Result<Measured, String> {
    let mut counted: Vec<Stretch> = Vec::new();
    let mut at = 0;
    let (mut ranks, mut begun, mut ended) = (0, None, 0.0);
    let (mut evaluation_seconds, mut lost_steps) = (0.0, 0);
    let mut checkpoints: Vec<u64> = Vec::new();
    for event in events {
        match &event.kind {
            Kind::RunStart { ranks: started, .. } if ranks == 0 => ranks = *started,
            Kind::Step { seconds, .. } => {
                begun.get_or_insert(event.seconds - seconds);
                ended = event.seconds;
                // Steps that went back by themselves leave one in doubt; that is one at least.
                let steps = event.step.saturating_sub(at).max(1);
                counted.push(Stretch { last: event.step, steps, seconds: *seconds });
                at = event.step;
            }
            Kind::Evaluation { seconds, .. } if seconds.is_finite() => {
                evaluation_seconds += seconds;
            }
            Kind::Restarted { lost_steps: lost, .. } => {
                lost_steps += lost;
                counted.retain(|stretch| stretch.last <= event.step);
                at = event.step;
                checkpoints.retain(|step| *step <= event.step);
            }
            Kind::Checkpoint { .. } => checkpoints.push(event.step),
            _ => {}
        }
    }
    let work: f64 = counted.iter().map(|stretch| stretch.seconds).sum();
    let steps = counted.last().map_or(0, |stretch| stretch.last);
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
    // A restart may cut a stretch in two, of which none is counted.
    let step_seconds = work / counted.iter().map(|stretch| stretch.steps as f64).sum::<f64>();
    let struck = |stretch: &Stretch| stretch.seconds * stretch.seconds / stretch.steps as f64;
    let struck_step_seconds = counted.iter().map(struck).sum::<f64>() / work;
    let repairs = repairs(&episodes(events), struck_step_seconds);
    let checkpoint_steps = spacing.filter(|steps| *steps > 0.0);
    let pace = pace(events);
    Ok(Measured {
        ranks,
        steps,
        step_seconds,
        struck_step_seconds,
        seconds,
        evaluation_seconds,
        lost_steps,
        checkpoint_steps,
        pace,
        repairs,
    })
}

/// A kill from outside leaves no time stamp, so its repair has no phase "detect". The survivors
/// notice when they next communicate, at the end of their step: half a step later on average.
fn repairs(episodes: &[Episode], step_seconds: f64) -> BTreeMap<String, Vec<f64>> {
    let mut repairs: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for episode in episodes {
        let stamped = episode.phases.iter().any(|phase| phase.0 == "detect");
        let seconds = episode.seconds() + if stamped { 0.0 } else { step_seconds / 2.0 };
        repairs.entry(episode.rung.clone()).or_default().push(seconds);
    }
    repairs
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
pub struct Judgement {
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
pub fn hold(run: &Measured, given: Given, replicas: u32, seed: u64) -> Judgement {
    let played: Vec<_> = (0..replicas.max(1))
        .map(|replica| {
            let mut stream = Stream::new(&[seed, purpose::FLEET, 0, u64::from(replica)]);
            let rules = rules(run, given, &mut stream);
            chain::play(&rules, &mut stream)
        })
        .collect();
    let sample = chain::sample(&played);
    let measured = run.goodput();
    Judgement {
        measured,
        forecast: sample.goodput,
        runs: sample.runs,
        inside: (sample.runs[0]..=sample.runs[1]).contains(&measured),
        failures: sample.failures as f64 / sample.n as f64,
    }
}

/// What a repair by this rung takes where that is known without the run.
fn given_cost(run: &Measured, given: Given, rung: &str) -> Option<f64> {
    let costs = given.costs?;
    match rung {
        "spare" => Some(costs.spare),
        "respawn" => Some(costs.respawn),
        "shrink" => Some(costs.shrink),
        "restart" if run.lost_steps > 0 => Some(costs.restart),
        "restart" => Some(costs.resident_restart),
        _ => None,
    }
}

/// How many repairs there were of the rungs that are wanted, and their mean cost in one run: over
/// as many as there were, drawn from them, since another run would have had others.
fn repairs_of(
    run: &Measured,
    given: Given,
    stream: &mut Stream,
    wanted: impl Fn(&str) -> bool,
) -> (f64, f64) {
    let chosen = run.repairs.iter().filter(|(rung, _)| wanted(rung));
    let all: Vec<f64> = chosen
        .flat_map(|(rung, each)| {
            let cost = given_cost(run, given, rung);
            each.iter().map(move |seconds| cost.unwrap_or(*seconds))
        })
        .collect();
    if all.is_empty() {
        return (0.0, 0.0);
    }
    let drawn = (0..all.len()).map(|_| all[stream.below(all.len() as u64) as usize]);
    (all.len() as f64, drawn.sum::<f64>() / all.len() as f64)
}

/// Live repairs are failures of ranks; starts of the whole world are those of its one "node".
fn rules(run: &Measured, given: Given, stream: &mut Stream) -> Rules {
    let (live, live_cost) = repairs_of(run, given, stream, |rung| rung != "restart");
    let (restarts, restart_cost) = repairs_of(run, given, stream, |rung| rung == "restart");
    let all = (live + restarts).max(1.0);
    let rate = given.mtbf.map_or((live + restarts) / run.seconds, |mtbf| 1.0 / mtbf);
    let checkpoint = match (run.lost_steps, run.checkpoint_steps) {
        (0, _) => run.struck_step_seconds,
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
        pace: run.pace,
        rank_cost: live_cost,
        node_cost: restart_cost,
        shrink_cost: 0.0,
        grow_cost: 0.0,
        restart_cost,
        rank_keeps: run.struck_step_seconds,
        node_keeps: checkpoint,
        checkpoint,
        rank_return: None,
        node_return: None,
        work: run.steps as f64 * run.step_seconds,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::event::VERSION;

    fn event(seconds: f64, step: u64, kind: Kind) -> Event {
        let (time, attempt, generation, rank) = (1.7e9 + seconds, 1, 0, 0);
        Event { v: VERSION, time, seconds, attempt, generation, step, rank, kind }
    }

    /// Steps up to this one that took so long together, written at the end of the last.
    fn steps(at: f64, last: u64, seconds: f64) -> Event {
        let (epoch, loss, error, samples, learning_rate) = (0, 1.0, 0.5, 96, 0.1);
        event(at, last, Kind::Step { epoch, loss, error, samples, learning_rate, seconds })
    }

    #[test]
    fn steps_that_share_an_event_have_the_length_of_one() {
        let one_by_one: Vec<Event> =
            (1..=400).map(|step| steps(0.02 * step as f64, step, 0.02)).collect();
        let five_by_five: Vec<Event> =
            (1..=80).map(|event| steps(0.1 * event as f64, 5 * event, 0.1)).collect();
        for events in [one_by_one, five_by_five] {
            let run = measure(&events).unwrap();
            assert_eq!(run.steps, 400);
            assert!((run.step_seconds - 0.02).abs() < 1e-9, "{run:?}");
            assert!((run.struck_step_seconds - 0.02).abs() < 1e-9, "{run:?}");
        }
    }

    #[test]
    fn what_is_done_between_steps_where_nothing_fails_is_no_cost_of_failures() {
        let error = "rank 1 is gone".to_string();
        let failed = Kind::FailureDetected { phase: "step".into(), error };
        // 20 ms after each of 80 ms; the failure's second is not theirs.
        let mut events: Vec<Event> =
            (1..=50).map(|step| steps(0.1 * step as f64, step, 0.08)).collect();
        events.push(event(5.9, 50, failed));
        events.extend((51..=100).map(|step| steps(1.0 + 0.1 * step as f64, step, 0.08)));
        let run = measure(&events).unwrap();
        assert!((run.pace - 0.8).abs() < 1e-9, "{run:?}");
    }

    #[test]
    fn long_steps_are_struck_more_often() {
        // Nine of 0.01 s in one event, then one of 0.11 s.
        let run = measure(&[steps(0.09, 9, 0.09), steps(0.2, 10, 0.11)]).unwrap();
        assert!((run.step_seconds - 0.02).abs() < 1e-9, "{run:?}");
        let expected = (9.0 * 0.01 * 0.01 + 0.11 * 0.11) / 0.2;
        assert!((run.struck_step_seconds - expected).abs() < 1e-9, "{run:?}");
    }

    #[test]
    fn steps_are_counted_from_where_an_attempt_begins() {
        let back = Kind::Restarted {
            from: "checkpoint".into(),
            lost_steps: 7,
            lost: Vec::new(),
            weights: None,
        };
        let mut events = vec![steps(0.1, 5, 0.1), steps(0.2, 10, 0.1), steps(0.3, 15, 0.1)];
        // Steps 6 to 8 counted, but their event does not: two of its steps were thrown away.
        events.push(event(2.0, 8, back));
        events.extend([steps(2.1, 13, 0.1), steps(2.2, 18, 0.1)]);
        let run = measure(&events).unwrap();
        assert_eq!((run.steps, run.lost_steps), (18, 7));
        assert!((run.step_seconds - 0.02).abs() < 1e-9, "{run:?}");
        assert!((run.struck_step_seconds - 0.02).abs() < 1e-9, "{run:?}");
    }
}
