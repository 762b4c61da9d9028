//! How long training takes by the way in which its files come (Higuchi, Miwa, Yamaki and Honda,
//! Tables 4 to 6, Fig. 2): the arms of a study whose storage is emulated or whose files are staged,
//! beside what copies and steps allow. Arms whose configurations differ in staging alone are
//! compared; a drawing has all arms whose names are alike up to a colon.

use super::bar_chart::{Bar, BarChart, Segment};
use super::figures::Figure;
use super::groups::{Keys, configuration, named};
use super::markup::{NONE, Table};
use super::statistics::{Estimate, median};
use super::svg::escape;
use super::{Paper, Run, Study};
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
    /// Its configuration but for staging.
    keys: Keys,
    epochs: Option<u64>,
    paper: Paper,
    runs: usize,
    seconds: f64,
    copying: Option<f64>,
    /// What copies and steps allow.
    least: Option<f64>,
    shared_bytes: f64,
}

/// The arms; none where no arm's files come in a way of their own.
fn rows(study: &Study) -> Vec<Row> {
    let rows: Vec<Row> = study.arms().into_iter().filter_map(|arm| row(study, arm)).collect();
    let is_staged = |row: &Row| row.mode != StagingMode::None;
    if rows.iter().any(is_staged) { rows } else { Vec::new() }
}

/// The table; `None` where no arm's files come in a way of their own.
pub fn table(study: &Study) -> Option<String> {
    let rows = rows(study);
    if rows.is_empty() {
        return None;
    }
    let mut table = Table::new([
        "arm",
        "runs",
        "time",
        "all copied after",
        "least by its copies and steps",
        "time / least",
        "read from the shared storage",
    ]);
    for row in &rows {
        let cells = [
            row.copying.map(duration),
            row.least.map(duration),
            row.least.map(|least| format!("{:.3}", row.seconds / least)),
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

/// Columns of what is gained, each of per cents.
const GAINS: [&str; 6] = [
    "shorter than none",
    "in the paper",
    "shorter than before",
    "in the paper",
    "than before, by its own one epoch",
    "by the paper's one epoch",
];

/// What staging beside training gains over the other ways; `None` where nothing can be compared.
/// Columns without a figure are left out.
pub fn gains(study: &Study) -> Option<String> {
    let rows = rows(study);
    let during = rows.iter().filter(|row| row.mode == StagingMode::During);
    let gained: Vec<(&str, [Option<f64>; 6])> =
        during.map(|row| (row.arm.as_str(), gain(row, &rows))).collect();
    let has_any = |at: &usize| gained.iter().any(|(_, figures)| figures[*at].is_some());
    let columns: Vec<usize> = (0..GAINS.len()).filter(has_any).collect();
    if columns.is_empty() {
        return None;
    }
    let mut table = Table::new(["arm"].into_iter().chain(columns.iter().map(|at| GAINS[*at])));
    for (arm, figures) in &gained {
        let cell = |at: &usize| figures[*at].map_or(NONE.into(), |part| format!("{part:.1} %"));
        table.row([vec![escape(arm)], columns.iter().map(cell).collect()].concat());
    }
    Some(table.html(
        "<b>What staging beside training gains.</b> By how much its time is shorter than that of \
         the arm that differs in staging alone. Over E epochs a gain of r in one comes to at least \
         r / (1 + (E - 1)(1 - r)), since no more is saved than what copying takes, and all later \
         epochs find their files copied: that stands behind it, of the arm's own one epoch and of \
         the paper's.",
    ))
}

/// The figures of `GAINS`, in per cent.
fn gain(row: &Row, rows: &[Row]) -> [Option<f64>; 6] {
    let one_epoch = rows.iter().find(|other| is_one_epoch_of(other, row));
    let over_epochs = |gain: f64| Some(stretched(gain / 100.0, row.epochs?) * 100.0);
    [
        shorter_than(StagingMode::None, row, rows),
        row.paper.none,
        shorter_than(StagingMode::Before, row, rows),
        row.paper.before,
        one_epoch
            .and_then(|one| shorter_than(StagingMode::Before, one, rows))
            .and_then(over_epochs),
        one_epoch.and_then(|one| one.paper.before).and_then(over_epochs),
    ]
}

/// By how many per cent an arm took less than that of its group with another mode.
fn shorter_than(mode: StagingMode, row: &Row, rows: &[Row]) -> Option<f64> {
    let other = rows.iter().find(|other| other.mode == mode && other.keys == row.keys)?;
    Some((1.0 - row.seconds / other.seconds) * 100.0)
}

/// What a gain over staging before training, a fraction of the time with one epoch, comes to with
/// more of them, at least.
fn stretched(gain: f64, epochs: u64) -> f64 {
    gain / (1.0 + (epochs as f64 - 1.0) * (1.0 - gain))
}

/// Whether `one` is `row` with one epoch for several.
fn is_one_epoch_of(one: &Row, row: &Row) -> bool {
    let without = |keys: &Keys| {
        let mut keys = keys.clone();
        keys.remove("train.epochs");
        keys
    };
    let several = row.epochs.is_some_and(|epochs| epochs > 1);
    let alike = || one.mode == row.mode && without(&one.keys) == without(&row.keys);
    several && one.epochs == Some(1) && alike()
}

/// The times as bars, a drawing for each group of names; arms that are compared stand together.
pub fn figure(study: &Study) -> Option<Figure> {
    let mut rows = rows(study);
    let order: Vec<Keys> = rows.iter().map(|row| row.keys.clone()).collect();
    rows.sort_by_key(|row| order.iter().position(|keys| *keys == row.keys));
    let mut names: Vec<&str> = Vec::new();
    for name in rows.iter().map(|row| named(&row.arm).0) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let (mut drawings, mut key) = (Vec::new(), Vec::new());
    for (at, name) in names.iter().enumerate() {
        let chart = BarChart {
            id: format!("staging-{at}"),
            label: format!("Time by mode of staging; {name}"),
            heading: (*name).to_string(),
            bars: rows.iter().filter(|row| named(&row.arm).0 == *name).map(Row::bar).collect(),
        };
        drawings.push(chart.draw()?.html());
        for (mode, class) in chart.key() {
            if !key.iter().any(|(known, _)| known == mode) {
                key.push((mode.to_string(), class));
            }
        }
    }
    let caption = "<b>Time by the way in which files come,</b> medians over seeds.".to_string();
    (!drawings.is_empty()).then_some(Figure { drawings, caption, key })
}

impl Row {
    fn bar(&self) -> Bar {
        let (name, class) = match self.mode {
            StagingMode::None => ("none", "p1"),
            StagingMode::Before => ("before", "p2"),
            StagingMode::During => ("during", "p5"),
        };
        Bar {
            label: named(&self.arm).1.to_string(),
            parts: vec![Segment { name: name.into(), class, seconds: self.seconds }],
            total: Estimate { mean: self.seconds, half_width: None, n: self.runs },
            value: duration(self.seconds),
        }
    }
}

fn row(study: &Study, arm: &str) -> Option<Row> {
    let of_arm: Vec<&Run> = study.runs_of(arm).collect();
    let first = of_arm.first()?;
    let config: Config = toml::from_str(&first.config).ok()?;
    let mode = config.staging.mode;
    let mut keys = configuration(&first.config);
    keys.retain(|key, _| !key.starts_with("staging."));
    let courses: Vec<(&Run, Course)> =
        of_arm.iter().filter_map(|run| Some((*run, Course::of(&run.events)?))).collect();
    let copied = |(run, course): &(&Run, Course)| copied_after(run, course);
    let copying = middle(courses.iter().filter_map(copied));
    let least = courses.iter().filter_map(|(run, course)| least(mode, run, course));
    let shared = |(run, _): &(&Run, Course)| Some(run.result.as_ref()?.data.bytes.shared as f64);
    Some(Row {
        arm: arm.to_owned(),
        mode,
        keys,
        epochs: config.train.epochs,
        paper: first.paper,
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
    use crate::observe::event::Staged;
    use crate::observe::event::samples::{event, run_start, step};

    /// Four steps of ten samples, one a second, and copies that are over at `copied`.
    fn run(arm: &str, config: &str, copied: f64, end: f64) -> Run {
        let (files, bytes) = (40, 400);
        let over = Kind::Staging(Staged {
            ranks: 1,
            files,
            files_total: files,
            bytes,
            bytes_total: bytes,
            bytes_per_second: 1.0,
        });
        let mut events = vec![event(0, 100.0, run_start(40))];
        events.extend((1..=4).map(|at| event(at, 100.0 + end - 4.0 + at as f64, step(10, 1.0))));
        events.push(event(4, 100.0 + copied, over));
        let (arm, config) = (arm.into(), config.into());
        Run { arm, seed: 1, synchronous: true, config, events, ..Run::default() }
    }

    const NONE_STAGED: &str = "staging.mode = \"none\"\n";
    const BEFORE: &str = "staging.mode = \"before\"\n";
    const DURING: &str = "staging.mode = \"during\"\n";
    const SMALL: &str = "data.synthetic_samples = 40\n";

    /// The cells of the row that begins so.
    fn cells(html: &str, arm: &str) -> Vec<String> {
        let at = html.find(&format!("<td>{arm}</td>")).unwrap_or_else(|| panic!("{arm}: {html}"));
        let (line, _) = html[at..].split_once("</tr>").expect("its end");
        line.split("</td>")
            .filter_map(|cell| cell.strip_prefix("<td>"))
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn arms_that_differ_in_staging_alone_are_compared_and_bounds_are_computed() {
        let small = SMALL.to_owned() + DURING;
        let runs = vec![
            run("big: before", BEFORE, 4.0, 8.0),
            run("big: during", DURING, 2.0, 4.0),
            run("small: during", &small, 2.0, 4.0),
        ];
        let study = Study { runs, ..Study::default() };
        assert!(table(&study).expect("files are staged").contains("<td>big: before</td>"));
        let html = gains(&study).expect("two are compared");
        assert_eq!(cells(&html, "big: during"), ["big: during", "50.0 %"]);
        assert_eq!(cells(&html, "small: during"), ["small: during", NONE], "compared with nothing");
        // A quarter of the copies is there after 0.5 s, and four steps of a second follow.
        let least = row(&study, "big: during").expect("a row").least.expect("copied");
        assert!((least - 4.5).abs() < 1e-9, "{least}");
    }

    #[test]
    fn gains_stand_beside_the_papers_and_beside_what_one_epoch_allows() {
        let ten = |mode: &str| format!("train.epochs = 10\n{mode}");
        let one = |mode: &str| format!("train.epochs = 1\n{mode}");
        let runs = vec![
            run("one: none", &one(NONE_STAGED), 0.0, 6.0),
            run("one: before", &one(BEFORE), 4.0, 8.0),
            Run {
                paper: Paper { none: Some(15.6), before: Some(30.8) },
                ..run("one: during", &one(DURING), 2.0, 5.2)
            },
            run("ten: before", &ten(BEFORE), 4.0, 80.0),
            Run {
                paper: Paper { none: None, before: Some(1.9) },
                ..run("ten: during", &ten(DURING), 2.0, 76.0)
            },
        ];
        let study = Study { runs, ..Study::default() };
        let html = gains(&study).expect("they are compared");
        let of_one = ["one: during", "13.3 %", "15.6 %", "35.0 %", "30.8 %", NONE, NONE];
        assert_eq!(cells(&html, "one: during"), of_one);
        // 0.35 / (1 + 9 x 0.65), and the paper's 0.308 / (1 + 9 x 0.692).
        let of_ten = ["ten: during", NONE, NONE, "5.0 %", "1.9 %", "5.1 %", "4.3 %"];
        assert_eq!(cells(&html, "ten: during"), of_ten);
        let figure = figure(&study).expect("times");
        assert_eq!((figure.drawings.len(), figure.key.len()), (2, 3), "one and ten; three modes");
    }

    #[test]
    fn a_study_without_staging_has_no_such_table() {
        let study = Study { runs: vec![run("calm", NONE_STAGED, 0.0, 4.0)], ..Study::default() };
        assert!(table(&study).is_none() && gains(&study).is_none() && figure(&study).is_none());
    }
}
