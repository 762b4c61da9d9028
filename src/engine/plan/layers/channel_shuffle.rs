//! Channels of all groups in turn (ShuffleNet: Zhang et al. 2018, section 3.1): channel `k` of
//! group `g` becomes channel `k groups + g`. Backward puts them back.

use crate::engine::error::EngineError;
use crate::engine::plan::builder::Builder;
use crate::engine::plan::layer::{Forward, InputGradients, Kept, Layer};
use crate::engine::plan::operation::{Operation, Role};
use crate::engine::plan::tensor::{Desc, Tensor};

/// Of so many groups.
pub struct ChannelShuffle {
    groups: usize,
}

impl ChannelShuffle {
    /// `groups` divides the channels.
    pub fn new(groups: usize) -> Self {
        Self { groups }
    }
}

impl Layer for ChannelShuffle {
    fn forward(
        &mut self,
        builder: &mut Builder<'_>,
        inputs: &[Tensor],
    ) -> Result<Forward, EngineError> {
        let output = turned(builder, &inputs[0], self.groups)?;
        Ok(Forward::new(inputs[0].clone(), output))
    }

    fn backward(
        &mut self,
        builder: &mut Builder<'_>,
        _kept: &Kept,
        gradient: &Tensor,
        _wanted: &[bool],
    ) -> Result<InputGradients, EngineError> {
        let [channels, ..] = builder.request.graph.nodes[builder.node].shape;
        Ok(vec![Some(turned(builder, gradient, channels / self.groups)?)])
    }
}

/// Channels as a matrix of so many rows, by columns: as many copies as the shorter side has, put
/// one beside the other.
fn turned(builder: &mut Builder<'_>, tensor: &Tensor, rows: usize) -> Result<Tensor, EngineError> {
    let [channels, height, width] = builder.request.graph.nodes[builder.node].shape;
    let (batch, columns) = (builder.request.batch, channels / rows);
    let whole = builder.reshape(tensor, &[batch, rows, columns, height * width])?;
    let (axis, across, count) = if rows <= columns { (1, 2, rows) } else { (2, 1, columns) };
    let mut parts = Vec::with_capacity(count);
    for at in 0..count {
        let (mut dims, mut offsets) = (whole.desc.dims.clone(), [0; 4]);
        (dims[axis], offsets[axis]) = (1, at);
        let part = builder.cut(&whole, &builder.row_major(&dims), &offsets)?;
        // A row lies as a column does.
        dims.swap(axis, across);
        parts.push(builder.reshape(&part, &dims)?);
    }
    let sources: Vec<&Desc> = parts.iter().map(|part| &*part.desc).collect();
    let choice = builder.choose(&Operation::Concat { sources, axis: across })?;
    let joined = builder.result(&choice, Role::Dst)?;
    let mut arguments: Vec<(Role, &Tensor)> =
        parts.iter().enumerate().map(|(at, part)| (Role::Source(at), part)).collect();
    arguments.push((Role::Dst, &joined));
    builder.run(&choice, &arguments, &[]);
    builder.reshape(&joined, &[batch, channels, height, width])
}
