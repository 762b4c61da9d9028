//! `kintsugi doctor`: whether recovery works here, and what to do where it does not.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::config::{Config, Shown, parse};
use crate::lab::doctor::{Diagnosis, Finding, Grade, diagnose};
use crate::lab::{resident, storage};
use crate::launch::machine::logout;
use crate::launch::traces::janitor;
use crate::observe::console::print_line;

use super::arguments::{fail, print_json};

/// Says what this machine has, kills a rank to see whether recovery works, and times it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// One JSON object
    #[arg(long)]
    json: bool,
    /// Removes resident state that no process uses, of unfinished runs too, and folders that were
    /// left in /tmp and /dev/shm, and does no more
    #[arg(long, conflicts_with = "json")]
    clear: bool,
    /// A configuration: looks at the storage of its training set and at its staging folder, too,
    /// and whether its run would fit
    #[arg(conflicts_with = "clear")]
    config: Option<PathBuf>,
    /// Overrides one key of the configuration: section.key=value
    #[arg(short = 's', long = "set", value_name = "KEY=VALUE", requires = "config")]
    set: Vec<String>,
    /// Where resident state lies
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    resident_dir: PathBuf,
}

/// How long folders in use are waited for: what is left of a killed job ends within a second.
const CLEAR_WAIT_MAX: Duration = Duration::from_secs(3);

/// Looks, checks, prints; 1 when recovery does not work here, or the set cannot be read.
pub fn run(args: &Args) -> ExitCode {
    if args.clear {
        for place in logout::places(&args.resident_dir) {
            match resident::clear(&place) {
                Ok((files, bytes)) => {
                    let place = place.shown();
                    print_line!(
                        "{files} files of resident state, {bytes} bytes, removed from {place}"
                    );
                }
                Err(error) => return fail(1, error),
            }
        }
        let folders = janitor::clear_abandoned(CLEAR_WAIT_MAX);
        if folders.removed > 0 {
            print_line!("{} folders of attempts that nobody is left of, removed", folders.removed);
        }
        if folders.in_use > 0 {
            print_line!("{} folders of attempts are in use, and stay", folders.in_use);
        }
        return ExitCode::SUCCESS;
    }
    let (config, storage) = match &args.config {
        None => (Config::default(), Vec::new()),
        Some(path) => match parse::load(path, &args.set) {
            Ok(config) => {
                let storage = storage::findings(&config);
                (config, storage)
            }
            Err(error) => return fail(2, error),
        },
    };
    let readable = storage.iter().all(|found| found.state != Grade::Broken);
    let mut diagnosis = diagnose(&args.resident_dir, &config);
    diagnosis.findings.extend(storage);
    if args.json {
        print_json(&diagnosis);
    } else {
        print(&diagnosis);
    }
    if diagnosis.recovery_works && readable { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn print(diagnosis: &Diagnosis) {
    for finding in &diagnosis.findings {
        print_finding(finding);
    }
    for repair in diagnosis.live_check.iter().flat_map(|outcome| &outcome.repairs) {
        print_line!("{:24}{} ms", "", repair.phases("restore 1 MB"));
    }
    print_line!("ladder on one node: {}", diagnosis.ladder.join(", "));
}

/// A line, and what to do.
pub(super) fn print_finding(finding: &Finding) {
    let state = match finding.state {
        Grade::Ok => "ok",
        Grade::Absent => "-",
        Grade::Warning => "warning",
        Grade::Broken => "BROKEN",
    };
    print_line!("{state:8}{:16}{}", finding.name, finding.value);
    if !finding.advice.is_empty() {
        print_line!("{:24}{}", "", finding.advice);
    }
}
