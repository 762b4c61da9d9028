//! `[optimizer]` and `[schedule]`: how weights are moved, by which rule and how fast over time.
//! Keys that were added later are left out of a configuration where they are unset, so that a run
//! of before keeps its fingerprint.

use serde::{Deserialize, Serialize};

use super::error::{ConfigError, refuse};
use super::warm_up::WarmUp;

/// `optimizer.name`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerKind {
    /// Stochastic gradient descent with momentum.
    Sgd,
    /// Adam with decoupled weight decay (Loshchilov and Hutter 2019).
    AdamW,
    /// Layer-wise adaptive rates (You, Gitman and Ginsburg 2017).
    Lars,
}

/// `[optimizer]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Optimizer {
    /// The rule.
    pub name: OptimizerKind,
    /// Base learning rate.
    pub learning_rate: f64,
    /// Momentum factor, of sgd and lars.
    pub momentum: f64,
    /// Of weights; sgd and lars add it to the gradient (L2 penalty), adamw takes it off the weight.
    pub weight_decay: f64,
    /// Of sgd: the gradient is taken where momentum leads (Nesterov).
    #[serde(skip_serializing_if = "is_false")]
    pub nesterov: bool,
    /// Of adamw: how much of the running means of gradients and of their squares a step keeps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub betas: Option<[f64; 2]>,
    /// Of adamw: added to the root of the mean square.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epsilon: Option<f64>,
    /// Of lars: a weight's norm over its gradient's, times this, is its own rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trust_coefficient: Option<f64>,
    /// Largest norm of the mean gradient over all trained tensors; longer ones are shortened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip_norm: Option<f64>,
    /// Biases and the parameters of norms are decayed as weights are.
    #[serde(skip_serializing_if = "is_false")]
    pub decay_norms_and_biases: bool,
    /// What a running average of the weights keeps of itself in each step; it is evaluated beside
    /// them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ema_decay: Option<f64>,
    /// Multiplies the rate of every tensor that is not of the last layer (fine-tuning).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body_factor: Option<f64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form that serde calls")]
fn is_false(value: &bool) -> bool {
    !value
}

impl Default for Optimizer {
    fn default() -> Self {
        Self {
            name: OptimizerKind::Sgd,
            learning_rate: 0.05,
            momentum: 0.9,
            weight_decay: 1e-4,
            nesterov: false,
            betas: None,
            epsilon: None,
            trust_coefficient: None,
            clip_norm: None,
            decay_norms_and_biases: false,
            ema_decay: None,
            body_factor: None,
        }
    }
}

impl Optimizer {
    /// `betas` in force; unset: those of Kingma and Ba.
    pub fn betas(&self) -> [f64; 2] {
        self.betas.unwrap_or([0.9, 0.999])
    }

    /// `epsilon` in force.
    pub fn epsilon(&self) -> f64 {
        self.epsilon.unwrap_or(1e-8)
    }

    /// `trust_coefficient` in force; unset: that of You, Gitman and Ginsburg.
    pub fn trust_coefficient(&self) -> f64 {
        self.trust_coefficient.unwrap_or(0.001)
    }
}

/// `schedule.kind`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleKind {
    /// The base rate throughout.
    Constant,
    /// Multiplied by `factor` at each of `milestones`.
    Step,
    /// Half a cosine down to zero at the end of the run.
    Cosine,
    /// Up from a twenty-fifth of the base rate, then down to nearly nothing (Smith and Topin 2018).
    OneCycle,
    /// A power of the share of the run that is left.
    Polynomial,
}

/// `[schedule]`. Scales to the smaller of `train.steps` and `train.epochs`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Schedule {
    /// The shape.
    pub kind: ScheduleKind,
    /// Linear warm-up, as a share of the run's steps (0..1) or a length; of `one_cycle` its rising
    /// part, 0.3 where a file leaves it out.
    pub warm_up: WarmUp,
    /// Fractions of the run (0..1) at which `step` multiplies.
    pub milestones: Vec<f64>,
    /// What `step` multiplies by.
    pub factor: f64,
    /// Of `polynomial`; unset: 1, a straight line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power: Option<u32>,
    /// The global batch for which the base rate is meant: it grows and shrinks with
    /// `train.global_batch` (the linear scaling rule, Goyal et al. 2017).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference_batch: Option<u64>,
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            kind: ScheduleKind::Constant,
            warm_up: WarmUp::NONE,
            milestones: vec![0.5, 0.75],
            factor: 0.1,
            power: None,
            reference_batch: None,
        }
    }
}

impl Schedule {
    /// The part of one cycle that rises where `warm_up` is unset (torch's `pct_start`).
    pub(super) const CYCLE_RISES: WarmUp = WarmUp::Share(0.3);

    /// Whether a rate hangs on the run's length: another length makes it another run.
    pub fn scales(&self) -> bool {
        self.kind != ScheduleKind::Constant || self.warm_up.scales()
    }
}

/// The highest `schedule.power`: beyond, nearly nothing is left after a tenth of the run.
const POWER_MAX: u32 = 8;

/// A number, whether it may be written, and what may.
type Ranged<'a> = (&'a str, f64, bool, &'a str);

fn check_ranges(values: &[Ranged<'_>]) -> Result<(), ConfigError> {
    match values.iter().find(|(_, _, valid, _)| !valid) {
        Some((key, value, _, range)) => {
            refuse(key, value, format!("write a number that is {range}"))
        }
        None => Ok(()),
    }
}

impl Optimizer {
    /// Refuses what is out of range or has no effect.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        // What f32 has: they are rounded to it before anything is multiplied by them.
        let finite = |value: f64| (value as f32).is_finite();
        let amount = |value: f64| value >= 0.0 && finite(value);
        let positive = |value: Option<f64>| value.is_none_or(|v| v as f32 > 0.0 && finite(v));
        let share = |value: f64| value >= 0.0 && (value as f32) < 1.0;
        let (rate, decay) = (self.learning_rate, self.weight_decay);
        let (epsilon, trust) = (self.epsilon(), self.trust_coefficient());
        let average = self.ema_decay.unwrap_or(0.5);
        let body = self.body_factor.unwrap_or(1.0);
        check_ranges(&[
            ("optimizer.learning_rate", rate, amount(rate), "0 or above, within f32"),
            (
                "optimizer.momentum",
                self.momentum,
                share(self.momentum),
                "from 0 to below 1, in f32",
            ),
            ("optimizer.weight_decay", decay, amount(decay), "0 or above, within f32"),
            ("optimizer.epsilon", epsilon, positive(self.epsilon), "above 0, within f32"),
            (
                "optimizer.trust_coefficient",
                trust,
                positive(self.trust_coefficient),
                "above 0, within f32",
            ),
            (
                "optimizer.clip_norm",
                self.clip_norm.unwrap_or(1.0),
                positive(self.clip_norm),
                "above 0, within f32",
            ),
            ("optimizer.ema_decay", average, average > 0.0 && average < 1.0, "between 0 and 1"),
            ("optimizer.body_factor", body, amount(body), "0 or above, within f32"),
        ])?;
        if let Some([first, second]) = self.betas
            && !(share(first) && share(second))
        {
            let reason = "write two numbers, both from 0 to below 1, in f32";
            return refuse("optimizer.betas", format!("[{first}, {second}]"), reason);
        }
        self.check_effect()
    }

    /// A key's value, where it is set.
    fn written(&self, key: &str) -> Option<String> {
        let table = toml::Table::try_from(self).expect("every field has a TOML form");
        table.get(key).map(ToString::to_string)
    }

    /// A key of another rule is a slip, not a wish.
    fn check_effect(&self) -> Result<(), ConfigError> {
        use OptimizerKind::{AdamW, Lars, Sgd};
        for (key, of, name) in [
            ("nesterov", Sgd, "sgd"),
            ("betas", AdamW, "adamw"),
            ("epsilon", AdamW, "adamw"),
            ("trust_coefficient", Lars, "lars"),
        ] {
            if let Some(value) = self.written(key)
                && self.name != of
            {
                let reason =
                    format!("it is of another rule: write optimizer.name = \"{name}\" too");
                return refuse(&format!("optimizer.{key}"), value, reason);
            }
        }
        if self.nesterov && self.momentum == 0.0 {
            let reason = "there is no momentum to follow: set optimizer.momentum above 0";
            return refuse("optimizer.nesterov", true, reason);
        }
        Ok(())
    }

    /// The asynchronous exchange has an update of its own.
    pub(super) fn check_asynchronous(&self) -> Result<(), ConfigError> {
        let named = (self.name != OptimizerKind::Sgd).then_some("name");
        let later = ["nesterov", "clip_norm", "decay_norms_and_biases", "ema_decay", "body_factor"];
        for key in named.into_iter().chain(later) {
            if let Some(value) = self.written(key) {
                let reason = "the asynchronous exchange has only SGD with momentum; leave the key \
                              out, or set train.exchange = \"synchronous\"";
                return refuse(&format!("optimizer.{key}"), value, reason);
            }
        }
        Ok(())
    }
}

impl Schedule {
    /// Refuses what is out of range or has no effect.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let unit = 0.0..=1.0;
        let factor = self.factor;
        let warm_up = if let WarmUp::Share(share) = self.warm_up { share } else { 0.0 };
        check_ranges(&[
            ("schedule.warm_up", warm_up, unit.contains(&warm_up), "a fraction 0..1"),
            ("schedule.factor", factor, unit.contains(&factor), "a fraction 0..1"),
        ])?;
        if self.milestones.iter().any(|milestone| !unit.contains(milestone)) {
            let value = format!("{:?}", self.milestones);
            return refuse("schedule.milestones", value, "each is a fraction 0..1 of the run");
        }
        if self.kind == ScheduleKind::Step && self.milestones.iter().all(|at| *at == 1.0) {
            let value = format!("{:?}", self.milestones);
            let reason = "none lies before the end of the run: write fractions below 1";
            return refuse("schedule.milestones", value, reason);
        }
        if let Some(power) = self.power {
            if self.kind != ScheduleKind::Polynomial {
                let reason = "it is of polynomials: write schedule.kind = \"polynomial\" too";
                return refuse("schedule.power", power, reason);
            }
            if !(1..=POWER_MAX).contains(&power) {
                return refuse("schedule.power", power, "write a whole number from 1 to 8");
            }
        }
        if self.reference_batch == Some(0) {
            return refuse("schedule.reference_batch", 0, "write 1 or more samples");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_out_of_range_or_of_another_rule_is_named() {
        let adamw = Optimizer { name: OptimizerKind::AdamW, ..Optimizer::default() };
        let lars = Optimizer { name: OptimizerKind::Lars, ..Optimizer::default() };
        for (good, key) in [
            (Optimizer::default(), ""),
            (Optimizer { nesterov: true, clip_norm: Some(1.0), ..Optimizer::default() }, ""),
            (Optimizer { betas: Some([0.0, 0.99]), epsilon: Some(1e-6), ..adamw.clone() }, ""),
            (Optimizer { betas: Some([0.9, 1.0]), ..adamw.clone() }, "betas = [0.9, 1]"),
            (Optimizer { epsilon: Some(0.0), ..adamw.clone() }, "epsilon = 0"),
            (Optimizer { nesterov: true, ..adamw.clone() }, "nesterov"),
            (Optimizer { clip_norm: Some(f64::NAN), ..adamw }, "clip_norm = NaN"),
            (Optimizer { trust_coefficient: Some(-1.0), ..lars.clone() }, "trust_coefficient"),
            (Optimizer { betas: Some([0.9, 0.9]), ..lars }, "optimizer.name = \"adamw\""),
            (Optimizer { nesterov: true, momentum: 0.0, ..Optimizer::default() }, "no momentum"),
            (Optimizer { ema_decay: Some(1.0), ..Optimizer::default() }, "ema_decay = 1"),
            (Optimizer { body_factor: Some(-0.1), ..Optimizer::default() }, "body_factor"),
        ] {
            let told = good.check().err().map_or(String::new(), |error| error.to_string());
            assert_eq!(told.is_empty(), key.is_empty(), "{good:?}: {told}");
            assert!(told.contains(key), "{key}: {told}");
        }
        let steep =
            Schedule { power: Some(9), kind: ScheduleKind::Polynomial, ..Schedule::default() };
        assert!(steep.check().unwrap_err().to_string().contains("from 1 to 8"));
        let milestones = vec![1.0];
        let late = Schedule { kind: ScheduleKind::Step, milestones, ..Schedule::default() };
        assert!(late.check().unwrap_err().to_string().contains("before the end of the run"));
        let lost = Schedule { power: Some(2), ..Schedule::default() };
        assert!(lost.check().unwrap_err().to_string().contains("polynomial"));
    }

    #[test]
    fn the_asynchronous_exchange_refuses_what_it_would_not_do() {
        assert!(Optimizer::default().check_asynchronous().is_ok());
        let clipped = Optimizer { clip_norm: Some(1.0), ..Optimizer::default() };
        assert!(clipped.check_asynchronous().unwrap_err().to_string().contains("clip_norm"));
    }

    #[test]
    fn keys_that_are_unset_leave_no_trace() {
        let text = toml::to_string(&Optimizer::default()).expect("has a TOML form");
        let expected =
            "name = \"sgd\"\nlearning_rate = 0.05\nmomentum = 0.9\nweight_decay = 0.0001\n";
        assert_eq!(text, expected);
        let text = toml::to_string(&Schedule::default()).expect("has a TOML form");
        assert!(!text.contains("power") && !text.contains("reference_batch"), "{text}");
    }
}
