//! The plans that a worker has. A process chooses each once; for every further worker it is made
//! again from what was kept, which is quicker and cannot come out otherwise.

use std::sync::{Arc, Mutex, PoisonError};

use kintsugi_ffi::cuda::cudnn::Handle;
use kintsugi_ffi::cuda::{Buffer, Context, Error, Stream};

use super::choice::{Chosen, Planned};
use super::described::{Convolution, DST, SRC, WEIGHTS};
use super::target::Target;
use crate::config::Precision;
use crate::engine::cuda::backend::{Planner, Product, Settled};
use crate::engine::cuda::card::Card;
use crate::engine::error::EngineError;
use crate::engine::plan::operation::Refusal;

/// What was chosen in this process: a plan's JSON, or that the own kernel computes.
static KEPT: Mutex<Vec<(Convolution, Option<String>)>> = Mutex::new(Vec::new());

/// Plans for one worker's use, on its process's card.
pub struct Plans {
    handle: Handle,
    context: Arc<Context>,
    precision: Precision,
    known: Vec<(Convolution, Option<Planned>)>,
}

impl Plans {
    /// None yet.
    ///
    /// # Errors
    /// cuDNN does not take this card.
    pub fn new(card: &Card, precision: Precision) -> Result<Self, EngineError> {
        let context = Arc::clone(&card.context);
        let handle = Handle::new(&card.cudnn, &context)?;
        Ok(Self { handle, context, precision, known: Vec::new() })
    }

    fn made(&self, convolution: &Convolution) -> Result<Option<Planned>, Error> {
        let target = Target::Card(&self.handle);
        // Held meanwhile: others who want the same plan wait for it.
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        let chosen = kept.iter().find(|(of, _)| of == convolution).map(|(_, json)| json.clone());
        if let Some(json) = chosen {
            return json.map(|json| Self::again(convolution, &target, &json)).transpose();
        }
        let planned = match convolution.choose(&target)? {
            Chosen::Plan(planned) => Some(*planned),
            Chosen::Own(_) => None,
        };
        let json = planned.as_ref().map(|planned| planned.json.clone());
        kept.push((convolution.clone(), json));
        Ok(planned)
    }

    /// The plan that was chosen before, from its JSON; where that is refused, it is chosen again.
    fn again(of: &Convolution, target: &Target<'_>, json: &str) -> Result<Planned, Error> {
        let refused = match of.from_json(target, json) {
            Ok(planned) => return Ok(planned),
            Err(error) => error,
        };
        match of.choose(target)? {
            Chosen::Plan(planned) if planned.json == json => Ok(*planned),
            _ => Err(refused),
        }
    }

    /// What a plan is of.
    pub fn name(&self, plan: usize) -> String {
        let known = self.known.get(plan);
        known.map_or_else(String::new, |(convolution, _)| convolution.to_string())
    }

    /// Puts a plan's execution into a stream. Each tensor lies somewhere behind a buffer's start.
    ///
    /// # Errors
    /// cuDNN's.
    pub fn execute(
        &self,
        plan: usize,
        stream: &Stream,
        [src, weights, dst, workspace]: [(&Buffer, usize); 4],
    ) -> Result<(), Error> {
        let Some((_, Some(Planned { plan, .. }))) = self.known.get(plan) else {
            let reason = format!("there is no plan {plan}");
            return Err(Error::Refused { call: "cudnnBackendExecute", reason });
        };
        let tensors = [(SRC, src.0, src.1), (WEIGHTS, weights.0, weights.1), (DST, dst.0, dst.1)];
        // One that needs none is told of one all the same: cuDNN has no word for its absence.
        let done = self.handle.execute(plan, stream, &tensors, Some(workspace));
        // Work that failed before shows at any later call: then it is the driver that knows why.
        done.map_err(|error| stream.synchronize().err().unwrap_or(error))
    }
}

impl Planner for Plans {
    fn plan(&mut self, operation: &Settled) -> Result<Option<Product>, Refusal> {
        let convolution = Convolution::new(operation, self.precision)?;
        let known = self.known.iter().position(|(of, _)| *of == convolution);
        let at = match known {
            Some(at) => at,
            None => {
                let made = self.made(&convolution);
                // As in `execute`: what was lost must not be taken for what cuDNN cannot.
                let made = made.map_err(|error| self.context.synchronize().err().unwrap_or(error));
                let made = made.map_err(|error| Refusal(format!("{convolution}: {error}")))?;
                self.known.push((convolution, made));
                self.known.len() - 1
            }
        };
        let product = |planned: &Planned| Product {
            plan: at,
            workspace_bytes: planned.plan.workspace_bytes(),
            weights: planned.weights.clone(),
        };
        Ok(self.known[at].1.as_ref().map(product))
    }
}
