//! The plan that a convolution gets: the first of cuDNN's proposals that fits.

use std::collections::BTreeMap;

use kintsugi_ffi::cuda::Error;
use kintsugi_ffi::cuda::cudnn::{Descriptor, Plan, Values};
use kintsugi_ffi::cuda::sys::cudnn::{attribute, kind, of, value};

use super::described::Convolution;
use super::target::Target;
use crate::config::Precision;
use crate::engine::plan::operation::Refusal;
use crate::engine::plan::tensor::Desc;

/// A plan that works in more is not taken: the workspace is part of what a worker holds.
pub const WORKSPACE_BYTES_MAX: usize = 512 << 20;
/// An engine has fewer notes.
const NOTES_MAX: usize = 32;

/// A plan.
pub struct Planned {
    /// To be executed on `SRC`, `WEIGHTS` and `DST`; its workspace is at most
    /// `WORKSPACE_BYTES_MAX`.
    pub plan: Plan,
    /// What to keep of it: `from_json` makes the same one again.
    pub json: String,
    /// The engine's number.
    pub engine: i64,
    /// How weights lie that it reads, and how the gradient lies that it writes: never row-major,
    /// and in bf16 of bf16.
    pub weights: Desc,
}

/// What came of the search for a plan.
pub enum Chosen {
    /// This one.
    Plan(Box<Planned>),
    /// There is none, and why: the own kernel computes it.
    Own(Refusal),
}

impl Precision {
    /// What an engine must not do, with cuDNN's note of it.
    fn unwanted(self) -> &'static [(i32, &'static str)] {
        const ALWAYS: usize = 2;
        const NOTES: &[(i32, &str)] = &[
            (value::NOTE_NONDETERMINISTIC, "not deterministic"),
            (value::NOTE_REDUCED_PRECISION_REDUCTION, "sums of reduced precision"),
            (value::NOTE_TENSOR_CORE, "tensor cores"),
            (value::NOTE_DOWN_CONVERT_INPUTS, "inputs of reduced precision"),
        ];
        match self {
            Self::F32 => NOTES,
            Self::Tf32 | Self::Bf16 => &NOTES[..ALWAYS],
        }
    }
}

impl Convolution {
    /// The first proposal of cuDNN's heuristics that fits.
    ///
    /// # Errors
    /// cuDNN's, other than that it has no plan.
    pub fn choose(&self, target: &Target<'_>) -> Result<Chosen, Error> {
        let mut refused = Refused::default();
        let graph = match refused.unless(self.graph(target))? {
            Some(graph) => graph,
            None => return Ok(refused.told()),
        };
        for mode in [value::HEURISTIC_A, value::HEURISTIC_FALLBACK] {
            let proposed = refused.unless(target.proposed(&graph, mode))?;
            for config in proposed.iter().flatten() {
                if let Some(why) = unfit(config, self.precision)? {
                    refused.because(why);
                    continue;
                }
                let config = [config];
                let plan = target.plan(attribute::PLAN_CONFIG, Values::Descriptors(&config));
                let Some(plan) = refused.unless_made(plan)? else { continue };
                match refused.unless(self.planned(plan, &graph))? {
                    Some(Ok(planned)) => return Ok(Chosen::Plan(Box::new(planned))),
                    Some(Err(Refusal(why))) => refused.because(&why),
                    // It cannot be kept.
                    None => {}
                }
            }
        }
        Ok(refused.told())
    }

    /// The plan that was kept.
    ///
    /// # Errors
    /// It is another convolution's, or for another card or version of cuDNN; cuDNN's.
    pub fn from_json(&self, target: &Target<'_>, json: &str) -> Result<Planned, Error> {
        let refused = |reason| Error::Refused { call: "cudnnBackendFinalize", reason };
        // Before cuDNN reads it: what it does with other tensors would reach beyond ours.
        self.check(json).map_err(|Refusal(why)| refused(why))?;
        let graph = self.graph(target)?;
        let plan = target.plan(attribute::PLAN_JSON, Values::Text(json.as_bytes()))?;
        self.planned(plan, &graph)?.map_err(|Refusal(why)| refused(why))
    }

    fn planned(
        &self,
        plan: Descriptor,
        graph: &Descriptor,
    ) -> Result<Result<Planned, Refusal>, Error> {
        let plan = Plan::new(plan, graph)?;
        if plan.workspace_bytes() > WORKSPACE_BYTES_MAX {
            return Ok(Err(Refusal("a workspace that is too large".into())));
        }
        let json = String::from_utf8_lossy(&plan.json()?).into_owned();
        let weights = self.weights.clone();
        Ok(self.check(&json).map(|engine| Planned { plan, json, engine, weights }))
    }
}

/// What is wrong with a proposal.
fn unfit(config: &Descriptor, precision: Precision) -> Result<Option<&'static str>, Error> {
    let engines = config.descriptors(attribute::CONFIG_ENGINE, kind::ENGINE)?;
    let Some(engine) = engines.first() else { return Ok(Some("no engine")) };
    let words = |name, kind| engine.words(name, kind, NOTES_MAX);
    // Each would take seconds, and there are hundreds.
    let behaviour = words(attribute::ENGINE_BEHAVIOR_NOTES, of::BEHAVIOR_NOTE)?;
    if behaviour.contains(&value::NOTE_RUNTIME_COMPILATION) {
        return Ok(Some("compiled when it is planned"));
    }
    let notes = words(attribute::ENGINE_NUMERICAL_NOTES, of::NUMERICAL_NOTE)?;
    let unwanted = precision.unwanted().iter().find(|(note, _)| notes.contains(note));
    Ok(unwanted.map(|(_, why)| *why))
}

/// Why there is no plan: each reason, and how often.
#[derive(Default)]
struct Refused(BTreeMap<String, usize>);

impl Refused {
    fn because(&mut self, why: &str) {
        *self.0.entry(why.to_owned()).or_default() += 1;
    }

    /// What cuDNN refuses is noted. Anything else that goes wrong must not decide which kernel
    /// computes.
    fn unless<T>(&mut self, answer: Result<T, Error>) -> Result<Option<T>, Error> {
        /// `CUDNN_STATUS_BAD_PARAM` and `CUDNN_STATUS_NOT_SUPPORTED` with their kinds.
        const REFUSALS: std::ops::Range<i32> = 2000..4000;
        self.but(answer, REFUSALS)
    }

    /// The same of a plan that is made: some proposals fail in their making, whoever tries.
    fn unless_made(
        &mut self,
        plan: Result<Descriptor, Error>,
    ) -> Result<Option<Descriptor>, Error> {
        /// To `CUDNN_STATUS_INTERNAL_ERROR_UNEXPECTED_VALUE`: memory that is short comes behind it.
        const REFUSALS: std::ops::Range<i32> = 2000..4003;
        self.but(plan, REFUSALS)
    }

    fn but<T>(
        &mut self,
        answer: Result<T, Error>,
        refusals: std::ops::Range<i32>,
    ) -> Result<Option<T>, Error> {
        match answer {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if error.code().is_some_and(|code| refusals.contains(&code)) => {
                self.because(&error.to_string());
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn told(self) -> Chosen {
        let all: Vec<String> =
            self.0.iter().map(|(why, count)| format!("{count}x {why}")).collect();
        match all.is_empty() {
            true => Chosen::Own(Refusal("cuDNN proposes nothing".into())),
            false => Chosen::Own(Refusal(format!("cuDNN has no plan: {}", all.join(", ")))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_that_fails_in_its_making_is_the_next_ones_turn_and_nothing_else_that_fails_is() {
        let failed = |code| {
            let (name, text) = (String::new(), String::new());
            Error::Call { call: "cudnnBackendFinalize", code, name, text }
        };
        let mut refused = Refused::default();
        for code in [2000, 3000, 4000, 4002] {
            assert!(matches!(refused.unless_made(Err(failed(code))), Ok(None)), "{code}");
        }
        // Of the host's memory and of the device's, and of whoever only asks.
        for code in [1003, 4003, 4004] {
            assert!(refused.unless_made(Err(failed(code))).is_err(), "{code}");
        }
        assert!(refused.unless::<()>(Err(failed(4000))).is_err());
        let Chosen::Own(Refusal(why)) = refused.told() else { panic!("a plan") };
        assert_eq!(why.matches("1x cudnnBackendFinalize").count(), 4, "{why}");
    }
}
