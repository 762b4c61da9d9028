//! Whatever leaves and comes back: every step reads what it reads in core, and places never meet.

use std::collections::BTreeMap;

use super::arrange::{Arranged, arrange, guessed};
use super::limits::Limits;
use super::loads::loading;
use super::planner::{Candidate, Flight, MOVED_BYTES_MIN, family, fit, placed_bytes, smallest};
use super::play::forecast;
use super::schedule::Costs;
use super::sequence::{Fate, Uses};
use super::shown::{MemoryPlan, Played, Spell, Work};
use super::unified::{Paging, least_room, paged};
use crate::config::seed::Stream;
use crate::config::{Granularity, MemoryMode};
use crate::engine::plan::builder::Request;
use crate::engine::plan::compile::compile;
use crate::engine::plan::operation::Direction;
use crate::engine::plan::paper::Paper;
use crate::engine::plan::placement::Span;
use crate::engine::plan::steps::{Action, Draft, Step, Way, WeightUse};
use crate::engine::plan::tensor::ElementType;
use crate::model::{Graph, catalogue, layout};

mod weights;

const MODELS: [&str; 5] = ["alexnet", "resnet20", "googlenet", "mobilenet_v2", "densenet121"];
const BATCH: usize = 4;

fn graph(name: &str) -> Graph {
    let side = if name == "alexnet" { 64 } else { 32 };
    catalogue::build(name, [3, side, side], 10, 1.0).expect("in the catalogue")
}

fn draft(graph: &Graph) -> Draft {
    draft_of(graph, BATCH)
}

fn draft_of(graph: &Graph, batch: usize) -> Draft {
    let layout = &layout::of(graph);
    let (direction, element) = (Direction::Training, ElementType::F32);
    let request = Request { graph, layout, batch, direction, element, frozen: &[] };
    compile(request, &mut Paper::default()).expect("paper refuses nothing")
}

/// A draft whose copies of weights lie apart, and one in which they are values.
fn both(graph: &Graph) -> [Draft; 2] {
    let apart = draft(graph);
    let large = |of: &WeightUse| of.desc.bytes >= MOVED_BYTES_MIN;
    let placed: Vec<bool> = apart.weights.iter().map(large).collect();
    assert!(placed.contains(&true));
    [apart.clone(), loading(apart, &placed)]
}

/// What a value holds: the step that wrote it, and a number that follows from what that read.
type Contents = u64;

/// A near and a far tier that know what they hold.
#[derive(Default)]
struct Tiers {
    near: Vec<(Span, Contents)>,
    far: BTreeMap<usize, Contents>,
    /// On the way: what was read when the copy began, and where.
    out: BTreeMap<usize, (Span, Contents)>,
    back: BTreeMap<usize, Span>,
}

impl Tiers {
    fn read(&self, span: Span) -> Contents {
        let own = |(at, _): &&(Span, Contents)| *at == span;
        assert!(!self.back.values().any(|at| meet(*at, span)), "{span:?} is on its way back");
        self.near.iter().find(own).expect("what is read lies there").1
    }

    fn write(&mut self, span: Span, contents: Contents) {
        let leaving = self.out.values().any(|(at, _)| meet(*at, span));
        assert!(!leaving, "{span:?} has not left yet");
        assert!(!self.back.values().any(|at| meet(*at, span)), "{span:?} is coming back");
        self.near.retain(|(at, _)| !meet(*at, span));
        self.near.push((span, contents));
    }

    fn copy(&mut self, action: &Action<Span>) -> bool {
        match *action {
            Action::BeginCopy { way: Way::Out, value, far_offset } => {
                let contents = self.read(value);
                assert!(self.out.insert(far_offset, (value, contents)).is_none());
            }
            Action::EndCopy { way: Way::Out, value, far_offset } => {
                let (span, contents) = self.out.remove(&far_offset).expect("it began");
                assert_eq!((span, self.read(span)), (value, contents));
                self.far.insert(far_offset, contents);
            }
            Action::BeginCopy { way: Way::In, value, far_offset } => {
                assert!(!self.out.contains_key(&far_offset), "it has not left yet");
                self.write(value, 0);
                assert!(self.back.insert(far_offset, value).is_none());
            }
            Action::EndCopy { way: Way::In, value, far_offset } => {
                let span = self.back.remove(&far_offset).expect("it began");
                assert_eq!(span, value);
                self.write(value, self.far[&far_offset]);
            }
            _ => return false,
        }
        true
    }
}

fn meet(a: Span, b: Span) -> bool {
    a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes
}

/// What each step of the backward pass reads, and everything that tells somebody something.
fn played(arranged: &Arranged, draft: &Draft) -> Vec<(usize, Vec<Contents>)> {
    let plan = arranged.draft.clone().place();
    let forward = draft.forward_steps();
    let (mut tiers, mut told) = (Tiers::default(), Vec::new());
    let mut ran = vec![false; draft.steps.len()];
    for ((at, action), step) in plan.actions.iter().enumerate().zip(&plan.draft.steps) {
        if tiers.copy(action) {
            continue;
        }
        match *action {
            Action::Load { weight, value, .. } => {
                tiers.write(value, weight as u64);
                continue;
            }
            // So the next pass finds it.
            Action::Hold { value } => {
                tiers.read(value);
                continue;
            }
            _ => {}
        }
        let own = arranged.origins[at].expect("only copies are new");
        let spans = spans(&plan.draft, &plan.actions, at);
        let read: Vec<Contents> = step.reads.iter().map(|value| tiers.read(spans[value])).collect();
        let mut hash = own as u64 + 1;
        read.iter().for_each(|&of| hash = hash.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ of);
        for (number, value) in step.writes.iter().enumerate() {
            tiers.write(spans[value], hash.wrapping_add(number as u64 * 77));
        }
        if !std::mem::replace(&mut ran[own], true) || own >= forward {
            told.push((own, read));
        }
    }
    assert!(tiers.out.is_empty() && tiers.back.is_empty(), "what begins ends");
    told
}

/// Where the values of a step lie.
fn spans(draft: &Draft, actions: &[Action<Span>], at: usize) -> BTreeMap<usize, Span> {
    let mut spans = BTreeMap::new();
    match (&draft.steps[at].action, &actions[at]) {
        (Action::Run { arguments: numbers, .. }, Action::Run { arguments: places, .. }) => {
            for ((_, number), (_, place)) in numbers.iter().zip(places) {
                if let (Some(value), Some(span)) = (number.value(), place.value()) {
                    spans.insert(value, span);
                }
            }
        }
        (Action::Mask { value, .. }, Action::Mask { value: span, .. })
        | (Action::Emit { value, .. }, Action::Emit { value: span, .. }) => {
            spans.insert(*value, *span);
        }
        (Action::Average { from, to, .. }, Action::Average { from: a, to: b, .. }) => {
            spans.extend(from.value().zip(a.value()));
            spans.insert(*to, *b);
        }
        (Action::Loss { logits, seed, .. }, Action::Loss { logits: a, seed: b, .. }) => {
            spans.extend(logits.value().zip(a.value()));
            spans.extend(seed.zip(*b));
        }
        (
            Action::Statistics { mean, variance, .. },
            Action::Statistics { mean: a, variance: b, .. },
        ) => {
            spans.extend([(*mean, *a), (*variance, *b)]);
        }
        _ => unreachable!("an action keeps its kind"),
    }
    spans
}

fn limits(mode: MemoryMode) -> Limits {
    Limits { mode, ..Limits::none() }
}

/// Costs as they might be.
fn drawn(draft: &Draft, stream: &mut Stream) -> Costs {
    let guessed = guessed(draft);
    let mut factor = || 0.2 + 4.0 * stream.unit();
    let step_seconds = guessed.step_seconds.iter().map(|&of| of * factor()).collect();
    Costs { step_seconds, rates: [1e9 * factor(), 1e9 * factor()] }
}

#[test]
fn in_every_mode_each_step_reads_what_it_reads_in_core() {
    for name in MODELS {
        let graph = graph(name);
        for draft in both(&graph) {
            let costs = guessed(&draft);
            let in_core = arrange(&draft, &graph, &limits(MemoryMode::InCore), &costs, None);
            let in_core = in_core.expect("no budget");
            let bytes = in_core.draft.clone().place().arena_bytes;
            let expected = played(&in_core, &draft);
            for (limits, budget) in all_modes() {
                let arranged = arrange(&draft, &graph, &limits, &costs, budget);
                let arranged = arranged.expect("no budget");
                let less = arranged.draft.clone().place().arena_bytes;
                assert!(played(&arranged, &draft) == expected, "{name} {limits:?}");
                // In alexnet one gradient of a matrix is nearly all there is.
                let is_less = less < bytes || name == "alexnet" && less == bytes;
                assert!(is_less, "{name} {limits:?}: {less} of {bytes}");
            }
        }
    }
}

/// Each with the budget for which it is arranged: 0 asks for the least.
fn all_modes() -> Vec<(Limits, Option<usize>)> {
    let mut all = vec![
        (limits(MemoryMode::SwapSync), None),
        (limits(MemoryMode::Recompute), None),
        (limits(MemoryMode::Planned), Some(0)),
    ];
    for granularity in [Granularity::Layer, Granularity::Coarse] {
        for window in [0, 1, 3] {
            let limits = Limits { granularity, window, ..limits(MemoryMode::Swap) };
            all.push((limits, None));
        }
    }
    let paged = |paging| (Limits { paging, ..limits(MemoryMode::Unified) }, Some(0));
    all.extend(pagings().into_iter().map(paged));
    all
}

fn pagings() -> Vec<Paging> {
    use crate::config::MemoryDesign::{Division, DivisionInPlace, DivisionWithDiscard, Full};
    use crate::config::MemoryPolicy::{Belady, Driver, Lru};
    let designs = [Full, Division, DivisionInPlace, DivisionWithDiscard];
    let of = |design| [Driver, Lru, Belady].map(|policy| Paging { design, policy });
    designs.into_iter().flat_map(of).collect()
}

/// Bytes that a pass under a pager moves each way, within a part of what it touches.
fn moved(draft: &Draft, paging: Paging, room: usize) -> [u64; 2] {
    let uses = Uses::of(draft);
    let turns = paged(&uses, paging, room.max(least_room(&uses)));
    forecast(&uses, &turns, &guessed(draft)).moved_bytes
}

#[test]
fn a_pager_keeps_its_budget_and_what_it_moves_follows_its_design_and_policy() {
    for name in ["resnet20", "googlenet"] {
        let graph = graph(name);
        let draft = draft(&graph);
        let costs = guessed(&draft);
        let keep = arrange(&draft, &graph, &limits(MemoryMode::InCore), &costs, None);
        let keep = keep.expect("no budget");
        let (expected, core) = (played(&keep, &draft), keep.draft.clone().place().arena_bytes);
        let uses = Uses::of(&draft);
        for paging in pagings() {
            let limits = Limits { paging, ..limits(MemoryMode::Unified) };
            let least = arrange(&draft, &graph, &limits, &costs, Some(0)).expect("the least");
            let least = least.draft.place().arena_bytes;
            let loads = [1.0, 1.05, 1.25, 1.5, 2.0, 4.0].map(|load| core as f64 / load);
            let whole = loads.map(|budget| (budget as usize).max(least));
            // And where no step finds all that it touches near.
            for budget in whole.into_iter().chain([least * 3 / 4, least / 2]) {
                let arranged = arrange(&draft, &graph, &limits, &costs, Some(budget));
                let arranged = arranged.expect("what has no room is remote");
                let plan = arranged.draft.clone().place();
                assert!(plan.arena_bytes <= budget, "{name} {paging:?}");
                assert_eq!(plan.remote_bytes > 0, budget < least, "{name} {paging:?} {budget}");
                assert!(played(&arranged, &draft) == expected, "{name} {paging:?} {budget}");
            }
            assert_eq!(moved(&draft, paging, core), [0; 2], "what fits in core stays (Fig. 4)");
        }
        let of = |design, policy| moved(&draft, Paging { design, policy }, core * 2 / 3);
        use crate::config::MemoryDesign::{DivisionInPlace, DivisionWithDiscard, Full};
        use crate::config::MemoryPolicy::{Belady, Driver, Lru};
        assert_eq!(of(DivisionInPlace, Driver), of(Full, Lru), "a rank by use is what LRU has");
        let back = |moved: [u64; 2]| moved[1];
        // Of a single pass nothing says whether a driver's order or LRU is the better one.
        for policy in [Lru, Driver] {
            assert!(back(of(Full, Belady)) <= back(of(Full, policy)), "{name} {policy:?}");
        }
        let [discarding, not] = [of(DivisionWithDiscard, Driver), of(DivisionInPlace, Driver)];
        assert!(discarding[0] <= not[0], "{name}: what is worth nothing is not copied out");
        assert!(least_room(&uses) < core);
    }
}

#[test]
fn a_plan_fits_its_budget_reads_the_same_and_is_never_slower_with_more() {
    let mut stream = Stream::new(&[35]);
    for name in ["resnet20", "alexnet", "mobilenet_v2"] {
        let graph = graph(name);
        for draft in both(&graph) {
            let uses = Uses::of(&draft);
            let keep = arrange(&draft, &graph, &limits(MemoryMode::InCore), &guessed(&draft), None);
            let keep = keep.expect("no budget");
            let in_core = keep.draft.clone().place().arena_bytes;
            let expected = played(&keep, &draft);
            let costs = drawn(&draft, &mut stream);
            for fates in [&[Fate::Swap, Fate::Recompute][..], &[Fate::Swap], &[Fate::Recompute]] {
                let family = family(&uses, &costs, fates);
                let least = smallest(&uses, &costs, &family);
                let mut before = f64::INFINITY;
                for part in 0..=10 {
                    let budget = least + (in_core - least) * part / 10;
                    let fitted = fit(&uses, &costs, &family, budget).expect("not below the least");
                    assert!(placed_bytes(&uses, &costs, fitted) <= budget);
                    let seconds = fitted.forecast.seconds;
                    assert!(seconds <= before, "{name}: {seconds} after {before}");
                    before = seconds;
                    let arranged = Arranged::of(&uses, &fitted.turns(&uses, &costs), &costs);
                    assert!(played(&arranged, &draft) == expected, "{name} {fates:?} {part}");
                }
                assert_eq!(fit(&uses, &costs, &family, least - 1).unwrap_err(), least);
                let steps = draft.steps.iter().zip(&costs.step_seconds);
                let computes = |of: &Step| !matches!(of.action, Action::Load { .. });
                let alone: f64 =
                    steps.filter(|(step, _)| computes(step)).map(|(_, took)| took).sum();
                assert!((before - alone).abs() < 1e-9 * alone, "in core nothing waits");
            }
        }
    }
}

/// A stack of convolutions with few values to let go.
fn small() -> Graph {
    use crate::model::LayerKind;
    use crate::model::spec::GraphBuilder;
    use crate::model::window::{Conv, MaxPool, Padding};
    let mut builder = GraphBuilder::new("small", [3, 32, 32], 10);
    for (at, channels) in [16, 24, 32].into_iter().enumerate() {
        let conv = Conv { padding: Padding::every(1), ..Conv::new(channels, 3) };
        builder.then(&format!("conv{at}"), LayerKind::Conv(conv));
        builder.then(&format!("norm{at}"), LayerKind::BatchNorm { momentum: 0.1, epsilon: 1e-5 });
        builder.then(&format!("relu{at}"), LayerKind::Relu);
        builder.then(&format!("pool{at}"), LayerKind::MaxPool(MaxPool::new(2, 2)));
    }
    builder.then("flatten", LayerKind::Flatten);
    builder.then("fc", LayerKind::Linear { features: 10, bias: true });
    builder.finish().expect("a valid model")
}

/// Every fate of every value that may go, each with every bound on what is on the way.
fn exhaustive(uses: &Uses<'_>, costs: &Costs) -> Vec<Candidate> {
    let going: Vec<usize> = uses
        .saved
        .iter()
        .copied()
        .filter(|&value| uses.draft.bytes[value] >= MOVED_BYTES_MIN)
        .collect();
    let fates = [Fate::Keep, Fate::Swap, Fate::Recompute];
    let mut all = Vec::new();
    for number in 0..3_usize.pow(going.len() as u32) {
        let mut chosen = vec![Fate::Keep; uses.draft.bytes.len()];
        for (at, &value) in going.iter().enumerate() {
            chosen[value] = fates[number / 3_usize.pow(at as u32) % 3];
        }
        let possible = |&value: &usize| {
            chosen[value] != Fate::Recompute || uses.again(value, &|_| false).is_some()
        };
        if going.iter().all(possible) {
            for flight in [Flight::Bytes(usize::MAX), Flight::AtOnce] {
                all.push(Candidate::new(uses, costs, chosen.clone(), flight));
            }
        }
    }
    all.sort_by(|a, b| a.forecast.seconds.total_cmp(&b.forecast.seconds));
    all
}

#[test]
fn the_planner_is_near_the_best_of_all_plans_of_a_small_model() {
    let graph = small();
    let draft = draft(&graph);
    let uses = Uses::of(&draft);
    let mut stream = Stream::new(&[36]);
    let in_core = draft.clone().place().arena_bytes;
    let (mut worst, mut least_worst) = (1.0_f64, 1.0_f64);
    for _ in 0..4 {
        let costs = drawn(&draft, &mut stream);
        let (ours, all) =
            (family(&uses, &costs, &[Fate::Swap, Fate::Recompute]), exhaustive(&uses, &costs));
        let (least, best_least) = (smallest(&uses, &costs, &ours), smallest(&uses, &costs, &all));
        least_worst = least_worst.max(least as f64 / best_least as f64);
        for part in 0..=8 {
            let budget = least + (in_core - least) * part / 8;
            let seconds = |family: &[Candidate]| {
                fit(&uses, &costs, family, budget).expect("it fits").forecast.seconds
            };
            worst = worst.max(seconds(&ours) / seconds(&all));
        }
    }
    assert!(worst <= 1.1 && least_worst <= 1.1, "{worst} {least_worst}");
}

fn add_up(spells: &[Spell], counts: impl Fn(Work) -> bool) -> f64 {
    let own = spells.iter().filter(|spell| counts(spell.work));
    own.map(|spell| spell.to_seconds - spell.from_seconds).sum()
}

fn check_played(played: &Played, costs: &Costs) {
    let Played { forecast, computing, copies, live, places_bytes, peak } = played;
    assert_eq!(Some(peak.bytes), live.iter().map(|(_, bytes)| *bytes).max());
    let near = |a: f64, b: f64| assert!((a - b).abs() <= 1e-9 * forecast.seconds, "{a} {b}");
    near(add_up(computing, |_| true), forecast.seconds);
    near(add_up(computing, |work| work == Work::Again), forecast.again);
    near(add_up(computing, |work| work == Work::Wait), forecast.waits);
    let meet = |pair: &[Spell]| pair[0].to_seconds == pair[1].from_seconds;
    assert!(computing.windows(2).all(meet), "computing has no gaps");
    for (way, copies) in copies.iter().enumerate() {
        near(add_up(copies, |_| true), forecast.moved_bytes[way] as f64 / costs.rates[way]);
        let apart = |pair: &[Spell]| pair[0].to_seconds <= pair[1].from_seconds;
        assert!(copies.windows(2).all(apart), "a direction makes one copy at a time");
        assert!(
            copies.iter().all(|copy| copy.to_seconds <= forecast.seconds),
            "all are waited for"
        );
    }
    let most = live.iter().map(|&(_, bytes)| bytes).max().expect("something lives");
    assert_eq!([most, peak.bytes], [forecast.live_bytes as u64; 2]);
    assert!(most <= *places_bytes, "{most} live in {places_bytes}");
}

#[test]
fn what_is_shown_adds_up_to_the_forecast_and_lives_within_its_places() {
    for name in MODELS {
        let graph = graph(name);
        let draft = draft(&graph);
        let costs = guessed(&draft);
        for (mode, budget) in [
            (MemoryMode::InCore, None),
            (MemoryMode::SwapSync, None),
            (MemoryMode::Swap, None),
            (MemoryMode::Recompute, Some(0)),
            (MemoryMode::Planned, Some(0)),
        ] {
            let arranged = arrange(&draft, &graph, &limits(mode), &costs, budget).unwrap();
            let plan = MemoryPlan::of(&draft, &graph, &arranged, 640);
            check_played(&plan.in_core, &costs);
            check_played(&plan.within, &costs);
            assert_eq!(plan.within.forecast, arranged.forecast);
            let [keep, swap, again] =
                [Fate::Keep, Fate::Swap, Fate::Recompute].map(|of| plan.with(of));
            assert_eq!(keep.0 + swap.0 + again.0, draft.saved().len());
            assert_eq!(swap.1, arranged.forecast.moved_bytes[0]);
            let computes_again = arranged.forecast.again > 0.0;
            assert_eq!(again.0 > 0, computes_again, "{name} {mode:?} {again:?}");
            let is_in_core = mode == MemoryMode::InCore;
            assert_eq!(plan.in_core == plan.within, is_in_core, "{name} {mode:?}");
        }
    }
}

#[test]
fn a_quarter_of_the_memory_costs_little_where_all_can_be_moved_as_fast_as_it_is_computed() {
    let graph = catalogue::build("resnet50", [3, 224, 224], 1000, 1.0).expect("in the catalogue");
    let [draft, quarter] = [8, 2].map(|batch| draft_of(&graph, batch));
    let (uses, mut costs) = (Uses::of(&draft), guessed(&draft));
    let (forward, backward) = costs.step_seconds.split_at(uses.forward);
    let saved: usize = uses.saved.iter().map(|&value| draft.bytes[value]).sum();
    costs.rates = [forward, backward].map(|pass| saved as f64 / pass.iter().sum::<f64>());
    let family = family(&uses, &costs, &[Fate::Swap, Fate::Recompute]);
    let budget = quarter.place().arena_bytes;
    let fitted = fit(&uses, &costs, &family, budget).expect("there is one");
    let speed = costs.step_seconds.iter().sum::<f64>() / fitted.forecast.seconds;
    assert!(speed >= 0.83, "{speed}");
    let least = smallest(&uses, &costs, &family);
    costs.step_seconds.reverse();
    let other = super::planner::family(&uses, &costs, &[Fate::Swap, Fate::Recompute]);
    assert_eq!(smallest(&uses, &costs, &other), least, "whatever the prices");
}
