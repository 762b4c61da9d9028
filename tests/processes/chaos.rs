//! `kintsugi chaos` against a real run: ranks die from outside at moments that nobody planned, and
//! the run ends with the calm run's bits.

use std::path::Path;
use std::time::Duration;

use kintsugi::observe::result::Status;

use crate::support::{
    alone, assert_audited, assert_nothing_runs, kintsugi, launch, result_of, run, run_dir, start,
};

const LIMIT: u64 = 180;
const LONG: [&str; 2] = ["train.steps=500", "evaluation.every=250steps"];

fn chaos(folder: &Path, arguments: &[&str]) -> std::process::Command {
    let mut command = kintsugi();
    command.arg("chaos").arg(folder).args(arguments);
    command
}

#[test]
fn a_run_in_a_storm_of_kills_and_stops_ends_with_the_calm_bits() {
    let _turn = alone();
    let folder = run_dir("chaos-calm");
    assert_eq!(run(&mut launch(&folder, &LONG), LIMIT).code, Some(0));
    let calm = result_of(&folder);
    for signal in ["kill", "stop"] {
        let folder = run_dir(&format!("chaos-{signal}"));
        std::fs::create_dir_all(folder.join("logs")).unwrap();
        let running = start(&mut launch(&folder, &LONG), Duration::from_secs(LIMIT));
        let blows = ["--seed", "7", "--mtbf", "1.0", "--kills", "2", "--signal", signal];
        let storm = run(&mut chaos(&folder, &blows), LIMIT);
        assert_eq!(storm.code, Some(0), "{}", storm.stderr);
        let struck: Vec<&str> = storm.stdout.lines().filter(|l| l.contains(" to rank ")).collect();
        let ended = running.wait();
        let story = format!("{}\n{}", storm.stdout, ended.stderr);
        assert_eq!(ended.code, Some(0), "{story}");
        let result = result_of(&folder);
        assert_eq!(result.status, Status::Completed, "{story}");
        assert_eq!(result.state_sha256, calm.state_sha256, "{story}");
        // One that strikes within the last step is no loss to anybody.
        let lost = result.recoveries.iter().map(|record| record.lost.len());
        let lost = lost.chain(result.restarts.iter().map(|restart| restart.lost.len()));
        let lost: usize = lost.sum();
        assert!(!struck.is_empty() && lost + 1 >= struck.len(), "{lost} lost of {struck:?}");
        assert_audited(&folder);
        assert_nothing_runs(&folder);
    }
}

#[test]
fn a_dry_run_repeats_its_moments_and_strikes_nobody() {
    let _turn = alone();
    let folder = tempfile::tempdir().unwrap();
    let dry = ["--dry-run", "--seed", "3", "--mtbf", "10", "--duration", "1min"];
    let first = run(&mut chaos(folder.path(), &dry), 20);
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    assert!(first.stdout.contains("blow 1"), "{}", first.stdout);
    assert_eq!(first.stdout, run(&mut chaos(folder.path(), &dry), 20).stdout);
    let other = ["--dry-run", "--seed", "4", "--mtbf", "10", "--duration", "1min"];
    assert_ne!(first.stdout, run(&mut chaos(folder.path(), &other), 20).stdout);
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_struck() {
    let _turn = alone();
    let folder = tempfile::tempdir().unwrap();
    for (path, arguments, expected) in [
        (folder.path(), &["--mtbf", "0"][..], "above 0"),
        (Path::new("/no/such/run"), &[], "no run directory"),
        (folder.path(), &["--signal", "hup"], "possible values"),
        (folder.path(), &["--duration", "10"], "30s"),
    ] {
        let refused = run(&mut chaos(path, arguments), 20);
        assert_eq!(refused.code, Some(2), "{arguments:?}");
        assert!(refused.stderr.contains(expected), "{arguments:?}: {}", refused.stderr);
    }
}
