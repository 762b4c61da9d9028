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
                "its line and all up to step {to} could not be written (a full disk), and who had \
                 them is gone: which samples entered these sums is not proved"
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
                check_writer((line.step, line.attempt), &mut newest_attempt, &mut report);
                check_totals(&line, before, &mut report);
                check(&line, &mut report);
                let (first, last) = (line.step, line.step);
                counted.push(Counted { first, last, cursor: Some(line.cursor), proved: true });
            }
            Entry::Gap { from, to, cursor, attempt } => {
                check_writer((from, attempt), &mut newest_attempt, &mut report);
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
fn check_writer((step, attempt): (u64, u32), newest: &mut u32, report: &mut AuditReport) {
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
mod tests {
    use super::*;
    use crate::config::seed::mix64;
    use proptest::prelude::*;

    const BATCH: u64 = 12;
    const SAMPLES: u64 = 120;

    fn order(steps_before: u64) -> (u64, u64) {
        (BATCH, mix64(steps_before))
    }

    fn line(step: u64, attempt: u32) -> Committed {
        let (count, mix) = order(step - 1);
        let (epoch, cursor) = ((step - 1) * BATCH / SAMPLES, step * BATCH);
        Committed { step, epoch, cursor, count, skipped: 0, mix, attempt, zero_update: false }
    }

    fn clean(steps: u64) -> Vec<Entry> {
        (1..=steps).map(|step| Entry::Step(line(step, 1))).collect()
    }

    fn run(entries: &[Entry]) -> AuditReport {
        audit(entries, &mut order, SAMPLES)
    }

    #[test]
    fn a_clean_ledger_passes_and_is_counted() {
        let report = run(&clean(25));
        assert!(report.passed(), "{report:?}");
        assert_eq!((report.steps, report.samples, report.epochs), (25, 300, 2));
        assert!(run(&[]).passed());
    }

    #[test]
    fn a_rollback_and_the_steps_after_it_pass() {
        let mut entries = clean(9);
        entries.push(Entry::Rollback { to: 6, attempt: 2 });
        entries.extend((7..=12).map(|step| Entry::Step(line(step, 2))));
        let report = run(&entries);
        assert!(report.passed(), "{report:?}");
        assert_eq!((report.steps, report.lost_steps, report.rollbacks), (12, 3, 1));
    }

    #[test]
    fn a_planted_duplicate_sample_fails() {
        let mut entries = clean(5);
        let Entry::Step(third) = &mut entries[2] else { unreachable!() };
        // One sample twice, another not at all: the count is right, the mix is not.
        third.mix = third.mix.wrapping_add(1);
        let report = run(&entries);
        assert!(!report.passed());
        assert!(matches!(report.findings[0].problem, Problem::Samples { .. }));
        assert_eq!(report.findings[0].step, 3);
    }

    #[test]
    fn a_planted_omission_fails() {
        let mut entries = clean(5);
        let Entry::Step(third) = &mut entries[2] else { unreachable!() };
        third.count -= 1;
        third.cursor -= 1;
        let report = run(&entries);
        assert_eq!(report.findings[0].problem, Problem::Count { expected: 12, found: 11 });
    }

    #[test]
    fn a_step_twice_and_a_step_left_out_fail() {
        let mut twice = clean(5);
        twice.insert(3, twice[2]);
        let report = run(&twice);
        assert_eq!(report.findings[0].problem, Problem::OutOfSequence { after: 3 });
        assert!(report.findings[0].to_string().contains("again"));
        let mut left_out = clean(5);
        left_out.remove(2);
        let report = run(&left_out);
        assert_eq!(report.findings[0].step, 4);
        assert!(report.findings[0].to_string().contains("3..3 are missing"));
    }

    #[test]
    fn a_cut_off_writer_and_a_rollback_ahead_fail() {
        let mut entries = clean(4);
        entries.push(Entry::Rollback { to: 3, attempt: 2 });
        entries.push(Entry::Step(line(4, 1)));
        let report = run(&entries);
        assert_eq!(report.findings[0].problem, Problem::CutOffWriter { attempt: 1, newest: 2 });
        let mut ahead = clean(4);
        ahead.push(Entry::Rollback { to: 9, attempt: 2 });
        assert_eq!(run(&ahead).findings[0].problem, Problem::RollbackAhead { committed: 4 });
    }

    fn with_gap(from: u64, to: u64, steps: u64) -> Vec<Entry> {
        let mut entries = clean(steps);
        let gap = Entry::Gap { from, to, cursor: to * BATCH, attempt: 1 };
        entries.splice((from - 1) as usize..to as usize, [gap]);
        entries
    }

    #[test]
    fn steps_without_lines_are_not_proved_and_all_others_are() {
        let report = run(&with_gap(6, 20, 25));
        assert!(!report.passed());
        assert_eq!((report.steps, report.samples, report.unproved), (25, 300, 15));
        assert_eq!(report.findings, [Finding { step: 6, problem: Problem::Unproved { to: 20 } }]);
        let told = report.findings[0].to_string();
        assert!(told.contains("up to step 20") && told.ends_with("is not proved"), "{told}");
        let mut planted = with_gap(6, 20, 25);
        let Entry::Step(last) = planted.last_mut().unwrap() else { unreachable!() };
        last.mix ^= 1;
        assert_eq!(run(&planted).findings_total, 2, "it hides nothing else");
    }

    #[test]
    fn unproved_steps_that_were_done_again_are_proved() {
        for (to, unproved) in [(20, 15), (10, 5), (5, 0), (3, 0)] {
            let mut entries = with_gap(6, 20, 25);
            entries.push(Entry::Rollback { to, attempt: 2 });
            entries.extend((to + 1..=30).map(|step| Entry::Step(line(step, 2))));
            let report = run(&entries);
            assert_eq!((report.unproved, report.passed()), (unproved, unproved == 0), "{to}");
            assert_eq!((report.steps, report.samples, report.lost_steps), (30, 360, 25 - to));
        }
    }

    #[test]
    fn rounds_state_losses_and_repeats() {
        let mut entries = clean(30);
        let report = audit_rounds(&entries, SAMPLES, None);
        assert!(report.ledger.passed() && !report.compared);
        assert_eq!((report.lost, report.repeated, report.passes), (0, 0, 3.0));
        let Entry::Step(first) = &mut entries[0] else { unreachable!() };
        first.count -= 3;
        assert_eq!(audit_rounds(&entries, SAMPLES, None).lost, 3);
        let Entry::Step(first) = &mut entries[0] else { unreachable!() };
        first.count += 5;
        assert_eq!(audit_rounds(&entries, SAMPLES, None).repeated, 2);
        let mut rolled_back = clean(9);
        rolled_back.push(Entry::Rollback { to: 6, attempt: 2 });
        assert_eq!(audit_rounds(&rolled_back, SAMPLES, None).thrown_away, 3 * BATCH);
    }

    /// Every owner's micro-batch once, whichever round it came in.
    #[test]
    fn rounds_of_a_run_that_came_to_its_end_sum_what_its_epochs_hold() {
        let sum = |(count, mix): (u64, u64), (more, other): (u64, u64)| {
            (count + more, mix.wrapping_add(other))
        };
        let (count, mix) = (0..10).map(order).fold((0, 0), sum);
        let whole = Some(Whole { count, mix });
        let mut entries = clean(10);
        let Entry::Step(third) = &mut entries[2] else { unreachable!() };
        third.mix = third.mix.wrapping_add(7);
        let Entry::Step(fifth) = &mut entries[4] else { unreachable!() };
        fifth.mix = fifth.mix.wrapping_sub(7);
        let report = audit_rounds(&entries, SAMPLES, whole);
        assert!(report.compared && report.ledger.passed(), "another order of rounds: {report:?}");
        let Entry::Step(last) = &mut entries[9] else { unreachable!() };
        last.mix = last.mix.wrapping_add(1);
        let report = audit_rounds(&entries, SAMPLES, whole);
        assert!(!report.ledger.passed(), "one sample twice, another not at all");
        let told = report.ledger.findings[0].to_string();
        assert!(told.starts_with("step 10: all rounds together summed 120 samples"), "{told}");
        let unproved = audit_rounds(&with_gap(3, 4, 10), SAMPLES, whole);
        assert!(!unproved.compared && unproved.ledger.only_unproved());
    }

    proptest! {
        #[test]
        fn no_single_change_of_a_line_goes_unseen(
            steps in 2u64..40,
            at in 0usize..40,
            change in 0u8..4,
        ) {
            let mut entries = clean(steps);
            let at = at % entries.len();
            // The loss of the newest lines alone is seen by `result.json`, not by the ledger.
            prop_assume!(change != 3 || at + 1 < entries.len());
            match (change, &mut entries[at]) {
                (0, Entry::Step(line)) => line.count += 1,
                (1, Entry::Step(line)) => line.mix ^= 1,
                (2, Entry::Step(line)) => line.step += 1,
                (3, _) => { entries.remove(at); }
                _ => unreachable!(),
            }
            prop_assert!(!run(&entries).passed());
        }

        #[test]
        fn any_rollbacks_pass_when_the_steps_are_done_again(
            cuts in prop::collection::vec(0u64..20, 0..6),
        ) {
            let mut entries = Vec::new();
            let (mut next, mut lost) = (1, 0);
            for (index, cut) in cuts.iter().enumerate() {
                let attempt = index as u32 + 1;
                for step in next..=20 {
                    entries.push(Entry::Step(line(step, attempt)));
                }
                entries.push(Entry::Rollback { to: *cut, attempt: attempt + 1 });
                lost += 20 - cut;
                next = cut + 1;
            }
            let report = run(&entries);
            prop_assert!(report.passed(), "{:?}", report.findings);
            prop_assert_eq!(report.lost_steps, lost);
        }
    }
}
