//! How the tensors of a file differ from those of a model: all of them, in one sentence.

use std::fmt;

use crate::config::Shown;
use crate::model::Layout;

/// Tensors that are named of each kind, more than any model has; the rest is counted.
const NAMED_MAX: usize = 4096;

/// A tensor of another shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherShape {
    /// The tensor.
    pub name: String,
    /// In the file.
    pub found: Vec<usize>,
    /// In the model.
    pub expected: Vec<usize>,
}

/// What does not fit. Nothing in it: everything does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Differences {
    /// In the model only.
    pub missing: Vec<String>,
    /// In the file only.
    pub unexpected: Vec<String>,
    /// In both.
    pub shapes: Vec<OtherShape>,
    /// Classes of the file and of the model, where only the last layer differs and only in them.
    pub classes: Option<(usize, usize)>,
}

impl Differences {
    /// Compares names and shapes; `found` has those of the file.
    pub fn between(found: &[(&str, &[usize])], layout: &Layout) -> Self {
        let in_model = |name: &str| layout.tensors.iter().any(|tensor| tensor.name == name);
        let mut unexpected: Vec<String> = found
            .iter()
            .filter(|(name, _)| !in_model(name) && !is_ignored(name))
            .map(|(name, _)| (*name).to_owned())
            .collect();
        unexpected.sort_unstable();
        let (mut missing, mut shapes) = (Vec::new(), Vec::new());
        let mut heads = Vec::new();
        let last = layout.tensors.iter().map(|tensor| tensor.node).max();
        for tensor in &layout.tensors {
            let Some((name, shape)) = found.iter().find(|(name, _)| *name == tensor.name) else {
                missing.push(tensor.name.clone());
                continue;
            };
            if *shape == tensor.shape {
                continue;
            }
            let rest = shape.get(1..) == tensor.shape.get(1..) && shape.len() == tensor.shape.len();
            if Some(tensor.node) == last && rest && !shape.is_empty() {
                heads.push((shape[0], tensor.shape[0]));
            }
            let (found, expected) = (shape.to_vec(), tensor.shape.clone());
            shapes.push(OtherShape { name: (*name).to_owned(), found, expected });
        }
        let of_head = layout.tensors.iter().filter(|tensor| Some(tensor.node) == last).count();
        let only_head = missing.is_empty()
            && unexpected.is_empty()
            && (heads.len(), heads.len()) == (shapes.len(), of_head);
        let classes = heads
            .first()
            .copied()
            .filter(|first| only_head && heads.iter().all(|head| head == first));
        Self { missing, unexpected, shapes, classes }
    }

    /// Whether everything fits.
    pub fn is_empty(&self) -> bool {
        self.missing.is_empty() && self.unexpected.is_empty() && self.shapes.is_empty()
    }
}

/// Counters of PyTorch's batch norm, which decide nothing here.
pub fn is_ignored(name: &str) -> bool {
    name == "num_batches_tracked" || name.ends_with(".num_batches_tracked")
}

/// The names, and how many more there are where no model has so many.
fn named(names: &[String]) -> String {
    let shown: Vec<String> = names.iter().take(NAMED_MAX).map(|name| name.shown()).collect();
    match names.len().saturating_sub(NAMED_MAX) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

impl fmt::Display for Differences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((found, expected)) = self.classes {
            let names: Vec<String> = self.shapes.iter().map(|shape| shape.name.clone()).collect();
            return write!(
                f,
                "its last layer has {found} classes, the model {expected} ({}); take weights for \
                 {expected} classes, or a set of {found}",
                named(&names)
            );
        }
        let shape = |shape: &OtherShape| {
            let OtherShape { name, found, expected } = shape;
            format!("{} (shape {found:?}, the model needs {expected:?})", name.shown())
        };
        let shapes: Vec<String> = self.shapes.iter().map(shape).collect();
        let mut parts = Vec::new();
        for (names, what) in [
            (&self.missing, "missing"),
            (&self.unexpected, "of no layer of the model"),
            (&shapes, "of another shape"),
        ] {
            if !names.is_empty() {
                parts.push(format!("{} tensors are {what}: {}", names.len(), named(names)));
            }
        }
        f.write_str(&parts.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use crate::model::{catalogue, layout};

    use super::*;

    type Tensors = Vec<(String, Vec<usize>)>;

    fn tensors(model: &str, classes: usize) -> Tensors {
        let graph = catalogue::build(model, [3, 32, 32], classes, 1.0).expect("in the catalogue");
        let tensors = layout::of(&graph).tensors.into_iter();
        tensors.map(|tensor| (tensor.name, tensor.shape)).collect()
    }

    fn differences(file: &Tensors, model: &str, classes: usize) -> Differences {
        let graph = catalogue::build(model, [3, 32, 32], classes, 1.0).expect("in the catalogue");
        let found: Vec<(&str, &[usize])> =
            file.iter().map(|(name, shape)| (name.as_str(), &shape[..])).collect();
        Differences::between(&found, &layout::of(&graph))
    }

    #[test]
    fn the_same_tensors_do_not_differ_and_counters_do_not_count() {
        let mut file = tensors("resnet18", 10);
        file.push(("bn1.num_batches_tracked".into(), vec![]));
        assert!(differences(&file, "resnet18", 10).is_empty());
    }

    #[test]
    fn another_number_of_classes_is_said_in_these_words() {
        let found = differences(&tensors("resnet18", 1000), "resnet18", 4);
        assert_eq!(found.classes, Some((1000, 4)));
        let text = found.to_string();
        assert!(text.contains("has 1000 classes, the model 4 (fc.weight, fc.bias)"), "{text}");
    }

    #[test]
    fn every_difference_is_named() {
        let mut file = tensors("resnet18", 10);
        file.retain(|(name, _)| !name.starts_with("layer4."));
        let text = differences(&file, "resnet18", 10).to_string();
        assert!(text.starts_with("25 tensors are missing: layer4.0.conv1.weight, "), "{text}");
        assert_eq!(text.matches("layer4.").count(), 25, "{text}");
        let text = differences(&tensors("mlp", 10), "resnet18", 10).to_string();
        assert!(text.contains("102 tensors are missing: "), "{text}");
        assert!(text.contains("6 tensors are of no layer of the model: fc1.bias, "), "{text}");
        file = tensors("resnet18", 10);
        file[0] = ("conv1.weight".into(), vec![64, 1, 7, 7]);
        let text = differences(&file, "resnet18", 10).to_string();
        assert_eq!(
            text,
            "1 tensors are of another shape: conv1.weight (shape [64, 1, 7, 7], the model needs \
             [64, 3, 7, 7])"
        );
    }
}
