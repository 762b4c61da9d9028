//! Training beyond a card's memory, on one that has just the budget.

use super::{LIMIT, hash_of, on_a_card, played};
use crate::support::{alone, run, run_dir};

/// Large enough that values leave.
const LARGE: [&str; 5] = [
    "data.image_size=24",
    "train.steps=5",
    "train.owners=4",
    "train.global_batch=16",
    "evaluation.batch=4",
];

fn of<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&LARGE[..], more].concat()
}

/// Runs on a card of so many bytes.
fn on(name: &str, bytes: usize, more: &[&str]) -> (crate::support::Ended, std::path::PathBuf) {
    let folder = run_dir(name);
    let mut command = on_a_card(&folder, &of(more));
    let ended = run(command.env("KINTSUGI_FAKE_CUDA_BYTES", bytes.to_string()), LIMIT);
    (ended, folder)
}

/// The least that a mode takes, as the refusal of a byte names it.
fn least(mode: &str) -> usize {
    let mode = format!("memory.mode={mode}");
    let more = ["run.ranks=1", "device.memory_budget=1KiB", &mode];
    let (ended, _) = on("cuda-least", 1 << 30, &more);
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    let number = ended.stderr.split_once("samples takes ").expect("it names the least").1;
    number.split(' ').next().expect("a word").parse().expect("a number")
}

#[test]
fn a_card_of_just_the_budget_trains_what_it_cannot_hold_to_the_same_bits_with_kills() {
    let _turn = alone();
    let (calm, _) = played("cuda-held", &of(&[]));
    let [least, in_core] = ["planned", "in_core"].map(least);
    let budget = least + (in_core - least) / 4;
    let (refused, _) = on("cuda-too-large", budget, &["run.ranks=1"]);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("needed on a card"), "{}", refused.stderr);
    let limit = format!("device.memory_budget={budget}B");
    let planned = ["run.ranks=1", "memory.mode=planned", &limit];
    let (ended, folder) = on("cuda-planned", budget, &planned);
    assert_eq!(hash_of("cuda-planned", &folder, &ended), (calm.clone(), 0));
    for (mode, phase) in
        [("swap", "in_swap_out"), ("swap_sync", "in_swap_in"), ("recompute", "in_recompute")]
    {
        let mode = format!("memory.mode={mode}");
        let kill = format!(r#"faults.plan=[{{kind="kill", rank=1, step=3, phase="{phase}"}}]"#);
        let name = format!("cuda-{phase}");
        assert_eq!(played(&name, &of(&["run.ranks=2", &mode, &kill])), (calm.clone(), 1), "{name}");
    }
}
