//! GoogLeNet with batch normalisation, as torchvision has it, without its auxiliary heads.

use super::blocks::{conv, linear};
use crate::model::spec::{GraphBuilder, ModelError};
use crate::model::window::{MaxPool, Pair};
use crate::model::{Graph, LayerKind};

/// Its own epsilon.
const NORM: LayerKind = LayerKind::BatchNorm { epsilon: 1e-3, momentum: 0.1 };

/// Channels of a module: 1x1; 1x1 and 3x3; 1x1 and 3x3 (5x5 in the paper; torchvision's weights
/// have 3x3); 1x1 after a pooling.
struct Module {
    name: &'static str,
    one: usize,
    three: [usize; 2],
    five: [usize; 2],
    pool: usize,
}

const fn module(
    name: &'static str,
    one: usize,
    three: [usize; 2],
    five: [usize; 2],
    pool: usize,
) -> Module {
    Module { name, one, three, five, pool }
}

/// Szegedy et al. 2015, table 1.
const THREE: [Module; 2] = [
    module("inception3a", 64, [96, 128], [16, 32], 32),
    module("inception3b", 128, [128, 192], [32, 96], 64),
];
const FOUR: [Module; 5] = [
    module("inception4a", 192, [96, 208], [16, 48], 64),
    module("inception4b", 160, [112, 224], [24, 64], 64),
    module("inception4c", 128, [128, 256], [24, 64], 64),
    module("inception4d", 112, [144, 288], [32, 64], 64),
    module("inception4e", 256, [160, 320], [32, 128], 128),
];
const FIVE: [Module; 2] = [
    module("inception5a", 256, [160, 320], [32, 128], 128),
    module("inception5b", 384, [192, 384], [48, 128], 128),
];

/// Convolution, normalisation, ReLU after `input`; gives the last.
fn unit(
    builder: &mut GraphBuilder,
    name: &str,
    kind: LayerKind,
    input: Option<usize>,
) -> Option<usize> {
    builder.node(&format!("{name}.conv"), kind, &[input]);
    builder.then(&format!("{name}.bn"), NORM);
    Some(builder.then(&format!("{name}.relu"), LayerKind::Relu))
}

fn inception(builder: &mut GraphBuilder, module: &Module) {
    let Module { name, one, three, five, pool } = module;
    let input = builder.last();
    let first = unit(builder, &format!("{name}.branch1"), conv(*one, 1, 1), input);
    let [second, third] = [(2, three), (3, five)].map(|(branch, [few, many])| {
        let name = format!("{name}.branch{branch}");
        let narrow = unit(builder, &format!("{name}.0"), conv(*few, 1, 1), input);
        unit(builder, &format!("{name}.1"), conv(*many, 3, 1), narrow)
    });
    let around = MaxPool { padding: Pair::both(1), ceil_mode: true, ..MaxPool::new(3, 1) };
    let pooled = builder.node(&format!("{name}.branch4.0"), LayerKind::MaxPool(around), &[input]);
    let fourth = unit(builder, &format!("{name}.branch4.1"), conv(*pool, 1, 1), Some(pooled));
    builder.node(&format!("{name}.concat"), LayerKind::Concat, &[first, second, third, fourth]);
}

fn pool(builder: &mut GraphBuilder, name: &str, kernel: usize) {
    let pool = MaxPool { ceil_mode: true, ..MaxPool::new(kernel, 2) };
    builder.then(name, LayerKind::MaxPool(pool));
}

/// Without auxiliary heads: torchvision's `aux_logits=False`.
pub fn googlenet(mut builder: GraphBuilder, _width: f64) -> Result<Graph, ModelError> {
    unit(&mut builder, "conv1", conv(64, 7, 2), None);
    pool(&mut builder, "maxpool1", 3);
    let input = builder.last();
    let narrow = unit(&mut builder, "conv2", conv(64, 1, 1), input);
    unit(&mut builder, "conv3", conv(192, 3, 1), narrow);
    pool(&mut builder, "maxpool2", 3);
    THREE.iter().for_each(|module| inception(&mut builder, module));
    pool(&mut builder, "maxpool3", 3);
    FOUR.iter().for_each(|module| inception(&mut builder, module));
    pool(&mut builder, "maxpool4", 2);
    FIVE.iter().for_each(|module| inception(&mut builder, module));
    builder.then("avgpool", LayerKind::GlobalAvgPool);
    builder.then("flatten", LayerKind::Flatten);
    builder.then("dropout", LayerKind::Dropout { rate: 0.2 });
    builder.then("fc", linear(builder.classes()));
    builder.finish()
}
