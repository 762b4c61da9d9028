//! `kintsugi report RUN...`: one self-contained HTML page from run directories, or from the folder
//! of an experiment.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::experiment::command_line;
use crate::config::Shown;
use crate::lab::experiment::results::{Index, REPORT_FILE, RESULTS_FILE, machine};
use crate::observe::console::{print_line, say};
use crate::observe::report::read::read_run;
use crate::observe::report::{Study, html};
use crate::observe::storage::{FileSystem, Storage};

/// Draws learning curves, recoveries and checkpoints of one or more runs.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Run directories, or an experiment's folder. Runs of the same `run.name` are one arm.
    #[arg(required = true, value_name = "RUN")]
    pub runs: Vec<PathBuf>,
    /// The page; unset: report.html in the (first) folder.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

impl Args {
    /// None where an experiment is named.
    pub(super) fn run_directories(&self) -> Vec<&Path> {
        match self.runs.as_slice() {
            [only] if only.join(RESULTS_FILE).exists() => Vec::new(),
            folders => folders.iter().map(PathBuf::as_path).collect(),
        }
    }
}

/// Writes the page and prints its path. Exit 1 if a run cannot be read.
pub fn run(args: &Args) -> ExitCode {
    match draw(args) {
        Ok(path) => {
            print_line!("{}", path.shown());
            ExitCode::SUCCESS
        }
        Err(error) => {
            say!("error: {error}");
            ExitCode::from(1)
        }
    }
}

fn draw(args: &Args) -> io::Result<PathBuf> {
    let study = match args.runs.as_slice() {
        [only] if only.join(RESULTS_FILE).exists() => Index::read(only)?.study(only)?,
        folders => study_of(folders)?,
    };
    let path = args.out.clone().unwrap_or_else(|| args.runs[0].join(REPORT_FILE));
    // `write_whole`: a browser that reloads the page never sees half of it.
    FileSystem::new("").write_whole(&path, &[html(&study).as_bytes()])?;
    Ok(path)
}

fn study_of(folders: &[PathBuf]) -> io::Result<Study> {
    let runs =
        folders.iter().map(|folder| read_run(folder, None)).collect::<io::Result<Vec<_>>>()?;
    let mut names: Vec<&str> = runs.iter().map(|run| run.arm.as_str()).collect();
    names.dedup();
    let title = match names.as_slice() {
        [only] => format!("Run {only}"),
        several => format!("Runs: {}", several.join(", ")),
    };
    Ok(Study {
        title,
        description: String::new(),
        command: command_line(),
        experiment: None,
        machine: machine(),
        runs,
    })
}

/// The page of one finished run, beside its other files.
///
/// # Errors
/// When the run cannot be read or the page not written.
pub fn write_beside(run_dir: &Path) -> io::Result<PathBuf> {
    draw(&Args { runs: vec![run_dir.to_owned()], out: None })
}
