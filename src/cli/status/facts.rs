//! What is known of a run: its world, its events and its result, and how `status` says so.

use std::borrow::Borrow;
use std::io;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use kintsugi_ffi::os;
use serde::Serialize;

use crate::cluster::world::{Member, Role, World};
use crate::config::Shown;
use crate::lab::report::episodes::episodes;
use crate::lab::report::read::read_result;
use crate::launch::nodes::scale::Picture;
use crate::observe::event::{Event, Kind, RESTART, name_of, names_of};
use crate::observe::ledger;
use crate::observe::log::{EVENTS_FILE, EventTail};
use crate::observe::progress::{clock, duration, gone_on_from, rate_of, speed_of};
use crate::observe::result::{RunResult, Status};
use crate::observe::standing::standing;
use crate::observe::storage::FileSystem;
use crate::run_folder::{has_ended, is_supervised};

use super::reading::Reading;

/// Silence after which nobody takes a run for one that goes on: as long as a start may take, and
/// longer than a repair may, unless these limits were raised.
pub(super) const SILENCE_SECONDS_MAX: f64 = 120.0;

/// Repairs that are shown.
const REPAIRS_SHOWN: usize = 5;

/// What is known.
#[derive(Debug, Default, Serialize)]
#[allow(missing_docs)]
pub(super) struct Report {
    pub(super) run: String,
    /// running | running (elsewhere): on other hosts, and heard of lately | silent: no process of
    /// it found, no result | the status of its result.
    pub(super) state: String,
    pub(super) reason: Option<String>,
    /// SLURM's number of its job, where that has several nodes.
    pub(super) job: Option<String>,
    /// Whether members are on other hosts.
    pub(super) elsewhere: bool,
    pub(super) attempt: u32,
    pub(super) generation: u32,
    pub(super) step: u64,
    pub(super) epoch: u64,
    pub(super) seconds: f64,
    /// Seconds since the last event, by this machine's clock.
    pub(super) last_event_seconds_ago: Option<f64>,
    pub(super) loss: Option<f64>,
    pub(super) validation_error: Option<f64>,
    pub(super) learning_rate: Option<f64>,
    pub(super) images_per_second: Option<f64>,
    pub(super) steps_per_second: Option<f64>,
    /// Where `train.steps` or `train.epochs` ends the run.
    pub(super) steps_total: Option<u64>,
    /// Seconds that each rank computes in a step, in rank order.
    pub(super) rank_seconds: Vec<f64>,
    pub(super) members: Vec<Member>,
    #[serde(flatten)]
    pub(super) reading: Reading,
    pub(super) recoveries: usize,
    /// All starts behind the first, as the result counts them.
    pub(super) restarts: usize,
    /// Of them, those after a failure.
    #[serde(skip)]
    pub(super) failed_starts: usize,
    /// The newest ones, a line each.
    #[serde(skip)]
    pub(super) repairs: Vec<String>,
    pub(super) recovery_seconds: f64,
    pub(super) lost_steps: u64,
    pub(super) result: Option<RunResult>,
}

pub(super) fn inspect(folder: &Path) -> io::Result<Report> {
    let mut events = Vec::new();
    let mut tail = EventTail::new(folder.join(EVENTS_FILE));
    tail.read_on(|event| events.push(event))?;
    report(folder, &events)
}

/// Where the run stands by the events that were read and the other files.
pub(super) fn report(folder: &Path, events: &[Event]) -> io::Result<Report> {
    let world = World::newest(folder)?;
    let result = read_result(folder)?.filter(|result| has_ended(folder, result));
    if events.is_empty() && world.is_none() && result.is_none() {
        let run = folder.shown();
        let text =
            format!("{run} holds no run: neither events.jsonl nor world.json nor result.json");
        return Err(io::Error::new(io::ErrorKind::NotFound, text));
    }
    let picture = Picture::read(&FileSystem::new(folder))?;
    let last = events.last();
    let members = world.as_ref().map(|world| world.members.clone()).unwrap_or_default();
    let ago = ago(events);
    let state = state_of(folder, &members, events, result.as_ref());
    let (recoveries, standing) = (episodes(events), standing(events));
    let restarts = events.iter().filter(|event| matches!(event.kind, Kind::Restarted { .. }));
    Ok(Report {
        run: folder.shown(),
        state,
        reason: result.as_ref().map(|result| result.reason.clone()),
        job: picture.map(|picture| picture.job),
        elsewhere: elsewhere(&members, &os::hostname()),
        attempt: last.map_or(0, |event| event.attempt),
        generation: world.as_ref().map_or(0, |world| world.generation),
        step: last.map_or(0, |event| event.step),
        epoch: newest(events, |kind| match kind {
            Kind::Step { epoch, .. } | Kind::RunStart { epoch, .. } => Some(*epoch),
            _ => None,
        })
        .unwrap_or(0),
        seconds: last.map_or(0.0, |event| event.seconds),
        last_event_seconds_ago: ago,
        loss: newest(&standing, |kind| match kind {
            Kind::Step { loss, .. } => Some(*loss),
            _ => None,
        }),
        validation_error: newest(&standing, |kind| match kind {
            Kind::Evaluation { error, .. } => Some(*error),
            _ => None,
        }),
        learning_rate: newest(&standing, |kind| match kind {
            Kind::Step { learning_rate, .. } => Some(*learning_rate),
            _ => None,
        }),
        images_per_second: speed(events).map(|speed| speed.0),
        steps_per_second: speed(events).map(|speed| speed.1),
        steps_total: newest(events, |kind| match kind {
            Kind::RunStart { steps_total, .. } => Some(*steps_total),
            _ => None,
        })
        .flatten(),
        rank_seconds: newest(events, |kind| match kind {
            Kind::Pace { rank_seconds } => Some(rank_seconds.clone()),
            _ => None,
        })
        .unwrap_or_default(),
        members,
        reading: Reading::of(events),
        // Not `sum`, which of nothing is -0.0.
        recovery_seconds: recoveries.iter().fold(0.0, |all, episode| all + episode.seconds()),
        lost_steps: lost_steps(folder, events)?,
        recoveries: recoveries.iter().filter(|episode| episode.rung != RESTART).count(),
        restarts: restarts.count(),
        failed_starts: recoveries.iter().filter(|episode| episode.rung == RESTART).count(),
        repairs: repairs(events),
        result,
    })
}

/// As the result counts them. Most runs never went back: their ledger need not be read.
fn lost_steps(folder: &Path, events: &[Event]) -> io::Result<u64> {
    let may_go_back = |kind: &Kind| match kind {
        Kind::Restarted { .. } => true,
        Kind::Recovered(record) => record.lost_steps > 0,
        _ => false,
    };
    if !events.iter().any(|event| may_go_back(&event.kind)) {
        return Ok(0);
    }
    Ok(ledger::lost_steps(&ledger::of_storage(&FileSystem::new(folder))?))
}

/// The newest repairs, the newest last.
fn repairs(events: &[Event]) -> Vec<String> {
    let told = events.iter().rev().filter_map(|event| match &event.kind {
        Kind::Recovered(record) => {
            let seconds = duration(record.seconds.values().sum());
            Some(format!(
                "  step {}: {} in {seconds}, lost {}",
                record.step,
                record.rung,
                names_of(&record.lost)
            ))
        }
        Kind::Restarted { from, lost_steps, lost, weights } => Some(format!(
            "  attempt {} from {} at step {}, {lost_steps} steps lost, lost {}",
            event.attempt,
            gone_on_from(from, weights.as_deref()),
            event.step,
            names_of(lost)
        )),
        _ => None,
    });
    let mut newest: Vec<String> = told.take(REPAIRS_SHOWN).collect();
    newest.reverse();
    newest
}

/// Seconds since the last event, by this machine's clock.
fn ago(events: &[Event]) -> Option<f64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64());
    events.last().map(|event| (now - event.time).max(0.0))
}

fn state_of(
    folder: &Path,
    members: &[Member],
    events: &[Event],
    result: Option<&RunResult>,
) -> String {
    match result.filter(|result| has_ended(folder, result)) {
        Some(result) => name_of(&result.status),
        None => match unfinished(members, ago(events), &os::hostname()) {
            // Between two attempts no rank lives.
            SILENT if is_supervised(folder) => "running".to_owned(),
            other => other.to_owned(),
        },
    }
}

/// How a run stands, in a word or two, by what was read of it.
///
/// # Errors
/// Nobody knows which processes are its: `world.json` cannot be read now.
pub(super) fn state(
    folder: &Path,
    events: &[Event],
    result: Option<&RunResult>,
) -> io::Result<String> {
    let members = World::newest(folder)?.map(|world| world.members).unwrap_or_default();
    Ok(state_of(folder, &members, events, result))
}

/// No process of a run found, no result.
const SILENT: &str = "silent";

/// The state of a run without a result, seen from `here`: processes of other hosts cannot be looked
/// at, but what they write can.
fn unfinished(members: &[Member], ago: Option<f64>, here: &str) -> &'static str {
    let lately = ago.is_some_and(|ago| ago <= SILENCE_SECONDS_MAX);
    if members.iter().any(|member| member.host == here && os::process_is_alive(member.pid)) {
        "running"
    } else if lately && elsewhere(members, here) {
        "running (elsewhere)"
    } else {
        SILENT
    }
}

fn elsewhere(members: &[Member], here: &str) -> bool {
    members.iter().any(|member| member.host != here)
}

fn newest<T>(events: &[impl Borrow<Event>], wanted: impl Fn(&Kind) -> Option<T>) -> Option<T> {
    events.iter().rev().find_map(|event| wanted(&event.borrow().kind))
}

/// Images and steps a second over the last reports of steps that stand, of the newest attempt.
fn speed(events: &[Event]) -> Option<(f64, f64)> {
    const REPORTS: usize = 50;
    let is_start = |event: &Event| matches!(event.kind, Kind::RunStart { .. });
    let start = events.iter().rposition(is_start).unwrap_or(0);
    let steps: Vec<(f64, u64, u64, f64)> = standing(&events[start..])
        .iter()
        .rev()
        .filter_map(|event| match event.kind {
            Kind::Step { samples, seconds, .. } => {
                Some((event.seconds, event.step, samples, seconds))
            }
            _ => None,
        })
        .take(REPORTS)
        .collect();
    let (newest, oldest) = (steps.first()?, steps.last()?);
    let length = newest.0 - oldest.0;
    let samples: u64 = steps.iter().map(|step| step.2).sum();
    let per_second = newest.1.saturating_sub(oldest.1) as f64 / length;
    let all = length + oldest.3;
    (length > 0.0 && all > 0.0).then(|| (samples as f64 / all, per_second))
}

impl Report {
    /// The job that may go on with the run by itself, once SLURM starts it again: a silent one, or
    /// one that says that it was to be put back into the queue.
    pub(super) fn queued(&self) -> Option<String> {
        let job = self.job.as_ref().map(|job| format!("job {job}"));
        match self.result.as_ref().map(|result| result.status) {
            None if self.state != "silent" => None,
            None => job.or_else(|| self.elsewhere.then(|| "its job".to_owned())),
            Some(Status::Interrupted | Status::JobLost) => job,
            Some(_) => None,
        }
    }

    /// How often it came back, and what that cost.
    pub(super) fn repaired(&self) -> String {
        let Self { recoveries, failed_starts: restarts, lost_steps, .. } = self;
        let continued = match self.restarts.saturating_sub(*restarts) {
            0 => String::new(),
            times => format!("gone on with {times} times, "),
        };
        let took = match recoveries + restarts {
            0 => String::new(),
            _ => format!(" in {}", duration(self.recovery_seconds)),
        };
        format!(
            "{recoveries} recoveries, {restarts} restarts{took}, {continued}{lost_steps} steps lost"
        )
    }

    pub(super) fn headline(&self) -> String {
        let queued = self.queued().map(|job| format!("{job} may be in SLURM's queue"));
        let more: Vec<String> = self.reason.clone().into_iter().chain(queued).collect();
        match more.is_empty() {
            true => format!("{}: {}", self.run, self.state),
            false => format!("{}: {} ({})", self.run, self.state, more.join("; ")),
        }
    }
}

pub(super) fn lines(report: &Report) -> String {
    let mut text = report.headline();
    text.push_str(&format!(
        "\nstep {}, epoch {}, {} of running, attempt {}, generation {}\n",
        report.steps_total.map_or(report.step.to_string(), |all| format!("{}/{all}", report.step)),
        report.epoch,
        clock(report.seconds),
        report.attempt,
        report.generation
    ));
    let mut figures = Vec::new();
    figures.extend(report.loss.map(|loss| format!("loss of the newest steps {loss:.4}")));
    figures.extend(report.validation_error.map(|e| format!("validation error {:.2}%", e * 100.0)));
    figures.extend(report.learning_rate.map(|rate| format!("learning rate {}", rate_of(rate))));
    figures.extend(report.images_per_second.map(|speed| format!("{} images/s", speed_of(speed))));
    figures
        .extend(report.last_event_seconds_ago.map(|ago| format!("last event {} ago", clock(ago))));
    text.push_str(&format!("{}\n", figures.join(", ")));
    text.push_str(&format!("{}\n", report.repaired()));
    if report.state == "silent" && report.queued().is_none() {
        text.push_str(
            "no process of it lives here: `kintsugi launch`, as before, goes on with it\n",
        );
    }
    report.repairs.iter().for_each(|line| text.push_str(&format!("{line}\n")));
    report.reading.lines().iter().for_each(|line| text.push_str(&format!("{line}\n")));
    for member in &report.members {
        let role = match member.role {
            Role::Active => format!("rank {}", member.rank),
            Role::Spare => "spare".to_string(),
        };
        let pace = report.rank_seconds.get(member.rank as usize);
        let pace = pace.filter(|_| member.role == Role::Active);
        let pace = pace.map_or(String::new(), |s| format!(", computes {} a step", duration(*s)));
        text.push_str(&format!(
            "  member {}: {role}, pid {} on {}{pace}\n",
            member.member, member.pid, member.host
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: &str = "login";

    fn member(host: &str, pid: u32) -> Member {
        Member { member: 0, rank: 0, role: Role::Active, pid, host: host.into(), node: 0 }
    }

    /// No process has this number: it is beyond the kernel's largest.
    const NOBODY: u32 = 1 << 30;

    #[test]
    fn a_run_on_other_hosts_is_running_as_long_as_it_is_heard_of() {
        let there = [member("n1", std::process::id()), member("n2", NOBODY)];
        let of = |ago: Option<f64>| unfinished(&there, ago, HERE);
        assert_eq!(of(Some(3.0)), "running (elsewhere)");
        assert_eq!(of(Some(SILENCE_SECONDS_MAX + 1.0)), "silent");
        assert_eq!(of(None), "silent");
    }

    #[test]
    fn processes_of_this_host_are_looked_at_themselves() {
        let alive = [member(HERE, std::process::id()), member("n2", NOBODY)];
        assert_eq!(unfinished(&alive, Some(1000.0), HERE), "running");
        // What it last wrote says nothing of a process that is known to be gone.
        assert_eq!(unfinished(&[member(HERE, NOBODY)], Some(1.0), HERE), "silent");
        assert_eq!(unfinished(&[], Some(1.0), HERE), "silent");
        // Its own member died; the others are heard of.
        let one_died = [member(HERE, NOBODY), member("n2", 1)];
        assert_eq!(unfinished(&one_died, Some(1.0), HERE), "running (elsewhere)");
    }

    #[test]
    fn what_cannot_be_read_is_said_and_not_shown_as_zeros() {
        for unreadable in [EVENTS_FILE, "world.json"] {
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join("world.json"), "damaged: passed over").unwrap();
            std::fs::write(folder.path().join(EVENTS_FILE), "").unwrap();
            assert!(state(folder.path(), &[], None).is_ok());
            // A folder is there, and no file that could be read.
            std::fs::remove_file(folder.path().join(unreadable)).unwrap();
            std::fs::create_dir(folder.path().join(unreadable)).unwrap();
            let error = inspect(folder.path()).expect_err("nobody knows how it stands");
            assert!(error.to_string().contains(unreadable), "{error}");
        }
    }
}
