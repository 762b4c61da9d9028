//! `kintsugi simulate`: `cluster` plays schedules of failures over simulated processes, time and
//! disks, and says whether every run ended as promised; `fleet` forecasts goodput; `cache` says how
//! often caches miss; `unified-memory` plays a card's managed memory.

use std::process::ExitCode;
use std::time::Instant;

use super::arguments::{fail, print_json};
use crate::lab::simulate::{self, Exchange, Failed, Rule, Schedules, Shown, Tally};
use crate::observe::console::print_line;
use crate::observe::event::name_of;

mod cache;
mod fleet;
mod unified_memory;

/// Simulations.
#[derive(Debug, clap::Subcommand)]
pub enum Args {
    /// Runs whole runs under drawn failures, one a seed, and checks how each ends
    Cluster(Cluster),
    /// Forecasts the goodput of large fleets under each way of surviving failures
    Fleet(Box<fleet::Args>),
    /// Says how often caches miss under the orders that training can take
    Cache(cache::Args),
    /// Plays what CUDA's unified memory does beyond a card's capacity; measures no card
    UnifiedMemory(unified_memory::Args),
}

/// Runs whole runs under drawn failures.
#[derive(Debug, clap::Args)]
pub struct Cluster {
    /// Schedules to play.
    #[arg(long, value_name = "N", default_value_t = 2000)]
    seeds: u64,
    /// The first one's seed.
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    first_seed: u64,
    /// Leave out these faults of a schedule, by their numbers in its list.
    #[arg(long, value_name = "FAULT,...", value_delimiter = ',')]
    without: Vec<usize>,
    /// Print one line per event; for one seed.
    #[arg(long)]
    trace: bool,
    /// One JSON object as the last line.
    #[arg(long)]
    json: bool,
    /// Threads that play [default: one a core].
    #[arg(long, value_name = "N", value_parser = super::arguments::crowd)]
    threads: Option<usize>,
    /// A rule to be found wrong.
    #[arg(long, value_enum, default_value_t, hide = true)]
    rule: Rule,
}

/// Runs it.
pub fn run(args: &Args) -> ExitCode {
    match args {
        Args::Cluster(cluster) => run_cluster(cluster),
        Args::Fleet(fleet) => fleet::run(fleet),
        Args::Cache(cache) => cache::run(cache),
        Args::UnifiedMemory(unified) => unified_memory::run(unified),
    }
}

/// Exit 0: every schedule ended as promised; 1: one did not.
fn run_cluster(cluster: &Cluster) -> ExitCode {
    if cluster.trace && cluster.seeds != 1 {
        return fail(2, "--trace shows one schedule: add --seeds 1");
    }
    if cluster.trace {
        let shown = simulate::show(cluster.first_seed, &cluster.without, cluster.rule);
        print_shown(&shown);
        if cluster.json {
            let failed = u64::from(shown.failure.is_some());
            print_counts(cluster, 1, [failed, 0]);
        }
        return ExitCode::from(u8::from(shown.failure.is_some()));
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let schedules = Schedules {
        first_seed: cluster.first_seed,
        seeds: cluster.seeds,
        without: cluster.without.clone(),
        rule: cluster.rule,
        exchange: Exchange::Drawn,
        threads: cluster.threads.unwrap_or(cores),
    };
    let begun = Instant::now();
    let tally = simulate::play_all(&schedules, &|_| {});
    for failed in &tally.failed {
        print_line!("{}", describe(failed, cluster.rule));
    }
    if cluster.json {
        print_counts(cluster, tally.schedules, [tally.wrong, tally.stuck]);
    } else {
        print_tally(&tally, begun.elapsed().as_secs_f64());
    }
    ExitCode::from(u8::from(tally.wrong + tally.stuck > 0))
}

fn print_counts(cluster: &Cluster, schedules: u64, [wrong, stuck]: [u64; 2]) {
    let first_seed = cluster.first_seed;
    print_json(&serde_json::json!({
        "schedules": schedules, "wrong": wrong, "stuck": stuck, "first_seed": first_seed,
    }));
}

fn print_tally(tally: &Tally, seconds: f64) {
    let ends: Vec<String> =
        tally.ends.iter().map(|(name, number)| format!("{number} {name}")).collect();
    print_line!(
        "{} schedules ({} of them asynchronous) in {seconds:.1} s: {} wrong, {} stuck",
        tally.schedules,
        tally.asynchronous,
        tally.wrong,
        tally.stuck
    );
    print_line!(
        "{} deaths, {} repairs, {} starts of the world, {} of them from memory, {} files copied to \
         nodes; ended: {}",
        tally.deaths,
        tally.recoveries,
        tally.attempts,
        tally.resident_starts,
        tally.copies,
        ends.join(", ")
    );
}

/// A failure, and the command that shows the shortest schedule that still fails.
fn describe(failed: &Failed, rule: Rule) -> String {
    let Failed { seed, failure, without, minimal, faults } = failed;
    let mut replay = format!("kintsugi simulate cluster --seeds 1 --first-seed {seed} --trace");
    if !without.is_empty() {
        let numbers: Vec<String> = without.iter().map(ToString::to_string).collect();
        replay.push_str(&format!(" --without {}", numbers.join(",")));
    }
    match rule {
        Rule::Vote => {}
        Rule::LocalSuccess => replay.push_str(" --rule local-success"),
        Rule::VoteWithoutRevoke => replay.push_str(" --rule vote-without-revoke"),
        Rule::Forgetful => replay.push_str(" --rule forgetful"),
        Rule::Believing => replay.push_str(" --rule believing"),
    }
    let faults: Vec<String> = faults.iter().map(|fault| format!("    {fault:?}")).collect();
    format!(
        "seed {seed}: {failure}\n  with fewer faults: {minimal}\n{}\n  replay: {replay}",
        faults.join("\n")
    )
}

fn print_shown(shown: &Shown) {
    let config = &shown.scenario.config;
    print_line!(
        "{}, {} ranks, {:?} owners, seed {}, checkpoint {} keep {}, evaluation {}, ladder {:?}, \
         state {}",
        name_of(&config.train.exchange),
        config.run.ranks,
        config.train.owners.unwrap_or_default(),
        config.run.seed,
        config.checkpoint.every,
        config.checkpoint.keep,
        config.evaluation.every,
        config.recovery.rungs(),
        if shown.scenario.in_file { "outlives the ranks" } else { "dies with the ranks" }
    );
    if let Some(plane) = &shown.scenario.plane {
        print_line!(
            "data: {plane:?}, staging {:?}, cache {} ({:?}), bundles {} of the samples",
            config.staging.mode,
            config.data.cache,
            config.data.cache_policy,
            config.data.bundle_ratio
        );
    }
    for fault in &shown.scenario.faults {
        print_line!("fault: {fault:?}");
    }
    for line in &shown.trace {
        print_line!("{line}");
    }
    match &shown.failure {
        Some(failure) => print_line!("{}: {failure}", shown.end),
        None => print_line!("{}: as promised", shown.end),
    }
}
