//! `kintsugi simulate fleet`: the goodput of fleets of many nodes.

use std::path::PathBuf;
use std::process::ExitCode;

use super::super::arguments::{fail, print_json};
use crate::config::Shown;
use crate::config::units::Every;
use crate::lab::crowd::within;
use crate::lab::fleet::costs::{self, Costs, Growth, MEASURED_RANKS, PerRank, per_rank};
use crate::lab::fleet::{Fleet, NODES_MAX, NodeLoss, forecasts, page, seconds};
use crate::lab::report::command_line;
use crate::observe::console::print_line;
use crate::observe::progress::duration;
use crate::observe::storage::{FileSystem, Storage};

/// Runs that are played for each line when nothing else is asked for.
const REPLICAS: u32 = 200;
/// Most of them.
const REPLICAS_MAX: u64 = 100_000;
/// What the loop loses by a checkpoint where nobody says it.
const CHECKPOINT_SECONDS: f64 = 2.0;

/// Forecasts the goodput of checkpoint/restart, resident restart, detect/shrink, detect/respawn
/// and spares. Failures are exponential; times carry a unit ("30s", "2h", "30d").
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Sizes of the fleet
    #[arg(long, value_name = "N,...", value_delimiter = ',',
        default_values_t = [10, 100, 1000, 10_000, 100_000],
        value_parser = within::<u64, NODES_MAX>)]
    nodes: Vec<u64>,
    #[command(flatten)]
    fleet: Fleet,
    /// What the loop loses by one checkpoint [default: as --costs says, else 2s]
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    checkpoint_cost: Option<f64>,
    /// Between two checkpoints: "auto" (Young/Daly, as `checkpoint.every`) or a time
    #[arg(long, value_name = "TIME", default_value = "auto", value_parser = interval)]
    checkpoint_every: Every,
    /// What repairs take, as `kintsugi bench recovery --json` printed it, or what a checkpoint
    /// takes (`kintsugi bench checkpoint --json`); give it twice for both
    #[arg(long, value_name = "FILE")]
    costs: Vec<PathBuf>,
    #[command(flatten)]
    repairs: Repairs,
    /// Runs played for each line
    #[arg(long, value_name = "N", default_value_t = REPLICAS,
        value_parser = within::<u32, REPLICAS_MAX>)]
    replicas: u32,
    /// Where the draws begin
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    seed: u64,
    /// Draws the forecast as one self-contained page
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// One JSON object as the last line
    #[arg(long)]
    json: bool,
}

/// What repairs take in seconds, one by one; each overrides the files of --costs.
#[derive(Debug, clap::Args)]
struct Repairs {
    /// Replacing a dead rank by a new process
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    respawn: Option<f64>,
    /// Going on without the dead
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    shrink: Option<f64>,
    /// Replacing a dead rank by a waiting process
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    spare: Option<f64>,
    /// Starting everything again from resident state
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    resident_restart: Option<f64>,
    /// Starting everything again from a checkpoint
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    restart: Option<f64>,
    /// What a live repair takes more whenever the ranks double
    #[arg(long, value_name = "TIME", value_parser = seconds, conflicts_with = "per_rank")]
    per_doubling: Option<f64>,
    /// What a live repair takes more with every rank: a time, or results.json of
    /// configs/experiment/ranks.toml, whose slope is taken
    #[arg(long, value_name = "TIME|FILE", value_parser = per_rank)]
    per_rank: Option<PerRank>,
    /// What a start takes more whenever the ranks double
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    start_per_doubling: Option<f64>,
}

fn interval(text: &str) -> Result<Every, String> {
    match text.parse() {
        Ok(every @ (Every::Auto | Every::Time(_))) => Ok(every),
        _ => Err("write \"auto\" or a time such as \"30min\"".into()),
    }
}

/// Exit 0: what was played agrees with the formulas; 1: not.
pub fn run(args: &Args) -> ExitCode {
    if args.fleet.work < args.fleet.step {
        return fail(2, "--work: write a time of at least one step");
    }
    match show(args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => fail(1, error),
    }
}

/// What was measured or given.
fn costs(args: &Args) -> Result<Costs, String> {
    let mut costs = Costs::default();
    for file in &args.costs {
        let report = costs::read_report(file)?;
        costs = costs.with(&report).map_err(|reason| costs::no_costs(file, &reason))?;
    }
    let repairs = &args.repairs;
    for (given, cost) in [
        (repairs.respawn, &mut costs.respawn),
        (repairs.shrink, &mut costs.shrink),
        (repairs.spare, &mut costs.spare),
        (repairs.resident_restart, &mut costs.resident_restart),
        (repairs.restart, &mut costs.restart),
        (repairs.start_per_doubling, &mut costs.start_per_doubling),
    ] {
        *cost = given.unwrap_or(*cost);
    }
    costs.growth = match (&repairs.per_rank, repairs.per_doubling) {
        (Some(per_rank), _) => Growth::PerRank(per_rank.seconds),
        (None, Some(seconds)) => Growth::PerDoubling(seconds),
        (None, None) => costs.growth,
    };
    Ok(costs)
}

fn show(args: &Args) -> Result<bool, String> {
    let costs = costs(args)?;
    let checkpoint_cost = args.checkpoint_cost.or(costs.checkpoint).unwrap_or(CHECKPOINT_SECONDS);
    let checkpoint_every = match args.checkpoint_every {
        Every::Time(time) => Some(time.as_secs_f64()),
        _ => None,
    };
    let fleet = Fleet { checkpoint_cost, checkpoint_every, costs, ..args.fleet.clone() };
    let all = forecasts(&fleet, &args.nodes, args.replicas, args.seed);
    let lines = assumptions(&fleet, args);
    for line in &lines {
        print_line!("{line}");
    }
    print_line!("\n{}", page::table(&all).text());
    if let Some(words) = page::few_failures(&all) {
        print_line!("{words}");
    }
    let agrees = all.iter().all(|forecast| forecast.agrees);
    let compared = all.iter().filter(|forecast| forecast.formula.is_some()).count();
    print_line!(
        "{compared} of {} lines have a formula; {}",
        all.len(),
        if agrees { "all agree with it" } else { "those marked ! do not agree with it" }
    );
    if let Some(path) = &args.out {
        let page = page::html(&all, &lines, &command_line());
        FileSystem::new("")
            .write_whole(path, &[page.as_bytes()])
            .map_err(|error| error.to_string())?;
        print_line!("{}", path.shown());
    }
    if args.json {
        print_json(&serde_json::json!({
            "simulate": "fleet",
            "command": command_line(),
            "seed": args.seed,
            "replicas": args.replicas,
            "cases": all,
            "agrees": agrees,
        }));
    }
    Ok(agrees)
}

/// What was put in, in words.
fn assumptions(fleet: &Fleet, args: &Args) -> Vec<String> {
    let hours = |seconds: f64| match seconds.is_finite() {
        true => format!("every {:.0} h", seconds / 3600.0),
        false => "never".into(),
    };
    let costs = &fleet.costs;
    let from = match (&args.repairs.per_rank, args.repairs.per_doubling) {
        (Some(per_rank), _) => per_rank.from.as_str(),
        (None, Some(_)) => "as given",
        (None, None) => "assumed",
    };
    let growth = match costs.growth {
        Growth::PerRank(seconds) => format!("{} a rank, {from}", duration(seconds)),
        Growth::PerDoubling(seconds) => format!("{} a doubling, {from}", duration(seconds)),
    };
    vec![
        format!(
            "one rank fails {}, one node {} (noticed after {}, back after {}); {} ranks a node",
            hours(fleet.rank_mtbf),
            hours(fleet.node_mtbf),
            duration(fleet.node_detect),
            duration(fleet.node_repair),
            fleet.ranks_per_node
        ),
        format!(
            "{MEASURED_RANKS} ranks: restart {}, resident restart {} (+ {} a doubling), respawn \
             {}, shrink {}, spare {} (+ {growth})",
            duration(costs.restart),
            duration(costs.resident_restart),
            duration(costs.start_per_doubling),
            duration(costs.respawn),
            duration(costs.shrink),
            duration(costs.spare)
        ),
        format!(
            "a step {}, a checkpoint {}, a run {}; {} spares; {} runs a line, seed {}; the loss \
             of a node {}",
            duration(fleet.step),
            duration(fleet.checkpoint_cost),
            duration(fleet.work),
            format_args!("{} %", fleet.spare_fraction * 100.0),
            args.replicas,
            args.seed,
            match fleet.node_loss {
                NodeLoss::Live => "is repaired live",
                NodeLoss::Restart => "ends mpirun: resident restart",
            }
        ),
    ]
}
