//! Why a rank was lost, from the files that witnesses left in the run directory: the event of an
//! injected fault, the last words that its guardian kept, its log.

use std::path::Path;
use std::time::Duration;

use crate::cluster::guard::last_words::{self, Evidence};
use crate::cluster::world::Member;
use crate::observe::clock::Clock;
use crate::observe::event::{Event, Kind};
use crate::observe::log::last_lines;
use crate::observe::storage::Storage;

use crate::train::record::journal::EVENTS;

/// A fault that fired longer ago than this did not cause what is being repaired.
pub const FAULT_AGE_SECONDS_MAX: f64 = 10.0;

/// The end of the event log in which an injected fault is looked for.
const EVENTS_TAIL_BYTES: usize = 16 << 10;

/// The end of a rank's log that is looked at.
const LOG_TAIL_BYTES: usize = 64 << 10;

/// A repair can be faster than a guardian that gets no processor: how long its word is waited for.
pub const WITNESS_WAIT_MAX: Duration = Duration::from_secs(2);

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
        injected: injected(storage, attempt, lost, clock.unix_seconds()),
        last_words: last_words_of(storage, attempt, lost),
        log: end_of_log(storage, log_name(attempt, &lost.host, lost.pid)),
    })
}

fn last_words_of(storage: &dyn Storage, attempt: u32, lost: &Member) -> String {
    end_of_log(storage, last_words::file_name(attempt, &lost.host, lost.pid))
}

/// The end of a file below `RUN/logs`; nothing where there is none.
pub fn end_of_log(storage: &dyn Storage, name: String) -> String {
    let name = Path::new("logs").join(name);
    let body = storage.read_end(&name, LOG_TAIL_BYTES).unwrap_or_default();
    String::from_utf8_lossy(&body).into_owned()
}

/// The newest fault that struck this process: not its predecessor, nor who was to take its place.
fn injected(storage: &dyn Storage, attempt: u32, lost: &Member, now: f64) -> Option<String> {
    let lines: Vec<Event> =
        last_lines(storage, Path::new(EVENTS), EVENTS_TAIL_BYTES).unwrap_or_default();
    // A repair may take long; only what does not kill by itself has to be recent.
    let matters =
        |event: &&Event| is_deadly(&event.kind) || now - event.time < FAULT_AGE_SECONDS_MAX;
    let of_attempt = lines.iter().rev().filter(|event| event.attempt == attempt);
    of_attempt.filter(matters).find_map(|event| struck(event, lost))
}

/// Whether this is a fault that its process dies of.
pub fn is_deadly(kind: &Kind) -> bool {
    const HARMLESS: [&str; 3] = ["slow", "nan", "bit_flip"];
    match kind {
        Kind::FaultInjected { kind, .. } => !HARMLESS.contains(&kind.as_str()),
        _ => false,
    }
}

/// "injected kill in_update", if that struck this member.
pub fn struck(event: &Event, member: &Member) -> Option<String> {
    match &event.kind {
        Kind::FaultInjected { kind, phase, target, pid }
            if *target == member.rank && [0, member.pid].contains(pid) =>
        {
            Some(format!("injected {kind} {phase}"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::event::samples;

    #[test]
    fn a_fault_is_that_of_the_process_which_it_struck() {
        let event = |pid| {
            let (kind, phase) = ("kill".into(), "in_transfer".into());
            let struck = Kind::FaultInjected { kind, phase, target: 2, pid };
            Event { rank: 2, ..samples::event(19, 0.0, struck) }
        };
        let member = |rank, pid| Member { member: 2, pid, ..Member::of_test(rank) };
        let words = Some("injected kill in_transfer".to_string());
        assert_eq!(struck(&event(70), &member(2, 70)), words);
        assert_eq!(struck(&event(0), &member(2, 70)), words, "a line without the process");
        assert_eq!(struck(&event(71), &member(2, 70)), None, "its replacement");
        // On two nodes numbers of processes repeat.
        assert_eq!(struck(&event(70), &member(3, 70)), None, "another rank");
    }
}
