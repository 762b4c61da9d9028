//! What layers write steps with.

use std::rc::Rc;

use super::operation::{Access, Algorithm, Backend, Choice, Direction, Operation, Refusal, Role};
use super::placement::Overwrite;
use super::steps::{Action, Draft, Step, Taken, WeightUse};
use super::taps::Taps;
use super::tensor::{Desc, ElementType, Place, Tensor};
use crate::engine::error::EngineError;
use crate::model::{Graph, Layout, Shape, TensorKind, TensorSpec};

/// What is planned.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The model.
    pub graph: &'a Graph,
    /// Its tensors.
    pub layout: &'a Layout,
    /// Samples, at least one.
    pub batch: usize,
    /// Whether a backward pass follows.
    pub direction: Direction,
    /// What activations and weights are made of.
    pub element: ElementType,
    /// Tensors of the layout, by their number, whose gradients nobody wants; those beyond its end
    /// are trained.
    pub frozen: &'a [bool],
}

impl Request<'_> {
    /// Whether a tensor of the layout has a gradient.
    pub fn is_trained(&self, tensor: usize) -> bool {
        let frozen = self.frozen.get(tensor).is_some_and(|&frozen| frozen);
        !frozen && self.layout.tensors[tensor].kind != TensorKind::Statistic
    }
}

/// Collects steps and the values that they touch.
pub struct Builder<'a> {
    /// What is planned.
    pub request: Request<'a>,
    /// The node whose steps are being written.
    pub node: usize,
    backend: &'a mut dyn Backend,
    steps: Vec<Step>,
    /// Bytes of each value.
    values: Vec<usize>,
    weights: Vec<WeightUse>,
    converted: Vec<(Tensor, Tensor)>,
}

impl<'a> Builder<'a> {
    /// An empty plan.
    pub fn new(request: Request<'a>, backend: &'a mut dyn Backend) -> Self {
        Self {
            request,
            node: 0,
            backend,
            steps: Vec::new(),
            values: Vec::new(),
            weights: Vec::new(),
            converted: Vec::new(),
        }
    }

    fn blame(&self, Refusal(reason): Refusal) -> EngineError {
        EngineError::of_node(self.request.graph, self.node, reason)
    }

    /// Whether a backward pass follows.
    pub fn direction(&self) -> Direction {
        self.request.direction
    }

    /// `[batch, channels, height, width]`.
    pub fn dims(&self, shape: Shape) -> [usize; 4] {
        [self.request.batch, shape[0], shape[1], shape[2]]
    }

    /// A row-major descriptor of these dimensions, of the element type that activations have.
    pub fn row_major(&self, dims: &[usize]) -> Desc {
        Desc::plain(dims, self.request.element)
    }

    /// A row-major descriptor of f32, whatever activations are made of.
    pub fn row_major_f32(&self, dims: &[usize]) -> Desc {
        Desc::plain(dims, ElementType::F32)
    }

    /// One like activations whose order the device picks.
    pub fn any_order(&self, dims: &[usize]) -> Desc {
        Desc::any(dims, self.request.element)
    }

    /// The caller's images, f32.
    pub fn image(&self) -> Tensor {
        let desc = self.row_major_f32(&self.dims(self.request.graph.input));
        Tensor { place: Place::Image, desc: Rc::new(desc) }
    }

    /// A new value that lies so.
    pub fn value(&mut self, desc: Desc) -> Tensor {
        self.values.push(desc.bytes);
        Tensor { place: Place::Value(self.values.len() - 1), desc: Rc::new(desc) }
    }

    /// A new value for an argument of a kernel.
    pub fn result(&mut self, choice: &Choice, role: Role) -> Result<Tensor, EngineError> {
        let desc = choice.desc(role).map_err(|refusal| self.blame(refusal))?;
        Ok(self.value(desc))
    }

    /// A new value for what a kernel keeps for backward, if it keeps anything.
    pub fn workspace_if_any(&mut self, choice: &Choice) -> Option<Tensor> {
        choice.desc_if_any(Role::Workspace).cloned().map(|desc| self.value(desc))
    }

    /// This node's tensor `node.suffix`: its index in the layout, if it has one.
    pub fn tensor(&self, suffix: &str) -> Option<usize> {
        let name = format!("{}.{suffix}", self.request.graph.nodes[self.node].name);
        let own = |tensor: &TensorSpec| tensor.node == self.node && tensor.name == name;
        self.request.layout.tensors.iter().position(own)
    }

    /// A parameter or statistic in the order of an argument of a kernel.
    pub fn weight_for(
        &mut self,
        choice: &Choice,
        role: Role,
        tensor: usize,
    ) -> Result<Tensor, EngineError> {
        let desc = choice.desc(role).map_err(|refusal| self.blame(refusal))?;
        let same = |w: &WeightUse| w.tensor == tensor && *w.desc == desc;
        let index = self.weights.iter().position(same).unwrap_or_else(|| {
            self.weights.push(WeightUse { tensor, desc: Rc::new(desc) });
            self.weights.len() - 1
        });
        Ok(Tensor { place: Place::Weight(index), desc: self.weights[index].desc.clone() })
    }

    /// Picks a kernel.
    pub fn choose(&mut self, operation: &Operation<'_>) -> Result<Choice, EngineError> {
        self.backend.choose(operation).map_err(|refusal| self.blame(refusal))
    }

    /// Adds a step that runs a kernel, with a scratchpad where it wants one. The result may take
    /// the place of each first tensor of `in_place` if nothing reads that one later.
    pub fn run(
        &mut self,
        choice: &Choice,
        arguments: &[(Role, &Tensor)],
        in_place: &[(&Tensor, &Tensor)],
    ) {
        let mut arguments: Vec<(Role, Place)> =
            arguments.iter().map(|(role, tensor)| (*role, tensor.place)).collect();
        if choice.scratch_bytes > 0 {
            self.values.push(choice.scratch_bytes);
            arguments.push((Role::Scratchpad, Place::Value(self.values.len() - 1)));
        }
        let overwrite = |(from, to): &(&Tensor, &Tensor)| {
            Some(Overwrite { from: from.place.value()?, to: to.place.value()? })
        };
        let overwrites = in_place.iter().filter_map(overwrite).collect();
        let touched = |access: Access| -> Vec<usize> {
            let writes = access == Access::Write;
            let own = arguments.iter().filter(|(role, _)| choice.writes(*role) == writes);
            own.filter_map(|(_, place)| place.value()).collect()
        };
        let (reads, writes) = (touched(Access::Read), touched(Access::Write));
        let action = Action::Run { kernel: choice.kernel, arguments };
        self.steps.push(Step { node: self.node, action, reads, writes, overwrites });
    }

    /// Adds a step.
    pub fn step(&mut self, action: Action, reads: Vec<usize>, writes: Vec<usize>) {
        let overwrites = Vec::new();
        self.steps.push(Step { node: self.node, action, reads, writes, overwrites });
    }

    /// The same tensor in another order or element type; the result is shared with whoever asked
    /// before.
    pub fn convert(&mut self, from: &Tensor, to: &Desc) -> Result<Tensor, EngineError> {
        if *from.desc == *to {
            return Ok(from.clone());
        }
        let known = self.converted.iter().find(|(source, result)| {
            source.place == from.place && source.desc == from.desc && *result.desc == *to
        });
        if let Some((_, result)) = known {
            return Ok(result.clone());
        }
        let source = match from.desc.dims == to.dims {
            true => from.clone(),
            false => self.reshape(from, &to.dims)?,
        };
        if *source.desc == *to {
            return Ok(source);
        }
        let choice = self.choose(&Operation::Reorder { from: &source.desc, to })?;
        let result = self.result(&choice, Role::Dst)?;
        self.run(&choice, &[(Role::Src, &source), (Role::Dst, &result)], &[]);
        self.converted.push((from.clone(), result.clone()));
        Ok(result)
    }

    /// The same elements, row-major, under other dimensions.
    pub fn reshape(&mut self, from: &Tensor, dims: &[usize]) -> Result<Tensor, EngineError> {
        let plain = Desc::plain(&from.desc.dims, from.desc.element);
        let plain = self.convert(from, &plain)?;
        let desc = Desc::plain(dims, plain.desc.element);
        if desc.bytes != plain.desc.bytes {
            let reason = format!("{:?} cannot be seen as {dims:?}", plain.desc.dims);
            return Err(self.blame(Refusal(reason)));
        }
        Ok(Tensor { place: plain.place, desc: Rc::new(desc) })
    }

    /// The same tensor in the order of an argument of a kernel.
    pub fn convert_for(
        &mut self,
        from: &Tensor,
        choice: &Choice,
        role: Role,
    ) -> Result<Tensor, EngineError> {
        let desc = choice.desc(role).map_err(|refusal| self.blame(refusal))?;
        self.convert(from, &desc)
    }

    /// A part of a tensor, from `offsets` on, copied to lie as `to` says.
    pub fn cut(
        &mut self,
        from: &Tensor,
        to: &Desc,
        offsets: &[usize],
    ) -> Result<Tensor, EngineError> {
        let offsets = offsets.to_vec();
        let in_order =
            self.backend.choose(&Operation::Cut { from: &from.desc, to, offsets: offsets.clone() });
        let (source, choice) = match in_order {
            Ok(choice) => (from.clone(), choice),
            Err(_) => {
                let plain = self.plain(from)?;
                let choice = self.choose(&Operation::Cut { from: &plain.desc, to, offsets })?;
                (plain, choice)
            }
        };
        let result = self.result(&choice, Role::Dst)?;
        self.run(&choice, &[(Role::Src, &source), (Role::Dst, &result)], &[]);
        Ok(result)
    }

    /// The same tensor, row-major, as activations are.
    pub fn plain(&mut self, from: &Tensor) -> Result<Tensor, EngineError> {
        let desc = self.row_major(&from.desc.dims);
        self.convert(from, &desc)
    }

    /// The same tensor with four dimensions, in whatever order it has if it has four already.
    pub fn spatial(&mut self, from: &Tensor, shape: Shape) -> Result<Tensor, EngineError> {
        if from.desc.dims.len() == 4 {
            return Ok(from.clone());
        }
        let desc = self.row_major(&self.dims(shape));
        self.convert(from, &desc)
    }

    /// Sum of two gradients.
    pub fn add(&mut self, a: &Tensor, b: &Tensor) -> Result<Tensor, EngineError> {
        let desc = a.desc.clone();
        let b = self.convert(b, &desc)?;
        let algorithm = Algorithm::Add;
        let choice =
            self.choose(&Operation::Binary { algorithm, a: &desc, b: &b.desc, to: &desc })?;
        let sum = self.result(&choice, Role::Dst)?;
        let arguments = [(Role::Src, a), (Role::Src1, &b), (Role::Dst, &sum)];
        self.run(&choice, &arguments, &[(a, &sum)]);
        Ok(sum)
    }

    /// Hands the gradient of this node's tensor out, in the layout's (row-major) order, f32; of a
    /// frozen one nothing is.
    pub fn emit(&mut self, tensor: usize, gradient: &Tensor) -> Result<(), EngineError> {
        self.emit_of_taps(tensor, gradient, None)
    }

    /// The same of a convolution's kernel, of which only `taps` see data.
    pub fn emit_of_taps(
        &mut self,
        tensor: usize,
        gradient: &Tensor,
        taps: Option<Taps>,
    ) -> Result<(), EngineError> {
        if !self.request.is_trained(tensor) {
            return Ok(());
        }
        let plain = self.row_major_f32(&gradient.desc.dims);
        let plain = self.convert(gradient, &plain)?;
        let spec = &self.request.layout.tensors[tensor];
        let (offset, elements) = (spec.offset, spec.elements());
        let Some(value) = plain.place.value() else {
            return Err(EngineError::Layout(format!("{} is not computed", spec.name)));
        };
        // Zeros are written where it lies.
        let changed = taps.iter().map(|_| value).collect();
        self.step(Action::Emit { value, offset, elements, taps }, vec![value], changed);
        Ok(())
    }

    /// From here on steps belong to the backward pass, which reads only what layers saved.
    pub fn begin_backward(&mut self) {
        self.converted.clear();
    }

    /// All these steps.
    pub fn finish(self) -> Draft {
        let (steps, bytes, weights) = (self.steps, self.values, self.weights);
        Draft { steps, bytes, weights, taken: Taken::AtOnce, remote: Vec::new() }
    }
}
