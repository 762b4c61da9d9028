//! From SIGKILL to being back in the update loop, for each rung of the ladder, and how long a
//! renewal takes: real runs with planned kills, the phases read back from their events.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::lab::report::read::read_result;
use crate::observe::console::say;
use crate::observe::event::{Event, Kind};
use crate::observe::log::{EVENTS_FILE, read_events};
use crate::observe::result::RunResult;

use super::runs::{Runs, launch};
use super::{Case, Report, median};

/// What to measure.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// The configuration to run
    #[arg(long, default_value = "configs/bench/95mb.toml", value_parser = super::configuration)]
    pub config: PathBuf,
    /// Ranks
    #[arg(short, long, default_value_t = 4, value_parser = crate::lab::crowd::ranks)]
    pub ranks: u32,
    /// Repairs per case
    #[arg(long, default_value_t = 10)]
    pub repeats: u32,
}

/// Steps between two kills.
const STEPS_APART: u64 = 12;
/// Runs per case before it is given up: some may end early where recovery does not work.
const RUNS_MAX: u32 = 20;

/// A rung with what makes a run use it.
struct Arm {
    name: &'static str,
    ladder: &'static str,
    /// `recovery.resident`.
    resident: &'static str,
    /// Repairs that one run can show.
    kills_max: u32,
    /// Further keys.
    keys: &'static [&'static str],
}

impl Arm {
    /// A fault is written down, and synced, before it strikes; that must not wait behind
    /// checkpoints that nobody reads.
    fn checkpoints(&self) -> String {
        match self.name {
            "restart" => format!("{}steps", STEPS_APART / 2),
            _ => "never".into(),
        }
    }

    /// As its repairs are recorded.
    fn rung(&self) -> &'static str {
        if self.name.ends_with("spare") { "spare" } else { self.name }
    }
}

const WARM: &[&str] = &["recovery.spares=2", "recovery.warm_spares=true"];
const COLD: &[&str] = &["recovery.spares=2"];

/// A case of which a run shows `kills_max` repairs.
const fn arm(
    name: &'static str,
    ladder: &'static str,
    kills_max: u32,
    keys: &'static [&'static str],
) -> Arm {
    Arm { name, ladder, resident: "on", kills_max, keys }
}

const ARMS: [Arm; 7] = [
    arm("warm_spare", "[\"spare\"]", 2, WARM),
    arm("cold_spare", "[\"spare\"]", 2, COLD),
    arm("respawn", "[\"respawn\"]", u32::MAX, &[]),
    arm("shrink", "[\"shrink\"]", 2, &[]),
    arm(RENEWAL, "[\"spare\", \"restart\"]", 1, &["recovery.spares=1"]),
    arm("resident_restart", RESTART, u32::MAX, &[]),
    Arm { resident: "off", ..arm("restart", RESTART, u32::MAX, &[]) },
];
/// A planned restart from memory, at the end of the step that used up the last spare.
const RENEWAL: &str = "renewal";
/// The world ends with its first death, and `launch` starts it again.
const RESTART: &str = "[\"restart\"]";

#[derive(Default)]
struct Measured {
    totals: Vec<f64>,
    phases: BTreeMap<String, Vec<f64>>,
}

/// Runs all arms in turn, a few repairs each, until each has its repeats.
///
/// # Errors
/// What kept it from running, for a person.
pub fn run(options: &Options, runs: &Runs) -> Result<Report, String> {
    let mut measured: Vec<Measured> = ARMS.iter().map(|_| Measured::default()).collect();
    let mut state_bytes = 0;
    for turn in 0..RUNS_MAX {
        for (arm, measured) in ARMS.iter().zip(&mut measured) {
            let missing = options.repeats.saturating_sub(measured.totals.len() as u32);
            // Interleaved: no arm runs to its end before the others begin.
            let kills = missing.min(arm.kills_max).min(options.repeats.div_ceil(2).max(1));
            if kills == 0 {
                continue;
            }
            let run_dir = runs.directory(&format!("{}-{turn}", arm.name));
            say!("{}: {kills} kills", arm.name);
            let (events, _result) = one_run(runs, options, arm, kills, &run_dir)?;
            state_bytes = state_bytes.max(state_bytes_of(&events));
            collect(arm, &events, measured);
        }
    }
    let mut cases = Vec::new();
    for (arm, measured) in ARMS.iter().zip(&measured) {
        if measured.totals.len() < options.repeats as usize {
            let (got, wanted) = (measured.totals.len(), options.repeats);
            return Err(format!("{}: {got} of {wanted} repairs were seen; run doctor", arm.name));
        }
        let mut case = Case::of(arm.name, &measured.totals, &measured.phases);
        case.state_bytes = Some(state_bytes);
        cases.push(case);
    }
    let of = |name: &str| {
        let at = ARMS.iter().position(|arm| arm.name == name).expect("one of the arms");
        median(&measured[at].totals)
    };
    let ratios = BTreeMap::from([
        ("restart/respawn".to_string(), of("restart") / of("respawn")),
        ("restart/shrink".to_string(), of("restart") / of("shrink")),
        ("restart/warm_spare".to_string(), of("restart") / of("warm_spare")),
        ("restart/resident_restart".to_string(), of("restart") / of("resident_restart")),
    ]);
    Ok(Report::of("recovery", cases, ratios))
}

fn one_run(
    runs: &Runs,
    options: &Options,
    arm: &Arm,
    kills: u32,
    run_dir: &Path,
) -> Result<(Vec<Event>, Option<RunResult>), String> {
    let plan = (0..kills).map(|kill| {
        let step = STEPS_APART * u64::from(kill + 1);
        let ranks = if arm.name == "shrink" { options.ranks - kill } else { options.ranks };
        let rank = if kill % 3 == 2 { 0 } else { ranks - 1 };
        format!("{{ kind = \"kill\", rank = {rank}, step = {step}, phase = \"in_backward\" }}")
    });
    let plan = format!("faults.plan=[{}]", plan.collect::<Vec<_>>().join(", "));
    let steps = STEPS_APART * u64::from(kills + 1);
    let mut command = launch(&options.config, options.ranks, run_dir)?;
    command
        .args(["-s", &plan, "-s", &format!("train.steps={steps}")])
        .args(["-s", &format!("recovery.ladder={}", arm.ladder)])
        .args(["-s", &format!("recovery.resident={}", arm.resident)])
        .args(["-s", "evaluation.every=never"])
        .args(["-s", "recovery.regrow=never"])
        .args(["-s", &format!("checkpoint.every={}", arm.checkpoints())])
        .args(arm.keys.iter().flat_map(|key| ["-s", key]));
    let output = runs.run(&mut command)?;
    let events = read_events(&run_dir.join(EVENTS_FILE)).unwrap_or_default();
    if events.is_empty() {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(format!("{}: the run wrote nothing: {text}", arm.name));
    }
    Ok((events, read_result(run_dir).ok().flatten()))
}

/// Weights and momentum.
fn state_bytes_of(events: &[Event]) -> u64 {
    let parameters = events.iter().find_map(|event| match &event.kind {
        Kind::RunStart { parameters, .. } => Some(*parameters),
        _ => None,
    });
    parameters.unwrap_or(0) * 8
}

/// Adds the repairs that a run's events show, in milliseconds.
fn collect(arm: &Arm, events: &[Event], measured: &mut Measured) {
    let mut add = |name: &str, seconds: f64| {
        measured.phases.entry(name.to_string()).or_default().push(seconds * 1e3);
    };
    if arm.ladder != RESTART && arm.name != RENEWAL {
        for event in events {
            let Kind::Recovered(record) = &event.kind else { continue };
            if record.rung != arm.rung() || !record.seconds.contains_key("detect") {
                continue;
            }
            measured.totals.push(record.seconds.values().sum::<f64>() * 1e3);
            for (name, seconds) in &record.seconds {
                add(name, *seconds);
            }
        }
        return;
    }
    let (mut struck, mut started) = (None, None);
    for event in events {
        match &event.kind {
            Kind::FaultInjected { .. } if arm.name != RENEWAL => {
                (struck, started) = (Some(event.time), None);
            }
            // It begins with the end of the ranks, whose death was repaired before.
            Kind::Phase { name, .. } if name == "finishing" && arm.name == RENEWAL => {
                (struck, started) = (Some(event.time), None);
            }
            Kind::RunStart { .. } => started = Some(event.time),
            Kind::Phase { name, seconds } if name == "begun" => {
                if let (Some(struck), Some(started)) = (struck.take(), started) {
                    measured.totals.push((started + seconds - struck) * 1e3);
                    add("end_and_start", started - struck);
                    add("first_step", *seconds);
                }
            }
            _ => {}
        }
    }
}
