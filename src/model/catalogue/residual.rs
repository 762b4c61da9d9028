//! Residual networks: sums of what a few convolutions give and what they were given.

use super::blocks::{NORM, conv, linear};
use crate::model::spec::{GraphBuilder, ModelError};
use crate::model::window::{Conv, MaxPool, Padding, Pair};
use crate::model::{Graph, LayerKind};

/// What a block is made of.
#[derive(Clone, Copy)]
enum Block {
    /// Two 3x3 convolutions (He et al. 2016, figure 2).
    Basic,
    /// 1x1, 3x3 with `groups`, and 1x1 to four times the channels (figure 5). The channels between
    /// are the stage's times `widening` (2 for 32 groups of 4, Xie et al. 2017, table 1).
    Bottleneck { groups: usize, widening: usize },
}

/// A bottleneck's result has this many times its stage's channels.
const EXPANSION: usize = 4;

impl Block {
    fn outputs(self, channels: usize) -> usize {
        match self {
            Self::Basic => channels,
            Self::Bottleneck { .. } => EXPANSION * channels,
        }
    }

    /// The convolutions, the last one without ReLU; gives the last node.
    fn convolutions(
        self,
        builder: &mut GraphBuilder,
        name: &str,
        channels: usize,
        stride: usize,
    ) -> usize {
        let kinds = match self {
            Self::Basic => vec![conv(channels, 3, stride), conv(channels, 3, 1)],
            Self::Bottleneck { groups, widening } => {
                let between = widening * channels;
                let (stride, padding) = (Pair::both(stride), Padding::every(1));
                let middle = Conv { stride, padding, groups, bias: false, ..Conv::new(between, 3) };
                let last = conv(EXPANSION * channels, 1, 1);
                vec![conv(between, 1, 1), LayerKind::Conv(middle), last]
            }
        };
        let count = kinds.len();
        let mut last = 0;
        for (number, kind) in (1..).zip(kinds) {
            builder.then(&format!("{name}.conv{number}"), kind);
            last = builder.then(&format!("{name}.bn{number}"), NORM);
            if number < count {
                builder.then(&format!("{name}.relu{number}"), LayerKind::Relu);
            }
        }
        last
    }

    /// With a 1x1 convolution on the shortcut where the shape changes (He et al.'s option B,
    /// torchvision's `downsample`). `from` is the channels of its input.
    fn write(
        self,
        builder: &mut GraphBuilder,
        name: &str,
        channels: usize,
        stride: usize,
        from: usize,
    ) {
        let input = builder.last();
        let outputs = self.outputs(channels);
        let main = self.convolutions(builder, name, channels, stride);
        let shortcut = if stride == 1 && from == outputs {
            input
        } else {
            builder.node(&format!("{name}.downsample.0"), conv(outputs, 1, stride), &[input]);
            Some(builder.then(&format!("{name}.downsample.1"), NORM))
        };
        builder.node(&format!("{name}.add"), LayerKind::Add, &[Some(main), shortcut]);
        let last = match self {
            Self::Basic => 2,
            Self::Bottleneck { .. } => 3,
        };
        builder.then(&format!("{name}.relu{last}"), LayerKind::Relu);
    }
}

/// Stages of so many blocks after the stem, which gave `widths[0]` channels; then the head.
fn stages(
    mut builder: GraphBuilder,
    block: Block,
    widths: &[usize],
    depths: &[usize],
) -> Result<Graph, ModelError> {
    let mut from = widths[0];
    for (stage, (&channels, &depth)) in widths.iter().zip(depths).enumerate() {
        for at in 0..depth {
            let stride = if stage > 0 && at == 0 { 2 } else { 1 };
            let name = format!("layer{}.{at}", stage + 1);
            block.write(&mut builder, &name, channels, stride, from);
            from = block.outputs(channels);
        }
    }
    builder.then("avgpool", LayerKind::GlobalAvgPool);
    builder.then("flatten", LayerKind::Flatten);
    builder.then("fc", linear(builder.classes()));
    builder.finish()
}

/// For images of hundreds of pixels: He et al. 2016, table 1.
fn large(mut builder: GraphBuilder, block: Block, depths: [usize; 4]) -> Result<Graph, ModelError> {
    builder.then("conv1", conv(64, 7, 2));
    builder.then("bn1", NORM);
    builder.then("relu", LayerKind::Relu);
    let pool = MaxPool { padding: Padding::every(1), ..MaxPool::new(3, 2) };
    builder.then("maxpool", LayerKind::MaxPool(pool));
    stages(builder, block, &[64, 128, 256, 512], &depths)
}

/// For images of 32 pixels: He et al. 2016, section 4.2.
fn small(mut builder: GraphBuilder, depth: usize) -> Result<Graph, ModelError> {
    builder.then("conv1", conv(16, 3, 1));
    builder.then("bn1", NORM);
    builder.then("relu", LayerKind::Relu);
    stages(builder, Block::Basic, &[16, 32, 64], &[depth; 3])
}

const BOTTLENECK: Block = Block::Bottleneck { groups: 1, widening: 1 };

/// 6 x 3 + 2 layers.
pub fn resnet20(builder: GraphBuilder, _width: f64) -> Result<Graph, ModelError> {
    small(builder, 3)
}

/// 6 x 9 + 2 layers.
pub fn resnet56(builder: GraphBuilder, _width: f64) -> Result<Graph, ModelError> {
    small(builder, 9)
}

/// 18 layers.
pub fn resnet18(builder: GraphBuilder, _width: f64) -> Result<Graph, ModelError> {
    large(builder, Block::Basic, [2; 4])
}

/// 34 layers.
pub fn resnet34(builder: GraphBuilder, _width: f64) -> Result<Graph, ModelError> {
    large(builder, Block::Basic, [3, 4, 6, 3])
}

/// 50 layers, torchvision's version 1.5.
pub fn resnet50(builder: GraphBuilder, _width: f64) -> Result<Graph, ModelError> {
    large(builder, BOTTLENECK, [3, 4, 6, 3])
}

/// 101 layers.
pub fn resnet101(builder: GraphBuilder, _width: f64) -> Result<Graph, ModelError> {
    large(builder, BOTTLENECK, [3, 4, 23, 3])
}

/// 152 layers.
pub fn resnet152(builder: GraphBuilder, _width: f64) -> Result<Graph, ModelError> {
    large(builder, BOTTLENECK, [3, 8, 36, 3])
}

/// 50 layers, 32 groups of 4 channels in the first stage.
pub fn resnext50(builder: GraphBuilder, _width: f64) -> Result<Graph, ModelError> {
    large(builder, Block::Bottleneck { groups: 32, widening: 2 }, [3, 4, 6, 3])
}
