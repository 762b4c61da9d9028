//! DenseNet: every layer of a block reads the results of all before it.

use super::blocks::{NORM, conv, linear};
use crate::model::spec::{GraphBuilder, ModelError};
use crate::model::window::{AvgPool, MaxPool, Padding};
use crate::model::{Graph, LayerKind};

/// Channels that a layer adds, and of its 1x1 convolution (Huang et al. 2017, section 3).
const GROWTH: usize = 32;
const BOTTLENECK: usize = 4 * GROWTH;
const STEM: usize = 64;
/// Layers of each block: table 1, DenseNet-121.
const DEPTHS: [usize; 4] = [6, 12, 24, 16];

/// Normalisation, ReLU, convolution, as `norm`, `relu`, `conv` with this suffix.
fn unit(builder: &mut GraphBuilder, name: &str, suffix: &str, kind: LayerKind) {
    builder.then(&format!("{name}.norm{suffix}"), NORM);
    builder.then(&format!("{name}.relu{suffix}"), LayerKind::Relu);
    builder.then(&format!("{name}.conv{suffix}"), kind);
}

/// DenseNet-121.
pub fn densenet121(mut builder: GraphBuilder, _width: f64) -> Result<Graph, ModelError> {
    builder.then("features.conv0", conv(STEM, 7, 2));
    builder.then("features.norm0", NORM);
    builder.then("features.relu0", LayerKind::Relu);
    let pool = MaxPool { padding: Padding::every(1), ..MaxPool::new(3, 2) };
    builder.then("features.pool0", LayerKind::MaxPool(pool));
    let mut channels = STEM;
    for (block, depth) in (1..).zip(DEPTHS) {
        for layer in 1..=depth {
            let name = format!("features.denseblock{block}.denselayer{layer}");
            let before = builder.last();
            unit(&mut builder, &name, "1", conv(BOTTLENECK, 1, 1));
            unit(&mut builder, &name, "2", conv(GROWTH, 3, 1));
            let new = builder.last();
            builder.node(&format!("{name}.concat"), LayerKind::Concat, &[before, new]);
        }
        channels += depth * GROWTH;
        if block < DEPTHS.len() {
            let name = format!("features.transition{block}");
            channels /= 2;
            unit(&mut builder, &name, "", conv(channels, 1, 1));
            builder.then(&format!("{name}.pool"), LayerKind::AvgPool(AvgPool::new(2, 2)));
        }
    }
    builder.then("features.norm5", NORM);
    builder.then("relu", LayerKind::Relu);
    builder.then("avgpool", LayerKind::GlobalAvgPool);
    builder.then("flatten", LayerKind::Flatten);
    builder.then("classifier", linear(builder.classes()));
    builder.finish()
}
