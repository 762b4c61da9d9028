//! Whether two runs computed the same: by the hash of their last states where they ended at the
//! same step, else by the training loss over every stretch of steps that both report. A trainer
//! reports the mean loss of a few steps at a time, and not the same few in every run, so stretches
//! are put together until their ends meet. Pure.

use std::collections::BTreeMap;

use super::Run;
use crate::observe::event::Kind;
use crate::observe::ledger::{Committed, effective};

/// Whether a run computed what the calm run of the same seed computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bits {
    /// Same number of steps, same `state_sha256`.
    SameState,
    /// The training loss is the same over every stretch that both report.
    SameLosses {
        /// Steps in those stretches.
        steps: u64,
    },
    /// Likewise, but of as many steps they are other states.
    OtherState {
        /// Steps in those stretches.
        steps: u64,
    },
    /// Another loss within these steps: the first stretch that shows it, and those before it that
    /// could not be compared.
    Differs {
        /// The first of them.
        from_step: u64,
        /// The last.
        to_step: u64,
    },
    /// Nothing to compare with.
    Unknown,
}

/// Two sums of the same losses differ by less than this, relatively: means are written with 17
/// digits. One weight that is off in its last bit shifts a loss by more.
const ROUNDING: f64 = 1e-11;

/// Compares a run with the calm one.
pub fn compare(run: &Run, calm: &Run) -> Bits {
    if !(run.synchronous && calm.synchronous) {
        return Bits::Unknown;
    }
    let end = |run: &Run| {
        let result = run.result.as_ref()?;
        Some((result.steps, result.state_sha256.clone()?))
    };
    let ends = end(run).zip(end(calm)).filter(|(ours, theirs)| ours.0 == theirs.0);
    if ends.as_ref().is_some_and(|(ours, theirs)| ours == theirs) {
        return Bits::SameState;
    }
    let (ours, theirs) = (cumulative(run), cumulative(calm));
    let (mut steps, mut same_to) = (0, 0);
    // The last step at which both had a boundary, with both sums there.
    let mut before: Option<(u64, &Sum, &Sum)> = None;
    for (step, our) in &ours {
        let Some(their) = theirs.get(step) else { continue };
        if let Some((from, our_before, their_before)) = before
            && our.chain == our_before.chain
            && their.chain == their_before.chain
        {
            let (a, b) = (our.loss - our_before.loss, their.loss - their_before.loss);
            let scale = our.loss.abs().max(their.loss.abs()).max(1.0);
            let none = [(our, our_before), (their, their_before)]
                .map(|(now, before)| now.no_numbers > before.no_numbers);
            if none[0] != none[1] || !none[0] && (a - b).abs() > ROUNDING * scale {
                return Bits::Differs { from_step: same_to + 1, to_step: *step };
            }
            // What is no number in both is not known to be the same.
            if !none[0] {
                (steps, same_to) = (steps + step - from, *step);
            }
        }
        before = Some((*step, our, their));
    }
    match (steps, ends) {
        (steps, Some(_)) => Bits::OtherState { steps },
        (0, None) => Bits::Unknown,
        (steps, None) => Bits::SameLosses { steps },
    }
}

/// The losses of all samples up to a step, since the beginning of an unbroken chain of reports.
struct Sum {
    /// Of the reports whose loss is a number.
    loss: f64,
    /// The others.
    no_numbers: u32,
    chain: u32,
}

/// The boundaries of a run's reports. Of steps done again, those that count in the end.
fn cumulative(run: &Run) -> BTreeMap<u64, Sum> {
    let counted: BTreeMap<u64, Committed> =
        effective(&run.ledger).into_iter().map(|line| (line.step, line)).collect();
    let mut sums: BTreeMap<u64, Sum> = BTreeMap::new();
    let mut chain = 0;
    for event in &run.events {
        let Kind::Step { loss, samples, .. } = event.kind else { continue };
        let Some((from, computed)) = window(&counted, event.step, samples) else { continue };
        // What was reported for steps after `from` was rolled back, if anything was.
        sums.retain(|step, _| *step <= from);
        let start = sums.entry(from).or_insert_with(|| {
            chain += 1;
            Sum { loss: 0.0, no_numbers: 0, chain }
        });
        let (more, no_number) = match loss.is_nan() {
            true => (0.0, 1),
            false => (loss * computed as f64, 0),
        };
        let (loss, no_numbers) = (start.loss + more, start.no_numbers + no_number);
        let sum = Sum { loss, no_numbers, chain: start.chain };
        sums.insert(event.step, sum);
    }
    sums
}

/// The step before the first of the steps that a report of `samples` samples up to step `to` is
/// about, and how many of the samples were computed; `None` where the ledger does not tell.
fn window(counted: &BTreeMap<u64, Committed>, to: u64, samples: u64) -> Option<(u64, u64)> {
    let (mut found, mut computed, mut step) = (0, 0, to);
    while found < samples {
        let line = counted.get(&step)?;
        found += line.count;
        computed += line.count - line.skipped.min(line.count);
        step = step.checked_sub(1)?;
    }
    (found == samples && samples > 0).then_some((step, computed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::seed::Stream;
    use crate::observe::account::from_nothing;
    use crate::observe::event::samples::event;
    use crate::observe::ledger::Entry;
    use crate::observe::result::{RunResult, Status};
    use proptest::prelude::*;

    /// A run of `steps` steps that reports `group(step)` steps at a time and whose loss is another
    /// from step `turn` on.
    fn run(steps: u64, groups: &[u64], turn: u64) -> Run {
        let loss = |step: u64| Stream::new(&[step]).unit() + if step >= turn { 1e-7 } else { 0.0 };
        let mut made = Run { synchronous: true, seed: 1, ..Run::default() };
        for step in 1..=steps {
            let (count, cursor) = (96, step * 96);
            let line = Committed {
                step,
                epoch: 0,
                cursor,
                count,
                skipped: step % 2,
                mix: 0,
                attempt: 1,
                zero_update: false,
            };
            made.ledger.push(Entry::Step(line));
        }
        let (mut from, mut index) = (0, 0);
        while from < steps {
            let to = (from + groups[index % groups.len()]).min(steps);
            let computed = |step: u64| (96 - step % 2) as f64;
            let sum: f64 = (from + 1..=to).map(|step| loss(step) * computed(step)).sum();
            let all: f64 = (from + 1..=to).map(computed).sum();
            let kind = Kind::Step {
                epoch: 0,
                loss: sum / all,
                error: 0.0,
                samples: (to - from) * 96,
                learning_rate: 0.1,
                seconds: 0.1,
            };
            made.events.push(event(to, to as f64, kind));
            (from, index) = (to, index + 1);
        }
        made
    }

    proptest! {
        #[test]
        fn the_same_losses_are_the_same_however_they_are_grouped(
            ours in prop::collection::vec(1u64..5, 1..9),
            theirs in prop::collection::vec(1u64..5, 1..9),
        ) {
            let (a, b) = (run(120, &ours, u64::MAX), run(120, &theirs, u64::MAX));
            prop_assert_eq!(compare(&a, &b), Bits::SameLosses { steps: 120 });
        }

        #[test]
        fn a_turn_is_seen_where_it_happens(
            ours in prop::collection::vec(1u64..5, 1..9),
            theirs in prop::collection::vec(1u64..5, 1..9),
            turn in 1u64..115,
        ) {
            let (a, b) = (run(120, &ours, turn), run(120, &theirs, u64::MAX));
            let Bits::Differs { from_step, to_step } = compare(&a, &b) else {
                return Err(TestCaseError::fail("not seen"));
            };
            prop_assert!((from_step..=to_step).contains(&turn), "{from_step}..={to_step}");
        }
    }

    #[test]
    fn a_loss_that_is_no_number_is_the_same_as_none() {
        let diverged = |at: usize| {
            let mut run = run(10, &[1], u64::MAX);
            for event in &mut run.events[at..] {
                if let Kind::Step { loss, .. } = &mut event.kind {
                    *loss = f64::NAN;
                }
            }
            run
        };
        let calm = run(10, &[1], u64::MAX);
        assert_eq!(compare(&diverged(4), &calm), Bits::Differs { from_step: 5, to_step: 5 });
        assert_eq!(compare(&diverged(4), &diverged(4)), Bits::SameLosses { steps: 4 });
        assert_eq!(compare(&diverged(0), &diverged(0)), Bits::Unknown);
        // Behind it they are compared again.
        let once = || {
            let mut run = diverged(4);
            run.events.truncate(5);
            run.events.extend(calm.events[5..].iter().cloned());
            run
        };
        assert_eq!(compare(&once(), &once()), Bits::SameLosses { steps: 9 });
        let mut other = once();
        if let Kind::Step { loss, .. } = &mut other.events[7].kind {
            *loss += 1.0;
        }
        assert_eq!(compare(&once(), &other), Bits::Differs { from_step: 8, to_step: 8 });
    }

    #[test]
    fn runs_of_one_length_that_end_in_other_states_are_not_called_the_same() {
        let ended = |hash: &str, steps: u64| {
            let mut run = run(10, &[1], u64::MAX);
            run.result = Some(RunResult {
                steps,
                state_sha256: Some(hash.into()),
                ..from_nothing("run", 1, Status::Completed, "all steps are committed")
            });
            run
        };
        assert_eq!(compare(&ended("a", 10), &ended("a", 10)), Bits::SameState);
        assert_eq!(compare(&ended("a", 10), &ended("b", 10)), Bits::OtherState { steps: 10 });
        assert_eq!(compare(&ended("a", 10), &ended("b", 12)), Bits::SameLosses { steps: 10 });
    }

    #[test]
    fn what_could_not_be_compared_may_be_where_they_differ() {
        // From step 4 on; the report of steps 3 to 5 was lost.
        let mut broken = run(10, &[2, 3, 1], 4);
        broken.events.remove(1);
        let found = compare(&broken, &run(10, &[1], u64::MAX));
        assert_eq!(found, Bits::Differs { from_step: 3, to_step: 6 });
    }

    #[test]
    fn runs_without_a_common_boundary_cannot_be_compared() {
        let ledgerless = Run { ledger: Vec::new(), ..run(10, &[1], u64::MAX) };
        assert_eq!(compare(&ledgerless, &run(10, &[1], u64::MAX)), Bits::Unknown);
    }
}
