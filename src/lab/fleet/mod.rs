//! `kintsugi simulate fleet`: the fraction of its time that a fleet of many nodes would train
//! under each way of surviving failures. `chain` plays a run of given work as a Markov chain,
//! `forms` has the same in formulas, `costs` what a repair takes. Pure: draws come from seeded
//! streams, nothing reads a clock.
//!
//! Not in the model: failures that strike several nodes at once, a file system that fails, quorum,
//! the time until a checkpoint that was begun can be read.

use crate::config::Span;
use crate::config::seed::{Stream, purpose};
use crate::lab::crowd::within;
use crate::train::checkpoint::young_daly;

pub mod chain;
pub mod costs;
pub mod forms;
pub mod page;

pub use chain::{Played, Rules};
pub use costs::Costs;

/// Largest fleet that is played.
pub const NODES_MAX: u64 = 1_000_000;

/// How failures are survived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub enum Arm {
    /// Everything ends and starts again from the newest checkpoint.
    #[serde(rename = "checkpoint/restart")]
    CheckpointRestart,
    /// Everything ends and starts again from the state that outlived its ranks.
    #[serde(rename = "resident restart")]
    ResidentRestart,
    /// The dead are replaced while the living wait.
    #[serde(rename = "detect/respawn")]
    DetectRespawn,
    /// The living go on without the dead, which come back when they are repaired.
    #[serde(rename = "detect/shrink")]
    DetectShrink,
    /// Waiting processes and nodes take the places of the dead; fewer go on when none is left.
    #[serde(rename = "spares")]
    Spares,
}

/// All of them, in the order of tables and curves.
pub const ARMS: [Arm; 5] = [
    Arm::CheckpointRestart,
    Arm::ResidentRestart,
    Arm::DetectShrink,
    Arm::DetectRespawn,
    Arm::Spares,
];

/// What the loss of a whole node does to the launcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum NodeLoss {
    /// It is repaired like that of a rank (a newer PRRTE).
    Live,
    /// It ends mpirun; the run starts again from resident state on the nodes that are left.
    #[default]
    Restart,
}

/// Most ranks on one node.
const RANKS_PER_NODE_MAX: u64 = 1024;

/// A fleet, what breaks in it and what mending takes. Times are seconds.
// Its comments are what `--help` says.
#[derive(Debug, Clone, PartialEq, clap::Args)]
pub struct Fleet {
    /// Nodes that train.
    #[arg(skip)]
    pub nodes: u64,
    /// Ranks on each node
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = within::<u64, RANKS_PER_NODE_MAX>)]
    pub ranks_per_node: u64,
    /// Waiting nodes, in per cent of the nodes, for the arm "spares"; at least one
    #[arg(long = "spares", value_name = "PERCENT", default_value = "1", value_parser = percent)]
    pub spare_fraction: f64,
    // 10,000 hours: a rank with its GPU (54 days of 16,384 GPUs with 419 interruptions, as
    // published for Llama 3, are 50,000 hours a GPU; software and smaller fleets do worse).
    /// Mean time between failures of one rank, its node in order; "never"
    #[arg(long, value_name = "TIME", value_parser = mtbf, default_value = "10000h")]
    pub rank_mtbf: f64,
    /// Mean time between failures of one node; "never"
    #[arg(long, value_name = "TIME", value_parser = mtbf, default_value = "50000h")]
    pub node_mtbf: f64,
    /// A step without failures
    #[arg(long, value_name = "TIME", value_parser = positive, default_value = "1s")]
    pub step: f64,
    /// What the loop loses by one checkpoint.
    #[arg(skip)]
    pub checkpoint_cost: f64,
    /// Between two checkpoints; `None`: [`young_daly`].
    #[arg(skip)]
    pub checkpoint_every: Option<f64>,
    /// Repairs.
    #[arg(skip)]
    pub costs: Costs,
    /// Until the loss of a node is noticed (`recovery.node_timeout`)
    #[arg(long, value_name = "TIME", value_parser = seconds, default_value = "5s")]
    pub node_detect: f64,
    /// Until a lost node is back, on average
    #[arg(long, value_name = "TIME", value_parser = positive, default_value = "24h")]
    pub node_repair: f64,
    /// Until a rank is back that a shrink dropped, on average (`recovery.regrow`)
    #[arg(long, value_name = "TIME", value_parser = positive, default_value = "10min")]
    pub rank_return: f64,
    /// What the loss of a node does to the launcher: repaired like a rank, or mpirun ends and
    /// everything starts again from resident state
    #[arg(long, value_enum, default_value_t)]
    pub node_loss: NodeLoss,
    /// Length of a run if nothing failed
    #[arg(long, value_name = "TIME", value_parser = positive, default_value = "30d")]
    pub work: f64,
}

/// Reads a time with its unit, in seconds.
///
/// # Errors
/// What to write instead.
pub fn seconds(text: &str) -> Result<f64, String> {
    Ok(text.parse::<Span>()?.0.as_secs_f64())
}

fn positive(text: &str) -> Result<f64, String> {
    let seconds = seconds(text)?;
    if seconds > 0.0 { Ok(seconds) } else { Err("write a time above 0".into()) }
}

fn mtbf(text: &str) -> Result<f64, String> {
    match text {
        "never" => Ok(f64::INFINITY),
        time => positive(time).map_err(|reason| format!("{reason}, or \"never\"")),
    }
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| (0.0..=100.0).contains(number));
    let number = number.ok_or("write per cent of the nodes, from 0 to 100")?;
    Ok(number / 100.0)
}

impl Fleet {
    /// Ranks that train.
    pub fn ranks(&self) -> u64 {
        self.nodes * self.ranks_per_node
    }

    /// Waiting nodes.
    pub fn spares(&self) -> u64 {
        ((self.nodes as f64 * self.spare_fraction).ceil() as u64).max(1)
    }

    /// Failures a second of the whole fleet, ranks and nodes, waiting nodes not counted.
    pub fn failure_rates(&self) -> [f64; 2] {
        [self.ranks() as f64 / self.rank_mtbf, self.nodes as f64 / self.node_mtbf]
    }

    /// Seconds between two checkpoints. A run that lives on after a failure needs them only against
    /// what ends everything at once, which is not in the model: it writes as seldom as the rule
    /// of `checkpoint.every = "auto"` allows.
    pub fn checkpoint_interval(&self, arm: Arm) -> f64 {
        let mtbf = match arm {
            Arm::CheckpointRestart => 1.0 / self.failure_rates().iter().sum::<f64>(),
            _ => f64::INFINITY,
        };
        self.checkpoint_every.unwrap_or_else(|| young_daly(self.checkpoint_cost, mtbf))
    }

    /// The chain that an arm is.
    pub fn rules(&self, arm: Arm) -> Rules {
        let costs = self.costs.grown(self.ranks());
        let interval = self.checkpoint_interval(arm);
        // Checkpoints are taken between steps.
        let checkpoint = (interval / self.step).round().max(1.0) * self.step;
        let live = |repair: f64| match self.node_loss {
            NodeLoss::Live => repair,
            NodeLoss::Restart => costs.resident_restart,
        };
        let (rank, node) = match arm {
            Arm::CheckpointRestart => (costs.restart, costs.restart),
            Arm::ResidentRestart => (costs.resident_restart, costs.resident_restart),
            Arm::DetectRespawn => (costs.respawn, live(costs.respawn)),
            Arm::DetectShrink => (costs.shrink, live(costs.shrink)),
            Arm::Spares => (costs.spare, live(costs.spare)),
        };
        // The memory of the only node is gone with it.
        let alone = self.nodes == 1 && arm != Arm::CheckpointRestart;
        let loses_seats = matches!(arm, Arm::DetectShrink | Arm::Spares);
        Rules {
            nodes: self.nodes,
            ranks: self.ranks(),
            spares: if arm == Arm::Spares { self.spares() } else { 0 },
            rank_rate: 1.0 / self.rank_mtbf,
            node_rate: 1.0 / self.node_mtbf,
            pace: checkpoint / (checkpoint + self.checkpoint_cost),
            rank_cost: rank,
            node_cost: self.node_detect + if alone { costs.restart } else { node },
            shrink_cost: self.node_detect + live(costs.shrink),
            grow_cost: costs.respawn,
            restart_cost: costs.restart,
            rank_keeps: if arm == Arm::CheckpointRestart { checkpoint } else { self.step },
            node_keeps: match alone || arm == Arm::CheckpointRestart {
                true => checkpoint,
                false => self.step,
            },
            checkpoint,
            rank_return: (arm == Arm::DetectShrink).then_some(self.rank_return),
            node_return: loses_seats.then_some(self.node_repair),
            work: self.work,
        }
    }
}

/// Failures in all runs of a line from which their spread says something.
pub const FAILURES_MIN: u64 = 10;

/// One arm of a fleet of one size, played and computed.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Forecast {
    /// The arm.
    pub arm: Arm,
    /// Nodes that train.
    pub nodes: u64,
    /// Nodes that wait.
    pub spares: u64,
    /// Failures a day of all ranks and nodes together.
    pub failures_per_day: f64,
    /// Seconds of work from one checkpoint to the next.
    pub checkpoint_every_seconds: f64,
    /// Work done in a second of wall time, as a fraction of what the nodes that train could do.
    pub goodput: f64,
    /// Half of its 95 % interval; `None` where too few failures were played to tell.
    pub half_width: Option<f64>,
    /// Between these lie 95 of 100 runs.
    pub runs: [f64; 2],
    /// The same from a formula; none where there is no such.
    pub formula: Option<f64>,
    /// Played minus computed.
    pub difference: Option<f64>,
    /// The rule of thumb: Young's waste, 1 / (1 + rate x cost); none where it has none.
    pub first_order: Option<f64>,
    /// Whether the two agree as far as so many runs can tell.
    pub agrees: bool,
}

/// Plays `replicas` runs of one arm and compares them with its formula.
pub fn forecast(fleet: &Fleet, arm: Arm, replicas: u32, seed: u64) -> Forecast {
    let rules = fleet.rules(arm);
    let stream =
        |replica| Stream::new(&[seed, purpose::FLEET, fleet.nodes, arm as u64, u64::from(replica)]);
    let played: Vec<Played> =
        (0..replicas.max(1)).map(|replica| chain::play(&rules, &mut stream(replica))).collect();
    let sample = chain::sample(&played);
    let is_spread = sample.n > 1 && sample.failures >= FAILURES_MIN;
    let formula = forms::goodput(&rules);
    let rate: f64 = fleet.failure_rates().iter().sum();
    Forecast {
        arm,
        nodes: fleet.nodes,
        spares: rules.spares,
        failures_per_day: rate * 86_400.0,
        checkpoint_every_seconds: rules.checkpoint,
        goodput: sample.goodput,
        half_width: is_spread.then_some(sample.half_width),
        runs: sample.runs,
        formula: formula.map(|formula| formula.value),
        difference: formula.map(|formula| sample.goodput - formula.value),
        first_order: forms::first_order(&rules),
        agrees: formula.is_none_or(|formula| formula.agrees(&rules, &sample)),
    }
}

/// All arms of fleets of these sizes that are otherwise alike.
pub fn forecasts(fleet: &Fleet, sizes: &[u64], replicas: u32, seed: u64) -> Vec<Forecast> {
    let each = sizes.iter().flat_map(|&nodes| ARMS.map(|arm| (nodes, arm)));
    each.map(|(nodes, arm)| forecast(&Fleet { nodes, ..fleet.clone() }, arm, replicas, seed))
        .collect()
}
