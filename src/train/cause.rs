//! Why a rank was lost, from the files that witnesses left in the run directory: the event of an
//! injected fault, the last words that its guardian kept, its log.

use std::path::Path;
use std::time::Duration;

use crate::cluster::guard::last_words::{self, Evidence};
use crate::cluster::world::Member;
use crate::observe::clock::Clock;
use crate::observe::event::{Event, Kind};
use crate::observe::log::{parse_lines, whole_lines};
use crate::observe::storage::Storage;

use super::journal::EVENTS;

/// A fault that fired longer ago than this did not cause what is being repaired.
pub const FAULT_AGE_SECONDS_MAX: f64 = 10.0;

/// The end of the event log in which an injected fault is looked for.
const EVENTS_TAIL_BYTES: usize = 16 << 10;

/// The end of a rank's log that is looked at.
const LOG_TAIL_BYTES: usize = 64 << 10;

/// A repair can be faster than a guardian that gets no processor: how long its word is waited for.
pub const WITNESS_WAIT_MAX: Duration = Duration::from_millis(200);

/// A rank's log below `RUN/logs`.
pub fn log_name(attempt: u32, host: &str, pid: u32) -> String {
    format!("{}.log", last_words::name_of(attempt, host, pid))
}

/// Whether a witness has told how a member of this attempt ended.
pub fn is_told(storage: &dyn Storage, attempt: u32, lost: &Member) -> bool {
    last_words::tells(&last_words_of(storage, attempt, lost))
}

/// What is known of how a member of this attempt ended.
pub fn of(storage: &dyn Storage, clock: &dyn Clock, attempt: u32, lost: &Member) -> String {
    last_words::cause(&Evidence {
        injected: injected(storage, lost.rank, clock.unix_seconds()),
        last_words: last_words_of(storage, attempt, lost),
        log: end_of_log(storage, log_name(attempt, &lost.host, lost.pid)),
    })
}

fn last_words_of(storage: &dyn Storage, attempt: u32, lost: &Member) -> String {
    end_of_log(storage, last_words::file_name(attempt, &lost.host, lost.pid))
}

fn end_of_log(storage: &dyn Storage, name: String) -> String {
    let name = Path::new("logs").join(name);
    let body = storage.read_end(&name, LOG_TAIL_BYTES).unwrap_or_default();
    String::from_utf8_lossy(&body).into_owned()
}

fn injected(storage: &dyn Storage, rank: u32, now: f64) -> Option<String> {
    let end = storage.read_end(Path::new(EVENTS), EVENTS_TAIL_BYTES).unwrap_or_default();
    let whole = whole_lines(&end, EVENTS_TAIL_BYTES);
    let lines = parse_lines::<Event>(Path::new(EVENTS), whole).unwrap_or_default();
    lines.iter().rev().find_map(|event| match &event.kind {
        Kind::FaultInjected { kind, phase, target }
            if *target == rank && now - event.time < FAULT_AGE_SECONDS_MAX =>
        {
            Some(format!("injected {kind} {phase}"))
        }
        _ => None,
    })
}
