//! oneDNN as a plan's backend: which kernels it has, and in which layouts they want their tensors.

use std::rc::Rc;

use kintsugi_ffi::dnnl::{self, Context, MemoryDesc, Operation as Op, PrimitiveDesc};

use super::translation::{
    activation, algorithm, direction, element, form, function, lrn, norm, pooling, role, window,
};
use crate::engine::plan::operation::{
    Access, Argument, Backend, Choice, Kernel, Operation, Refusal, Role,
};
use crate::engine::plan::tensor::{Desc, ElementType, Order};

type Memory = Rc<MemoryDesc>;

/// What one plan chose.
pub struct OneDnn {
    context: Context,
    kernels: Vec<PrimitiveDesc>,
    /// Layouts that are not row-major, by the number of their `Order::Device`.
    layouts: Vec<(Desc, Memory)>,
}

impl OneDnn {
    /// Nothing chosen yet.
    pub fn new(context: &Context) -> Self {
        Self { context: context.clone(), kernels: Vec::new(), layouts: Vec::new() }
    }

    /// A kernel that was chosen.
    pub fn kernel(&self, kernel: Kernel) -> &PrimitiveDesc {
        &self.kernels[kernel]
    }

    /// oneDNN's descriptor.
    pub fn memory(&self, desc: &Desc) -> Result<Memory, Refusal> {
        let order = match desc.order {
            Order::Any => dnnl::Order::Any,
            Order::Plain => dnnl::Order::Plain,
            Order::Device(number) => return Ok(Rc::clone(&self.layouts[number].1)),
        };
        let memory = MemoryDesc::new(&desc.dims, element(desc.element), order);
        memory.map(Rc::new).map_err(Refusal::from)
    }

    /// The plan's descriptor of a layout that oneDNN chose.
    fn describe(&mut self, role: Role, memory: MemoryDesc) -> Desc {
        let (dims, bytes) = (memory.dims(), memory.bytes());
        let own = memory.element();
        let element = match (role, own) {
            (Role::Workspace, _) | (_, dnnl::Element::Other) => ElementType::Raw,
            (_, dnnl::Element::F32) => ElementType::F32,
            (_, dnnl::Element::Bf16) => ElementType::Bf16,
        };
        let plain = MemoryDesc::new(&dims, own, dnnl::Order::Plain);
        if element != ElementType::Raw && plain.is_ok_and(|plain| plain == memory) {
            return Desc { dims, element, order: Order::Plain, bytes };
        }
        let same = |(desc, known): &&(Desc, Memory)| {
            desc.element == element && desc.dims == dims && **known == memory
        };
        if let Some((desc, _)) = self.layouts.iter().find(same) {
            return desc.clone();
        }
        let desc = Desc { dims, element, order: Order::Device(self.layouts.len()), bytes };
        self.layouts.push((desc.clone(), Rc::new(memory)));
        desc
    }

    /// The part of a tensor that a cut reads.
    fn part(&self, from: &Desc, to: &Desc, offsets: &[usize]) -> Result<MemoryDesc, Refusal> {
        self.memory(from)?.part(&to.dims, offsets).map_err(Refusal::from)
    }

    fn create(&self, operation: &Op<'_>) -> Result<PrimitiveDesc, Refusal> {
        PrimitiveDesc::new(&self.context, operation).map_err(Refusal::from)
    }

    fn optional(&self, desc: Option<&Desc>) -> Result<Option<Memory>, Refusal> {
        desc.map(|desc| self.memory(desc)).transpose()
    }

    fn join(&self, operation: &Operation<'_>) -> Result<PrimitiveDesc, Refusal> {
        match *operation {
            Operation::Reorder { from, to } => {
                self.create(&Op::Reorder { from: &*self.memory(from)?, to: &*self.memory(to)? })
            }
            Operation::Cut { from, to, offsets } => {
                let part = self.part(from, to, offsets)?;
                self.create(&Op::Reorder { from: &part, to: &*self.memory(to)? })
            }
            Operation::Concat { sources, axis } => {
                let sources: Vec<Memory> =
                    sources.iter().map(|desc| self.memory(desc)).collect::<Result<_, _>>()?;
                let sources: Vec<&MemoryDesc> = sources.iter().map(|memory| &**memory).collect();
                self.create(&Op::Concat { sources: &sources, axis })
            }
            Operation::Binary { algorithm: how, a, b, to } => self.create(&Op::Binary {
                algorithm: algorithm(how),
                a: &*self.memory(a)?,
                b: &*self.memory(b)?,
                to: &*self.memory(to)?,
            }),
            _ => unreachable!("dispatched by `primitive`"),
        }
    }

    fn conv(&self, operation: &Operation<'_>) -> Result<PrimitiveDesc, Refusal> {
        match *operation {
            Operation::Conv {
                direction: way,
                src,
                weights,
                bias,
                dst,
                window: w,
                activation: a,
            } => self.create(&Op::Conv {
                direction: direction(way),
                src: &*self.memory(src)?,
                weights: &*self.memory(weights)?,
                bias: self.optional(bias)?.as_deref(),
                dst: &*self.memory(dst)?,
                window: window(w),
                activation: activation(a),
            }),
            Operation::ConvBackwardData { diff_src, weights, diff_dst, window: w, hint } => self
                .create(&Op::ConvBackwardData {
                    diff_src: &*self.memory(diff_src)?,
                    weights: &*self.memory(weights)?,
                    diff_dst: &*self.memory(diff_dst)?,
                    window: window(w),
                    hint: &self.kernels[hint],
                }),
            Operation::ConvBackwardWeights {
                src,
                diff_weights,
                diff_bias,
                diff_dst,
                window: w,
                hint,
            } => self.create(&Op::ConvBackwardWeights {
                src: &*self.memory(src)?,
                diff_weights: &*self.memory(diff_weights)?,
                diff_bias: self.optional(diff_bias)?.as_deref(),
                diff_dst: &*self.memory(diff_dst)?,
                window: window(w),
                hint: &self.kernels[hint],
            }),
            _ => unreachable!("dispatched by `primitive`"),
        }
    }

    fn linear(&self, operation: &Operation<'_>) -> Result<PrimitiveDesc, Refusal> {
        match *operation {
            Operation::Linear { direction: way, src, weights, bias, dst, activation: a } => self
                .create(&Op::Linear {
                    direction: direction(way),
                    src: &*self.memory(src)?,
                    weights: &*self.memory(weights)?,
                    bias: self.optional(bias)?.as_deref(),
                    dst: &*self.memory(dst)?,
                    activation: activation(a),
                }),
            Operation::LinearBackwardData { diff_src, weights, diff_dst, hint } => {
                self.create(&Op::LinearBackwardData {
                    diff_src: &*self.memory(diff_src)?,
                    weights: &*self.memory(weights)?,
                    diff_dst: &*self.memory(diff_dst)?,
                    hint: &self.kernels[hint],
                })
            }
            Operation::LinearBackwardWeights { src, diff_weights, diff_bias, diff_dst, hint } => {
                self.create(&Op::LinearBackwardWeights {
                    src: &*self.memory(src)?,
                    diff_weights: &*self.memory(diff_weights)?,
                    diff_bias: self.optional(diff_bias)?.as_deref(),
                    diff_dst: &*self.memory(diff_dst)?,
                    hint: &self.kernels[hint],
                })
            }
            _ => unreachable!("dispatched by `primitive`"),
        }
    }

    fn pointwise(&self, operation: &Operation<'_>) -> Result<PrimitiveDesc, Refusal> {
        match *operation {
            Operation::Pointwise { direction: way, function: f, data } => {
                let data = self.memory(data)?;
                let (direction, function) = (direction(way), function(f));
                self.create(&Op::Pointwise { direction, function, data: &data })
            }
            Operation::Softmax { direction: way, form: f, data } => {
                let data = self.memory(data)?;
                let (direction, form) = (direction(way), form(f));
                self.create(&Op::Softmax { direction, form, data: &data })
            }
            Operation::PointwiseBackward { function: f, diff, data, hint } => {
                let (diff, data) = (self.memory(diff)?, self.memory(data)?);
                let (function, hint) = (function(f), &self.kernels[hint]);
                self.create(&Op::PointwiseBackward { function, diff: &diff, data: &data, hint })
            }
            Operation::SoftmaxBackward { form: f, diff, data, hint } => {
                let (diff, data) = (self.memory(diff)?, self.memory(data)?);
                let (form, hint) = (form(f), &self.kernels[hint]);
                self.create(&Op::SoftmaxBackward { form, diff: &diff, data: &data, hint })
            }
            _ => unreachable!("dispatched by `primitive`"),
        }
    }

    fn pool(&self, operation: &Operation<'_>) -> Result<PrimitiveDesc, Refusal> {
        match *operation {
            Operation::Pool { direction: way, kind, src, dst, window: w } => {
                self.create(&Op::Pool {
                    direction: direction(way),
                    kind: pooling(kind),
                    src: &*self.memory(src)?,
                    dst: &*self.memory(dst)?,
                    window: window(w),
                })
            }
            Operation::PoolBackward { kind, diff_src, diff_dst, window: w, hint } => {
                self.create(&Op::PoolBackward {
                    kind: pooling(kind),
                    diff_src: &*self.memory(diff_src)?,
                    diff_dst: &*self.memory(diff_dst)?,
                    window: window(w),
                    hint: &self.kernels[hint],
                })
            }
            _ => unreachable!("dispatched by `primitive`"),
        }
    }

    fn normalise(&self, operation: &Operation<'_>) -> Result<PrimitiveDesc, Refusal> {
        match *operation {
            Operation::Lrn { direction: way, data, lrn: constants } => {
                let (direction, data) = (direction(way), self.memory(data)?);
                self.create(&Op::Lrn { direction, data: &data, lrn: lrn(constants) })
            }
            Operation::LrnBackward { diff, src, lrn: constants, hint } => {
                let (diff, src) = (self.memory(diff)?, self.memory(src)?);
                let (lrn, hint) = (lrn(constants), &self.kernels[hint]);
                self.create(&Op::LrnBackward { diff: &diff, src: &src, lrn, hint })
            }
            Operation::BatchNorm { direction: way, data, norm: constants } => {
                let create = |data: &MemoryDesc| {
                    let (direction, norm) = (direction(way), norm(constants));
                    self.create(&Op::BatchNorm { direction, data, norm })
                };
                let (given, plain) = (self.memory(data)?, Desc::plain(&data.dims, data.element));
                let chosen = create(&given)?;
                match is_reference(&chosen) {
                    true => create(&*self.memory(&plain)?),
                    false => Ok(chosen),
                }
            }
            Operation::BatchNormBackward { diff, src, norm: constants, hint } => {
                let (diff, src) = (self.memory(diff)?, self.memory(src)?);
                let (norm, hint) = (norm(constants), &self.kernels[hint]);
                self.create(&Op::BatchNormBackward { diff: &diff, src: &src, norm, hint })
            }
            _ => unreachable!("dispatched by `primitive`"),
        }
    }

    fn primitive(&self, operation: &Operation<'_>) -> Result<PrimitiveDesc, Refusal> {
        use Operation as Asked;
        match operation {
            Asked::Reorder { .. }
            | Asked::Cut { .. }
            | Asked::Concat { .. }
            | Asked::Binary { .. } => self.join(operation),
            Asked::Conv { .. }
            | Asked::ConvBackwardData { .. }
            | Asked::ConvBackwardWeights { .. } => self.conv(operation),
            Asked::Linear { .. }
            | Asked::LinearBackwardData { .. }
            | Asked::LinearBackwardWeights { .. } => self.linear(operation),
            Asked::Pointwise { .. }
            | Asked::PointwiseBackward { .. }
            | Asked::Softmax { .. }
            | Asked::SoftmaxBackward { .. } => self.pointwise(operation),
            Asked::Pool { .. } | Asked::PoolBackward { .. } => self.pool(operation),
            Asked::Lrn { .. }
            | Asked::LrnBackward { .. }
            | Asked::BatchNorm { .. }
            | Asked::BatchNormBackward { .. } => self.normalise(operation),
        }
    }
}

/// Whether oneDNN has nothing but its reference code, a hundred times as slow as a kernel: so for
/// batch norm of the blocks of four that convolutions with narrow groups leave (resnext50).
fn is_reference(chosen: &PrimitiveDesc) -> bool {
    chosen.implementation().starts_with("ref")
}

impl Backend for OneDnn {
    fn choose(&mut self, operation: &Operation<'_>) -> Result<Choice, Refusal> {
        let chosen = self.primitive(operation)?;
        let argument = |(own, access): (Role, Access)| {
            let memory = chosen.desc(role(own)).map_err(Refusal::from).transpose()?;
            Some(memory.map(|memory| Argument {
                role: own,
                access,
                desc: self.describe(own, memory),
            }))
        };
        let arguments: Vec<Argument> =
            operation.roles().into_iter().filter_map(argument).collect::<Result<_, _>>()?;
        let scratch_bytes = chosen.scratchpad_bytes();
        self.kernels.push(chosen);
        Ok(Choice { kernel: self.kernels.len() - 1, arguments, scratch_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::plan::operation::{Direction, Norm, Statistics, Window};
    use crate::model::saved::Activation;

    #[test]
    fn batch_norm_behind_narrow_groups_has_a_kernel() {
        let mut backend = OneDnn::new(&Context::cpu().expect("a context"));
        let (element, activation) = (ElementType::F32, Activation::Relu);
        let any = |dims: &[usize]| Desc::any(dims, element);
        let conv = Operation::Conv {
            direction: Direction::Training,
            src: &any(&[2, 128, 14, 14]),
            weights: &any(&[32, 4, 4, 3, 3]),
            bias: None,
            dst: &any(&[2, 128, 14, 14]),
            window: Window {
                kernel: [3, 3],
                stride: [1, 1],
                padding: [1, 1],
                padding_end: [1, 1],
                dilation: [1, 1],
            },
            activation: Activation::None,
        };
        let conv = backend.choose(&conv).expect("a kernel");
        let data = conv.desc(Role::Dst).expect("a result");
        for (direction, statistics) in [
            (Direction::Training, Statistics::Batch),
            (Direction::Training, Statistics::Running),
            (Direction::Inference, Statistics::Running),
        ] {
            let norm = Norm { statistics, epsilon: 1e-5, activation };
            let norm = Operation::BatchNorm { direction, data: &data, norm };
            let chosen = backend.choose(&norm).expect("a kernel").kernel;
            let name = backend.kernel(chosen).implementation();
            assert!(!is_reference(backend.kernel(chosen)), "{direction:?}: {name}");
        }
    }
}
