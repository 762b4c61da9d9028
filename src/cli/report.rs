//! `kintsugi report RUN...`: one self-contained HTML page from run directories, or from the folder
//! of an experiment.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ArgAction;

use super::arguments::{Form, fail_of, form, print_json};
use crate::config::Shown;
use crate::lab::experiment::results::{Index, REPORT_FILE, RESULTS_FILE};
use crate::lab::report::best::best;
use crate::lab::report::groups::name_arms;
use crate::lab::report::read::read_run;
use crate::lab::report::summary::summarise;
use crate::lab::report::{Run, Study, command_line, html};
use crate::observe::console::{print_line, say};
use crate::observe::result::RunResult;
use crate::observe::storage::{FileSystem, Storage};
use crate::run_folder::{below, find, original};

/// Draws learning curves, recoveries and checkpoints of one or more runs.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Run directories, a folder of them, or an experiment's folder. Runs whose configurations are
    /// equal but for `run.seed` and `run.name` are seeds of one arm; the same seed again is an arm
    /// of its own. Copies that --fresh moved aside (NAME.old-N) are left out beside other runs.
    #[arg(required = true, value_name = "RUN")]
    pub runs: Vec<PathBuf>,
    /// The page; unset: report.html in the (first) folder.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// One JSON object with the page's path and the runs in figures, instead of the path
    #[arg(long, action = ArgAction::SetTrue, value_parser = form())]
    json: Form,
}

impl Args {
    /// None where an experiment is named.
    pub(super) fn run_directories(&self) -> Vec<&Path> {
        match self.runs.as_slice() {
            [only] if only.join(RESULTS_FILE).exists() => Vec::new(),
            folders => {
                let named = folders.iter().filter(|folder| runs_below(folder).is_empty());
                named.map(PathBuf::as_path).collect()
            }
        }
    }
}

/// Writes the page and prints its path. Exit 1 if a run cannot be read, 2 if there is none. Of
/// several runs those that can be read are drawn.
pub fn run(args: &Args) -> ExitCode {
    let read = match args.runs.as_slice() {
        [only] if only.join(RESULTS_FILE).exists() => {
            let study = Index::read(only).and_then(|index| index.study(only));
            study.map(|study| (study, Extent::Whole))
        }
        folders => study_of(folders),
    };
    let path = args.out.clone().unwrap_or_else(|| args.runs[0].join(REPORT_FILE));
    let drawn = read.and_then(|read| draw(&read.0, &path).map(|()| read));
    let extent = drawn.as_ref().map_or(Extent::Whole, |(_, extent)| *extent);
    match (drawn, args.json) {
        (Ok((study, _)), Form::Json) => {
            let runs = summarise(&study);
            print_json(&serde_json::json!({
                "report": path, "best": best(&study, &runs), "summaries": runs,
            }));
        }
        (Ok(_), Form::Table) => print_line!("{}", path.shown()),
        (Err(error), _) => return fail_of(&error),
    }
    if extent == Extent::Part { ExitCode::from(1) } else { ExitCode::SUCCESS }
}

/// Whether all runs that were named could be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    Whole,
    Part,
}

fn draw(study: &Study, path: &Path) -> io::Result<()> {
    // `write_whole`: a browser that reloads the page never sees half of it.
    FileSystem::new("").write_whole(path, &[html(study).as_bytes()])
}

/// Of a folder that is no run itself.
fn runs_below(folder: &Path) -> Vec<PathBuf> {
    match find(folder) {
        Ok(()) => Vec::new(),
        Err(_) => below(folder).unwrap_or_default(),
    }
}

/// Of several runs, what can be read; what cannot be is said, and so is which have not begun.
fn read_all(folders: &[&Path]) -> io::Result<(Vec<Run>, Extent)> {
    if let [only] = folders {
        let run = read_run(only, None)?;
        if run.events.is_empty()
            && let Some(RunResult { reason, .. }) = &run.result
        {
            let text = format!("{} ended before its first step: {reason}", only.shown());
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        }
        return Ok((vec![run], Extent::Whole));
    }
    let (mut runs, mut extent) = (Vec::new(), Extent::Whole);
    for folder in folders {
        match read_run(folder, None) {
            Ok(run) => runs.push(run),
            Err(error) if error.kind() == io::ErrorKind::NotFound => say!("left out: {error}"),
            Err(error) => {
                say!("error: {error}");
                extent = Extent::Part;
            }
        }
    }
    let kind = match extent {
        _ if !runs.is_empty() => return Ok((runs, extent)),
        Extent::Whole => io::ErrorKind::NotFound,
        Extent::Part => io::ErrorKind::InvalidData,
    };
    Err(io::Error::new(kind, format!("none of {} runs can be drawn", folders.len())))
}

fn study_of(folders: &[PathBuf]) -> io::Result<(Study, Extent)> {
    let named = folders.iter().flat_map(|folder| match runs_below(folder) {
        runs if runs.is_empty() => vec![folder.clone()],
        runs => runs,
    });
    let named: Vec<PathBuf> = named.collect();
    let (folders, left_out) = without_copies(&named);
    for copy in left_out {
        say!(
            "left out: {}, which --fresh moved aside; name it without other runs to see it",
            copy.shown()
        );
    }
    let (mut runs, extent) = read_all(&folders)?;
    name_arms(&mut runs);
    let mut machines: Vec<&str> = Vec::new();
    for machine in runs.iter().filter_map(Run::machine) {
        if !machines.contains(&machine) {
            machines.push(machine);
        }
    }
    // Of one run its own table tells.
    let machine = if runs.len() > 1 { machines.join("; ") } else { String::new() };
    let mut study = Study {
        title: String::new(),
        description: String::new(),
        command: command_line(),
        experiment: None,
        machine,
        runs,
    };
    study.title = match study.arms().as_slice() {
        [only] => format!("Run {only}"),
        few if few.len() < 4 => format!("Runs: {}", few.join("; ")),
        many => format!("{} runs of {} configurations", study.runs.len(), many.len()),
    };
    Ok((study, extent))
}

/// A shell's `runs/*` names copies too. They are left out beside a run of another name.
fn without_copies(folders: &[PathBuf]) -> (Vec<&Path>, Vec<&Path>) {
    let all: Vec<&Path> = folders.iter().map(PathBuf::as_path).collect();
    let is_copy = |folder: &&Path| original(folder).is_some();
    let own = |folder: &&Path| original(folder).unwrap_or_else(|| folder.to_path_buf());
    let mut runs: Vec<PathBuf> = all.iter().map(own).collect();
    runs.sort_unstable();
    runs.dedup();
    if runs.len() < 2 || all.iter().all(is_copy) {
        return (all, Vec::new());
    }
    let (copies, kept) = all.into_iter().partition(is_copy);
    (kept, copies)
}

/// The page of one finished run, beside its other files.
///
/// # Errors
/// When the run cannot be read or the page not written.
pub fn write_beside(run_dir: &Path) -> io::Result<PathBuf> {
    let path = run_dir.join(REPORT_FILE);
    draw(&study_of(&[run_dir.to_owned()])?.0, &path)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_left_out_unless_they_alone_are_named() {
        let kept = |names: &[&str]| {
            let folders: Vec<PathBuf> = names.iter().map(PathBuf::from).collect();
            let (kept, left_out) = without_copies(&folders);
            assert_eq!(kept.len() + left_out.len(), names.len());
            kept.iter().map(|folder| folder.shown()).collect::<Vec<_>>()
        };
        assert_eq!(kept(&["r/a", "r/a.old-1", "r/b"]), ["r/a", "r/b"]);
        assert_eq!(kept(&["r/a.old-1/", "r/b"]), ["r/b"]);
        for alone in [&["r/a", "r/a.old-1"][..], &["r/a.old-1"], &["r/a.old-1", "r/b.old-2"]] {
            assert_eq!(kept(alone), alone);
        }
        assert_eq!(kept(&["r/older", "r/x.old-"]), ["r/older", "r/x.old-"]);
    }
}
