//! Max, average and global average pooling.

use std::rc::Rc;

use crate::engine::error::EngineError;
use crate::engine::plan::builder::Builder;
use crate::engine::plan::layer::{Forward, InputGradients, Kept, Layer};
use crate::engine::plan::operation::{Kernel, Operation, Pass, Pooling, Role, Window};
use crate::engine::plan::tensor::{Desc, Tensor};
use crate::model::saved::Auxiliary;
use crate::model::window::{AvgPool, MaxPool};

/// A window of elements becomes one.
pub struct Pool {
    kind: Pooling,
    extent: Extent,
    forward: Option<Passed>,
}

enum Extent {
    Windows(MaxPool),
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
    pub fn max(pool: MaxPool) -> Self {
        Self { kind: Pooling::Max, extent: Extent::Windows(pool), forward: None }
    }

    /// The mean.
    pub fn average(pool: AvgPool) -> Self {
        // Without padding both means are one, unless a window reaches over the end.
        let differs = pool.ceil_mode || !pool.count_include_pad;
        let kind = match differs && pool.counts_inside_only() {
            true => Pooling::AverageInside,
            false => Pooling::Average,
        };
        Self { kind, extent: Extent::Windows(pool.window()), forward: None }
    }

    /// The mean over height and width.
    pub fn global_average() -> Self {
        Self { kind: Pooling::Average, extent: Extent::Global, forward: None }
    }

    /// Where the windows are, for planes of these sizes.
    fn window(&self, from: [usize; 2], to: [usize; 2]) -> Window {
        match self.extent {
            Extent::Global => Window::whole(from),
            Extent::Windows(pool) => Window {
                kernel: pool.kernel.0,
                stride: pool.stride.0,
                padding: pool.padding.begin.0,
                padding_end: pool.padding_end(from, to),
                dilation: [1; 2],
            },
        }
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
        let window = self.window([from[1], from[2]], [to[2], to[3]]);
        let input = builder.spatial(&inputs[0], from)?;
        let choice = builder.choose(&Operation::Pool {
            kind: self.kind,
            src: &input.desc,
            dst: &builder.any_order(&to),
            window,
            pass: Pass::Forward(builder.direction()),
        })?;
        let output = builder.result(&choice, Role::Dst)?;
        let winners = builder.workspace_if_any(&choice);
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
        let choice = builder.choose(&Operation::Pool {
            kind: self.kind,
            src: &passed.input,
            dst: &passed.output,
            window: passed.window,
            pass: Pass::Backward(passed.kernel),
        })?;
        let result = builder.result(&choice, Role::DiffSrc)?;
        let mut arguments = vec![(Role::DiffDst, &gradient), (Role::DiffSrc, &result)];
        let winners = kept.auxiliary(Auxiliary::Winners);
        arguments.extend(winners.map(|winners| (Role::Workspace, winners)));
        builder.run(&choice, &arguments, &[]);
        Ok(vec![Some(result)])
    }
}
