//! `kintsugi launch`: starts the ranks under mpirun, shows their progress, and ends with the code
//! that says how the run ended.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::ArgAction;
use serde::Serialize;

use crate::config::parse::{self, Loaded};
use crate::config::{ConfigError, Shown};
use crate::lab::experiment::results::REPORT_FILE;
use crate::launch::limits::Limits;
use crate::launch::machine::logout::Chosen;
use crate::launch::start::beginning::{self, Begun, Wish};
use crate::launch::start::beside::{self, Beside};
use crate::launch::start::claim::{self, Claimed, Past};
use crate::launch::start::former;
use crate::launch::start::job::Job;
use crate::launch::start::opening;
use crate::launch::start::run_dir::{Owners, RunDir};
use crate::launch::stops::Stops;
use crate::launch::{LaunchError, supervisor};
use crate::observe::console::{self, print_line, say, tell};
use crate::observe::event::name_of;
use crate::observe::log::EVENTS_FILE;
use crate::observe::metrics::Metrics;
use crate::observe::panics;
use crate::observe::progress::Progress;
use crate::observe::result::{BadImages, RunResult, Status};
use crate::observe::tensorboard::Tensorboard;
use crate::run_folder;
use crate::run_folder::before::Before;
use crate::run_folder::lock::RunLock;
use crate::train::start::fixed::fix;

use super::arguments::{Form, fail, form, refuse_copies};

mod check;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run's configuration (TOML)
    config: PathBuf,
    /// Ranks to start [default: run.ranks]
    #[arg(short = 'n', long, value_name = "RANKS")]
    ranks: Option<u32>,
    /// Waiting processes per node that replace dead ranks [default: recovery.spares]
    #[arg(long, value_name = "S")]
    spares: Option<u32>,
    /// Overrides one key of the configuration: section.key=value
    #[arg(short = 's', long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Where the run lives; one that is there goes on [default: runs/NAME-HASH, from the
    /// configuration]
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// Starts anew: a run that is there is moved aside
    #[arg(long)]
    fresh: bool,
    /// Nodes of the allocation that wait until another one dies
    #[arg(long, value_name = "NODES", default_value_t = 0)]
    spare_nodes: u32,
    /// With fewer living nodes the run ends (exit code 75), to be requeued
    #[arg(long, value_name = "NODES", default_value_t = 1)]
    min_nodes: u32,
    /// Begins a new run, of as many epochs as it says, with this one's newest weights, as
    /// model.init does
    #[arg(long, value_name = "RUN")]
    extend: Option<PathBuf>,
    /// Prints the mpirun line and starts nothing
    #[arg(long)]
    dry_run: bool,
    /// Says what can be known of the start (data, model, room, processors), ends as it would where
    /// it would be refused, and starts nothing
    #[arg(long, conflicts_with = "dry_run")]
    check: bool,
    /// One JSON object on the last line of stdout: the run's folder and its result
    #[arg(long, action = ArgAction::SetTrue, value_parser = form())]
    #[arg(conflicts_with_all = ["dry_run", "check"])]
    json: Form,
}

/// A run that has ended, for programs.
#[derive(Serialize)]
struct Ended<'a> {
    run: String,
    #[serde(flatten)]
    result: &'a RunResult,
}

/// Launches and waits.
pub fn run(args: &Args) -> ExitCode {
    panics::end_with_code(Status::InternalError.exit_code());
    if let Some(code) = refuse_copies() {
        return code;
    }
    if args.check {
        let begun = begin(args);
        let beside =
            begun.as_ref().ok().and_then(|(begun, owners)| note(args, &begun.job, *owners));
        beside.iter().for_each(|text| say!("warning: {text}"));
        return check::run(begun, past(args));
    }
    match launch(args) {
        // The line is what was asked for.
        Ok(status) if args.dry_run => console::conclude(ExitCode::from(status.exit_code())),
        Ok(status) => ExitCode::from(status.exit_code()),
        Err(error) => fail(error.exit_code(), error),
    }
}

fn launch(args: &Args) -> Result<Status, LaunchError> {
    let (Begun { mut job, limits, folder, remarks }, owners) = begin(args)?;
    if args.dry_run {
        print_line!("{}", beginning::command_line(&job)?);
        return Ok(Status::Completed);
    }
    beginning::check_machine(&job)?;
    print(&format!("run directory: {}", folder.shown()));
    let beside = note(args, &job, owners);
    // Before the run is ours: who takes it over asks by a signal.
    let mut stops = Stops::listen()?;
    let mut tell = |text: &str| say!("{text}");
    match claim::claim(&mut job, owners, past(args), &fix, &mut stops, &mut tell)? {
        Claimed::Completed(result) => {
            if let Err(error) = claim::clear_up(&job, &mut stops) {
                say!(
                    "warning: what the run left in memory on other nodes stays there ({error}); \
                     `kintsugi doctor --clear` on each clears it"
                );
            }
            // Its launch may not have lived to do so.
            if !job.run.join(REPORT_FILE).exists() {
                write_pages(&job.run, &mut Metrics::new(job.run.path()));
            }
            print("this run is complete (--fresh starts it anew)");
            let other = beside::other_data(job.run.path(), &job.config);
            other.iter().for_each(|text| say!("warning: {text}"));
            print_end(&result, &job.run, args);
            Ok(result.status)
        }
        Claimed::Ours(lock, before) => {
            let remarks = remarks.into_iter().chain(beside).chain(former::remark(&job));
            remarks.for_each(|text| say!("warning: {text}"));
            let result = supervise(&job, lock, &before, limits, stops)?;
            print_end(&result, &job.run, args);
            Ok(result.status)
        }
    }
}

/// What both a start and a look at it begin with.
fn begin(args: &Args) -> Result<(Begun, Owners), LaunchError> {
    refuse_extension(args)?;
    let overrides = overrides(args);
    let Loaded { config, remarks } = parse::loaded(&args.config, &overrides)?;
    remarks.iter().for_each(|remark| say!("warning: {remark}"));
    if let Some(run) = &args.extend
        && parse::names(&args.config, &args.set, "model", "init")?
    {
        let (file, run) = (args.config.shown(), run.shown());
        say!("model.init of {file} is not used: the run begins with the weights of {run}");
    }
    let (owners, wish) = (owners(args, &overrides)?, wish(args, &overrides)?);
    Ok((beginning::begin(config, wish)?, owners))
}

fn past(args: &Args) -> Past {
    if args.fresh { Past::MovesAside } else { Past::GoesOn }
}

/// What is to be extended is a run, and the only thing that gives weights.
fn refuse_extension(args: &Args) -> Result<(), LaunchError> {
    let Some(run) = &args.extend else { return Ok(()) };
    let refused = |reason| Err(LaunchError::Refused { reason });
    if let Err(error) = run_folder::find(run) {
        return refused(format!("--extend: {error}"));
    }
    if args.set.iter().any(|text| text.split('=').next().map(str::trim) == Some("model.init")) {
        let reason = "--extend and model.init both name first weights: leave one of them out";
        return refused(reason.into());
    }
    Ok(())
}

/// Of a run that begins although another one is there that may be meant, whose place nobody named.
fn note(args: &Args, job: &Job, owners: Owners) -> Option<String> {
    if args.run_dir.is_some()
        || args.extend.is_some()
        || args.fresh
        || run_folder::find(job.run.path()).is_ok()
    {
        return None;
    }
    Some(match beside::beside(job.run.path(), &job.config, owners)? {
        Beside::Unfinished(other, keys) => format!(
            "{0} has not completed, and differs only in what may change ({keys}): this is another \
             run, and begins from the start; --run-dir {0} goes on with that one",
            other.shown()
        ),
        Beside::OtherLength(other, differs) => format!(
            "{0} differs only in its length ({differs}), which its learning rate follows: this is \
             another run, and begins with first weights; --extend {0} begins with what that one \
             has learned",
            other.shown()
        ),
    })
}

fn owners(args: &Args, overrides: &[String]) -> Result<Owners, ConfigError> {
    Ok(match parse::read(&args.config, overrides)?.train.owners {
        Some(_) => Owners::Asked,
        None => Owners::Unasked,
    })
}

fn wish(args: &Args, overrides: &[String]) -> Result<Wish, ConfigError> {
    let resident_dir = match parse::names(&args.config, overrides, "recovery", "resident_dir")? {
        true => Chosen::ByUser,
        false => Chosen::ByNobody,
    };
    let Args { run_dir, spare_nodes, min_nodes, .. } = args;
    let (spare_nodes, min_nodes) = (*spare_nodes, *min_nodes);
    let (run_dir, past) = (run_dir.clone(), past(args));
    Ok(Wish { run_dir, resident_dir, spare_nodes, min_nodes, past })
}

/// Command-line options are overrides of the keys they stand for.
fn overrides(args: &Args) -> Vec<String> {
    let ranks = args.ranks.map(|ranks| format!("run.ranks={ranks}"));
    let spares = args.spares.map(|spares| format!("recovery.spares={spares}"));
    let extend = args.extend.as_ref().map(|run| {
        let run = toml::Value::String(run.to_string_lossy().into_owned());
        format!("model.init={run}")
    });
    args.set.iter().cloned().chain(ranks).chain(spares).chain(extend).collect()
}

fn supervise(
    job: &Job,
    lock: RunLock,
    before: &Before,
    limits: Limits,
    stops: Stops,
) -> Result<RunResult, LaunchError> {
    opening::lines(job, limits).iter().for_each(|line| say!("{line}"));
    let scarce = opening::scarce(job);
    let mut progress = Progress::new().max_seconds(job.config.train.max_seconds);
    let mut tensorboard =
        (job.config.observe.tensorboard).then(|| Tensorboard::new(job.run.path()).after_the_past());
    let mut metrics = Metrics::new(job.run.path());
    let result = supervisor::supervise(job, lock, before, &scarce, stops, &mut |event| {
        progress.on(event);
        metrics.on(event);
        if let Some(tensorboard) = &mut tensorboard {
            tensorboard.on(event);
        }
    });
    progress.finish();
    // A refusal leaves the folder as it was.
    if result.is_ok() {
        write_pages(&job.run, &mut metrics);
    }
    result
}

/// What is made of the events of a run that has ended.
fn write_pages(run: &RunDir, metrics: &mut Metrics) {
    metrics.finish();
    let begun = run.join(EVENTS_FILE).exists();
    if let Some(error) = begun.then(|| super::report::write_beside(run.path()).err()).flatten() {
        say!("warning: no report.html: {error}");
    }
}

fn print_end(result: &RunResult, run: &RunDir, args: &Args) {
    print(&match args.json {
        Form::Table => summary(result, run, past(args)),
        Form::Json => {
            let ended = Ended { run: run.path().shown(), result };
            serde_json::to_string(&ended).expect("a result is plain data")
        }
    });
}

/// What stdout says of a run that has ended.
fn summary(result: &RunResult, run: &RunDir, past: Past) -> String {
    let mut lines = vec![
        format!("{}: {}", name_of(&result.status), result.reason),
        format!(
            "{} steps, {} epochs, {} samples in {:.1} s; goodput {:.1} %",
            result.steps,
            result.epochs,
            result.samples,
            result.seconds,
            100.0 * result.goodput
        ),
    ];
    if result.status == Status::Interrupted {
        let but = if past == Past::MovesAside { " without --fresh" } else { "" };
        lines.push(format!("the same command{but} goes on with it"));
    }
    if let Some(validation) = result.validation {
        let (error, best) = (100.0 * validation.error, 100.0 * validation.best);
        lines.push(format!("validation error {error:.2} % (best {best:.2} %)"));
    }
    if let Some(best) = &result.best {
        let of = if best.averaged { ", of the running average" } else { "" };
        lines.push(format!(
            "best weights kept: of step {}, {:.2} %{of} (--best of evaluate, predict, export)",
            best.step,
            100.0 * best.error
        ));
        if result.validation.is_some_and(|validation| validation.best < best.error) {
            lines.push("those of a better evaluation could not be kept".into());
        }
    }
    let BadImages { train, validation } = result.bad_images;
    if train + validation > 0 {
        lines.push(format!(
            "bad images: {train} training samples in all epochs, {validation} of the last \
             evaluation's"
        ));
    }
    if result.zero_updates > 0 {
        let zero = result.zero_updates;
        lines.push(format!(
            "{zero} steps changed no weight: their sums were not finite, weights would be beyond \
             2^40, or no sample of them could be decoded"
        ));
    }
    if !(result.recoveries.is_empty() && result.restarts.is_empty()) {
        lines.push(super::status::repaired(run.path()).unwrap_or_else(|error| error.to_string()));
    }
    if let Some(hash) = &result.state_sha256 {
        lines.push(format!("state_sha256 {hash}"));
    }
    for what in [("result", "result.json"), ("report", "report.html")] {
        let file = run.join(what.1);
        if file.is_file() {
            lines.push(format!("{}: {}", what.0, file.shown()));
        }
    }
    lines.join("\n")
}

/// A closed stdout must not end a run.
fn print(text: &str) {
    tell!("{text}");
}
