//! A micro-batch within the limits of the near tier as data, for who shows it: pure. Times are by
//! guessed prices.

use super::arrange::{Arranged, arrange, guessed};
use super::limits::{Footprint, Limits};
use super::play::{Doing, Forecast, forecast, lives, play, profile};
use super::schedule::{Costs, Turn};
use super::sequence::{Fate, Uses};
use crate::engine::plan::steps::{Draft, Way};
use crate::model::Graph;
use crate::observe::spans::amount;

/// The layer of what belongs to no node.
const LOSS: &str = "loss";

/// A value that the backward pass reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Saved {
    /// Its number in `MemoryPlan::layers`.
    pub layer: usize,
    /// Its size.
    pub bytes: u64,
    /// What becomes of it.
    pub fate: Fate,
}

/// What goes on for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// A step of the forward pass.
    Forward,
    /// One of the backward pass.
    Backward,
    /// One that has run before.
    Again,
    /// Nothing: a copy is waited for.
    Wait,
    /// A copy.
    Copy,
}

/// So long.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spell {
    /// What goes on.
    pub work: Work,
    /// For which of `MemoryPlan::layers`.
    pub layer: usize,
    /// From when on.
    pub from_seconds: f64,
    /// Until when.
    pub to_seconds: f64,
}

/// When most bytes live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peak {
    /// Doing what.
    pub work: Work,
    /// For which of `MemoryPlan::layers`.
    pub layer: usize,
    /// So many.
    pub bytes: u64,
}

/// A schedule, played.
#[derive(Debug, Clone, PartialEq)]
pub struct Played {
    /// Bytes of the places of its values.
    pub places_bytes: u64,
    /// What it takes.
    pub forecast: Forecast,
    /// Steps and waits, one after another.
    pub computing: Vec<Spell>,
    /// Copies of each way, out first.
    pub copies: [Vec<Spell>; 2],
    /// Bytes that live from a second on.
    pub live: Vec<(f64, u64)>,
    /// What holds most; the first of equals.
    pub peak: Peak,
}

/// What becomes of the values of a micro-batch.
#[derive(Debug, Clone, PartialEq)]
pub struct MemoryPlan {
    /// Names.
    pub layers: Vec<String>,
    /// Of activations, scratch and copies of weights.
    pub budget_bytes: Option<u64>,
    /// Copies of weights, which stay.
    pub weights_bytes: u64,
    /// Bytes of the far tier.
    pub far_bytes: u64,
    /// All that the backward pass reads.
    pub saved: Vec<Saved>,
    /// If everything stays.
    pub in_core: Played,
    /// Within the limits.
    pub within: Played,
}

impl MemoryPlan {
    /// Of a draft within limits, by guessed prices; `least`: the arrangement that takes the least.
    /// `weights_bytes` of the budget are not for places.
    pub fn within(
        draft: &Draft,
        graph: &Graph,
        limits: &Limits,
        least: Arranged,
        weights_bytes: usize,
    ) -> Self {
        let budget = limits.budget_bytes.map(|budget| budget - weights_bytes);
        let better = arrange(draft, graph, limits, &guessed(draft), budget);
        let budget_bytes = limits.budget_bytes.map(|budget| budget as u64);
        let plan = Self::of(draft, graph, &better.unwrap_or(least), weights_bytes);
        Self { budget_bytes, ..plan }
    }

    /// Of a draft in core, and as it was arranged.
    pub fn of(draft: &Draft, graph: &Graph, arranged: &Arranged, weights_bytes: usize) -> Self {
        let (in_core, costs) = (Uses::of(draft), guessed(draft));
        let own = Draft { remote: arranged.draft.remote.clone(), ..draft.clone() };
        let uses = Uses::of(&own);
        let within = arranged.draft.clone().place();
        let all: Vec<Turn> = (0..draft.steps.len()).map(Turn::Step).collect();
        let places = |draft: &Draft| draft.clone().place().arena_bytes as u64;
        let names = graph.nodes.iter().map(|node| node.name.clone());
        Self {
            layers: names.chain([LOSS.into()]).collect(),
            budget_bytes: None,
            weights_bytes: weights_bytes as u64,
            far_bytes: (arranged.far_bytes + within.remote_bytes) as u64,
            saved: saved(&uses, &arranged.turns),
            in_core: Played::of(&in_core, &all, &costs, places(draft)),
            within: Played::of(&uses, &arranged.turns, &costs, within.arena_bytes as u64),
        }
    }

    /// What it holds.
    pub fn footprint(&self) -> Footprint {
        Footprint {
            activations_bytes: self.within.places_bytes,
            weights_bytes: self.weights_bytes,
            far_bytes: self.far_bytes,
        }
    }

    /// Bytes of the near tier, in core and within the limits.
    pub fn near_bytes(&self) -> [u64; 2] {
        [&self.in_core, &self.within].map(|played| played.places_bytes + self.weights_bytes)
    }

    /// When most bytes live within the limits, in words.
    pub fn most(&self) -> String {
        let Peak { work, layer, bytes } = self.within.peak;
        let (bytes, layer) = (amount(bytes + self.weights_bytes), &self.layers[layer]);
        match work {
            Work::Forward => format!("{bytes} at {layer}, forward"),
            Work::Backward => format!("{bytes} at {layer}, backward"),
            Work::Again => format!("{bytes} at {layer}, computed again"),
            Work::Wait | Work::Copy => format!("{bytes} at a copy of what {layer} left"),
        }
    }

    /// How many values have this fate, and their bytes.
    pub fn with(&self, fate: Fate) -> (usize, u64) {
        let with = self.saved.iter().filter(|saved| saved.fate == fate);
        with.fold((0, 0), |(number, bytes), saved| (number + 1, bytes + saved.bytes))
    }
}

/// Whose each value is: of the step that writes it first.
fn layers(draft: &Draft) -> Vec<usize> {
    let mut layers = vec![0; draft.bytes.len()];
    for step in draft.steps.iter().rev() {
        step.writes.iter().for_each(|&value| layers[value] = step.node);
    }
    layers
}

/// What becomes of each value that the backward pass of the draft reads.
fn saved(uses: &Uses<'_>, turns: &[Turn]) -> Vec<Saved> {
    let values = uses.draft.bytes.len();
    let (layers, mut fates) = (layers(uses.draft), vec![Fate::Recompute; values]);
    let last = turns.iter().position(|&turn| turn == Turn::Step(uses.forward.saturating_sub(1)));
    let crosses = last.unwrap_or(0);
    for life in lives(uses, turns) {
        if life.first <= crosses && life.last > crosses {
            fates[life.value] = Fate::Keep;
        }
    }
    for turn in turns {
        // It may still be on its way when the forward pass ends.
        if let Turn::Begin(Way::Out, value) = *turn {
            fates[value] = Fate::Swap;
        }
    }
    for value in (0..values).filter(|&value| uses.draft.is_remote(value)) {
        fates[value] = Fate::Swap;
    }
    let saved = |&value: &usize| Saved {
        layer: layers[value],
        bytes: uses.draft.bytes[value] as u64,
        fate: fates[value],
    };
    uses.saved.iter().map(saved).collect()
}

impl Played {
    /// Of these turns, with the bytes of their places.
    pub fn of(uses: &Uses<'_>, turns: &[Turn], costs: &Costs, places_bytes: u64) -> Self {
        let profile = profile(uses, turns, &lives(uses, turns));
        let (mut computing, mut copies, mut live) = (Vec::new(), [const { Vec::new() }; 2], vec![]);
        let layers = layers(uses.draft);
        let mut peak = Peak { work: Work::Forward, layer: 0, bytes: 0 };
        for (moment, bytes) in play(uses, turns, costs).zip(profile) {
            live.push((moment.from_seconds, bytes as u64));
            let (mut from_seconds, mut to_seconds) = (moment.from_seconds, moment.to_seconds);
            let (lane, layer, work) = match moment.doing {
                Doing::Computes { step } | Doing::Again { step } => {
                    let work = match moment.doing {
                        Doing::Again { .. } => Work::Again,
                        _ if step < uses.forward => Work::Forward,
                        _ => Work::Backward,
                    };
                    (&mut computing, uses.draft.steps[step].node, work)
                }
                Doing::Waits { value } => (&mut computing, layers[value], Work::Wait),
                Doing::Copies { way, value, from_seconds: from, to_seconds: to } => {
                    (from_seconds, to_seconds) = (from, to);
                    (&mut copies[way as usize], layers[value], Work::Copy)
                }
            };
            lane.push(Spell { work, layer, from_seconds, to_seconds });
            let bytes = bytes as u64;
            if bytes > peak.bytes {
                peak = Peak { work, layer, bytes };
            }
        }
        let forecast = forecast(uses, turns, costs);
        live.push((forecast.seconds, 0));
        Self { places_bytes, forecast, computing, copies, live, peak }
    }
}
