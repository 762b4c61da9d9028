//! The catalogue: mlp, cnn11, resnet18, resnet20.

use crate::config::Shown;

use super::spec::{GraphBuilder, ModelError, from_toml};
use super::{Graph, LayerKind, Shape};

/// Name and one line on each model.
pub const MODELS: [(&str, &str); 4] = [
    ("mlp", "two hidden layers of 512 and 256 features (scales with model.width)"),
    ("cnn11", "8 convolutions and 3 linear layers, 95 MB at 224x224 and 32 classes (scales)"),
    ("resnet18", "He et al. 2016, torchvision's tensor names"),
    ("resnet20", "He et al. 2016 section 4.2, for 32x32 images"),
];

/// A catalogue model, or a model file if `name` ends in `.toml`. `image` is channels, height and
/// width; `width` multiplies the layer widths of mlp and cnn11.
pub fn build(name: &str, image: Shape, classes: usize, width: f64) -> Result<Graph, ModelError> {
    let unsuitable = |reason: String| ModelError::Unsuitable { model: name.into(), reason };
    if classes < 2 {
        return Err(unsuitable(format!("{classes} classes: at least 2 are needed")));
    }
    if !(width.is_finite() && width > 0.0 && width <= 64.0) {
        return Err(unsuitable(format!("model.width = {width} is not within 0..=64")));
    }
    if !scales(name) && width != 1.0 {
        return Err(unsuitable("model.width applies to mlp and cnn11 only: leave it at 1".into()));
    }
    match name {
        "mlp" => mlp(image, classes, width),
        "cnn11" => cnn11(image, classes, width),
        "resnet18" => resnet18(image, classes),
        "resnet20" => resnet20(image, classes),
        _ if name.ends_with(".toml") => {
            let text = std::fs::read_to_string(name)
                .map_err(|error| ModelError::File(format!("{name}: {error}")))?;
            let mut graph = from_toml(&text, image, classes)?;
            if let Some(stem) = std::path::Path::new(name).file_stem() {
                graph.name = stem.to_string_lossy().into_owned();
            }
            Ok(graph)
        }
        _ => Err(unknown(name)),
    }
}

/// Whether `width` applies to the model.
pub fn scales(name: &str) -> bool {
    matches!(name, "mlp" | "cnn11")
}

fn unknown(name: &str) -> ModelError {
    let known = MODELS.map(|(name, _)| name);
    let nearest =
        known.iter().map(|&other| (strsim::damerau_levenshtein(name, other), other)).min();
    let hint = match nearest {
        Some((distance, other)) if distance <= other.len() / 2 => {
            format!(" (did you mean `{other}`?)")
        }
        _ => String::new(),
    };
    ModelError::Unknown { name: name.shown(), hint, known: known.join(", ") }
}

/// A scaled width: a multiple of 16 (a vector) where the original is one, at least 16.
fn scaled(size: usize, width: f64) -> usize {
    (((size as f64 * width) / 16.0).round() as usize * 16).max(16)
}

fn conv(channels: usize, kernel: usize, stride: usize) -> LayerKind {
    LayerKind::Conv { channels, kernel, stride, padding: kernel / 2, bias: false }
}

const NORM: LayerKind = LayerKind::BatchNorm { epsilon: 1e-5, momentum: 0.1 };

fn linear(features: usize) -> LayerKind {
    LayerKind::Linear { features, bias: true }
}

fn mlp(image: Shape, classes: usize, width: f64) -> Result<Graph, ModelError> {
    let mut builder = GraphBuilder::new("mlp", image, classes);
    builder.then("flatten", LayerKind::Flatten);
    for (index, features) in [512, 256].into_iter().enumerate() {
        builder.then(&format!("fc{}", index + 1), linear(scaled(features, width)));
        builder.then(&format!("relu{}", index + 1), LayerKind::Relu);
    }
    builder.then("fc3", linear(classes));
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
fn cnn11(image: Shape, classes: usize, width: f64) -> Result<Graph, ModelError> {
    const SIDE_MIN: usize = 16;
    let side = image[1].min(image[2]);
    if side < SIDE_MIN {
        let reason = format!("images of {side} pixels: at least {SIDE_MIN} are needed");
        return Err(ModelError::Unsuitable { model: "cnn11".into(), reason });
    }
    let (kernel, stride) = match side {
        0..=48 => (3, 1),
        49..=112 => (5, 2),
        _ => (7, 4),
    };
    let mut builder = GraphBuilder::new("cnn11", image, classes);
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
        let pool = LayerKind::MaxPool { kernel: 2, stride: 2, padding: 0 };
        builder.then(&format!("pool{}", stage + 1), pool);
    }
    builder.then("flatten", LayerKind::Flatten);
    for features in CNN11_HIDDEN {
        number += 1;
        builder.then(&format!("fc{number}"), linear(scaled(features, width)));
        builder.then(&format!("relu{number}"), LayerKind::Relu);
        builder.then(&format!("dropout{number}"), LayerKind::Dropout { rate: CNN11_DROPOUT });
    }
    builder.then("fc11", linear(classes));
    builder.finish()
}

/// Two 3x3 convolutions and a shortcut (He et al. 2016, figure 2), a 1x1 convolution on the
/// shortcut where the shape changes (their option B, torchvision's `downsample`).
fn basic_block(
    builder: &mut GraphBuilder,
    name: &str,
    channels: usize,
    stride: usize,
    from: usize,
) {
    let input = builder.last();
    builder.then(&format!("{name}.conv1"), conv(channels, 3, stride));
    builder.then(&format!("{name}.bn1"), NORM);
    builder.then(&format!("{name}.relu1"), LayerKind::Relu);
    builder.then(&format!("{name}.conv2"), conv(channels, 3, 1));
    let main = builder.then(&format!("{name}.bn2"), NORM);
    let shortcut = if stride == 1 && from == channels {
        input
    } else {
        builder.node(&format!("{name}.downsample.0"), conv(channels, 1, stride), &[input]);
        Some(builder.then(&format!("{name}.downsample.1"), NORM))
    };
    builder.node(&format!("{name}.add"), LayerKind::Add, &[Some(main), shortcut]);
    builder.then(&format!("{name}.relu2"), LayerKind::Relu);
}

fn residual(
    mut builder: GraphBuilder,
    widths: &[usize],
    blocks: usize,
) -> Result<Graph, ModelError> {
    let classes = builder.classes();
    let mut from = widths[0];
    for (stage, &channels) in widths.iter().enumerate() {
        for block in 0..blocks {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            let name = format!("layer{}.{block}", stage + 1);
            basic_block(&mut builder, &name, channels, stride, from);
            from = channels;
        }
    }
    builder.then("avgpool", LayerKind::GlobalAvgPool);
    builder.then("flatten", LayerKind::Flatten);
    builder.then("fc", linear(classes));
    builder.finish()
}

fn resnet18(image: Shape, classes: usize) -> Result<Graph, ModelError> {
    let mut builder = GraphBuilder::new("resnet18", image, classes);
    builder.then("conv1", conv(64, 7, 2));
    builder.then("bn1", NORM);
    builder.then("relu", LayerKind::Relu);
    builder.then("maxpool", LayerKind::MaxPool { kernel: 3, stride: 2, padding: 1 });
    residual(builder, &[64, 128, 256, 512], 2)
}

fn resnet20(image: Shape, classes: usize) -> Result<Graph, ModelError> {
    let mut builder = GraphBuilder::new("resnet20", image, classes);
    builder.then("conv1", conv(16, 3, 1));
    builder.then("bn1", NORM);
    builder.then("relu", LayerKind::Relu);
    residual(builder, &[16, 32, 64], 3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{TensorKind, layout};

    #[test]
    fn cnn11_has_eleven_weight_layers_and_about_95_megabytes() {
        let graph = build("cnn11", [3, 224, 224], 32, 1.0).expect("known");
        let weighted =
            |kind: &LayerKind| matches!(kind, LayerKind::Conv { .. } | LayerKind::Linear { .. });
        assert_eq!(graph.nodes.iter().filter(|node| weighted(&node.kind)).count(), 11);
        let megabytes = layout::of(&graph).parameters as f64 * 4.0 / 1e6;
        assert!((94.0..96.0).contains(&megabytes), "{megabytes}");
    }

    #[test]
    fn every_model_fits_small_and_large_images() {
        for side in [24, 28, 32, 48, 64, 112, 224] {
            for (name, _) in MODELS {
                for channels in [1, 3] {
                    let image = [channels, side, side];
                    let graph = build(name, image, 10, 1.0).unwrap_or_else(|e| panic!("{e}"));
                    assert_eq!(graph.nodes.last().map(|node| node.shape), Some([10, 1, 1]));
                }
            }
        }
    }

    #[test]
    fn width_scales_parameters() {
        let parameters = |width| {
            let graph = build("cnn11", [3, 32, 32], 10, width).expect("known");
            layout::of(&graph).parameters as f64
        };
        let ratio = parameters(0.5) / parameters(1.0);
        assert!((0.2..0.3).contains(&ratio), "{ratio}");
    }

    #[test]
    fn resnet18_has_torchvisions_tensors() {
        let graph = build("resnet18", [3, 224, 224], 1000, 1.0).expect("known");
        let layout = layout::of(&graph);
        for (name, shape) in [
            ("conv1.weight", vec![64, 3, 7, 7]),
            ("layer2.0.downsample.0.weight", vec![128, 64, 1, 1]),
            ("layer2.0.downsample.1.running_var", vec![128]),
            ("layer4.1.bn2.bias", vec![512]),
            ("fc.weight", vec![1000, 512]),
        ] {
            let tensor = layout.tensors.iter().find(|tensor| tensor.name == name);
            assert_eq!(tensor.map(|tensor| tensor.shape.clone()), Some(shape), "{name}");
        }
        // 62 parameters and 40 running statistics (`num_batches_tracked` left out).
        let statistics = layout.tensors.iter().filter(|t| t.kind == TensorKind::Statistic).count();
        assert_eq!((layout.tensors.len(), statistics), (102, 40));
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_nearest() {
        let error = build("resnet81", [3, 32, 32], 10, 1.0).expect_err("unknown").to_string();
        assert!(error.contains("did you mean `resnet18`"), "{error}");
        assert!(build("resnet18", [3, 32, 32], 10, 0.5).is_err());
        assert!(build("nowhere.toml", [3, 32, 32], 10, 1.0).is_err());
    }
}
