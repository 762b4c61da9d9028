//! `kintsugi chaos RUN`: kills random ranks of a running run, see `lab::chaos`.

use std::path::PathBuf;
use std::process::ExitCode;

use super::arguments::fail;
use crate::config::Shown;
use crate::lab::chaos::{Outcome, Storm, rage};
use crate::lab::report::read::read_result;
use crate::observe::console::{conclude, tell};
use crate::run_folder::has_ended;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run directory
    #[arg(value_name = "RUN")]
    run: PathBuf,
    #[command(flatten)]
    storm: Storm,
    /// Prints the moments and strikes nobody
    #[arg(long)]
    dry_run: bool,
}

/// About 30 years.
const SECONDS_MAX: f64 = 1e9;

/// Moments that a dry run prints when nothing bounds them.
const DRY_RUN_BLOWS: usize = 20;

/// Rages, or says when it would. Exit 1 where the run has ended.
pub fn run(args: &Args) -> ExitCode {
    if !(args.storm.mtbf > 0.0 && args.storm.mtbf <= SECONDS_MAX) {
        let wanted = format!("write a number of seconds above 0, up to {SECONDS_MAX}");
        return fail(2, format!("--mtbf {}: {wanted}", args.storm.mtbf));
    }
    // It may stand ready before the run has written anything.
    if !args.run.is_dir() {
        let run = args.run.shown();
        let reason = format!("{run} is no run directory: name the folder that `launch` printed");
        return fail(2, reason);
    }
    if args.dry_run {
        dry_run(&args.storm);
        return conclude(ExitCode::SUCCESS);
    }
    // A storm over one that has ended would find nobody, and call that a result.
    match read_result(&args.run) {
        Ok(None) => {}
        Ok(Some(result)) if !has_ended(&args.run, &result) => {}
        Ok(Some(_)) => return fail(1, "this run has ended: there is nobody to strike"),
        Err(error) => return fail(1, error),
    }
    match rage(&args.run, &args.storm, &mut |line| print(&line)) {
        Ok(Outcome { struck, missed }) => {
            print(&format!("{struck} struck, {missed} blows found nobody"));
            ExitCode::SUCCESS
        }
        Err(error) => fail(error.exit_code(), error),
    }
}

fn dry_run(storm: &Storm) {
    for blow in storm.planned(DRY_RUN_BLOWS) {
        print(&format!("{:8.1} s  blow {}", blow.at.as_secs_f64(), blow.number));
    }
}

/// A closed stdout must not end a storm.
fn print(text: &str) {
    tell!("{text}");
}
