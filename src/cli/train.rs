//! `kintsugi train`: one rank's program; alone it is a world of one.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::config::{identity, parse};
use crate::train::{TrainArguments, run as run_rank};

/// One rank's program; alone it is a world of one.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The configuration
    config: PathBuf,
    /// Overrides a key, for example `-s train.steps=100`
    #[arg(short = 's', value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Where the run lives; default: `runs/NAME-HASH`
    #[arg(long)]
    run_dir: Option<PathBuf>,
    /// Of a replacement: what the survivors' leader tells it
    #[arg(long, hide = true)]
    join: Option<String>,
    /// Under `launch`: this start of mpirun
    #[arg(long, hide = true)]
    attempt: Option<u32>,
    /// Under `launch`: unix time at which the run's seconds were zero
    #[arg(long, hide = true)]
    origin: Option<f64>,
    /// Under `launch`: the supervisor draws progress
    #[arg(long, hide = true)]
    launched: bool,
}

/// Runs it.
pub fn run(args: &Args) -> ExitCode {
    let config = match parse::load(&args.config, &args.overrides) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    let run_dir = args.run_dir.clone().unwrap_or_else(|| identity::run_directory(&config));
    run_rank(&TrainArguments {
        config,
        run_dir,
        join: args.join.clone(),
        attempt: args.attempt,
        origin: args.origin,
        launched: args.launched,
    })
}
