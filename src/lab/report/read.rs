//! Reads a run directory for the report.

use std::io;
use std::path::Path;

use super::Run;
use crate::config::{Config, ExchangeKind, Shown, identity};
use crate::observe::event::Event;
use crate::observe::log::{self, EVENTS_FILE};
use crate::observe::refusal::{if_there, insist, naming};
use crate::observe::{ledger, result::RunResult};
use crate::run_folder::RESULT;

/// Reads what the run directory holds. Events must be there, but of a run that ended before its
/// first one; the rest may be missing (a run that is under way, an older version). Without `arm`
/// the run's own name is used.
///
/// # Errors
/// Something cannot be read; of the kind `NotFound`, where the run has not begun.
pub fn read_run(folder: &Path, arm: Option<&str>) -> io::Result<Run> {
    let result = read_result(folder)?;
    let events = events_of(folder, result.as_ref())?;
    let config = text_of(&folder.join("config.toml"))?.unwrap_or_default();
    let parsed: Option<Config> = toml::from_str(&config).ok();
    let named = parsed.as_ref().map(|config| config.run.name.clone());
    Ok(Run {
        arm: arm.map(str::to_string).or(named).unwrap_or_else(|| folder.shown()),
        seed: parsed.as_ref().map_or(0, |config| config.run.seed),
        path: folder.to_string_lossy().into_owned(),
        synchronous: parsed
            .as_ref()
            .is_none_or(|config| config.train.exchange == ExchangeKind::Synchronous),
        arithmetic: parsed.as_ref().map(identity::fingerprint),
        max_seconds: parsed.and_then(|config| config.train.max_seconds),
        config,
        events,
        ledger: if_there(ledger::read(&folder.join(ledger::LEDGER_FILE)))?.unwrap_or_default(),
        result,
        room: None,
        paper: super::Paper::default(),
    })
}

/// All events, of which there is one at least; none where the result says that the run ended before
/// its first step.
///
/// # Errors
/// They cannot be read, or are missing; of the kind `NotFound`, where the run has not begun.
pub fn events_of(folder: &Path, result: Option<&RunResult>) -> io::Result<Vec<Event>> {
    let path = folder.join(EVENTS_FILE);
    let found = if_there(log::read_events(&path))?.filter(|events| !events.is_empty());
    let (kind, why) = match (found, result) {
        (Some(events), _) => return Ok(events),
        (None, Some(RunResult { steps: 0, .. })) => return Ok(Vec::new()),
        (None, Some(RunResult { steps, .. })) => (
            io::ErrorKind::InvalidData,
            format!("{} is gone or empty, of a run of {steps} steps", path.shown()),
        ),
        (None, None) => (
            io::ErrorKind::NotFound,
            format!("{} has not begun: no event is in {EVENTS_FILE} yet", folder.shown()),
        ),
    };
    Err(io::Error::new(kind, why))
}

/// A file's text; `None` where there is none.
fn text_of(path: &Path) -> io::Result<Option<String>> {
    if_there(insist(|| std::fs::read_to_string(path))).map_err(naming(path))
}

/// `RUN/result.json`; `None` while there is none.
pub fn read_result(folder: &Path) -> io::Result<Option<RunResult>> {
    let path = folder.join(RESULT);
    let Some(text) = text_of(&path)? else { return Ok(None) };
    let invalid =
        |error| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {error}", path.shown()));
    serde_json::from_str(&text).map(Some).map_err(invalid)
}
