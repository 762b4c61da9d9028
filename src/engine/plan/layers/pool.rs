//! Max, average and global average pooling.

use std::rc::Rc;

use crate::engine::error::EngineError;
use crate::engine::plan::builder::Builder;
use crate::engine::plan::layer::{Forward, InputGradients, Kept, Layer};
use crate::engine::plan::operation::{Kernel, Operation, Pooling, Role, Window};
use crate::engine::plan::tensor::{Desc, Tensor};
use crate::model::saved::Auxiliary;

/// A window of elements becomes one.
pub struct Pool {
    kind: Pooling,
    extent: Extent,
    forward: Option<Passed>,
}

enum Extent {
    Window(Window),
    Global,
}

/// What backward must know of forward.
struct Passed {
    kernel: Kernel,
    window: Window,
    input: Rc<Desc>,
    output: Rc<Desc>,
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
        Self { kind: Pooling::Average, extent: Extent::Global, forward: None }
    }

    fn windowed(kind: Pooling, kernel: usize, stride: usize, padding: usize) -> Self {
        let window = Window { kernel: [kernel; 2], stride, padding };
        Self { kind, extent: Extent::Window(window), forward: None }
    }
}

impl Layer for Pool {
    fn forward(
        &mut self,
        builder: &mut Builder<'_>,
        inputs: &[Tensor],
    ) -> Result<Forward, EngineError> {
        let graph = builder.request.graph;
        let node = &graph.nodes[builder.node];
        let from = graph.shape_of(node.inputs[0]);
        let to = builder.dims(node.shape);
        let window = match self.extent {
            Extent::Window(window) => window,
            Extent::Global => Window { kernel: [from[1], from[2]], stride: 1, padding: 0 },
        };
        let input = builder.spatial(&inputs[0], from)?;
        let choice = builder.choose(&Operation::Pool {
            direction: builder.direction(),
            kind: self.kind,
            src: &input.desc,
            dst: &builder.any_order(&to),
            window,
        })?;
        let output = builder.result(&choice, Role::Dst)?;
        let winners = builder.result_if_any(&choice, Role::Workspace);
        let mut arguments = vec![(Role::Src, &input), (Role::Dst, &output)];
        arguments.extend(winners.as_ref().map(|winners| (Role::Workspace, winners)));
        builder.run(&choice, &arguments, &[]);
        let (from, to) = (input.desc.clone(), output.desc.clone());
        let kernel = choice.kernel;
        self.forward = Some(Passed { kernel, window, input: from, output: to });
        let auxiliary = winners.into_iter().map(|tensor| (Auxiliary::Winners, tensor)).collect();
        Ok(Forward { input, output, auxiliary })
    }

    fn backward(
        &mut self,
        builder: &mut Builder<'_>,
        kept: &Kept,
        gradient: &Tensor,
        _wanted: &[bool],
    ) -> Result<InputGradients, EngineError> {
        let passed = self.forward.as_ref().expect("backward follows a forward pass");
        let gradient = builder.convert(gradient, &passed.output)?;
        let choice = builder.choose(&Operation::PoolBackward {
            kind: self.kind,
            diff_src: &passed.input,
            diff_dst: &passed.output,
            window: passed.window,
            hint: passed.kernel,
        })?;
        let result = builder.result(&choice, Role::DiffSrc)?;
        let mut arguments = vec![(Role::DiffDst, &gradient), (Role::DiffSrc, &result)];
        let winners = kept.auxiliary(Auxiliary::Winners);
        arguments.extend(winners.map(|winners| (Role::Workspace, winners)));
        builder.run(&choice, &arguments, &[]);
        Ok(vec![Some(result)])
    }
}
