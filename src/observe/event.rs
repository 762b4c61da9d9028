//! The one event schema: what `RUN/events.jsonl` holds, a JSON object a line. Readers skip a torn
//! last line. Fields are only ever added within a version `v`.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use super::data_use::{DataUse, Waits};

/// Version of the schema.
pub const VERSION: u32 = 1;

/// JSON has no NaN: a loss that diverged is written as `null` and read back as NaN.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// One line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Schema version.
    pub v: u32,
    /// Seconds since 1970.
    pub time: f64,
    /// Seconds since the run's first start, restarts included, pauses between two launches not.
    pub seconds: f64,
    /// Starts of mpirun.
    pub attempt: u32,
    /// Repairs of the world in this attempt.
    pub generation: u32,
    /// Committed steps.
    pub step: u64,
    /// The rank that wrote the line.
    pub rank: u32,
    /// What happened: `event` and `fields`.
    #[serde(flatten)]
    pub kind: Kind,
}

/// A process that was lost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Lost {
    /// Its member number.
    pub member: u32,
    /// The rank it had.
    pub rank: u32,
    /// Where it ran.
    pub host: String,
    /// Signal, exit code or what is known.
    pub cause: String,
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { member, rank, host, cause } = self;
        write!(f, "rank {rank} (member {member}) on {host}: {cause}")
    }
}

/// A value as files write it: `respawn`, `2q`.
pub fn name_of(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default().trim_matches('"').to_string()
}

/// The lost, for a person.
pub fn names_of(lost: &[Lost]) -> String {
    match lost {
        [] => "nobody".into(),
        lost => lost.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
    }
}

/// Seconds of each part of a repair, from the writer's view: detect, revoke_shrink, spawn, merge,
/// agree, restore, first_step (until every rank has begun to compute its next gradients).
pub type Phases = BTreeMap<String, f64>;

/// One repair, as in `result.json` and in the event `recovered`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecoveryRecord {
    /// The generation it made.
    pub generation: u32,
    /// The step that was computed again.
    pub step: u64,
    /// Who died.
    pub lost: Vec<Lost>,
    /// The rung that repaired it: spare, respawn, shrink, restart; `ROLLBACK` where nobody left and
    /// all went back to a state that they hold.
    pub rung: String,
    /// Committed steps that were given up.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost_steps: u64,
    /// Ranks after it.
    pub ranks: u32,
    /// Seconds by phase.
    pub seconds: Phases,
}

/// What repaired a world that lost nobody, but its trust in a state.
pub const ROLLBACK: &str = "rollback";
/// The rung of an attempt that went on where another ended.
pub const RESTART: &str = "restart";

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A phase of a recovery and its seconds.
pub type PhaseSeconds = (String, f64);

/// The phases in the order they happen; others come after them.
pub const PHASES: [&str; 10] = [
    "detect",
    "revoke_shrink",
    "spawn",
    "merge",
    "agree",
    "restore",
    "stop",
    "start",
    "load",
    "first_step",
];

impl RecoveryRecord {
    /// Its phases in the order they happen.
    pub fn in_order(&self) -> Vec<PhaseSeconds> {
        let known = PHASES.iter().filter_map(|&name| self.seconds.get_key_value(name));
        let others = self.seconds.iter().filter(|(name, _)| !PHASES.contains(&name.as_str()));
        known.chain(others).map(|(name, seconds)| (name.clone(), *seconds)).collect()
    }
}

/// Files that are copied to the nodes of those who read them: so far, and of all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Staged {
    /// Ranks that this is the sum of; 0: of the one that wrote the line, or of a whole set.
    #[serde(default)]
    pub ranks: u32,
    /// Files that are there.
    pub files: u64,
    /// All that these ranks read.
    pub files_total: u64,
    /// Bytes of those that are there.
    pub bytes: u64,
    /// Bytes of all.
    pub bytes_total: u64,
    /// Bytes that are copied a second.
    pub bytes_per_second: f64,
}

/// A change of the number of ranks on purpose, as in `result.json` and in the event `resized`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResizeRecord {
    /// The generation it made.
    pub generation: u32,
    /// The step after which it happened.
    pub step: u64,
    /// regrow | scale
    pub cause: String,
    /// Ranks before it.
    pub from: u32,
    /// Ranks after it.
    pub to: u32,
    /// Seconds by phase.
    pub seconds: Phases,
}

/// What one node can send another, as measured when a launch starts its ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Link {
    pub from: String,
    pub to: String,
    /// By which `from` sends.
    pub interface: String,
    pub bytes_per_second: f64,
}

/// What a micro-batch of a worker is expected to take whose values leave the near tier of memory.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct MemoryForecast {
    pub samples: u64,
    /// Copies of weights are among them.
    pub near_bytes: u64,
    pub far_bytes: u64,
    /// Copied to the far tier, and back.
    pub out_bytes: u64,
    pub back_bytes: u64,
    pub seconds: f64,
    /// Of them, computing once more what was dropped.
    pub again_seconds: f64,
    /// Of them, waiting for copies.
    pub waits_seconds: f64,
    /// The quickest of a few that were computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_seconds: Option<f64>,
}

/// What an attempt runs on and is made with: of the rank that begins to write.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Setup {
    pub host: String,
    /// Processor, cores and memory, in words.
    pub machine: String,
    /// The program's version.
    pub kintsugi: String,
    /// The newest commit of the sources that it was built from, where they were a repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    pub mpi: String,
    /// Library and kind of processor, or card, that decide the last bits.
    pub arithmetic: String,
    /// Of the data set.
    pub classes: u64,
    /// One input sample: channels, height, width.
    pub input: [u64; 3],
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", content = "fields", rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Kind {
    RunStart {
        run_id: String,
        ranks: u32,
        owners: u32,
        parameters: u64,
        train_samples: u64,
        validation_samples: u64,
        steps_total: Option<u64>,
        /// Of the newest committed step.
        #[serde(default)]
        epoch: u64,
        /// resident | checkpoint | scratch | weights
        from: String,
        /// The file of the first weights (`model.init`), where the run begins with them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        weights: Option<String>,
    },
    /// After `run_start`.
    Setup(Setup),
    /// loss and error are means over the step's samples; learning_rate is the one with which the
    /// step moved the weights; seconds is its own length. Short steps share a line: the last one's.
    Step {
        epoch: u64,
        #[serde(deserialize_with = "number")]
        loss: f64,
        #[serde(deserialize_with = "number")]
        error: f64,
        samples: u64,
        learning_rate: f64,
        seconds: f64,
    },
    /// What reading took in the steps of the next `step` line, over all ranks; waits: of a worker,
    /// means.
    Data {
        #[serde(flatten)]
        used: DataUse,
        waits: Waits,
    },
    /// Copies of a rank, or of all.
    Staging(Staged),
    /// error: top-1, a fraction 0..1; average_error: with the running average of the weights.
    Evaluation {
        #[serde(deserialize_with = "number")]
        error: f64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        average_error: Option<f64>,
        #[serde(deserialize_with = "number")]
        loss: f64,
        samples: u64,
        #[serde(deserialize_with = "number")]
        seconds: f64,
    },
    Epoch {
        epoch: u64,
    },
    /// Seconds that each rank computes in a step: medians over the last steps, in rank order.
    Pace {
        rank_seconds: Vec<f64>,
    },
    /// Of a rank whose values leave the near tier, before the first micro-batch of a size, and once
    /// more when a few were computed.
    Memory(MemoryForecast),
    /// stall: time the loop was held; snapshot, write, sync and verify run behind it.
    Checkpoint {
        name: String,
        bytes: u64,
        stall_seconds: f64,
        snapshot_seconds: f64,
        write_seconds: f64,
        verify_seconds: f64,
    },
    /// target: the rank that is struck; pid: its process, 0 where it is not known.
    FaultInjected {
        kind: String,
        phase: String,
        target: u32,
        #[serde(default)]
        pid: u32,
    },
    /// phase: what the rank that tells of it was at when it met the failure: step (loading and
    /// computing), all_reduce, vote, evaluation, comparison (of the replicas), resize, finish.
    /// Other ranks may have met the same failure elsewhere.
    FailureDetected {
        phase: String,
        error: String,
    },
    Phase {
        name: String,
        seconds: f64,
    },
    Recovered(RecoveryRecord),
    Resized(ResizeRecord),
    /// Between the nodes of a world, at its start; an agreement is what every step pays.
    Network {
        agree_seconds: f64,
        links: Vec<Link>,
    },
    /// The next attempt runs on other nodes, since somebody asked for more or fewer.
    Nodes {
        from: Vec<String>,
        to: Vec<String>,
    },
    RungDown {
        from: String,
        to: String,
        reason: String,
    },
    /// A new attempt begins from an older state: the steps between are lost. lost: who ended the
    /// attempt before, as far as their files tell; nobody where it ended on purpose.
    Restarted {
        from: String,
        lost_steps: u64,
        #[serde(default)]
        lost: Vec<Lost>,
        /// As of `RunStart`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        weights: Option<String>,
    },
    Spare {
        member: u32,
        state: String,
    },
    /// Images that could not be decoded. set: train (of an epoch, so far) | validation (of the
    /// evaluation before this line); of: samples of the set.
    BadImages {
        set: String,
        skipped: u64,
        of: u64,
    },
    /// The storage of the data set does not answer: this rank waits for it, so all do.
    Waiting {
        reason: String,
        /// `data.patience`.
        patience_seconds: f64,
    },
    /// The run's first step whose gradients were outside what sums hold after the step before:
    /// it is computed again on another grid, as every later one that is.
    StepAgain {
        step: u64,
    },
    /// From here on the run has not the bits of one without failures; said again where an attempt
    /// goes on from such a state.
    Inexact {
        reason: String,
    },
    Warning {
        message: String,
    },
    RunEnd {
        status: String,
        reason: String,
        state_sha256: Option<String>,
    },
}

/// What tests tell of.
#[cfg(test)]
pub mod samples {
    use super::{Event, Kind, VERSION};

    /// Of the first attempt's rank 0, in a run that began with 1970.
    pub fn event(step: u64, seconds: f64, kind: Kind) -> Event {
        let (v, time, attempt, generation, rank) = (VERSION, seconds, 1, 0, 0);
        Event { v, time, seconds, attempt, generation, step, rank, kind }
    }

    /// The start of a run over so many samples.
    pub fn run_start(train_samples: u64) -> Kind {
        Kind::RunStart {
            run_id: "r".into(),
            ranks: 1,
            owners: 1,
            parameters: 1,
            train_samples,
            validation_samples: 1,
            steps_total: None,
            epoch: 0,
            from: "scratch".into(),
            weights: None,
        }
    }

    /// A step that took so long.
    pub fn step(samples: u64, seconds: f64) -> Kind {
        let (epoch, loss, error, learning_rate) = (0, 1.0, 0.5, 0.1);
        Kind::Step { epoch, loss, error, samples, learning_rate, seconds }
    }
}
