//! What the kernel's page cache has of a set when its room is limited (Lee and Bahn's question, on
//! a real kernel): how much of each epoch's bytes came from the device, for the arms of a study
//! that name their `page_cache`. An arm's name is `GROUP: ORDER`; a group has a figure.

use std::collections::BTreeMap;

use super::figures::{COLOURS, Figure};
use super::groups::named;
use super::line_chart::{LineChart, Series, Unit, XAxis};
use super::markup::{NONE, Table};
use super::statistics::{Estimate, estimate, mean_curve};
use super::svg::escape;
use super::{Run, Study};
use crate::config::{CacheSize, Config};
use crate::observe::event::Kind;
use crate::observe::progress::duration;

/// One epoch of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Epoch {
    /// Its last step.
    step: u64,
    /// When that ended, in seconds of the run.
    ended: f64,
    /// Bytes of samples that ranks asked for.
    asked_bytes: u64,
    /// Bytes that kernels brought.
    device_bytes: u64,
}

impl Epoch {
    fn missed(&self) -> f64 {
        self.device_bytes as f64 / self.asked_bytes.max(1) as f64
    }
}

/// The epochs of a run, as its events tell.
fn epochs(run: &Run) -> Vec<Epoch> {
    let mut of: BTreeMap<u64, Epoch> = BTreeMap::new();
    let mut unplaced = Epoch::default();
    for event in &run.events {
        match &event.kind {
            Kind::Data { used, .. } => {
                unplaced.asked_bytes += used.bytes.shared + used.bytes.local + used.bytes.cache;
                unplaced.device_bytes += used.bytes.device;
            }
            Kind::Step { epoch, .. } => {
                let sum = of.entry(*epoch).or_default();
                sum.step = event.step;
                sum.ended = event.seconds;
                sum.asked_bytes += unplaced.asked_bytes;
                sum.device_bytes += unplaced.device_bytes;
                unplaced = Epoch::default();
            }
            _ => {}
        }
    }
    of.into_values().collect()
}

/// The set's bytes.
/// What is read ahead belongs to the next epoch: one has a little more, another less.
fn mean_asked_bytes(epochs: &[Epoch]) -> Option<f64> {
    let asked: u64 = epochs.iter().map(|epoch| epoch.asked_bytes).sum();
    (asked > 0).then(|| asked as f64 / epochs.len() as f64)
}

/// What the epochs after the first show: mean share of misses, the least and the greatest of an
/// epoch, seconds an epoch.
struct Later {
    missed: f64,
    range: (f64, f64),
    seconds: f64,
}

fn later(epochs: &[Epoch]) -> Option<Later> {
    let (first, rest) = epochs.split_first()?;
    let last = rest.last()?;
    let shares: Vec<f64> = rest.iter().map(Epoch::missed).collect();
    let count = rest.len() as f64;
    Some(Later {
        missed: shares.iter().sum::<f64>() / count,
        range: shares
            .iter()
            .fold((f64::INFINITY, 0.0), |(least, most), share| (share.min(least), share.max(most))),
        seconds: (last.ended - first.ended) / count,
    })
}

/// Bytes of the node's own cache (`data.cache`).
fn own_cache_bytes(run: &Run) -> u64 {
    match toml::from_str::<Config>(&run.config).map(|config| config.data.cache) {
        Ok(CacheSize::Bytes(bytes)) => bytes.0,
        _ => 0,
    }
}

/// The table; `None` where no run had a room of its own.
pub fn table(study: &Study) -> Option<String> {
    if study.runs.iter().all(|run| run.room.is_none()) {
        return None;
    }
    let mut table = Table::new([
        "arm",
        "runs",
        "page cache",
        "own cache",
        "pages of files",
        "bytes missed",
        "of single epochs",
        "bound",
        "time an epoch",
    ]);
    for arm in study.arms() {
        table.row(row(study, arm));
    }
    let least = least_of_groups(study);
    Some(table.html(&format!(
        "<b>What the disk had to bring.</b> Bytes that the kernel read from the device for all \
         ranks, as shares of the samples' bytes: means over the epochs after the first and over \
         seeds. Page cache and own cache are shares of the set that each could hold; pages of \
         files, what the kernel held in the second half of a run. The bound, 1-c, is the least \
         that any cache of both sizes together can miss. Pages are read whole, so that a share can \
         come to more than 100 %. <b>Least missed:</b> {least}.",
    )))
}

/// Mean misses of an arm after the first epoch.
fn missed(study: &Study, arm: &str) -> Option<f64> {
    let all = study.runs_of(arm).filter_map(|run| Some(later(&epochs(run))?.missed));
    estimate(all).map(|estimate| estimate.mean)
}

/// The arm of each group that missed least, in words.
fn least_of_groups(study: &Study) -> String {
    let mut best: Vec<(&str, f64)> = Vec::new();
    for arm in study.arms() {
        let Some(missed) = missed(study, arm) else { continue };
        match best.iter_mut().find(|(other, _)| named(other).0 == named(arm).0) {
            Some(known) if missed < known.1 => *known = (arm, missed),
            Some(_) => {}
            None => best.push((arm, missed)),
        }
    }
    let words = best.iter().map(|(arm, missed)| format!("{} ({:.1} %)", escape(arm), missed * 1e2));
    words.collect::<Vec<_>>().join(", ")
}

fn row(study: &Study, arm: &str) -> Vec<String> {
    let runs: Vec<&Run> = study.runs_of(arm).collect();
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let or_none = |text: Option<String>| text.unwrap_or_else(|| NONE.to_string());
    let all: Vec<Later> = runs.iter().filter_map(|run| later(&epochs(run))).collect();
    let mean = |figure: &dyn Fn(&Later) -> f64| estimate(all.iter().map(figure));
    let share = |bytes: &dyn Fn(&Run) -> Option<u64>| -> Option<f64> {
        let shares = runs.iter().filter_map(|run| {
            let set_bytes = mean_asked_bytes(&epochs(run))?;
            Some(bytes(run)? as f64 / set_bytes)
        });
        estimate(shares).map(|estimate| estimate.mean)
    };
    let room = share(&|run| Some(run.room?.bytes));
    let own = share(&|run| Some(own_cache_bytes(run))).unwrap_or_default();
    let held = share(&|run| Some(run.room?.files_bytes));
    let range = all.iter().map(|later| later.range).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
    vec![
        escape(arm),
        runs.len().to_string(),
        or_none(room.map(percent)),
        if own > 0.0 { percent(own) } else { NONE.to_string() },
        or_none(held.map(percent)),
        or_none(mean(&|later| later.missed).map(with_interval)),
        or_none(range.map(|(least, most)| format!("{} to {}", percent(least), percent(most)))),
        or_none(room.map(|room| percent((1.0 - room - own).max(0.0)))),
        or_none(mean(&|later| later.seconds).map(|seconds| duration(seconds.mean))),
    ]
}

fn with_interval(value: Estimate) -> String {
    let mean = format!("{:.1}", value.mean * 100.0);
    match value.half_width {
        Some(half) => format!("{mean} ± {:.1} %", half * 100.0),
        None => format!("{mean} %"),
    }
}

/// Misses epoch by epoch, a drawing for each group.
pub fn figure(study: &Study) -> Option<Figure> {
    if study.runs.iter().all(|run| run.room.is_none()) {
        return None;
    }
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for arm in study.arms() {
        let (group, _) = named(arm);
        match groups.iter_mut().find(|(name, _)| *name == group) {
            Some((_, arms)) => arms.push(arm),
            None => groups.push((group, vec![arm])),
        }
    }
    let drawn = groups.iter().enumerate().filter_map(|(at, (group, arms))| {
        let series = arms.iter().enumerate().map(|(colour, arm)| series(study, arm, colour));
        let chart = LineChart {
            id: format!("clip-pages-{at}"),
            label: format!("Share of each epoch's bytes that the disk brought; {group}"),
            y_label: format!("{group}: bytes missed").trim_start_matches(": ").to_string(),
            unit: Unit::Percent,
            y_from: Some(0.0),
            x_axis: XAxis::Steps,
            x_to: study.runs.iter().flat_map(epochs).map(|e| e.step).max().unwrap_or(0) as f64,
            series: series.collect(),
            ..LineChart::default()
        };
        Some(chart.draw()?.html())
    });
    let drawings: Vec<String> = drawn.collect();
    let caption = "<b>What the disk had to bring, epoch by epoch,</b> as shares of the samples' \
                   bytes. The first epoch finds nothing in memory."
        .to_string();
    (!drawings.is_empty()).then_some(Figure { drawings, caption, key: Vec::new() })
}

fn series(study: &Study, arm: &str, colour: usize) -> Series {
    let of_run = |run: &Run| -> Vec<(f64, f64)> {
        epochs(run).iter().map(|epoch| (epoch.step as f64, epoch.missed())).collect()
    };
    let curves: Vec<Vec<(f64, f64)>> = study.runs_of(arm).map(of_run).collect();
    Series {
        label: named(arm).1.to_string(),
        colour: colour % COLOURS,
        curve: mean_curve(&curves),
        dots: true,
        ..Series::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::PageRoom;
    use super::*;
    use crate::observe::data_use::{DataUse, TierBytes, Waits};
    use crate::observe::event::samples::event;

    /// Epochs of two steps, a second each: of 100 bytes asked for, so many from the device.
    fn run(arm: &str, device: &[u64], bytes: u64) -> Run {
        let event = |step, kind| event(step, step as f64, kind);
        let mut events = Vec::new();
        for (epoch, device) in device.iter().enumerate() {
            for half in 0..2 {
                let step = 2 * epoch as u64 + half + 1;
                let bytes = TierBytes { shared: 50, device: device / 2, ..TierBytes::default() };
                let used = DataUse { bytes, ..DataUse::default() };
                events.push(event(step, Kind::Data { used, waits: Waits::default() }));
                let kind = Kind::Step {
                    epoch: epoch as u64,
                    loss: 1.0,
                    error: 0.5,
                    samples: 10,
                    learning_rate: 0.1,
                    seconds: 1.0,
                };
                events.push(event(step, kind));
            }
        }
        Run {
            arm: arm.into(),
            seed: 1,
            synchronous: true,
            config: "[data]\ncache = \"30B\"\n".into(),
            events,
            room: Some(PageRoom { bytes, files_bytes: 9 }),
            ..Run::default()
        }
    }

    #[test]
    fn misses_are_of_the_epochs_after_the_first_and_the_bound_has_both_caches() {
        let runs =
            vec![run("small: global", &[100, 60, 80], 10), run("big: global", &[100, 20], 20)];
        let study = Study { runs, ..Study::default() };
        let html = table(&study).expect("rooms");
        for cell in ["10.0 %", "30.0 %", "9.0 %", "70.0 %", "60.0 % to 80.0 %", "60.0 %", "2.00 s"]
        {
            assert!(html.contains(&format!("<td>{cell}</td>")), "{cell}: {html}");
        }
        assert!(
            html.contains("<b>Least missed:</b> small: global (70.0 %), big: global (20.0 %).")
        );
        let figure = figure(&study).expect("curves");
        assert_eq!(figure.drawings.len(), 2, "a drawing for each group");
    }

    #[test]
    fn a_study_without_rooms_has_neither_table_nor_figure() {
        let plain = Run { room: None, ..run("calm", &[100, 50], 1) };
        let study = Study { runs: vec![plain], ..Study::default() };
        assert!(table(&study).is_none() && figure(&study).is_none());
        assert_eq!(later(&[]).map(|later| later.missed), None);
    }
}
