//! Hours of random kills, for `make soak`: every run must end with the calm run's bits, be audited
//! clean and leave nothing behind. Without `KINTSUGI_SOAK_MINUTES` it says that it was skipped.

#![allow(clippy::unwrap_used, reason = "a test stops at its first surprise")]

use std::time::{Duration, Instant};

use kintsugi::observe::result::Status;

#[expect(dead_code, reason = "each test target uses its part of the support")]
mod support;
use support::{assert_audited, assert_nothing_runs, launch, result_of, run, run_dir};

/// Longest single run.
const LIMIT_SECONDS: u64 = 180;

const LONG: [&str; 2] = ["train.steps=1500", "evaluation.every=500steps"];

#[test]
fn runs_under_random_kills_end_with_the_calm_bits() {
    let Some(minutes) = std::env::var("KINTSUGI_SOAK_MINUTES").ok() else {
        println!("skipped: soak (set KINTSUGI_SOAK_MINUTES, or use make soak)");
        return;
    };
    let minutes: f64 = minutes.parse().expect("KINTSUGI_SOAK_MINUTES is a number");
    let end = Instant::now() + Duration::from_secs_f64(60.0 * minutes);
    let folder = run_dir("soak-calm");
    assert_eq!(run(&mut launch(&folder, &LONG), LIMIT_SECONDS).code, Some(0));
    let calm = result_of(&folder);
    let (mut runs, mut recoveries, mut lost) = (0, 0, 0);
    for seed in 1.. {
        if Instant::now() >= end {
            break;
        }
        let folder = run_dir(&format!("soak-{seed}"));
        let random = format!("faults.seed={seed}");
        let overrides = [LONG[0], LONG[1], "faults.mtbf_seconds=1.0", &random];
        let ended = run(&mut launch(&folder, &overrides), LIMIT_SECONDS);
        let replay = format!(
            "replay: kintsugi launch -n 4 configs/mlp_synthetic.toml -s {}",
            overrides.join(" -s ")
        );
        assert_eq!(ended.code, Some(0), "{replay}\n{}", ended.stderr);
        let result = result_of(&folder);
        assert_eq!(result.status, Status::Completed, "{replay}");
        assert_eq!(result.state_sha256, calm.state_sha256, "{replay}");
        assert_audited(&folder);
        assert_nothing_runs(&folder);
        runs += 1;
        recoveries += result.recoveries.len();
        lost += result.recoveries.iter().map(|record| record.lost.len()).sum::<usize>();
        std::fs::remove_dir_all(&folder).unwrap();
    }
    println!(
        "soak: {runs} runs, {recoveries} recoveries, {lost} ranks lost, all with the calm bits"
    );
    assert!(runs > 0, "no time for a single run");
}
