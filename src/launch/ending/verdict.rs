//! What follows from how an attempt ended: the run's end, or another start. Pure.

use std::collections::VecDeque;
use std::time::Duration;

use crate::cluster::guard::last_words::is_out_of_memory;
use crate::config::{Config, Rung, Span};
use crate::observe::event::{Event, Kind};
use crate::observe::result::{RunResult, Status};

/// Attempts in a row that may end without having brought the run forward.
pub const STALLED_ATTEMPTS_MAX: u32 = 3;

/// Deaths for want of memory, one after another within `STARVED_WITHIN_SECONDS`, that a run may
/// live through: replacements and attempts take what the dead had, and a step between two of them
/// mends nothing.
pub const STARVED_DEATHS_MAX: usize = 6;
/// See `STARVED_DEATHS_MAX`.
pub const STARVED_WITHIN_SECONDS: f64 = 600.0;

/// Of an attempt that was to end before its first step.
const FORESTALLED: &str = "asked to stop before this start committed a step, with nothing to save";

/// How an attempt ended, as its supervisor saw it.
#[derive(Debug, Clone, PartialEq)]
pub enum Ending {
    /// mpirun ended by itself: its exit code or signal, for people only.
    Exited(String),
    /// It was killed because no step was committed in time.
    Hung(String),
    /// It lost a node, which is known to be gone: which, and how that was seen.
    NodeLost(String),
    /// A process ended before MPI had started, and the others waited there for it: which, and why.
    Unstarted(String),
    /// No rank was left, and mpirun went on without: who was the first to end, and why.
    Deserted(String),
    /// Its ranks died of memory again and again: how often, and of what the last one did.
    Starved(String),
    /// Somebody asked for the end.
    Stopped,
    /// Somebody asked for the end before the attempt had committed anything, and nothing of the run
    /// was to be saved.
    Forestalled,
}

impl Ending {
    /// Why the whole world is killed at once, where it is.
    pub fn killed_for(&self) -> Option<&str> {
        match self {
            Self::Hung(why) | Self::NodeLost(why) | Self::Starved(why) => Some(why),
            Self::Forestalled => Some(FORESTALLED),
            Self::Exited(_) | Self::Unstarted(_) | Self::Deserted(_) | Self::Stopped => None,
        }
    }
}

/// What to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Next {
    /// The ranks' own result is the run's.
    Accept(Box<RunResult>),
    /// No rank could write one: this is it.
    Conclude(Status, String),
    /// Start again, for this reason.
    Restart(String),
}

/// Decides. `result` is what the ranks of this attempt wrote; `stalled` counts the attempts in a
/// row, this one included, that did not bring the run forward.
pub fn next(ending: &Ending, result: Option<RunResult>, stalled: u32, rungs: &[Rung]) -> Next {
    let reason = match (&result, ending) {
        (Some(result), _) if result.status != Status::JobLost || result.conclusive => {
            return Next::Accept(Box::new(result.clone()));
        }
        (_, Ending::Starved(why)) => return Next::Conclude(Status::NoProgress, why.clone()),
        (_, Ending::NodeLost(why)) => why.clone(),
        (Some(result), _) => result.reason.clone(),
        (None, Ending::Exited(how)) => format!("mpirun ended ({how}) without a result"),
        (None, Ending::Hung(why)) => why.clone(),
        (None, Ending::Unstarted(why)) => format!("the ranks could not start: {why}"),
        (None, Ending::Deserted(first)) => format!("no rank is left; the first to end: {first}"),
        (None, Ending::Forestalled) => {
            return Next::Conclude(Status::Interrupted, FORESTALLED.to_owned());
        }
        (None, Ending::Stopped) => "no rank could write a checkpoint in time".to_owned(),
    };
    if matches!(ending, Ending::Stopped | Ending::Forestalled) {
        let reason = format!("asked to stop; {reason}: the newest verified state counts");
        return Next::Conclude(Status::Interrupted, reason);
    }
    if !rungs.contains(&Rung::Restart) {
        return match result {
            Some(result) => Next::Accept(Box::new(result)),
            None => {
                let reason = format!("{reason}, and recovery.ladder has no \"restart\"");
                Next::Conclude(Status::JobLost, reason)
            }
        };
    }
    if stalled >= STALLED_ATTEMPTS_MAX {
        let reason =
            format!("{stalled} attempts in a row committed no further step; the last: {reason}");
        return Next::Conclude(Status::NoProgress, reason);
    }
    Next::Restart(reason)
}

/// Whether the supervisor may start the world again.
pub fn may_restart(config: &Config) -> bool {
    config.recovery.rungs().contains(&Rung::Restart)
}

/// How far the run has come, over all attempts.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// The furthest step ever committed.
    furthest: u64,
    /// The furthest step an attempt began from.
    furthest_start: u64,
    forward: bool,
    stalled: u32,
    /// Whether this attempt has committed a step.
    committing: bool,
    /// The step of the newest checkpoint.
    saved: u64,
    /// Whether the ranks of this attempt have met.
    met: bool,
    /// A rank waits for its data set: nothing was committed since it said so.
    waiting: bool,
    /// When ranks died of memory, in seconds of the run, and of what the last one did.
    starved: VecDeque<f64>,
    starved_last: String,
}

impl History {
    /// A start of mpirun. `committed`: the newest step that the ledger counts.
    pub fn attempt_begins(&mut self, committed: u64) {
        self.furthest = self.furthest.max(committed);
        self.forward = false;
        self.committing = false;
        self.met = false;
        self.waiting = false;
    }

    /// Takes one event; says whether it shows that the world is alive and well.
    pub fn on(&mut self, event: &Event) -> bool {
        self.met |= matches!(event.kind, Kind::RunStart { .. } | Kind::Step { .. });
        let lost = match &event.kind {
            Kind::Recovered(record) => &record.lost[..],
            Kind::Restarted { lost, .. } => &lost[..],
            _ => &[],
        };
        if let Some(lost) = lost.iter().find(|lost| is_out_of_memory(&lost.cause)) {
            self.starve(event.seconds, &lost.cause);
        }
        match &event.kind {
            Kind::Checkpoint { name, .. } => {
                let step = name.strip_prefix("step-").and_then(|step| step.parse().ok());
                self.saved = step.unwrap_or(self.saved);
                false
            }
            // A later starting point is progress too: failures may be denser than epochs.
            Kind::RunStart { .. } if event.step > self.furthest_start => {
                self.furthest_start = event.step;
                self.forward = true;
                false
            }
            Kind::Waiting { .. } | Kind::Staging(_) => {
                self.waiting = true;
                true
            }
            Kind::Step { .. } => {
                self.on_commit(event.step);
                true
            }
            // Long ones are no reason to suspect the world, once they are done.
            Kind::Evaluation { .. } | Kind::Epoch { .. } => {
                self.waiting = false;
                self.committing
            }
            _ => false,
        }
    }

    /// Takes a step of this attempt that was committed, whoever says so.
    pub fn on_commit(&mut self, step: u64) {
        self.committing = true;
        self.waiting = false;
        self.forward |= step > self.furthest;
        self.furthest = self.furthest.max(step);
    }

    /// The end of mpirun; returns how many attempts in a row did not bring the run forward. One
    /// that lost a node is not held against them: that node is left out from now on. Short steps
    /// share an event, which their ranks may not live to write: `committed` knows of them.
    pub fn attempt_ends(&mut self, ending: &Ending, committed: u64) -> u32 {
        self.forward |= committed > self.furthest;
        self.furthest = self.furthest.max(committed);
        self.stalled = match ending {
            _ if self.forward => 0,
            Ending::NodeLost(_) => self.stalled,
            _ => self.stalled + 1,
        };
        self.stalled
    }

    /// Another launch, for which somebody may have made room.
    pub fn launch_begins(&mut self) {
        self.starved.clear();
    }

    fn starve(&mut self, seconds: f64, cause: &str) {
        if self.starved.len() > STARVED_DEATHS_MAX {
            self.starved.pop_front();
        }
        self.starved.push_back(seconds);
        cause.clone_into(&mut self.starved_last);
    }

    /// Why no further attempt or repair helps, where memory is too short for this run.
    pub fn starves(&self) -> Option<String> {
        let (first, last) = (self.starved.front()?, self.starved.back()?);
        let often = self.starved.len() > STARVED_DEATHS_MAX;
        (often && last - first <= STARVED_WITHIN_SECONDS).then(|| {
            format!(
                "ranks died of memory {} times within {:.0} s; the last: {}; give the run more \
                 memory, or lower data.cache, train.workers, train.global_batch or the number of \
                 ranks",
                self.starved.len(),
                last - first,
                self.starved_last
            )
        })
    }

    /// Whether its ranks have met, so that a death is theirs to repair.
    pub fn met(&self) -> bool {
        self.met
    }

    /// Whether the attempt has committed a step yet.
    pub fn committing(&self) -> bool {
        self.committing
    }

    /// Whether the newest checkpoint is of this step; without any, whether it is the start.
    pub fn has_saved(&self, step: u64) -> bool {
        self.saved == step
    }

    /// What the attempt is waited for.
    pub fn awaited(&self) -> Awaited {
        match (self.waiting, self.committing) {
            (true, _) => Awaited::Data,
            (false, true) => Awaited::NextStep,
            (false, false) => Awaited::FirstStep,
        }
    }
}

/// See [`hung`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Awaited {
    /// The attempt has committed nothing yet.
    FirstStep,
    /// It has.
    NextStep,
    /// The data set's storage is to come back first.
    Data,
}

/// Why a silence of this length ends the attempt, if it does.
pub fn hung(config: &Config, awaited: Awaited, silence: Duration) -> Option<String> {
    let recovery = &config.recovery;
    let (limit, key, what) = match awaited {
        Awaited::NextStep => {
            (recovery.time_limit, "recovery.time_limit", "no step was committed for")
        }
        Awaited::FirstStep => {
            (recovery.start_limit, "recovery.start_limit", "no first step was committed in")
        }
        // The ranks end by themselves when their patience is over.
        Awaited::Data => {
            let limit = Span(config.data.patience.0.saturating_add(recovery.time_limit.0));
            let keys = "data.patience and recovery.time_limit";
            (limit, keys, "the ranks waited for their data set for more than")
        }
    };
    (silence > limit.0).then(|| format!("{what} {limit} ({key}): the world was killed"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::account::from_nothing;
    use crate::observe::event::{Lost, samples};

    fn result(status: Status) -> Option<RunResult> {
        Some(from_nothing("r", 1, status, "because"))
    }

    fn exited() -> Ending {
        Ending::Exited("exit code 0".into())
    }

    #[test]
    fn what_the_ranks_wrote_counts_whatever_mpirun_says() {
        for status in
            [Status::Completed, Status::Interrupted, Status::DataError, Status::NoProgress]
        {
            for ending in [exited(), Ending::Hung("late".into()), Ending::Stopped] {
                let next = next(&ending, result(status), 9, &[Rung::Restart]);
                assert!(matches!(next, Next::Accept(r) if r.status == status));
            }
        }
    }

    #[test]
    fn an_exit_code_of_0_without_a_result_is_not_success() {
        assert!(matches!(next(&exited(), None, 0, &[Rung::Restart]), Next::Restart(_)));
        assert!(matches!(
            next(&exited(), result(Status::JobLost), 1, &[Rung::Restart]),
            Next::Restart(_)
        ));
        let end = next(&exited(), None, 0, &[]);
        assert!(matches!(end, Next::Conclude(Status::JobLost, _)));
    }

    #[test]
    fn a_crash_loop_ends() {
        let mut history = History::default();
        for attempt in 1..=STALLED_ATTEMPTS_MAX {
            history.attempt_begins(0);
            let stalled = history.attempt_ends(&exited(), 0);
            let next = next(&exited(), None, stalled, &[Rung::Restart]);
            let ends = matches!(next, Next::Conclude(Status::NoProgress, _));
            assert_eq!(ends, attempt == STALLED_ATTEMPTS_MAX, "attempt {attempt}");
        }
    }

    #[test]
    fn a_lost_node_is_named_and_not_held_against_the_run() {
        let lost = Ending::NodeLost("node n3 was lost".into());
        let mut history = History::default();
        for _ in 0..2 * STALLED_ATTEMPTS_MAX {
            history.attempt_begins(0);
            let stalled = history.attempt_ends(&lost, 0);
            let next = next(&lost, result(Status::JobLost), stalled, &[Rung::Restart]);
            assert_eq!(next, Next::Restart("node n3 was lost".into()));
        }
        let done = next(&lost, result(Status::Completed), 0, &[Rung::Restart]);
        assert!(matches!(done, Next::Accept(_)));
    }

    #[test]
    fn asked_to_stop_is_never_a_restart() {
        for result in [None, result(Status::JobLost)] {
            for ending in [Ending::Stopped, Ending::Forestalled] {
                let next = next(&ending, result.clone(), 0, &[Rung::Restart]);
                assert!(matches!(next, Next::Conclude(Status::Interrupted, _)));
            }
        }
    }

    #[test]
    fn what_is_on_disk_is_known_by_the_newest_checkpoint() {
        let mut history = History::default();
        assert!(history.has_saved(0) && !history.has_saved(1));
        let of = |step: u64| Kind::Checkpoint {
            name: format!("step-{step:08}"),
            bytes: 1,
            stall_seconds: 0.0,
            snapshot_seconds: 0.0,
            write_seconds: 0.0,
            verify_seconds: 0.0,
        };
        for of in [of(20), of(40)] {
            history.on(&Event { kind: of, ..step(41) });
        }
        history.attempt_begins(41);
        assert!(history.has_saved(40) && !history.has_saved(41));
    }

    fn step(step: u64) -> Event {
        samples::event(step, 0.0, samples::step(1, 0.0))
    }

    #[test]
    fn steps_committed_before_do_not_count_as_progress_again() {
        let mut history = History::default();
        for (last, expected) in [(5, 0), (5, 1), (4, 2), (6, 0), (6, 1)] {
            history.attempt_begins(0);
            assert!(!history.committing());
            for number in 3..=last {
                assert!(history.on(&step(number)));
            }
            assert!(history.committing());
            assert_eq!(history.attempt_ends(&exited(), 0), expected, "until step {last}");
        }
    }

    #[test]
    fn steps_that_no_event_told_are_progress_where_the_ledger_has_them() {
        let mut history = History::default();
        let mut before = 0;
        for (last, expected) in [(1, 0), (4, 0), (7, 0), (7, 1), (3, 2), (8, 0)] {
            history.attempt_begins(before);
            assert_eq!(history.attempt_ends(&exited(), last), expected, "until step {last}");
            before = last;
        }
        // What an earlier launch has committed is nothing that this one did.
        let mut history = History::default();
        history.attempt_begins(7);
        assert_eq!(history.attempt_ends(&exited(), 7), 1);
    }

    #[test]
    fn a_start_that_fails_is_a_stalled_attempt_whose_reason_names_the_cause() {
        let unstarted = Ending::Unstarted("rank 1 was out of memory".into());
        let mut history = History::default();
        history.attempt_begins(0);
        assert!(!history.met());
        let stalled = history.attempt_ends(&unstarted, 0);
        assert_eq!(stalled, 1);
        let next = next(&unstarted, None, STALLED_ATTEMPTS_MAX, &[Rung::Restart]);
        let Next::Conclude(Status::NoProgress, reason) = next else { panic!("{next:?}") };
        assert!(reason.ends_with("could not start: rank 1 was out of memory"), "{reason}");
        history.on(&step(1));
        assert!(history.met(), "from here on deaths are the ranks' to repair");
        history.attempt_begins(0);
        assert!(!history.met());
    }

    #[test]
    fn deaths_for_want_of_memory_end_a_run_unless_they_are_rare() {
        let dies = |seconds, cause: &str| {
            let (member, rank, host) = (1, 1, "h".into());
            let lost = vec![Lost { member, rank, host, cause: cause.into() }];
            let kind =
                Kind::Restarted { from: "resident".into(), lost_steps: 0, lost, weights: None };
            Event { kind, seconds, ..step(4) }
        };
        let starves = |apart: f64, cause: &str| {
            let mut history = History::default();
            for death in 0..=STARVED_DEATHS_MAX {
                assert_eq!(history.starves(), None, "{death} deaths");
                history.on(&dies(apart * death as f64, cause));
                history.on(&step(5 + death as u64));
            }
            history.starves()
        };
        let why = starves(30.0, "probably out of memory: the OOM killer").unwrap();
        assert!(why.contains("7 times within 180 s") && why.contains("data.cache"), "{why}");
        assert_eq!(starves(3600.0, "out of memory: the OOM killer"), None);
        assert_eq!(starves(30.0, "signal 9 (SIGKILL)"), None);
        let ending = Ending::Starved(why.clone());
        assert_eq!(ending.killed_for(), Some(&why[..]));
        let next = next(&ending, None, 0, &[Rung::Restart]);
        assert_eq!(next, Next::Conclude(Status::NoProgress, why));
    }

    #[test]
    fn the_first_step_has_a_limit_of_its_own() {
        let config = Config::default();
        let between = Duration::from_secs(90);
        assert_eq!(hung(&config, Awaited::FirstStep, between), None);
        assert!(hung(&config, Awaited::NextStep, between).unwrap().contains("recovery.time_limit"));
        assert!(
            hung(&config, Awaited::FirstStep, between * 2)
                .unwrap()
                .contains("recovery.start_limit")
        );
    }

    #[test]
    fn a_world_that_waits_for_its_data_is_left_alone_until_its_patience_is_over() {
        let config = Config::default();
        let mut history = History::default();
        history.attempt_begins(0);
        history.on(&step(4));
        assert_eq!(history.awaited(), Awaited::NextStep);
        let waiting = Kind::Waiting { reason: "gone".into(), patience_seconds: 600.0 };
        assert!(history.on(&Event { kind: waiting.clone(), ..step(4) }), "a sign of life");
        assert_eq!(history.awaited(), Awaited::Data);
        let (waits, too_long) = (Duration::from_secs(640), Duration::from_secs(661));
        assert_eq!(hung(&config, history.awaited(), waits), None);
        assert!(hung(&config, history.awaited(), too_long).unwrap().contains("data.patience"));
        history.on(&step(5));
        assert_eq!(history.awaited(), Awaited::NextStep, "it goes on");
        assert!(history.on(&Event { kind: waiting, ..step(5) }), "the step was under way");
        assert_eq!(history.awaited(), Awaited::Data, "the newest word counts");
    }

    #[test]
    fn ranks_that_lost_their_data_are_not_started_again() {
        let mut lost = result(Status::JobLost).unwrap();
        lost.conclusive = true;
        assert!(matches!(next(&exited(), Some(lost), 0, &[Rung::Restart]), Next::Accept(_)));
    }
}
