//! What fits a budget, and what leaves for the far tier, by placement: values have sizes and
//! places, and nothing is computed.

use serde::Serialize;

use super::file::{Case, Confirm, FarTier, LargestBatch, name_of_model, shape};
use super::part::{Part, Source, json};
use crate::config::Device;
use crate::engine;
use crate::engine::memory::shown::MemoryPlan;
use crate::lab::bench::step::Ours;
use crate::lab::report::svg::escape;
use crate::lab::report::{NONE, Table};
use crate::model::Graph;
use crate::observe::spans::amount;

const THREADS: usize = 1;
/// No batch is looked for beyond.
const BATCH_MAX: usize = 1 << 20;

/// A model whose values one case holds.
struct Held<'a> {
    graph: &'a Graph,
    case: &'a Case,
}

impl Held<'_> {
    /// The least of the near tier in which so many samples can be trained.
    fn least(&self, batch: usize) -> Result<u64, String> {
        let limits = &self.case.limits(None);
        engine::smallest_budget(self.graph, &Device::default(), batch, THREADS, limits)
            .map_err(|error| error.to_string())
    }

    /// What becomes of values within a budget.
    fn plan(&self, batch: usize, budget_bytes: Option<u64>) -> Result<MemoryPlan, String> {
        let limits = &self.case.limits(budget_bytes);
        engine::memory_plan(self.graph, &Device::default(), batch, THREADS, limits)
            .map_err(|error| error.to_string())
    }
}

/// The largest batch whose least is within a budget, where one sample more is not; 0: not even one.
/// Sizes grow about evenly, so that straight lines lead near it; every third try halves what is
/// left, so that it is found whatever they do.
pub fn largest(
    mut least: impl FnMut(usize) -> Result<u64, String>,
    budget_bytes: u64,
) -> Result<usize, String> {
    let of_one = least(1)?;
    if of_one > budget_bytes {
        return Ok(0);
    }
    let (mut fits, mut too_many) = ((1, of_one), BATCH_MAX);
    let mut slope = of_one as f64;
    for turn in 0_usize.. {
        let between = too_many - fits.0;
        if between <= 1 {
            break;
        }
        let further = ((budget_bytes - fits.1) as f64 / slope.max(1.0)) as usize;
        let further = match turn % 3 {
            0 | 1 => further.max(1),
            _ if too_many == BATCH_MAX => fits.0,
            _ => between / 2,
        };
        let tried = fits.0 + further.min(between - 1);
        let bytes = least(tried)?;
        slope = bytes.saturating_sub(fits.1) as f64 / (tried - fits.0) as f64;
        if bytes <= budget_bytes {
            fits = (tried, bytes);
        } else {
            too_many = tried;
        }
    }
    Ok(fits.0)
}

/// One case of one model at one size.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Fit {
    model: String,
    image_size: u32,
    case: String,
    largest: usize,
    /// What that many take.
    near_bytes: Option<u64>,
    /// Times as many as the first case's.
    times: Option<f64>,
    paper_times: Option<f64>,
    /// What one sample more would take, and when that is.
    wanted_bytes: u64,
    stops: String,
    /// What came of computing a step.
    step: Option<String>,
}

/// Does it.
///
/// # Errors
/// There is no such model, or nothing can be planned.
pub fn largest_batches(of: &LargestBatch) -> Result<Part, String> {
    let mut fits: Vec<Fit> = Vec::new();
    for model in &of.models {
        for &image_size in &of.image_sizes {
            let built = shape(model, image_size, 1, THREADS).built()?;
            let first = fits.len();
            for case in &of.cases {
                let held = Held { graph: &built, case };
                let mut fit = fit(of, model, image_size, &held)?;
                let base = fits.get(first).map_or(fit.largest, |fit| fit.largest);
                fit.times = (base > 0).then(|| fit.largest as f64 / base as f64);
                fits.push(fit);
            }
        }
    }
    let budget = amount(of.budget.0);
    let tables = vec![
        (
            matrix(of, &fits),
            format!(
                "<b>Largest micro-batch within {budget},</b> and how many times as many as with \
                 {}; in brackets what the paper has, on its own machine.",
                escape(&of.cases[0].name)
            ),
        ),
        (
            by_row(&fits),
            "<b>What stops each.</b> When most bytes live at once if there is one sample more. The \
             budget holds activations, scratch of kernels and copies of weights."
                .into(),
        ),
    ];
    let source = match of.confirm {
        Confirm::Nothing => Source::Placement,
        Confirm::Step => Source::Confirmed,
    };
    let title = of.title.clone();
    Ok(Part { title, source, drawings: Vec::new(), tables, rows: json(&fits) })
}

fn fit(of: &LargestBatch, model: &str, image_size: u32, held: &Held<'_>) -> Result<Fit, String> {
    let (case, name) = (held.case, name_of_model(model));
    let largest = largest(|batch| held.least(batch), of.budget.0)?;
    let wanted_bytes = held.least(largest + 1)?;
    let plan = held.plan(largest + 1, Some(wanted_bytes))?;
    let step = |batch: usize| {
        let limits = case.limits(Some(of.budget.0));
        let shape = shape(model, image_size, batch, THREADS);
        Ours::open(&shape, &Device::default(), &limits).and_then(|mut ours| ours.step())
    };
    let step = match of.confirm {
        Confirm::Nothing => None,
        Confirm::Step => Some(match (step(largest), step(largest + 1)) {
            _ if largest == 0 => NONE.into(),
            (Ok(_), Err(_)) => "ran; one sample more was refused".into(),
            (Ok(_), Ok(_)) => "ran, and one sample more did, too".into(),
            (Err(reason), _) => format!("failed: {reason}"),
        }),
    };
    Ok(Fit {
        image_size,
        case: case.name.clone(),
        largest,
        near_bytes: (largest > 0).then(|| held.least(largest)).transpose()?,
        times: None,
        paper_times: case.paper.get(&format!("{name} {image_size}")).copied(),
        wanted_bytes,
        stops: plan.most(),
        step,
        model: name,
    })
}

fn times(figure: Option<f64>) -> Option<String> {
    figure.map(|times| format!("{times:.1} x"))
}

fn matrix(of: &LargestBatch, fits: &[Fit]) -> Table {
    let names = of.cases.iter().map(|case| escape(&case.name));
    let mut table = Table::new(["model, pixels".to_string()].into_iter().chain(names));
    for own in fits.chunk_by(|a, b| (&a.model, a.image_size) == (&b.model, b.image_size)) {
        let mut cells = vec![format!("{} at {}", escape(&own[0].model), own[0].image_size)];
        cells.extend(own.iter().enumerate().map(|(at, fit)| {
            let paper = times(fit.paper_times).map(|times| format!(" ({times})"));
            let times = times(fit.times.filter(|_| at > 0)).map(|times| format!(", {times}"));
            format!("{}{}{}", fit.largest, times.unwrap_or_default(), paper.unwrap_or_default())
        }));
        table.row(cells);
    }
    table
}

fn by_row(fits: &[Fit]) -> Table {
    let is_computed = fits.iter().any(|fit| fit.step.is_some());
    let head = ["model, pixels", "case", "largest", "takes", "one more", "of it most lives"];
    let step = is_computed.then_some("a step of the largest");
    let mut table = Table::new(head.into_iter().chain(step));
    for fit in fits {
        let mut cells = vec![
            format!("{} at {}", escape(&fit.model), fit.image_size),
            escape(&fit.case),
            fit.largest.to_string(),
            fit.near_bytes.map_or(NONE.into(), amount),
            amount(fit.wanted_bytes),
            escape(&fit.stops),
        ];
        cells.extend(fit.step.as_deref().map(escape));
        table.row(cells);
    }
    table
}

/// One case of one model.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Left {
    model: String,
    case: String,
    in_core_bytes: u64,
    near_bytes: u64,
    far_bytes: u64,
    moved_bytes: [u64; 2],
    paper_bytes: Option<u64>,
}

/// Does it.
///
/// # Errors
/// There is no such model, or nothing can be planned.
pub fn far_tiers(of: &FarTier) -> Result<Part, String> {
    let mut rows = Vec::new();
    for model in &of.models {
        let built = shape(model, of.image_size, of.batch, THREADS).built()?;
        for case in &of.cases {
            let held = Held { graph: &built, case };
            let least = held.least(of.batch)?;
            let plan = held.plan(of.batch, Some(least))?;
            let [in_core_bytes, near_bytes] = plan.near_bytes();
            let name = name_of_model(model);
            rows.push(Left {
                case: case.name.clone(),
                in_core_bytes,
                near_bytes,
                far_bytes: plan.far_bytes,
                moved_bytes: plan.within.forecast.moved_bytes,
                paper_bytes: of.paper.get(&name).map(|bytes| bytes.0),
                model: name,
            });
        }
    }
    let head = ["model", "case", "in core", "near tier", "far tier", "copied out", "copied back"];
    let together = match of.processes {
        1 => "far tier of a process".to_string(),
        processes => format!("far tiers of {processes} processes"),
    };
    let last = [together, "memory, in the paper".to_string()];
    let mut table = Table::new(head.map(String::from).into_iter().chain(last));
    for row in &rows {
        let bytes = [row.in_core_bytes, row.near_bytes, row.far_bytes].into_iter();
        let together = row.far_bytes * of.processes;
        let bytes = bytes.chain(row.moved_bytes).chain([together]).map(amount);
        let paper = row.paper_bytes.map_or(NONE.into(), amount);
        let names = [escape(&row.model), escape(&row.case)].into_iter();
        table.row(names.chain(bytes).chain([paper]).collect::<Vec<_>>());
    }
    let caption = format!(
        "<b>What leaves,</b> of {} samples of {} pixels, in the least of the near tier that will \
         do.",
        of.batch, of.image_size
    );
    let (title, source) = (of.title.clone(), Source::Placement);
    let tables = vec![(table, caption)];
    Ok(Part { title, source, drawings: Vec::new(), tables, rows: json(&rows) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_largest_fits_and_one_sample_more_does_not(
            (fixed, each, jumps) in (0u64..1 << 30, 1u64..1 << 30, 0u64..1 << 20),
            (budget, period) in (1u64..1 << 44, 1usize..40),
        ) {
            let mut tries = 0;
            // It grows unevenly, as where kernels change with the batch.
            let of = |batch: usize| fixed + each * batch as u64 + jumps * (batch / period) as u64;
            let found = largest(|batch| { tries += 1; Ok(of(batch)) }, budget).unwrap();
            prop_assert!(found == 0 || of(found) <= budget);
            prop_assert!(found == BATCH_MAX - 1 || of(found + 1) > budget);
            prop_assert!(tries <= 70, "{} tries", tries);
        }
    }
}
