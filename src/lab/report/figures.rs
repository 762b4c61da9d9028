//! From a study to its figures: which curves, which bars, and what the captions say.

use std::collections::BTreeMap;

use super::Study;
use super::bar_chart::{Bar, BarChart, Segment};
use super::episodes::Episode;
use super::line_chart::{LineChart, Series, Unit, XAxis};
use super::series::{self, cluster, thin};
use super::statistics::{DataPoint, estimate, mean_curve};
use super::summary::{RunSummary, calm_arm};
use crate::observe::event::{Kind, PHASES};
use crate::observe::progress::duration;

/// A drawing with its caption (HTML) and, under it, a key of (name, class).
pub struct Figure {
    /// One or more SVG elements.
    pub drawings: Vec<String>,
    /// Under it; HTML.
    pub caption: String,
    /// Names and CSS classes of what is drawn.
    pub key: Vec<(String, &'static str)>,
}

impl Figure {
    /// Of one chart; none where there is nothing to draw.
    fn of(chart: &LineChart, caption: String) -> Option<Self> {
        Some(Self { drawings: vec![chart.draw()?], caption, key: Vec::new() })
    }
}

/// As many as the page's style has.
pub const COLOURS: usize = 8;
const CURVE_POINTS_MAX: usize = 700;
/// Of more arms nobody could tell the curves apart, nor would their names fit beside them: they
/// have their tables.
const CURVES_MAX: usize = 16;
/// An arm whose recoveries are this many times shorter than the longest is drawn again, larger.
const ENLARGE_FROM: f64 = 4.0;
const LOSS_SLICES: usize = 120;
/// Failures of several runs closer than this part of the time have one mark.
const SAME_MARK: f64 = 0.025;

fn curves_of(study: &Study, curve: impl Fn(&super::Run) -> Vec<DataPoint>) -> Vec<Series> {
    let arms = study.arms();
    if arms.len() > CURVES_MAX {
        return Vec::new();
    }
    let calm = if arms.len() > 1 { calm_arm(study) } else { None };
    let drawn = arms.iter().enumerate().map(|(colour, arm)| {
        let curves: Vec<Vec<DataPoint>> = study.runs_of(arm).map(&curve).collect();
        let mut mean = mean_curve(&curves);
        mean.points = thin(&mean.points, CURVE_POINTS_MAX);
        let (label, reference) = ((*arm).to_string(), Some(*arm) == calm);
        let colour = colour % COLOURS;
        Series { label, colour, curve: mean, reference, ..Series::default() }
    });
    drawn.filter(|series| !series.curve.points.is_empty()).collect()
}

fn failure_marks(study: &Study) -> Vec<f64> {
    let all = study.runs.iter().flat_map(|run| series::failures(&run.events)).collect();
    cluster(all, study.total_seconds() * SAME_MARK)
}

fn several_seeds(study: &Study) -> &'static str {
    match study.arms().iter().map(|arm| study.runs_of(arm).count()).max() {
        Some(runs) if runs > 1 => {
            " Lines are means over the seeds, shaded areas their 95 % intervals (Student's t)."
        }
        _ => "",
    }
}

/// Fig. 7 and 8 of Tsuji et al.
pub fn validation_error(study: &Study) -> Option<Figure> {
    let curves =
        curves_of(study, |run| series::validation_error(&run.events, |event| event.seconds));
    let chart = LineChart {
        id: "clip-error".into(),
        label: "Validation error against wall time, a curve for every arm".into(),
        y_label: "validation error (top-1)".into(),
        unit: Unit::Percent,
        x_to: study.total_seconds(),
        failures: failure_marks(study),
        series: curves.into_iter().map(Series::with_measurements).collect(),
        ..LineChart::default()
    };
    let failures = match chart.failures.is_empty() {
        true => "",
        false => {
            " Time counts from the run's first start, repairs and restarts included. \
             Dotted lines: failures."
        }
    };
    let seeds = match several_seeds(study) {
        "" => String::new(),
        several => format!(
            "{several} The tables have the mean of the seeds' minima, which lies lower than the \
             minimum of their mean."
        ),
    };
    let caption = format!(
        "<b>Validation error against wall time.</b>{failures} Diamonds: the minimum of each \
         curve.{seeds}"
    );
    Figure::of(&chart, caption)
}

/// The same against steps, which no other load on the machine stretches.
pub fn validation_error_by_step(study: &Study, runs: &[RunSummary]) -> Option<Figure> {
    let curves =
        curves_of(study, |run| series::validation_error(&run.events, |event| event.step as f64));
    let chart = LineChart {
        id: "clip-error-steps".into(),
        label: "Validation error against committed steps, a curve for every arm".into(),
        y_label: "validation error (top-1)".into(),
        unit: Unit::Percent,
        x_axis: XAxis::Steps,
        x_to: runs.iter().map(|run| run.steps).max().unwrap_or(0) as f64,
        series: curves.into_iter().map(Series::with_measurements).collect(),
        ..LineChart::default()
    };
    let caption =
        format!("<b>Validation error against committed steps.</b>{}", several_seeds(study));
    Figure::of(&chart, caption)
}

/// Committed steps against time: what a rollback takes away is a fall.
pub fn committed_steps(study: &Study, runs: &[RunSummary]) -> Option<Figure> {
    let chart = LineChart {
        id: "clip-steps".into(),
        label: "Committed steps against wall time, a curve for every arm".into(),
        y_label: "committed steps".into(),
        y_from: Some(0.0),
        x_to: study.total_seconds(),
        failures: failure_marks(study),
        series: curves_of(study, |run| series::committed_steps(&run.events)),
        ..LineChart::default()
    };
    let (mut never, mut fell) = (Vec::new(), Vec::new());
    for arm in study.arms() {
        let falls = runs.iter().filter(|run| run.arm == arm).map(|run| run.largest_fall);
        match falls.max() {
            Some(0) | None => never.push(super::svg::escape(arm)),
            Some(most) => fell.push(format!("{} (by up to {most})", super::svg::escape(arm))),
        }
    }
    let mut caption = "<b>Committed steps against wall time.</b>".to_string();
    if !never.is_empty() {
        caption.push_str(&format!(" They never fall in: {}.", never.join(", ")));
    }
    if !fell.is_empty() {
        caption.push_str(&format!(" They fall back in: {}.", fell.join(", ")));
    }
    caption.push_str(several_seeds(study));
    Figure::of(&chart, caption)
}

/// The loss that the optimiser saw.
pub fn training_loss(study: &Study) -> Option<Figure> {
    let total = study.total_seconds();
    let loss = |run: &super::Run| series::training_loss(&run.events, total, LOSS_SLICES);
    let chart = LineChart {
        id: "clip-loss".into(),
        label: "Training loss against wall time, a curve for every arm".into(),
        y_label: "training loss".into(),
        x_to: total,
        failures: failure_marks(study),
        series: curves_of(study, loss),
        ..LineChart::default()
    };
    let caption = format!(
        "<b>Training loss against wall time,</b> averaged over samples in slices of {}.{}",
        duration(total / LOSS_SLICES as f64),
        several_seeds(study)
    );
    Figure::of(&chart, caption)
}

/// Recoveries of one kind in one arm.
pub struct RecoveryGroup<'a> {
    /// The arm.
    pub arm: &'a str,
    /// The rung.
    pub rung: &'a str,
    /// All of its seeds'.
    pub episodes: Vec<&'a Episode>,
}

impl RecoveryGroup<'_> {
    /// Mean seconds of each phase, in the order they happen.
    pub fn phases(&self) -> Vec<(String, f64)> {
        let mut sums: BTreeMap<(usize, &str), f64> = BTreeMap::new();
        for (name, seconds) in self.episodes.iter().flat_map(|episode| &episode.phases) {
            let place = PHASES.iter().position(|phase| phase == name).unwrap_or(PHASES.len());
            *sums.entry((place, name)).or_default() += seconds;
        }
        let n = self.episodes.len() as f64;
        sums.into_iter().map(|((_, name), sum)| (name.to_string(), sum / n)).collect()
    }

    /// The arm, with the rung where the arm's name does not already say it.
    pub fn label(&self) -> String {
        if self.arm.ends_with(self.rung) {
            self.arm.to_string()
        } else {
            format!("{} ({})", self.arm, self.rung)
        }
    }

    fn mean(&self, figure: impl Fn(&Episode) -> f64) -> f64 {
        self.episodes.iter().map(|episode| figure(episode)).sum::<f64>()
            / self.episodes.len() as f64
    }

    /// Mean seconds spent doing lost steps again.
    pub fn redo_seconds(&self) -> f64 {
        self.mean(|episode| episode.redo_seconds)
    }

    /// Mean steps lost.
    pub fn lost_steps(&self) -> f64 {
        self.mean(|episode| episode.lost_steps as f64)
    }

    fn bar(&self) -> Option<Bar> {
        let mut parts: Vec<Segment> = self
            .phases()
            .into_iter()
            .map(|(name, seconds)| Segment {
                class: phase_class(&name),
                name: phase_name(&name),
                seconds,
            })
            .collect();
        let total = estimate(self.episodes.iter().map(|episode| episode.seconds()))?;
        let mut value = duration(total.mean);
        let redo = self.redo_seconds();
        if redo > 0.0 {
            parts.push(Segment {
                name: "lost steps done again".into(),
                class: "redo",
                seconds: redo,
            });
            value = format!("{value}, then {} again", duration(redo));
        }
        Some(Bar { label: self.label(), parts, total, value })
    }
}

/// All recoveries, by arm and rung, in the order of the arms.
pub fn recovery_groups(runs: &[RunSummary]) -> Vec<RecoveryGroup<'_>> {
    let mut groups: Vec<RecoveryGroup> = Vec::new();
    for run in runs {
        for episode in &run.recoveries {
            let (arm, rung) = (run.arm.as_str(), episode.rung.as_str());
            let position = groups.iter().position(|group| (group.arm, group.rung) == (arm, rung));
            match position {
                Some(index) => groups[index].episodes.push(episode),
                None => groups.push(RecoveryGroup { arm, rung, episodes: vec![episode] }),
            }
        }
    }
    groups
}

/// A phase as people read it.
pub fn phase_name(phase: &str) -> String {
    match phase {
        "revoke_shrink" => "revoke and shrink".to_string(),
        "start" => "start again".to_string(),
        "load" => "load state".to_string(),
        other => other.replace('_', " "),
    }
}

fn phase_class(phase: &str) -> &'static str {
    match phase {
        "detect" => "p0",
        "revoke_shrink" => "p1",
        "spawn" => "p2",
        "merge" => "p3",
        "agree" => "p4",
        "restore" => "p5",
        "first_step" => "p6",
        "start" => "p8",
        "load" => "p9",
        _ => "p7",
    }
}

/// Fig. 5 of Tsuji et al..
pub fn recovery(runs: &[RunSummary]) -> Option<Figure> {
    let groups = recovery_groups(runs);
    let whole = BarChart {
        label: "Recovery time by phase, a bar for every arm".into(),
        heading: String::new(),
        bars: groups.iter().filter_map(RecoveryGroup::bar).collect(),
    };
    let seconds = |bar: &Bar| bar.parts.iter().map(|part| part.seconds).sum::<f64>();
    let longest = whole.bars.iter().map(seconds).fold(0.0, f64::max);
    let short = groups.iter().filter_map(RecoveryGroup::bar);
    let enlarged = BarChart {
        label: "The short recoveries, enlarged".into(),
        heading: "the same, enlarged".into(),
        bars: short.filter(|bar| seconds(bar) * ENLARGE_FROM < longest).collect(),
    };
    let mut key: Vec<(String, &'static str)> = Vec::new();
    for (name, class) in whole.key().into_iter().chain(enlarged.key()) {
        if !key.iter().any(|(known, _)| known == name) {
            key.push((name.to_string(), class));
        }
    }
    let caption = "<b>Recovery time by phase,</b> from the failure until every rank, the newcomer \
                   included, has begun to compute its next gradients; means over all recoveries of \
                   an arm, whiskers: 95 % interval. Hatched: from then until the step is reached \
                   again that had been committed before the failure."
        .to_string();
    let drawings: Vec<String> = [whole.draw(), enlarged.draw()].into_iter().flatten().collect();
    (!drawings.is_empty()).then_some(Figure { drawings, caption, key })
}

/// What the checkpoints of one arm cost: seconds of each part, for every checkpoint. The loop may
/// be held for some of them, usually the snapshot, so the stall is not a part of its own.
pub struct CheckpointGroup<'a> {
    /// The arm.
    pub arm: &'a str,
    /// [snapshot, write, verify] of each.
    pub parts: Vec<[f64; 3]>,
    /// Seconds for which each held the loop.
    pub stalls: Vec<f64>,
    /// Bytes of each.
    pub bytes: Vec<f64>,
}

/// The parts, as people read them, and their classes.
pub const CHECKPOINT_PARTS: [(&str, &str); 3] =
    [("snapshot", "p5"), ("write and sync", "p2"), ("verify", "p4")];

/// All checkpoints by arm.
pub fn checkpoint_groups(study: &Study) -> Vec<CheckpointGroup<'_>> {
    let group = |arm| {
        let mut group =
            CheckpointGroup { arm, parts: Vec::new(), stalls: Vec::new(), bytes: Vec::new() };
        for event in study.runs_of(arm).flat_map(|run| &run.events) {
            if let Kind::Checkpoint {
                bytes,
                stall_seconds,
                snapshot_seconds,
                write_seconds,
                verify_seconds,
                ..
            } = event.kind
            {
                group.parts.push([snapshot_seconds, write_seconds, verify_seconds]);
                group.stalls.push(stall_seconds);
                group.bytes.push(bytes as f64);
            }
        }
        group
    };
    let all = study.arms().into_iter().map(group);
    all.filter(|group| !group.parts.is_empty()).collect()
}

/// Fig. 6 of Tsuji et al..
pub fn checkpoints(groups: &[CheckpointGroup]) -> Option<Figure> {
    let bar = |group: &CheckpointGroup| {
        let part = |(index, (name, class)): (usize, (&str, &'static str))| Segment {
            name: name.to_string(),
            class,
            seconds: estimate(group.parts.iter().map(|parts| parts[index])).map_or(0.0, |e| e.mean),
        };
        let total = estimate(group.parts.iter().map(|parts| parts.iter().sum()))?;
        let parts = CHECKPOINT_PARTS.into_iter().enumerate().map(part).collect();
        let stall = estimate(group.stalls.iter().copied()).map_or(0.0, |stall| stall.mean);
        let value = format!("{}, {} of it held", duration(total.mean), duration(stall));
        Some(Bar { label: group.arm.to_string(), parts, total, value })
    };
    let chart = BarChart {
        label: "Checkpoint time by part, a bar for every arm".into(),
        heading: String::new(),
        bars: groups.iter().filter_map(bar).collect(),
    };
    let key = chart.key().into_iter().map(|(name, class)| (name.to_string(), class)).collect();
    let caption =
        "<b>Checkpoint time by part.</b> The training loop is held for as long as the figure \
                   beside a bar says; all else runs behind it. Means over all checkpoints of an \
                   arm, whiskers: 95 % interval of the whole."
            .to_string();
    Some(Figure { drawings: vec![chart.draw()?], caption, key })
}
