//! oneDNN as a plan's backend: which kernels it has, and in which layouts they want their tensors.

use std::rc::Rc;

use kintsugi_ffi::dnnl::{self, Context, MemoryDesc, PrimitiveDesc};

use crate::engine::error::EngineError;
use crate::engine::plan::operation::{
    Access, Argument, Backend, Choice, Kernel, Operation, Pass, Refusal, Role,
};
use crate::engine::plan::tensor::{Desc, ElementType, Order};

impl From<dnnl::Error> for EngineError {
    fn from(error: dnnl::Error) -> Self {
        Self::Device(error.to_string())
    }
}

impl From<dnnl::Error> for Refusal {
    fn from(error: dnnl::Error) -> Self {
        Self(error.to_string())
    }
}

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
        let memory = match desc.order {
            Order::Any => MemoryDesc::any(&desc.dims, desc.element),
            Order::Plain => MemoryDesc::plain(&desc.dims, desc.element),
            Order::Device(number) => return Ok(Rc::clone(&self.layouts[number].1)),
        };
        memory.map(Rc::new).map_err(Refusal::from)
    }

    /// The plan's descriptor of a layout that oneDNN chose.
    fn describe(&mut self, role: Role, memory: MemoryDesc) -> Desc {
        let (dims, bytes) = (memory.dims(), memory.bytes());
        let own = memory.element();
        let element = if role == Role::Workspace { ElementType::Raw } else { own };
        let plain = MemoryDesc::plain(&dims, own);
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

    fn create(&self, operation: &Operation<'_>) -> Result<PrimitiveDesc, Refusal> {
        let in_its_words =
            operation.map(|desc| self.memory(desc), |&kernel| self.kernel(kernel))?;
        Ok(PrimitiveDesc::new(&self.context, &in_its_words)?)
    }

    /// The same, row-major where the order given leaves a batch norm without a kernel.
    fn primitive(&self, operation: &Operation<'_>) -> Result<PrimitiveDesc, Refusal> {
        let chosen = self.create(operation)?;
        match *operation {
            Operation::BatchNorm { norm, data, pass: pass @ Pass::Forward(_) }
                if is_reference(&chosen) =>
            {
                let data = &Desc::plain(&data.dims, data.element);
                self.create(&Operation::BatchNorm { norm, data, pass })
            }
            _ => Ok(chosen),
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
            let memory = chosen.desc(own).map_err(Refusal::from).transpose()?;
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
    use crate::engine::plan::operation::{Direction, Norm, ProductPass, Statistics, Window};
    use crate::model::saved::Activation;

    #[test]
    fn batch_norm_behind_narrow_groups_has_a_kernel() {
        let mut backend = OneDnn::new(&Context::cpu().expect("a context"));
        let (element, activation) = (ElementType::F32, Activation::Relu);
        let any = |dims: &[usize]| Desc::any(dims, element);
        let conv = Operation::Conv {
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
            pass: ProductPass::Forward {
                direction: Direction::Training,
                activation: Activation::None,
            },
        };
        let conv = backend.choose(&conv).expect("a kernel");
        let data = conv.desc(Role::Dst).expect("a result");
        for (direction, statistics) in [
            (Direction::Training, Statistics::Batch),
            (Direction::Training, Statistics::Running),
            (Direction::Inference, Statistics::Running),
        ] {
            let norm = Norm { statistics, epsilon: 1e-5, activation };
            let pass = Pass::Forward(direction);
            let norm = Operation::BatchNorm { norm, data: &data, pass };
            let chosen = backend.choose(&norm).expect("a kernel").kernel;
            let name = backend.kernel(chosen).implementation();
            assert!(!is_reference(backend.kernel(chosen)), "{direction:?}: {name}");
        }
    }
}
