//! `kintsugi simulate fleet`: the goodput of fleets of many nodes, and a forecast held against a
//! run that was measured.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::super::arguments::{fail, print_json};
use crate::config::units::Every;
use crate::config::{Shown, Span};
use crate::lab::fleet::against::{self, Given, Judgement, Measured};
use crate::lab::fleet::costs::{self, Costs, MEASURED_RANKS, RECOVERY};
use crate::lab::fleet::{Fleet, Forecast, NODES_MAX, NodeLoss, forecasts, page};
use crate::lab::report::command_line;
use crate::lab::report::line_chart::grouped;
use crate::observe::console::print_line;
use crate::observe::event::name_of;
use crate::observe::log::{EVENTS_FILE, read_events};
use crate::observe::progress::duration;
use crate::observe::storage::{FileSystem, Storage};

/// Runs that are played for each line when nothing else is asked for.
const REPLICAS: u32 = 200;
/// Most of them.
const REPLICAS_MAX: u32 = 100_000;
/// Ranks on one node, at most.
const RANKS_PER_NODE_MAX: u64 = 1024;

/// Forecasts the goodput of checkpoint/restart, resident restart, detect/shrink, detect/respawn
/// and spares. Failures are exponential; times carry a unit ("30s", "2h", "30d").
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Sizes of the fleet
    #[arg(long, value_name = "N,...", value_delimiter = ',',
        default_values_t = [10, 100, 1000, 10_000, 100_000])]
    nodes: Vec<u64>,
    /// Ranks on each node
    #[arg(long, value_name = "N", default_value_t = 1)]
    ranks_per_node: u64,
    /// Mean time between failures of one rank, its node in order; "never" [default: 10000h]
    #[arg(long, value_name = "TIME", value_parser = mtbf)]
    rank_mtbf: Option<f64>,
    /// Mean time between failures of one node; "never"
    #[arg(long, value_name = "TIME", value_parser = mtbf, default_value = "50000h")]
    node_mtbf: f64,
    /// A step without failures
    #[arg(long, value_name = "TIME", default_value = "1s")]
    step: Span,
    /// Length of a run if nothing failed
    #[arg(long, value_name = "TIME", default_value = "30d")]
    work: Span,
    /// What the loop loses by one checkpoint [default: as --costs says, else 2s]
    #[arg(long, value_name = "TIME")]
    checkpoint_cost: Option<Span>,
    /// Between two checkpoints: "auto" (Young/Daly, as `checkpoint.every`) or a time
    #[arg(long, value_name = "TIME", default_value = "auto")]
    checkpoint_every: Every,
    /// What repairs take, as `kintsugi bench recovery --json` printed it, or what a checkpoint
    /// takes (`kintsugi bench checkpoint --json`); give it twice for both
    #[arg(long, value_name = "FILE")]
    costs: Vec<PathBuf>,
    #[command(flatten)]
    repairs: Repairs,
    /// Runs played for each line
    #[arg(long, value_name = "N", default_value_t = REPLICAS)]
    replicas: u32,
    /// Where the draws begin
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    seed: u64,
    /// Instead: whether the goodput of this run lies within the forecast for it. Failure rate and
    /// repair times are the run's own unless --rank-mtbf or --costs gives them
    #[arg(long, value_name = "RUN")]
    against: Option<PathBuf>,
    /// Draws the forecast as one self-contained page
    #[arg(long, value_name = "FILE", conflicts_with = "against")]
    out: Option<PathBuf>,
    /// One JSON object as the last line
    #[arg(long)]
    json: bool,
}

/// What repairs take, one by one; each overrides the files of --costs.
#[derive(Debug, clap::Args)]
struct Repairs {
    /// Replacing a dead rank by a new process
    #[arg(long, value_name = "TIME")]
    respawn: Option<Span>,
    /// Going on without the dead
    #[arg(long, value_name = "TIME")]
    shrink: Option<Span>,
    /// Replacing a dead rank by a waiting process
    #[arg(long, value_name = "TIME")]
    spare: Option<Span>,
    /// Starting everything again from resident state
    #[arg(long, value_name = "TIME")]
    resident_restart: Option<Span>,
    /// Starting everything again from a checkpoint
    #[arg(long, value_name = "TIME")]
    restart: Option<Span>,
    /// What a live repair takes more whenever the ranks double
    #[arg(long, value_name = "TIME")]
    per_doubling: Option<Span>,
    /// What a start takes more whenever the ranks double
    #[arg(long, value_name = "TIME")]
    start_per_doubling: Option<Span>,
    /// Until the loss of a node is noticed (`recovery.node_timeout`)
    #[arg(long, value_name = "TIME", default_value = "5s")]
    node_detect: Span,
    /// Until a lost node is back, on average
    #[arg(long, value_name = "TIME", default_value = "24h")]
    node_repair: Span,
    /// Until a rank is back that a shrink dropped, on average (`recovery.regrow`)
    #[arg(long, value_name = "TIME", default_value = "10min")]
    rank_return: Span,
    /// Waiting nodes, in per cent of the nodes, for the arm "spares"; at least one
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0)]
    spares: f64,
    /// What the loss of a node does to the launcher: repaired like a rank, or mpirun ends and
    /// everything starts again from resident state
    #[arg(long, value_enum, default_value_t)]
    node_loss: NodeLoss,
}

/// A mean time between failures in seconds, or "never".
fn mtbf(text: &str) -> Result<f64, String> {
    if text == "never" {
        return Ok(f64::INFINITY);
    }
    let seconds = text.parse::<Span>()?.0.as_secs_f64();
    if seconds > 0.0 { Ok(seconds) } else { Err("write a time above 0, or \"never\"".into()) }
}

/// Exit 0: what was played agrees with the formulas (or the run lies within its forecast); 1: not.
pub fn run(args: &Args) -> ExitCode {
    let outcome = match (refusal(args), &args.against) {
        (Some(reason), _) => return fail(2, reason),
        (None, Some(run)) => compare(args, run),
        (None, None) => show(args),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => fail(1, error),
    }
}

/// Values that make no sense.
fn refusal(args: &Args) -> Option<String> {
    let sizes = args.nodes.iter().all(|nodes| (1..=NODES_MAX).contains(nodes));
    let spares = args.repairs.spares;
    for (valid, reason) in [
        (sizes, format!("--nodes: write numbers from 1 to {NODES_MAX}")),
        (
            (1..=RANKS_PER_NODE_MAX).contains(&args.ranks_per_node),
            format!("--ranks-per-node: write a number from 1 to {RANKS_PER_NODE_MAX}"),
        ),
        (!args.step.0.is_zero(), "--step: write a time above 0".into()),
        (args.work.0 >= args.step.0, "--work: write a time of at least one step".into()),
        (
            matches!(args.checkpoint_every, Every::Auto | Every::Time(_)),
            "--checkpoint-every: write \"auto\" or a time such as \"30min\"".into(),
        ),
        (
            (0.0..=100.0).contains(&spares),
            "--spares: write per cent of the nodes, from 0 to 100".into(),
        ),
        (
            !(args.repairs.node_repair.0.is_zero() || args.repairs.rank_return.0.is_zero()),
            "--node-repair, --rank-return: write times above 0".into(),
        ),
        (
            (1..=REPLICAS_MAX).contains(&args.replicas),
            format!("--replicas: write a number from 1 to {REPLICAS_MAX}"),
        ),
    ] {
        if !valid {
            return Some(reason);
        }
    }
    None
}

/// What was measured or given, and whether repairs were measured.
fn costs(args: &Args) -> Result<(Costs, bool), String> {
    let (mut costs, mut repairs_measured) = (Costs::default(), false);
    for file in &args.costs {
        let report = costs::read_report(file)?;
        costs = costs.with(&report).map_err(|reason| costs::no_costs(file, &reason))?;
        repairs_measured |= report.bench == RECOVERY;
    }
    let repairs = &args.repairs;
    for (given, cost) in [
        (repairs.respawn, &mut costs.respawn),
        (repairs.shrink, &mut costs.shrink),
        (repairs.spare, &mut costs.spare),
        (repairs.resident_restart, &mut costs.resident_restart),
        (repairs.restart, &mut costs.restart),
        (repairs.per_doubling, &mut costs.per_doubling),
        (repairs.start_per_doubling, &mut costs.start_per_doubling),
    ] {
        *cost = given.map_or(*cost, |span| span.0.as_secs_f64());
    }
    Ok((costs, repairs_measured))
}

/// What the loop loses by a checkpoint where nobody says it.
const CHECKPOINT_SECONDS: f64 = 2.0;

/// 10,000 hours: a rank with its GPU (54 days of 16,384 GPUs with 419 interruptions, as published
/// for Llama 3, are 50,000 hours a GPU; software and smaller fleets do worse).
const RANK_MTBF_SECONDS: f64 = 10_000.0 * 3600.0;

fn fleet(args: &Args) -> Result<Fleet, String> {
    let seconds = |span: Span| span.0.as_secs_f64();
    let (costs, _) = costs(args)?;
    let checkpoint_cost = args.checkpoint_cost.map(seconds).or(costs.checkpoint);
    Ok(Fleet {
        nodes: 1,
        ranks_per_node: args.ranks_per_node,
        spare_fraction: args.repairs.spares / 100.0,
        rank_mtbf: args.rank_mtbf.unwrap_or(RANK_MTBF_SECONDS),
        node_mtbf: args.node_mtbf,
        step: seconds(args.step),
        checkpoint_cost: checkpoint_cost.unwrap_or(CHECKPOINT_SECONDS),
        checkpoint_every: match args.checkpoint_every {
            Every::Time(time) => Some(time.as_secs_f64()),
            _ => None,
        },
        costs,
        node_detect: seconds(args.repairs.node_detect),
        node_repair: seconds(args.repairs.node_repair),
        rank_return: seconds(args.repairs.rank_return),
        node_loss: args.repairs.node_loss,
        work: seconds(args.work),
    })
}

fn show(args: &Args) -> Result<bool, String> {
    let fleet = fleet(args)?;
    let all = forecasts(&fleet, &args.nodes, args.replicas, args.seed);
    let lines = assumptions(&fleet, args);
    for line in &lines {
        print_line!("{line}");
    }
    print_table(&all);
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
             {}, shrink {}, spare {} (+ {} a doubling)",
            duration(costs.restart),
            duration(costs.resident_restart),
            duration(costs.start_per_doubling),
            duration(costs.respawn),
            duration(costs.shrink),
            duration(costs.spare),
            duration(costs.per_doubling)
        ),
        format!(
            "a step {}, a checkpoint {}, a run {}; {} spares; {} runs a line, seed {}; the loss \
             of a node {}",
            duration(fleet.step),
            duration(fleet.checkpoint_cost),
            duration(fleet.work),
            format_args!("{} %", args.repairs.spares),
            args.replicas,
            args.seed,
            match fleet.node_loss {
                NodeLoss::Live => "is repaired live",
                NodeLoss::Restart => "ends mpirun: resident restart",
            }
        ),
    ]
}

fn print_table(all: &[Forecast]) {
    print_line!(
        "\n{:>9}  {:<18} {:>10} {:>11} {:>10} {:>9} {:>10} {:>10} {:>11}",
        "nodes",
        "arm",
        "failures/d",
        "checkpoint",
        "goodput",
        "95 %",
        "formula",
        "difference",
        "first order"
    );
    for forecast in all {
        let percent = |value: f64| format!("{:.3}%", value * 100.0);
        let or_dash = |value: Option<f64>| value.map_or("-".to_string(), percent);
        print_line!(
            "{:>9}  {:<18} {:>10.2} {:>11} {:>10} {:>9} {:>10} {:>10} {:>11}{}",
            grouped(forecast.nodes as f64),
            name_of(&forecast.arm),
            forecast.failures_per_day,
            duration(forecast.checkpoint_every_seconds),
            percent(forecast.goodput),
            format!("±{}", percent(forecast.half_width)),
            or_dash(forecast.formula),
            forecast.difference.map_or("-".into(), |value| format!("{:+.3}%", value * 100.0)),
            or_dash(forecast.first_order),
            if forecast.agrees { "" } else { " !" }
        );
    }
    print_line!("");
}

fn compare(args: &Args, run: &Path) -> Result<bool, String> {
    let events = read_events(&run.join(EVENTS_FILE)).map_err(|error| error.to_string())?;
    let measured =
        against::measure(&events).map_err(|reason| format!("{}: {reason}", run.shown()))?;
    // A report of checkpoints alone says nothing of repairs.
    let (costs, repairs_measured) = costs(args)?;
    let given = Given {
        costs: repairs_measured.then_some(costs),
        mtbf: args.rank_mtbf.map(|mtbf| mtbf / f64::from(measured.ranks.max(1))),
    };
    let verdict = against::hold(&measured, given, args.replicas, args.seed);
    print_verdict(run, &measured, &verdict);
    if args.json {
        print_json(&serde_json::json!({
            "simulate": "fleet",
            "command": command_line(),
            "against": run,
            "run": measured,
            "verdict": verdict,
        }));
    }
    Ok(verdict.inside)
}

fn print_verdict(run: &Path, measured: &Measured, verdict: &Judgement) {
    let repairs: Vec<String> = measured
        .repairs
        .iter()
        .map(|(rung, each)| {
            let mean = each.iter().sum::<f64>() / each.len() as f64;
            format!("{} {rung} of {}", each.len(), duration(mean))
        })
        .collect();
    print_line!(
        "{}: {} ranks, {} steps of {} in {}; {} of evaluations left out; where nothing fails, \
         {:.2} % of the time goes into steps",
        run.shown(),
        measured.ranks,
        measured.steps,
        duration(measured.step_seconds),
        duration(measured.seconds),
        duration(measured.evaluation_seconds),
        measured.pace * 100.0
    );
    print_line!(
        "{} failures ({}), {} steps lost; the forecast's runs have {:.1}",
        measured.failures(),
        repairs.join(", "),
        measured.lost_steps,
        verdict.failures
    );
    print_line!(
        "goodput: measured {:.2} %, forecast {:.2} %, 95 of 100 runs between {:.2} % and {:.2} %: \
         {}",
        verdict.measured * 100.0,
        verdict.forecast * 100.0,
        verdict.runs[0] * 100.0,
        verdict.runs[1] * 100.0,
        if verdict.inside { "within" } else { "outside" }
    );
}
