//! Copies of weights within a budget: never those of another program or state.

use super::*;

/// A budget has room for none, some or all of them; pass after pass and state after state.
#[test]
fn copies_of_weights_lie_within_the_budget_and_follow_the_state() {
    for element in computed_here() {
        let case = case("mobilenet_v2", 32, 5, 1.0);
        let mut in_core = case.executor_of(element, 1);
        let expected = case.bits(&mut in_core, 5);
        let bytes = in_core.machine.arena.bytes() + in_core.machine.weights.bytes();
        for (mode, part) in [
            (MemoryMode::InCore, 100),
            (MemoryMode::InCore, 60),
            (MemoryMode::SwapSync, 50),
            (MemoryMode::Planned, 80),
            (MemoryMode::Planned, 30),
        ] {
            let budget = bytes * part / 100 + (64 << 10);
            let limits = Limits { mode, budget_bytes: Some(budget), ..Limits::none() };
            let mut executor = case.within(element, 1, &limits);
            for pass in 0..4 {
                assert!(case.bits(&mut executor, 5) == expected, "{mode:?} {part} {pass}");
                // What it holds of another program, or state, is not taken for its own.
                match pass {
                    0 => {
                        let images = &case.images[..5 * elements(case.graph.input)];
                        let evaluated = |executor: &mut Executor<Machine>| {
                            executor
                                .infer(images, &case.labels, &case.weights(), None)
                                .expect("done")
                        };
                        assert_eq!(evaluated(&mut executor), evaluated(&mut in_core), "{mode:?}");
                    }
                    1 => drop(case.bits(&mut executor, 3)),
                    2 => {
                        executor.renew();
                        let zeros = vec![0.0; case.layout.parameters];
                        assert!(case.bits_of(&mut executor, 5, &zeros) != expected);
                        executor.renew();
                    }
                    _ => {}
                }
            }
            let held = executor.machine.arena.bytes() + executor.machine.weights.bytes();
            // Buffers are whole cache lines, empty ones too.
            assert!(held <= budget + (64 << 10), "{mode:?} {part}: {held} of {budget}");
        }
    }
}

/// It has nothing to move.
#[test]
fn a_pager_without_a_budget_leaves_everything_in_core() {
    let case = case("resnet20", 32, 5, 1.0);
    let mut in_core = case.executor(1);
    let expected = case.bits(&mut in_core, 5);
    let limits = Limits { mode: MemoryMode::Unified, ..Limits::none() };
    let mut executor = case.within(ElementType::F32, 1, &limits);
    assert!(case.bits(&mut executor, 5) == expected);
    let copies = |step: &&Step| matches!(step.action, Action::BeginCopy { .. });
    let steps = &executor.programs[0].program.program.plan.draft.steps;
    assert_eq!(steps.iter().filter(copies).count(), 0);
}

/// Evaluation reads the copies of training.
#[test]
fn training_and_evaluation_under_a_pager_hold_no_more_than_the_budget() {
    let case = case("mobilenet_v2", 32, 5, 1.0);
    let mode = MemoryMode::Unified;
    let within = |budget_bytes| {
        case.within(ElementType::F32, 1, &Limits { mode, budget_bytes, ..Limits::none() })
    };
    let budget = within(None).machine.smallest_budget(5).expect("planned") * 11 / 10;
    let mut executor = within(Some(budget));
    let bits = case.bits(&mut executor, 5);
    let images = &case.images[..2 * elements(case.graph.input)];
    executor.infer(images, &case.labels[..2], &case.weights(), None).expect("it fits");
    assert!(case.bits(&mut executor, 5) == bits);
    let held = executor.machine.arena.bytes() + executor.machine.weights.bytes();
    // Buffers are whole cache lines.
    assert!(held <= budget + (64 << 10), "{held} of {budget}");
}
