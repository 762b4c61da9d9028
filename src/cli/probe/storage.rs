//! `kintsugi probe storage CONFIG`: how fast the storage of a training set is; or load on it, so
//! that contention can be made anywhere.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::ArgAction;

use crate::config::{Config, parse, paths};
use crate::data::Split;
use crate::data::set::open::open;
use crate::lab::storage::{self, Limits, Speed};
use crate::observe::console::print_line;

use super::super::arguments::{Form, asked_to_stop, crowd, fail, form, print_json};

/// Most bytes of a look at the storage.
const BYTES_MAX: u64 = 256 << 20;

/// Reads a training set and says how fast its storage is, or loads it
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The configuration whose set and whose data.throttle it is
    config: PathBuf,
    /// Overrides one key of the configuration: section.key=value
    #[arg(short = 's', long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Takes from the emulated storage of data.throttle all that it can get, beside whoever reads
    #[arg(long)]
    noise: bool,
    /// Readers that the noise stands for
    #[arg(long, default_value_t = 1, requires = "noise", value_parser = crowd)]
    readers: usize,
    /// Ends after so long; Ctrl-C ends it earlier
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// One JSON object
    #[arg(long, action = ArgAction::SetTrue, value_parser = form())]
    json: Form,
}

/// 0; 1: the storage cannot be read; 2: the configuration is refused, or throttles nothing that
/// noise could be made on; 3: the set cannot be used.
pub fn run(args: &Args) -> ExitCode {
    let mut config = match parse::load(&args.config, &args.set) {
        Ok(config) => config,
        Err(error) => return fail(2, error),
    };
    if let Err(error) = paths::resolve(&mut config) {
        return fail(2, error);
    }
    let limit = Duration::from_secs(args.seconds);
    let speed = match args.noise {
        true => noise(args, &config, limit),
        false => match open(&config.data, Split::Train, config.run.seed) {
            Ok(set) => storage::read_set(&set, Limits { bytes: BYTES_MAX, time: limit })
                .map_err(|reason| fail(1, reason)),
            Err(error) => Err(fail(3, error)),
        },
    };
    match (speed, args.json) {
        (Ok(speed), Form::Json) => print_json(&speed),
        (Ok(speed), Form::Table) => print_line!("{}", speed.line()),
        (Err(code), _) => return code,
    }
    ExitCode::SUCCESS
}

fn noise(args: &Args, config: &Config, limit: Duration) -> Result<Speed, ExitCode> {
    let stop = asked_to_stop().map_err(|error| fail(1, error))?;
    storage::noise(&config.data, args.readers, limit, &stop).map_err(|reason| fail(2, reason))
}
