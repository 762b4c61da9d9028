//! Models of our own; all but cnn3 scale with `model.width`.

use super::blocks::{NORM, conv, linear};
use crate::model::spec::{GraphBuilder, ModelError};
use crate::model::window::{Conv, MaxPool, Padding};
use crate::model::{Graph, LayerKind};

/// A scaled width: a multiple of 16 (a vector) where the original is one, at least 16.
fn scaled(size: usize, width: f64) -> usize {
    (((size as f64 * width) / 16.0).round() as usize * 16).max(16)
}

/// A perceptron with two hidden layers.
pub fn mlp(mut builder: GraphBuilder, width: f64) -> Result<Graph, ModelError> {
    builder.then("flatten", LayerKind::Flatten);
    for (index, features) in [512, 256].into_iter().enumerate() {
        builder.then(&format!("fc{}", index + 1), linear(scaled(features, width)));
        builder.then(&format!("relu{}", index + 1), LayerKind::Relu);
    }
    builder.then("fc3", linear(builder.classes()));
    builder.finish()
}

/// Convolutions of cnn11 between its poolings: the stem, then three stages.
const CNN11_STAGES: [&[usize]; 4] = [&[64], &[128], &[256, 256, 256], &[384, 512, 512]];
const CNN11_HIDDEN: [usize; 2] = [2560, 2048];
/// Batch normalisation regularises too, so less than AlexNet's 0.5.
const CNN11_DROPOUT: f32 = 0.2;

/// Our reading of the 11-layer CNN of Tsuji et al.: the paper gives the depth, the
/// size of about 95 MB, 32 classes and ImageNet's images. The stem's stride follows the image, so
/// that the stages see similar sizes from 16x16 on.
pub fn cnn11(mut builder: GraphBuilder, width: f64) -> Result<Graph, ModelError> {
    let [_, image_height, image_width] = builder.input();
    let side = image_height.min(image_width);
    let (kernel, stride) = match side {
        0..=48 => (3, 1),
        49..=112 => (5, 2),
        _ => (7, 4),
    };
    let mut number = 0;
    for (stage, widths) in CNN11_STAGES.into_iter().enumerate() {
        for &channels in widths {
            number += 1;
            let channels = scaled(channels, width);
            let kind =
                if stage == 0 { conv(channels, kernel, stride) } else { conv(channels, 3, 1) };
            builder.then(&format!("conv{number}"), kind);
            builder.then(&format!("bn{number}"), NORM);
            builder.then(&format!("relu{number}"), LayerKind::Relu);
        }
        builder.then(&format!("pool{}", stage + 1), LayerKind::MaxPool(MaxPool::new(2, 2)));
    }
    builder.then("flatten", LayerKind::Flatten);
    for features in CNN11_HIDDEN {
        number += 1;
        builder.then(&format!("fc{number}"), linear(scaled(features, width)));
        builder.then(&format!("relu{number}"), LayerKind::Relu);
        builder.then(&format!("dropout{number}"), LayerKind::Dropout { rate: CNN11_DROPOUT });
    }
    builder.then("fc11", linear(builder.classes()));
    builder.finish()
}

/// Channels of cnn3.
const CNN3_CHANNELS: [usize; 3] = [32, 64, 128];

/// Our reading of the CNN of three layers of Higuchi et al.: the paper says no more of it.
/// Channels, poolings and the classifier, which is not counted, are ours.
pub fn cnn3(mut builder: GraphBuilder, _width: f64) -> Result<Graph, ModelError> {
    for (index, channels) in CNN3_CHANNELS.into_iter().enumerate() {
        let number = index + 1;
        let conv = Conv { padding: Padding::every(1), ..Conv::new(channels, 3) };
        builder.then(&format!("conv{number}"), LayerKind::Conv(conv));
        builder.then(&format!("relu{number}"), LayerKind::Relu);
        builder.then(&format!("pool{number}"), LayerKind::MaxPool(MaxPool::new(2, 2)));
    }
    builder.then("flatten", LayerKind::Flatten);
    builder.then("fc", linear(builder.classes()));
    builder.finish()
}
