//! Concatenation along channels. Saves nothing; backward cuts the gradient apart.

use std::rc::Rc;

use kintsugi_ffi::dnnl::{Arg, MemoryDesc, Operation, Order};

use super::{InputGradients, Layer};
use crate::engine::error::EngineError;
use crate::engine::program::{Builder, Tensor};

/// Inputs of one height and width, side by side.
#[derive(Default)]
pub struct Concat {
    inputs: Vec<Rc<MemoryDesc>>,
}

const CHANNEL_AXIS: usize = 1;

impl Layer for Concat {
    fn forward(
        &mut self,
        builder: &mut Builder<'_>,
        inputs: &[Tensor],
    ) -> Result<Tensor, EngineError> {
        let node = &builder.graph.nodes[builder.node];
        let flat = inputs.iter().all(|input| input.desc.dims().len() == 2);
        let mut sources = Vec::with_capacity(inputs.len());
        for (input, &from) in inputs.iter().zip(&node.inputs) {
            let shape = builder.graph.shape_of(from);
            sources.push(if flat { input.clone() } else { builder.spatial(input, shape)? });
        }
        let descs: Vec<&MemoryDesc> = sources.iter().map(|source| &*source.desc).collect();
        let operation =
            builder.choose(&Operation::Concat { sources: &descs, axis: CHANNEL_AXIS })?;
        let output = builder.result(&operation, Arg::Dst)?;
        let mut args: Vec<(Arg, &Tensor)> =
            sources.iter().enumerate().map(|(at, source)| (Arg::Source(at), source)).collect();
        args.push((Arg::Dst, &output));
        builder.run(&operation, &args, &[])?;
        self.inputs = sources.iter().map(|source| source.desc.clone()).collect();
        Ok(output)
    }

    fn backward(
        &mut self,
        builder: &mut Builder<'_>,
        gradient: &Tensor,
        wanted: &[bool],
    ) -> Result<InputGradients, EngineError> {
        let mut whole = self.inputs.first().map_or(Vec::new(), |desc| desc.dims());
        whole[CHANNEL_AXIS] = self.inputs.iter().map(|desc| desc.dims()[CHANNEL_AXIS]).sum();
        let desc = builder.desc(&whole, Order::Plain)?;
        // Whatever layout it has, if it has these dimensions; row-major otherwise.
        let gradient = match gradient.desc.dims() == whole {
            true => gradient.clone(),
            false => builder.convert(gradient, &desc)?,
        };
        let mut first = 0;
        let mut parts = Vec::with_capacity(wanted.len());
        for (input, &wanted) in self.inputs.iter().zip(wanted) {
            let dims = input.dims();
            let mut offsets = vec![0; dims.len()];
            offsets[CHANNEL_AXIS] = first;
            first += dims[CHANNEL_AXIS];
            parts.push(match wanted {
                true => Some(builder.cut(&gradient, input, &offsets)?),
                false => None,
            });
        }
        Ok(parts)
    }

    fn saved(&self) -> Vec<Tensor> {
        Vec::new()
    }
}
