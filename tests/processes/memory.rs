//! Training beyond the near tier over real processes: whatever leaves it, whoever dies, the bits
//! are those of the calm run in core, and nothing is left of the far tier.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{alone, assert_audited, kintsugi, project, result_of, run, run_dir};

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
    let mut command = kintsugi();
    command.args(["launch", "-n", "2"]).arg(project("configs/mlp_synthetic.toml"));
    command.arg("--run-dir").arg(folder);
    for key in keys {
        command.args(["-s", key]);
    }
    command
}

fn ended(name: &str, keys: &[&str]) -> (String, usize) {
    let folder = run_dir(name);
    let ended = run(&mut launch(&folder, keys), LIMIT);
    assert_eq!(ended.code, Some(0), "{name}: {}", ended.stderr);
    assert_audited(&folder);
    let result = result_of(&folder);
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
        let modes: [(&str, &[&str]); 5] = [
            ("sync", &["memory.mode=swap_sync", "memory.granularity=coarse"]),
            ("swap", &[swap, "memory.link=2GB/s"]),
            ("spill", &[swap, &far, "memory.window=2"]),
            ("recompute", &["memory.mode=recompute"]),
            ("planned", &["memory.mode=planned", "device.memory_budget=30MiB"]),
        ];
        // Of the second model the two that differ most.
        let played = if model == "residual" { &modes[..] } else { &modes[3..] };
        for (name, more) in played {
            assert_eq!(of(name, &[*more, &[KILLS]].concat()), (calm.clone(), 2));
            assert_empty(&folder);
        }
        let shrink = ["memory.mode=swap", "recovery.ladder=[\"shrink\"]", KILLS_OF_ONE];
        assert_eq!(of("shrunk", &shrink), (calm.clone(), 1));
    }
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
