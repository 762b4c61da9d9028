//! What `simulate unified-memory` and `probe unified-memory` print.

use std::process::{Command, Output};

use serde_json::Value;

use crate::cuda::fake;

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kintsugi"));
    command.args(words);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn simulated(policy: &str) -> (String, Value) {
    let words = ["simulate", "unified-memory", "--policy", policy, "--json"];
    let output = command(&words).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let told = text(&output.stdout);
    let last = serde_json::from_str(told.lines().last().unwrap()).unwrap();
    (told, last)
}

/// Who is gone, action by action.
fn gone(object: &Value) -> Vec<(u64, Vec<u64>)> {
    let numbers = |row: &Value| {
        let units = row["evicted"].as_array().unwrap().iter();
        (row["action"].as_u64().unwrap(), units.map(|unit| unit.as_u64().unwrap()).collect())
    };
    object["actions"].as_array().unwrap().iter().map(numbers).collect()
}

#[test]
fn the_command_prints_the_papers_table_and_says_what_it_simulates() {
    let wanted: [(u64, &[u64]); 11] = [
        (1, &[0]),
        (2, &[1]),
        (3, &[2]),
        (4, &[]),
        (5, &[1]),
        (6, &[]),
        (7, &[0]),
        (8, &[0]),
        (9, &[0]),
        (10, &[0]),
        (10, &[0]),
    ];
    let mut wanted = wanted.map(|(action, units)| (action, units.to_vec())).to_vec();
    let (told, object) = simulated("driver");
    assert_eq!((object["policy"].as_str(), gone(&object)), (Some("driver"), wanted.clone()));
    for expected in ["Simulates published policies", "NVIDIA's open kernel driver", "11 of 11"] {
        assert!(told.contains(expected), "{told}");
    }
    assert!(object["published"].as_str().is_some_and(|text| text.contains("NVIDIA")));
    for row in object["actions"].as_array().unwrap() {
        let seconds = &row["seconds"];
        assert!(["prepare", "act", "overcommit"].iter().all(|part| seconds[part].is_f64()));
        assert_eq!(seconds["touch"].as_array().unwrap().len(), 3);
    }
    let (told, object) = simulated("lru");
    wanted[0].1 = vec![1];
    assert_eq!((object["policy"].as_str(), gone(&object)), (Some("lru"), wanted));
    assert!(told.contains("10 of 11"), "{told}");
}

fn refused(output: &Output, reason: &str) {
    let (told, why) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(2), "{why}");
    assert!(told.contains(" 7 advise SetAccessedBy(GPU) on x[0]"), "{told}");
    assert!(why.contains(reason) && why.contains("kintsugi simulate unified-memory"), "{why}");
    assert_eq!(why.lines().count(), 1, "{why}");
}

#[test]
fn the_probe_says_what_it_would_do_and_asks_no_card_for_more_than_it_has() {
    let probe = || {
        let mut command = command(&["probe", "unified-memory", "--units", "5"]);
        command.env("LD_LIBRARY_PATH", fake::folder());
        command
    };
    refused(&probe().output().unwrap(), "can hang");
    let without_a_card = probe().env("KINTSUGI_FAKE_CUDA", "cuInit=100").output().unwrap();
    refused(&without_a_card, "needs an NVIDIA card");
}

/// On the fake driver, that takes who came first, what is gone is slow; what is there may be, too,
/// on a busy machine.
#[test]
fn the_probe_of_ones_own_card_sees_who_is_gone() {
    let probe = |more: &[&str]| {
        let words = ["probe", "unified-memory", "--unit-size", "64KiB", "--i-own-this-gpu"];
        let mut command = command(&[&words[..], more].concat());
        command.env("LD_LIBRARY_PATH", fake::folder());
        command.env("KINTSUGI_FAKE_CUDA_BYTES", "458752").output().unwrap()
    };
    refused(&probe(&[]), "give --units 7");
    let output = probe(&["--units", "7", "--json"]);
    let told = text(&output.stdout);
    assert!(output.status.success(), "{told}{}", text(&output.stderr));
    let last: Value = serde_json::from_str(told.lines().last().unwrap()).unwrap();
    assert_eq!(last["card"], "a fake device");
    let rows = last["actions"].as_array().unwrap();
    let gone: [&[u64]; 11] = [&[0], &[1], &[2], &[], &[1], &[0], &[0], &[0], &[0], &[0], &[0]];
    assert_eq!(rows.len(), gone.len());
    for (row, gone) in rows.iter().zip(gone) {
        let of = |key: &str| {
            let units = row[key].as_array().unwrap().iter();
            units.map(|unit| unit.as_u64().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(of("published"), gone, "{row}");
        assert!(gone.iter().all(|unit| of("slow").contains(unit)), "{row}");
    }
}
