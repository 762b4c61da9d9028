//! A training step within less of the near tier than it needs in core: planned, settled, then in
//! turns with the step in core. A link may be emulated on which all that the backward pass reads
//! takes as long to copy out as the forward pass takes, and as long to come back as the backward
//! pass (`--link balanced`).

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::judge::{ratios, take_turns};
use super::runs::Runs;
use super::step::{Ours, Shape};
use super::{Bound, Case, Report};
use crate::config::{Device, DeviceKind, MemoryMode, Rate};
use crate::engine;
use crate::engine::memory::expected::Expected;
use crate::engine::memory::far::Place;
use crate::engine::memory::limits::Limits;
use crate::model::Graph;
use crate::observe::spans::amount;

/// What to measure.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub shape: Shape,
    /// What so many times fewer samples take in core is a budget; can be given several times
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..))]
    pub factor: Vec<u32>,
    /// So many more budgets, from the smallest that will do to all that is needed in core
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=100))]
    pub budgets: u32,
    /// `device.kind`
    #[arg(long, default_value = "cpu")]
    pub device: DeviceKind,
    /// Paces copies in each direction, as memory.link does ("8GB/s"); or "balanced"
    #[arg(long)]
    pub link: Option<String>,
    /// A folder for a spill file, as memory.far; without it the far tier is memory
    #[arg(long)]
    pub far: Option<PathBuf>,
    /// Steps of each
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub turns: u32,
}

const IN_CORE: &str = "in core";
const BALANCED: &str = "balanced";
/// Steps until a plan was compared with what it takes, perhaps twice.
const SETTLING_MAX: u32 = 24;
/// What a forecast may be off by.
const FORECAST_OFF_MAX: f64 = 0.1;
/// What a step may take over the larger of computing and copying: where copying takes at most half
/// of computing, and elsewhere.
const OVERHEAD_MAX: [f64; 2] = [1.1, 1.15];
const MEGABYTE: f64 = 1e6;

/// Lets all take turns.
///
/// # Errors
/// What kept it from running, for a person; a factor whose budget is too small, among it.
pub fn run(options: &Options, runs: &Runs) -> Result<Report, String> {
    let (shape, device) = (&options.shape, &Device { kind: options.device, ..Device::default() });
    if engine::is_card(device) && (options.link.is_some() || options.far.is_some()) {
        let reason = "a card's far tier is memory of the host, as far away as it is";
        return Err(format!("--device cuda: {reason}: leave out --link and --far"));
    }
    let in_core = InCore::of(shape, device)?;
    let mut whole = Ours::open(shape, device, &Limits::none())?;
    // The first finds memory that is not there yet.
    whole.step()?;
    let [(_, computing), _] = whole.step()?;
    let forward = whole.forward.as_secs_f64();
    let link = link(options, in_core.saved_bytes, [forward, computing - forward])?;
    let far = options.far.clone().map_or(Place::Ram, Place::File);
    let limits = Limits { mode: MemoryMode::Planned, link, far, ..Limits::none() };
    let mut within = Vec::new();
    for (name, budget) in in_core.budgets(options, &limits)? {
        let limits = Limits { budget_bytes: Some(budget as usize), ..limits.clone() };
        within.push(Within::settled(shape, device, name, &limits, runs)?);
    }
    let names: Vec<String> = within.iter().map(|within| within.name.clone()).collect();
    let mut all: Vec<(&str, &mut Ours)> = vec![(IN_CORE, &mut whole)];
    let budgeted = within.iter_mut().map(|within| &mut within.ours);
    all.extend(names.iter().map(String::as_str).zip(budgeted));
    let samples = take_turns(runs, options.turns, 1.0, None, &[], |_| {
        all.iter_mut().map(|(name, ours)| Ok((*name, ours.step()?[0].1))).collect()
    })?;
    let case = |name: &str, phases: BTreeMap<String, f64>| {
        let times = samples.get(name).map_or(&[][..], Vec::as_slice);
        Case { phases, ..Case::of(name, times, &BTreeMap::new()) }
    };
    let holds = [("holds, MB".into(), in_core.near_bytes as f64 / MEGABYTE)];
    let mut cases = vec![case(IN_CORE, holds.into())];
    let mut bounds = Vec::new();
    for within in &within {
        cases.push(case(&within.name, within.phases()));
        bounds.extend(within.forecast_bound());
        let medians = [&cases[0], cases.last().unwrap_or(&cases[0])].map(|case| case.median);
        bounds.extend(within.overhead_bound(medians, link));
    }
    let ratios = ratios(&samples, IN_CORE);
    Ok(Report { bounds, ..Report::of("memory", cases, ratios) })
}

/// Paces of the two directions.
fn link(
    options: &Options,
    saved_bytes: u64,
    seconds: [f64; 2],
) -> Result<[Option<Rate>; 2], String> {
    match options.link.as_deref() {
        None => Ok([None; 2]),
        Some(BALANCED) => {
            Ok(seconds.map(|seconds| Some(Rate((saved_bytes as f64 / seconds).round() as u64))))
        }
        Some(rate) => {
            let rate: Rate = rate.parse().map_err(|error| format!("--link: {error}"))?;
            Ok([Some(rate); 2])
        }
    }
}

/// What a step takes of memory in core.
struct InCore<'a> {
    shape: &'a Shape,
    device: &'a Device,
    graph: Graph,
    /// With copies of weights.
    near_bytes: u64,
    /// What the backward pass reads.
    saved_bytes: u64,
}

impl<'a> InCore<'a> {
    fn of(shape: &'a Shape, device: &'a Device) -> Result<Self, String> {
        let graph = shape.built()?;
        let (near_bytes, saved_bytes) = taken(shape, device, &graph, shape.batch)?;
        Ok(Self { shape, device, graph, near_bytes, saved_bytes })
    }

    /// Those that are asked for, by name.
    fn budgets(&self, options: &Options, limits: &Limits) -> Result<Vec<(String, u64)>, String> {
        let Shape { batch, threads, .. } = *self.shape;
        let mut budgets = Vec::new();
        for &factor in &options.factor {
            let fewer = batch / factor as usize;
            if fewer == 0 {
                return Err(format!("--factor {factor}: --batch has {batch} samples only"));
            }
            let (near_bytes, ..) = taken(self.shape, self.device, &self.graph, fewer)?;
            budgets.push((format!("{factor} x, within {}", amount(near_bytes)), near_bytes));
        }
        if options.budgets > 0 {
            let smallest =
                engine::smallest_budget(&self.graph, self.device, batch, threads, limits)
                    .map_err(|error| error.to_string())?;
            let span = self.near_bytes.saturating_sub(smallest);
            let steps = u64::from(options.budgets - 1).max(1);
            let each = (0..u64::from(options.budgets)).map(|at| smallest + span * at / steps);
            budgets.extend(each.map(|budget| (format!("within {}", amount(budget)), budget)));
        }
        Ok(budgets)
    }
}

/// The least budget with which it is computed in core, and bytes of saved values.
fn taken(
    shape: &Shape,
    device: &Device,
    graph: &Graph,
    batch: usize,
) -> Result<(u64, u64), String> {
    let limits = &Limits::ample();
    let plan = engine::memory_plan(graph, device, batch, shape.threads, limits)
        .map_err(|error| error.to_string())?;
    let saved_bytes = plan.saved.iter().map(|saved| saved.bytes).sum();
    Ok((plan.near_bytes()[1], saved_bytes))
}

/// A worker within limits that has computed until its memory is there and its plan stays; and what
/// the plan expects, of modes that expect anything.
///
/// # Errors
/// What the engine says.
pub fn settled(
    shape: &Shape,
    device: &Device,
    limits: &Limits,
    asked_to_end: &dyn Fn() -> bool,
) -> Result<(Ours, Option<Expected>), String> {
    let mut ours = Ours::open(shape, device, limits)?;
    let mut expected: Option<Expected> = None;
    for _ in 0..SETTLING_MAX {
        ours.step()?;
        expected = ours.engine.take_expected().pop().or(expected);
        let stays = expected.is_some_and(|of| of.took_seconds.is_some());
        if stays || !limits.mode.recomputes() || asked_to_end() {
            break;
        }
    }
    Ok((ours, expected))
}

/// A step within a budget.
struct Within {
    name: String,
    ours: Ours,
    expected: Expected,
}

impl Within {
    fn settled(
        shape: &Shape,
        device: &Device,
        name: String,
        limits: &Limits,
        runs: &Runs,
    ) -> Result<Self, String> {
        let (ours, expected) = settled(shape, device, limits, &|| runs.asked_to_end())?;
        let expected = expected.ok_or("the engine has not planned memory")?;
        Ok(Self { name, ours, expected })
    }

    fn phases(&self) -> BTreeMap<String, f64> {
        let Expected { near_bytes, far_bytes, forecast, .. } = self.expected;
        let megabytes = |bytes: u64| bytes as f64 / MEGABYTE;
        let phases = [
            ("holds, MB", megabytes(near_bytes)),
            ("far tier, MB", megabytes(far_bytes)),
            ("copied out, MB", megabytes(forecast.moved_bytes[0])),
            ("copied back, MB", megabytes(forecast.moved_bytes[1])),
            ("expected", 1e3 * forecast.seconds),
            ("expected: computed again", 1e3 * forecast.again),
            ("expected: waits", 1e3 * forecast.waits),
        ];
        phases.into_iter().map(|(name, value)| (name.into(), value)).collect()
    }

    fn forecast_bound(&self) -> Option<Bound> {
        let took = self.expected.took_seconds?;
        let off = (took / self.expected.forecast.seconds - 1.0).abs();
        Some(Bound::at_most(&format!("forecast off, {}", self.name), off, FORECAST_OFF_MAX))
    }

    /// Medians in milliseconds, in core first. Only where the link is known.
    fn overhead_bound(&self, medians: [f64; 2], link: [Option<Rate>; 2]) -> Option<Bound> {
        let [Some(out), Some(back)] = link else { return None };
        let moved = self.expected.forecast.moved_bytes;
        let copying = [(moved[0], out), (moved[1], back)]
            .map(|(bytes, rate)| 1e3 * bytes as f64 / rate.0 as f64);
        let (copying, [computing, took]) = (copying[0].max(copying[1]), medians);
        let limit = OVERHEAD_MAX[usize::from(copying > computing / 2.0)];
        let name = format!("step / max(computing, copying), {}", self.name);
        Some(Bound::at_most(&name, took / computing.max(copying), limit))
    }
}
