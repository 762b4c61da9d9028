//! From a study to its bars, and what their captions say; what a figure is.

use std::collections::BTreeMap;

use super::Study;
use super::bar_chart::{Bar, BarChart, Segment};
use super::episodes::Episode;
use super::statistics::estimate;
use super::summary::RunSummary;
use crate::observe::event::{Kind, PHASES};
use crate::observe::progress::duration;

/// A drawing with its caption (HTML) and, under it, a key of (name, class).
pub struct Figure {
    /// One or more drawings, HTML.
    pub drawings: Vec<String>,
    /// Under it; HTML.
    pub caption: String,
    /// Names and CSS classes of what is drawn.
    pub key: Vec<(String, &'static str)>,
}

/// As many as the page's style has.
pub const COLOURS: usize = 8;
/// An arm whose recoveries are this many times shorter than the longest is drawn again, larger.
const ENLARGE_FROM: f64 = 4.0;

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
        if self.arm.contains(self.rung) {
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
        id: "recovery".into(),
        label: "Recovery time by phase, a bar for every arm".into(),
        heading: String::new(),
        bars: groups.iter().filter_map(RecoveryGroup::bar).collect(),
    };
    let seconds = |bar: &Bar| bar.parts.iter().map(|part| part.seconds).sum::<f64>();
    let longest = whole.bars.iter().map(seconds).fold(0.0, f64::max);
    let short = groups.iter().filter_map(RecoveryGroup::bar);
    let enlarged = BarChart {
        id: "recovery-enlarged".into(),
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
                   an arm, whiskers: their 95 % interval from four on. Hatched: from then until \
                   the step is reached again that had been committed before the failure."
        .to_string();
    let drawn = [whole.draw(), enlarged.draw()].into_iter().flatten();
    let drawings: Vec<String> = drawn.map(|drawing| drawing.html()).collect();
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
        id: "checkpoints".into(),
        label: "Checkpoint time by part, a bar for every arm".into(),
        heading: String::new(),
        bars: groups.iter().filter_map(bar).collect(),
    };
    let key = chart.key().into_iter().map(|(name, class)| (name.to_string(), class)).collect();
    let caption =
        "<b>Checkpoint time by part.</b> The training loop is held for as long as the figure \
                   beside a bar says; all else runs behind it. Means over all checkpoints of an \
                   arm, whiskers: 95 % interval of the whole, from four on."
            .to_string();
    Some(Figure { drawings: vec![chart.draw()?.html()], caption, key })
}
