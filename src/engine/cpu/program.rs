//! A plan with the primitives that realise its steps.

use kintsugi_ffi::dnnl::{Context, MemoryDesc, Primitive};

use super::backend::OneDnn;
use super::weights::is_lendable;
use crate::engine::error::EngineError;
use crate::engine::memory::limits::WeightCopies;
use crate::engine::memory::loads::loading;
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
        copies: WeightCopies,
        arranged: &mut dyn FnMut(Draft) -> Result<Draft, EngineError>,
    ) -> Result<Self, EngineError> {
        let mut backend = OneDnn::new(context);
        let draft = compile(request, &mut backend)?;
        let mut weights = Vec::with_capacity(draft.weights.len());
        for wanted in &draft.weights {
            let desc = backend.memory(&wanted.desc).map_err(|r| EngineError::Device(r.0))?;
            weights.push(WeightUse { tensor: wanted.tensor, desc });
        }
        let draft = match copies {
            WeightCopies::Apart => draft,
            WeightCopies::Placed => loading(draft, &copied(&weights, request.layout)),
        };
        let plan = arranged(draft)?.place();
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
        Ok(Self { plan, primitives, weights })
    }

    /// Bytes of the copies of weights that it reads and that have no places among its values,
    /// where the state's lie otherwise.
    pub fn weights_bytes(&self, layout: &Layout) -> usize {
        let apart = self.weights.iter().zip(self.are_apart()).filter(|(_, is_apart)| *is_apart);
        apart.map(|(wanted, _)| copied_bytes(wanted, layout)).sum()
    }

    /// Of each weight whether its copy has no place among the values.
    pub fn are_apart(&self) -> Vec<bool> {
        let mut are_apart = vec![true; self.weights.len()];
        for step in &self.plan.draft.steps {
            if let Action::Load { weight, .. } = step.action {
                are_apart[weight] = false;
            }
        }
        are_apart
    }
}

/// Bytes of the copy of a weight; 0 where kernels read the state itself.
fn copied_bytes(of: &WeightUse<MemoryDesc>, layout: &Layout) -> usize {
    if is_lendable(&layout.tensors[of.tensor], &of.desc) { 0 } else { of.desc.bytes() }
}

/// Which weights are copied at all.
fn copied(weights: &[WeightUse<MemoryDesc>], layout: &Layout) -> Vec<bool> {
    weights.iter().map(|wanted| copied_bytes(wanted, layout) > 0).collect()
}
