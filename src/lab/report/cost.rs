//! What failures cost in error at equal time (Tsuji et al., Fig. 7, 8 and Table 3): an arm's
//! error above that of the first arm that met the same failures, seed by seed, beside what the time
//! it lost and the slope of that arm's curve predict. Pure.

use super::markup::Table;
use super::series::{failures, standing_errors};
use super::statistics::{DataPoint, Estimate, estimate, line};
use super::summary::RunSummary;
use super::svg::escape;
use super::tables::{points, time};
use super::{Run, Study};

/// The share of the time, up to its end, over which a curve's slope is taken.
const SLOPE_OVER: f64 = 1.0 / 3.0;

/// One arm against the first of its arithmetic that met failures. Errors are fractions, positive
/// where this arm has more.
#[derive(Debug, Clone, PartialEq)]
pub struct Cost<'a> {
    /// Which.
    pub arm: &'a str,
    /// Against which.
    pub against: &'a str,
    /// Seeds that both have.
    pub seeds: usize,
    /// Of the least errors until 10/12 of the time.
    pub early: Option<Estimate>,
    /// Of the least errors until its end.
    pub least: Option<Estimate>,
    /// Of the last errors.
    pub last: Option<Estimate>,
    /// Seconds that this arm spent more on coming back and on doing steps again.
    pub lost_seconds: Option<Estimate>,
    /// Those times the fall of the other's curve, by least squares over the last third of the time.
    pub predicted: Option<Estimate>,
}

/// A run and its figures.
type Told<'a> = (&'a Run, &'a RunSummary);

/// All that can be told, in the order of the arms. Nothing where the runs did not have the same
/// time.
pub fn costs<'a>(study: &'a Study, summaries: &[RunSummary]) -> Vec<Cost<'a>> {
    let limit = study.runs.first().and_then(|run| run.max_seconds);
    if limit.is_none() || study.runs.iter().any(|run| run.max_seconds != limit) {
        return Vec::new();
    }
    let told = |run: &'a Run| {
        let summary = summaries.iter().find(|summary| summary.path == run.path)?;
        (!failures(&run.events).is_empty()).then_some((run, summary))
    };
    let arms = study.arms().into_iter();
    let struck: Vec<(&str, Vec<Told<'_>>)> =
        arms.map(|arm| (arm, study.runs_of(arm).filter_map(told).collect())).collect();
    let total = study.total_seconds();
    let cost = |at: usize| {
        let (arm, runs) = &struck[at];
        let alike = |(_, others): &&(&str, Vec<Told<'_>>)| {
            let arithmetic = |runs: &[Told<'_>]| runs.first().map(|(run, _)| run.arithmetic);
            !others.is_empty() && arithmetic(others) == arithmetic(runs)
        };
        let (against, others) = struck[..at].iter().find(alike)?;
        let other = |seed: u64| others.iter().find(|(run, _)| run.seed == seed);
        let pairs: Vec<_> =
            runs.iter().filter_map(|run| Some((*run, *other(run.0.seed)?))).collect();
        (!pairs.is_empty()).then(|| cost_of(arm, against, &pairs, total))
    };
    (1..struck.len()).filter_map(cost).collect()
}

fn cost_of<'a>(
    arm: &'a str,
    against: &'a str,
    pairs: &[(Told<'_>, Told<'_>)],
    total_seconds: f64,
) -> Cost<'a> {
    let over = |figure: &dyn Fn(&RunSummary) -> Option<f64>| {
        let more = pairs.iter().filter_map(|(one, other)| Some(figure(one.1)? - figure(other.1)?));
        estimate(more)
    };
    let lost = |run: &RunSummary| run.recovery_seconds() + run.redo_seconds();
    let predicted = pairs.iter().filter_map(|((_, one), (run, other))| {
        Some(-slope(run, total_seconds)? * (lost(one) - lost(other)))
    });
    Cost {
        arm,
        against,
        seeds: pairs.len(),
        early: over(&|run| run.min_error_early),
        least: over(&|run| run.min_error),
        last: over(&|run| run.final_error),
        lost_seconds: over(&|run| Some(lost(run))),
        predicted: estimate(predicted),
    }
}

/// Of the validation error over the end of the time, a second.
fn slope(run: &Run, total_seconds: f64) -> Option<f64> {
    let errors = standing_errors(run);
    let from = total_seconds * (1.0 - SLOPE_OVER);
    let late: Vec<DataPoint> = errors.into_iter().filter(|point| point.0 >= from).collect();
    line(&late).map(|line| line.slope)
}

/// As a table; empty where there is nothing to compare.
pub fn table(study: &Study, summaries: &[RunSummary]) -> String {
    let costs = costs(study, summaries);
    if costs.is_empty() {
        return String::new();
    }
    let mut table = Table::new([
        "arm",
        "against",
        "seeds",
        "min. error until 10/12",
        "min. error",
        "final error",
        "later by",
        "slope predicts",
    ]);
    for cost in costs {
        table.row(vec![
            escape(cost.arm),
            escape(cost.against),
            cost.seeds.to_string(),
            points(cost.early),
            points(cost.least),
            points(cost.last),
            time(cost.lost_seconds),
            points(cost.predicted),
        ]);
    }
    table.html(
        "<b>What failures cost at equal time:</b> points of error more than the other arm's run of \
         the same seed, with 95 % intervals from four seeds on. Later by: what coming back and \
         doing steps again took more. Slope predicts: that time by the fall of the other arm's \
         curve over the last third.",
    )
}

#[cfg(test)]
mod tests {
    use super::super::summary::summarise;
    use super::*;
    use crate::observe::event::{Kind, samples};

    /// Falls by a point every ten seconds from 20 %; struck at 30 s, and `late` behind since.
    fn run(arm: &str, seed: u64, late: f64) -> Run {
        let event = |seconds: f64, step: u64, kind| samples::event(step, seconds, kind);
        let error = |at: f64| 0.2 - 0.001 * if at > 30.0 { at - late } else { at };
        let evaluation = |at: u32| {
            let seconds = f64::from(at);
            let (error, average_error, loss, samples) = (error(seconds), None, 1.0, 100);
            let kind = Kind::Evaluation { error, average_error, loss, samples, seconds: 0.1 };
            event(seconds, u64::from(at), kind)
        };
        let mut events: Vec<_> = (1..=10).map(|tenth| evaluation(tenth * 10)).collect();
        let noticed =
            Kind::FailureDetected { phase: "all_reduce".into(), error: "a rank failed".into() };
        events.insert(3, event(30.5, 30, noticed));
        Run {
            arm: arm.into(),
            seed,
            path: format!("{arm} {seed}"),
            max_seconds: Some(100.0),
            events,
            ..Run::default()
        }
    }

    fn study(runs: Vec<Run>) -> Study {
        Study { runs, ..Study::default() }
    }

    #[test]
    fn an_arm_that_lost_ten_seconds_is_a_point_behind_at_the_end() {
        let seeds = 1..=4;
        let ahead = seeds.clone().map(|seed| run("respawn", seed, 0.0));
        let study = study(ahead.chain(seeds.map(|seed| run("restart", seed, 10.0))).collect());
        let costs = costs(&study, &summarise(&study));
        let [cost] = costs.as_slice() else { panic!("{costs:?}") };
        assert_eq!((cost.arm, cost.against, cost.seeds), ("restart", "respawn", 4));
        for more in [cost.early, cost.least, cost.last] {
            assert!((more.unwrap().mean - 0.01).abs() < 1e-9, "{cost:?}");
        }
    }

    #[test]
    fn runs_of_other_lengths_or_other_sums_are_not_compared() {
        let mut longer = run("restart", 1, 10.0);
        longer.max_seconds = Some(200.0);
        let mut otherwise = run("restart", 1, 10.0);
        otherwise.arithmetic = Some(7);
        for other in [longer, otherwise, run("restart", 2, 10.0)] {
            let study = study(vec![run("respawn", 1, 0.0), other]);
            assert_eq!(costs(&study, &summarise(&study)), []);
        }
    }

    #[test]
    fn the_slope_is_that_of_the_end() {
        let run = run("respawn", 1, 0.0);
        assert!((slope(&run, 100.0).unwrap() + 0.001).abs() < 1e-9);
    }
}
