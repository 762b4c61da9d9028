//! `kintsugi train`: one rank's program. Under mpirun it is one of many; alone, a world of one.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::cluster::comm::mpi::environment::{self, Start};
use crate::cluster::comm::mpi::under_mpirun;
use crate::config::parse::{self, Loaded};
use crate::config::{Config, ConfigError, Shown, check_measured, paths, resolve_owners};
use crate::data::staging::apart;
use crate::launch::LaunchError;
use crate::launch::start::claim::there_is_data;
use crate::launch::start::device;
use crate::launch::start::run_dir::{Owners, RunDir};
use crate::observe::console::say;
use crate::observe::panics::{self, vital};
use crate::observe::result::Status;
use crate::run_folder::before::Before;
use crate::run_folder::{self, launcher};
use crate::train::plan::TrainArguments;
use crate::train::start::fixed::fix;
use crate::train::start::run as run_rank;

use super::arguments::{fail, refuse_copies};

/// The code of a configuration that is refused.
const REFUSED: u8 = 2;

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
    let one_world = !args.launched && args.join.is_none() && launcher::place().is_none();
    if let Some(code) = one_world.then(refuse_copies).flatten() {
        return code;
    }
    if !args.launched {
        environment::complete(match args.join {
            Some(_) => Start::Replaces,
            None => Start::Begins,
        });
    }
    let mut config = match configuration(args) {
        Ok(config) => config,
        Err(error) => return fail(REFUSED, error),
    };
    let usual = || run_folder::usual(&config);
    let run_dir = match args.run_dir.clone().map_or_else(usual, Ok) {
        Ok(folder) => folder,
        Err(error) => return fail(REFUSED, error),
    };
    // After the folder was named: where a command is given does not make it another run.
    if let Err(error) = paths::resolve(&mut config) {
        return fail(REFUSED, error);
    }
    let absolute = std::path::absolute(&run_dir).unwrap_or_else(|_| run_dir.clone());
    if let Some(reason) = run_folder::refusal_of_name(&absolute) {
        return fail(REFUSED, reason);
    }
    if !args.launched
        && args.join.is_none()
        && let Err((code, error)) = begin_or_go_on(args, &mut config, &absolute)
    {
        return fail(code, error);
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
    alone(&arguments, &absolute)
}

/// A world of one. A start that is refused leaves the run's folder as it was.
fn alone(arguments: &TrainArguments, run_dir: &Path) -> ExitCode {
    // What cannot be read is told by whoever needs it.
    let before = Before::of(run_dir);
    let code = run_rank(arguments);
    let of_data = ExitCode::from(Status::DataError.exit_code());
    let refused = |before: &Before| {
        code == of_data && before.had_completed() || code == ExitCode::from(REFUSED)
    };
    if let Ok(before) = before
        && refused(&before)
        && let Err(error) = before.put_back()
    {
        say!("warning: {} is not all that it was: {error}", run_dir.shown());
    }
    code
}

/// What a supervisor else sees to: what lies apart, what the run has fixed, which weights it begins
/// with. Its folder gets a configuration after every rank has looked.
fn begin_or_go_on(args: &Args, config: &mut Config, run_dir: &Path) -> Result<(), (u8, String)> {
    let refused = |reason: String| (REFUSED, reason);
    if let Some(reason) = apart::refusal(config, run_dir) {
        return Err(refused(reason));
    }
    let asked = parse::read(&args.config, &args.set).map_err(|error| refused(error.to_string()))?;
    let owners = match asked.train.owners {
        Some(_) => Owners::Asked,
        None => Owners::Unasked,
    };
    let said = |error: LaunchError| refused(error.to_string());
    let run = RunDir::at(run_dir).map_err(said)?;
    if let Some(old) = run.go_on_with(config, owners).map_err(said)? {
        return run.go_on(&old, config).map(drop).map_err(said);
    }
    let no_card = device::settle(config, None);
    no_card.iter().filter(|_| is_first()).for_each(|remark| say!("warning: {remark}"));
    fix(&mut config.model).map_err(refused)?;
    there_is_data(config).map_err(|error| (error.exit_code(), error.to_string()))
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

fn is_first() -> bool {
    launcher::place().and_then(|place| place.rank).unwrap_or(0) == 0
}

/// What somebody typed; the first rank says what there is to say of it.
fn typed(file: &Path, overrides: &[String]) -> Result<Config, ConfigError> {
    let Loaded { config, remarks } = parse::loaded(file, overrides)?;
    check_measured(&config)?;
    remarks.iter().filter(|_| is_first()).for_each(|remark| say!("warning: {remark}"));
    Ok(config)
}
