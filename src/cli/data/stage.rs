//! `kintsugi data stage CONFIG`: copies the training set of a run to this node ahead of it, and
//! verifies the copies. The run that comes later copies nothing.

use std::cell::Cell;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use clap::ArgAction;
use indicatif::ProgressBar;
use serde::Serialize;

use crate::config::{Config, Shown, StagingMode, parse, paths};
use crate::data::sampler::Order;
use crate::data::set::DataSet;
use crate::data::set::open::open;
use crate::data::staging::ahead::{AheadError, Stage, stage};
use crate::data::staging::folder::Folder;
use crate::data::staging::{apart, place};
use crate::data::{DataError, Split};
use crate::launch::start::run_dir::RunDir;
use crate::observe::console::{errors_are_a_screen, print_line, say};
use crate::observe::result::Status;
use crate::observe::spans::amount;
use crate::run_folder;

use super::super::arguments::{Form, asked_to_stop, fail, form, print_json};
use super::report::{DATA_ERROR, bar};

/// Lines of progress come at most this often where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// Copies a run's training set to this node ahead of it and verifies the copies
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run's configuration (TOML)
    config: PathBuf,
    /// As `launch` is given it
    #[arg(short = 'n', long, value_name = "RANKS")]
    ranks: Option<u32>,
    /// Overrides one key of the configuration, as `launch` is given it: section.key=value
    #[arg(short = 's', long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Where the run will live, as `launch` is given it
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// Removes what was staged, and does no more
    #[arg(long)]
    remove: bool,
    /// One JSON object on stdout
    #[arg(long, action = ArgAction::SetTrue, value_parser = form())]
    json: Form,
}

/// What was done.
#[derive(Debug, Serialize)]
struct Report {
    folder: String,
    files: u64,
    bytes: u64,
    copied_bytes: u64,
    damaged: u64,
    seconds: f64,
}

/// 0: everything is there; 1: the folder cannot take it; 2: the configuration is refused, or stages
/// nothing; 3: files of the set cannot be read; 85: somebody asked to stop.
pub fn run(args: &Args) -> Result<ExitCode, DataError> {
    let refused = |text: &dyn std::fmt::Display| Ok(fail(2, text));
    let ranks = args.ranks.map(|ranks| format!("run.ranks={ranks}"));
    let overrides: Vec<String> = args.set.iter().cloned().chain(ranks).collect();
    let mut config = match parse::load(&args.config, &overrides) {
        Ok(config) => config,
        Err(error) => return refused(&error),
    };
    if config.staging.mode == StagingMode::None {
        return refused(
            &"staging.mode is \"none\": the run would not read the copies; write \"before\" or \
              \"during\" in its configuration",
        );
    }
    let usual = || run_folder::usual(&config);
    let folder = match args.run_dir.clone().map_or_else(usual, Ok) {
        Ok(folder) => folder,
        Err(error) => return refused(&error),
    };
    let run = match RunDir::at(&folder) {
        Ok(run) => run,
        Err(error) => return refused(&error),
    };
    if let Err(error) = paths::resolve(&mut config) {
        return refused(&error);
    }
    if let Some(reason) = apart::refusal(&config, run.path()) {
        return refused(&reason);
    }
    if args.remove {
        place::sweep(&config.staging, &run.id());
        say!("what was staged for {} is removed, unless a process uses it", folder.shown());
        return Ok(ExitCode::SUCCESS);
    }
    let stop = match asked_to_stop() {
        Ok(stop) => stop,
        Err(error) => return refused(&error),
    };
    let set = open(&config.data, Split::Train, config.run.seed)?;
    copy(&config, &set, &run.id(), args.json, &stop)
}

fn copy(
    config: &Config,
    set: &DataSet,
    run_id: &str,
    form: Form,
    stop: &AtomicBool,
) -> Result<ExitCode, DataError> {
    let order = Order::of(config, set.source.len())?;
    let root = place::folder(&config.staging, run_id, set.source.fingerprint());
    let folder = match Folder::open(&root) {
        Ok(folder) => Arc::new(folder),
        Err(error) => {
            let advice = place::remedy(&error);
            return Ok(fail(1, format!("{}: {error}; {advice}", root.shown())));
        }
    };
    let (begun, view) = (Instant::now(), View::new());
    let staged = stage(set, &order, &folder, &config.staging, stop, &|now| view.show(now));
    view.end();
    match staged {
        Ok(staged) => {
            let seconds = begun.elapsed().as_secs_f64();
            let (files, bytes) = (staged.files, staged.bytes);
            let (copied_bytes, damaged) = (staged.copied_bytes, staged.damaged);
            let folder = root.shown();
            print(&Report { folder, files, bytes, copied_bytes, damaged, seconds }, form);
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            let code = match error {
                AheadError::Interrupted => Status::Interrupted.exit_code(),
                AheadError::Folder(_) => 1,
                AheadError::Source(_) => DATA_ERROR,
            };
            Ok(fail(code, error))
        }
    }
}

fn print(report: &Report, form: Form) {
    if form == Form::Json {
        return print_json(report);
    }
    let Report { folder, files, bytes, copied_bytes, damaged, seconds } = report;
    print_line!(
        "{files} files, {}, lie in {folder} and hash as they were read; {} were copied now, \
         {damaged} damaged copies were made anew ({seconds:.1} s)",
        amount(*bytes),
        amount(*copied_bytes)
    );
}

/// A bar on a terminal, lines elsewhere.
struct View {
    bar: ProgressBar,
    due: Cell<Instant>,
    /// Bytes of the set.
    total: Cell<u64>,
}

impl View {
    fn new() -> Self {
        let due = Cell::new(Instant::now() + LINE_EVERY);
        Self { bar: bar(1, "staging"), due, total: Cell::new(0) }
    }

    fn show(&self, now: Stage) {
        let text = match now {
            Stage::Copies(copies) => {
                self.total.set(copies.bytes_total);
                self.bar.set_length(copies.bytes_total.max(1));
                self.bar.set_position(copies.bytes);
                copies.over(0).line()
            }
            Stage::Verified(bytes) => {
                self.bar.set_message("verifying");
                self.bar.set_position(bytes);
                format!("verified {} of {}", amount(bytes), amount(self.total.get()))
            }
        };
        if !errors_are_a_screen() && Instant::now() >= self.due.get() {
            self.due.set(Instant::now() + LINE_EVERY);
            say!("{text}");
        }
    }

    fn end(&self) {
        self.bar.finish_and_clear();
    }
}
