//! From a draft to one whose values leave the near tier as the configuration asks: pure.

use std::collections::HashSet;

use super::far::Place;
use super::limits::Limits;
use super::planner::{self, MOVED_BYTES_MIN};
use super::play::{Forecast, forecast};
use super::schedule::{Copying, Costs, Turn, rewritten, schedule};
use super::sequence::{Fate, Uses, sequence};
use super::unified::{Paging, in_the_way, least_room, paged};
use crate::config::{Granularity, MemoryMode};
use crate::engine::plan::steps::{Action, Draft, Step};
use crate::model::Graph;

/// A draft whose values leave.
#[derive(Debug, Clone)]
pub struct Arranged {
    /// What runs.
    pub draft: Draft,
    /// Bytes of the far tier.
    pub far_bytes: usize,
    /// What it is expected to take; of no use where costs were guessed.
    pub forecast: Forecast,
    /// The step of the given draft that each of its steps is; `None`: a copy, or the end of what is
    /// kept from pass to pass.
    pub origins: Vec<Option<usize>>,
    /// What its steps are.
    pub turns: Vec<Turn>,
}

/// The budget cannot be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooSmall {
    /// Bytes of places that would do.
    pub wanted_bytes: usize,
}

/// Rewrites a draft of this graph. `budget_bytes`: what its places may take.
///
/// # Errors
/// They take more whatever is done in this mode.
pub fn arrange(
    draft: &Draft,
    graph: &Graph,
    limits: &Limits,
    costs: &Costs,
    budget_bytes: Option<usize>,
) -> Result<Arranged, TooSmall> {
    let uses = Uses::of(draft);
    match limits.mode {
        MemoryMode::InCore | MemoryMode::SwapSync | MemoryMode::Swap => {
            let budget = budget_bytes.unwrap_or(usize::MAX);
            let of = |weights: Fate| {
                let arranged = Arranged::of(&uses, &fixed(&uses, graph, limits, weights), costs);
                match arranged.draft.clone().place().arena_bytes {
                    wanted_bytes if wanted_bytes > budget => Err(TooSmall { wanted_bytes }),
                    _ => Ok(arranged),
                }
            };
            of(Fate::Keep).or_else(|_| of(Fate::Recompute))
        }
        MemoryMode::Recompute => {
            planned(&uses, costs, &[Fate::Recompute], budget_bytes.unwrap_or(0))
        }
        MemoryMode::Unified => unified(&uses, costs, limits, budget_bytes),
        MemoryMode::Planned => {
            let fates = &[Fate::Swap, Fate::Recompute];
            planned(&uses, costs, fates, budget_bytes.unwrap_or(usize::MAX))
        }
    }
}

/// A pass in core.
pub fn all_kept(uses: &Uses<'_>) -> Vec<Turn> {
    let fates = vec![Fate::Keep; uses.draft.bytes.len()];
    schedule(uses, &sequence(uses, &fates), Copying::AtOnce)
}

/// What the modes do that have no choice, but of what becomes of copies of weights.
fn fixed(uses: &Uses<'_>, graph: &Graph, limits: &Limits, weights: Fate) -> Vec<Turn> {
    let segments;
    let (others, copying) = match limits.mode {
        MemoryMode::SwapSync => (Fate::Swap, Copying::AtOnce),
        MemoryMode::Swap => {
            segments = segments_of(uses.draft, graph, limits.granularity);
            (Fate::Swap, Copying::Ahead { segments: &segments, window: limits.window })
        }
        _ => (Fate::Keep, Copying::AtOnce),
    };
    let mut fates = vec![Fate::Keep; uses.draft.bytes.len()];
    // What is small gains nothing.
    let moved = |value: &&usize| uses.draft.bytes[**value] >= MOVED_BYTES_MIN;
    for &value in uses.saved.iter().filter(moved) {
        fates[value] = if uses.is_loaded[value] { weights } else { others };
    }
    schedule(uses, &sequence(uses, &fates), copying)
}

/// The arrangement that takes the least of the near tier; of modes that have no choice their own.
pub fn least(draft: &Draft, graph: &Graph, limits: &Limits) -> Arranged {
    let costs = &guessed(draft);
    if limits.mode.fits_a_budget() {
        let least = arrange(draft, graph, limits, costs, Some(0));
        return least.expect("a budget of 0 asks for the least");
    }
    let uses = Uses::of(draft);
    Arranged::of(&uses, &fixed(&uses, graph, limits, Fate::Recompute), costs)
}

/// The quickest schedule with these fates within a budget. Of `Recompute` without one (0) the
/// smallest.
fn planned(
    uses: &Uses<'_>,
    costs: &Costs,
    fates: &[Fate],
    budget_bytes: usize,
) -> Result<Arranged, TooSmall> {
    let family = planner::family(uses, costs, fates);
    let budget = match budget_bytes {
        0 => planner::smallest(uses, costs, &family),
        budget => budget,
    };
    let fitted = planner::fit(uses, costs, &family, budget)
        .map_err(|wanted_bytes| TooSmall { wanted_bytes })?;
    Ok(Arranged::of(uses, &fitted.turns(uses, costs), costs))
}

/// A way to keep a budget.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// Bytes of the far tier.
    pub far_bytes: usize,
    /// What a micro-batch should take.
    pub seconds: f64,
}

/// All that the planner could do within a budget, by the bytes of the far tier: less of them take
/// longer.
pub fn choices(draft: &Draft, costs: &Costs, budget_bytes: usize) -> Vec<Choice> {
    let uses = Uses::of(draft);
    let mut all = Vec::new();
    for fates in [&[Fate::Swap, Fate::Recompute][..], &[Fate::Recompute]] {
        let family = planner::family(&uses, costs, fates);
        let quickest = planner::fit(&uses, costs, &family, budget_bytes);
        all.extend(quickest.into_iter().flat_map(|from| planner::converting(&uses, costs, from)));
        all.extend(family);
    }
    let mut choices = Vec::new();
    for candidate in all {
        let (draft, far_bytes) = rewritten(draft, &candidate.turns(&uses, costs));
        if draft.place().arena_bytes <= budget_bytes {
            choices.push(Choice { far_bytes, seconds: candidate.forecast.seconds });
        }
    }
    let by = |a: &Choice, b: &Choice| {
        a.far_bytes.cmp(&b.far_bytes).then(a.seconds.total_cmp(&b.seconds))
    };
    choices.sort_by(by);
    let mut best_seconds = f64::INFINITY;
    choices.retain(|choice| {
        let is_quicker = choice.seconds < best_seconds;
        best_seconds = best_seconds.min(choice.seconds);
        is_quicker
    });
    choices
}

/// Room that is tried for a pager before its values have places within a budget.
const ROOMS_MAX: usize = 16;

/// What a pager does within a budget; without one all stays, and with one of 0 it has the smallest
/// room in which whatever a step touches lies near. Where that is more than a budget, values are
/// remote, the largest first; none of a far tier on a disk.
fn unified(
    uses: &Uses<'_>,
    costs: &Costs,
    limits: &Limits,
    budget_bytes: Option<usize>,
) -> Result<Arranged, TooSmall> {
    let Some(budget) = budget_bytes.filter(|budget| *budget > 0) else {
        let room = budget_bytes.map_or(usize::MAX, |_| least_room(uses));
        return Ok(Arranged::of(uses, &paged(uses, limits.paging, room), costs));
    };
    let mut draft = uses.draft.clone();
    draft.remote = vec![false; draft.bytes.len()];
    // Each turn makes a value remote.
    loop {
        let uses = &Uses::of(&draft);
        let refused = match within(uses, costs, limits.paging, budget) {
            Ok(arranged) => return Ok(arranged),
            Err(refused) => refused,
        };
        match in_the_way(uses) {
            Some(value) if limits.far == Place::Ram => draft.remote[value] = true,
            _ => return Err(refused),
        }
    }
}

/// The same with these values remote.
fn within(
    uses: &Uses<'_>,
    costs: &Costs,
    paging: Paging,
    budget: usize,
) -> Result<Arranged, TooSmall> {
    let least = least_room(uses);
    let of = |room: usize| Arranged::of(uses, &paged(uses, paging, room), costs);
    let placed = |arranged: &Arranged| arranged.draft.clone().place().arena_bytes;
    let mut room = budget.max(least);
    for _ in 0..ROOMS_MAX {
        let arranged = of(room);
        let wanted_bytes = placed(&arranged);
        if wanted_bytes <= budget {
            return Ok(arranged);
        }
        if room == least {
            break;
        }
        // Places have gaps between them.
        room = (room - (wanted_bytes - budget).min(room)).max(least);
    }
    let arranged = of(least);
    match placed(&arranged) {
        wanted_bytes if wanted_bytes <= budget => Ok(arranged),
        wanted_bytes => Err(TooSmall { wanted_bytes }),
    }
}

/// The part of the model that each step belongs to.
fn segments_of(draft: &Draft, graph: &Graph, granularity: Granularity) -> Vec<usize> {
    let mut segment = 0;
    let of_node: Vec<usize> = (0..graph.nodes.len())
        .map(|node| {
            let own = segment;
            let borders = granularity == Granularity::Layer || graph.consumers(node).len() > 1;
            segment += usize::from(borders);
            own
        })
        .collect();
    // The loss is no node.
    let of_step = |node: usize| of_node.get(node).copied().unwrap_or(segment);
    draft.steps.iter().map(|step| of_step(step.node)).collect()
}

impl Arranged {
    /// The same by other prices.
    pub fn priced(&self, draft: &Draft, costs: &Costs) -> Self {
        Self { forecast: forecast(&Uses::of(draft), &self.turns, costs), ..self.clone() }
    }

    /// Which steps have run before when they run; what is loaded again is not computed.
    pub fn again(&self) -> Vec<bool> {
        let mut ran = HashSet::new();
        let again = |(origin, step): (&Option<usize>, &Step)| {
            let is_load = matches!(step.action, Action::Load { .. });
            !is_load && origin.is_some_and(|step| !ran.insert(step))
        };
        self.origins.iter().zip(&self.draft.steps).map(again).collect()
    }

    /// A schedule as a draft.
    pub fn of(uses: &Uses<'_>, turns: &[Turn], costs: &Costs) -> Self {
        let (draft, far_bytes) = rewritten(uses.draft, turns);
        let origin = |turn: &Turn| match *turn {
            Turn::Step(step) | Turn::Keep(step) => Some(step),
            Turn::Begin(..) | Turn::End(..) | Turn::Hold(_) => None,
        };
        let origins = turns.iter().map(origin).collect();
        let forecast = forecast(uses, turns, costs);
        Self { draft, far_bytes, forecast, origins, turns: turns.to_vec() }
    }
}

/// Bytes per second that a step is guessed to touch, before anything was measured.
const TOUCHED_RATE: f64 = 1e9;

/// Costs by the bytes that each step touches: good enough for a first pass, which measures.
pub fn guessed(draft: &Draft) -> Costs {
    let seconds = |values: &[usize]| {
        let bytes: usize = values.iter().map(|&value| draft.bytes[value]).sum();
        bytes as f64 / TOUCHED_RATE
    };
    let of = |reads: &[usize], writes: &[usize]| seconds(reads) + seconds(writes);
    let step_seconds = draft.steps.iter().map(|step| of(&step.reads, &step.writes)).collect();
    Costs { step_seconds, rates: [TOUCHED_RATE; 2] }
}
