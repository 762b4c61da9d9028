//! The failure matrix: every way in which a run is known to die, one row each, with real processes,
//! real Open MPI and real SIGKILL. A row is played alone and must satisfy all standing claims
//! (`play.rs`); rows that another test proves name it. `make test` plays the core once;
//! `KINTSUGI_MATRIX_ROUNDS=3` (`make soak`) plays every row so often and prints the table.

mod disk;
mod outside;
mod play;
mod rounds;
mod rows;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use play::{Calm, Held, play};
use rounds::rounds;
use rows::{Proof, Row};

fn all() -> Vec<Row> {
    [rows::all(), rounds()].concat()
}

/// Where the table is left, below cargo's temporary folder.
const TABLE: &str = "matrix.md";

#[test]
fn every_row_of_the_matrix_is_proved_somewhere() {
    let rows = all();
    let ids: BTreeSet<&str> = rows.iter().map(|row| row.id.as_str()).collect();
    assert_eq!(ids.len(), rows.len(), "an id stands twice");
    let readme = std::fs::read_to_string(crate::support::project("README.md")).expect("a file");
    let said = format!("{} ways to die", rows.len());
    assert!(readme.contains(&said), "README.md does not say: {said}");
    let families = [("P", 15), ("W", 15), ("K", 17), ("S", 12), ("R", 3), ("E", 18), ("G", 6)];
    for (family, last) in families {
        for number in 1..=last {
            let id = format!("{family}{number}");
            let here = ids.iter().any(|name| name.split([' ', ',']).any(|word| word == id));
            assert!(here, "no row {id}");
        }
    }
    for row in &rows {
        let Proof::Test { file, function } = &row.proof else { continue };
        let path = crate::support::project(file);
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(text.contains(function), "{}: no {function} in {file}", row.id);
    }
}

#[test]
fn the_core_of_the_matrix_holds() {
    let calm = Calm::default();
    let mut faults = Vec::new();
    for row in all().iter().filter(|row| row.core) {
        let Proof::Run(planned) = &row.proof else { continue };
        match play(&row.id, planned, &calm) {
            Ok(Held::Yes) => {}
            Ok(Held::Skipped(why)) => println!("skipped: row {}: {why}", row.id),
            Err(fault) => faults.push(format!("{} ({}): {fault}", row.id, row.what)),
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn the_whole_matrix_holds_in_every_round() {
    let Ok(rounds) = std::env::var("KINTSUGI_MATRIX_ROUNDS") else {
        println!("skipped: the whole failure matrix (KINTSUGI_MATRIX_ROUNDS=3, or make soak)");
        return;
    };
    let rounds: u32 = rounds.parse().expect("KINTSUGI_MATRIX_ROUNDS is a number");
    let only = std::env::var("KINTSUGI_MATRIX_ROW").ok();
    let rows: Vec<Row> =
        all().into_iter().filter(|row| only.as_ref().is_none_or(|id| *id == row.id)).collect();
    let mut passed = vec![0; rows.len()];
    let mut skipped = BTreeMap::new();
    let mut faults = Vec::new();
    let calm = Calm::default();
    for round in 1..=rounds {
        for (row, passed) in rows.iter().zip(&mut passed) {
            let Proof::Run(planned) = &row.proof else { continue };
            match play(&row.id, planned, &calm) {
                Ok(Held::Yes) => *passed += 1,
                Ok(Held::Skipped(why)) => drop(skipped.insert(row.id.clone(), why)),
                Err(fault) => {
                    println!("round {round}: {} ({}): {fault}", row.id, row.what);
                    faults.push(row.id.clone());
                }
            }
        }
        println!("round {round} of {rounds}: {} faults so far", faults.len());
    }
    println!("{} rows skipped: {skipped:?}", skipped.len());
    let table = table(&rows, &passed, &skipped, rounds);
    println!("{table}");
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(TABLE);
    std::fs::write(path, table).unwrap();
    let replay = "replay a row: KINTSUGI_MATRIX_ROUNDS=1 KINTSUGI_MATRIX_ROW=ID cargo test \
                  --release --test processes matrix::the_whole -- --nocapture";
    assert!(faults.is_empty(), "{replay}\n{faults:?}");
}

/// As tests/README.md has it, row by row.
fn table(rows: &[Row], passed: &[u32], skipped: &BTreeMap<String, String>, rounds: u32) -> String {
    let mut text = String::from("| row | what is struck | proof |\n|---|---|---|\n");
    for (row, passed) in rows.iter().zip(passed) {
        let proof = match &row.proof {
            Proof::Run(_) => match skipped.get(&row.id) {
                Some(why) => format!("skipped: {why}"),
                None => format!("{passed} of {rounds}"),
            },
            Proof::Test { file, function } => format!("`{file}`: {}", function.replace('_', " ")),
        };
        let _ = writeln!(text, "| {} | {} | {proof} |", row.id, row.what);
    }
    text
}
