//! What schedules are drawn.

use super::*;

#[test]
fn a_seed_is_a_schedule_and_schedules_differ() {
    assert_eq!(Scenario::of(7), Scenario::of(7));
    let different = (0..50).filter(|&seed| Scenario::of(seed).faults != Scenario::of(0).faults);
    assert!(different.count() > 40);
}

#[test]
fn updates_are_drawn_too_and_runs_are_compared_with_calm_ones_of_their_own() {
    let drawn = |kind| (0..100).map(Scenario::of).find(|s| s.config.optimizer.name == kind);
    let adamw = drawn(OptimizerKind::AdamW).expect("every fourth run has it");
    assert!(drawn(OptimizerKind::Lars).is_some());
    assert_eq!(adamw.calm().config.optimizer, adamw.config.optimizer);
    let mut plain = adamw.clone();
    plain.config.optimizer = crate::config::Optimizer::default();
    assert_ne!(plain.variant(), adamw.variant());
    let mixes = |s: &Scenario| s.config.data.cutmix_alpha.is_some();
    let mixed = (0..100).map(Scenario::of).find(mixes).expect("every sixth run does");
    let mut plain = mixed.calm();
    assert_eq!(plain.variant(), mixed.variant());
    plain.config.data.cutmix_alpha = None;
    assert_ne!(plain.variant(), mixed.variant());
}

#[test]
fn spared_faults_are_named_by_their_place() {
    let whole = (0..).map(Scenario::of).find(|s| s.faults.len() == 3).expect("some have three");
    let less = whole.without(&[1]);
    assert_eq!(less.faults, [whole.faults[0].clone(), whole.faults[2].clone()]);
    assert_eq!(less.config, whole.config);
}

#[test]
fn no_gradient_is_made_nan_twice_at_one_place() {
    let is_nan = |fault: &&Fault| matches!(fault, Fault::Point(p) if p.kind == FaultKind::Nan);
    let mut found = 0;
    for scenario in (0..500).map(Scenario::of) {
        let nans: Vec<&Fault> = scenario.faults.iter().filter(is_nan).collect();
        found += nans.len();
        assert!((1..nans.len()).all(|at| !nans[..at].contains(&nans[at])), "{scenario:?}");
    }
    assert!(found > 10, "{found}");
}
