//! Networks without shortcuts: AlexNet, VGG, and SqueezeNet, whose branches join at once.

use super::blocks::{NORM, linear};
use crate::model::spec::{GraphBuilder, ModelError};
use crate::model::window::{Conv, MaxPool, Padding, Pair};
use crate::model::{Graph, LayerKind};

fn biased(channels: usize, kernel: usize, stride: usize, padding: usize) -> LayerKind {
    let (stride, padding) = (Pair::both(stride), Padding::every(padding));
    LayerKind::Conv(Conv { stride, padding, ..Conv::new(channels, kernel) })
}

const DROPOUT: LayerKind = LayerKind::Dropout { rate: 0.5 };

/// Numbers the layers of one part as `torch.nn.Sequential` does: `part.0`, `part.1`, ...
struct Sequence<'a> {
    builder: &'a mut GraphBuilder,
    part: &'static str,
    number: usize,
}

impl<'a> Sequence<'a> {
    fn new(builder: &'a mut GraphBuilder, part: &'static str) -> Self {
        Self { builder, part, number: 0 }
    }

    fn add(&mut self, kind: LayerKind) {
        self.builder.then(&format!("{}.{}", self.part, self.number), kind);
        self.number += 1;
    }

    fn all(&mut self, kinds: impl IntoIterator<Item = LayerKind>) {
        kinds.into_iter().for_each(|kind| self.add(kind));
    }
}

/// Pooling to `size` x `size`, whatever the image's size is, then flattening.
fn pooled_to(builder: &mut GraphBuilder, size: usize) {
    builder.then("avgpool", LayerKind::AdaptiveAvgPool { size: Pair::both(size) });
    builder.then("flatten", LayerKind::Flatten);
}

/// Krizhevsky 2014 ("One weird trick"), without response normalisation.
pub fn alexnet(mut builder: GraphBuilder, _width: f64) -> Result<Graph, ModelError> {
    let pool = LayerKind::MaxPool(MaxPool::new(3, 2));
    let relu = LayerKind::Relu;
    let mut features = Sequence::new(&mut builder, "features");
    features.all([biased(64, 11, 4, 2), relu.clone(), pool.clone()]);
    features.all([biased(192, 5, 1, 2), relu.clone(), pool.clone()]);
    for channels in [384, 256, 256] {
        features.all([biased(channels, 3, 1, 1), relu.clone()]);
    }
    features.add(pool);
    pooled_to(&mut builder, 6);
    let classes = builder.classes();
    let mut classifier = Sequence::new(&mut builder, "classifier");
    classifier.all([DROPOUT, linear(4096), relu.clone()]);
    classifier.all([DROPOUT, linear(4096), relu, linear(classes)]);
    builder.finish()
}

/// Whether convolutions are followed by batch normalisation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Norms {
    None,
    Batch,
}

/// Convolutions between poolings: Simonyan and Zisserman 2015, table 1, columns A and D.
const VGG11: [&[usize]; 5] = [&[64], &[128], &[256, 256], &[512, 512], &[512, 512]];
const VGG16: [&[usize]; 5] =
    [&[64, 64], &[128, 128], &[256, 256, 256], &[512, 512, 512], &[512, 512, 512]];

fn vgg(mut builder: GraphBuilder, stages: &[&[usize]], norms: Norms) -> Result<Graph, ModelError> {
    let relu = LayerKind::Relu;
    let mut features = Sequence::new(&mut builder, "features");
    for stage in stages {
        for &channels in *stage {
            features.add(biased(channels, 3, 1, 1));
            if norms == Norms::Batch {
                features.add(NORM);
            }
            features.add(relu.clone());
        }
        features.add(LayerKind::MaxPool(MaxPool::new(2, 2)));
    }
    pooled_to(&mut builder, 7);
    let classes = builder.classes();
    let mut classifier = Sequence::new(&mut builder, "classifier");
    for _ in 0..2 {
        classifier.all([linear(4096), relu.clone(), DROPOUT]);
    }
    classifier.add(linear(classes));
    builder.finish()
}

/// Configuration A.
pub fn vgg11(builder: GraphBuilder, _width: f64) -> Result<Graph, ModelError> {
    vgg(builder, &VGG11, Norms::None)
}

/// Configuration A with batch normalisation.
pub fn vgg11_bn(builder: GraphBuilder, _width: f64) -> Result<Graph, ModelError> {
    vgg(builder, &VGG11, Norms::Batch)
}

/// Configuration D.
pub fn vgg16(builder: GraphBuilder, _width: f64) -> Result<Graph, ModelError> {
    vgg(builder, &VGG16, Norms::None)
}

/// Configuration D with batch normalisation.
pub fn vgg16_bn(builder: GraphBuilder, _width: f64) -> Result<Graph, ModelError> {
    vgg(builder, &VGG16, Norms::Batch)
}

/// Few channels, then 1x1 and 3x3 convolutions side by side (Iandola et al. 2016, figure 1).
fn fire(builder: &mut GraphBuilder, name: &str, squeeze: usize, expand: usize) {
    builder.then(&format!("{name}.squeeze"), biased(squeeze, 1, 1, 0));
    let few = Some(builder.then(&format!("{name}.squeeze_activation"), LayerKind::Relu));
    let branches = [1, 3].map(|kernel| {
        let branch = format!("{name}.expand{kernel}x{kernel}");
        builder.node(&branch, biased(expand, kernel, 1, kernel / 2), &[few]);
        Some(builder.then(&format!("{branch}_activation"), LayerKind::Relu))
    });
    builder.node(&format!("{name}.concat"), LayerKind::Concat, &branches);
}

/// Squeezed and expanded channels of each fire module; a pooling is before the groups.
const FIRES: [&[(usize, usize)]; 3] =
    [&[(16, 64), (16, 64)], &[(32, 128), (32, 128)], &[(48, 192), (48, 192), (64, 256), (64, 256)]];

/// Version 1.1 of SqueezeNet.
pub fn squeezenet(mut builder: GraphBuilder, _width: f64) -> Result<Graph, ModelError> {
    builder.then("features.0", biased(64, 3, 2, 0));
    builder.then("features.1", LayerKind::Relu);
    let mut number = 2;
    for group in FIRES {
        let pool = MaxPool { ceil_mode: true, ..MaxPool::new(3, 2) };
        builder.then(&format!("features.{number}"), LayerKind::MaxPool(pool));
        for (at, &(squeeze, expand)) in (number + 1..).zip(group) {
            fire(&mut builder, &format!("features.{at}"), squeeze, expand);
        }
        number += 1 + group.len();
    }
    let classes = builder.classes();
    let mut classifier = Sequence::new(&mut builder, "classifier");
    classifier.all([DROPOUT, biased(classes, 1, 1, 0), LayerKind::Relu]);
    classifier.add(LayerKind::GlobalAvgPool);
    builder.then("flatten", LayerKind::Flatten);
    builder.finish()
}
