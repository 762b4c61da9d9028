//! What the shared words between a rank and its guardian mean.

use std::time::Duration;

use kintsugi_ffi::shared::SharedWords;

/// How often a rank's ticker thread beats.
pub(super) const BEAT_EVERY: Duration = Duration::from_millis(100);
/// How often its guardian looks.
pub(super) const SAMPLE_EVERY: Duration = Duration::from_millis(100);

/// What a rank's communicating thread is about. Waiting in a communicator is a word of its own:
/// it happens within any of these.
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

    /// Something else is done from now on.
    pub fn set_activity(&self, activity: Activity) {
        let number = ACTIVITIES.iter().position(|a| *a == activity).unwrap_or(0);
        self.0.set(ACTIVITY, number as u64);
        self.progress();
    }

    /// A call of the communicator begins or has ended.
    pub fn set_waiting(&self, waiting: bool) {
        self.0.set(WAITING, u64::from(waiting));
        self.progress();
    }

    /// A worker begins to wait for samples, or has got them.
    pub fn set_loading(&self, loading: bool) {
        self.0.add(LOADING, if loading { 1 } else { u64::MAX });
        self.progress();
    }

    /// The step being computed, from 1.
    pub fn set_step(&self, step: u64) {
        self.0.set(STEP, step);
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
        let number = usize::try_from(self.0.get(ACTIVITY)).unwrap_or(0);
        Reading {
            beat: self.0.get(BEAT),
            progress: self.0.get(PROGRESS),
            activity: ACTIVITIES.get(number).copied().unwrap_or(Activity::Starting),
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
        for activity in ACTIVITIES {
            let before = board.read().progress;
            board.set_activity(activity);
            assert_eq!(board.read().activity, activity);
            assert!(board.read().progress > before, "a change is progress");
        }
        board.set_waiting(true);
        board.set_step(7);
        board.beat();
        for loading in [true, true, false] {
            board.set_loading(loading);
        }
        let now = board.read();
        assert_eq!((now.waiting, now.loading, now.step, now.beat), (true, true, 7, 1));
        board.set_loading(false);
        assert!(!board.read().loading);
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
