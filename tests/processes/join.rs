//! Replacements under real mpirun: whoever dies, whenever, the others end with the state of a run
//! in which nobody died. `KINTSUGI_JOIN_REPEATS` repeats each (default 1).

use std::path::Path;
use std::time::Duration;

use kintsugi::lab::probe_mpi::{Kill, Scenario, launch_program, sequence};

use crate::support::beside_its_like;

const RANKS: usize = 4;
const STEPS: u64 = 12;

fn survives(kills: &[&str]) {
    let kills: Vec<Kill> = kills.iter().map(|kill| kill.parse().expect("a kill")).collect();
    check(&Scenario { ranks: RANKS, steps: STEPS, kills, limit: Duration::from_secs(60) });
}

fn check(scenario: &Scenario) {
    let repeats = std::env::var("KINTSUGI_JOIN_REPEATS")
        .map_or(1, |text| text.parse::<u32>().expect("KINTSUGI_JOIN_REPEATS is a number"));
    for _ in 0..repeats {
        let program = Path::new(env!("CARGO_BIN_EXE_kintsugi"));
        let outcome = launch_program(scenario, program).expect("mpirun starts");
        let kills: Vec<String> =
            scenario.kills.iter().map(|kill| format!("--kill {kill}")).collect();
        let replay = format!("kintsugi probe mpi --steps {STEPS} {}", kills.join(" "));
        assert!(outcome.ok, "replay: {replay}\n{outcome:#?}");
    }
}

#[test]
fn a_world_without_deaths_needs_no_repair() {
    let _turn = beside_its_like();
    let scenario =
        Scenario { ranks: RANKS, steps: STEPS, kills: vec![], limit: Duration::from_secs(60) };
    let program = Path::new(env!("CARGO_BIN_EXE_kintsugi"));
    let outcome = launch_program(&scenario, program).expect("mpirun starts");
    assert!(outcome.ok && outcome.repairs.is_empty(), "{outcome:#?}");
}

#[test]
fn two_at_once_are_replaced() {
    let _turn = beside_its_like();
    survives(&["step@5:0", "step@5:3"]);
}

#[test]
fn twenty_in_a_row_are_replaced() {
    let _turn = beside_its_like();
    let kills = sequence(20, RANKS);
    check(&Scenario { ranks: RANKS, steps: 44, kills, limit: Duration::from_secs(60) });
}

#[test]
fn a_replacement_may_die_at_any_point_of_joining() {
    let _turn = beside_its_like();
    for point in ["join-hello", "join-bridge", "join-merge", "join-reorder", "join-agree"] {
        survives(&["step@5:3", &format!("{point}@1:3")]);
    }
    survives(&["step@5:3", "restore@1:3:1"]);
}

#[test]
fn a_replacement_that_dies_before_mpi_costs_the_leader_but_not_the_run() {
    let _turn = beside_its_like();
    survives(&["step@5:3", "join-start@1:3"]);
}

#[test]
fn a_survivor_may_die_at_any_point_of_the_repair() {
    let _turn = beside_its_like();
    for point in ["spawn", "merge", "restore"] {
        survives(&["step@5:3", &format!("{point}@1:0")]);
        survives(&["step@5:3", &format!("{point}@1:2")]);
    }
}
