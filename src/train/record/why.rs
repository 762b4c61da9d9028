//! Why a run goes no further, in words for its result.

use crate::observe::result::{ASKED_TO_STOP, LAUNCHER_GONE, Status};
use crate::train::TrainError;
use crate::train::state::position::{Ending, Position, ZERO_UPDATES_MAX};

/// Why a run goes no further.
#[derive(Debug, Clone, Copy)]
pub enum Why<'a> {
    /// All ranks agreed to end so.
    Agreed(Status),
    /// The same, as if they were asked to stop: their launch was killed.
    Orphaned,
    /// No step can be committed for now.
    Pause(&'a TrainError),
}

impl Why<'_> {
    /// The status that follows.
    pub fn status(self) -> Status {
        match self {
            Self::Agreed(status) => status,
            Self::Orphaned => Status::JobLost,
            Self::Pause(error) => error.status(),
        }
    }

    /// Whether another start would end the same way.
    pub fn is_conclusive(self) -> bool {
        matches!(self, Self::Pause(error) if error.is_conclusive())
    }
}

/// What is known of the run's checkpoints.
pub struct Saved<'a> {
    /// The newest step whose checkpoint is on disk and verified.
    pub published: Option<u64>,
    /// Why the newest checkpoint that was begun is not on disk.
    pub unwritten: Option<&'a str>,
}

/// Why steps make no update.
const NO_UPDATE: &str = "their sums were not finite or weights would be beyond 2^40";

/// Of a run that ends with this status.
pub fn reason(why: Why<'_>, status: Status, position: &Position, saved: &Saved<'_>) -> String {
    match why {
        Why::Agreed(_) => agreed(position, status, saved),
        Why::Orphaned => format!("{LAUNCHER_GONE}; {}", kept(position, saved)),
        Why::Pause(error) => format!("{error}; {}", kept(position, saved)),
    }
}

fn agreed(position: &Position, status: Status, saved: &Saved<'_>) -> String {
    if status == Status::Completed {
        let ended = match position.ending {
            Some(Ending::OutOfTime) => "train.max_seconds is reached".into(),
            Some(Ending::NoBetter) => no_better(position),
            _ => "all steps are committed".to_string(),
        };
        return match position.steps_without_update() {
            0 | 1 => ended,
            steps => format!(
                "{ended}, but the last ones ({steps}) changed no weight, since {NO_UPDATE}: the \
                 run seems to have diverged; lower optimizer.learning_rate"
            ),
        };
    }
    if position.ending == Some(Ending::Diverged) {
        return format!(
            "the run has diverged: the newest {ZERO_UPDATES_MAX} steps changed no weight, since \
                 {NO_UPDATE}; lower optimizer.learning_rate or look at the data \
                 (where the run says that tries differed: find what is damaged), and start anew \
                 with `launch --fresh`"
        );
    }
    if position.ending == Some(Ending::Renewed) {
        return "renewal: the last spare is gone, or launch asks for it; all ranks start again"
            .into();
    }
    if let Some(Ending::Completed | Ending::OutOfTime | Ending::NoBetter) = position.ending {
        let why = saved.unwritten.unwrap_or("no checkpoint of the last step is there");
        let ended = match position.ending {
            Some(Ending::NoBetter) => no_better(position),
            _ => "all steps are committed".into(),
        };
        return format!(
            "{ended}, but their weights are not on disk: {why}; mend that \
                 and go on with it, or name its folder by --run-dir and set checkpoint.every = \
                 \"never\" to do without them"
        );
    }
    format!("{ASKED_TO_STOP}; {}", kept(position, saved))
}

/// Of a run that `train.patience` ended.
fn no_better(position: &Position) -> String {
    let since = position.improvement.evaluations_since;
    let best = position.improvement.best.map_or_else(String::new, |best| {
        format!(": the best, {:.2} %, was behind step {}", best.error * 100.0, best.step)
    });
    format!("{since} evaluations in a row were no better (train.patience){best}")
}

/// What a run that pauses leaves.
fn kept(position: &Position, saved: &Saved<'_>) -> String {
    match saved.published {
        Some(step) if step == position.step => "a checkpoint is written".into(),
        Some(step) => format!("the newest checkpoint is of step {step}"),
        None => "no checkpoint could be written".into(),
    }
}
