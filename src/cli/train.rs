//! `kintsugi train`: one rank's program. Under mpirun it is one of many; alone, a world of one.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::cluster::comm::mpi::under_mpirun;
use crate::config::parse::Loaded;
use crate::config::{Config, ConfigError, Shown, identity, parse, paths, resolve_owners};
use crate::observe::console::say;
use crate::observe::panics::{self, vital};
use crate::observe::refusal::{self, Meaning};
use crate::observe::result::Status;
use crate::run_folder::{self, launcher};
use crate::train::checkpoint::weights;
use crate::train::plan::TrainArguments;
use crate::train::run as run_rank;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run's configuration (TOML)
    config: PathBuf,
    /// Overrides one key of the configuration: section.key=value
    #[arg(short = 's', long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Where the run lives [default: runs/NAME-HASH, from the configuration]
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// What the leader of the survivors tells a replacement
    #[arg(long, hide = true)]
    join: Option<String>,
    /// Which start of mpirun this is
    #[arg(long, hide = true)]
    attempt: Option<u32>,
    /// Unix time at which the run's seconds were zero
    #[arg(long, hide = true)]
    origin: Option<f64>,
    /// Ranks of this start, where they are not as many as the run began with
    #[arg(long, hide = true)]
    ranks: Option<u32>,
    /// The network between the world's nodes is measured before its first step
    #[arg(long, hide = true)]
    measure_network: bool,
    /// No guardian watches this rank, for `bench calm`
    #[arg(long, hide = true)]
    unguarded: bool,
    /// A supervisor draws progress and keeps the logs
    #[arg(long, hide = true)]
    launched: bool,
}

/// Reads the configuration and runs the rank.
pub fn run(args: &Args) -> ExitCode {
    let refuse = |error: &dyn std::fmt::Display| {
        say!("error: {error}");
        ExitCode::from(2)
    };
    let mut config = match configuration(args) {
        Ok(config) => config,
        Err(error) => return refuse(&error),
    };
    let run_dir = args.run_dir.clone().unwrap_or_else(|| identity::run_directory(&config));
    // After the folder was named: where a command is given does not make it another run.
    if let Err(error) = paths::resolve(&mut config) {
        return refuse(&error);
    }
    if !args.launched {
        match begun_with(&run_dir) {
            Ok(Begun::With(mut old)) => identity::keep_sums(&mut config, &mut old),
            Ok(Begun::Not | Begun::OfAnotherVersion) => {}
            Err(error) => return refuse(&error),
        }
    }
    let absolute = std::path::absolute(&run_dir).unwrap_or_else(|_| run_dir.clone());
    if let Some(reason) = run_folder::refusal_of_name(&absolute) {
        return refuse(&reason);
    }
    if !args.launched
        && args.join.is_none()
        && let Err(error) = name_weights(&mut config, &run_dir)
    {
        return refuse(&error);
    }
    let arguments = TrainArguments {
        config,
        run_dir,
        join: args.join.clone(),
        attempt: args.attempt,
        origin: args.origin,
        launched: args.launched,
        measure_network: args.measure_network,
        guarded: !args.unguarded,
    };
    if under_mpirun() {
        // The others notice a death by a signal at once, and an exit with a code late or never.
        return vital(|| run_rank(&arguments));
    }
    panics::end_with_code(Status::InternalError.exit_code());
    run_rank(&arguments)
}

/// Which weights a run begins with, or has begun with: what a supervisor else sees to. Its folder
/// gets a configuration after every rank has looked.
fn name_weights(config: &mut Config, run_dir: &Path) -> Result<(), String> {
    match begun_with(run_dir)? {
        Begun::Not => {
            weights::name(&mut config.model).map_err(|error| format!("model.init: {error}"))?;
        }
        Begun::With(begun) => config.model.go_on_from(&begun.model),
        Begun::OfAnotherVersion => {}
    }
    Ok(())
}

/// What a run directory says of the run's start.
enum Begun {
    /// There is no run.
    Not,
    /// Its configuration.
    With(Box<Config>),
    /// One that says nothing here.
    OfAnotherVersion,
}

/// What cannot be read now is none of them: a run would begin anew over one that has begun.
fn begun_with(run_dir: &Path) -> Result<Begun, String> {
    match parse::read(&run_dir.join("config.toml"), &[]) {
        Ok(config) => Ok(Begun::With(Box::new(config))),
        Err(ConfigError::Read { path, source }) => match Meaning::of(&source) {
            Meaning::Absent => Ok(Begun::Not),
            Meaning::Damaged => Ok(Begun::OfAnotherVersion),
            Meaning::NotNow | Meaning::NotAllowed => {
                Err(format!("{}: {source}{}", path.shown(), refusal::advice(&source)))
            }
        },
        Err(_) => Ok(Begun::OfAnotherVersion),
    }
}

/// Under a plain mpirun the world is as large as mpirun made it, and alone it is one.
fn configuration(args: &Args) -> Result<Config, ConfigError> {
    let mut overrides = args.set.clone();
    if !args.launched && args.join.is_none() {
        let spares = parse::read(&args.config, &overrides)?.recovery.spares.unwrap_or(0);
        let size = launcher::place().and_then(|place| place.size);
        let ranks = size.unwrap_or(1).saturating_sub(spares).max(1);
        overrides.push(format!("run.ranks={ranks}"));
    }
    let mut config = match args.launched || args.join.is_some() {
        // `launch`, or the first rank, has looked at what was typed.
        true => parse::of_run(&args.config, &overrides)?,
        false => typed(&args.config, &overrides)?,
    };
    if let Some(ranks) = args.ranks {
        // After the checks: planned faults of ranks that are not there strike nobody.
        config.train.owners = Some(resolve_owners(&config));
        config.run.ranks = ranks;
    }
    Ok(config)
}

/// What somebody typed; the first rank says what there is to say of it.
fn typed(file: &Path, overrides: &[String]) -> Result<Config, ConfigError> {
    let Loaded { config, remarks } = parse::loaded(file, overrides)?;
    let is_first = launcher::place().and_then(|place| place.rank).unwrap_or(0) == 0;
    remarks.iter().filter(|_| is_first).for_each(|remark| say!("warning: {remark}"));
    Ok(config)
}
