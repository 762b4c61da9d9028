//! What must hold before a step or an evaluation counts. Pure functions of what all ranks counted
//! together, so that all decide alike.

use crate::data::Split;
use crate::data::bad_images::{check_any, check_share};

use crate::train::TrainError;
use crate::train::compute::totals::Totals;
use crate::train::plan::Plan;
use crate::train::state::position::Position;

/// Whether a step may be committed after this position.
///
/// # Errors
/// None of its samples could be decoded, or too many of its epoch's.
pub fn check_step(position: &Position, totals: &Totals, plan: &Plan) -> Result<(), TrainError> {
    let step = position.step + 1;
    let counts = (totals.skipped, totals.count);
    check_any(Split::Train, counts, || format!("of step {step}"))?;
    let skipped = match totals.skipped {
        // What was committed was within bounds, or within those of an earlier start.
        0 => 0,
        now => position.skipped_in_epoch + now,
    };
    let of = plan.samples_per_epoch;
    let epoch = position.cursor / of.max(1);
    let which = || format!("of epoch {epoch} by step {step}");
    Ok(check_share(Split::Train, (skipped, of), plan.bad_images_max, which)?)
}

/// Whether an evaluation measured what it is to measure.
///
/// # Errors
/// None of its samples could be decoded, or too many could not.
pub fn check_evaluation(totals: &Totals, plan: &Plan) -> Result<(), TrainError> {
    let counts = (totals.skipped, totals.count);
    let which = || "of the evaluation".into();
    check_any(Split::Validation, counts, which)?;
    Ok(check_share(Split::Validation, counts, plan.bad_images_max, which)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::data::sampler::Order;

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
    fn a_step_of_no_sample_is_never_committed() {
        let (start, plan) = (Position::start(), plan());
        let text = refusal(check_step(&start, &totals(40, 40), &plan));
        assert!(text.contains("data.train: none of the 40 samples of step 1"), "{text}");
        let lenient = Plan { bad_images_max: 1.0, ..plan };
        refusal(check_step(&start, &totals(40, 40), &lenient));
        assert_eq!(check_step(&start, &totals(0, 0), &lenient), Ok(()), "an empty round");
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
