//! The report's tables, as HTML.

use std::collections::{BTreeMap, BTreeSet};

use super::Study;
use super::compare::Bits;
use super::figures::{CHECKPOINT_PARTS, COLOURS, CheckpointGroup, RecoveryGroup, phase_name};
use super::groups::Difference;
use super::line_chart::time_unit;
use super::markup::{NONE, Table};
use super::series;
use super::statistics::{Estimate, estimate};
use super::summary::{EARLY, RunSummary, is_calm, over_seeds};
use super::svg::escape;
use crate::observe::event::PHASES;
use crate::observe::progress::{duration, short};
use crate::observe::spans::amount;

/// What stands behind means.
const INTERVALS: &str = ", with their 95 % intervals from four seeds on";

/// A longer value is folded.
const VALUE_CHARS_MAX: usize = 60;

/// `mean ± half`, without an interval that rounds to nothing.
fn with_interval(value: Option<Estimate>, unit: &str, write: impl Fn(f64) -> String) -> String {
    let Some(value) = value else { return NONE.to_string() };
    let mean = write(value.mean);
    match value.half_width.map(write) {
        Some(half) if half.contains(|digit: char| ('1'..='9').contains(&digit)) => {
            format!("{mean} ± {half}{unit}")
        }
        _ => format!("{mean}{unit}"),
    }
}

fn percent(value: Option<Estimate>) -> String {
    with_interval(value, " %", |fraction| format!("{:.2}", fraction * 100.0))
}

/// A difference of fractions, in points of a per cent.
pub(super) fn points(value: Option<Estimate>) -> String {
    with_interval(value, "", |fraction| format!("{:+.2}", fraction * 100.0)).replace("± +", "± ")
}

fn number(value: Option<Estimate>, digits: usize) -> String {
    with_interval(value, "", |number| format!("{number:.digits$}"))
}

/// The estimate of a length of time.
pub fn time(value: Option<Estimate>) -> String {
    with_interval(value, "", duration)
}

/// What is the same as in the calm run, in words.
pub fn bits(bits: Bits) -> String {
    match bits {
        Bits::SameState => "same state hash".to_string(),
        Bits::SameLosses { steps } => format!("same loss over {steps} steps"),
        Bits::OtherState { steps: 0 } => "another state hash".to_string(),
        Bits::OtherState { steps } => format!("another state hash; same loss over {steps} steps"),
        Bits::Differs { from_step, to_step } if from_step == to_step => {
            format!("differs in step {from_step}")
        }
        Bits::Differs { from_step, to_step } => {
            format!("differs within steps {from_step} to {to_step}")
        }
        Bits::Unknown => NONE.to_string(),
    }
}

/// Of several seeds the one that is least like the calm run.
pub fn worst_bits(runs: &[&RunSummary]) -> Bits {
    let rank = |bits: &Bits| match bits {
        Bits::Differs { .. } => 0,
        Bits::OtherState { .. } => 1,
        Bits::SameLosses { .. } => 2,
        Bits::SameState => 3,
        Bits::Unknown => 4,
    };
    runs.iter().map(|run| run.bits).min_by_key(rank).unwrap_or(Bits::Unknown)
}

fn by_arm<'a>(study: &'a Study, runs: &'a [RunSummary]) -> Vec<(&'a str, Vec<&'a RunSummary>)> {
    let of = |arm| (arm, runs.iter().filter(|run| run.arm == arm).collect());
    study.arms().into_iter().map(of).collect()
}

fn swatch(colour: usize, arm: &str) -> String {
    let colour = colour % COLOURS;
    format!("<i class=\"swatch c{colour}\"></i>{}", escape(arm))
}

/// The arms of a study in which nothing failed, at a glance.
pub fn calm_arms(study: &Study, runs: &[RunSummary]) -> String {
    let mut table = Table::new([
        "arm",
        "runs",
        "steps",
        "time",
        "min. error",
        "final error",
        "against the first",
        "at the first's error after",
        "sooner",
    ]);
    let has_caches = runs.iter().any(|run| run.missed.is_some());
    let of_first: BTreeMap<u64, f64> = by_arm(study, runs)
        .into_iter()
        .take(1)
        .flat_map(|(_, runs)| runs)
        .filter_map(|run| Some((run.seed, run.final_error?)))
        .collect();
    let first = |seed: u64| of_first.get(&seed).copied();
    let caught = |arm: &str, seed: u64| caught_up(study, arm, seed, first(seed)?);
    let first_arm = study.arms().first().copied().unwrap_or_default();
    if has_caches {
        table.head.push("reads that missed".into());
    }
    for (colour, (arm, runs)) in by_arm(study, runs).into_iter().enumerate() {
        let sooner =
            |run: &RunSummary| Some(1.0 - caught(arm, run.seed)? / caught(first_arm, run.seed)?);
        let mut row = vec![
            swatch(colour, arm),
            runs.len().to_string(),
            number(over_seeds(&runs, |run| Some(run.steps as f64)), 0),
            time(over_seeds(&runs, |run| Some(run.seconds))),
            percent(over_seeds(&runs, |run| run.min_error)),
            percent(over_seeds(&runs, |run| run.final_error)),
            match colour {
                0 => NONE.to_string(),
                _ => points(over_seeds(&runs, |run| Some(run.final_error? - first(run.seed)?))),
            },
            of_some(over_seeds(&runs, |run| caught(arm, run.seed)), runs.len()),
            match colour {
                0 => NONE.to_string(),
                _ => percent(over_seeds(&runs, sooner)),
            },
        ];
        if has_caches {
            row.push(percent(over_seeds(&runs, |run| run.missed)));
        }
        table.row(row);
    }
    let caches = match has_caches {
        true => {
            " Reads that missed: of those through the nodes' caches, the first epoch's included."
        }
        false => "",
    };
    table.html(&format!(
        "<b>Arms.</b> Means over the seeds{INTERVALS}. Against the first: points of the final \
         error more than the first arm's run of the same seed has. At the first's error: when an \
         evaluation first found no more than what that run ended with (Lee and Bahn, Fig. 5), \
         over the runs that came to it; sooner: the part of that run's own time that this \
         saved.{caches}"
    ))
}

/// Seconds until a run's validation error was first no more than a level.
fn caught_up(study: &Study, arm: &str, seed: u64, level: f64) -> Option<f64> {
    let run = study.runs_of(arm).find(|run| run.seed == seed)?;
    let errors = series::standing_errors(run);
    errors.into_iter().find(|point| point.1 <= level).map(|point| point.0)
}

/// A length of time that not all runs of an arm have.
fn of_some(value: Option<Estimate>, runs: usize) -> String {
    match value {
        Some(some) if some.n < runs => format!("{} ({} of {runs} runs)", time(value), some.n),
        _ => time(value),
    }
}

/// All arms at a glance.
pub fn arms(study: &Study, runs: &[RunSummary]) -> String {
    let mut table = Table::new([
        "arm",
        "runs",
        "steps",
        "final error",
        "min. error",
        "steps lost",
        "recoveries",
        "back after",
        "goodput",
        "against the calm run",
    ]);
    for (colour, (arm, runs)) in by_arm(study, runs).into_iter().enumerate() {
        let episodes = || runs.iter().flat_map(|run| &run.recoveries);
        let lost: u64 = runs.iter().map(|run| run.lost_steps).sum();
        let ledger: u64 = runs.iter().map(|run| run.lost_steps_ledger).sum();
        let lost = match lost == ledger {
            true => number(over_seeds(&runs, |run| Some(run.lost_steps as f64)), 0),
            false => format!("{lost} <span class=\"bad\">(ledger: {ledger})</span>"),
        };
        table.row(vec![
            swatch(colour, arm),
            runs.len().to_string(),
            number(over_seeds(&runs, |run| Some(run.steps as f64)), 0),
            percent(over_seeds(&runs, |run| run.final_error)),
            percent(over_seeds(&runs, |run| run.min_error)),
            lost,
            episodes().count().to_string(),
            time(estimate(episodes().map(|episode| episode.seconds()))),
            percent(over_seeds(&runs, |run| run.goodput)),
            bits(worst_bits(&runs)),
        ]);
    }
    table.html(
        "<b>Arms.</b> Steps lost: committed and thrown away by a rollback, as the run says and its \
         ledger confirms. Back after: from the failure until every rank computes again. Goodput: \
         the part of the time spent in steps that counted.",
    )
}

/// Table 3 of Tsuji et al..
pub fn minimum_errors(study: &Study, runs: &[RunSummary]) -> String {
    let (unit, name) = time_unit(study.total_seconds());
    let total = study.total_seconds() / unit;
    let mut table = Table::new([
        "minimum validation error".to_string(),
        format!("until {:.1} {name}", total * EARLY),
        format!("until {total:.1} {name}"),
    ]);
    for (colour, (arm, runs)) in by_arm(study, runs).into_iter().enumerate() {
        table.row(vec![
            swatch(colour, arm),
            percent(over_seeds(&runs, |run| run.min_error_early)),
            percent(over_seeds(&runs, |run| run.min_error)),
        ]);
    }
    table.html("<b>Minimum error at two times,</b> 10/12 of the time and all of it.")
}

/// The figures behind the recovery bars.
pub fn recoveries(groups: &[RecoveryGroup]) -> String {
    let phases: Vec<(&RecoveryGroup, BTreeMap<String, f64>)> =
        groups.iter().map(|group| (group, group.phases().into_iter().collect())).collect();
    let in_order = PHASES.iter().map(|phase| (*phase).to_string());
    let others: BTreeSet<String> = phases.iter().flat_map(|(_, p)| p.keys().cloned()).collect();
    let mut names: Vec<String> = in_order.filter(|name| others.contains(name)).collect();
    names.extend(others.iter().filter(|name| !names.contains(name)).cloned().collect::<Vec<_>>());
    let mut head = vec!["arm".to_string(), "n".to_string()];
    head.extend(names.iter().map(|name| phase_name(name)));
    head.extend(["back after", "steps lost", "done again in"].map(String::from));
    let mut table = Table::new(head);
    for (group, phases) in phases {
        let mut row = vec![escape(&group.label()), group.episodes.len().to_string()];
        let measured = |name| phases.get(name).filter(|seconds| **seconds > 0.0);
        row.extend(names.iter().map(|n| measured(n).map_or(NONE.into(), |s| duration(*s))));
        row.push(time(estimate(group.episodes.iter().map(|episode| episode.seconds()))));
        row.push(format!("{:.0}", group.lost_steps()));
        row.push(match group.redo_seconds() {
            seconds if seconds > 0.0 => duration(seconds),
            _ => NONE.to_string(),
        });
        table.row(row);
    }
    table.html("<b>Recovery time by phase:</b> means over the recoveries of an arm.")
}

/// Table 2 of Tsuji et al..
pub fn checkpoints(groups: &[CheckpointGroup]) -> String {
    let mut table = Table::new(["arm", "n", "size"]);
    table.head.extend(CHECKPOINT_PARTS.map(|(name, _)| name.to_string()));
    table.head.extend(["total", "holding the loop"].map(String::from));
    for group in groups {
        let total = estimate(group.parts.iter().map(|parts| parts.iter().sum()));
        let mean_total = total.map_or(0.0, |total| total.mean);
        let bytes = estimate(group.bytes.iter().copied()).map_or(0.0, |bytes| bytes.mean);
        let mut row = vec![escape(group.arm), group.parts.len().to_string(), amount(bytes as u64)];
        for index in 0..CHECKPOINT_PARTS.len() {
            let mean =
                estimate(group.parts.iter().map(|parts| parts[index])).map_or(0.0, |e| e.mean);
            let share = if mean_total > 0.0 { mean / mean_total * 100.0 } else { 0.0 };
            row.push(format!("{} ({share:.1} %)", duration(mean)));
        }
        row.push(time(total));
        row.push(time(estimate(group.stalls.iter().copied())));
        table.row(row);
    }
    table.html("<b>Where a checkpoint's time goes.</b>")
}

/// Every run, for those who look for one.
pub fn runs(runs: &[RunSummary]) -> String {
    let mut table = Table::new([
        "run",
        "arm",
        "seed",
        "status",
        "ranks",
        "steps",
        "seconds",
        "min. error",
        "steps lost",
        "state",
        "against the calm run",
    ]);
    for run in runs {
        let hash = run.state_sha256.as_deref().map_or(NONE, short);
        table.row(vec![
            format!("<code>{}</code>", escape(&run.path)),
            escape(&run.arm),
            run.seed.to_string(),
            escape(&run.ending()),
            run.ranks_words(),
            run.steps.to_string(),
            format!("{:.1}", run.seconds),
            run.min_error.map_or(NONE.into(), |error| format!("{:.2} %", error * 100.0)),
            run.lost_steps.to_string(),
            format!("<code>{}</code>", escape(hash)),
            bits(run.bits),
        ]);
    }
    table.html("<b>Runs.</b>")
}

/// A value as code, one that would fill many lines behind its beginning.
fn folded(value: &str) -> String {
    let whole = format!("<code>{}</code>", escape(value));
    if value.chars().count() <= VALUE_CHARS_MAX {
        return whole;
    }
    let begin: String = value.chars().take(VALUE_CHARS_MAX / 2).collect();
    let begin = escape(&begin);
    format!("<details><summary><code>{begin}…</code></summary>{whole}</details>")
}

/// The keys in which the arms' configurations differ; empty when they do not. What there is more
/// of, arms or keys, has the rows.
pub fn differences(study: &Study, differences: &[Difference]) -> String {
    if differences.is_empty() {
        return String::new();
    }
    let arms = study.arms();
    let key = |difference: &Difference| format!("<code>{}</code>", escape(&difference.key));
    let value = |difference: &Difference, arm: usize| match &difference.values[arm] {
        Some(value) => folded(&value.to_string()),
        None => "unset".to_string(),
    };
    let swatches = arms.iter().enumerate().map(|(colour, arm)| swatch(colour, arm));
    let table = if arms.len() > differences.len() {
        let head = std::iter::once("arm".to_string()).chain(differences.iter().map(key));
        let mut table = Table::new(head);
        for (at, arm) in swatches.enumerate() {
            let values = differences.iter().map(|difference| value(difference, at));
            table.row(std::iter::once(arm).chain(values).collect::<Vec<_>>());
        }
        table
    } else {
        let mut table = Table::new(std::iter::once("key".to_string()).chain(swatches));
        for difference in differences {
            let values = (0..arms.len()).map(|at| value(difference, at));
            table.row(std::iter::once(key(difference)).chain(values).collect::<Vec<_>>());
        }
        table
    };
    table.html("<b>What differs</b> between the arms' configurations; all else is the same.")
}

/// The arms at a glance, for a terminal.
pub fn arms_text(study: &Study, runs: &[RunSummary]) -> String {
    let calm = is_calm(runs);
    let mut table = Table::new(["arm", "runs", "min. error", "final", "steps"]);
    let more: &[&str] = if calm { &["time"] } else { &["lost", "back after", "calm run's bits"] };
    table.head.extend(more.iter().map(ToString::to_string));
    for (arm, runs) in by_arm(study, runs) {
        let mut row = vec![
            arm.to_string(),
            runs.len().to_string(),
            percent(over_seeds(&runs, |run| run.min_error)),
            percent(over_seeds(&runs, |run| run.final_error)),
            number(over_seeds(&runs, |run| Some(run.steps as f64)), 0),
        ];
        if calm {
            row.push(time(over_seeds(&runs, |run| Some(run.seconds))));
        } else {
            let episodes = runs.iter().flat_map(|run| &run.recoveries);
            row.push(number(over_seeds(&runs, |run| Some(run.lost_steps as f64)), 0));
            row.push(time(estimate(episodes.map(|episode| episode.seconds()))));
            row.push(bits(worst_bits(&runs)));
        }
        table.row(row);
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::report::{Run, summary};
    use crate::observe::event::{Kind, samples::event};

    fn run(arm: &str, seed: u64, errors: &[(f64, f64)]) -> Run {
        let events = errors.iter().map(|&(seconds, error)| {
            let kind = Kind::Evaluation {
                error,
                average_error: None,
                loss: 1.0,
                samples: 9,
                seconds: 0.1,
            };
            event(seconds as u64, seconds, kind)
        });
        Run { arm: arm.into(), seed, events: events.collect(), ..Run::default() }
    }

    #[test]
    fn arms_say_when_they_came_to_the_error_of_the_first() {
        let runs = vec![
            run("usual", 1, &[(10.0, 0.5), (20.0, 0.2), (30.0, 0.3)]),
            run("usual", 2, &[(10.0, 0.5), (20.0, 0.4)]),
            run("quick", 1, &[(8.0, 0.3), (16.0, 0.4)]),
            run("quick", 2, &[(8.0, 0.5), (16.0, 0.41)]),
        ];
        let study = Study { runs, ..Study::default() };
        let html = calm_arms(&study, &summary::summarise(&study));
        let row = |arm: &str| {
            let at = html.find(&format!("</i>{arm}</td>")).expect("its row");
            html[at..].split_once("</tr>").expect("its end").0.to_string()
        };
        assert!(row("usual").contains("<td>20.00 s</td><td>–</td>"), "{html}");
        // Of the seeds the second never came to 40 %; the first took 8 s instead of 20.
        assert!(row("quick").contains("<td>8.00 s (1 of 2 runs)</td><td>60.00 %</td>"), "{html}");
    }
}
