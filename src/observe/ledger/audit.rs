//! Compares a ledger with the order of samples: exactly once, or where not. Pure.

use std::fmt;

use super::{Committed, Entry, effective, lost_steps};

/// Findings kept word for word; the rest is only counted.
const FINDINGS_KEPT_MAX: usize = 20;

/// What is wrong with one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Problem {
    /// The line before it is not of the step before it, and no rollback says why.
    OutOfSequence { after: u64 },
    /// Another number of samples entered the sum.
    Count { expected: u64, found: u64 },
    /// The right number, but not the right samples.
    Samples { expected: u64, found: u64 },
    /// The running total is not the one before plus this step's count.
    Cursor { expected: u64, found: u64 },
    /// A rollback to a step that had not been committed.
    RollbackAhead { committed: u64 },
    /// Written by an attempt that had already been succeeded.
    CutOffWriter { attempt: u32, newest: u32 },
    /// No line of it and of those up to `to` could be written.
    Unproved { to: u64 },
    /// The last of an asynchronous run: all rounds together did not sum what its epochs hold.
    Epochs { expected: Whole, found: Whole },
}

/// What a whole run sums to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct Whole {
    /// Samples.
    pub count: u64,
    /// Wrapping sum of their mixes.
    pub mix: u64,
}

/// A step and what is wrong with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Finding {
    /// The step (1 = the first).
    pub step: u64,
    /// What is wrong.
    pub problem: Problem,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}: ", self.step)?;
        match self.problem {
            Problem::OutOfSequence { after } if self.step <= after => {
                write!(f, "committed again after step {after}, without a rollback")
            }
            Problem::OutOfSequence { after } => {
                write!(
                    f,
                    "follows step {after}: steps {}..{} are missing",
                    after + 1,
                    self.step - 1
                )
            }
            Problem::Count { expected, found } => {
                write!(f, "{found} samples entered the sum, the order has {expected}")
            }
            Problem::Samples { expected, found } => write!(
                f,
                "other samples than the order's entered the sum ({found:016x}, not {expected:016x})"
            ),
            Problem::Cursor { expected, found } => {
                write!(f, "{found} samples committed in all, the lines add up to {expected}")
            }
            Problem::RollbackAhead { committed } => {
                write!(f, "a rollback to it, but only {committed} steps were committed")
            }
            Problem::CutOffWriter { attempt, newest } => {
                write!(f, "written by attempt {attempt} after attempt {newest} had begun")
            }
            Problem::Unproved { to } => write!(
                f,
                "its line and all up to step {to} could not be written, or were lost by the disk, \
                 and who had them is gone: which samples entered these sums is not proved"
            ),
            Problem::Epochs { expected, found } => write!(
                f,
                "all rounds together summed {} samples ({:016x}); the run's epochs hold {} \
                 ({:016x}), each once",
                found.count, found.mix, expected.count, expected.mix
            ),
        }
    }
}

/// What an audit of a synchronous run found.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize)]
pub struct AuditReport {
    /// Steps that count.
    pub steps: u64,
    /// Samples whose gradients entered their sums.
    pub samples: u64,
    /// Of them, images that could not be decoded.
    pub skipped: u64,
    /// Passes over the training set that are complete.
    pub epochs: u64,
    /// Times the run went back.
    pub rollbacks: u64,
    /// Steps thrown away by them.
    pub lost_steps: u64,
    /// Steps that count and have no line: what they summed is not proved.
    pub unproved: u64,
    /// The first findings.
    pub findings: Vec<Finding>,
    /// All findings, the ones not kept included.
    pub findings_total: u64,
}

impl AuditReport {
    /// Whether every sample of every step was summed exactly once.
    pub fn passed(&self) -> bool {
        self.findings_total == 0
    }

    /// Whether all that is wrong is that steps have no line.
    pub fn only_unproved(&self) -> bool {
        let unproved = |finding: &Finding| matches!(finding.problem, Problem::Unproved { .. });
        self.findings_total == self.findings.len() as u64 && self.findings.iter().all(unproved)
    }

    fn find(&mut self, step: u64, problem: Problem) {
        self.findings_total += 1;
        if self.findings.len() < FINDINGS_KEPT_MAX {
            self.findings.push(Finding { step, problem });
        }
    }
}

/// Compares what was summed with the order. `expected(k)` is the count and the mix of the step
/// that has `k` steps before it (`data::sampler::Order::expected`). Steps that a rollback threw
/// away are checked as well: they were summed from the same order.
pub fn audit(
    entries: &[Entry],
    expected: &mut dyn FnMut(u64) -> (u64, u64),
    samples_per_epoch: u64,
) -> AuditReport {
    walk(entries, samples_per_epoch, &mut |line, report| {
        let Some(steps_before) = line.step.checked_sub(1) else { return };
        let (count, mix) = expected(steps_before);
        if line.count != count {
            report.find(line.step, Problem::Count { expected: count, found: line.count });
        } else if line.mix != mix {
            report.find(line.step, Problem::Samples { expected: mix, found: line.mix });
        }
    })
}

/// Steps that count so far: one with its line, or several without.
#[derive(Clone, Copy)]
struct Counted {
    first: u64,
    last: u64,
    /// Samples of the run up to here, where it is known.
    cursor: Option<u64>,
    proved: bool,
}

impl Counted {
    /// Before the first step.
    const BEGINNING: Self = Self { first: 0, last: 0, cursor: Some(0), proved: true };
}

/// What every ledger must satisfy, whatever its lines summed; `check` looks at the sums.
fn walk(
    entries: &[Entry],
    samples_per_epoch: u64,
    check: &mut dyn FnMut(&Committed, &mut AuditReport),
) -> AuditReport {
    let mut report = AuditReport::default();
    let mut newest_attempt = 0;
    let mut counted = vec![Counted::BEGINNING];
    for entry in entries {
        let before = *counted.last().expect("the beginning is never removed");
        match *entry {
            Entry::Step(line) => {
                check_writer(line.step, line.attempt, &mut newest_attempt, &mut report);
                check_totals(&line, before, &mut report);
                check(&line, &mut report);
                let (first, last) = (line.step, line.step);
                counted.push(Counted { first, last, cursor: Some(line.cursor), proved: true });
            }
            Entry::Gap { from, to, cursor, attempt } => {
                check_writer(from, attempt, &mut newest_attempt, &mut report);
                if from != before.last + 1 {
                    report.find(from, Problem::OutOfSequence { after: before.last });
                }
                let (first, last) = (from, to);
                counted.push(Counted { first, last, cursor: Some(cursor), proved: false });
            }
            Entry::Rollback { to, attempt } | Entry::Withdrawn { to, attempt } => {
                report.rollbacks += u64::from(matches!(entry, Entry::Rollback { .. }));
                newest_attempt = newest_attempt.max(attempt);
                let committed = go_back(&mut counted, to);
                if committed != to {
                    report.find(to, Problem::RollbackAhead { committed });
                }
            }
        }
    }
    let lines = effective(entries);
    report.steps = lines.len() as u64;
    report.samples = lines.iter().map(|line| line.count).sum();
    report.skipped = lines.iter().map(|line| line.skipped).sum();
    report.lost_steps = lost_steps(entries);
    count_gaps(&counted, &mut report);
    report.epochs = report.samples.checked_div(samples_per_epoch).unwrap_or(0);
    report
}

/// A line of a step that an attempt wrote.
fn check_writer(step: u64, attempt: u32, newest: &mut u32, report: &mut AuditReport) {
    if attempt < *newest {
        report.find(step, Problem::CutOffWriter { attempt, newest: *newest });
    }
    *newest = attempt.max(*newest);
}

/// Takes steps after `to` away; the last one that is left.
fn go_back(counted: &mut Vec<Counted>, to: u64) -> u64 {
    while counted.len() > 1 && counted.last().is_some_and(|last| last.first > to) {
        counted.pop();
    }
    let Some(last) = counted.last_mut() else { return 0 };
    if last.last > to {
        (last.last, last.cursor) = (to, None);
    }
    last.last
}

/// Steps without a line count, and are findings: those that are left in the end.
fn count_gaps(counted: &[Counted], report: &mut AuditReport) {
    for gap in counted.iter().filter(|counted| !counted.proved) {
        report.unproved += gap.last.saturating_add(1).saturating_sub(gap.first);
        report.find(gap.first, Problem::Unproved { to: gap.last });
    }
    report.steps += report.unproved;
    let total = counted.last().and_then(|last| last.cursor);
    if let Some(total) = total.filter(|_| report.unproved > 0) {
        report.samples = total;
    }
}

/// One line against the totals before it.
fn check_totals(line: &Committed, before: Counted, report: &mut AuditReport) {
    let expected = before.cursor.map(|cursor| cursor + line.count);
    if line.step != before.last + 1 {
        report.find(line.step, Problem::OutOfSequence { after: before.last });
    } else if let Some(expected) = expected.filter(|expected| *expected != line.cursor) {
        report.find(line.step, Problem::Cursor { expected, found: line.cursor });
    }
}

/// What an audit of an asynchronous run counted. A round sums whatever the free-running workers
/// had ready, so there is no order of rounds to compare with. But each owner's micro-batches are
/// committed one after the other: all rounds of a run that came to its end sum what its epochs
/// hold. Of one that was ended sooner, losses and repeats are stated.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize)]
pub struct RoundsReport {
    /// Rounds that count (as `steps`), their samples, and whether the ledger hangs together.
    pub ledger: AuditReport,
    /// Passes over the training set.
    pub passes: f64,
    /// Samples in rounds that a rollback threw away: summed, lost, and drawn again.
    pub thrown_away: u64,
    /// Rounds that summed no sample.
    pub empty_rounds: u64,
    /// Counted in the running total but in no round.
    pub lost: u64,
    /// In a round but not in the running total.
    pub repeated: u64,
    /// Whether all rounds together were compared with what the run's epochs hold.
    pub compared: bool,
}

/// Counts the rounds of an asynchronous run; `whole` is what one that came to its end must have
/// summed.
pub fn audit_rounds(
    entries: &[Entry],
    samples_per_epoch: u64,
    whole: Option<Whole>,
) -> RoundsReport {
    let mut ledger = walk(entries, samples_per_epoch, &mut |_, _| {});
    let written: u64 = entries.iter().map(count_of).sum();
    let counted = effective(entries);
    let whole = whole.filter(|_| ledger.unproved == 0);
    if let Some(expected) = whole {
        let mix = counted.iter().fold(0u64, |sum, line| sum.wrapping_add(line.mix));
        let found = Whole { count: ledger.samples, mix };
        if found != expected {
            ledger.find(ledger.steps, Problem::Epochs { expected, found });
        }
    }
    let total = counted.last().map_or(0, |line| line.cursor);
    RoundsReport {
        passes: if samples_per_epoch == 0 {
            0.0
        } else {
            ledger.samples as f64 / samples_per_epoch as f64
        },
        thrown_away: written - ledger.samples,
        empty_rounds: counted.iter().filter(|line| line.count == 0).count() as u64,
        lost: total.saturating_sub(ledger.samples),
        repeated: ledger.samples.saturating_sub(total),
        compared: whole.is_some(),
        ledger,
    }
}

fn count_of(entry: &Entry) -> u64 {
    match entry {
        Entry::Step(line) => line.count,
        Entry::Rollback { .. } | Entry::Withdrawn { .. } | Entry::Gap { .. } => 0,
    }
}

#[cfg(test)]
mod tests;
