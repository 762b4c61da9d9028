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
    // Nobody else's card, whoever tests here.
    command.env("KINTSUGI_FAKE_CUDA_UUID", std::process::id().to_string());
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
    // One of whom has computed there before it is needed.
    let warm = [&spares[..], &["recovery.warm_spares=true"]].concat();
    assert_eq!(played("cuda-warm", &warm), (calm.clone(), 2));
    assert_eq!(played("cuda-two-ranks", &["run.ranks=2", "train.workers=2"]), (calm.clone(), 0));
    // However late or early the card does what is asked of it, from whichever end it computes.
    for order in ["1", "2"] {
        let name = format!("cuda-order-{order}");
        let folder = run_dir(&name);
        let mut command = on_a_card(&folder, &["train.workers=2", kills]);
        let ended = run(command.env("KINTSUGI_FAKE_CUDA_ORDER", order), LIMIT);
        assert_eq!(hash_of(&name, &folder, &ended), (calm.clone(), 2));
    }
    let bf16 = "device.precision=bf16";
    let (coarse, _) = played("cuda-bf16", &[bf16]);
    assert_eq!(played("cuda-bf16-killed", &[bf16, kills]), (coarse.clone(), 2));
    assert_ne!(coarse, calm, "it was computed in bf16");
    assert_ne!(played("cuda-cpu", &["device.kind=cpu"]).0, calm, "it was computed elsewhere");
}

/// Each sample of a step by itself: one worker's memory.
const ALONE: [&str; 4] = ["run.ranks=1", "train.workers=2", "data.image_size=24", "train.steps=5"];

#[test]
fn workers_of_a_rank_have_a_card_each_and_the_same_bits() {
    let _turn = alone();
    let on = |name: &str, cards: &str, bytes: usize, more: &[&str]| {
        let folder = run_dir(name);
        let mut command = on_a_card(&folder, &[&ALONE[..], more].concat());
        command.env("KINTSUGI_FAKE_CUDA_CARDS", cards);
        (run(command.env("KINTSUGI_FAKE_CUDA_BYTES", bytes.to_string()), LIMIT), folder)
    };
    let whole = 1 << 30;
    let (shared, folder) = on("cuda-one-card", "1", whole, &[]);
    let (calm, _) = hash_of("cuda-one-card", &folder, &shared);
    // Two workers on a card take what it has not; each on its own does.
    let needed = |bytes: usize| {
        let (ended, _) = on("cuda-too-small", "1", bytes, &[]);
        assert_eq!(ended.code, Some(2), "{}", ended.stderr);
        let said = ended.stderr.split_once("device.kind: \"cuda\": ").expect("what it needs").1;
        assert!(said.contains("needed on a card (2 workers, "), "{said}");
        said.split(' ').next().expect("a number").parse::<f64>().expect("megabytes") * 1e6
    };
    let room = (needed(1 << 16) * 0.75) as usize;
    needed(room);
    let (own, folder) = on("cuda-two-cards", "2", room, &[]);
    assert_eq!(hash_of("cuda-two-cards", &folder, &own), (calm.clone(), 0));
    let kill = r#"faults.plan=[{kind="kill", rank=1, step=2, phase="in_backward"}]"#;
    let four = ["run.ranks=2", kill];
    let (killed, folder) = on("cuda-four-cards", "4", room, &four);
    assert_eq!(hash_of("cuda-four-cards", &folder, &killed), (calm, 1));
    let folder = run_dir("cuda-two-kinds");
    let mut command = on_a_card(&folder, &ALONE);
    command.env("KINTSUGI_FAKE_CUDA_CARDS", "2").env("KINTSUGI_FAKE_CUDA_OTHER", "another");
    let ended = run(&mut command, LIMIT);
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains("cards of one kind"), "{}", ended.stderr);
}

#[test]
fn a_card_computes_unasked_where_there_is_one_that_can() {
    let _turn = alone();
    let begun_on = |folder: &Path| {
        let text = std::fs::read_to_string(folder.join("config.toml")).expect("a configuration");
        text.parse::<toml::Table>().expect("TOML")["device"]["kind"].to_string()
    };
    let auto = ["device.kind=auto"];
    let (calm, _) = played("cuda-asked", &[]);
    let folder = run_dir("cuda-unasked");
    let ended = run(&mut on_a_card(&folder, &auto), LIMIT);
    assert_eq!(hash_of("cuda-unasked", &folder, &ended), (calm, 0));
    assert_eq!(begun_on(&folder), "\"cuda\"");
    // It goes on there, whatever the machine now has.
    let longer = ["device.kind=auto", "train.steps=14"];
    let mut command = launch(&folder, &[&SMALL[..], &longer].concat());
    let ended = run(command.env("KINTSUGI_CUDA", "/nowhere").env_remove("LD_LIBRARY_PATH"), LIMIT);
    if kintsugi_ffi::cuda::Driver::open(None).is_err() {
        assert_eq!(ended.code, Some(2), "{}", ended.stderr);
        assert!(ended.stderr.contains("no libcuda.so.1"), "{}", ended.stderr);
    }
    let ended = run(&mut on_a_card(&folder, &longer), LIMIT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(result_of(&folder).steps, 14);
    // Another card that cannot: processors, and why.
    let folder = run_dir("cuda-refuses-threads");
    let ended = run(&mut on_a_card(&folder, &["device.kind=auto", "train.threads=2"]), LIMIT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let why = "processors compute, no card: `train.threads = 2`";
    assert!(ended.stderr.contains(why), "{}", ended.stderr);
    assert_eq!(begun_on(&folder), "\"cpu\"");
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
fn a_card_that_is_lost_full_or_hung_costs_its_rank_and_no_bit() {
    let _turn = alone();
    let (calm, _) = played("cuda-whole", &[]);
    for (name, plan, says) in [
        ("cuda-illegal", "cuLaunchKernel=700@2000", "the card is lost"),
        ("cuda-broken", "cuLaunchKernel=214@2000", "the card is lost"),
        ("cuda-gone", "cuEventSynchronize=719@400", "the card is lost"),
        ("cuda-full", "cuMemAlloc=2@6", "the card is full"),
        // It never answers.
        ("cuda-hung", "cuEventSynchronize=-1@400", "no progress"),
    ] {
        let folder = run_dir(name);
        let once = folder.with_extension("once");
        let _ = std::fs::remove_file(&once);
        let limit = if name == "cuda-hung" { "6s" } else { "auto" };
        let mut command = on_a_card(&folder, &[&format!("recovery.step_timeout={limit}")]);
        command.env("KINTSUGI_FAKE_CUDA", plan).env("KINTSUGI_FAKE_CUDA_ONCE", &once);
        let ended = run(&mut command, LIMIT);
        assert!(once.exists(), "{name}: it never failed");
        assert_eq!(hash_of(name, &folder, &ended), (calm.clone(), 1), "{name}: {}", ended.stderr);
        assert!(ended.stderr.contains(says), "{name}: {}", ended.stderr);
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
