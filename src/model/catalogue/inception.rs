//! GoogLeNet with batch normalisation, as torchvision has it, with its two auxiliary classifiers.

use super::blocks::{conv, linear};
use crate::model::spec::{GraphBuilder, ModelError};
use crate::model::window::{MaxPool, Padding, Pair};
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

/// A module after `input`; gives its result.
fn inception(builder: &mut GraphBuilder, module: &Module, input: Option<usize>) -> Option<usize> {
    let Module { name, one, three, five, pool } = module;
    let first = unit(builder, &format!("{name}.branch1"), conv(*one, 1, 1), input);
    let [second, third] = [(2, three), (3, five)].map(|(branch, [few, many])| {
        let name = format!("{name}.branch{branch}");
        let narrow = unit(builder, &format!("{name}.0"), conv(*few, 1, 1), input);
        unit(builder, &format!("{name}.1"), conv(*many, 3, 1), narrow)
    });
    let around = MaxPool { padding: Padding::every(1), ceil_mode: true, ..MaxPool::new(3, 1) };
    let pooled = builder.node(&format!("{name}.branch4.0"), LayerKind::MaxPool(around), &[input]);
    let fourth = unit(builder, &format!("{name}.branch4.1"), conv(*pool, 1, 1), Some(pooled));
    let branches = [first, second, third, fourth];
    Some(builder.node(&format!("{name}.concat"), LayerKind::Concat, &branches))
}

fn pool(builder: &mut GraphBuilder, name: &str, kernel: usize) {
    let pool = MaxPool { ceil_mode: true, ..MaxPool::new(kernel, 2) };
    builder.then(name, LayerKind::MaxPool(pool));
}

/// What an auxiliary classifier's loss counts (section 5).
const LOSS_WEIGHT: f32 = 0.3;

/// A classifier after the newest module, which the next one then follows.
fn classifier(builder: &mut GraphBuilder, name: &str) {
    let input = builder.last();
    let pooled = LayerKind::AdaptiveAvgPool { size: Pair::both(4) };
    let pooled = builder.node(&format!("{name}.pool"), pooled, &[input]);
    unit(builder, &format!("{name}.conv"), conv(128, 1, 1), Some(pooled));
    builder.then(&format!("{name}.flatten"), LayerKind::Flatten);
    builder.then(&format!("{name}.fc1"), linear(1024));
    builder.then(&format!("{name}.relu"), LayerKind::Relu);
    builder.then(&format!("{name}.dropout"), LayerKind::Dropout { rate: 0.7 });
    let logits = builder.then(&format!("{name}.fc2"), linear(builder.classes()));
    builder.head(logits, LOSS_WEIGHT);
}

/// As torchvision's with `aux_logits=True`, its default.
pub fn googlenet(mut builder: GraphBuilder, _width: f64) -> Result<Graph, ModelError> {
    unit(&mut builder, "conv1", conv(64, 7, 2), None);
    pool(&mut builder, "maxpool1", 3);
    let input = builder.last();
    let narrow = unit(&mut builder, "conv2", conv(64, 1, 1), input);
    unit(&mut builder, "conv3", conv(192, 3, 1), narrow);
    pool(&mut builder, "maxpool2", 3);
    for module in &THREE {
        let input = builder.last();
        inception(&mut builder, module, input);
    }
    pool(&mut builder, "maxpool3", 3);
    let mut input = builder.last();
    for (module, head) in FOUR.iter().zip([Some("aux1"), None, None, Some("aux2"), None]) {
        input = inception(&mut builder, module, input);
        if let Some(name) = head {
            classifier(&mut builder, name);
        }
    }
    pool(&mut builder, "maxpool4", 2);
    for module in &FIVE {
        let input = builder.last();
        inception(&mut builder, module, input);
    }
    builder.then("avgpool", LayerKind::GlobalAvgPool);
    builder.then("flatten", LayerKind::Flatten);
    builder.then("dropout", LayerKind::Dropout { rate: 0.2 });
    builder.then("fc", linear(builder.classes()));
    builder.finish()
}
