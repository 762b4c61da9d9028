//! Max, average and global average pooling. Max saves which element won, averages save nothing.

use std::rc::Rc;

use kintsugi_ffi::dnnl::{
    Arg, Direction, MemoryDesc, Operation, Order, Pooling, PrimitiveDesc, Window,
};

use super::{InputGradients, Layer};
use crate::engine::error::EngineError;
use crate::engine::program::{Builder, Tensor};

/// A window of elements becomes one.
pub struct Pool {
    kind: Pooling,
    extent: Extent,
    saved: Option<Saved>,
}

enum Extent {
    Window(Window),
    Global,
}

struct Saved {
    operation: PrimitiveDesc,
    window: Window,
    input: Rc<MemoryDesc>,
    output: Rc<MemoryDesc>,
    winners: Option<Tensor>,
}

impl Pool {
    /// The largest element.
    pub fn max(kernel: usize, stride: usize, padding: usize) -> Self {
        Self::windowed(Pooling::Max, kernel, stride, padding)
    }

    /// The mean; padding counts as zeros (PyTorch's `count_include_pad`).
    pub fn average(kernel: usize, stride: usize, padding: usize) -> Self {
        Self::windowed(Pooling::Average, kernel, stride, padding)
    }

    /// The mean over height and width.
    pub fn global_average() -> Self {
        Self { kind: Pooling::Average, extent: Extent::Global, saved: None }
    }

    fn windowed(kind: Pooling, kernel: usize, stride: usize, padding: usize) -> Self {
        let window = Window { kernel: [kernel; 2], stride, padding };
        Self { kind, extent: Extent::Window(window), saved: None }
    }
}

impl Layer for Pool {
    fn forward(
        &mut self,
        builder: &mut Builder<'_>,
        inputs: &[Tensor],
    ) -> Result<Tensor, EngineError> {
        let node = &builder.graph.nodes[builder.node];
        let from = builder.graph.shape_of(node.inputs[0]);
        let to = builder.dims(node.shape);
        let window = match self.extent {
            Extent::Window(window) => window,
            Extent::Global => Window { kernel: [from[1], from[2]], stride: 1, padding: 0 },
        };
        let input = builder.spatial(&inputs[0], from)?;
        let (direction, kind) = (builder.direction, self.kind);
        let operation = builder.choose(&Operation::Pool {
            direction,
            kind,
            src: &input.desc,
            dst: &builder.desc(&to, Order::Any)?,
            window,
        })?;
        let output = builder.result(&operation, Arg::Dst)?;
        let winners = builder.result_if_any(&operation, Arg::Workspace)?;
        let mut args = vec![(Arg::Src, &input), (Arg::Dst, &output)];
        if let Some(winners) = &winners {
            args.push((Arg::Workspace, winners));
        }
        builder.run(&operation, &args, &[])?;
        if direction == Direction::Training {
            let (input, output) = (input.desc.clone(), output.desc.clone());
            self.saved = Some(Saved { operation, window, input, output, winners });
        }
        Ok(output)
    }

    fn backward(
        &mut self,
        builder: &mut Builder<'_>,
        gradient: &Tensor,
        _wanted: &[bool],
    ) -> Result<InputGradients, EngineError> {
        let saved = self.saved.as_ref().expect("backward follows a forward pass in training");
        let gradient = builder.convert(gradient, &saved.output)?;
        let operation = builder.choose(&Operation::PoolBackward {
            kind: self.kind,
            diff_src: &saved.input,
            diff_dst: &saved.output,
            window: saved.window,
            hint: &saved.operation,
        })?;
        let result = builder.result(&operation, Arg::DiffSrc)?;
        let mut args = vec![(Arg::DiffDst, &gradient), (Arg::DiffSrc, &result)];
        if let Some(winners) = &saved.winners {
            args.push((Arg::Workspace, winners));
        }
        builder.run(&operation, &args, &[])?;
        Ok(vec![Some(result)])
    }

    fn saved(&self) -> Vec<Tensor> {
        self.saved.iter().filter_map(|saved| saved.winners.clone()).collect()
    }
}
