//! What a step takes: real steps of one worker within a near tier, over a paced link, by turns.

use std::collections::BTreeMap;

use serde::Serialize;

use super::file::{Case, Drawn, Speed, StepTime, name_of_model, shape};
use super::part::{Part, Source, json};
use crate::config::{Device, Rate};
use crate::engine::memory::limits::Limits;
use crate::engine::{self, EngineError};
use crate::lab::bench::memory::settled;
use crate::lab::bench::step::Ours;
use crate::lab::report::bar_chart::{Bar, BarChart, Segment};
use crate::lab::report::line_chart::{LineChart, Series, XAxis};
use crate::lab::report::statistics::{Estimate, MeanCurve, median};
use crate::lab::report::svg::escape;
use crate::lab::report::{NONE, Table};
use crate::model::Graph;
use crate::observe::progress::duration;
use crate::observe::spans::amount;

/// One case at one point.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Row {
    model: String,
    case: String,
    batch: usize,
    link: Option<String>,
    /// Bytes in a second, each way.
    rate: Option<u64>,
    /// What is needed in core over what there is (X/C).
    load: Option<f64>,
    /// Why it does not fit, as the engine says it.
    refused: Option<String>,
    /// Of each step, where it does.
    seconds: Vec<f64>,
}

impl Row {
    fn per_image(&self) -> Option<f64> {
        (!self.seconds.is_empty()).then(|| median(&self.seconds) / self.batch as f64)
    }

    fn is_at(&self, other: &Self) -> bool {
        (&self.model, self.batch, &self.link) == (&other.model, other.batch, &other.link)
    }
}

/// Does it.
///
/// # Errors
/// There is no such model, or what the engine says.
pub fn times(of: &StepTime) -> Result<Part, String> {
    let links: Vec<Option<&Speed>> = match &of.links[..] {
        [] => vec![None],
        links => links.iter().map(Some).collect(),
    };
    let (mut rates, mut rows) = (BTreeMap::new(), Vec::new());
    for model in &of.models {
        let built = shape(model, of.image_size, 1, of.threads).built()?;
        for &link in &links {
            for &batch in &of.batches {
                let rate = match link {
                    None => None,
                    Some(link) => Some(link.times * even_rate(of, batch, &mut rates)?),
                };
                let point = Point { of, model, graph: &built, batch, link, rate };
                rows.extend(point.measured()?);
            }
        }
    }
    let mut drawings = curves(of, &rows);
    let mut tables = vec![(table(&rows), caption(of))];
    if rows.iter().any(|row| row.refused.is_some()) {
        tables.push(refusals(&rows));
    }
    if of.links.len() > 1 {
        drawings.extend(bars(&rows));
        tables.push(speed_ups(of, &rows));
    }
    let (title, source) = (of.title.clone(), Source::Measured);
    Ok(Part { title, source, drawings, tables, rows: json(&rows) })
}

/// Bytes in a second at which all that the first model's backward pass reads crosses the link once
/// while a step of so many samples is computed in core.
fn even_rate(of: &StepTime, batch: usize, known: &mut BTreeMap<usize, f64>) -> Result<f64, String> {
    if let Some(rate) = known.get(&batch) {
        return Ok(*rate);
    }
    let (shape, limits) = (shape(&of.models[0], of.image_size, batch, of.threads), Limits::none());
    let plan = engine::memory_plan(&shape.built()?, &Device::default(), batch, of.threads, &limits);
    let plan = plan.map_err(|error| error.to_string())?;
    let saved_bytes: u64 = plan.saved.iter().map(|saved| saved.bytes).sum();
    let (mut ours, _) = settled(&shape, &Device::default(), &limits, &|| false)?;
    let seconds =
        (0..of.steps).map(|_| seconds_of_step(&mut ours)).collect::<Result<Vec<_>, _>>()?;
    let rate = saved_bytes as f64 / median(&seconds);
    known.insert(batch, rate);
    Ok(rate)
}

fn seconds_of_step(ours: &mut Ours) -> Result<f64, String> {
    Ok(ours.step()?.iter().map(|(_, seconds)| seconds).sum())
}

/// What all cases do by turns.
struct Point<'a> {
    of: &'a StepTime,
    model: &'a str,
    graph: &'a Graph,
    batch: usize,
    link: Option<&'a Speed>,
    rate: Option<f64>,
}

impl Point<'_> {
    fn measured(&self) -> Result<Vec<Row>, String> {
        let budget_bytes = match self.of.budget_batch {
            None => None,
            Some(samples) => Some(self.in_core_bytes(samples)?),
        };
        let load = budget_bytes
            .map(|budget| Ok::<_, String>(self.in_core_bytes(self.batch)? as f64 / budget as f64));
        let load = load.transpose()?;
        let (mut rows, mut workers) = (Vec::new(), Vec::new());
        for case in &self.of.cases {
            let (row, worker) = self.opened(case, budget_bytes)?;
            rows.push(Row { load, ..row });
            workers.push(worker);
        }
        for _ in 0..self.of.steps {
            for (row, worker) in rows.iter_mut().zip(&mut workers) {
                if let Some(worker) = worker {
                    row.seconds.push(seconds_of_step(worker)?);
                }
            }
        }
        Ok(rows)
    }

    /// A row without times, and a worker where the case fits.
    fn opened(
        &self,
        case: &Case,
        budget_bytes: Option<u64>,
    ) -> Result<(Row, Option<Ours>), String> {
        let (model, graph) = (self.model, self.graph);
        let (batch, threads) = (self.batch, self.of.threads);
        let rate = self.rate.map(|rate| (rate * case.link_share).round() as u64);
        let link = [rate.map(Rate); 2];
        let limits = Limits { link, ..case.limits(budget_bytes) };
        let shape = shape(model, self.of.image_size, batch, threads);
        let device = &Device::default();
        let plan = engine::memory_plan(graph, device, batch, threads, &limits);
        let (worker, refused) = match plan {
            Ok(_) => (Some(settled(&shape, device, &limits, &|| false)?.0), None),
            Err(EngineError::Refused(reason)) => (None, Some(reason)),
            Err(error) => return Err(error.to_string()),
        };
        let row = Row {
            model: name_of_model(model),
            case: case.name.clone(),
            batch,
            link: self.link.map(|link| link.name.clone()),
            rate,
            load: None,
            refused,
            seconds: Vec::new(),
        };
        Ok((row, worker))
    }

    fn in_core_bytes(&self, samples: usize) -> Result<u64, String> {
        let (threads, limits) = (self.of.threads, &Limits::ample());
        let plan = engine::memory_plan(self.graph, &Device::default(), samples, threads, limits);
        Ok(plan.map_err(|error| error.to_string())?.near_bytes()[1])
    }
}

fn caption(of: &StepTime) -> String {
    let budget = of.budget_batch.map(|samples| {
        format!(
            " The near tier is what {samples} samples take in core (C); X is what the batch takes."
        )
    });
    let rates = match of.links.is_empty() {
        true => " Copies are as fast as memory is.".to_string(),
        false => format!(
            " A link's rate is so many times that at which what the backward pass of {} reads \
             crosses it once while a step is computed in core: {}.",
            escape(&name_of_model(&of.models[0])),
            of.links
                .iter()
                .map(|link| format!("{} {}", escape(&link.name), link.times))
                .collect::<Vec<_>>()
                .join(", ")
        ),
    };
    format!(
        "<b>Steps of one worker,</b> {} pixels, {} in turns with the other cases of a \
         point.{}{rates}",
        of.image_size,
        of.steps,
        budget.unwrap_or_default()
    )
}

fn table(rows: &[Row]) -> Table {
    let head = [
        "model",
        "case",
        "batch",
        "X/C",
        "link",
        "step",
        "least, most",
        "an image",
        "images/s",
        "/ first case",
    ];
    let mut table = Table::new(head);
    for row in rows {
        let first = rows.iter().find(|other| other.is_at(row)).and_then(Row::per_image);
        let or_none = |text: Option<String>| text.unwrap_or_else(|| NONE.into());
        let range = || {
            let least = row.seconds.iter().copied().reduce(f64::min)?;
            let most = row.seconds.iter().copied().reduce(f64::max)?;
            Some(format!("{}, {}", duration(least), duration(most)))
        };
        let rate = row.rate.map(|rate| format!("{}/s", amount(rate)));
        let link =
            row.link.as_deref().zip(rate).map(|(name, rate)| format!("{} ({rate})", escape(name)));
        let each = row.per_image();
        let step = each.map_or("refused".into(), |each| duration(each * row.batch as f64));
        table.row([
            escape(&row.model),
            escape(&row.case),
            row.batch.to_string(),
            or_none(row.load.map(|load| format!("{load:.2}"))),
            or_none(link),
            step,
            or_none(range()),
            or_none(each.map(duration)),
            or_none(each.map(|each| format!("{:.2}", 1.0 / each))),
            or_none(each.zip(first).map(|(each, first)| format!("{:.2}", each / first))),
        ]);
    }
    table
}

fn refusals(rows: &[Row]) -> (Table, String) {
    let mut table = Table::new(["model", "case", "batch", "what the engine says"]);
    for row in rows {
        let Some(reason) = &row.refused else { continue };
        table.row([escape(&row.model), escape(&row.case), row.batch.to_string(), escape(reason)]);
    }
    (table, "<b>Refused,</b> before anything is computed.".into())
}

/// By model and link, a drawing each.
fn curves(of: &StepTime, rows: &[Row]) -> Vec<(String, String)> {
    if of.batches.len() < 2 {
        return Vec::new();
    }
    let groups = rows.chunk_by(|a, b| (&a.model, &a.link) == (&b.model, &b.link));
    let drawn = groups.enumerate().filter_map(|(at, own)| {
        let series = of.cases.iter().enumerate().map(|(colour, case)| {
            let own = own.iter().filter(|row| row.case == case.name);
            let points = own.filter_map(|row| {
                let each = row.per_image()?;
                let value = match of.drawn {
                    Drawn::SecondsPerImage => 1e3 * each,
                    Drawn::ImagesPerSecond => 1.0 / each,
                };
                Some((row.batch as f64, value))
            });
            let curve = MeanCurve { points: points.collect(), band: Vec::new() };
            let (label, reference) = (case.name.clone(), colour == 0);
            Series { label, colour, curve, dots: true, reference, ..Series::default() }
        });
        let y_label = match of.drawn {
            Drawn::SecondsPerImage => "time of an image / ms",
            Drawn::ImagesPerSecond => "images per second",
        };
        let link = own[0].link.as_ref().map(|link| format!(", link {link}")).unwrap_or_default();
        let chart = LineChart {
            id: format!("{}-{at}", plain(&of.title)),
            label: format!("{y_label} over the batch; {}{link}", own[0].model),
            y_label: y_label.into(),
            y_from: Some(0.0),
            x_axis: XAxis::Numbers { label: "samples of a step".into() },
            x_to: of.batches.iter().copied().max().unwrap_or(1) as f64,
            series: series.filter(|series| !series.curve.points.is_empty()).collect(),
            ..LineChart::default()
        };
        let ends = of.budget_batch.map(|samples| {
            format!(
                " What there is (X/C = 1) is taken by {samples} samples in core; what lies \
                     beyond is over capacity, emulated."
            )
        });
        let caption = format!(
            "<b>{}{}.</b> A curve ends where a case does not fit.{}",
            escape(&own[0].model),
            escape(&link),
            ends.unwrap_or_default()
        );
        Some((chart.draw()?.html(), caption))
    });
    drawn.collect()
}

/// A bar for each link and case, a drawing for each model and batch.
fn bars(rows: &[Row]) -> Vec<(String, String)> {
    let mut groups: Vec<(&str, usize)> = Vec::new();
    for row in rows {
        if !groups.contains(&(&row.model, row.batch)) {
            groups.push((&row.model, row.batch));
        }
    }
    let drawn = groups.into_iter().filter_map(|(model, batch)| {
        let own = rows.iter().filter(|row| row.model == model && row.batch == batch);
        let bars = own.filter_map(|row| {
            let seconds = row.per_image()?;
            let name = "an image".to_string();
            let link = row.link.as_deref().unwrap_or_default();
            Some(Bar {
                label: format!("{link}: {}", row.case),
                parts: vec![Segment { name, class: "c1", seconds }],
                total: Estimate { mean: seconds, half_width: None, n: row.seconds.len() },
                value: duration(seconds),
            })
        });
        let chart = BarChart {
            id: format!("bars-{}-{batch}", plain(model)),
            label: format!("Time of an image by link and case; {model}"),
            heading: format!("{model}, batch {batch}"),
            bars: bars.collect(),
        };
        let caption = format!("<b>{}.</b> Time of an image, by link and case.", escape(model));
        Some((chart.draw()?.html(), caption))
    });
    drawn.collect()
}

/// As a file may be called.
fn plain(text: &str) -> String {
    text.replace(|c: char| !c.is_ascii_alphanumeric(), "-")
}

/// Table 2 of Imai et al.: the fastest link over the slowest.
fn speed_ups(of: &StepTime, rows: &[Row]) -> (Table, String) {
    let by = |a: &&Speed, b: &&Speed| a.times.total_cmp(&b.times);
    let name = |speed: Option<&Speed>| speed.map(|speed| speed.name.clone()).unwrap_or_default();
    let [slow, fast] = [name(of.links.iter().min_by(by)), name(of.links.iter().max_by(by))];
    let mut table = Table::new(["model", "case", "batch", "speed-up", "in the paper"]);
    for row in rows.iter().filter(|row| row.link.as_ref() == Some(&slow)) {
        let quicker = rows.iter().find(|other| {
            (&other.model, &other.case, other.batch) == (&row.model, &row.case, row.batch)
                && other.link.as_ref() == Some(&fast)
        });
        let times = row.per_image().zip(quicker.and_then(Row::per_image));
        let case = of.cases.iter().find(|case| case.name == row.case);
        let paper = case.and_then(|case| case.paper.get(&row.model));
        let or_none = |text: Option<String>| text.unwrap_or_else(|| NONE.into());
        table.row([
            escape(&row.model),
            escape(&row.case),
            row.batch.to_string(),
            or_none(times.map(|(slow, fast)| format!("{:.2}", slow / fast))),
            or_none(paper.map(|times| format!("{times:.2}"))),
        ]);
    }
    let caption = format!(
        "<b>What a link gains:</b> the time over {} divided by that over {}.",
        escape(&slow),
        escape(&fast)
    );
    (table, caption)
}
