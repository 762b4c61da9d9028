//! Concatenation along channels; backward cuts the gradient apart.

use std::rc::Rc;

use crate::engine::error::EngineError;
use crate::engine::plan::builder::Builder;
use crate::engine::plan::layer::{Forward, InputGradients, Kept, Layer};
use crate::engine::plan::operation::{Operation, Role};
use crate::engine::plan::tensor::{Desc, Tensor};

/// Inputs of one height and width, side by side.
#[derive(Default)]
pub struct Concat {
    inputs: Vec<Rc<Desc>>,
}

const CHANNEL_AXIS: usize = 1;

impl Layer for Concat {
    fn forward(
        &mut self,
        builder: &mut Builder<'_>,
        inputs: &[Tensor],
    ) -> Result<Forward, EngineError> {
        let graph = builder.request.graph;
        let node = &graph.nodes[builder.node];
        let flat = inputs.iter().all(|input| input.desc.dims.len() == 2);
        let mut sources = Vec::with_capacity(inputs.len());
        for (input, &from) in inputs.iter().zip(&node.inputs) {
            let shape = graph.shape_of(from);
            sources.push(if flat { input.clone() } else { builder.spatial(input, shape)? });
        }
        let descs: Vec<&Desc> = sources.iter().map(|source| &*source.desc).collect();
        let choice = builder.choose(&Operation::Concat { sources: descs, axis: CHANNEL_AXIS })?;
        let output = builder.result(&choice, Role::Dst)?;
        let mut arguments: Vec<(Role, &Tensor)> =
            sources.iter().enumerate().map(|(at, source)| (Role::Source(at), source)).collect();
        arguments.push((Role::Dst, &output));
        builder.run(&choice, &arguments, &[]);
        self.inputs = sources.iter().map(|source| source.desc.clone()).collect();
        Ok(Forward::new(inputs[0].clone(), output))
    }

    fn backward(
        &mut self,
        builder: &mut Builder<'_>,
        _kept: &Kept,
        gradient: &Tensor,
        wanted: &[bool],
    ) -> Result<InputGradients, EngineError> {
        let mut whole = self.inputs.first().map_or(Vec::new(), |desc| desc.dims.clone());
        whole[CHANNEL_AXIS] = self.inputs.iter().map(|desc| desc.dims[CHANNEL_AXIS]).sum();
        // Whatever order it has, if it has these dimensions; row-major otherwise.
        let gradient = match gradient.desc.dims == whole {
            true => gradient.clone(),
            false => builder.convert(gradient, &builder.row_major(&whole))?,
        };
        let mut first = 0;
        let mut parts = Vec::with_capacity(wanted.len());
        for (input, &wanted) in self.inputs.iter().zip(wanted) {
            let mut offsets = vec![0; input.dims.len()];
            offsets[CHANNEL_AXIS] = first;
            first += input.dims[CHANNEL_AXIS];
            parts.push(match wanted {
                true => Some(builder.cut(&gradient, input, &offsets)?),
                false => None,
            });
        }
        Ok(parts)
    }
}
