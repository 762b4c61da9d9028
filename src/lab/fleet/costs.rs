//! What mending takes: figures measured with `kintsugi bench recovery`, and how they are taken to
//! grow with the fleet.

use std::path::Path;

use crate::lab::bench::Report;

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
    /// A live repair costs this much more each time the number of ranks doubles.
    pub per_doubling: f64,
    /// A start of everything costs this much more each time the number of ranks doubles.
    pub start_per_doubling: f64,
}

impl Default for Costs {
    /// Medians of a run of `kintsugi bench recovery` (4 ranks on 2 cores, 95 MB of parameters;
    /// README, "Results"); the spare is a cold one. The growth is assumed: a few messages more up
    /// and down a tree, a second more to start daemons.
    fn default() -> Self {
        Self {
            respawn: 0.238,
            shrink: 0.044,
            spare: 0.151,
            resident_restart: 1.52,
            restart: 2.15,
            per_doubling: 0.010,
            start_per_doubling: 1.0,
        }
    }
}

impl Costs {
    /// As they are on so many ranks.
    pub fn grown(&self, ranks: u64) -> Self {
        let doublings = (ranks as f64 / MEASURED_RANKS as f64).log2().max(0.0);
        let (live, start) = (self.per_doubling * doublings, self.start_per_doubling * doublings);
        Self {
            respawn: self.respawn + live,
            shrink: self.shrink + live,
            spare: self.spare + live,
            resident_restart: self.resident_restart + start,
            restart: self.restart + start,
            ..*self
        }
    }

    /// Takes over the medians that a `kintsugi bench recovery --json` printed; cases that it lacks
    /// stay as they are.
    ///
    /// # Errors
    /// When the file cannot be read or holds no such report.
    pub fn read(self, path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        self.with_bench(&text).map_err(|reason| {
            format!(
                "{}: {reason}; write it with `kintsugi bench recovery --json > FILE`",
                path.display()
            )
        })
    }

    /// As [`Costs::read`], of the text: the report is its last line that is not blank.
    ///
    /// # Errors
    /// When that line is no report of `bench recovery`.
    pub fn with_bench(mut self, text: &str) -> Result<Self, String> {
        let line = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
        let report: Report = serde_json::from_str(line).map_err(|error| error.to_string())?;
        if report.bench != "recovery" {
            return Err(format!("it is a report of `bench {}`", report.bench));
        }
        for case in &report.cases {
            let seconds = case.median * 1e-3;
            if case.unit != "ms" || !(seconds >= 0.0 && seconds.is_finite()) {
                return Err(format!("{}: {} {} is no time", case.case, case.median, case.unit));
            }
            match case.case.as_str() {
                "respawn" => self.respawn = seconds,
                "shrink" => self.shrink = seconds,
                "cold_spare" => self.spare = seconds,
                "resident_restart" => self.resident_restart = seconds,
                "restart" => self.restart = seconds,
                _ => {}
            }
        }
        Ok(self)
    }
}
