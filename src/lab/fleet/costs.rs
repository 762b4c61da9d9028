//! What mending takes: figures measured with `kintsugi bench recovery` and `bench checkpoint`, and
//! how they are taken to grow with the fleet.

use std::path::Path;

use serde::Deserialize;

use crate::config::{ExchangeKind, Shown, Span};
use crate::lab::bench::Report;
use crate::lab::report::scaling::Slope;

/// Ranks of the fleet on which the default figures were measured.
pub const MEASURED_RANKS: u64 = 4;

/// Seconds from a failure until every rank computes again, lost work apart.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    /// A new process takes the dead one's place. Also what growing by one costs.
    pub respawn: f64,
    /// The dead are left out.
    pub shrink: f64,
    /// A waiting process takes the dead one's place.
    pub spare: f64,
    /// Everything starts again from resident state.
    pub resident_restart: f64,
    /// Everything starts again from a checkpoint.
    pub restart: f64,
    /// What the loop loses by one checkpoint, where that was measured.
    pub checkpoint: Option<f64>,
    /// What a live repair costs more on more ranks.
    pub growth: Growth,
    /// A start of everything costs this much more each time the number of ranks doubles.
    pub start_per_doubling: f64,
}

/// How a live repair grows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Growth {
    /// By so many seconds each time the number of ranks doubles.
    PerDoubling(f64),
    /// By so many with every rank.
    PerRank(f64),
}

impl Default for Costs {
    /// Medians of a run of `kintsugi bench recovery` (4 ranks on 2 cores, 95 MB of parameters;
    /// benches/README.md); the spare is a cold one. The growth is assumed: a few messages more up
    /// and down a tree, a second more to start daemons.
    fn default() -> Self {
        Self {
            respawn: 0.169,
            shrink: 0.024,
            spare: 0.082,
            resident_restart: 0.81,
            restart: 1.35,
            checkpoint: None,
            growth: Growth::PerDoubling(0.010),
            start_per_doubling: 1.0,
        }
    }
}

impl Costs {
    /// As they are on so many ranks.
    pub fn grown(&self, ranks: u64) -> Self {
        let doublings = (ranks as f64 / MEASURED_RANKS as f64).log2().max(0.0);
        let live = match self.growth {
            Growth::PerDoubling(seconds) => seconds * doublings,
            Growth::PerRank(seconds) => seconds * ranks.saturating_sub(MEASURED_RANKS) as f64,
        };
        let start = self.start_per_doubling * doublings;
        Self {
            respawn: self.respawn + live,
            shrink: self.shrink + live,
            spare: self.spare + live,
            resident_restart: self.resident_restart + start,
            restart: self.restart + start,
            ..*self
        }
    }

    /// Takes over the medians of a report of `bench recovery` or `bench checkpoint`; cases that it
    /// lacks stay as they are.
    ///
    /// # Errors
    /// When it is of another bench, or no time in it is one.
    pub fn with(mut self, report: &Report) -> Result<Self, String> {
        if ![RECOVERY, CHECKPOINT].contains(&report.bench.as_str()) {
            return Err(format!("it is a report of `bench {}`", report.bench));
        }
        for case in &report.cases {
            let seconds = case.median * 1e-3;
            if case.unit != "ms" || !(seconds >= 0.0 && seconds.is_finite()) {
                return Err(format!("{}: {} {} is no time", case.case, case.median, case.unit));
            }
            match (report.bench.as_str(), case.case.as_str()) {
                (RECOVERY, "respawn") => self.respawn = seconds,
                (RECOVERY, "shrink") => self.shrink = seconds,
                (RECOVERY, "cold_spare") => self.spare = seconds,
                (RECOVERY, "resident_restart") => self.resident_restart = seconds,
                (RECOVERY, "restart") => self.restart = seconds,
                // Written behind the loop: what it is held is what it loses.
                (CHECKPOINT, "loop_held") => self.checkpoint = Some(seconds),
                _ => {}
            }
        }
        Ok(self)
    }
}

/// What repairs take.
const RECOVERY: &str = "recovery";
/// What checkpoints take.
const CHECKPOINT: &str = "checkpoint";

/// The report that `kintsugi bench ... --json` left in a file: its last line that is not blank.
///
/// # Errors
/// When the file cannot be read or holds none.
pub fn read_report(path: &Path) -> Result<Report, String> {
    let text =
        std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.shown()))?;
    let line = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    serde_json::from_str(line).map_err(|error| no_costs(path, &error.to_string()))
}

/// How a live repair grows with ranks, and where that is from.
#[derive(Debug, Clone, PartialEq)]
pub struct PerRank {
    /// Seconds more with every rank.
    pub seconds: f64,
    /// In words.
    pub from: String,
}

/// Reads a time, or the slope of respawning that an experiment's `results.json` holds: of the
/// synchronous exchange, where it has one of that.
///
/// # Errors
/// It is neither, or there are several such slopes.
pub fn per_rank(text: &str) -> Result<PerRank, String> {
    if let Ok(span) = text.parse::<Span>() {
        return Ok(PerRank { seconds: span.0.as_secs_f64(), from: "as given".into() });
    }
    let wrong = |reason: &dyn std::fmt::Display| {
        format!(
            "{text}: {reason}; write a time such as \"3ms\", or the results.json that `kintsugi \
             experiment configs/experiment/ranks.toml` leaves"
        )
    };
    let json = std::fs::read_to_string(text).map_err(|error| wrong(&error))?;
    let json: Measured = serde_json::from_str(&json).map_err(|error| wrong(&error))?;
    let respawns = || json.slopes.iter().filter(|slope| slope.rung == "respawn");
    let is_synchronous = |slope: &&Slope| slope.exchange == ExchangeKind::Synchronous;
    let mut slopes: Vec<&Slope> = respawns().filter(is_synchronous).collect();
    if slopes.is_empty() {
        slopes = respawns().collect();
    }
    let slope = match slopes.as_slice() {
        [] => return Err(wrong(&"it has no slope of respawning")),
        [only] => only,
        several => {
            let told = |slope: &&Slope| format!("{}: {:.1} ms", slope.name, 1e3 * slope.line.slope);
            let told: Vec<String> = several.iter().map(told).collect();
            let several = told.join("; ");
            return Err(wrong(&format!("it has several slopes of respawning ({several})")));
        }
    };
    let (fewest, most) = slope.ranks();
    let mut from =
        format!("measured: {} on {fewest} to {most} ranks, {} runs", slope.name, slope.runs.len());
    if slope.line.slope < 0.0 {
        from.push_str("; they got shorter, taken as no growth");
    }
    Ok(PerRank { seconds: slope.line.slope.max(0.0), from })
}

#[derive(Deserialize)]
struct Measured {
    #[serde(default)]
    slopes: Vec<Slope>,
}

/// What to do about a file that `--costs` cannot use.
pub fn no_costs(path: &Path, reason: &str) -> String {
    format!(
        "{}: {reason}; write it with `kintsugi bench recovery --json > FILE` or `kintsugi bench \
         checkpoint --json > FILE`",
        path.shown()
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::lab::bench::{Case, Machine};

    fn report(bench: &str, cases: &[(&str, f64)]) -> Report {
        let case = |(name, ms): &(&str, f64)| Case::of(name, &[*ms], &BTreeMap::new());
        let machine = Machine { cores: 2, memory_bytes: None, mpicc: "mpicc".into() };
        let (bench, cases) = (bench.into(), cases.iter().map(case).collect());
        Report {
            bench,
            command: "c".into(),
            machine,
            cases,
            ratios: BTreeMap::new(),
            bounds: Vec::new(),
        }
    }

    #[test]
    fn reports_of_both_benches_add_up() {
        let repairs = report("recovery", &[("cold_spare", 200.0), ("warm_spare", 1.0)]);
        let checkpoints = report("checkpoint", &[("loop_held", 1500.0)]);
        let costs = Costs::default().with(&repairs).and_then(|costs| costs.with(&checkpoints));
        let expected = Costs { spare: 0.2, checkpoint: Some(1.5), ..Costs::default() };
        assert_eq!(costs, Ok(expected));
        assert_eq!(Costs::default().with(&checkpoints).unwrap().spare, Costs::default().spare);
    }

    #[test]
    fn a_measured_slope_takes_the_place_of_what_is_assumed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("results.json");
        let told = |slopes: &str| {
            std::fs::write(&file, format!("{{\"slopes\": [{slopes}], \"runs\": []}}")).unwrap();
            per_rank(file.to_str().unwrap())
        };
        let slope = |rung: &str, exchange: &str, slope: f64| {
            format!(
                "{{\"name\": \"{rung}\", \"rung\": \"{rung}\", \"exchange\": \"{exchange}\", \
                 \"runs\": [[2, 0.1], [4, 0.2]], \
                 \"line\": {{\"slope\": {slope}, \"intercept\": 0.0, \"half_width\": null}}}}"
            )
        };
        let restart = slope("restart", "synchronous", 9.0);
        let [other, ours] = ["asynchronous", "synchronous"].map(|kind| slope("respawn", kind, 0.5));
        let measured =
            told(&format!("{restart}, {other}, {}", ours.replace("0.5", "0.03"))).unwrap();
        assert_eq!(measured.seconds, 0.03);
        assert_eq!(measured.from, "measured: respawn on 2 to 4 ranks, 2 runs");
        let wide = slope("respawn", "synchronous", 0.25)
            .replace("\"respawn\", \"r", "\"respawn, model wide\", \"r");
        let several = told(&format!("{ours}, {wide}")).unwrap_err();
        assert!(
            several.contains("(respawn: 500.0 ms; respawn, model wide: 250.0 ms)"),
            "{several}"
        );
        assert!(told(&restart).unwrap_err().contains("no slope of respawning"));
        let shorter = told(&slope("respawn", "synchronous", -1.0)).unwrap();
        assert!(shorter.seconds == 0.0 && shorter.from.ends_with("taken as no growth"));
        assert_eq!(per_rank("3ms").unwrap().seconds, 0.003);
        assert!(per_rank("nowhere.json").unwrap_err().contains("ranks.toml"));
        let grown = Costs { growth: Growth::PerRank(0.03), ..Costs::default() }.grown(104);
        assert!((grown.respawn - Costs::default().respawn - 3.0).abs() < 1e-9);
    }

    #[test]
    fn another_bench_and_what_is_no_time_are_refused() {
        let other = Costs::default().with(&report("step", &[("respawn", 1.0)]));
        assert!(other.unwrap_err().contains("bench step"));
        let mut wrong = report("checkpoint", &[("loop_held", 1.0)]);
        wrong.cases[0].unit = "MB/s".into();
        assert!(Costs::default().with(&wrong).unwrap_err().contains("is no time"));
        assert!(Costs::default().with(&report("recovery", &[("restart", f64::NAN)])).is_err());
    }
}
