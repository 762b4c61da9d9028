//! How recoveries grow with the number of ranks: a straight line for each way to recover among runs
//! that differ in nothing else (Fig. 5 of Tsuji et al. over 2 to 16 nodes). Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::figures::Figure;
use super::groups::{Keys, apart, configuration, differences, short};
use super::line_chart::{LineChart, Series, XAxis};
use super::markup::{NONE, Table};
use super::statistics::{Line, MeanCurve, estimate, line};
use super::summary::RunSummary;
use super::svg::escape;
use super::{Study, tables};
use crate::config::ExchangeKind;
use crate::lab::keys::told;

/// What makes a line, as a key.
const RANKS: &str = "run.ranks";

/// One way to recover over the number of ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Slope {
    /// The rung, and what else tells it from the other lines.
    pub name: String,
    /// The rung.
    pub rung: String,
    /// How gradients are exchanged.
    pub exchange: ExchangeKind,
    /// Of every run: ranks at the start, and the mean seconds of its recoveries. Those of one run
    /// share what is particular to it, and are no samples of their own.
    pub runs: Vec<(u32, f64)>,
    /// Seconds over ranks, by least squares.
    pub line: Line,
}

impl Slope {
    /// Seconds of each run, by ranks.
    fn by_ranks(&self) -> BTreeMap<u32, Vec<f64>> {
        let mut all: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
        for (ranks, seconds) in &self.runs {
            all.entry(*ranks).or_default().push(*seconds);
        }
        all
    }

    /// The fewest and the most ranks.
    pub fn ranks(&self) -> (u32, u32) {
        let ranks = || self.runs.iter().map(|run| run.0);
        (ranks().min().unwrap_or(0), ranks().max().unwrap_or(0))
    }
}

/// Recoveries by one rung of runs that differ in their number of ranks alone.
struct Family<'a> {
    keys: Keys,
    rung: &'a str,
    /// Of its first run.
    arm: &'a str,
    runs: Vec<(u32, f64)>,
}

impl Family<'_> {
    fn line(&self) -> Option<Line> {
        let point = |(ranks, seconds): &(u32, f64)| (f64::from(*ranks), *seconds);
        line(&self.runs.iter().map(point).collect::<Vec<_>>())
    }
}

/// All lines that a study's recoveries make.
pub fn slopes(study: &Study, runs: &[RunSummary]) -> Vec<Slope> {
    let mut families: Vec<Family> = Vec::new();
    for run in &study.runs {
        let Some(summary) = runs.iter().find(|other| other.path == run.path) else { continue };
        let mut keys = configuration(&run.config);
        // What differs from others is not known of a run whose configuration is not.
        if keys.is_empty() {
            continue;
        }
        keys.remove(RANKS);
        let mut rungs: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for episode in &summary.recoveries {
            rungs.entry(&episode.rung).or_default().push(episode.seconds());
        }
        for (rung, seconds) in rungs {
            let Some(mean) = estimate(seconds) else { continue };
            let point = (summary.ranks, mean.mean);
            let is_alike = |family: &&mut Family| family.keys == keys && family.rung == rung;
            match families.iter_mut().find(is_alike) {
                Some(family) => family.runs.push(point),
                None => {
                    let keys = keys.clone();
                    families.push(Family { keys, rung, arm: &run.arm, runs: vec![point] });
                }
            }
        }
    }
    families.retain(|family| family.line().is_some());
    let names = names(&families);
    let slope = |(family, name): (&Family, String)| {
        let exchange = family.keys.get("train.exchange").cloned();
        let exchange = exchange.and_then(|kind| kind.try_into().ok());
        Some(Slope {
            name,
            rung: family.rung.to_owned(),
            exchange: exchange.unwrap_or(ExchangeKind::Synchronous),
            line: family.line()?,
            runs: family.runs.clone(),
        })
    };
    families.iter().zip(names).filter_map(slope).collect()
}

/// By their rungs and by what tells them apart: how failures are handled is in the rung already,
/// and is told where nothing else differs.
fn names(families: &[Family]) -> Vec<String> {
    let all: Vec<&Keys> = families.iter().map(|family| &family.keys).collect();
    let differing = differences(&all);
    let mut patterns: Vec<Vec<Option<usize>>> = Vec::new();
    let mut telling = Vec::new();
    for difference in differing.iter().filter(|difference| !difference.is_handling()) {
        // A key that follows another tells nothing more.
        let values = &difference.values;
        let first = |value| values.iter().position(|other| other == value);
        let pattern = values.iter().map(first).collect();
        if !patterns.contains(&pattern) {
            patterns.push(pattern);
            telling.push(&difference.key);
        }
    }
    let name = |family: &Family| {
        let words = telling.iter().filter_map(|key| {
            Some(format!("{} {}", short(key, &telling), told(family.keys.get(*key)?)))
        });
        std::iter::once(family.rung.to_owned()).chain(words).collect::<Vec<_>>().join(", ")
    };
    let names: Vec<String> = families.iter().map(name).collect();
    let full = |(at, name): (usize, &String)| {
        let alike: Vec<usize> = (0..names.len()).filter(|other| names[*other] == *name).collect();
        let keys: Vec<&Keys> = alike.iter().map(|at| &families[*at].keys).collect();
        let place = alike.iter().position(|other| *other == at).filter(|_| alike.len() > 1);
        match (place, apart(&keys)) {
            (None, _) => name.clone(),
            (Some(place), Some(words)) => format!("{name}, {}", words[place]),
            (Some(_), None) => format!("{name}, as in {}", families[at].arm),
        }
    };
    names.iter().enumerate().map(full).collect()
}

/// Means over the ranks; nothing where no line is.
pub fn figure(slopes: &[Slope]) -> Option<Figure> {
    let series = slopes.iter().enumerate().map(|(at, slope)| {
        let mean =
            |(ranks, all): (u32, Vec<f64>)| Some((f64::from(ranks), estimate(all)?.mean * 1e3));
        let points = slope.by_ranks().into_iter().filter_map(mean).collect();
        let curve = MeanCurve { points, band: Vec::new() };
        let (label, colour) = (slope.name.clone(), at + 1);
        Series { label, colour, curve, dots: true, ..Series::default() }
    });
    let most = slopes.iter().map(|slope| slope.ranks().1).max()?;
    let chart = LineChart {
        id: "ranks".into(),
        label: "Recovery time over the number of ranks".into(),
        y_label: "back after / ms".into(),
        y_from: Some(0.0),
        x_axis: XAxis::Numbers { label: "ranks".into() },
        x_to: f64::from(most),
        series: series.collect(),
        ..LineChart::default()
    };
    let caption =
        "<b>Recovery time over the number of ranks,</b> from the failure until every rank \
                   computes again: means over the runs of each number."
            .to_string();
    Some(Figure { drawings: vec![chart.draw()?.html()], caption, key: Vec::new() })
}

/// Every line with its points; nothing where there is none.
pub fn table(slopes: &[Slope]) -> String {
    if slopes.is_empty() {
        return String::new();
    }
    let mut counts: Vec<u32> =
        slopes.iter().flat_map(|slope| slope.runs.iter().map(|run| run.0)).collect();
    counts.sort_unstable();
    counts.dedup();
    let head = ["recovery by".to_string(), "runs".into()].into_iter();
    let head = head.chain(counts.iter().map(|ranks| format!("{ranks} ranks")));
    let mut table = Table::new(head.chain(["each rank more".to_string()]));
    for slope in slopes {
        let by_ranks = slope.by_ranks();
        let mut row = vec![escape(&slope.name), slope.runs.len().to_string()];
        row.extend(counts.iter().map(|ranks| match by_ranks.get(ranks) {
            Some(all) => tables::time(estimate(all.iter().copied())),
            None => NONE.to_string(),
        }));
        let half = slope.line.half_width.map(|half| format!(" ± {:.1}", half * 1e3));
        row.push(format!("{:+.1}{} ms", slope.line.slope * 1e3, half.unwrap_or_default()));
        table.row(row);
    }
    table.html(
        "<b>Recovery time by the number of ranks,</b> means over runs, each with the mean of its \
         own recoveries. Each rank more: the slope of the straight line through all runs by least \
         squares, with its 95 % interval from four on. On a machine with fewer \
         processors than ranks it is the machine's, too.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::report::Run;
    use crate::lab::report::episodes::Episode;
    use crate::lab::report::summary::summarise;

    fn run(ranks: u32, exchange: &str, more: &str) -> Run {
        let reproducible = exchange == "synchronous";
        Run {
            arm: format!("{exchange} {}, {ranks} ranks", more.len()),
            path: format!("{exchange}-{ranks}-{more}"),
            config: format!(
                "[run]\nranks = {ranks}\n[train]\nsteps = 9\nexchange = \"{exchange}\"\n\
                 reproducible = {reproducible}\n{more}"
            ),
            ..Run::default()
        }
    }

    /// Runs with what each of their repairs took.
    fn slopes_of(runs: Vec<(Run, &[f64])>) -> Vec<Slope> {
        let (runs, seconds): (Vec<Run>, Vec<&[f64]>) = runs.into_iter().unzip();
        let study = Study { runs, ..Study::default() };
        let mut summaries = summarise(&study);
        for (run, seconds) in study.runs.iter().zip(seconds) {
            let own = summaries.iter_mut().find(|summary| summary.path == run.path).unwrap();
            own.ranks =
                run.arm.split_once(", ").unwrap().1.split(' ').next().unwrap().parse().unwrap();
            let episode = |seconds: &f64| Episode {
                back_at: 1.0,
                step: 1,
                lost: Vec::new(),
                rung: "respawn".into(),
                phases: vec![("spawn".to_string(), *seconds)],
                redo_seconds: 0.0,
                lost_steps: 0,
            };
            own.recoveries = seconds.iter().map(episode).collect();
        }
        slopes(&study, &summaries)
    }

    static RISING: [(u32, [f64; 1]); 3] = [(2, [0.2]), (4, [0.3]), (8, [0.5])];

    /// Runs of 2, 4 and 8 ranks.
    fn rising(
        exchange: &'static str,
        more: &'static str,
    ) -> impl Iterator<Item = (Run, &'static [f64])> {
        RISING.iter().map(move |(ranks, took)| (run(*ranks, exchange, more), &took[..]))
    }

    fn names(found: &[Slope]) -> Vec<&str> {
        found.iter().map(|slope| slope.name.as_str()).collect()
    }

    #[test]
    fn runs_that_differ_in_ranks_alone_make_a_line() {
        let synchronous = rising("synchronous", "");
        let found = slopes_of(synchronous.chain(rising("asynchronous", "")).collect());
        assert_eq!(
            names(&found),
            ["respawn, exchange synchronous", "respawn, exchange asynchronous"]
        );
        assert!((found[0].line.slope - 0.05).abs() < 1e-9 && found[0].ranks() == (2, 8));
        assert_eq!(found[1].exchange, ExchangeKind::Asynchronous);
    }

    #[test]
    fn lines_that_differ_in_what_is_done_about_failures_say_so() {
        let with = |more| rising("synchronous", more);
        let few = "[recovery]\nwarm_spares = true\n";
        let found = slopes_of(with("").chain(with(few)).collect());
        assert_eq!(names(&found), ["respawn, warm_spares false", "respawn, warm_spares true"]);
        let long = "[[faults.plan]]\nkind = \"kill\"\nwho = \"rank\"\nrank = 1\nstep = 40\n";
        let found = slopes_of(with("").chain(with(long)).collect());
        let last = format!("respawn, as in synchronous {}, 2 ranks", long.len());
        assert_eq!(names(&found), ["respawn, as in synchronous 0, 2 ranks", &last]);
    }

    #[test]
    fn the_recoveries_of_one_run_are_one_sample() {
        let took: [(u32, &[f64]); 3] = [(2, &[0.1, 0.3]), (4, &[0.3]), (8, &[0.2, 0.5, 0.8])];
        let found = slopes_of(took.map(|(n, took)| (run(n, "synchronous", ""), took)).to_vec());
        assert_eq!(found[0].runs, [(2, 0.2), (4, 0.3), (8, 0.5)]);
        assert_eq!(found[0].line.half_width, None, "three runs are no sample");
    }

    #[test]
    fn runs_whose_configuration_is_not_known_make_no_line() {
        let unread = |(run, took)| (Run { config: "what".into(), ..run }, took);
        assert_eq!(slopes_of(rising("synchronous", "").map(unread).collect()), []);
    }
}
