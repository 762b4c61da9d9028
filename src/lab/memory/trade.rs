//! Memory of the host, pinned for a far tier or left to the cache of files: the more is pinned, the
//! less is computed again, and the more is read from storage. With H for both, P pinned and a set
//! of D, the cache has c = (H - P) / D of it, and a step takes the longer of computing within the
//! near tier and reading what is not cached.

use serde::Serialize;

use super::file::{PinnedOrCached, name_of_model, shape};
use super::part::{Part, Source, json};
use crate::config::{Device, MemoryMode, Precision};
use crate::engine;
use crate::engine::memory::arrange::Choice;
use crate::engine::memory::limits::Limits;
use crate::lab::report::Table;
use crate::lab::report::line_chart::{LineChart, Series, XAxis};
use crate::lab::report::statistics::MeanCurve;
use crate::lab::report::svg::escape;
use crate::observe::progress::duration;
use crate::observe::spans::amount;

const PRECISION: Precision = Precision::F32;
const THREADS: usize = 1;
const GIGABYTE: f64 = 1e9;
/// Rows of the table.
const ROWS_MAX: usize = 24;

/// One way to share the host's memory.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Row {
    pinned_bytes: u64,
    /// c
    cached_share: f64,
    computing_seconds: f64,
    reading_seconds: f64,
    step_seconds: f64,
}

/// Does it.
///
/// # Errors
/// There is no such model, or nothing can be planned.
pub fn curve(of: &PinnedOrCached) -> Result<Part, String> {
    let graph = shape(&of.model, of.image_size, of.batch, THREADS).built()?;
    let told = |error: engine::EngineError| error.to_string();
    let none = &Limits::none();
    let in_core = engine::memory_plan(&graph, &Device::default(), of.budget_batch, THREADS, none);
    let budget = in_core.map_err(told)?.near_bytes()[0];
    let budget_bytes = Some(budget as usize);
    let limits = &Limits { mode: MemoryMode::Planned, budget_bytes, ..Limits::none() };
    let choices = engine::memory_choices(&graph, PRECISION, of.batch, THREADS, limits);
    let rows: Vec<Row> = choices.map_err(told)?.iter().filter_map(|one| row(of, *one)).collect();
    let by = |a: &&Row, b: &&Row| a.step_seconds.total_cmp(&b.step_seconds);
    let best = rows.iter().min_by(by).copied().ok_or("host_memory holds no plan's far tier")?;
    let caption = format!(
        "<b>Pinned or cached.</b> {}, {} samples of {} pixels within {}; {} of host memory, a set \
         of {}, {} a sample, storage of {}/s. {}",
        escape(&name_of_model(&of.model)),
        of.batch,
        of.image_size,
        amount(budget),
        amount(of.host_memory.0),
        amount(of.data_set.0),
        amount(of.sample.0),
        amount(of.storage.0),
        found(&rows, &best)
    );
    let drawings = chart(&rows).map(|drawing| (drawing, caption.clone()));
    let (title, source) = (of.title.clone(), Source::Computed);
    let tables = vec![(table(&rows, &best), caption)];
    let drawings = drawings.into_iter().collect();
    Ok(Part { title, source, drawings, tables, rows: json(&rows) })
}

/// `None`: the host has not so much.
fn row(of: &PinnedOrCached, choice: Choice) -> Option<Row> {
    let pinned_bytes = choice.far_bytes as u64;
    let left_bytes = of.host_memory.0.checked_sub(pinned_bytes)?;
    let cached_share = (left_bytes as f64 / of.data_set.0.max(1) as f64).min(1.0);
    let read_bytes = (1.0 - cached_share) * of.batch as f64 * of.sample.0 as f64;
    let reading_seconds = read_bytes / of.storage.0.max(1) as f64;
    let computing_seconds = choice.seconds;
    let step_seconds = computing_seconds.max(reading_seconds);
    Some(Row { pinned_bytes, cached_share, computing_seconds, reading_seconds, step_seconds })
}

/// Where the shortest step lies.
fn found(rows: &[Row], best: &Row) -> String {
    let ends = [rows.first(), rows.last()].map(|end| end.map_or(0, |row| row.pinned_bytes));
    let where_ = match ends.contains(&best.pinned_bytes) {
        true => "at an end",
        false => "inside",
    };
    format!(
        "The shortest step, {}, pins {}: {where_}.",
        duration(best.step_seconds),
        amount(best.pinned_bytes)
    )
}

fn table(rows: &[Row], best: &Row) -> Table {
    let mut table =
        Table::new(["pinned", "cached share", "computing", "reading", "step", "the shortest"]);
    let every = rows.len().div_ceil(ROWS_MAX).max(1);
    for (at, row) in rows.iter().enumerate() {
        if at % every != 0 && at + 1 != rows.len() && row != best {
            continue;
        }
        table.row([
            amount(row.pinned_bytes),
            format!("{:.3}", row.cached_share),
            duration(row.computing_seconds),
            duration(row.reading_seconds),
            duration(row.step_seconds),
            if row == best { "this" } else { "" }.to_string(),
        ]);
    }
    table
}

fn chart(rows: &[Row]) -> Option<String> {
    let curve = |of: fn(&Row) -> f64| {
        let points = rows.iter().map(|row| (row.pinned_bytes as f64 / GIGABYTE, of(row)));
        MeanCurve { points: points.collect(), band: Vec::new() }
    };
    let series = [
        ("computing", curve(|row| row.computing_seconds)),
        ("reading", curve(|row| row.reading_seconds)),
    ];
    let lines = series.into_iter().enumerate().map(|(at, (label, curve))| Series {
        label: label.into(),
        colour: at + 1,
        curve,
        ..Series::default()
    });
    let step = Series {
        label: "step".into(),
        curve: curve(|row| row.step_seconds),
        reference: true,
        ..Series::default()
    };
    LineChart {
        id: "pinned".into(),
        label: "Time of a step over the host memory that is pinned".into(),
        y_label: "seconds of a step, by guessed prices".into(),
        y_from: Some(0.0),
        x_axis: XAxis::Numbers { label: "pinned / GB".into() },
        x_to: rows.iter().map(|row| row.pinned_bytes as f64 / GIGABYTE).fold(0.0, f64::max),
        series: std::iter::once(step).chain(lines).collect(),
        ..LineChart::default()
    }
    .draw()
    .map(|drawing| drawing.html())
}
