//! Copies of weights as values: they stay, or go and are loaded again.

use super::*;
use crate::config::{Bytes, Config, ExchangeKind};
use crate::engine::memory::arrange::{all_kept, least};
use crate::engine::memory::limits::WeightCopies;
use crate::engine::memory::schedule::Turn;

/// The paper's modes have no choice but this one.
#[test]
fn copies_of_weights_stay_where_there_is_room_and_are_loaded_again_where_there_is_not() {
    for name in MODELS {
        let graph = graph(name);
        let [_, draft] = both(&graph);
        let costs = guessed(&draft);
        for mode in [MemoryMode::InCore, MemoryMode::SwapSync, MemoryMode::Swap] {
            let limits = &limits(mode);
            let of = |budget: usize| arrange(&draft, &graph, limits, &costs, Some(budget));
            let places = |of: &Arranged| of.draft.clone().place().arena_bytes;
            let loads = |of: &Arranged| {
                let is_load = |step: &&Step| matches!(step.action, Action::Load { .. });
                of.draft.steps.iter().filter(is_load).count()
            };
            let all = of(usize::MAX).expect("there is room");
            let none = least(&draft, &graph, limits);
            assert!(places(&none) < places(&all), "{name} {mode:?}");
            assert!(loads(&none) > loads(&all), "{name} {mode:?}: some are read twice");
            assert!(played(&none, &draft) == played(&all, &draft), "{name} {mode:?}");
            assert_eq!(of(places(&all) - 1).expect("they go").turns, none.turns);
            let refused = of(places(&none) - 1).expect_err("too small");
            assert_eq!(refused.wanted_bytes, places(&none), "{name} {mode:?}");
        }
    }
}

#[test]
fn a_pass_in_core_is_the_steps_of_its_draft() {
    for name in MODELS {
        let [apart, placed] = both(&graph(name));
        let steps: Vec<Turn> = (0..apart.steps.len()).map(Turn::Step).collect();
        assert!(all_kept(&Uses::of(&apart)) == steps, "{name}");
        // What is kept is loaded first and held to the end.
        let turns = all_kept(&Uses::of(&placed));
        let loads = placed.steps.len() - steps.len();
        assert!(turns[..loads].iter().all(|turn| matches!(turn, Turn::Keep(_))), "{name}");
        let held = &turns[turns.len() - loads..];
        assert!(held.iter().all(|turn| matches!(turn, Turn::Hold(_))), "{name}");
        assert_eq!(turns.len(), steps.len() + 2 * loads, "{name}");
    }
}

#[test]
fn only_a_budget_makes_places_for_copies_of_weights_and_only_while_the_state_stays() {
    let of = |change: &dyn Fn(&mut Config)| {
        let mut config = Config::default();
        config.device.memory_budget = Some(Bytes(1 << 30));
        config.memory.mode = MemoryMode::Planned;
        change(&mut config);
        Limits::of(&config, 1)
    };
    let within = of(&|_| {});
    assert_eq!(within.copies(), WeightCopies::Placed);
    assert_eq!(within.in_direction(Direction::Inference).copies(), WeightCopies::Placed);
    assert_eq!(of(&|config| config.device.memory_budget = None).copies(), WeightCopies::Apart);
    let asynchronous = |config: &mut Config| config.train.exchange = ExchangeKind::Asynchronous;
    assert_eq!(of(&asynchronous).copies(), WeightCopies::Apart);
    // Evaluation shares those of training.
    let paged = of(&|config| config.memory.mode = MemoryMode::Unified);
    assert_eq!(paged.copies(), WeightCopies::Apart);
    assert_eq!(paged.in_direction(Direction::Inference).copies(), WeightCopies::Apart);
}
