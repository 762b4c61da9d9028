//! A micro-batch within the limits of the near tier as data, for who shows it: pure. Times are by
//! guessed prices.

use super::arrange::{Arranged, all_kept, arrange, guessed};
use super::limits::{Footprint, Limits};
use super::play::{Doing, Forecast, forecast, lives, play, profile};
use super::schedule::{Costs, Turn, rewritten};
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
    /// Copies of weights that have no places among the values.
    pub weights_bytes: u64,
    /// Those that have.
    pub placed: Vec<Saved>,
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
        let all = all_kept(&in_core);
        let (own_in_core, _) = rewritten(draft, &all);
        let in_core_bytes = own_in_core.place().arena_bytes as u64;
        let (placed, saved) = fates(&uses, &arranged.turns);
        let names = graph.nodes.iter().map(|node| node.name.clone());
        Self {
            layers: names.chain([LOSS.into()]).collect(),
            budget_bytes: None,
            weights_bytes: weights_bytes as u64,
            far_bytes: (arranged.far_bytes + within.remote_bytes) as u64,
            placed,
            saved,
            in_core: Played::of(&in_core, &all, &costs, in_core_bytes),
            within: Played::of(&uses, &arranged.turns, &costs, within.arena_bytes as u64),
        }
    }

    /// What it holds.
    pub fn footprint(&self) -> Footprint {
        let [weights_bytes, _] = self.copies_bytes();
        Footprint {
            activations_bytes: self.near_bytes()[1].saturating_sub(weights_bytes),
            weights_bytes,
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

    /// Copies of weights that are there all the time, and those that are loaded when they are read.
    pub fn copies_bytes(&self) -> [u64; 2] {
        let with = |fate| {
            let own = self.placed.iter().filter(|of| of.fate == fate);
            own.map(|of| of.bytes).sum::<u64>()
        };
        [self.weights_bytes + with(Fate::Keep), with(Fate::Recompute)]
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

/// What becomes of the draft's copies of weights, and of each value that its backward pass reads.
fn fates(uses: &Uses<'_>, turns: &[Turn]) -> (Vec<Saved>, Vec<Saved>) {
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
    let of = |are_loaded: bool| {
        let own = uses.saved.iter().filter(move |&&value| uses.is_loaded[value] == are_loaded);
        own.map(saved).collect()
    };
    (of(true), of(false))
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
                Doing::Keeps { step } => {
                    (&mut computing, uses.draft.steps[step].node, Work::Forward)
                }
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
