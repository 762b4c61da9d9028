//! `kintsugi runs [FOLDER] | compare A B | remove RUN...`: the runs of a folder at a glance, two of
//! them side by side, and their removal.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ArgAction;
use kintsugi_ffi::os;

use super::arguments::{Form, fail, form, print_json};
use super::status;
use crate::cluster::resident::Folder;
use crate::cluster::resident::folder::former_places;
use crate::config::{Config, Shown};
use crate::data::staging::place;
use crate::lab::report::Run;
use crate::lab::report::read::{read_result, read_run};
use crate::lab::runs::{self, Found, bytes_of, listed};
use crate::observe::console::{print_line, print_text, say};
use crate::observe::log::EVENTS_FILE;
use crate::observe::refusal::{if_there, insist, naming};
use crate::observe::result::Status;
use crate::observe::spans::amount;
use crate::run_folder::{self, below, is_supervised};
use crate::train::state::slot_files::{INSTANCE, number_in};

/// Lists the runs of a folder.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    /// Where they lie.
    #[arg(default_value = "runs")]
    folder: PathBuf,
    /// One JSON object on one line instead of the table.
    #[arg(long, action = ArgAction::SetTrue, value_parser = form())]
    json: Form,
}

/// What else is done with runs.
#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Shows keys that differ and results of two runs side by side
    Compare(Compare),
    /// Removes runs with their folders and their state in this machine's memory, after asking
    Remove(Remove),
}

/// `runs compare`
#[derive(Debug, clap::Args)]
struct Compare {
    /// A run directory.
    #[arg(value_name = "A")]
    first: PathBuf,
    /// Another one.
    #[arg(value_name = "B")]
    second: PathBuf,
    /// One JSON object on one line instead of tables.
    #[arg(long, action = ArgAction::SetTrue, value_parser = form())]
    json: Form,
}

/// `runs remove`
#[derive(Debug, clap::Args)]
struct Remove {
    /// Run directories. One that is running is refused.
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// Does not ask.
    #[arg(long)]
    yes: bool,
    /// Also runs that were never completed: their last state goes too.
    #[arg(long)]
    unfinished: bool,
}

/// Exit 0; 1 where something could not be read or removed, or nothing was agreed to; 2 where there
/// is no such folder or run, or it may not be removed.
pub fn run(args: &Args) -> ExitCode {
    match &args.action {
        None => list(args),
        Some(Action::Compare(args)) => side_by_side(args),
        Some(Action::Remove(args)) => remove(args),
    }
}

fn list(args: &Args) -> ExitCode {
    let found = match below(&args.folder) {
        Ok(found) => found,
        Err(error) => return fail(2, format!("{}: {error}", args.folder.shown())),
    };
    if found.is_empty() && args.json == Form::Table {
        say!("no runs in {}", args.folder.shown());
        return ExitCode::SUCCESS;
    }
    let (mut read, mut unread) = (Vec::new(), Vec::new());
    for folder in &found {
        match look_at(folder) {
            Ok(run) => read.push(run),
            Err(error) => unread.push(error),
        }
    }
    let runs = listed(&read);
    match args.json {
        Form::Json => print_json(&serde_json::json!({ "runs": runs })),
        Form::Table if runs.is_empty() => {}
        Form::Table => print_text(&runs::table(&runs)),
    }
    for copy in found.iter().flat_map(|run| run_folder::copies(run).unwrap_or_default()) {
        say!("not listed: {}, which --fresh moved aside", copy.shown());
    }
    // What cannot be read is there all the same.
    for error in &unread {
        say!("error: not listed: {error}");
    }
    if unread.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

fn look_at(folder: &Path) -> io::Result<Found> {
    let run = read_or_begun(folder)?;
    let status = status::state(folder, &run.events, run.result.as_ref())?;
    Ok(Found { run, status, bytes: bytes_of(folder)? })
}

/// One without events has not made its first step.
fn read_or_begun(folder: &Path) -> io::Result<Run> {
    let events = folder.join(EVENTS_FILE);
    if if_there(insist(|| std::fs::metadata(&events))).map_err(naming(&events))?.is_some() {
        return read_run(folder, None);
    }
    let path = folder.to_string_lossy().into_owned();
    let text = if_there(std::fs::read_to_string(folder.join("config.toml")))?;
    let config = text.unwrap_or_default();
    let seed = toml::from_str::<Config>(&config).map_or(0, |config| config.run.seed);
    let result = read_result(folder)?;
    Ok(Run { path, config, seed, result, ..Run::default() })
}

fn side_by_side(args: &Compare) -> ExitCode {
    let read = |folder: &PathBuf| match run_folder::find(folder) {
        Ok(()) => read_run(folder, None).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => (2, error.to_string()),
            _ => (1, error.to_string()),
        }),
        Err(missing) => Err((2, missing.to_string())),
    };
    match read(&args.first).and_then(|first| Ok([first, read(&args.second)?])) {
        Ok(both) => {
            let pair = runs::pair(&both);
            match args.json {
                Form::Json => print_json(&pair),
                Form::Table => print_text(&pair.table()),
            }
            ExitCode::SUCCESS
        }
        Err((code, reason)) => fail(code, reason),
    }
}

fn remove(args: &Remove) -> ExitCode {
    // All are looked at before any is removed.
    if let Some(reason) = args.runs.iter().find_map(|run| refusal(run, args)) {
        return fail(2, reason);
    }
    let mut all = 0;
    for run in &args.runs {
        match bytes_of(run) {
            Ok(bytes) => {
                say!("{}, {}", run.shown(), amount(bytes));
                all += bytes;
            }
            Err(error) => return fail(1, format!("{}: {error}", run.shown())),
        }
    }
    if !args.yes {
        match agreed(args.runs.len(), all) {
            Ok(true) => {}
            Ok(false) => return fail(1, "nothing was removed"),
            Err(reason) => return fail(2, reason),
        }
    }
    for run in &args.runs {
        // It may go on since it was asked for.
        if let Some(reason) = refusal(run, args) {
            return fail(2, reason);
        }
        if let Err(error) = take_away(run) {
            return fail(1, format!("{}: {error}", run.shown()));
        }
        print_line!("removed {}", run.shown());
    }
    ExitCode::SUCCESS
}

/// Why a run stays, if so.
fn refusal(run: &Path, args: &Remove) -> Option<String> {
    let name = run.shown();
    if let Err(missing) = run_folder::find(run) {
        // An experiment's folder, or one that runs lie in.
        return Some(match below(run).map_or(0, |runs| runs.len()) {
            0 => missing.to_string(),
            runs => format!("{name} holds {runs} runs, {name}/* names them all: which are to go?"),
        });
    }
    // Others have files of these names, too.
    match configured(run) {
        Ok(Some(_)) => {}
        Ok(None) => {
            return Some(format!("{name} holds no configuration of a run: remove it by hand"));
        }
        Err(error) => return Some(error.to_string()),
    }
    if run.symlink_metadata().is_ok_and(|found| found.is_symlink()) {
        return Some(format!("{name} is a link: name the folder itself"));
    }
    let read = match read_or_begun(run) {
        Ok(read) => read,
        Err(error) => return Some(error.to_string()),
    };
    let state = match status::state(run, &read.events, read.result.as_ref()) {
        Ok(state) => state,
        Err(error) => return Some(error.to_string()),
    };
    if is_supervised(run) || state.starts_with("running") {
        return Some(format!(
            "{name} is running: stop it first (Ctrl-C, or SIGTERM to its launch)"
        ));
    }
    let completed = read.result.is_some_and(|result| result.status == Status::Completed);
    (!completed && !args.unfinished).then(|| {
        format!("{name} was never completed ({state}): --unfinished removes it all the same")
    })
}

/// Asks; an error where nobody can answer.
fn agreed(runs: usize, bytes: u64) -> Result<bool, String> {
    if !io::stdin().is_terminal() {
        return Err("nobody is there to be asked: --yes removes without".into());
    }
    let what = if runs == 1 { "this run".to_owned() } else { format!("these {runs} runs") };
    say!("remove {what}, {}? [y/N]", amount(bytes));
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(|error| error.to_string())?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}

/// The configuration that a run was begun with.
fn configured(run: &Path) -> io::Result<Option<Config>> {
    let path = run.join("config.toml");
    let text = if_there(insist(|| std::fs::read_to_string(&path))).map_err(naming(&path))?;
    // One without sections may be anybody's.
    let own = text.filter(|text| text.contains("[run]"));
    Ok(own.and_then(|text| toml::from_str(&text).ok()))
}

/// Its folder, under another name first, so that what is half removed is no run; then its state in
/// this machine's memory and its copies of the data set here. Whoever would go on with it meanwhile
/// is kept out.
fn take_away(run: &Path) -> io::Result<()> {
    let path = std::path::absolute(run)?;
    let (config, id) = (configured(&path)?, run_folder::id(&path));
    let number_of = |run: &Path| number_in(&std::fs::read(run.join(INSTANCE)).ok()?);
    let number = number_of(&path);
    let lock = File::options().create(true).append(true).open(path.join("lock"))?;
    if os::lock_file(&lock)? == os::Lock::Busy {
        return Err(io::Error::other("it has just gone on: stop it first"));
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let leaving = path.with_file_name(format!(".{name}.removed-{}", std::process::id()));
    std::fs::rename(&path, &leaving)?;
    if let Some(config) = config {
        let memory = &config.recovery.resident_dir;
        Folder::new(memory, &id).clear();
        // Kept or not: another run makes its own.
        place::sweep(&config.staging, &id);
        let lies_at = |place: &Path| number_of(place) == number;
        for before in number.iter().flat_map(|number| former_places(memory, *number, lies_at)) {
            let (before, memory) = (before.shown(), memory.shown());
            say!(
                "what it left in {memory} when it lay at {before} stays: `kintsugi doctor --clear`"
            );
        }
    }
    std::fs::remove_dir_all(&leaving)
}
