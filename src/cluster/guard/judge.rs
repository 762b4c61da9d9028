//! Decides whether a rank hangs, from what its guardian read of it over time. Pure: time comes in
//! with each sample, and the same history gives the same verdicts.

use std::collections::VecDeque;
use std::time::Duration;

use crate::config::{Limit, Recovery};

use super::board::{Activity, BEAT_EVERY, Reading, SAMPLE_EVERY};

/// Shortest silence of the ticker thread, which beats every 100 ms, that can mean a hang.
pub const SILENCE_MIN: Duration = Duration::from_secs(1);
/// The longest that a busy machine can stretch it to.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// So much silence is seen of a rank that nothing holds up: a beat's and a look's interval.
const SILENCE_REGULAR: Duration = BEAT_EVERY.saturating_add(SAMPLE_EVERY);
/// Silence counts as a hang when what it has beyond that is so many times longer than any that was
/// overcome: how rarely beats are looked at must not stretch the limit of a busy machine.
const SILENCE_FACTOR: u32 = 4;
/// A ticker that wants to run and gets no processor is the machine's fault: so much more patience.
const STARVED_FACTOR: u32 = 10;

/// Between two samples nobody lets more time pass, unless the guardian itself was held up: then
/// the whole node may have been. That time does not count, and no silence before it does.
pub const JUMP: Duration = Duration::from_millis(500);

/// A learned step limit is so many times the longest of the last steps.
const STEP_FACTOR: u32 = 10;
const STEPS_KEPT: usize = 64;
/// A learned limit is never shorter: disks and machines hiccup.
pub const STEP_LIMIT_MIN: Duration = Duration::from_secs(5);
/// An evaluation may take so many times the longest one before.
const EVALUATION_FACTOR: u32 = 4;

/// What a rank is given time for, from the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// `recovery.step_timeout`; `off`: nothing is ever killed.
    pub step: Limit,
    /// From a process's start to its first step.
    pub start: Duration,
    /// `recovery.time_limit`: the supervisor kills the world when no step is committed for so
    /// long, so a guardian has to be faster.
    pub time: Duration,
}

impl Limits {
    /// Of a first-born rank, or of a replacement, for which the others wait.
    pub fn of(recovery: &Recovery, joins: Joins) -> Self {
        let (start, time) = (recovery.start_limit.0, recovery.time_limit.0);
        let start = match joins {
            Joins::First => start,
            Joins::Later => start.min(time / 2),
        };
        Self { step: recovery.step_timeout, start, time }
    }
}

/// How a process came into the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Joins {
    /// With all others.
    First,
    /// As a replacement.
    Later,
}

/// What is to be done with the rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing.
    Lives,
    /// No beat for so long: stopped or frozen, unless its ticker is merely starved
    /// ([`silence_is_death`]).
    Silent(Duration),
    /// It beats, waits for nobody, and has done nothing for so long.
    Stuck(Activity, Duration),
}

/// A state of a thread as in /proc/PID/stat.
pub type ThreadState = char;

/// Whether a silence is a hang, given the ticker's state: one that is ready to run (R) lacks a
/// processor, one in the kernel's hands (D) memory or a disk, and both are given far more time.
/// `None`: the thread is gone. A ticker that was starved may have its turn in the moment in which
/// it is looked at, and sleep then as it should: so its beat is asked for once more, afterwards.
pub fn silence_is_death(
    silence: Duration,
    ticker: impl FnOnce() -> Option<ThreadState>,
    has_beaten: impl FnOnce() -> bool,
) -> bool {
    let starved = matches!(ticker(), Some('R' | 'D'));
    !has_beaten() && (!starved || silence > SILENCE_MAX * STARVED_FACTOR)
}

/// The history of one rank, as far as it matters.
#[derive(Debug)]
pub struct Judge {
    limits: Limits,
    last: Duration,
    beat: u64,
    beat_at: Duration,
    /// The longest silence beyond [`SILENCE_REGULAR`] that ended by itself.
    overcome: Duration,
    progress: u64,
    progress_at: Duration,
    step: u64,
    step_at: Duration,
    /// Lengths of the last steps.
    steps: VecDeque<Duration>,
    /// Since when it evaluates.
    evaluates_since: Option<Duration>,
    longest_evaluation: Option<Duration>,
}

impl Judge {
    /// `at`: the guardian's monotonic clock, as in every call of [`Judge::on`].
    pub fn new(limits: Limits, at: Duration) -> Self {
        Self {
            limits,
            last: at,
            beat: 0,
            beat_at: at,
            overcome: Duration::ZERO,
            progress: 0,
            progress_at: at,
            step: 0,
            step_at: at,
            steps: VecDeque::new(),
            evaluates_since: None,
            longest_evaluation: None,
        }
    }

    /// Takes a sample.
    pub fn on(&mut self, at: Duration, reading: Reading) -> Verdict {
        let gap = at.saturating_sub(self.last);
        self.last = at;
        if gap > JUMP {
            self.beat_at = at;
            let evaluates = self.evaluates_since.as_mut();
            let counted = [&mut self.progress_at, &mut self.step_at].into_iter().chain(evaluates);
            counted.for_each(|since| *since += gap);
        }
        if reading.beat != self.beat {
            let silence = at.saturating_sub(self.beat_at);
            self.overcome = self.overcome.max(silence.saturating_sub(SILENCE_REGULAR));
            (self.beat, self.beat_at) = (reading.beat, at);
        }
        self.learn(at, reading);
        if reading.progress != self.progress || reading.waiting {
            (self.progress, self.progress_at) = (reading.progress, at);
        }
        if self.limits.step == Limit::Off {
            return Verdict::Lives;
        }
        let silence = at.saturating_sub(self.beat_at);
        if silence > self.silence_limit() {
            return Verdict::Silent(silence);
        }
        let still = at.saturating_sub(self.progress_at);
        let patience = if reading.loading { self.limits.time / 2 } else { Duration::ZERO };
        match self.limit_of(reading.activity, reading.step) {
            Some(limit) if still > limit.max(patience) => Verdict::Stuck(reading.activity, still),
            _ => Verdict::Lives,
        }
    }

    fn learn(&mut self, at: Duration, reading: Reading) {
        if reading.step != self.step {
            let length = at.saturating_sub(self.step_at);
            let steps = u32::try_from(reading.step.saturating_sub(self.step)).unwrap_or(u32::MAX);
            // The first one holds the start.
            if self.step > 0 && steps > 0 {
                self.steps.push_back(length / steps);
                if self.steps.len() > STEPS_KEPT {
                    self.steps.pop_front();
                }
            }
            (self.step, self.step_at) = (reading.step, at);
        }
        match (self.evaluates_since, reading.activity == Activity::Evaluation) {
            (None, true) => self.evaluates_since = Some(at),
            (Some(since), false) => {
                let length = at.saturating_sub(since);
                self.longest_evaluation = self.longest_evaluation.max(Some(length));
                self.evaluates_since = None;
                // What an evaluation took is no part of the step around it.
                self.step_at = at;
            }
            _ => {}
        }
    }

    /// How long the ticker may be silent.
    pub fn silence_limit(&self) -> Duration {
        let stretched = SILENCE_REGULAR + self.overcome * SILENCE_FACTOR;
        stretched.clamp(SILENCE_MIN, SILENCE_MAX)
    }

    /// How long the rank may get nothing done in an activity while it waits for nobody; `None`: as
    /// long as it likes.
    pub fn limit_of(&self, activity: Activity, step: u64) -> Option<Duration> {
        let half = self.limits.time / 2;
        let learned = || {
            let longest = self.steps.iter().max().copied();
            longest.map(|longest| (longest * STEP_FACTOR).clamp(STEP_LIMIT_MIN.min(half), half))
        };
        let step_limit = match self.limits.step {
            Limit::Off => return None,
            Limit::Time(limit) => limit,
            Limit::Auto => learned().unwrap_or(half),
        };
        Some(match activity {
            Activity::Starting => self.limits.start,
            // The first step builds what the others use.
            Activity::Step if step <= 1 || self.steps.is_empty() => step_limit.max(half),
            Activity::Step => step_limit,
            Activity::Evaluation => {
                let longest = self.longest_evaluation.map(|longest| longest * EVALUATION_FACTOR);
                longest.map_or(half.max(step_limit), |limit| limit.max(step_limit))
            }
            Activity::Recovery => step_limit.max(STEP_LIMIT_MIN.min(half)),
            Activity::Finish => half.max(step_limit),
            Activity::Over => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SAMPLE: Duration = Duration::from_millis(100);
    const LIMITS: Limits = Limits {
        step: Limit::Auto,
        start: Duration::from_secs(120),
        time: Duration::from_secs(60),
    };

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    /// A rank that beats, computes steps of `step` seconds and does something every `tick`.
    fn lively(at: Duration, step: f64, tick: f64) -> Reading {
        let at = at.as_secs_f64();
        Reading {
            beat: (at / 0.1) as u64,
            progress: (at / tick) as u64,
            activity: Activity::Step,
            waiting: false,
            loading: false,
            step: 1 + (at / step) as u64,
        }
    }

    /// Samples every 100 ms until `end`; the first verdict that is not "lives", with its time.
    fn first(
        judge: &mut Judge,
        from: Duration,
        end: Duration,
        mut history: impl FnMut(Duration) -> Reading,
    ) -> Option<(Duration, Verdict)> {
        let mut at = from;
        while at < end {
            let verdict = judge.on(at, history(at));
            if verdict != Verdict::Lives {
                return Some((at, verdict));
            }
            at += SAMPLE;
        }
        None
    }

    fn at_rest() -> Reading {
        Reading { waiting: false, ..lively(seconds(20.0), 0.1, 0.05) }
    }

    /// A judge that has seen 20 s of steps of 0.1 s.
    fn practised(limits: Limits) -> Judge {
        let mut judge = Judge::new(limits, Duration::ZERO);
        let seen = first(&mut judge, SAMPLE, seconds(20.0), |at| lively(at, 0.1, 0.05));
        assert_eq!(seen, None);
        judge
    }

    #[test]
    fn a_stopped_rank_is_silent_after_a_second_whatever_it_was_doing() {
        for activity in [Activity::Starting, Activity::Step, Activity::Recovery, Activity::Over] {
            for waiting in [false, true] {
                let stopped = Reading { activity, waiting, ..at_rest() };
                let mut judge = practised(LIMITS);
                let seen = first(&mut judge, seconds(20.0), seconds(30.0), |_| stopped);
                let (at, verdict) = seen.expect("it is found");
                assert!(matches!(verdict, Verdict::Silent(_)), "{verdict:?}");
                assert!(at < seconds(21.3), "{activity:?} {waiting}: found after {at:?}");
            }
        }
    }

    /// Of a rank whose ticker was once silent for so long.
    fn limit_after(silence: f64) -> Duration {
        let mut judge = practised(LIMITS);
        let held_up = |at| Reading { beat: 200, ..lively(at, 0.1, 0.05) };
        assert_eq!(first(&mut judge, seconds(20.0), seconds(20.0 + silence), held_up), None);
        let back = seconds(20.0 + silence);
        assert_eq!(judge.on(back, lively(back, 0.1, 0.05)), Verdict::Lives);
        judge.silence_limit()
    }

    #[test]
    fn a_busy_machine_stretches_the_limit_by_what_held_beats_up_and_not_by_how_rarely_they_come() {
        assert_eq!(limit_after(0.4), SILENCE_MIN, "0.2 s of it are a beat's and a look's interval");
        let (short, long) = (limit_after(0.5), limit_after(0.9));
        assert!(short > seconds(1.3) && short < seconds(1.5), "{short:?}");
        assert!(long > seconds(2.9) && long < seconds(3.1), "{long:?}");
    }

    #[test]
    fn a_rank_that_waits_for_others_is_never_killed() {
        let mut judge = practised(LIMITS);
        let waiting =
            |at| Reading { waiting: true, progress: 7, step: 200, ..lively(at, 0.1, 0.05) };
        assert_eq!(first(&mut judge, seconds(20.0), seconds(4000.0), waiting), None);
        // And when the others came at last, its own time begins anew.
        let goes_on = |at| Reading { progress: 8, step: 200, ..lively(at, 0.1, 0.05) };
        assert_eq!(first(&mut judge, seconds(4000.0), seconds(4004.0), goes_on), None);
    }

    #[test]
    fn a_deadlock_or_a_loop_is_found_within_the_learned_limit() {
        let mut judge = practised(LIMITS);
        let stuck = |at| Reading { progress: 9999, step: 201, ..lively(at, 0.1, 0.05) };
        let (at, verdict) = first(&mut judge, seconds(20.0), seconds(60.0), stuck).unwrap();
        assert!(matches!(verdict, Verdict::Stuck(Activity::Step, _)), "{verdict:?}");
        assert!(at < seconds(20.0) + STEP_LIMIT_MIN + seconds(0.3), "found after {at:?}");
    }

    #[test]
    fn a_disk_that_stalls_is_given_more_time_than_a_step() {
        let mut judge = practised(LIMITS);
        let loading =
            |at| Reading { loading: true, progress: 9, step: 201, ..lively(at, 0.1, 0.05) };
        let (at, _) = first(&mut judge, seconds(20.0), seconds(90.0), loading).unwrap();
        assert!(at > seconds(20.0) + LIMITS.time / 2, "found after {at:?}");
    }

    #[test]
    fn long_steps_teach_long_limits_below_the_supervisors() {
        let mut judge = Judge::new(LIMITS, Duration::ZERO);
        let calm = first(&mut judge, SAMPLE, seconds(20.0), |at| lively(at, 2.0, 1.9));
        assert_eq!(calm, None);
        let limit = judge.limit_of(Activity::Step, 11).unwrap();
        assert!(limit >= seconds(19.0) && limit <= seconds(21.0), "{limit:?}");
        let calm = first(&mut judge, seconds(20.0), seconds(80.0), |at| lively(at, 20.0, 5.0));
        assert_eq!(calm, None);
        assert_eq!(judge.limit_of(Activity::Step, 40), Some(LIMITS.time / 2));
    }

    #[test]
    fn a_configured_limit_holds_but_for_what_takes_longer_by_nature() {
        let limits = Limits { step: Limit::Time(seconds(2.0)), ..LIMITS };
        let judge = practised(limits);
        assert_eq!(judge.limit_of(Activity::Step, 100), Some(seconds(2.0)));
        assert_eq!(judge.limit_of(Activity::Starting, 0), Some(LIMITS.start));
        assert_eq!(judge.limit_of(Activity::Evaluation, 100), Some(LIMITS.time / 2));
        assert_eq!(judge.limit_of(Activity::Recovery, 100), Some(STEP_LIMIT_MIN));
        assert_eq!(judge.limit_of(Activity::Over, 100), None);
        let fresh = Judge::new(limits, Duration::ZERO);
        assert_eq!(fresh.limit_of(Activity::Step, 1), Some(LIMITS.time / 2));
    }

    #[test]
    fn an_evaluation_has_a_limit_of_its_own_once_one_was_seen() {
        let mut judge = practised(LIMITS);
        let evaluating = |at| Reading { activity: Activity::Evaluation, ..lively(at, 0.1, 0.05) };
        assert_eq!(first(&mut judge, seconds(20.0), seconds(26.0), evaluating), None);
        judge.on(seconds(26.0), lively(seconds(26.0), 0.1, 0.05));
        let limit = judge.limit_of(Activity::Evaluation, 300).unwrap();
        assert!(limit >= seconds(23.0) && limit <= seconds(25.0), "{limit:?}");
    }

    #[test]
    fn off_lets_a_debugger_take_its_time() {
        let mut judge = practised(Limits { step: Limit::Off, ..LIMITS });
        assert_eq!(first(&mut judge, seconds(20.0), seconds(9000.0), |_| at_rest()), None);
    }

    #[test]
    fn a_guardian_that_was_itself_held_up_begins_again() {
        let mut judge = practised(LIMITS);
        // The whole node slept for a minute: its first look back proves nothing.
        assert_eq!(judge.on(seconds(80.0), at_rest()), Verdict::Lives);
        assert_eq!(first(&mut judge, seconds(80.05), seconds(80.9), |_| at_rest()), None);
        let found = first(&mut judge, seconds(80.9), seconds(90.0), |_| at_rest());
        assert!(matches!(found, Some((_, Verdict::Silent(_)))), "{found:?}");
    }

    #[test]
    fn a_guardian_that_is_held_up_now_and_then_finds_a_stuck_rank_all_the_same() {
        let mut judge = practised(LIMITS);
        let stuck = |at| Reading { progress: 9999, step: 201, ..lively(at, 0.1, 0.05) };
        let found = (0..20).find_map(|second| {
            let from = seconds(20.0 + f64::from(second));
            first(&mut judge, from, from + seconds(0.4), stuck)
        });
        let (at, verdict) = found.expect("it is found");
        assert!(matches!(verdict, Verdict::Stuck(Activity::Step, _)), "{verdict:?}");
        assert!(at < seconds(20.0) + STEP_LIMIT_MIN * 4, "found after {at:?}");
    }

    fn dies(silence: f64, ticker: Option<ThreadState>) -> bool {
        silence_is_death(seconds(silence), || ticker, || false)
    }

    #[test]
    fn a_beat_that_comes_while_the_ticker_is_looked_at_counts() {
        // It slept because it had beaten: seen after it was looked at.
        let looked = std::cell::Cell::new(false);
        let ticker = || {
            looked.set(true);
            Some('S')
        };
        assert!(!silence_is_death(seconds(9.0), ticker, || looked.get()));
    }

    #[test]
    fn a_ticker_that_lacks_a_processor_is_given_time() {
        assert!(dies(1.1, Some('T')));
        assert!(dies(1.1, Some('S')));
        assert!(dies(1.1, None));
        assert!(!dies(1.1, Some('R')));
        assert!(!dies(49.0, Some('D')));
        assert!(dies(51.0, Some('R')));
    }

    #[test]
    fn replacements_start_faster_than_the_supervisor_loses_patience() {
        let recovery = Recovery::default();
        assert_eq!(Limits::of(&recovery, Joins::First).start, recovery.start_limit.0);
        assert!(Limits::of(&recovery, Joins::Later).start < recovery.time_limit.0);
    }

    proptest! {
        /// Whatever lengths steps have and however late samples come: who gets on is not killed.
        #[test]
        fn no_rank_that_gets_on_is_killed(
            step in 0.005f64..3.0,
            ticks in 1u32..20,
            gaps in proptest::collection::vec(0.03f64..3.0, 200),
        ) {
            let mut judge = Judge::new(LIMITS, Duration::ZERO);
            let mut at = Duration::ZERO;
            for gap in gaps {
                at += seconds(gap);
                let verdict = judge.on(at, lively(at, step, step / f64::from(ticks)));
                prop_assert_eq!(verdict, Verdict::Lives, "at {:?}", at);
            }
        }
    }
}
