//! `kintsugi experiment EXPERIMENT`: arms x seeds under one schedule of failures, then
//! `results.json`, `report.html` and a table.

use std::path::PathBuf;
use std::process::ExitCode;

use signal_hook::iterator::Signals;

use super::arguments::fail;
use crate::config::Shown;
use crate::lab::experiment::place::Place;
use crate::lab::experiment::plan::{Changes, Experiment, PlannedRun};
use crate::lab::experiment::results::{Index, REPORT_FILE};
use crate::lab::experiment::room::Room;
use crate::lab::experiment::runner::{Made, Runner, signals};
use crate::lab::memory::file::Study;
use crate::lab::memory::make::make;
use crate::lab::memory::part::Frame;
use crate::lab::report::command_line;
use crate::lab::report::svg::unescaped;
use crate::observe::console::{self, print_line, say};
use crate::observe::machine::machine;
use crate::observe::result::Status;

/// Compares ways to survive failures: runs every arm, draws one report. Of a file of measures
/// (configs/experiment/memory-*.toml): does them, and draws theirs.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The experiment file (configs/experiment/*.toml).
    pub experiment: PathBuf,
    /// Where runs, results.json and report.html go; a run that is complete there is kept.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    changes: Changes,
}

/// Runs it. Exit 0: every run is complete; 1: some are not; 2: nothing was started; 85: stopped.
pub fn run(args: &Args) -> ExitCode {
    match conduct(args) {
        Ok(code) => code,
        Err(Failure::Usage(message)) => fail(2, message),
        Err(Failure::Broken(error)) => fail(Status::InternalError.exit_code(), error),
    }
}

enum Failure {
    Usage(String),
    Broken(std::io::Error),
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Broken(error)
    }
}

fn conduct(args: &Args) -> Result<ExitCode, Failure> {
    let changes = &args.changes;
    if let Some((study, text)) = Study::load(&args.experiment).map_err(Failure::Usage)? {
        return measure(args, &study, &text);
    }
    let (experiment, text) = Experiment::load(&args.experiment).map_err(Failure::Usage)?;
    let experiment = experiment.with(changes).map_err(Failure::Usage)?;
    let plan = experiment.plan(changes);
    let out = out(args);
    let _place = Place::take(&out)?.map_err(Failure::Usage)?;
    let runner = Runner {
        program: std::env::current_exe()?,
        out,
        seconds: experiment.seconds,
        config: experiment.config.clone(),
    };
    for run in plan.iter().filter(|run| run.seed == plan[0].seed) {
        if let Some(refusal) = runner.refuses(run)? {
            return Err(Failure::Usage(format!("arm {}: {refusal}", run.arm)));
        }
    }
    if let Some(bytes) = plan.iter().find_map(|run| run.page_cache) {
        // Said before anything starts.
        Room::make(bytes.0).and_then(Room::give_up).map_err(Failure::Usage)?;
    }
    let minutes = experiment.seconds * plan.len() as f64 / 60.0;
    say!("{} runs of {} s, about {minutes:.0} min", plan.len(), experiment.seconds);
    let index = Index::new(&experiment, &text, command_line());
    let mut signals = signals()?;
    for run in &plan {
        if runner.is_missing(run)? {
            say!("warming up: one step, so that no arm pays for making data");
            let made = runner.warm_up(&experiment.warm_up(changes), &mut signals)?;
            if made == Made::Interrupted {
                return Ok(ExitCode::from(Status::Interrupted.exit_code()));
            }
            break;
        }
    }
    make_all(&runner, &plan, index, &mut signals)
}

/// Where everything goes.
fn out(args: &Args) -> PathBuf {
    let stem = args.experiment.file_stem().unwrap_or_default();
    args.out.clone().unwrap_or_else(|| PathBuf::from("runs").join(stem))
}

/// Does the measures of a file.
fn measure(args: &Args, study: &Study, text: &str) -> Result<ExitCode, Failure> {
    if args.changes != Changes::default() {
        let reason = "--set, --seeds, --seconds: of runs, and this file has measures: change it";
        return Err(Failure::Usage(reason.into()));
    }
    let out = out(args);
    let _place = Place::take(&out)?.map_err(Failure::Usage)?;
    let frame = Frame { study, text, command: &command_line(), machine: machine() };
    for part in make(&frame, &out).map_err(Failure::Usage)? {
        print_line!("{}. {}", part.title, part.source.words());
        for (table, _) in &part.tables {
            print_line!("{}", unescaped(&table.text()));
        }
    }
    print_line!("report: {}", out.join(REPORT_FILE).shown());
    Ok(ExitCode::SUCCESS)
}

fn make_all(
    runner: &Runner,
    plan: &[PlannedRun],
    mut index: Index,
    signals: &mut Signals,
) -> Result<ExitCode, Failure> {
    let mut failed = 0;
    let mut interrupted = false;
    for (number, run) in plan.iter().enumerate() {
        say!("[{}/{}] {}, seed {}", number + 1, plan.len(), run.arm, run.seed);
        let made = runner.make(run, signals)?;
        match made {
            Made::Completed => {}
            Made::Kept => say!("  complete already: kept"),
            Made::Failed(code) => {
                failed += 1;
                let code = code.map_or("a signal".into(), |code| format!("exit code {code}"));
                let folder = runner.folder(run).shown();
                say!("  not complete ({code}): see {folder} and {folder}.log");
            }
            Made::Interrupted => interrupted = true,
        }
        if matches!(made, Made::Completed | Made::Kept) {
            index.add(run, runner.room_of(run));
            index.write(&runner.out)?;
        }
        if interrupted {
            break;
        }
    }
    if !index.runs.is_empty() {
        console::print_text(&index.table(&runner.out)?);
        print_line!("report: {}", runner.out.join(REPORT_FILE).shown());
    }
    Ok(match (interrupted, failed) {
        (true, _) => {
            say!("stopped; the same command goes on with the runs that are left");
            ExitCode::from(Status::Interrupted.exit_code())
        }
        (false, 0) => ExitCode::SUCCESS,
        (false, _) => ExitCode::from(1),
    })
}
