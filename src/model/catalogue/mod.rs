//! The catalogue: our own small models, and torchvision's by its tensor names.

mod blocks;
mod chains;
mod dense;
mod inception;
mod inverted;
mod own;
mod residual;

use kintsugi_ffi::regular;

use crate::config::{self, Shown, scales};

use super::file::from_toml;
use super::spec::{GraphBuilder, ModelError};
use super::{Graph, Shape};

/// Largest model file that is read.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// A model by its name.
pub struct Entry {
    /// As in `model.name`.
    pub name: &'static str,
    /// One line on it.
    pub about: &'static str,
    /// The smallest height and width of an image that its windows fit into, in pixels.
    pub side_min: usize,
    build: fn(GraphBuilder, f64) -> Result<Graph, ModelError>,
}

type Build = fn(GraphBuilder, f64) -> Result<Graph, ModelError>;

const fn entry(name: &'static str, side_min: usize, build: Build, about: &'static str) -> Entry {
    Entry { name, about, side_min, build }
}

/// All of them. Where a source has a name in torchvision 0.29, tensors have torchvision's names.
pub const MODELS: &[Entry] = &[
    entry(
        "mlp",
        1,
        own::mlp,
        "two hidden layers of 512 and 256 features (scales with model.width)",
    ),
    entry(
        "cnn11",
        16,
        own::cnn11,
        "8 convolutions and 3 linear layers, 95 MB at 224x224 and 32 classes (scales)",
    ),
    entry("cnn3", 8, own::cnn3, "3 convolutions with poolings and a linear layer"),
    entry("resnet20", 1, residual::resnet20, "He et al. 2016 section 4.2, for 32x32 images"),
    entry("resnet56", 1, residual::resnet56, "the same, 56 layers deep"),
    entry("resnet18", 1, residual::resnet18, "He et al. 2016, torchvision's tensor names"),
    entry("resnet34", 1, residual::resnet34, "the same, 34 layers deep"),
    entry("resnet50", 1, residual::resnet50, "with bottlenecks; stride in the 3x3 convolution"),
    entry("resnet101", 1, residual::resnet101, "the same, 101 layers deep"),
    entry("resnet152", 1, residual::resnet152, "the same, 152 layers deep"),
    entry("resnext50_32x4d", 1, residual::resnext50, "Xie et al. 2017, 32 groups of 4 channels"),
    entry("alexnet", 63, chains::alexnet, "Krizhevsky 2014, one column, as in torchvision"),
    entry("vgg11", 32, chains::vgg11, "Simonyan and Zisserman 2015, configuration A"),
    entry("vgg11_bn", 32, chains::vgg11_bn, "the same with batch normalisation"),
    entry("vgg16", 32, chains::vgg16, "Simonyan and Zisserman 2015, configuration D"),
    entry("vgg16_bn", 32, chains::vgg16_bn, "the same with batch normalisation"),
    entry("squeezenet1_1", 25, chains::squeezenet, "Iandola et al. 2016, version 1.1"),
    entry("densenet121", 29, dense::densenet121, "Huang et al. 2017, growth 32"),
    entry("mobilenet_v2", 1, inverted::mobilenet_v2, "Sandler et al. 2018, width 1"),
    entry("googlenet", 31, inception::googlenet, "Szegedy et al. 2015, two auxiliary heads"),
];

/// A catalogue model, or a model file if `name` ends in `.toml`. `image` is channels, height and
/// width; `width` multiplies the layer widths of mlp and cnn11.
pub fn build(name: &str, image: Shape, classes: usize, width: f64) -> Result<Graph, ModelError> {
    built(name, None, image, classes, width)
}

/// The model of a configuration: of the text that its run has begun with, where there is one.
pub fn of(model: &config::Model, image: Shape, classes: usize) -> Result<Graph, ModelError> {
    built(&model.found_name(), model.text.as_deref(), image, classes, model.width)
}

/// A run that begins is of this model: should its file change, it goes on with no other.
///
/// # Errors
/// It cannot be read.
pub fn keep_text(model: &mut config::Model) -> Result<(), ModelError> {
    if model.is_file() && model.text.is_none() {
        model.text = Some(read_text(&model.found_name())?);
    }
    Ok(())
}

/// Whether the file of a model that a run has begun with is another one now: one whose keys or
/// values differ. A file that is gone, or cannot be read, is none.
pub fn is_another_now(begun: &config::Model, asked: &config::Model) -> bool {
    let table = |text: &str| text.parse::<toml::Table>().ok();
    let now = || read_text(&asked.found_name()).ok();
    begun.text.as_deref().is_some_and(|begun| now().is_some_and(|now| table(&now) != table(begun)))
}

fn in_file(name: &str, reason: &str) -> ModelError {
    ModelError::File(format!("{}: {reason}", name.shown()))
}

fn read_text(name: &str) -> Result<String, ModelError> {
    let text = regular::read_text(name.as_ref(), FILE_BYTES_MAX);
    text.map_err(|error| in_file(name, &error.to_string()))
}

fn built(
    name: &str,
    text: Option<&str>,
    image: Shape,
    classes: usize,
    width: f64,
) -> Result<Graph, ModelError> {
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
    if let Some(entry) = MODELS.iter().find(|entry| entry.name == name) {
        let (side, least) = (image[1].min(image[2]), entry.side_min);
        if side < least {
            let reason = format!("images of {side} pixels: at least {least} are needed");
            return Err(unsuitable(reason));
        }
        return (entry.build)(GraphBuilder::new(name, image, classes), width);
    }
    if !name.ends_with(".toml") {
        return Err(unknown(name));
    }
    let text = text.map_or_else(|| read_text(name), |text| Ok(text.to_owned()))?;
    let mut graph = from_toml(&text, image, classes).map_err(|error| match error {
        ModelError::File(reason) => in_file(name, &reason),
        other => other,
    })?;
    if let Some(stem) = std::path::Path::new(name).file_stem() {
        graph.name = stem.to_string_lossy().into_owned();
    }
    Ok(graph)
}

/// Mean and deviation of the pictures that torchvision's published weights of a model were trained
/// with, where they are not ImageNet's (its `transform_input`).
pub fn published_with(name: &str) -> Option<[[f32; 3]; 2]> {
    (name == "googlenet").then_some([[0.5; 3]; 2])
}

fn unknown(name: &str) -> ModelError {
    let known: Vec<&str> = MODELS.iter().map(|entry| entry.name).collect();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{LayerKind, layout};

    #[test]
    fn cnn11_has_eleven_weight_layers_and_about_95_megabytes() {
        let graph = build("cnn11", [3, 224, 224], 32, 1.0).expect("known");
        let weighted =
            |kind: &LayerKind| matches!(kind, LayerKind::Conv(_) | LayerKind::Linear { .. });
        assert_eq!(graph.nodes.iter().filter(|node| weighted(&node.kind)).count(), 11);
        let megabytes = layout::of(&graph).parameters as f64 * 4.0 / 1e6;
        assert!((94.0..96.0).contains(&megabytes), "{megabytes}");
    }

    #[test]
    fn every_model_fits_small_and_large_images() {
        for Entry { name, side_min, .. } in MODELS {
            let more =
                [24, 28, 32, 48, 64, 112, 224, 2240].into_iter().filter(|side| side > side_min);
            for side in std::iter::once(*side_min).chain(more) {
                for channels in [1, 3] {
                    let image = [channels, side, side];
                    let graph = build(name, image, 10, 1.0).unwrap_or_else(|e| panic!("{e}"));
                    assert_eq!(graph.nodes.last().map(|node| node.shape), Some([10, 1, 1]));
                }
            }
            if *side_min > 1 {
                let small = build(name, [3, side_min - 1, side_min - 1], 10, 1.0);
                let error = small.expect_err("too small").to_string();
                assert!(error.contains(&format!("at least {side_min} are needed")), "{error}");
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
    fn an_unknown_name_is_answered_with_the_nearest() {
        let error = build("resnet81", [3, 32, 32], 10, 1.0).expect_err("unknown").to_string();
        assert!(error.contains("did you mean `resnet18`"), "{error}");
        assert!(build("resnet18", [3, 32, 32], 10, 0.5).is_err());
        assert!(build("nowhere.toml", [3, 32, 32], 10, 1.0).is_err());
    }
}
