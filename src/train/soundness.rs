//! What must hold before a step or an evaluation counts. Pure functions of what all ranks counted
//! together, so that all decide alike.

use crate::data::Split;
use crate::data::bad_images::{check_any, check_share};

use crate::train::TrainError;
use crate::train::compute::totals::Totals;
use crate::train::plan::Plan;
use crate::train::state::position::{Position, ZERO_UPDATES_MAX};

/// Whether a step may be committed after this position. A small step may be without a sample where
/// one picture is bad; it is counted and changes no weight. A run that begins so, or that meets ten
/// of them in a row, learns nothing.
///
/// # Errors
/// Too many samples of its epoch could not be decoded; or none of its own, and none before it or
/// none of the steps before it either.
pub fn check_step(position: &Position, totals: &Totals, plan: &Plan) -> Result<(), TrainError> {
    let step = position.step + 1;
    let before = position.undecoded_steps();
    if position.cursor == 0 || before + 1 >= ZERO_UPDATES_MAX {
        check_any(Split::Train, totals.skipped, totals.count, || match before {
            0 => format!("of step {step}"),
            _ => format!("of step {step}, nor of the {before} steps before it,"),
        })?;
    }
    let skipped = match totals.skipped {
        // What was committed was within bounds, or within those of an earlier start.
        0 => 0,
        now => position.skipped_in_epoch + now,
    };
    let of = plan.samples_per_epoch;
    let epoch = position.cursor / of.max(1);
    let which = || format!("of epoch {epoch} by step {step}");
    Ok(check_share(Split::Train, skipped, of, plan.bad_images_max, which)?)
}

/// Whether an evaluation measured what it is to measure.
///
/// # Errors
/// None of its samples could be decoded, or too many could not.
pub fn check_evaluation(totals: &Totals, plan: &Plan) -> Result<(), TrainError> {
    let (skipped, count) = (totals.skipped, totals.count);
    let which = || "of the evaluation".into();
    check_any(Split::Validation, skipped, count, which)?;
    Ok(check_share(Split::Validation, skipped, count, plan.bad_images_max, which)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::data::sampler::Order;
    use crate::observe::ledger::Committed;

    /// 400 samples: four may be bad.
    fn plan() -> Plan {
        let config: Config = toml::from_str("[train]\nsteps = 100\n").unwrap();
        Plan::of(&config, &Order::new(400, 4, 1, 40).unwrap(), 50)
    }

    fn totals(count: u64, skipped: u64) -> Totals {
        Totals { count, skipped, ..Totals::default() }
    }

    fn refusal(checked: Result<(), TrainError>) -> String {
        match checked {
            Err(TrainError::Data(text)) => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_run_does_not_begin_with_a_step_of_no_sample() {
        let (start, plan) = (Position::start(), plan());
        let text = refusal(check_step(&start, &totals(40, 40), &plan));
        assert!(text.contains("data.train: none of the 40 samples of step 1"), "{text}");
        let lenient = Plan { bad_images_max: 1.0, ..plan };
        refusal(check_step(&start, &totals(40, 40), &lenient));
        assert_eq!(check_step(&start, &totals(0, 0), &lenient), Ok(()), "an empty round");
    }

    /// 13 pictures in steps of 12, one of them bad: every second step may be that one alone.
    #[test]
    fn a_small_step_of_no_sample_is_counted_and_ten_in_a_row_end_the_run() {
        let plan = Plan { samples_per_epoch: 13, bad_images_max: 0.1, ..plan() };
        let line = |step: u64, count, skipped| Committed {
            step,
            epoch: (step - 1) / 2,
            cursor: (step - 1) / 2 * 13 + 12 + (step + 1) % 2,
            count,
            skipped,
            mix: 0,
            attempt: 1,
            zero_update: count == skipped,
        };
        let mut position = Position::start();
        position.commit(line(1, 12, 0));
        assert_eq!(check_step(&position, &totals(1, 1), &plan), Ok(()), "the last of its epoch");
        let strict = Plan { bad_images_max: 0.01, ..plan.clone() };
        let text = refusal(check_step(&position, &totals(1, 1), &strict));
        assert!(text.contains("1 of 13 samples of epoch 0 by step 2"), "{text}");
        let lenient = Plan { bad_images_max: 1.0, ..plan };
        for step in 2..=10 {
            assert_eq!(check_step(&position, &totals(12, 12), &lenient), Ok(()), "step {step}");
            position.commit(line(step, 12, 12));
            position.skipped_in_epoch = 0;
            // A round of the asynchronous exchange in which nothing was computed yet.
            position.commit(Committed { count: 0, skipped: 0, ..line(step, 0, 0) });
        }
        let text = refusal(check_step(&position, &totals(12, 12), &lenient));
        assert!(text.contains("of step 11, nor of the 9 steps before it, could"), "{text}");
        assert_eq!(check_step(&position, &totals(12, 11), &lenient), Ok(()));
    }

    #[test]
    fn the_bad_images_of_an_epoch_count_together() {
        let start = Position { step: 12, cursor: 480, ..Position::start() };
        let at = |skipped_in_epoch| Position { skipped_in_epoch, ..start.clone() };
        assert_eq!(check_step(&at(2), &totals(40, 2), &plan()), Ok(()), "1 %");
        let text = refusal(check_step(&at(3), &totals(40, 2), &plan()));
        assert!(text.contains("5 of 400 samples of epoch 1 by step 13"), "{text}");
        assert!(text.contains("data.bad_images_max = 0.01"), "{text}");
        assert_eq!(check_step(&at(9), &totals(40, 0), &plan()), Ok(()), "of an earlier start");
    }

    #[test]
    fn an_evaluation_is_measured_on_nearly_all_of_its_samples() {
        assert_eq!(check_evaluation(&totals(200, 2), &plan()), Ok(()));
        let text = refusal(check_evaluation(&totals(200, 3), &plan()));
        assert!(text.contains("data.validation: 3 of 200 samples"), "{text}");
        assert!(refusal(check_evaluation(&totals(8, 8), &plan())).contains("none of the 8"));
    }
}
