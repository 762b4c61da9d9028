//! From a study to its curves, each against every axis that its runs know, and what their captions
//! say. A page shows one axis at a time.

use super::axis::{Axis, Ruler};
use super::figures::{COLOURS, Figure};
use super::line_chart::{LineChart, Series, Unit, XAxis};
use super::series::{self, Weighed, cluster, thin};
use super::statistics::{DataPoint, INTERVAL_FROM, apart, mean_curve};
use super::summary::{RunSummary, calm_arm};
use super::svg::escape;
use super::{Run, Study, few};
use crate::config::Config;
use crate::observe::event::Kind;

const CURVE_POINTS_MAX: usize = 400;
/// Of more arms nobody could tell the curves apart, nor would their names fit beside them: they
/// have their tables.
const CURVES_MAX: usize = 16;
const SLICES: usize = 120;
/// Failures of several runs closer than this part of the axis have one mark.
const SAME_MARK: f64 = 0.025;

/// What all charts of one kind have in common.
struct Measure {
    /// Of its files and its parts on the page.
    id: &'static str,
    /// `Validation error`
    title: &'static str,
    y_label: &'static str,
    unit: Unit,
    y_from: Option<f64>,
}

impl Measure {
    /// A drawing for every axis.
    fn figure(
        &self,
        study: &Study,
        more: &str,
        series: impl Fn(Axis) -> Vec<Series>,
    ) -> Option<Figure> {
        let axes = Axis::known(study);
        let mut single = "";
        let drawn = axes.iter().filter_map(|axis| {
            let series = series(*axis);
            single = if single.is_empty() { single_runs(&series) } else { single };
            let drawing = self.chart(study, *axis, series).draw()?.html();
            Some(format!("<div class=\"by by-{}\">{drawing}</div>\n", axis.name()))
        });
        let drawings: Vec<String> = drawn.collect();
        let against: String = axes
            .iter()
            .map(|axis| format!("<span class=\"by by-{}\">{}</span>", axis.name(), axis.words()))
            .collect();
        let caption = format!("<b>{} against {against}.</b>{more}{single}", self.title);
        (!drawings.is_empty()).then_some(Figure { drawings, caption, key: Vec::new() })
    }

    fn chart(&self, study: &Study, axis: Axis, series: Vec<Series>) -> LineChart {
        LineChart {
            id: format!("{}-{}", self.id, axis.name()),
            label: format!("{} against {}", self.title, axis.words()),
            y_label: self.y_label.into(),
            unit: self.unit,
            y_from: self.y_from,
            x_axis: match axis {
                Axis::Epochs => XAxis::Epochs,
                Axis::Steps => XAxis::Steps,
                Axis::Time => XAxis::Time,
            },
            x_to: axis.end(study),
            failures: failure_marks(study, axis),
            series,
            ..LineChart::default()
        }
    }
}

/// What a study's arms make of a curve; `reference`: the arm that lies under the others.
fn arms(
    study: &Study,
    axis: Axis,
    reference: Option<&str>,
    points: impl Fn(&Run, &Ruler) -> Vec<DataPoint>,
) -> Vec<Series> {
    let arms = study.arms();
    if arms.len() > CURVES_MAX {
        return Vec::new();
    }
    let of = |run| Ruler::new(run, axis).map_or_else(Vec::new, |ruler| points(run, &ruler));
    let drawn = arms.iter().enumerate().map(|(colour, arm)| {
        let curves: Vec<Vec<DataPoint>> = study.runs_of(arm).map(of).collect();
        let mut curve = mean_curve(&curves);
        curve.points = thin(&curve.points, CURVE_POINTS_MAX);
        let single = apart(&curves).into_iter().map(|part| thin(&part, CURVE_POINTS_MAX));
        let are_few = (2..INTERVAL_FROM).contains(&curves.len());
        Series {
            label: (*arm).to_string(),
            colour: colour % COLOURS,
            curve,
            beyond: single.collect(),
            runs: if are_few { curves.concat() } else { Vec::new() },
            reference: Some(*arm) == reference,
            ..Series::default()
        }
    });
    drawn.filter(|series| !series.is_empty()).collect()
}

/// What a caption says of lines that are no means.
fn single_runs(series: &[Series]) -> &'static str {
    match series.iter().any(|series| !series.beyond.is_empty()) {
        true => " Thin lines: single runs, where not all seeds of an arm have begun or go on.",
        false => "",
    }
}

/// The calm arm beside others that met failures.
fn reference(study: &Study) -> Option<&str> {
    let failed = study.runs.iter().any(|run| !series::failures(&run.events).is_empty());
    calm_arm(study).filter(|_| failed && study.arms().len() > 1)
}

fn failure_marks(study: &Study, axis: Axis) -> Vec<f64> {
    let of = |run| {
        let ruler = Ruler::new(run, axis);
        let failures = ruler.is_some().then(|| series::failures(&run.events));
        let at = move |seconds| ruler.as_ref().map_or(seconds, |ruler| ruler.at_seconds(seconds));
        failures.unwrap_or_default().into_iter().map(at).collect::<Vec<f64>>()
    };
    cluster(study.runs.iter().flat_map(of).collect(), axis.end(study) * SAME_MARK)
}

/// What stands for several seeds, where there are several.
pub fn several_seeds(study: &Study) -> &'static str {
    let counts = || study.arms().into_iter().map(|arm| study.runs_of(arm).count());
    let (most, few) = (counts().max().unwrap_or(0), counts().any(|n| n < INTERVAL_FROM));
    match most {
        0 | 1 => "",
        n if n < INTERVAL_FROM => {
            " Dots are runs, lines the means of seeds; fewer than four seeds have no interval."
        }
        _ if few => {
            " Lines are means over the seeds; shaded areas their 95 % intervals (Student's t), \
             where there are four seeds or more, else dots are runs."
        }
        _ => " Lines are means over the seeds, shaded areas their 95 % intervals (Student's t).",
    }
}

/// Fig. 7 and 8 of Tsuji et al.
pub fn validation_error(study: &Study) -> Option<Figure> {
    let measure = Measure {
        id: "error",
        title: "Validation error",
        y_label: "validation error (top-1)",
        unit: Unit::Percent,
        y_from: None,
    };
    let failed = !failure_marks(study, Axis::Time).is_empty();
    let failures = match failed {
        true => {
            " Time counts from the run's first start, repairs and restarts included, pauses \
             between two launches not. Dotted lines: failures."
        }
        false => "",
    };
    let seeds = match several_seeds(study) {
        "" => String::new(),
        several => format!(
            "{several} The tables have the mean of the seeds' minima, which lies lower than the \
             minimum of their mean."
        ),
    };
    let more = format!("{failures} Diamonds: the minimum of each curve.{seeds}");
    let points = |run: &Run, ruler: &Ruler| series::measured(run, ruler, series::validation_error);
    measure.figure(study, &more, |axis| {
        let series = arms(study, axis, reference(study), points);
        series.into_iter().map(Series::with_measurements).collect()
    })
}

/// A mean over slices of the axis, for every arm.
fn of_slices(study: &Study, measure: &Measure, of: Weighed) -> Option<Figure> {
    let more = format!(" Means over {SLICES} slices of the axis.{}", several_seeds(study));
    measure.figure(study, &more, |axis| {
        let end = axis.end(study);
        let points = |run: &Run, ruler: &Ruler| series::sliced(run, ruler, end, SLICES, of);
        arms(study, axis, reference(study), points)
    })
}

/// The loss that the optimiser saw.
pub fn training_loss(study: &Study) -> Option<Figure> {
    of_slices(study, &LOSS, series::training_loss)
}

/// Samples a second, of the time that steps took.
pub fn throughput(study: &Study) -> Option<Figure> {
    of_slices(study, &THROUGHPUT, series::throughput)
}

const LOSS: Measure = Measure {
    id: "loss",
    title: "Training loss",
    y_label: "training loss",
    unit: Unit::Number,
    y_from: None,
};

const THROUGHPUT: Measure = Measure {
    id: "throughput",
    title: "Images a second",
    y_label: "images / s",
    unit: Unit::Number,
    y_from: Some(0.0),
};

/// With which steps moved the weights; none where it is the same everywhere.
pub fn learning_rate(study: &Study) -> Option<Figure> {
    let rates = study.runs.iter().flat_map(|run| &run.events);
    let mut rates = rates.filter_map(|event| series::learning_rate(&event.kind));
    let first = rates.next()?;
    if study.runs.len() > 1 && rates.all(|rate| rate == first) {
        return None;
    }
    let measure = Measure {
        id: "learning-rate",
        title: "Learning rate",
        y_label: "learning rate",
        unit: Unit::Number,
        y_from: Some(0.0),
    };
    let is_scaled = |arm: &&str| {
        let mut runs = study.runs_of(arm).filter_map(Run::settings);
        runs.any(|config| config.schedule.reference_batch.is_some())
    };
    let scaled: Vec<String> = study.arms().into_iter().filter(is_scaled).map(escape).collect();
    let more = match few(&scaled) {
        arms if arms.is_empty() => arms,
        arms => format!(
            " As steps used it: optimizer.learning_rate times the batch over \
             schedule.reference_batch in {arms}."
        ),
    };
    measure.figure(study, &more, |axis| {
        let points = |run: &Run, ruler: &Ruler| series::measured(run, ruler, series::learning_rate);
        let mut series = arms(study, axis, None, points);
        // A schedule is a decision: seeds share it, and no dot was measured.
        series.iter_mut().for_each(|series| series.runs.clear());
        series
    })
}

/// Committed steps against time: what a rollback takes away is a fall.
pub fn committed_steps(study: &Study, runs: &[RunSummary]) -> Option<Figure> {
    let points = |run: &Run, _: &Ruler| series::committed_steps(&run.events);
    let chart = LineChart {
        id: "committed-steps".into(),
        label: "Committed steps against running time, a curve for every arm".into(),
        y_label: "committed steps".into(),
        y_from: Some(0.0),
        x_to: study.total_seconds(),
        failures: failure_marks(study, Axis::Time),
        series: arms(study, Axis::Time, reference(study), points)
            .into_iter()
            .map(|series| Series { runs: Vec::new(), ..series })
            .collect(),
        ..LineChart::default()
    };
    let (mut never, mut fell) = (Vec::new(), Vec::new());
    for arm in study.arms() {
        let falls = runs.iter().filter(|run| run.arm == arm).map(|run| run.largest_fall);
        match falls.max() {
            Some(0) | None => never.push(escape(arm)),
            Some(most) => fell.push(format!("{} (by up to {most})", escape(arm))),
        }
    }
    let mut caption = "<b>Committed steps against running time.</b>".to_string();
    if !never.is_empty() {
        caption.push_str(&format!(" They never fall in: {}.", never.join(", ")));
    }
    if !fell.is_empty() {
        caption.push_str(&format!(" They fall back in: {}.", fell.join(", ")));
    }
    caption.push_str(single_runs(&chart.series));
    let drawings = vec![chart.draw()?.html()];
    Some(Figure { drawings, caption, key: Vec::new() })
}

/// Error or loss of one run, in training and in validation.
pub fn of_one_run(study: &Study, what: Both) -> Option<Figure> {
    let (measure, of_steps, of_evaluations): (_, Weighed, fn(&Kind) -> Option<f64>) = match what {
        Both::Error => (ERRORS, series::training_error, series::validation_error),
        Both::Loss => (LOSSES, series::training_loss, series::validation_loss),
    };
    let run = study.runs.first()?;
    let soft = match what {
        Both::Error => String::new(),
        Both::Loss => run.settings().map_or(String::new(), |config| soft_labels(&config)),
    };
    let more = format!(
        " Training: means over {SLICES} slices of the axis, of pictures as they are trained on. \
         Dots: evaluations; the diamond is the least of them.{soft}"
    );
    measure.figure(study, &more, |axis| {
        let Some(ruler) = Ruler::new(run, axis) else { return Vec::new() };
        let named = |label: &str, colour, points| {
            let curve = mean_curve(&[points]);
            Series { label: label.into(), colour, curve, ..Series::default() }
        };
        let losses = series::sliced(run, &ruler, axis.end(study), SLICES, of_steps);
        let training = named("training", 0, losses);
        let validation = series::measured(run, &ruler, of_evaluations);
        let validation = named("validation", 1, validation).with_measurements();
        let average = match what {
            Both::Error => series::measured(run, &ruler, series::average_error),
            Both::Loss => Vec::new(),
        };
        let average = named("averaged weights", 2, average).with_measurements();
        let all = [training, validation, average].into_iter();
        all.filter(|series| !series.curve.points.is_empty()).collect()
    })
}

/// That training and validation have not the same loss, where labels are softened or mixed.
fn soft_labels(config: &Config) -> String {
    let keys = [
        ("train.label_smoothing", config.train.label_smoothing),
        ("data.mixup_alpha", config.data.mixup_alpha),
        ("data.cutmix_alpha", config.data.cutmix_alpha),
    ];
    let set = keys.iter().filter(|(_, value)| value.is_some_and(|value| value > 0.0));
    match set.map(|(key, _)| *key).collect::<Vec<_>>().join(", ") {
        keys if keys.is_empty() => keys,
        keys => format!(
            " The training loss is that of soft labels ({keys}), the validation loss that of the \
             labels themselves: how far apart they lie says little."
        ),
    }
}

/// What is measured in training and in validation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Both {
    /// Top-1.
    Error,
    /// Cross entropy.
    Loss,
}

const ERRORS: Measure = Measure {
    id: "errors",
    title: "Error",
    y_label: "error (top-1)",
    unit: Unit::Percent,
    y_from: None,
};

const LOSSES: Measure =
    Measure { id: "losses", title: "Loss", y_label: "loss", unit: Unit::Number, y_from: None };

/// Images a second of one run, with its checkpoints.
pub fn throughput_of_one_run(study: &Study) -> Option<Figure> {
    let run = study.runs.first()?;
    let is_checkpoint = |kind: &Kind| matches!(kind, Kind::Checkpoint { .. }).then_some(0.0);
    let mut any = false;
    let drawn = Axis::known(study).into_iter().filter_map(|axis| {
        let ruler = Ruler::new(run, axis)?;
        let end = axis.end(study);
        let points =
            |run: &Run, ruler: &Ruler| series::sliced(run, ruler, end, SLICES, series::throughput);
        let mut chart = THROUGHPUT.chart(study, axis, arms(study, axis, None, points));
        let written = series::measured(run, &ruler, is_checkpoint);
        chart.checkpoints = written.into_iter().map(|point| point.0).collect();
        any |= !chart.checkpoints.is_empty();
        let drawing = chart.draw()?.html();
        Some(format!("<div class=\"by by-{}\">{drawing}</div>\n", axis.name()))
    });
    let drawings: Vec<String> = drawn.collect();
    let checkpoints = if any { " Diamonds on the axis: checkpoints." } else { "" };
    let caption = format!(
        "<b>Images a second</b> of the time that steps took, without repairs and tries that were \
         done again; means over {SLICES} slices.{checkpoints}"
    );
    (!drawings.is_empty()).then_some(Figure { drawings, caption, key: Vec::new() })
}
