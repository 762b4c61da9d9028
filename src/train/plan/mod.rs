//! What a run is to do: constants of this start. A leaf that every other room may import.

use std::time::Duration;

use crate::cluster::recovery::Policy;
use crate::cluster::recovery::set::SetIdentity;
use crate::config::{Config, Every, ExchangeKind, Interval, Rung};
use crate::data::sampler::Order;
use crate::run_folder::variables;

pub mod arguments;
pub mod facts;

pub use arguments::{Staff, TrainArguments};
pub use facts::{About, Facts};

/// What a run is to do: constants of this start.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Ends after so many steps.
    pub steps_max: Option<u64>,
    /// Ends after so many samples (asynchronous runs, where a step has no fixed size).
    pub samples_max: Option<u64>,
    /// Ends after so many seconds of the run.
    pub max_seconds: Option<f64>,
    /// Samples of an epoch.
    pub samples_per_epoch: u64,
    /// Workers of a rank.
    pub workers: u32,
    /// When to evaluate.
    pub evaluation: Every,
    /// Evaluations in a row without a better error that end the run.
    pub patience_evaluations: Option<u64>,
    /// Validation samples; 0 = no validation set.
    pub validation_samples: u64,
    /// Validation samples per part.
    pub evaluation_batch: u64,
    /// `recovery.replace_slow`.
    pub replaces_slow: bool,
    /// The ladder.
    pub policy: Policy,
    /// Whether a run whose spares are used up is started again at a step boundary.
    pub renews: bool,
    /// When ranks that were lost come back; `None` where the number of ranks cannot grow.
    pub regrow: Option<Every>,
    /// How long the word of a lost rank's guardian is waited for before its repair is written
    /// down; zero where nobody has a guardian.
    pub witness_wait: Duration,
    /// How often replicas are compared.
    pub integrity: Interval,
    /// Largest share of an epoch's, or of an evaluation's, samples that may be skipped.
    pub bad_images_max: f64,
    /// How long the run waits for storage that does not answer.
    pub patience: Duration,
    /// What this process has listed of both data sets.
    pub set: SetIdentity,
    /// What this process computes with.
    pub arithmetic: String,
}

impl Plan {
    /// Whether validation errors are measured at all.
    pub fn evaluates(&self) -> bool {
        self.validation_samples > 0 && self.evaluation != Every::Never
    }

    /// From the configuration and what the data set holds.
    pub fn of(config: &Config, order: &Order, validation_samples: u64) -> Self {
        let total = steps_total(config, order);
        let synchronous = config.train.exchange == ExchangeKind::Synchronous;
        Self {
            steps_max: total.filter(|_| synchronous),
            samples_max: total.filter(|_| !synchronous).map(|steps| order.cursor(steps)),
            max_seconds: config.train.max_seconds,
            samples_per_epoch: order.samples,
            workers: config.train.workers,
            evaluation: config.evaluation.every,
            patience_evaluations: config.train.patience.map(u64::from),
            validation_samples,
            evaluation_batch: u64::from(config.evaluation.batch.max(1)),
            replaces_slow: config.recovery.replace_slow,
            policy: policy(config),
            renews: renews(config),
            // Asynchronous owners cannot move between living ranks: a part of Δw would count twice.
            regrow: synchronous.then_some(config.recovery.regrow),
            witness_wait: Duration::ZERO,
            integrity: match synchronous {
                true => config.recovery.integrity_every,
                false => Interval::Off,
            },
            bad_images_max: config.data.bad_images_max,
            patience: config.data.patience.0,
            set: SetIdentity::default(),
            arithmetic: String::new(),
        }
    }
}

/// The smaller of `train.steps` and `train.epochs`, in steps.
pub fn steps_total(config: &Config, order: &Order) -> Option<u64> {
    let by_epochs =
        config.train.epochs.map(|epochs| epochs.saturating_mul(order.steps_per_epoch()));
    [config.train.steps, by_epochs].into_iter().flatten().min()
}

/// Whether a run that has used up its spares is to be started again with new ones: where nothing
/// else brings a lost rank back.
fn renews(config: &Config) -> bool {
    let rungs = config.recovery.rungs();
    config.recovery.spares.unwrap_or(0) > 0
        && rungs.contains(&Rung::Restart)
        && !rungs.contains(&Rung::Respawn)
}

/// What recovery may do.
pub fn policy(config: &Config) -> Policy {
    Policy {
        ladder: config.recovery.rungs(),
        tries_max: config.recovery.tries,
        limit: config.recovery.time_limit.0,
        ranks_min: config.recovery.min_ranks as usize,
        leave_from: None,
        home: variables::home(),
    }
}
