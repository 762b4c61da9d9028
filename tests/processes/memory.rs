//! Training beyond the near tier over real processes: whatever leaves it, whoever dies, the bits
//! are those of the calm run in core, and nothing is left of the far tier.

use std::path::{Path, PathBuf};
use std::process::Command;

use kintsugi::config::{Device, MemoryMode, Precision};
use kintsugi::engine;
use kintsugi::engine::memory::limits::Limits;
use kintsugi::model::catalogue;

use crate::support::{
    self, PRELOADED, alone, assert_audited, compiled, completed, result_of, run, run_dir,
};

/// Seconds any of these runs may take.
const LIMIT: u64 = 180;

/// Convolutions, batch norms, sums; few enough steps for a second or two.
const RESIDUAL: [&str; 5] = [
    "model.name=resnet20",
    "model.width=1",
    "train.steps=4",
    "train.global_batch=48",
    "train.owners=4",
];

/// The same with dropout.
const DROPOUT: [&str; 6] = [
    "model.name=mobilenet_v2",
    "model.width=1",
    "data.image_size=32",
    "train.steps=4",
    "train.global_batch=16",
    "train.owners=4",
];

const KILLS: &str = r#"faults.plan=[{kind="kill", rank=1, step=2, phase="in_forward"},
                                    {kind="kill", rank=0, step=3, phase="in_backward"}]"#;

fn launch(folder: &Path, keys: &[&str]) -> Command {
    support::launch(folder, &[&["run.ranks=2"][..], keys].concat())
}

fn ended(name: &str, keys: &[&str]) -> (String, usize) {
    let (_, result) = completed(name, &[&["run.ranks=2"][..], keys].concat());
    assert!(result.exact, "{name}");
    (result.state_sha256.expect("a run that completed has a digest"), result.recoveries.len())
}

/// A folder for spill files, which is empty whenever no run is at work.
fn spill(name: &str) -> (String, PathBuf) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-spill"));
    std::fs::create_dir_all(&folder).expect("a folder");
    (format!("memory.far={}", folder.display()), folder)
}

fn assert_empty(folder: &Path) {
    let left: Vec<_> = std::fs::read_dir(folder).expect("it was made").collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn every_mode_with_kills_ends_with_the_bits_of_the_calm_run_in_core() {
    let _turn = alone();
    for (model, keys) in [("residual", &RESIDUAL[..]), ("dropout", &DROPOUT[..])] {
        let of = |name: &str, more: &[&str]| {
            ended(&format!("memory-{model}-{name}"), &[keys, more].concat())
        };
        let (calm, _) = of("in-core", &[]);
        let (far, folder) = spill(model);
        let swap = "memory.mode=swap";
        let least = least_paged();
        let modes: [(&str, &[&str]); 6] = [
            ("sync", &["memory.mode=swap_sync", "memory.granularity=coarse"]),
            ("swap", &[swap, "memory.link=2GB/s"]),
            ("spill", &[swap, &far, "memory.window=2"]),
            ("recompute", &["memory.mode=recompute"]),
            ("planned", &["memory.mode=planned", "device.memory_budget=30MiB"]),
            ("unified", &["memory.mode=unified", &least, "evaluation.batch=12"]),
        ];
        // Of the second model the two that differ most.
        let played = if model == "residual" { &modes[..] } else { &modes[3..5] };
        for (name, more) in played {
            assert_eq!(of(name, &[*more, &[KILLS]].concat()), (calm.clone(), 2));
            assert_empty(&folder);
        }
        let shrink = ["memory.mode=swap", "recovery.ladder=[\"shrink\"]", KILLS_OF_ONE];
        assert_eq!(of("shrunk", &shrink), (calm.clone(), 1));
    }
}

#[test]
fn a_spill_file_that_fails_costs_its_rank_and_one_that_is_slow_nobody_and_no_bit_is_lost() {
    let _turn = alone();
    let (calm, _) = ended("memory-disk-calm", &RESIDUAL);
    let (far, folder) = spill("disk");
    let place = tempfile::tempdir().expect("a folder");
    // Nothing is played where no compiler is.
    let Ok(library) = compiled("spill.c", &PRELOADED, place.path()) else { return };
    let of = |name: &str, nth: &str, micros: &str| {
        let run_folder = run_dir(&format!("memory-disk-{name}"));
        let mut command =
            launch(&run_folder, &[&RESIDUAL[..], &["memory.mode=swap", &far]].concat());
        let flag = place.path().join(name);
        command.env("LD_PRELOAD", &library).env("SPILL_FOLDER", &folder);
        command.env("SPILL_NTH", nth).env("SPILL_MICROS", micros).env("SPILL_FLAG", &flag);
        let ended = run(&mut command, LIMIT);
        assert_eq!(ended.code, Some(0), "{name}: {}", ended.stderr);
        assert_audited(&run_folder);
        assert_empty(&folder);
        let result = result_of(&run_folder);
        assert_eq!(result.state_sha256.as_ref(), Some(&calm), "{name}");
        let lost: Vec<_> = result.recoveries.into_iter().flat_map(|repair| repair.lost).collect();
        assert_eq!(flag.exists(), !lost.is_empty(), "{name}: {lost:?}");
        lost
    };
    // A write in the first step, and a read or a write in a later one.
    for (name, nth) in [("first", "20"), ("later", "200")] {
        let lost = of(name, nth, "0");
        assert!(lost.len() == 1 && lost[0].cause.contains("memory.far: "), "{name}: {lost:?}");
    }
    assert!(of("slow", "0", "2000").is_empty());
}

#[test]
fn a_folder_that_takes_no_spill_file_is_refused_before_the_first_step() {
    let _turn = alone();
    let folder = run_dir("memory-no-folder");
    let missing = format!("memory.far={}", folder.with_extension("missing").display());
    for mode in ["memory.mode=swap", "memory.mode=planned"] {
        let more = [mode, &missing, "device.memory_budget=1GiB"];
        let refused = run(&mut launch(&folder, &[&RESIDUAL[..], &more].concat()), LIMIT);
        assert_eq!(refused.code, Some(2), "{}", refused.stderr);
        assert!(refused.stderr.contains("memory.far: there is no folder"), "{}", refused.stderr);
    }
}

/// The smallest budget of a pager for a worker's micro-batch of the first model.
fn least_paged() -> String {
    let graph = catalogue::build("resnet20", [3, 16, 16], CLASSES, 1.0).expect("in the catalogue");
    let limits = Limits { mode: MemoryMode::Unified, ..Limits::none() };
    let least = engine::smallest_budget(&graph, &Device::default(), 12, 1, &limits);
    format!("device.memory_budget={}B", least.expect("planned"))
}

const KILLS_OF_ONE: &str = r#"faults.plan=[{kind="kill", rank=1, step=2, phase="in_backward"}]"#;

#[test]
fn a_budget_that_is_too_small_is_refused_with_one_that_will_do() {
    let _turn = alone();
    let of = |budget: &str, name: &str| {
        let folder = run_dir(&format!("memory-budget-{name}"));
        let budget = format!("device.memory_budget={budget}");
        let own = ["memory.mode=planned", &budget];
        run(&mut launch(&folder, &[&RESIDUAL[..], &own].concat()), LIMIT)
    };
    let refused = of("1MiB", "refused");
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    let (before, after) = refused.stderr.split_once(" takes ").expect("what it takes");
    assert!(before.contains("device.memory_budget: "), "{}", refused.stderr);
    let bytes: u64 = after.split(' ').next().expect("a number").parse().expect("bytes");
    assert_eq!(of(&format!("{bytes}B"), "least").code, Some(0));
    assert_eq!(of(&format!("{}B", bytes - 1), "less").code, Some(2));
}

/// Of the whole table: models with their pictures' edge.
const TABLE: [(&str, usize); 5] =
    [("resnet20", 32), ("resnet18", 64), ("googlenet", 64), ("alexnet", 64), ("densenet121", 64)];
/// Samples that a worker computes at a time: 32 a step of 4 owners, each in 4 pieces.
const PIECE: usize = 2;
const CLASSES: usize = 10;

/// From the smallest budget that will do to all that is needed in core.
fn budgets(model: &str, side: usize, precision: Precision) -> [u64; 4] {
    let graph = catalogue::build(model, [3, side, side], CLASSES, 1.0).expect("in the catalogue");
    let device = Device { precision, ..Device::default() };
    let limits = Limits { mode: MemoryMode::Planned, ..Limits::none() };
    let least = engine::smallest_budget(&graph, &device, PIECE, 1, &limits).expect("planned");
    let whole = engine::memory_plan(&graph, &device, PIECE, 1, &Limits::none());
    let whole = whole.expect("planned").footprint();
    let most = whole.activations_bytes + whole.weights_bytes;
    [0, 1, 2, 3].map(|at| least + (most.max(least) - least) * at / 3)
}

/// `make soak`: minutes.
#[test]
#[ignore = "55 runs of 20 steps: make soak"]
fn the_whole_table_of_modes_has_one_hash_a_model() {
    let _turn = alone();
    let in_bf16 = Device { precision: Precision::Bf16, ..Device::default() };
    let both = engine::arithmetic(&in_bf16, 1).is_ok();
    let precisions = &[Precision::F32, Precision::Bf16][..if both { 2 } else { 1 }];
    for (model, side) in TABLE {
        for &in_which in precisions {
            let precision = in_which.name();
            let keys = [
                format!("model.name={model}"),
                format!("data.image_size={side}"),
                format!("device.precision={precision}"),
                "model.width=1".into(),
                "train.steps=20".into(),
                "train.global_batch=32".into(),
                "train.owners=4".into(),
                "train.accumulate=4".into(),
                format!("evaluation.batch={PIECE}"),
                "data.synthetic_samples=160".into(),
                "optimizer.learning_rate=0.01".into(),
                "recovery.start_limit=200s".into(),
                "recovery.time_limit=200s".into(),
            ];
            let of = |name: &str, more: &[&str]| {
                let keys: Vec<&str> =
                    keys.iter().map(String::as_str).chain(more.iter().copied()).collect();
                let begun = std::time::Instant::now();
                let (hash, repairs) = ended(&format!("table-{model}-{precision}-{name}"), &keys);
                println!("{model} {precision} {name}: {hash} {repairs} {:.1?}", begun.elapsed());
                (hash, repairs)
            };
            let calm = of("in-core", &[]).0;
            let (copied, again) = ("in_swap_in", "in_recompute");
            let planned = "memory.mode=planned";
            let mut modes: Vec<(String, Vec<String>, &str)> = Vec::new();
            for (name, mode) in [("sync", "swap_sync"), ("swap", "swap")] {
                for granularity in ["layer", "coarse"] {
                    let keys = [("mode", mode), ("granularity", granularity)];
                    let keys = keys.map(|(key, value)| format!("memory.{key}={value}"));
                    modes.push((format!("{name}-{granularity}"), keys.into(), copied));
                }
            }
            modes.push(("recompute".into(), vec!["memory.mode=recompute".into()], again));
            for (at, budget) in budgets(model, side, in_which).into_iter().enumerate() {
                let budget = format!("device.memory_budget={budget}B");
                modes.push((format!("planned-{at}"), vec![planned.into(), budget], "in_backward"));
            }
            for (name, keys, phase) in &modes {
                let kills = format!(
                    r#"faults.plan=[{{kind="kill", rank=1, step=7, phase="in_forward"}},
                                    {{kind="kill", rank=0, step=14, phase="{phase}"}}]"#
                );
                let keys: Vec<&str> = keys.iter().map(String::as_str).chain([&*kills]).collect();
                assert_eq!(of(name, &keys), (calm.clone(), 2));
            }
        }
    }
}

/// Bytes of the model's values over those that a card would have room for: X/C.
const LOADS: [f64; 7] = [0.5, 1.0, 1.05, 1.25, 1.5, 2.0, 4.0];
const DESIGNS: [&str; 4] = ["full", "division", "division_in_place", "division_with_discard"];

/// `make soak`: minutes.
#[test]
#[ignore = "28 runs with kills: make soak"]
fn every_design_of_unified_memory_has_one_hash_at_every_load() {
    let _turn = alone();
    let graph = catalogue::build("resnet20", [3, 32, 32], CLASSES, 1.0).expect("in the catalogue");
    // A worker's micro-batch: 48 samples of 4 owners.
    let held = engine::memory_plan(&graph, &Device::default(), 12, 1, &Limits::none());
    let held = held.expect("planned").footprint();
    let model = [&RESIDUAL[..], &["data.image_size=32", "evaluation.batch=12"]].concat();
    let limits = Limits { mode: MemoryMode::Unified, ..Limits::none() };
    let least =
        engine::smallest_budget(&graph, &Device::default(), 12, 1, &limits).expect("planned");
    let (calm, _) = ended("unified-in-core", &model);
    for design in DESIGNS {
        for load in LOADS {
            let room = held.weights_bytes + (held.activations_bytes as f64 / load) as u64;
            // A step that alone needs more is refused.
            let budget = format!("device.memory_budget={}B", room.max(least));
            let design_key = format!("memory.design={design}");
            let paged = ["memory.mode=unified", &budget, &design_key, KILLS];
            let keys = [&model[..], &paged].concat();
            let name = format!("unified-{design}-{load}");
            assert_eq!(ended(&name, &keys), (calm.clone(), 2), "{name}");
        }
    }
}
