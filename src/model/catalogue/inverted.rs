//! MobileNetV2: blocks that widen, filter each channel by itself, and narrow again.

use super::blocks::{NORM, conv, linear};
use crate::model::spec::{GraphBuilder, ModelError};
use crate::model::window::{Conv, Padding, Pair};
use crate::model::{Graph, LayerKind};

const STEM: usize = 32;
const LAST: usize = 1280;
/// Widening, channels, blocks, stride of the first (Sandler et al. 2018, table 2).
const STAGES: [(usize, usize, usize, usize); 7] = [
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
];

/// A convolution as `name.0`, its normalisation as `name.1`, and ReLU6.
fn unit(builder: &mut GraphBuilder, name: &str, kind: LayerKind) {
    builder.then(&format!("{name}.0"), kind);
    builder.then(&format!("{name}.1"), NORM);
    builder.then(&format!("{name}.2"), LayerKind::Relu6);
}

fn depthwise(channels: usize, stride: usize) -> LayerKind {
    let (stride, padding) = (Pair::both(stride), Padding::every(1));
    let groups = channels;
    LayerKind::Conv(Conv { stride, padding, groups, bias: false, ..Conv::new(channels, 3) })
}

/// One block from `from` to `to` channels, with a shortcut where the shape stays.
fn block(
    builder: &mut GraphBuilder,
    name: &str,
    widening: usize,
    [from, to]: [usize; 2],
    stride: usize,
) {
    let input = builder.last();
    let mut part = 0;
    if widening > 1 {
        unit(builder, &format!("{name}.conv.0"), conv(widening * from, 1, 1));
        part = 1;
    }
    unit(builder, &format!("{name}.conv.{part}"), depthwise(widening * from, stride));
    builder.then(&format!("{name}.conv.{}", part + 1), conv(to, 1, 1));
    let narrow = builder.then(&format!("{name}.conv.{}", part + 2), NORM);
    if stride == 1 && from == to {
        builder.node(&format!("{name}.add"), LayerKind::Add, &[input, Some(narrow)]);
    }
}

/// MobileNetV2 of width 1.
pub fn mobilenet_v2(mut builder: GraphBuilder, _width: f64) -> Result<Graph, ModelError> {
    unit(&mut builder, "features.0", conv(STEM, 3, 2));
    let (mut number, mut from) = (1, STEM);
    for (widening, to, blocks, first_stride) in STAGES {
        for at in 0..blocks {
            let stride = if at == 0 { first_stride } else { 1 };
            block(&mut builder, &format!("features.{number}"), widening, [from, to], stride);
            (number, from) = (number + 1, to);
        }
    }
    unit(&mut builder, &format!("features.{number}"), conv(LAST, 1, 1));
    builder.then("avgpool", LayerKind::GlobalAvgPool);
    builder.then("flatten", LayerKind::Flatten);
    builder.then("classifier.0", LayerKind::Dropout { rate: 0.2 });
    builder.then("classifier.1", linear(builder.classes()));
    builder.finish()
}
