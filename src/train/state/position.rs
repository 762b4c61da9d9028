//! Where a run stands: everything of its state that is not a tensor. The same on every rank after
//! each commit; it travels with the tensors to newcomers and into checkpoints.

use serde::{Deserialize, Serialize};

use crate::config::{Every, ExchangeKind, Interval};
use crate::observe::event::Kind;
use crate::observe::ledger::Committed;
use crate::observe::result::{Best, Status};

use crate::train::fixed_point::Grid;
use crate::train::plan::Plan;
use crate::train::state::arithmetic;
use crate::train::state::best::{Cause, Improvement};
use crate::train::state::contents::Contents;

/// Ledger lines that every rank keeps, so that a dead writer leaves no gap.
pub const LEDGER_TAIL_MAX: usize = 64;

/// Steps in a row that may be committed without an update.
pub const ZERO_UPDATES_MAX: usize = 10;

/// Why the run ends after this step: agreed by all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Ending {
    Completed,
    OutOfTime,
    /// `train.patience` evaluations in a row were no better.
    NoBetter,
    Interrupted,
    /// The spares are used up: the run goes on from here at full strength.
    Renewed,
    /// Step after step changes no weight.
    Diverged,
}

impl Ending {
    /// How the run ends by it.
    pub fn status(self) -> Status {
        match self {
            Self::Completed | Self::OutOfTime | Self::NoBetter => Status::Completed,
            Self::Interrupted => Status::Interrupted,
            // What makes the supervisor start it again.
            Self::Renewed => Status::JobLost,
            Self::Diverged => Status::NoProgress,
        }
    }

    /// Whether the run ends before its end, where nothing is left to be measured.
    pub fn is_a_pause(self) -> bool {
        matches!(self, Self::Interrupted | Self::Renewed | Self::Diverged)
    }
}

/// The position after a committed step.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Position {
    /// Committed steps (rounds, in the asynchronous exchange).
    pub step: u64,
    /// Committed samples.
    pub cursor: u64,
    /// An evaluation was asked for and has not been completed.
    pub evaluation_due: bool,
    /// Run time of the last evaluation, milliseconds, by the writer's clock.
    pub evaluated_ms: u64,
    /// Last validation error, a fraction.
    pub last_error: Option<f64>,
    /// Smallest validation error.
    pub best_error: Option<f64>,
    /// Whether the bits still are those of a run without failures.
    pub exact: bool,
    /// What the ranks compute with; several, joined, where they are not alike. Empty before the
    /// first start, and in a state of an earlier release, which did not say.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub arithmetic: String,
    /// The newest ledger lines, oldest first.
    pub ledger_tail: Vec<Committed>,
    /// All ranks agreed to end here.
    pub ending: Option<Ending>,
    /// The last step after which all ranks were found to hold the same state.
    pub verified: u64,
    /// Times the run has gone back to it without reaching the next comparison.
    pub gone_back: u32,
    /// Asynchronous exchange: micro-batches committed of each owner; empty otherwise.
    pub owner_batches: Vec<u64>,
    /// The number of ranks is to be looked at before the next step.
    pub resize_due: bool,
    /// The newest evaluation.
    pub evaluation: Option<Evaluated>,
    /// The best evaluation, and those behind it.
    pub improvement: Improvement,
    /// Samples of the epoch at hand that were skipped.
    pub skipped_in_epoch: u64,
    /// What the samples of its epochs were.
    #[serde(skip_serializing_if = "Contents::is_none")]
    pub contents: Contents,
    /// The grid on which the next step is summed; none in the asynchronous exchange.
    #[serde(skip_serializing_if = "Grid::is_empty")]
    pub grid: Grid,
}

/// What an evaluation found: the same on every rank, so that each can tell it when its writer dies.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Evaluated {
    /// The attempt that made it.
    pub attempt: u32,
    /// The step behind which it was made.
    pub step: u64,
    /// A fraction, 0 to 1.
    pub error: f64,
    /// With the running average of the weights, where the run keeps one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub average_error: Option<f64>,
    /// The mean loss, as the bits of an f64: JSON has no word for one that is no number.
    pub loss_bits: u64,
    /// Samples of the validation set.
    pub samples: u64,
    /// When the writer had computed its share, in the run's time, milliseconds.
    pub at_ms: u64,
    /// What that share took it, milliseconds.
    pub took_ms: u64,
}

impl Evaluated {
    /// Its line, which took the writer so many seconds.
    pub fn event(&self, seconds: f64) -> Kind {
        let (error, loss) = (self.error, f64::from_bits(self.loss_bits));
        let average_error = self.average_error;
        Kind::Evaluation { error, average_error, loss, samples: self.samples, seconds }
    }
}

impl Position {
    /// The position before the first step.
    pub fn start() -> Self {
        Self { exact: true, ..Self::default() }
    }

    /// That of the newest committed step.
    pub fn epoch(&self) -> u64 {
        self.ledger_tail.last().map_or(0, |line| line.epoch)
    }

    /// Whether the replicas have to be compared before anything is done with them: at their
    /// interval, and at the end of the run.
    pub fn is_to_be_compared(&self, every: Interval) -> bool {
        let Interval::Steps(every) = every else { return false };
        self.step > self.verified && (self.step.is_multiple_of(every) || self.ending.is_some())
    }

    /// For the wire and for a resident slot: the same bytes on every rank that holds the same.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a position is plain data")
    }

    /// Reads what `encode` wrote.
    ///
    /// # Errors
    /// Bytes that are no position.
    pub fn decode(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }

    /// How many of its last steps changed no weight though they computed samples, as far as it is
    /// remembered.
    pub fn steps_without_update(&self) -> usize {
        without_update(&self.ledger_tail).count()
    }

    /// Ends a run that has nothing left to do, for example one that goes on from a checkpoint of
    /// its last step, or whose steps change nothing.
    pub fn settle(&mut self, plan: &Plan) {
        // What an earlier start owes is made only where there still are evaluations.
        self.evaluation_due &= plan.evaluates();
        if has_diverged(&self.ledger_tail) {
            return self.end(Ending::Diverged, plan);
        }
        let done = plan.steps_max.is_some_and(|max| self.step >= max)
            || plan.samples_max.is_some_and(|max| self.cursor >= max);
        let since = self.improvement.evaluations_since;
        if done {
            self.end(Ending::Completed, plan);
        } else if plan.patience_evaluations.is_some_and(|most| since >= most) {
            // Its last evaluation is what says so: no other one is due.
            self.ending = Some(Ending::NoBetter);
        }
    }

    /// All ranks agreed to end after this step; a run that is not to go on is evaluated once more.
    pub fn end(&mut self, ending: Ending, plan: &Plan) {
        self.ending = Some(ending);
        if !ending.is_a_pause() {
            self.evaluation_due |= plan.evaluates();
        }
    }

    /// An attempt goes on from here. The asynchronous exchange's bits depend on timing.
    pub fn go_on_with(&mut self, exchange: ExchangeKind) -> &mut Self {
        self.exact &= exchange == ExchangeKind::Synchronous;
        self
    }

    /// From here on ranks compute with these, in rank order. False where that gives other bits than
    /// those so far, or bits that hang on which rank computes what.
    pub fn compute_with(&mut self, kinds: &[String]) -> bool {
        let kinds = arithmetic::distinct(kinds);
        let now = kinds.join(" and ");
        let same = kinds.len() < 2 && (self.step == 0 || self.arithmetic == now);
        self.arithmetic = now;
        self.exact &= same;
        same
    }

    /// Appends a committed step's ledger line.
    pub fn commit(&mut self, line: Committed) {
        self.step = line.step;
        self.cursor = line.cursor;
        self.skipped_in_epoch += line.skipped;
        if self.ledger_tail.len() == LEDGER_TAIL_MAX {
            self.ledger_tail.remove(0);
        }
        self.ledger_tail.push(line);
    }

    /// How many of the newest steps in a row had samples of which none could be decoded.
    pub fn undecoded_steps(&self) -> usize {
        let tried = self.ledger_tail.iter().rev().filter(|line| line.count > 0);
        tried.take_while(|line| line.computed() == 0).count()
    }

    /// Why an evaluation behind this step is made. By the step alone: a run that ends here and is
    /// made longer counts what one does that was to be so long from the start.
    fn cause(&self, plan: &Plan) -> Cause {
        let is_synchronous = self.owner_batches.is_empty();
        let at_interval = match plan.evaluation {
            Every::Steps(steps) => self.step.is_multiple_of(steps),
            Every::Epoch | Every::Auto if is_synchronous => {
                self.cursor.is_multiple_of(plan.samples_per_epoch)
            }
            // By time, or rounds that end where they do.
            _ => true,
        };
        if at_interval { Cause::Interval } else { Cause::End }
    }

    /// Records a completed evaluation, which may be one too many without a better error.
    pub fn evaluated(&mut self, found: Evaluated, plan: &Plan) {
        let Evaluated { error, at_ms, .. } = found;
        self.evaluation_due = false;
        self.evaluated_ms = at_ms;
        self.evaluation = Some(found);
        self.last_error = Some(error);
        let found = Best::of(found.step, error, found.average_error);
        self.best_error = Some(self.best_error.map_or(found.error, |best| best.min(found.error)));
        self.improvement.judge(found, self.cause(plan));
        if self.ending.is_none() {
            self.settle(plan);
        }
    }
}

/// Whether the newest steps that computed any samples changed no weight.
fn has_diverged(ledger_tail: &[Committed]) -> bool {
    without_update(ledger_tail).take(ZERO_UPDATES_MAX).count() == ZERO_UPDATES_MAX
}

/// Those of the newest steps that changed no weight though they computed samples.
fn without_update(ledger_tail: &[Committed]) -> impl Iterator<Item = &Committed> {
    let newest = ledger_tail.iter().rev().filter(|line| line.computed() > 0);
    newest.take_while(|line| line.zero_update)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_steps_in_a_row_without_an_update_are_too_many() {
        let line = |zero_update, count| Committed {
            step: 1,
            epoch: 0,
            cursor: 0,
            count,
            skipped: 0,
            mix: 0,
            attempt: 1,
            zero_update,
        };
        let zero = line(true, 4);
        assert!(!has_diverged(&[zero; 9]) && has_diverged(&[zero; 10]));
        let mut tail = vec![zero; 12];
        tail.push(line(false, 0));
        assert!(has_diverged(&tail), "an empty round proves nothing");
        tail.insert(6, Committed { skipped: 1, ..line(true, 1) });
        assert!(has_diverged(&tail), "nor does a step of which no sample could be decoded");
        assert!(!has_diverged(&[Committed { skipped: 4, ..zero }; 12]));
        tail.push(line(false, 4));
        assert!(!has_diverged(&tail));
    }

    #[test]
    fn other_instructions_have_other_bits() {
        let kinds =
            |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let at = |step, arithmetic: &str| {
            let arithmetic = arithmetic.to_owned();
            Position { step, arithmetic, ..Position::start() }
        };
        let exact = |mut position: Position, names: &[&str]| {
            let same = position.compute_with(&kinds(names));
            assert_eq!(same, position.exact);
            (same, position.arithmetic)
        };
        assert_eq!(exact(at(0, "a"), &["b", "b"]), (true, "b".into()), "nothing was computed");
        assert_eq!(
            exact(at(7, ""), &["a"]),
            (false, "a".into()),
            "an earlier release, another build"
        );
        assert_eq!(exact(at(7, "a"), &["a", "a"]), (true, "a".into()));
        assert_eq!(exact(at(7, "a"), &["b", "b"]), (false, "b".into()));
        assert_eq!(exact(at(0, ""), &["b", "a", "b"]), (false, "a and b".into()));
        let mut position = at(7, "a");
        assert!(!position.compute_with(&kinds(&["a", "b"])) && !position.exact);
        position.compute_with(&kinds(&["a", "a"]));
        assert!(!position.exact, "what was computed stays so");
    }
}
