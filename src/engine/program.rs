//! A compiled graph: steps over values, and the builder that layers write them with.

use std::rc::Rc;

use kintsugi_ffi::dnnl::{
    Arg, Context, Direction, MemoryDesc, Operation, Order, Primitive, PrimitiveDesc, Span,
};

use super::arena::{self, Lifetime, Overwrite};
use super::error::EngineError;
use crate::model::{Graph, Layout, Shape, TensorSpec};

/// Where a tensor is while a step runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In the arena: an index into the program's values.
    Value(usize),
    /// A parameter or statistic in some layout: an index into the program's weights.
    Weight(usize),
    /// The caller's images.
    Image,
}

/// A tensor as layers hand it on: where it is and how it lies there.
#[derive(Debug, Clone)]
pub struct Tensor {
    /// Where.
    pub place: Place,
    /// How.
    pub desc: Rc<MemoryDesc>,
}

/// One thing that the executor does; values by index.
#[allow(missing_docs)]
pub enum Step {
    /// Runs a primitive on these places, in the order of its arguments.
    Run { primitive: Primitive, places: Vec<Place> },
    /// Fills a dropout mask: 0 with probability `rate`, else 1 / (1 - rate).
    Mask { value: usize, elements: usize, rate: f32, node: usize },
    /// Reads log-probabilities; sums loss and errors; with `seed`, writes the loss's gradient.
    Loss { log_probabilities: usize, seed: Option<usize> },
    /// Hands a finished gradient out.
    Emit { value: usize, offset: usize, elements: usize },
    /// Hands a batch's mean and unbiased variance out.
    Statistics { mean: usize, variance: usize, at: [usize; 2], channels: usize, factor: f32 },
}

/// A parameter or statistic that a program reads, in the layout that it wants.
#[derive(Debug, Clone)]
pub struct WeightUse {
    /// Index into the layout's tensors.
    pub tensor: usize,
    /// How it must lie.
    pub desc: Rc<MemoryDesc>,
}

/// A graph compiled for one batch size and direction.
pub struct Program {
    /// In order.
    pub steps: Vec<Step>,
    /// Where each value lies in the arena.
    pub spans: Vec<Span>,
    /// Bytes of arena needed.
    pub arena_bytes: usize,
    /// What it reads.
    pub weights: Vec<WeightUse>,
    /// Values that live from the forward into the backward pass, and their bytes.
    pub saved: Vec<(usize, usize)>,
}

/// What layers write steps with.
pub struct Builder<'a> {
    /// The model.
    pub graph: &'a Graph,
    /// Its tensors.
    pub layout: &'a Layout,
    /// Samples.
    pub batch: usize,
    /// Whether a backward pass follows.
    pub direction: Direction,
    /// The node whose steps are being written.
    pub node: usize,
    context: &'a Context,
    steps: Vec<Step>,
    touched: Vec<Vec<usize>>,
    values: Vec<usize>,
    weights: Vec<WeightUse>,
    overwrites: Vec<Overwrite>,
    converted: Vec<(Tensor, Tensor)>,
    forward_steps: Option<usize>,
}

impl<'a> Builder<'a> {
    /// An empty program for `batch` samples.
    pub fn new(
        context: &'a Context,
        graph: &'a Graph,
        layout: &'a Layout,
        batch: usize,
        direction: Direction,
    ) -> Self {
        Self {
            graph,
            layout,
            batch,
            direction,
            node: 0,
            context,
            steps: Vec::new(),
            touched: Vec::new(),
            values: Vec::new(),
            weights: Vec::new(),
            overwrites: Vec::new(),
            converted: Vec::new(),
            forward_steps: None,
        }
    }

    fn blame(&self, source: &kintsugi_ffi::dnnl::Error) -> EngineError {
        let layer = self.graph.nodes.get(self.node).map_or("loss", |node| &node.name).to_string();
        EngineError::Layer { layer, reason: source.to_string() }
    }

    /// `[batch, channels, height, width]`.
    pub fn dims(&self, shape: Shape) -> [usize; 4] {
        [self.batch, shape[0], shape[1], shape[2]]
    }

    /// A descriptor of these dimensions.
    pub fn desc(&self, dims: &[usize], order: Order) -> Result<MemoryDesc, EngineError> {
        MemoryDesc::new(dims, order).map_err(|error| self.blame(&error))
    }

    /// The caller's images.
    pub fn image(&self) -> Result<Tensor, EngineError> {
        let desc = self.desc(&self.dims(self.graph.input), Order::Plain)?;
        Ok(Tensor { place: Place::Image, desc: Rc::new(desc) })
    }

    /// A new value of this layout.
    pub fn value(&mut self, desc: MemoryDesc) -> Tensor {
        self.values.push(desc.bytes());
        Tensor { place: Place::Value(self.values.len() - 1), desc: Rc::new(desc) }
    }

    /// A new value for an argument of `operation`.
    pub fn result(&mut self, operation: &PrimitiveDesc, arg: Arg) -> Result<Tensor, EngineError> {
        let desc = operation.desc_of(arg).map_err(|error| self.blame(&error))?;
        Ok(self.value(desc))
    }

    /// A new value for an argument that `operation` may not have.
    pub fn result_if_any(
        &mut self,
        operation: &PrimitiveDesc,
        arg: Arg,
    ) -> Result<Option<Tensor>, EngineError> {
        let desc = operation.desc(arg).map_err(|error| self.blame(&error))?;
        Ok(desc.map(|desc| self.value(desc)))
    }

    /// This node's tensor `node.suffix`: its index in the layout, if it has one.
    pub fn tensor(&self, suffix: &str) -> Option<usize> {
        let name = format!("{}.{suffix}", self.graph.nodes[self.node].name);
        let own = |tensor: &TensorSpec| tensor.node == self.node && tensor.name == name;
        self.layout.tensors.iter().position(own)
    }

    /// A parameter or statistic in this layout.
    pub fn weight(&mut self, tensor: usize, desc: MemoryDesc) -> Tensor {
        let same = |w: &WeightUse| w.tensor == tensor && *w.desc == desc;
        let index = self.weights.iter().position(same).unwrap_or_else(|| {
            self.weights.push(WeightUse { tensor, desc: Rc::new(desc) });
            self.weights.len() - 1
        });
        Tensor { place: Place::Weight(index), desc: self.weights[index].desc.clone() }
    }

    /// A parameter or statistic in the layout of an argument of `operation`.
    pub fn weight_for(
        &mut self,
        operation: &PrimitiveDesc,
        arg: Arg,
        tensor: usize,
    ) -> Result<Tensor, EngineError> {
        let desc = operation.desc_of(arg).map_err(|error| self.blame(&error))?;
        Ok(self.weight(tensor, desc))
    }

    /// Picks an implementation.
    pub fn choose(&self, operation: &Operation<'_>) -> Result<PrimitiveDesc, EngineError> {
        PrimitiveDesc::new(self.context, operation).map_err(|error| self.blame(&error))
    }

    /// Adds a step that runs `operation`, with a scratchpad where it wants one. The result may
    /// take the place of each first tensor of `in_place` if nothing reads that one later.
    pub fn run(
        &mut self,
        operation: &PrimitiveDesc,
        args: &[(Arg, &Tensor)],
        in_place: &[(&Tensor, &Tensor)],
    ) -> Result<(), EngineError> {
        let mut roles: Vec<Arg> = args.iter().map(|(arg, _)| *arg).collect();
        let mut places: Vec<Place> = args.iter().map(|(_, tensor)| tensor.place).collect();
        let scratch = operation.scratchpad_bytes();
        if scratch > 0 {
            self.values.push(scratch);
            roles.push(Arg::Scratchpad);
            places.push(Place::Value(self.values.len() - 1));
        }
        let primitive = Primitive::new(operation, &roles).map_err(|error| self.blame(&error))?;
        for (from, to) in in_place {
            if let (Place::Value(from), Place::Value(to)) = (from.place, to.place) {
                self.overwrites.push(Overwrite { from, to });
            }
        }
        let touched = places
            .iter()
            .filter_map(|place| match place {
                Place::Value(value) => Some(*value),
                _ => None,
            })
            .collect();
        self.step(Step::Run { primitive, places }, touched);
        Ok(())
    }

    /// Adds a step that is not a primitive.
    pub fn step(&mut self, step: Step, touched: Vec<usize>) {
        self.steps.push(step);
        self.touched.push(touched);
    }

    /// The same tensor in another layout; the result is shared with whoever asked before.
    pub fn convert(&mut self, from: &Tensor, to: &MemoryDesc) -> Result<Tensor, EngineError> {
        if *from.desc == *to {
            return Ok(from.clone());
        }
        let known = self.converted.iter().find(|(source, result)| {
            source.place == from.place && source.desc == from.desc && *result.desc == *to
        });
        if let Some((_, result)) = known {
            return Ok(result.clone());
        }
        let dims = to.dims();
        let source = if from.desc.dims() == dims {
            from.clone()
        } else {
            let plain = self.plain(from)?;
            let desc = plain.desc.reshape(&dims).map_err(|error| self.blame(&error))?;
            Tensor { place: plain.place, desc: Rc::new(desc) }
        };
        if *source.desc == *to {
            return Ok(source);
        }
        let operation = self.choose(&Operation::Reorder { from: &source.desc, to })?;
        let result = self.result(&operation, Arg::Dst)?;
        self.run(&operation, &[(Arg::Src, &source), (Arg::Dst, &result)], &[])?;
        self.converted.push((from.clone(), result.clone()));
        Ok(result)
    }

    /// The same tensor in the layout of an argument of `operation`.
    pub fn convert_for(
        &mut self,
        from: &Tensor,
        operation: &PrimitiveDesc,
        arg: Arg,
    ) -> Result<Tensor, EngineError> {
        let desc = operation.desc_of(arg).map_err(|error| self.blame(&error))?;
        self.convert(from, &desc)
    }

    /// A part of a tensor, from `offsets` on, copied into the layout `to`.
    pub fn cut(
        &mut self,
        from: &Tensor,
        to: &MemoryDesc,
        offsets: &[usize],
    ) -> Result<Tensor, EngineError> {
        let dims = to.dims();
        let (source, part) = match from.desc.part(&dims, offsets) {
            Ok(part) => (from.clone(), part),
            Err(_) => {
                let plain = self.plain(from)?;
                let part = plain.desc.part(&dims, offsets).map_err(|error| self.blame(&error))?;
                (plain, part)
            }
        };
        let operation = self.choose(&Operation::Reorder { from: &part, to })?;
        let result = self.result(&operation, Arg::Dst)?;
        self.run(&operation, &[(Arg::Src, &source), (Arg::Dst, &result)], &[])?;
        Ok(result)
    }

    /// The same tensor, row-major.
    pub fn plain(&mut self, from: &Tensor) -> Result<Tensor, EngineError> {
        let desc = self.desc(&from.desc.dims(), Order::Plain)?;
        self.convert(from, &desc)
    }

    /// The same tensor with four dimensions, in whatever layout it has if it has four already.
    pub fn spatial(&mut self, from: &Tensor, shape: Shape) -> Result<Tensor, EngineError> {
        if from.desc.dims().len() == 4 {
            return Ok(from.clone());
        }
        let desc = self.desc(&self.dims(shape), Order::Plain)?;
        self.convert(from, &desc)
    }

    /// Sum of two gradients.
    pub fn add(&mut self, a: &Tensor, b: &Tensor) -> Result<Tensor, EngineError> {
        let b = self.convert(b, &a.desc.clone())?;
        let algorithm = kintsugi_ffi::dnnl::Algorithm::Add;
        let operation =
            self.choose(&Operation::Binary { algorithm, a: &a.desc, b: &b.desc, to: &a.desc })?;
        let sum = self.result(&operation, Arg::Dst)?;
        let args = [(Arg::Src, a), (Arg::Src1, &b), (Arg::Dst, &sum)];
        self.run(&operation, &args, &[(a, &sum)])?;
        Ok(sum)
    }

    /// Hands the gradient of this node's tensor out, in the layout's (row-major) order.
    pub fn emit(&mut self, tensor: usize, gradient: &Tensor) -> Result<(), EngineError> {
        let plain = self.plain(gradient)?;
        let spec = &self.layout.tensors[tensor];
        let (offset, elements) = (spec.offset, spec.elements());
        let Place::Value(value) = plain.place else {
            return Err(EngineError::Layout(format!("{} is not computed", spec.name)));
        };
        self.step(Step::Emit { value, offset, elements }, vec![value]);
        Ok(())
    }

    /// From here on steps belong to the backward pass, which reads only what layers saved.
    pub fn begin_backward(&mut self) {
        self.converted.clear();
        self.forward_steps = Some(self.steps.len());
    }

    /// Places all values.
    pub fn finish(self, log_probabilities: usize) -> Program {
        let end = self.steps.len();
        let mut lives: Vec<Option<(usize, usize)>> = vec![None; self.values.len()];
        for (at, touched) in self.touched.iter().enumerate() {
            for &value in touched {
                let first = lives[value].map_or(at, |(first, _)| first);
                lives[value] = Some((first, at));
            }
        }
        // The caller reads the result after the last step.
        if let Some((_, last)) = &mut lives[log_probabilities] {
            *last = end;
        }
        let forward = self.forward_steps.unwrap_or(end);
        let lifetimes: Vec<Lifetime> = self
            .values
            .iter()
            .zip(&lives)
            .map(|(&bytes, life)| {
                let (first, last) = life.unwrap_or((end, end));
                Lifetime { bytes, first, last }
            })
            .collect();
        let saved = (0..lifetimes.len())
            .filter(|&at| lifetimes[at].first < forward && lifetimes[at].last >= forward)
            .map(|at| (at, lifetimes[at].bytes))
            .collect();
        let placement = arena::place(&lifetimes, &self.overwrites);
        Program {
            steps: self.steps,
            spans: placement.spans,
            arena_bytes: placement.bytes,
            weights: self.weights,
            saved,
        }
    }
}
