//! The fleet forecast: agrees with its formulas, moves the way it must, repeats by seed.

use kintsugi::config::seed::Stream;
use kintsugi::lab::fleet::{
    ARMS, Arm, Costs, Fleet, NodeLoss, Rules, chain, forecast, forecasts, forms, page,
};
use kintsugi::train::checkpoint::young_daly;
use proptest::prelude::*;

use crate::program::kintsugi;

const HOUR: f64 = 3600.0;

fn fleet(nodes: u64) -> Fleet {
    Fleet {
        nodes,
        ranks_per_node: 1,
        spare_fraction: 0.01,
        rank_mtbf: 10_000.0 * HOUR,
        node_mtbf: 50_000.0 * HOUR,
        step: 1.0,
        checkpoint_cost: 2.0,
        checkpoint_every: None,
        costs: Costs::default(),
        node_detect: 5.0,
        node_repair: 24.0 * HOUR,
        rank_return: 600.0,
        node_loss: NodeLoss::Restart,
        work: 10.0 * 24.0 * HOUR,
    }
}

#[test]
fn what_is_played_agrees_with_the_formulas_at_every_size() {
    for forecast in forecasts(&fleet(1), &[2, 30, 1000, 30_000, 100_000], 60, 1) {
        assert!(forecast.agrees, "{forecast:?}");
        assert!(forecast.formula.is_some() && forecast.goodput > 0.0 && forecast.goodput <= 1.0);
    }
}

#[test]
fn checkpoint_restart_is_youngs_and_dalys_waste() {
    let rules = fleet(20_000).rules(Arm::CheckpointRestart);
    let mtbf = 1.0 / (20_000.0 / (10_000.0 * HOUR) + 20_000.0 / (50_000.0 * HOUR));
    // The interval is that of `checkpoint.every = "auto"`, in whole steps.
    assert!((rules.checkpoint - young_daly(2.0, mtbf)).abs() <= 0.5);
    // Daly's complete formula, restarts of equal length that may fail themselves.
    let rules = Rules { node_cost: rules.rank_cost, ..rules };
    let (cycle, restart) = (rules.checkpoint / rules.pace, rules.rank_cost);
    let time = mtbf * (restart / mtbf).exp() * (cycle / mtbf).exp_m1();
    let formula = forms::goodput(&rules).unwrap();
    assert!((formula.value - rules.checkpoint / time).abs() < 1e-5, "{formula:?}");
    // The rule of thumb is its first order.
    let first = forms::first_order(&rules).unwrap();
    let waste = 1.0 - formula.value;
    assert!((first - formula.value).abs() < waste * waste, "{first} {formula:?}");
}

#[test]
fn detect_respawn_loses_rate_times_cost() {
    let rules = fleet(100_000).rules(Arm::DetectRespawn);
    let formula = forms::goodput(&rules).unwrap().value;
    let first = forms::first_order(&rules).unwrap();
    // Half a step in flight is lost as well.
    let rate = 100_000.0 * (rules.rank_rate + rules.node_rate);
    assert!((formula - first * (1.0 - rate * 0.5)).abs() < 1e-3, "{formula} {first}");
}

#[test]
fn the_only_node_takes_everything_with_it() {
    for arm in ARMS {
        let alone = fleet(1).rules(arm);
        assert_eq!(alone.node_keeps, alone.checkpoint, "{arm:?}");
        assert!(forecast(&fleet(1), arm, 20, 0).goodput > 0.9);
    }
}

#[test]
fn a_fleet_that_fails_faster_than_it_starts_ends_in_bounded_time() {
    let hopeless = Fleet { rank_mtbf: 100.0, work: 100.0, ..fleet(1000) };
    for arm in ARMS {
        let forecast = forecast(&hopeless, arm, 3, 0);
        assert!(forecast.goodput < 0.5, "{forecast:?}");
    }
}

#[test]
fn runs_that_are_given_up_agree_with_their_formula_too() {
    // A failure every minute, ten minutes from one checkpoint to the next.
    let restless = Fleet {
        ranks_per_node: 7,
        rank_mtbf: 5000.0 * HOUR,
        node_mtbf: 10_000.0 * HOUR,
        checkpoint_cost: 58.0,
        work: 24.0 * HOUR,
        ..fleet(40_969)
    };
    for seed in 0..4 {
        let forecast = forecast(&restless, Arm::CheckpointRestart, 60, seed);
        assert!(forecast.agrees && forecast.goodput < 1e-3, "{forecast:?}");
        assert!(forecast.half_width.unwrap() > forecast.goodput / 100.0, "{forecast:?}");
    }
}

#[test]
fn a_line_of_few_failures_has_no_interval() {
    let day = Fleet { work: 24.0 * HOUR, ..fleet(1) };
    let all = forecasts(&day, &[10, 10_000], 20, 0);
    let (few, many) = all.split_at(ARMS.len());
    assert!(few.iter().all(|forecast| forecast.half_width.is_none()), "{few:?}");
    // Nor does a seat that no run happened to lose speak against a formula.
    assert!(few.iter().all(|forecast| forecast.agrees), "{few:?}");
    assert!(many.iter().all(|forecast| forecast.half_width.is_some()), "{many:?}");
    assert!(page::table(many).text().contains('±') && page::few_failures(many).is_none());
    assert!(!page::table(few).text().contains('±') && page::few_failures(few).is_some());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn any_fleet_agrees_with_its_formula(
        nodes in 2u64..50_000,
        ranks_per_node in 1u64..8,
        rank_hours in 5_000f64..100_000.0,
        node_hours in 10_000f64..200_000.0,
        cost in 0.1f64..60.0,
        live in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let fleet = Fleet {
            ranks_per_node,
            rank_mtbf: rank_hours * HOUR,
            node_mtbf: node_hours * HOUR,
            checkpoint_cost: cost,
            node_loss: if live { NodeLoss::Live } else { NodeLoss::Restart },
            ..fleet(nodes)
        };
        for arm in ARMS {
            let forecast = forecast(&fleet, arm, 60, seed);
            prop_assert!(forecast.agrees, "{fleet:?}\n{forecast:?}");
        }
    }

    #[test]
    fn the_same_seed_plays_the_same_runs(seed in any::<u64>(), nodes in 1u64..100_000) {
        for arm in ARMS {
            let once = forecast(&fleet(nodes), arm, 3, seed);
            prop_assert_eq!(&once, &forecast(&fleet(nodes), arm, 3, seed));
        }
        let rules = fleet(100_000).rules(Arm::DetectRespawn);
        let play = |seed| chain::play(&rules, &mut Stream::new(&[seed]));
        prop_assert!(play(seed) != play(seed ^ 1));
    }

    #[test]
    fn machines_that_fail_less_do_more(
        nodes in 2u64..100_000, hours in 1_000f64..100_000.0, factor in 1.1f64..10.0,
    ) {
        for arm in ARMS {
            let of = |hours: f64| {
                let rules = Fleet { rank_mtbf: hours * HOUR, ..fleet(nodes) }.rules(arm);
                forms::goodput(&rules).unwrap().value
            };
            prop_assert!(of(hours * factor) >= of(hours) - 1e-12, "{arm:?}");
        }
    }
}

#[test]
fn the_command_prints_a_table_a_page_and_json() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("fleet.html");
    let bench = folder.path().join("bench.json");
    let machine = r#"{"cores":2,"memory_bytes":null,"mpicc":"mpicc"}"#;
    let case = r#"{"case":"restart","unit":"ms","n":1,"min":60000,"median":60000,"max":60000}"#;
    let report = format!(
        r#"{{"bench":"recovery","command":"c","machine":{machine},"cases":[{case}],"ratios":{{}}}}"#
    );
    std::fs::write(&bench, format!("a line before\n{report}\n")).unwrap();
    let checkpoints = folder.path().join("checkpoints.json");
    let of_checkpoints = report.replace("recovery", "checkpoint").replace("restart", "loop_held");
    std::fs::write(&checkpoints, of_checkpoints.replace("60000", "1500")).unwrap();
    let output = kintsugi(&[
        "simulate",
        "fleet",
        "--nodes",
        "100,100000",
        "--replicas",
        "20",
        "--json",
        "--costs",
        bench.to_str().unwrap(),
        "--costs",
        checkpoints.to_str().unwrap(),
        "--respawn",
        "2s",
        "--out",
        page.to_str().unwrap(),
    ]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("restart 60.00 s") && text.contains("respawn 2.00 s"), "{text}");
    assert!(text.contains("a checkpoint 1.50 s"), "{text}");
    let json: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(json["cases"].as_array().unwrap().len(), 10);
    assert_eq!(json["agrees"], true);
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("100,000") && page.contains("detect/respawn"));
    let outside = page.replace("http://www.w3.org/2000/svg", "");
    assert!(!outside.contains("http") && !outside.contains("<script"));
}

#[test]
fn what_makes_no_sense_is_refused_with_what_to_write() {
    for (arguments, expected) in [
        (&["--nodes", "0"][..], "from 1 to"),
        (&["--step", "0s"], "above 0"),
        (&["--rank-mtbf", "often"], "30s"),
        (&["--checkpoint-every", "epoch"], "auto"),
        (&["--spares", "101"], "--spares"),
    ] {
        let output = kintsugi(&[&["simulate", "fleet"], arguments].concat());
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.contains(expected), "{arguments:?}: {text}");
    }
    let no_report = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let output = kintsugi(&["simulate", "fleet", "--costs", no_report]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("bench recovery --json"));
}

/// Which growth a forecast used stands beside it.
#[test]
fn a_slope_that_an_experiment_measured_is_used_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("results.json");
    let slope = r#"{"slopes": [{"name": "respawn", "rung": "respawn", "exchange": "synchronous",
        "runs": [[2, 0.1], [4, 0.2]],
        "line": {"slope": 0.05, "intercept": 0.0, "half_width": null}}]}"#;
    std::fs::write(&file, slope).unwrap();
    let file = file.to_str().unwrap();
    let told = |more: &[&str]| {
        let small = ["simulate", "fleet", "--nodes", "10", "--replicas", "2", "--work", "1h"];
        let output = kintsugi(&[&small, more].concat());
        let all = [&output.stdout[..], &output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&all).into_owned())
    };
    let (code, measured) = told(&["--per-rank", file]);
    assert_eq!(code, Some(0), "{measured}");
    assert!(measured.contains("50.0 ms a rank, measured: respawn on 2 to 4 ranks"), "{measured}");
    assert!(told(&[]).1.contains("10.0 ms a doubling, assumed"));
    assert!(told(&["--per-doubling", "1ms"]).1.contains("1.0 ms a doubling, as given"));
    assert_eq!(told(&["--per-rank", file, "--per-doubling", "1ms"]).0, Some(2));
    std::fs::write(file, "{}").unwrap();
    let (code, refused) = told(&["--per-rank", file]);
    assert!(code == Some(2) && refused.contains("no slope of respawning"), "{refused}");
}
