//! How recoveries grow with the number of ranks: a straight line for each way to recover among runs
//! that differ in nothing else (Fig. 5 of Tsuji et al. over 2 to 16 nodes). Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::figures::Figure;
use super::groups::{Keys, configuration, differences, short};
use super::line_chart::{LineChart, Series, XAxis};
use super::markup::{NONE, Table};
use super::statistics::{Line, MeanCurve, estimate, line};
use super::summary::RunSummary;
use super::svg::escape;
use super::{Study, tables};
use crate::config::ExchangeKind;

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
    /// Ranks at the start, and the seconds of one recovery.
    pub points: Vec<(u32, f64)>,
    /// Seconds over ranks, by least squares.
    pub line: Line,
}

impl Slope {
    /// Mean seconds and how many recoveries, by ranks.
    fn means(&self) -> BTreeMap<u32, Vec<f64>> {
        let mut all: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
        for (ranks, seconds) in &self.points {
            all.entry(*ranks).or_default().push(*seconds);
        }
        all
    }

    /// The fewest and the most ranks.
    pub fn ranks(&self) -> (u32, u32) {
        let ranks = || self.points.iter().map(|point| point.0);
        (ranks().min().unwrap_or(0), ranks().max().unwrap_or(0))
    }
}

/// Recoveries by one rung of runs that differ in their number of ranks alone.
struct Family {
    keys: Keys,
    rung: String,
    points: Vec<(u32, f64)>,
}

/// All lines that a study's recoveries make.
pub fn slopes(study: &Study, runs: &[RunSummary]) -> Vec<Slope> {
    let mut families: Vec<Family> = Vec::new();
    for run in &study.runs {
        let Some(summary) = runs.iter().find(|other| other.path == run.path) else { continue };
        let mut keys = configuration(&run.config);
        keys.remove(RANKS);
        for episode in &summary.recoveries {
            let point = (summary.ranks, episode.seconds());
            let is_alike =
                |family: &&mut Family| family.keys == keys && family.rung == episode.rung;
            match families.iter_mut().find(is_alike) {
                Some(family) => family.points.push(point),
                None => families.push(Family {
                    keys: keys.clone(),
                    rung: episode.rung.clone(),
                    points: vec![point],
                }),
            }
        }
    }
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
    families.iter().filter_map(|family| slope(family, &telling)).collect()
}

fn slope(family: &Family, telling: &[&String]) -> Option<Slope> {
    let points: Vec<(f64, f64)> =
        family.points.iter().map(|(ranks, seconds)| (f64::from(*ranks), *seconds)).collect();
    let told = telling.iter().filter_map(|key| {
        let value = family.keys.get(*key)?;
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        Some(format!("{} {value}", short(key, telling)))
    });
    let name: Vec<String> = std::iter::once(family.rung.clone()).chain(told).collect();
    let exchange = family.keys.get("train.exchange").cloned();
    Some(Slope {
        name: name.join(", "),
        rung: family.rung.clone(),
        exchange: exchange
            .and_then(|kind| kind.try_into().ok())
            .unwrap_or(ExchangeKind::Synchronous),
        line: line(&points)?,
        points: family.points.clone(),
    })
}

/// Means over the ranks; nothing where no line is.
pub fn figure(slopes: &[Slope]) -> Option<Figure> {
    let series = slopes.iter().enumerate().map(|(at, slope)| {
        let mean =
            |(ranks, all): (u32, Vec<f64>)| Some((f64::from(ranks), estimate(all)?.mean * 1e3));
        let points = slope.means().into_iter().filter_map(mean).collect();
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
                   computes again: means over the recoveries of each number."
            .to_string();
    Some(Figure { drawings: vec![chart.draw()?.html()], caption, key: Vec::new() })
}

/// Every line with its points; nothing where there is none.
pub fn table(slopes: &[Slope]) -> String {
    if slopes.is_empty() {
        return String::new();
    }
    let mut counts: Vec<u32> =
        slopes.iter().flat_map(|slope| slope.points.iter().map(|point| point.0)).collect();
    counts.sort_unstable();
    counts.dedup();
    let head = ["recovery by".to_string(), "n".into()].into_iter();
    let head = head.chain(counts.iter().map(|ranks| format!("{ranks} ranks")));
    let mut table = Table::new(head.chain(["each rank more".to_string()]));
    for slope in slopes {
        let means = slope.means();
        let mut row = vec![escape(&slope.name), slope.points.len().to_string()];
        row.extend(counts.iter().map(|ranks| match means.get(ranks) {
            Some(all) => tables::time(estimate(all.iter().copied())),
            None => NONE.to_string(),
        }));
        let half = slope.line.half_width.map(|half| format!(" ± {:.1}", half * 1e3));
        row.push(format!("{:+.1}{} ms", slope.line.slope * 1e3, half.unwrap_or_default()));
        table.row(row);
    }
    table.html(
        "<b>Recovery time by the number of ranks,</b> means. Each rank more: the slope of the \
         straight line through all single recoveries by least squares, with its 95 % interval from \
         four on. On a machine with fewer processors than ranks it is the machine's, too.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::report::Run;
    use crate::lab::report::episodes::Episode;
    use crate::lab::report::summary::summarise;

    #[test]
    fn runs_that_differ_in_ranks_alone_make_a_line() {
        let run = |ranks: u32, exchange: &str| {
            let reproducible = exchange == "synchronous";
            Run {
                path: format!("{exchange}-{ranks}"),
                config: format!(
                    "[run]\nranks = {ranks}\n[train]\nsteps = 9\nexchange = \"{exchange}\"\n\
                     reproducible = {reproducible}\n"
                ),
                ..Run::default()
            }
        };
        let runs = ["synchronous", "asynchronous"].map(|kind| [2, 4, 8].map(|n| run(n, kind)));
        let study = Study { runs: runs.concat(), ..Study::default() };
        let mut summaries = summarise(&study);
        for (summary, ranks) in summaries.iter_mut().zip([2, 4, 8, 2, 4, 8]) {
            summary.ranks = ranks;
            let phases = vec![("spawn".to_string(), 0.1 + 0.05 * f64::from(ranks))];
            summary.recoveries = vec![Episode {
                back_at: 1.0,
                step: 1,
                lost: Vec::new(),
                rung: "respawn".into(),
                phases,
                redo_seconds: 0.0,
                lost_steps: 0,
            }];
        }
        let found = slopes(&study, &summaries);
        let names: Vec<_> = found.iter().map(|slope| slope.name.as_str()).collect();
        assert_eq!(names, ["respawn, exchange synchronous", "respawn, exchange asynchronous"]);
        assert!((found[0].line.slope - 0.05).abs() < 1e-9 && found[0].ranks() == (2, 8));
        assert_eq!(found[1].exchange, ExchangeKind::Asynchronous);
    }
}
