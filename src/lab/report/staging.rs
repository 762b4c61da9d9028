//! How long training takes by the way in which its files come (Higuchi, Miwa, Yamaki and Honda,
//! Tables 4 to 6): the arms of a study whose storage is emulated or whose files are staged, beside
//! what copies and steps allow. An arm's name is `GROUP: MODE`; arms of a group are compared.

use super::markup::{NONE, Table};
use super::statistics::median;
use super::svg::escape;
use super::{Run, Study};
use crate::config::{Config, StagingMode};
use crate::observe::event::{Event, Kind};
use crate::observe::pipeline::{Course, least_seconds};
use crate::observe::progress::duration;
use crate::observe::spans::amount;

/// One arm: its runs' medians, in seconds.
#[derive(Debug, Clone, PartialEq)]
struct Row {
    arm: String,
    mode: StagingMode,
    prefetches: u32,
    runs: usize,
    seconds: f64,
    copying: Option<f64>,
    /// What copies and steps allow.
    least: Option<f64>,
    shared_bytes: f64,
}

/// The table; `None` where no arm's files come in a way of their own.
pub fn table(study: &Study) -> Option<String> {
    let rows: Vec<Row> = study.arms().into_iter().filter_map(|arm| row(study, arm)).collect();
    let is_staged = |row: &Row| row.mode != StagingMode::None;
    if !rows.iter().any(is_staged) {
        return None;
    }
    let mut table = Table::new([
        "arm",
        "runs",
        "time",
        "all copied after",
        "least by its copies and steps",
        "time / least",
        "shorter than none, in turn",
        "shorter than before",
        "read from the shared storage",
    ]);
    for row in &rows {
        let shorter_than = |is_it: &dyn Fn(&Row) -> bool| {
            let other =
                rows.iter().find(|other| group(&other.arm) == group(&row.arm) && is_it(other));
            let other = other.filter(|other| other.arm != row.arm);
            other.map(|other| format!("{:.1} %", (1.0 - row.seconds / other.seconds) * 100.0))
        };
        let in_turn = |other: &Row| other.mode == StagingMode::None && other.prefetches == 0;
        let cells = [
            row.copying.map(duration),
            row.least.map(duration),
            row.least.map(|least| format!("{:.3}", row.seconds / least)),
            shorter_than(&in_turn),
            shorter_than(&|other| other.mode == StagingMode::Before),
        ];
        let mut line = vec![escape(&row.arm), row.runs.to_string(), duration(row.seconds)];
        line.extend(cells.map(|cell| cell.unwrap_or_else(|| NONE.to_string())));
        line.push(amount(row.shared_bytes as u64));
        table.row(line);
    }
    Some(table.html(
        "<b>By the way in which files come.</b> Medians over seeds; a step ends when the slowest \
         rank has done it. The least is max over j of C<sub>j</sub> + the steps from j on, where \
         C<sub>j</sub> takes files as copied at an even pace until the end of the step in which \
         the last one was there; of &ldquo;before&rdquo; it is copies and steps together.",
    ))
}

/// The part of an arm's name that says what is trained on what.
fn group(arm: &str) -> &str {
    arm.rsplit_once(": ").map_or("", |(group, _)| group)
}

fn row(study: &Study, arm: &str) -> Option<Row> {
    let of_arm: Vec<&Run> = study.runs_of(arm).collect();
    let config: Config = toml::from_str(&of_arm.first()?.config).ok()?;
    let mode = config.staging.mode;
    let courses: Vec<(&Run, Course)> =
        of_arm.iter().filter_map(|run| Some((*run, Course::of(&run.events)?))).collect();
    let copied = |(run, course): &(&Run, Course)| copied_after(run, course);
    let copying = middle(courses.iter().filter_map(copied));
    let least = courses.iter().filter_map(|(run, course)| least(mode, run, course));
    let shared = |(run, _): &(&Run, Course)| Some(run.result.as_ref()?.data.bytes.shared as f64);
    Some(Row {
        arm: arm.to_owned(),
        mode,
        prefetches: config.data.prefetch,
        runs: courses.len(),
        seconds: middle(courses.iter().map(|(_, course)| course.seconds))?,
        copying,
        least: middle(least),
        shared_bytes: middle(courses.iter().filter_map(shared)).unwrap_or_default(),
    })
}

/// Seconds from the run's beginning until every file was copied, as the events of all ranks tell:
/// at the end of the step at hand.
fn copied_after(run: &Run, course: &Course) -> Option<f64> {
    let is_whole = |event: &&Event| match &event.kind {
        Kind::Staging(staged) => staged.ranks > 0 && staged.is_whole(),
        _ => false,
    };
    let done = run.events.iter().find(is_whole)?;
    Some((done.time - course.began).max(0.0))
}

/// What copies at an even pace and the steps of the run allow.
fn least(mode: StagingMode, run: &Run, course: &Course) -> Option<f64> {
    let copying = copied_after(run, course)?;
    if mode == StagingMode::Before {
        return Some(copying + least_seconds(&course.stages));
    }
    let of_epoch = run.events.iter().find_map(|event| match event.kind {
        Kind::RunStart { train_samples, .. } => Some(train_samples as f64),
        _ => None,
    })?;
    let committed = run.events.iter().filter_map(|event| match event.kind {
        Kind::Step { samples, .. } => Some(samples as f64),
        _ => None,
    });
    let (mut course, mut seen) = (course.clone(), 0.0);
    for (stage, samples) in course.stages.iter_mut().zip(committed) {
        seen += samples;
        stage.ready_seconds = copying * (seen / of_epoch).min(1.0);
    }
    Some(least_seconds(&course.stages))
}

/// The middle value; `None` of none.
fn middle(values: impl Iterator<Item = f64>) -> Option<f64> {
    let values: Vec<f64> = values.collect();
    (!values.is_empty()).then(|| median(&values))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::event::{Event, Staged, VERSION};

    fn event(time: f64, step: u64, kind: Kind) -> Event {
        Event { v: VERSION, time, seconds: time, attempt: 1, generation: 0, step, rank: 0, kind }
    }

    /// Four steps of ten samples, one a second, and copies that are over at `copied`.
    fn run(arm: &str, staging: &str, copied: f64, end: f64) -> Run {
        let start = Kind::RunStart {
            run_id: String::new(),
            ranks: 1,
            owners: 1,
            parameters: 1,
            train_samples: 40,
            validation_samples: 1,
            steps_total: None,
            epoch: 0,
            from: "scratch".into(),
            weights: None,
        };
        let step = Kind::Step {
            epoch: 0,
            loss: 1.0,
            error: 0.5,
            samples: 10,
            learning_rate: 0.1,
            seconds: 1.0,
        };
        let (files, bytes) = (40, 400);
        let over = Kind::Staging(Staged {
            ranks: 1,
            files,
            files_total: files,
            bytes,
            bytes_total: bytes,
            bytes_per_second: 1.0,
        });
        let mut events = vec![event(100.0, 0, start)];
        events.extend((1..=4).map(|at| event(100.0 + end - 4.0 + at as f64, at, step.clone())));
        events.push(event(100.0 + copied, 4, over));
        let config = format!("[staging]\nmode = \"{staging}\"\n");
        Run { arm: arm.into(), seed: 1, synchronous: true, config, events, ..Run::default() }
    }

    #[test]
    fn arms_of_a_group_are_compared_and_bounds_are_computed() {
        let runs = vec![
            run("big: before", "before", 4.0, 8.0),
            run("big: during", "during", 2.0, 4.0),
            run("small: during", "during", 2.0, 4.0),
        ];
        let study = Study { runs, ..Study::default() };
        let html = table(&study).expect("files are staged");
        let row_of = |arm: &str| {
            let at = html.find(&format!("<td>{arm}</td>")).expect("its row");
            html[at..].split_once("</tr>").expect("its end").0.to_string()
        };
        assert!(row_of("big: during").contains("<td>50.0 %</td>"), "{html}");
        assert!(!row_of("small: during").contains('%'), "nothing to compare with: {html}");
        // A quarter of the copies is there after 0.5 s, and four steps of a second follow.
        let least = row(&study, "big: during").expect("a row").least.expect("copied");
        assert!((least - 4.5).abs() < 1e-9, "{least}");
    }

    #[test]
    fn a_study_without_staging_has_no_such_table() {
        let study = Study { runs: vec![run("calm", "none", 0.0, 4.0)], ..Study::default() };
        assert_eq!(table(&study), None);
    }
}
