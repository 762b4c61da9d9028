//! Model files: TOML with one `[[layer]]` after another. What is wrong is said with its line.

use serde::Deserialize;
use toml::Spanned;

use crate::config::Shown;

use super::spec::{GraphBuilder, ModelError};
use super::window::{AvgPool, Pair};
use super::{Graph, LayerKind, Shape, Spread};

/// Reads a model file. Layers in order; each reads the one before it unless `inputs` names others:
///
/// ```toml
/// name = "tiny"
/// [[layer]]
/// name = "conv1"          # default: kind and number
/// kind = "conv"
/// channels = 8
/// kernel = 3
/// inputs = ["image"]      # default: the layer before
/// [[layer]]
/// kind = "global_avg_pool"
/// [[layer]]
/// kind = "linear"
/// features = "classes"    # or a number; `channels` of a convolution likewise
/// ```
pub fn from_toml(text: &str, input: Shape, classes: usize) -> Result<Graph, ModelError> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        #[serde(default = "unnamed")]
        name: String,
        #[serde(default)]
        spread: Spread,
        layer: Vec<Spanned<toml::Table>>,
    }
    fn unnamed() -> String {
        "model".into()
    }
    let file: File = toml::from_str(text).map_err(|error| ModelError::File(error.to_string()))?;
    let mut builder = GraphBuilder::new(&file.name, input, classes);
    let mut places: Vec<(String, usize)> = Vec::new();
    for (index, table) in file.layer.into_iter().enumerate() {
        let line = line_of(text, table.span().start);
        let located = |reason: String| ModelError::File(format!("line {line}: {reason}"));
        let layer = file_layer(index, table.into_inner(), input, classes).map_err(located)?;
        let inputs = inputs_of(&builder, &layer).map_err(located)?;
        let node = builder.node(&layer.name, layer.kind, &inputs);
        if let Some(weight) = layer.loss_weight {
            builder.head(node, weight);
        }
        places.push((layer.name, line));
    }
    let graph = builder.finish().map_err(|error| {
        let ModelError::Layer { layer, .. } = &error else { return error };
        match places.iter().rfind(|(name, _)| name == layer) {
            Some((_, line)) => ModelError::File(format!("line {line}: {error}")),
            None => error,
        }
    })?;
    Ok(Graph { spread: file.spread, ..graph })
}

/// The line of a place in a text, from 1.
fn line_of(text: &str, at: usize) -> usize {
    1 + text.as_bytes()[..at.min(text.len())].iter().filter(|&&byte| byte == b'\n').count()
}

fn at(layer: &str, reason: impl std::fmt::Display) -> String {
    format!("layer `{}`: {}", layer.shown(), reason.to_string().trim_end())
}

/// The nodes that a layer reads.
fn inputs_of(builder: &GraphBuilder, layer: &FileLayer) -> Result<Vec<Option<usize>>, String> {
    let Some(names) = &layer.inputs else { return Ok(vec![builder.last()]) };
    let found = |name: &String| match builder.find(name) {
        _ if name == "image" => Ok(None),
        Some(node) => Ok(Some(node)),
        None => Err(at(
            &layer.name,
            format!("input `{}` is not an earlier layer or `image`", name.shown()),
        )),
    };
    names.iter().map(found).collect()
}

struct FileLayer {
    name: String,
    kind: LayerKind,
    inputs: Option<Vec<String>>,
    loss_weight: Option<f32>,
}

/// One `[[layer]]`: our own keys are taken out, the rest is the layer's kind.
fn file_layer(
    index: usize,
    mut table: toml::Table,
    image: Shape,
    classes: usize,
) -> Result<FileLayer, String> {
    let text = |value: toml::Value| value.as_str().map(str::to_string);
    let kind_name = table.get("kind").and_then(|kind| kind.as_str()).unwrap_or("layer").to_string();
    let default_name = format!("{kind_name}{}", index + 1);
    let name = match table.remove("name") {
        None => default_name,
        Some(value) => text(value)
            .filter(|name| !name.is_empty() && name != "image")
            .ok_or_else(|| at(&default_name, "`name` must be a text other than `image`"))?,
    };
    let inputs = match table.remove("inputs") {
        None => None,
        Some(toml::Value::Array(names)) => {
            let names: Option<Vec<String>> = names.into_iter().map(text).collect();
            Some(names.ok_or_else(|| at(&name, "`inputs` must be layer names"))?)
        }
        Some(_) => return Err(at(&name, "`inputs` must be an array of layer names")),
    };
    let loss_weight = match table.remove("loss_weight") {
        None => None,
        Some(toml::Value::Float(weight)) => Some(weight as f32),
        Some(_) => return Err(at(&name, "`loss_weight` must be a number as 0.3")),
    };
    let for_image = table.remove("for_image");
    for width in ["features", "channels"] {
        if table.get(width).and_then(|value| value.as_str()) == Some("classes") {
            table.insert(width.into(), toml::Value::Integer(classes as i64));
        }
    }
    // As in PyTorch, windows lie side by side where nothing is said.
    if let ("max_pool" | "avg_pool", Some(kernel), None) =
        (kind_name.as_str(), table.get("kernel").cloned(), table.get("stride"))
    {
        table.insert("stride".into(), kernel);
    }
    let keys = table.len();
    let kind =
        LayerKind::deserialize(toml::Value::Table(table)).map_err(|error| at(&name, error))?;
    // Serde takes any keys beside a kind that has none of its own.
    let is_bare = toml::Table::try_from(&kind).is_ok_and(|own| own.len() == 1);
    if is_bare && keys > 1 {
        return Err(at(&name, format!("`{}` takes no further keys", kind.name())));
    }
    let kind = match for_image {
        None => kind,
        Some(side) => grown(&kind, &side, image).map_err(|reason| at(&name, reason))?,
    };
    Ok(FileLayer { name, kind, inputs, loss_weight })
}

/// A mean pooling for images of `side` pixels, grown with the image: its kernel and stride times so
/// many as that goes into height and width.
fn grown(
    kind: &LayerKind,
    side: &toml::Value,
    [_, height, width]: Shape,
) -> Result<LayerKind, String> {
    let LayerKind::AvgPool(pool) = *kind else {
        return Err("`for_image` is of `avg_pool` alone".into());
    };
    let side = side.as_integer().and_then(|side| usize::try_from(side).ok());
    let side = side.filter(|&side| side > 0).ok_or("`for_image` must be a number of pixels")?;
    let times = [height / side, width / side];
    if times.contains(&0) {
        return Err(format!(
            "`for_image`: images of {height} x {width} pixels: at least {side} x {side}"
        ));
    }
    let grow = |Pair([height, width]): Pair| {
        Pair([height.saturating_mul(times[0]), width.saturating_mul(times[1])])
    };
    Ok(LayerKind::AvgPool(AvgPool { kernel: grow(pool.kernel), stride: grow(pool.stride), ..pool }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TINY: &str = r#"
        name = "tiny"
        [[layer]]
        name = "a"
        kind = "conv"
        channels = 8
        kernel = 3
        padding = 1
        [[layer]]
        kind = "relu"
        [[layer]]
        name = "sum"
        kind = "add"
        inputs = ["a", "relu2"]
        [[layer]]
        kind = "global_avg_pool"
        [[layer]]
        kind = "linear"
        features = "classes"
    "#;

    #[test]
    fn a_model_file_gives_a_graph_with_shapes() {
        let graph = from_toml(TINY, [3, 8, 8], 5).expect("the file is right");
        assert_eq!(graph.name, "tiny");
        let shapes: Vec<Shape> = graph.nodes.iter().map(|node| node.shape).collect();
        assert_eq!(shapes, [[8, 8, 8], [8, 8, 8], [8, 8, 8], [8, 1, 1], [5, 1, 1]]);
        assert_eq!(graph.nodes[2].inputs, [Some(0), Some(1)]);
        assert_eq!(graph.consumers(0), [1, 2]);
    }

    #[test]
    fn a_mean_pooling_for_images_of_a_size_grows_with_the_image_and_its_result_does_not() {
        let text = TINY.replace(
            "\"global_avg_pool\"",
            "\"avg_pool\"\nkernel = 4\nstride = 2\nfor_image = 8\n[[layer]]\nkind = \"flatten\"",
        );
        let pooled =
            |side| from_toml(&text, [3, side, 2 * side], 5).expect("it fits").nodes[3].shape;
        assert_eq!([8, 16, 80].map(pooled), [[8, 3, 3]; 3]);
        let small = from_toml(&text, [3, 7, 8], 5).expect_err("too small").to_string();
        assert!(small.contains("images of 7 x 8 pixels: at least 8 x 8"), "{small}");
        let other = TINY.replacen("kernel = 3", "kernel = 3\nfor_image = 8", 1);
        let other = from_toml(&other, [3, 8, 8], 5).expect_err("a convolution").to_string();
        assert!(other.contains("`for_image` is of `avg_pool` alone"), "{other}");
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line_and_both_shapes() {
        for (from, to, message) in [
            (
                "kind = \"relu\"",
                "name = \"relu2\"\nkind = \"max_pool\"\nkernel = 2\nstride = 1",
                "line 14: layer `sum` (add): shapes [8, 8, 8] and [8, 7, 7] differ",
            ),
            ("kernel = 3", "kernle = 3", "line 3: layer `a`: unknown field `kernle`"),
            ("\"relu2\"", "\"relu3\"", "line 11: layer `sum`: input `relu3` is not"),
            ("features = \"classes\"", "features = 7", "line 17: layer `linear5` (linear): gives"),
            ("name = \"tiny\"", "name = 3", "line 2"),
        ] {
            let text = TINY.replacen(from, to, 1);
            let error = from_toml(&text, [3, 8, 8], 5).expect_err(to).to_string();
            assert!(error.contains(message), "{to}: {error}");
        }
    }

    #[test]
    fn what_is_wrong_in_a_model_file_is_named() {
        for (from, to, message) in [
            ("kernel = 3", "kernel = 30", "larger than the padded input"),
            ("kernel = 3", "kernle = 3", "kernle"),
            ("kernel = 3", "kernel = 3\nstride = 0", "must be in 1..="),
            ("channels = 8", "channels = 99999999999", "channels"),
            (
                "kind = \"global_avg_pool\"",
                "kind = \"batch_norm\"\nepsilon = nan",
                "epsilon = NaN is not",
            ),
            (
                "kind = \"global_avg_pool\"",
                "kind = \"batch_norm\"\nmomentum = 1.1",
                "is not in 0..=1",
            ),
            (
                "kind = \"global_avg_pool\"",
                "kind = \"lrn\"\nsize = 5\nalpha = 1.0\nbeta = 1.0\nk = 0.0",
                "k = 0 above",
            ),
            ("kernel = 3", "kernel = 3\nloss_weight = 0.3", "5 classes"),
            ("features = \"classes\"", "features = 5\nloss_weight = 0.3", "before the last"),
            ("features = \"classes\"", "features = 5\nloss_weight = \"a\"", "as 0.3"),
            ("channels = 8", "channels = 8\ngroups = 2", "groups = 2 must divide"),
            ("kernel = 3", "kernel = 3\ndilation = 9", "with dilation 9 is larger"),
            (
                "kind = \"add\"\n        inputs = [\"a\", \"relu2\"]",
                "kind = \"multiply\"\ninputs = [\"a\", \"image\"]",
                "the second input is [3, 8, 8]: [8, 8, 8] or [8, 1, 1]",
            ),
            ("kind = \"relu\"", "kind = \"silu\"\nrate = 1", "takes no further keys"),
            ("kind = \"relu\"", "kind = \"rleu\"", "rleu"),
            ("kind = \"relu\"", "kind = \"relu\"\nrate = 1", "takes no further keys"),
            ("\"relu2\"", "\"relu3\"", "not an earlier layer"),
            ("features = \"classes\"", "features = 7", "5 classes"),
            ("\"a\", \"relu2\"", "\"a\"", "at least two inputs"),
            ("kind = \"global_avg_pool\"", "kind = \"relu\"", "put a `flatten`"),
        ] {
            let text = TINY.replacen(from, to, 1);
            let error = from_toml(&text, [3, 8, 8], 5).expect_err(to).to_string();
            assert!(error.contains(message), "{to}: {error}");
        }
    }
}
