//! What the shared words between a rank and its guardian mean.

use std::time::Duration;

use kintsugi_ffi::shared::SharedWords;

use crate::config::Point;

/// How often a rank's ticker thread beats.
pub(super) const BEAT_EVERY: Duration = Duration::from_millis(100);
/// How often its guardian looks.
pub(super) const SAMPLE_EVERY: Duration = Duration::from_millis(100);

/// What a rank's communicating thread is about: points that have one time limit. Waiting in a
/// communicator is a word of its own: it happens within any of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// From its start to its first step: reading data, building the model, starting MPI.
    Starting,
    /// Computing steps.
    Step,
    /// Computing validation errors.
    Evaluation,
    /// Repairing the world.
    Recovery,
    /// Writing what the run ends with.
    Finish,
    /// The run is over for this process; it has alarms of its own for what is left.
    Over,
}

const ACTIVITIES: [Activity; 6] = [
    Activity::Starting,
    Activity::Step,
    Activity::Evaluation,
    Activity::Recovery,
    Activity::Finish,
    Activity::Over,
];

impl Activity {
    /// What begins at a point, or goes on. `None`: whatever was under way, as a comparison is
    /// behind a step or behind a repair.
    fn of(point: Point) -> Option<Self> {
        Some(match point {
            Point::InInit => Self::Starting,
            Point::InStep
            | Point::BeforeFirstCommit
            | Point::BeforeLoad
            | Point::InForward
            | Point::InBackward
            | Point::InSwapOut
            | Point::InSwapIn
            | Point::InRecompute
            | Point::InBucket
            | Point::InAllReduce
            | Point::BeforeVote => Self::Step,
            Point::InEvaluation => Self::Evaluation,
            Point::InRepair => Self::Recovery,
            Point::InFinalize => Self::Finish,
            Point::Over => Self::Over,
            Point::AfterVote
            | Point::InUpdate
            | Point::InPublish
            | Point::InSnapshot
            | Point::InPersist
            | Point::InComparison
            | Point::InResize => return None,
            // A newcomer comes through these while it starts, a change of size without a failure.
            Point::InRevoke
            | Point::InShrink
            | Point::InSpawn
            | Point::InMerge
            | Point::InRestore
            | Point::InTransfer => return None,
        })
    }

    /// For messages: "while ...".
    pub fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Step => "computing a step",
            Self::Evaluation => "evaluating",
            Self::Recovery => "repairing the world",
            Self::Finish => "finishing",
            Self::Over => "ending",
        }
    }
}

/// Words of the page.
const BEAT: usize = 0;
const PROGRESS: usize = 1;
const ACTIVITY: usize = 2;
const WAITING: usize = 3;
const STEP: usize = 4;
const TICKER: usize = 5;
const ENDED: usize = 6;
const LOADING: usize = 7;
/// Whether MPI has started.
const MET: usize = 9 + SEGMENT_BYTES_MAX / 8;
/// Length of the name below, in bytes.
const SEGMENT_LENGTH: usize = 8;
/// The name of this rank's own shared memory segment, eight bytes a word.
const SEGMENT: usize = 9;
const SEGMENT_BYTES_MAX: usize = 256;

/// What the guardian reads at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// Advanced by the ticker thread.
    pub beat: u64,
    /// Advanced by whatever the rank gets done.
    pub progress: u64,
    /// What it is about.
    pub activity: Activity,
    /// Whether its communicating thread is within a call of its communicator.
    pub waiting: bool,
    /// Whether a worker waits for samples: disks and networks have hiccups of their own.
    pub loading: bool,
    /// Committed steps, plus one while it computes the next; 0 before its first.
    pub step: u64,
}

/// The page, with names.
#[derive(Debug)]
pub struct Board(SharedWords);

impl Board {
    /// Over a page of zeros, or over one that a rank writes.
    pub fn over(words: SharedWords) -> Self {
        Self(words)
    }

    /// One more beat.
    pub fn beat(&self) {
        self.0.add(BEAT, 1);
    }

    /// Something was done.
    pub fn progress(&self) {
        self.0.add(PROGRESS, 1);
    }

    /// The communicating thread has come to a point, in this step (from 1). Only what is new is
    /// written, for most points of a step say nothing new.
    pub fn at(&self, point: Point, step: u64) {
        let Some(activity) = Activity::of(point) else { return };
        if activity != self.activity() {
            let number = ACTIVITIES.iter().position(|a| *a == activity).unwrap_or(0);
            self.0.set(ACTIVITY, number as u64);
            self.progress();
        }
        if activity == Activity::Step && step != self.0.get(STEP) {
            self.0.set(STEP, step);
            self.progress();
        }
    }

    fn activity(&self) -> Activity {
        let number = usize::try_from(self.0.get(ACTIVITY)).unwrap_or(0);
        ACTIVITIES.get(number).copied().unwrap_or(Activity::Starting)
    }

    /// A call of the communicator begins.
    pub fn waits(&self) {
        self.0.set(WAITING, 1);
        self.progress();
    }

    /// It has ended.
    pub fn waits_no_more(&self) {
        self.0.set(WAITING, 0);
        self.progress();
    }

    /// A worker begins to wait for samples.
    pub fn loads(&self) {
        self.0.add(LOADING, 1);
        self.progress();
    }

    /// It has got them.
    pub fn has_loaded(&self) {
        self.0.add(LOADING, u64::MAX);
        self.progress();
    }

    /// The thread that beats.
    pub fn set_ticker(&self, thread: u32) {
        self.0.set(TICKER, u64::from(thread));
    }

    /// The thread that beats, once it does.
    pub fn ticker(&self) -> Option<u32> {
        u32::try_from(self.0.get(TICKER)).ok().filter(|thread| *thread > 0)
    }

    /// MPI has started: from here on the others hear of this process's death.
    pub fn set_met(&self) {
        self.0.set(MET, 1);
    }

    /// Whether MPI has started.
    pub fn has_met(&self) -> bool {
        self.0.get(MET) != 0
    }

    /// The process is about to end in order: nobody needs to ask why.
    pub fn set_ended(&self) {
        self.0.set(ENDED, 1);
    }

    /// Whether it said so.
    pub fn ended(&self) -> bool {
        self.0.get(ENDED) == 1
    }

    /// Names the segment that dies with this rank; a name too long for the page is left to the
    /// janitor.
    pub fn set_segment(&self, name: &str) {
        if name.len() > SEGMENT_BYTES_MAX {
            return;
        }
        for (word, bytes) in name.as_bytes().chunks(8).enumerate() {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            self.0.set(SEGMENT + word, u64::from_le_bytes(padded));
        }
        self.0.set(SEGMENT_LENGTH, name.len() as u64);
    }

    /// The segment's name, if it is known.
    pub fn segment(&self) -> Option<String> {
        let length = usize::try_from(self.0.get(SEGMENT_LENGTH)).ok()?;
        if length == 0 || length > SEGMENT_BYTES_MAX {
            return None;
        }
        let words =
            (0..length.div_ceil(8)).flat_map(|word| self.0.get(SEGMENT + word).to_le_bytes());
        String::from_utf8(words.take(length).collect()).ok()
    }

    /// Everything that the judge needs. The words are read one by one, which does not matter where
    /// limits are a thousand times longer than a change.
    pub fn read(&self) -> Reading {
        Reading {
            beat: self.0.get(BEAT),
            progress: self.0.get(PROGRESS),
            activity: self.activity(),
            waiting: self.0.get(WAITING) == 1,
            loading: self.0.get(LOADING) > 0,
            step: self.0.get(STEP),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn board() -> Board {
        Board::over(SharedWords::create(c"test").unwrap().0)
    }

    #[test]
    fn what_the_rank_says_is_what_the_guardian_reads() {
        let board = board();
        let start = Reading {
            beat: 0,
            progress: 0,
            activity: Activity::Starting,
            waiting: false,
            loading: false,
            step: 0,
        };
        assert_eq!(board.read(), start);
        board.waits();
        board.at(Point::InStep, 7);
        board.beat();
        board.loads();
        board.loads();
        board.has_loaded();
        let now = board.read();
        assert_eq!((now.waiting, now.loading, now.step, now.beat), (true, true, 7, 1));
        board.has_loaded();
        board.waits_no_more();
        assert!(!board.read().loading && !board.read().waiting);
    }

    #[test]
    fn what_a_point_changes_is_progress_and_all_else_is_not_written() {
        let board = board();
        let beginnings = [
            (Point::InStep, Activity::Step),
            (Point::InEvaluation, Activity::Evaluation),
            (Point::InRepair, Activity::Recovery),
            (Point::InFinalize, Activity::Finish),
            (Point::Over, Activity::Over),
        ];
        for (point, activity) in beginnings {
            let before = board.read().progress;
            board.at(point, 7);
            assert_eq!((board.read().activity, board.read().step), (activity, 7));
            assert!(board.read().progress > before, "a change is progress");
            let same = board.read();
            board.at(point, 7);
            assert_eq!(board.read(), same, "{point:?} again");
        }
        board.at(Point::InStep, 8);
        let computing = board.read();
        for point in [Point::BeforeLoad, Point::InBucket, Point::InAllReduce, Point::BeforeVote] {
            board.at(point, 8);
        }
        assert_eq!(board.read(), computing, "nothing new in a step");
    }

    #[test]
    fn what_lies_within_a_step_or_a_repair_keeps_its_limit() {
        let within = [
            Point::AfterVote,
            Point::InComparison,
            Point::InResize,
            Point::InRevoke,
            Point::InSpawn,
            Point::InRestore,
            Point::InTransfer,
        ];
        for around in [Point::InInit, Point::InStep, Point::InRepair] {
            let board = board();
            board.at(around, 3);
            let before = board.read();
            within.iter().for_each(|point| board.at(*point, 4));
            assert_eq!(board.read(), before, "{around:?}");
        }
    }

    #[test]
    fn a_segments_name_crosses_whole_or_not_at_all() {
        let board = board();
        assert_eq!(board.segment(), None);
        for name in ["a", "sm_segment.node-17.0.a55a0001.3", &"x".repeat(SEGMENT_BYTES_MAX)] {
            board.set_segment(name);
            assert_eq!(board.segment().as_deref(), Some(name));
        }
        let fresh = self::board();
        fresh.set_segment(&"x".repeat(SEGMENT_BYTES_MAX + 1));
        assert_eq!(fresh.segment(), None);
    }
}
