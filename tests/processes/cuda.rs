//! Ranks whose workers compute on a card that is none: the driver is ours, its kernels are the
//! program's own, compiled for the host. All else is as on a real one.

use std::path::Path;
use std::process::Command;

use crate::support::{Ended, alone, assert_audited, kintsugi, launch, result_of, run, run_dir};

mod beyond;
#[path = "../library/cuda/fake.rs"]
pub mod fake;

/// Seconds any of these runs may take.
const LIMIT: u64 = 180;

/// Convolutions, batch norms, sums, a pool, a matrix.
const SMALL: [&str; 7] = [
    "device.kind=cuda",
    "model.name=resnet20",
    "model.width=1",
    "data.image_size=8",
    "train.steps=12",
    "train.global_batch=24",
    "train.owners=8",
];

fn on_a_card(folder: &Path, more: &[&str]) -> Command {
    let mut command = launch(folder, &[&SMALL[..], more].concat());
    with_a_card(&mut command, folder);
    command
}

/// Its process finds the fake driver and compiler, and keeps what they make beside this folder.
fn with_a_card<'a>(command: &'a mut Command, folder: &Path) -> &'a mut Command {
    command.env("LD_LIBRARY_PATH", fake::folder()).env("KINTSUGI_CUDA", fake::folder());
    command.env("XDG_CACHE_HOME", folder.with_extension("cache"))
}

/// The hash of a run that completed, and how many recoveries it had.
fn hash_of(name: &str, folder: &Path, ended: &Ended) -> (String, usize) {
    assert_eq!(ended.code, Some(0), "{name}: {}", ended.stderr);
    assert_audited(folder);
    let result = result_of(folder);
    assert!(result.exact, "{name}");
    (result.state_sha256.expect("a run that completed has a digest"), result.recoveries.len())
}

fn played(name: &str, more: &[&str]) -> (String, usize) {
    let folder = run_dir(name);
    let ended = run(&mut on_a_card(&folder, more), LIMIT);
    hash_of(name, &folder, &ended)
}

/// The error of a run's checkpoint on a device, as text.
fn judged(name: &str, kind: &str) -> String {
    let mut command = kintsugi();
    command.arg("evaluate").arg(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name));
    command.args(["--json", "-s", &format!("device.kind={kind}")]);
    let ended = run(with_a_card(&mut command, &run_dir(&format!("{name}-judged"))), LIMIT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let line = ended.stdout.lines().last().expect("a line").to_owned();
    let value: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    value["error"].to_string()
}

#[test]
fn runs_on_cards_have_the_same_bits_whoever_dies_and_however_many_there_are() {
    let _turn = alone();
    let (calm, _) = played("cuda-calm", &[]);
    assert_eq!(judged("cuda-calm", "cuda"), judged("cuda-calm", "cpu"));
    let kills = r#"faults.plan=[{kind="kill", rank=1, step=4, phase="in_update"},
                                {kind="kill", rank=0, step=8, phase="in_all_reduce"}]"#;
    assert_eq!(played("cuda-killed", &[kills]), (calm.clone(), 2));
    let shrink = ["recovery.ladder=[\"shrink\"]", kills];
    assert_eq!(played("cuda-shrunk", &shrink), (calm.clone(), 2));
    let spares = ["recovery.ladder=[\"spare\"]", "recovery.spares=2", kills];
    assert_eq!(played("cuda-spared", &spares), (calm.clone(), 2));
    assert_eq!(played("cuda-two-ranks", &["run.ranks=2", "train.workers=2"]), (calm.clone(), 0));
    let bf16 = "device.precision=bf16";
    let (coarse, _) = played("cuda-bf16", &[bf16]);
    assert_eq!(played("cuda-bf16-killed", &[bf16, kills]), (coarse.clone(), 2));
    assert_ne!(coarse, calm, "it was computed in bf16");
    assert_ne!(played("cuda-cpu", &["device.kind=cpu"]).0, calm, "it was computed elsewhere");
}

#[test]
fn the_asynchronous_exchange_on_cards_survives_a_kill() {
    let _turn = alone();
    let folder = run_dir("cuda-asynchronous");
    let kill = r#"faults.plan=[{kind="kill", rank=1, step=3, phase="in_all_reduce"}]"#;
    let more = ["train.exchange=asynchronous", "train.workers=2", "run.ranks=2", kill];
    let ended = run(&mut on_a_card(&folder, &more), LIMIT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_audited(&folder);
    assert_eq!(result_of(&folder).recoveries.len(), 1);
}

#[test]
fn a_card_that_is_lost_costs_its_rank_and_no_bit() {
    let _turn = alone();
    let (calm, _) = played("cuda-whole", &[]);
    for (name, plan) in [
        ("cuda-illegal", "cuLaunchKernel=700@2000"),
        ("cuda-broken", "cuLaunchKernel=214@2000"),
        ("cuda-gone", "cuEventSynchronize=719@400"),
    ] {
        let folder = run_dir(name);
        let once = folder.with_extension("once");
        let _ = std::fs::remove_file(&once);
        let mut command = on_a_card(&folder, &[]);
        command.env("KINTSUGI_FAKE_CUDA", plan).env("KINTSUGI_FAKE_CUDA_ONCE", &once);
        let ended = run(&mut command, LIMIT);
        assert!(once.exists(), "{name}: it never failed");
        assert_eq!(hash_of(name, &folder, &ended), (calm.clone(), 1), "{name}: {}", ended.stderr);
        assert!(ended.stderr.contains("the card is lost"), "{name}: {}", ended.stderr);
    }
}

#[test]
fn what_no_card_can_do_is_one_clear_line_before_the_first_step() {
    let _turn = alone();
    let refused = |name: &str, plan: &str, more: &[&str], says: &str| {
        let folder = run_dir(name);
        let ended = run(on_a_card(&folder, more).env("KINTSUGI_FAKE_CUDA", plan), LIMIT);
        assert_eq!(ended.code, Some(2), "{name}: {}", ended.stderr);
        assert!(ended.stderr.contains(says), "{name}: {}", ended.stderr);
    };
    refused("cuda-none", "cuInit=100", &[], "cuInit: 100 CUDA_ERROR_NO_DEVICE");
    let large = ["data.image_size=224", "train.global_batch=800"];
    refused("cuda-small", "", &large, "of its 1.1 GB are free");
    if kintsugi_ffi::cuda::Driver::open(None).is_ok() {
        return;
    }
    let folder = run_dir("cuda-missing");
    let mut command = launch(&folder, &SMALL);
    let ended = run(command.env("KINTSUGI_CUDA", "/nowhere").env_remove("LD_LIBRARY_PATH"), LIMIT);
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains("no libcuda.so.1"), "{}", ended.stderr);
}
