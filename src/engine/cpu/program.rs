//! A plan with the primitives that realise its steps.

use kintsugi_ffi::dnnl::{Context, MemoryDesc, Primitive};

use super::backend::OneDnn;
use super::weights::is_lendable;
use crate::engine::error::EngineError;
use crate::engine::plan::builder::Request;
use crate::engine::plan::compile::compile;
use crate::engine::plan::operation::Role;
use crate::engine::plan::steps::{Action, Draft, Plan, WeightUse};
use crate::model::Layout;

/// What can run.
pub struct Program {
    /// What it does.
    pub plan: Plan,
    /// By kernel; `None` for those that only told others their layouts.
    pub primitives: Vec<Option<Primitive>>,
    /// What it reads, in the order of the plan.
    pub weights: Vec<WeightUse<MemoryDesc>>,
}

impl Program {
    /// Plans what is asked for with oneDNN's kernels, and compiles them. `arranged`: the draft as
    /// it is to run.
    pub fn new(
        context: &Context,
        request: Request<'_>,
        arranged: &mut dyn FnMut(Draft) -> Result<Draft, EngineError>,
    ) -> Result<Self, EngineError> {
        let mut backend = OneDnn::new(context);
        let plan = arranged(compile(request, &mut backend)?)?.place();
        let mut primitives: Vec<Option<Primitive>> = Vec::new();
        for step in &plan.draft.steps {
            let Action::Run { kernel, arguments } = &step.action else { continue };
            if primitives.get(*kernel).is_some_and(Option::is_some) {
                continue;
            }
            let roles: Vec<Role> = arguments.iter().map(|(role, _)| *role).collect();
            let blame = |error| EngineError::of_node(request.graph, step.node, format!("{error}"));
            let primitive = Primitive::new(backend.kernel(*kernel), &roles).map_err(blame)?;
            if primitives.len() <= *kernel {
                primitives.resize_with(kernel + 1, || None);
            }
            primitives[*kernel] = Some(primitive);
        }
        let mut weights = Vec::with_capacity(plan.draft.weights.len());
        for wanted in &plan.draft.weights {
            let desc = backend.memory(&wanted.desc).map_err(|r| EngineError::Device(r.0))?;
            weights.push(WeightUse { tensor: wanted.tensor, desc });
        }
        Ok(Self { plan, primitives, weights })
    }

    /// Bytes of the copies of weights that it reads, where the state's lie otherwise.
    pub fn weights_bytes(&self, layout: &Layout) -> usize {
        let copied =
            |of: &&WeightUse<MemoryDesc>| !is_lendable(&layout.tensors[of.tensor], &of.desc);
        self.weights.iter().filter(copied).map(|wanted| wanted.desc.bytes()).sum()
    }
}
