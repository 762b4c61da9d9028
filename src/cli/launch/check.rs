//! `kintsugi launch --check`: all that can be known of a start before it. What launch refuses, and
//! what its ranks would once they have listed the data, ends with the start's own exit code; all
//! else is a table. Nothing is started, and what was there stays as it is.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use crate::config::{BadImage, Config, Shown, StagingMode, Validation, resolve_owners};
use crate::data::bad_images;
use crate::data::sampler::Order;
use crate::data::set::{self, DataSet};
use crate::data::{DataError, Split};
use crate::engine::{self, Together};
use crate::lab::doctor::{Finding, Grade};
use crate::lab::storage;
use crate::launch::LaunchError;
use crate::launch::start::beginning::{self, Begun};
use crate::launch::start::beside;
use crate::launch::start::claim::{self, Past};
use crate::launch::start::job::Job;
use crate::launch::start::opening::{self, Processors, Room};
use crate::launch::start::run_dir::{Found, Owners};
use crate::observe::console::{self, say};
use crate::observe::ledger;
use crate::run_folder;
use crate::train::TrainError;
use crate::train::plan::steps_total;
use crate::train::record::began_with;
use crate::train::start::feasible::{self, Model};
use crate::train::start::fixed::fix;
use crate::train::start::sets::{self, Sets};
use crate::train::start::state;

use super::super::arguments::fail;
use super::super::data::report::{self, Looked};
use super::super::doctor::print_finding;

/// Longest look at the pictures of one set.
const PICTURES_MAX: Duration = Duration::from_secs(10);

/// Why a start would not begin, with its exit code.
struct Refused(u8, String);

impl From<LaunchError> for Refused {
    fn from(error: LaunchError) -> Self {
        Self(error.exit_code(), error.to_string())
    }
}

impl From<TrainError> for Refused {
    fn from(error: TrainError) -> Self {
        Self(error.exit_code(), error.to_string())
    }
}

impl From<DataError> for Refused {
    fn from(error: DataError) -> Self {
        match error {
            // As a first start is told, which waits for nothing.
            DataError::Store(reason) => TrainError::Data(reason).into(),
            error => TrainError::from(error).into(),
        }
    }
}

/// Looks at what a start would begin with, and says what it has found.
pub(super) fn run(begun: Result<(Begun, Owners), LaunchError>, past: Past) -> ExitCode {
    match begun.map_err(Refused::from).and_then(|(begun, owners)| check(begun, owners, past)) {
        Ok(found) => {
            found.iter().for_each(print_finding);
            console::conclude(ExitCode::SUCCESS)
        }
        Err(Refused(code, reason)) => fail(code, reason),
    }
}

fn check(begun: Begun, owners: Owners, past: Past) -> Result<Vec<Finding>, Refused> {
    let Begun { mut job, limits, folder, remarks } = begun;
    let of_device = engine::remark(&job.config.device);
    remarks.iter().chain(&of_device).for_each(|remark| say!("warning: {remark}"));
    beginning::check_machine(&job)?;
    let there = claim::look(&mut job, owners, past, &fix)?;
    let run = ok("run", format!("{}: {}", folder.shown(), standing(&there, &job)));
    if matches!(there, Found::Completed(_)) {
        let other = beside::other_data(job.run.path(), &job.config);
        return Ok(vec![graded("run", run.value, other.as_slice())]);
    }
    job.run.check_makeable()?;
    let config = &job.config;
    let sets = sets::look(config)?;
    let owners = resolve_owners(config);
    let model = feasible::model(config, &*sets.train.source, owners)?;
    feasible::check_room(config, &model, &sets, owners, Together::WithOthers)?;
    if there == Found::Unfinished {
        let validation = sets.validation.as_ref().map(|set| &*set.source);
        began_with::check(job.run.storage(), set::identity(&*sets.train.source, validation))?;
    }
    let mut found = vec![run, described(config, &model, &sets)];
    found.extend(first_weights(config, &model, &sets, &there)?);
    found.push(listed(config, &sets)?);
    let splits = [(Split::Train, Some(&sets.train)), (Split::Validation, sets.validation.as_ref())];
    for (split, set) in splits {
        found.extend(set.map(|set| pictures(config, set, split)).transpose()?);
    }
    let (speed, read) = storage::shared_storage(&sets.train);
    found.push(speed);
    if config.staging.mode != StagingMode::None {
        found.extend(read.map(|read| storage::staging_folder_of(config, &sets.train, read)));
    }
    found.extend(machine(&job));
    let line = limits.line();
    let line = line.strip_prefix("limits: ").unwrap_or(&line).to_owned();
    found.push(graded("time limits", line, &opening::doubts(limits)));
    found.extend(opening::cards(&job).map(|line| ok("cards", line)));
    found.extend(opening::several(&job).map(|line| ok("nodes", line)));
    Ok(found)
}

fn ok(name: &'static str, value: String) -> Finding {
    Finding { name, value, state: Grade::Ok, advice: String::new() }
}

/// A warning where there are any.
fn graded(name: &'static str, value: String, warnings: &[String]) -> Finding {
    let state = if warnings.is_empty() { Grade::Ok } else { Grade::Warning };
    Finding { name, value, state, advice: warnings.join("; ") }
}

/// What a start would do with what is there.
fn standing(there: &Found, job: &Job) -> String {
    let step = || match ledger::newest(job.run.storage()) {
        Ok(line) => line.map_or(0, |line| line.step).to_string(),
        Err(error) => format!("? ({error})"),
    };
    match there {
        Found::Nothing if job.run.join("config.toml").exists() => {
            "begins anew; the run that is there would be moved aside".into()
        }
        Found::Nothing => "begins".into(),
        Found::Completed(_) => "is complete (--fresh starts it anew)".into(),
        Found::Unfinished if run_folder::is_supervised(job.run.path()) => {
            format!("runs, at step {}: a start would stop it and take it over", step())
        }
        Found::Unfinished => format!("goes on from step {}", step()),
    }
}

fn described(config: &Config, model: &Model, sets: &Sets) -> Finding {
    let [channels, height, width] = model.graph.input;
    let (parameters, classes) = (model.layout.parameters, sets.train.source.classes().len());
    let name = config.model.name.shown();
    let value = format!(
        "{name}: {parameters} parameters, {channels}x{height}x{width} pictures, {classes} classes; \
         computed by {}",
        model.arithmetic
    );
    ok("model", value)
}

/// Those that a run begins with, where it is given any.
fn first_weights(
    config: &Config,
    model: &Model,
    sets: &Sets,
    there: &Found,
) -> Result<Option<Finding>, Refused> {
    let Some(path) = config.model.found_init().filter(|_| *there == Found::Nothing) else {
        return Ok(None);
    };
    let shapes = (&model.graph, &model.layout);
    let fitted = state::given_weights(&path, config, shapes, sets.train.source.classes())?;
    let value = format!("{} fits", path.shown());
    Ok(Some(Finding { advice: fitted.remarks.join("; "), ..ok("first weights", value) }))
}

/// Samples and steps.
fn listed(config: &Config, sets: &Sets) -> Result<Finding, Refused> {
    let (train, order) = (&sets.train.source, Order::of(config, sets.train.source.len())?);
    let place = |path: Option<String>| path.unwrap_or_else(|| "made".into());
    let mut value = format!(
        "{} training samples ({})",
        train.len(),
        place(config.data.train.as_deref().map(Path::shown))
    );
    if let Some(validation) = &sets.validation {
        let count = validation.source.len();
        let path = place(config.data.validation.as_ref().map(Validation::shown));
        value += &format!(", {count} for validation ({path})");
    }
    let per_epoch = order.steps_per_epoch();
    value += &match steps_total(config, &order) {
        Some(steps) => format!("; {steps} steps, {per_epoch} an epoch"),
        None => format!("; {per_epoch} steps an epoch, until train.max_seconds are over"),
    };
    let validation = sets.validation.as_ref().map(|set| &*set.source);
    let each = train.remarks().iter().chain(validation.iter().flat_map(|set| set.remarks()));
    let remarks = each.cloned().chain(set::remark(&**train, validation)).chain(order.remark());
    Ok(graded("data", value, &remarks.collect::<Vec<_>>()))
}

/// Whether they can be decoded, as many as there is time for.
fn pictures(config: &Config, set: &DataSet, split: Split) -> Result<Finding, Refused> {
    let name = match split {
        Split::Train => "pictures",
        Split::Validation => "for validation",
    };
    let Looked { count, bad, .. } = report::look(set, split, Some(PICTURES_MAX))?;
    if let Some((_, first)) = bad.first().filter(|_| config.data.bad_image == BadImage::Fatal) {
        let reason = format!(
            "{}: {}; data.bad_image = \"fatal\" ends the run with it",
            first.name, first.reason
        );
        return Err(DataError::Set(reason).into());
    }
    let (skipped, max) = (bad.len() as u64, config.data.bad_images_max);
    let of = set.source.len();
    bad_images::check_look(split, skipped, count, of, max).map_err(|error| {
        let named = bad.iter().take(3).map(|(_, bad)| bad.name.shown()).collect::<Vec<_>>();
        DataError::Set(format!("{error} (for example {})", named.join(", ")))
    })?;
    let value = format!("{count} of {of} looked at, {skipped} cannot be decoded");
    let named = bad.iter().take(3).map(|(_, bad)| format!("{}: {}", bad.name, bad.reason));
    Ok(graded(name, value, &named.collect::<Vec<_>>()))
}

/// Memory, disk, processors.
fn machine(job: &Job) -> Vec<Finding> {
    let Room { needs, short } = opening::room(job);
    let needs = needs.map_or_else(|| "unknown".into(), |needs| format!("the run needs {needs}"));
    let Processors { line, mut warnings, crowded } = opening::processors(job);
    if crowded {
        warnings.push("fewer ranks (-n) or train.workers would be as fast".into());
    }
    let line = line.strip_prefix("processors: ").unwrap_or(&line).to_owned();
    vec![graded("room", needs, &short), graded("processors", line, &warnings)]
}
