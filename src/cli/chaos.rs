//! `kintsugi chaos RUN`: kills random ranks of a running run, see `lab::chaos`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use kintsugi_ffi::os::Signal;

use super::arguments::fail;
use crate::config::{Shown, Span};
use crate::lab::chaos::schedule::{Blows, Spares, Targets};
use crate::lab::chaos::{Outcome, Storm, rage};
use crate::observe::console::tell;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run directory
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// The same seed strikes the same ranks at the same moments
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Mean seconds between two blows
    #[arg(long, value_name = "SECONDS", default_value_t = 20.0)]
    mtbf: f64,
    /// Ends after this time, for example 10min [default: when the run ends]
    #[arg(long, value_name = "TIME")]
    duration: Option<Span>,
    /// Ends after so many blows
    #[arg(long, value_name = "N")]
    kills: Option<u64>,
    /// Strikes only these ranks
    #[arg(long, value_name = "RANK,...", value_delimiter = ',')]
    ranks: Vec<u32>,
    /// Strikes waiting spares too
    #[arg(long)]
    spares: bool,
    /// What they are struck with
    #[arg(long, value_enum, default_value_t = Weapon::Kill)]
    signal: Weapon,
    /// Prints the moments and strikes nobody
    #[arg(long)]
    dry_run: bool,
}

/// What a victim is struck with.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Weapon {
    /// SIGKILL: dead at once
    Kill,
    /// SIGSTOP: silent, until its guardian kills it
    Stop,
}

/// About 30 years.
const SECONDS_MAX: f64 = 1e9;

/// Moments that a dry run prints when nothing bounds them.
const DRY_RUN_BLOWS: usize = 20;

/// Rages, or says when it would.
pub fn run(args: &Args) -> ExitCode {
    if !(args.mtbf > 0.0 && args.mtbf <= SECONDS_MAX) {
        let wanted = format!("write a number of seconds above 0, up to {SECONDS_MAX}");
        return fail(2, format!("--mtbf {}: {wanted}", args.mtbf));
    }
    // It may stand ready before the run has written anything.
    if !args.run.is_dir() {
        let run = args.run.shown();
        let reason = format!("{run} is no run directory: name the folder that `launch` printed");
        return fail(2, reason);
    }
    let storm = storm(args);
    if args.dry_run {
        dry_run(&storm);
        return ExitCode::SUCCESS;
    }
    match rage(&args.run, &storm, &mut |line| print(&line)) {
        Ok(Outcome { struck, missed }) => {
            print(&format!("{struck} struck, {missed} blows found nobody"));
            ExitCode::SUCCESS
        }
        Err(error) => fail(error.exit_code(), error),
    }
}

fn storm(args: &Args) -> Storm {
    let spares = if args.spares { Spares::Struck } else { Spares::Left };
    Storm {
        seed: args.seed,
        mean: Duration::from_secs_f64(args.mtbf),
        duration: args.duration.map(|span| span.0),
        blows: args.kills,
        targets: Targets { ranks: args.ranks.clone(), spares },
        signal: match args.signal {
            Weapon::Kill => Signal::Kill,
            Weapon::Stop => Signal::Stop,
        },
    }
}

fn dry_run(storm: &Storm) {
    let bounded = storm.blows.map_or(DRY_RUN_BLOWS, |n| usize::try_from(n).unwrap_or(usize::MAX));
    let blows = Blows::new(storm.mean, storm.seed).take(bounded);
    for blow in blows.take_while(|blow| storm.duration.is_none_or(|limit| blow.at <= limit)) {
        print(&format!("{:8.1} s  blow {}", blow.at.as_secs_f64(), blow.number));
    }
}

/// A closed stdout must not end a storm.
fn print(text: &str) {
    tell!("{text}");
}
