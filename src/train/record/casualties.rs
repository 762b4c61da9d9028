//! Who was lost with an attempt that nobody could repair: the members of its last world that did
//! not end because of the others, and whoever a planned fault struck. A live repair names its dead
//! itself (`cause`); here nobody is left of those who were there, only their files are. Where not
//! even an end was written down, who left no trace was killed together with its guardian.

use std::path::Path;

use crate::cluster::guard::last_words::{self, Evidence};
use crate::cluster::world::{Member, Role, World};
use crate::observe::event::{Event, Kind, Lost};
use crate::observe::log::last_lines;
use crate::observe::result::Status;
use crate::observe::storage::Storage;

use crate::train::record::cause::{end_of_log, is_deadly, log_name, struck};
use crate::train::record::journal::EVENTS;

/// The end of the event log in which planned faults are looked for.
const EVENTS_TAIL_BYTES: usize = 256 << 10;

/// Where a process ran that was in no world yet.
const NOWHERE: &str = "unknown";

/// What to think of a member that nothing is known of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Traceless {
    /// The attempt came to an end of its own: so did the member.
    Lives,
    /// Nobody could write an end.
    Lost,
}

/// Of the attempt before `attempt`. `before`: the last world that was written down.
pub fn of_the_last(storage: &dyn Storage, attempt: u32, before: Option<&World>) -> Vec<Lost> {
    let last = attempt.saturating_sub(1);
    let end = last_lines(storage, Path::new(EVENTS), EVENTS_TAIL_BYTES);
    let events: Vec<Event> = end.unwrap_or_default();
    let matters =
        |event: &Event| is_deadly(&event.kind) || matches!(event.kind, Kind::RunEnd { .. });
    let events: Vec<Event> =
        events.into_iter().filter(|event| event.attempt == last && matters(event)).collect();
    match before.filter(|world| world.attempt == last) {
        Some(world) => {
            let has_end = events.iter().any(|event| matches!(event.kind, Kind::RunEnd { .. }));
            let traceless = if has_end { Traceless::Lives } else { Traceless::Lost };
            let ranks = world.members.iter().filter(|member| member.role == Role::Active);
            ranks.filter_map(|member| lost(storage, last, member, &events, traceless)).collect()
        }
        // No world was formed: what struck is known, and the numbers that were to be given.
        None => without_a_world(&events, before.map_or(0, |world| world.next_member)),
    }
}

fn lost(
    storage: &dyn Storage,
    attempt: u32,
    member: &Member,
    events: &[Event],
    traceless: Traceless,
) -> Option<Lost> {
    let (host, pid) = (member.host.as_str(), member.pid);
    let mut last_words = end_of_log(storage, last_words::file_name(attempt, host, pid));
    let injected = events.iter().rev().find_map(|event| struck(event, member));
    let gave_up = format!("exit code {}", Status::JobLost.exit_code());
    let known = injected.is_some() || last_words::tells(&last_words);
    if last_words::status(&last_words) == Some(&gave_up)
        || (!known && traceless == Traceless::Lives)
    {
        return None;
    }
    let is_explained =
        last_words::has_verdict(&last_words) || last_words::is_out_of_memory(&last_words);
    if injected.is_none() && !is_explained {
        // It may have been killed with all others, on purpose.
        last_words.push_str(&end_of_log(storage, last_words::world_name(attempt)));
    }
    let log = end_of_log(storage, log_name(attempt, host, pid));
    let cause = last_words::cause(&Evidence { injected, last_words, log });
    Some(Lost { member: member.member, rank: member.rank, host: host.to_owned(), cause })
}

/// Processes that were struck before they had met.
fn without_a_world(events: &[Event], next_member: u32) -> Vec<Lost> {
    let struck = events.iter().filter_map(|event| match &event.kind {
        Kind::FaultInjected { kind, phase, target, .. } => Some(Lost {
            member: next_member + target,
            rank: *target,
            host: NOWHERE.into(),
            cause: format!("injected {kind} {phase}"),
        }),
        _ => None,
    });
    let mut lost: Vec<Lost> = struck.collect();
    lost.sort_by_key(|lost| lost.rank);
    lost
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::event::samples;
    use crate::observe::log::EventLog;
    use crate::observe::storage::MemoryStorage;
    use std::sync::Arc;

    fn event(attempt: u32, kind: Kind) -> Event {
        Event { attempt, ..samples::event(19, 0.0, kind) }
    }

    /// Of the process that the world has at that rank.
    fn fault(target: u32, kind: &str, phase: &str) -> Kind {
        let pid = 100 + target;
        Kind::FaultInjected { kind: kind.into(), phase: phase.into(), target, pid }
    }

    fn end() -> Event {
        let (status, reason) = ("job_lost".to_string(), "recovery gave up".to_string());
        event(1, Kind::RunEnd { status, reason, state_sha256: None })
    }

    fn world(attempt: u32) -> World {
        World { attempt, ..World::of_test(4, 4) }
    }

    /// What the files of a run say that attempt 2 begins after.
    fn told(events: &[Event], ends: &[(u32, &str)], before: Option<&World>) -> Vec<(u32, String)> {
        let storage = Arc::new(MemoryStorage::default());
        storage.create_dir(Path::new("logs")).unwrap();
        let mut log = EventLog::new(storage.clone());
        events.iter().for_each(|event| log.append(event).unwrap());
        for (pid, body) in ends {
            let name = Path::new("logs").join(last_words::file_name(1, "here", *pid));
            storage.write_whole(&name, &[body.as_bytes()]).unwrap();
        }
        let lost = of_the_last(storage.as_ref(), 2, before);
        lost.into_iter().map(|lost| (lost.rank, lost.cause)).collect()
    }

    const KILLED: &str = "status: signal 9 (SIGKILL)\n";
    const GAVE_UP: &str = "status: exit code 75\n";

    #[test]
    fn who_was_killed_is_named_and_who_gave_up_because_of_it_is_not() {
        let ends = [(100, GAVE_UP), (101, GAVE_UP), (102, KILLED), (103, GAVE_UP)];
        let struck = vec![event(1, fault(2, "kill", "in_update"))];
        let expected = "injected kill in_update; signal 9 (SIGKILL)".to_string();
        assert_eq!(told(&struck, &ends, Some(&world(1))), [(2, expected)]);
        let unplanned = told(&[], &ends, Some(&world(1)));
        assert_eq!(unplanned, [(2, "signal 9 (SIGKILL)".to_string())]);
        let hung = [(101, "verdict: hung: no progress\nstatus: signal 9 (SIGKILL)\n")];
        assert_eq!(told(&[end()], &hung, Some(&world(1))), [(1, "hung: no progress".into())]);
    }

    #[test]
    fn without_a_trace_of_anybody_all_were_lost_unless_an_end_was_written() {
        assert!(told(&[end()], &[], Some(&world(1))).is_empty(), "all ended in order");
        let killed = told(&[], &[], Some(&world(1)));
        assert!(killed.len() == 4 && killed[0].1.contains("without a trace"), "{killed:?}");
    }

    #[test]
    fn whoever_was_replaced_is_not_named_again() {
        let of_another = event(0, fault(3, "kill", "in_forward"));
        let (kind, phase) = ("kill".into(), "in_forward".into());
        let predecessor = event(1, Kind::FaultInjected { kind, phase, target: 1, pid: 50 });
        let slow = event(1, fault(0, "slow", "in_forward"));
        let kill = event(1, fault(2, "kill", "in_update"));
        let events = vec![of_another, predecessor, slow, kill, end()];
        let lost = told(&events, &[], Some(&world(1)));
        assert_eq!(lost, [(2, "injected kill in_update".to_string())]);
    }

    #[test]
    fn a_world_that_was_never_formed_has_its_victims_named_all_the_same() {
        let events = || vec![event(1, fault(3, "kill", "in_init"))];
        let expected = [(3, "injected kill in_init".to_string())];
        assert_eq!(told(&events(), &[], None), expected);
        // The last one that was formed is an older one.
        assert_eq!(told(&events(), &[], Some(&world(0))), expected);
    }

    #[test]
    fn a_world_that_launch_killed_says_why() {
        let storage = Arc::new(MemoryStorage::default());
        storage.create_dir(Path::new("logs")).unwrap();
        let write = |name: String, body: &str| {
            storage.write_whole(&Path::new("logs").join(name), &[body.as_bytes()]).unwrap();
        };
        write(last_words::world_name(1), "verdict: no step was committed for 60 s\n");
        write(last_words::file_name(1, "here", 102), KILLED);
        let starved = format!("memory: out of memory: it struck\n{KILLED}");
        write(last_words::file_name(1, "here", 103), &starved);
        EventLog::new(storage.clone()).append(&end()).unwrap();
        let lost = of_the_last(storage.as_ref(), 2, Some(&world(1)));
        let causes: Vec<&str> = lost.iter().map(|lost| lost.cause.as_str()).collect();
        let starved = "out of memory: it struck; signal 9 (SIGKILL)";
        assert_eq!(causes, ["no step was committed for 60 s", starved]);
    }
}
