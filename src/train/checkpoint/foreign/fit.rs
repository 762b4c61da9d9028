//! Gives a model its weights from a foreign file: all of them, or none and the whole list of what
//! does not fit. Names lose what wrappers put before them, other element types become f32, and a
//! last layer for another number of classes keeps its first weights.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::Shown;
use crate::model::{Graph, Layout, TensorKind, TensorSpec, init};
use crate::train::checkpoint::differences::{Differences, OtherShape};
use crate::train::checkpoint::tensors::TensorError;

use super::file::Foreign;
use super::tensor::{Element, Tensor};

/// What PyTorch's wrappers put before every name (`DataParallel`, `torch.compile`).
const WRAPPERS: [&str; 2] = ["module.", "_orig_mod."];
/// Wrappers around each other.
const WRAPPERS_MAX: usize = 8;
/// Old files of torchvision's DenseNets write `norm.1` where its models have `norm1`.
const OLD_PARTS: [&str; 4] = ["norm.1.", "norm.2.", "conv.1.", "conv.2."];

/// What a file gives a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Fitted {
    /// Trained elements, in the order of the layout.
    pub parameters: Vec<f32>,
    /// Running statistics.
    pub statistics: Vec<f32>,
    /// What was done to make it fit, a sentence each.
    pub remarks: Vec<String>,
    /// What the file says of itself.
    pub about: BTreeMap<String, String>,
}

/// The weights of a model, with first weights of this seed where the file is for another number of
/// classes.
///
/// # Errors
/// What does not fit, whole.
pub fn fit(
    file: &Foreign<'_>,
    graph: &Graph,
    layout: &Layout,
    seed: u64,
) -> Result<Fitted, TensorError> {
    let mut remarks = Vec::new();
    let names: BTreeSet<&str> = layout.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    let prefix = prefix_of(file, layout);
    if !prefix.is_empty() {
        remarks.push(format!("every name begins with `{}`: taken off", prefix.shown()));
    }
    let mut found: BTreeMap<String, &Tensor<'_>> = BTreeMap::new();
    for tensor in &file.tensors {
        let name = today(tensor.name.strip_prefix(prefix.as_str()).unwrap_or(&tensor.name), &names);
        if found.insert(name, tensor).is_some() {
            let name = tensor.name.shown();
            return Err(TensorError::Refused(format!("two of its tensors are called {name}")));
        }
    }
    let shapes: Vec<(&str, &[usize])> =
        found.iter().map(|(name, tensor)| (name.as_str(), &tensor.shape[..])).collect();
    let differences = Differences::between(&shapes, layout);
    let Some(fresh) = fresh(&differences, graph, layout) else {
        return Err(TensorError::Differ(differences));
    };
    let mut parameters = init::parameters(graph, layout, seed);
    let mut statistics = init::statistics(layout);
    let mut converted: BTreeMap<&str, usize> = BTreeMap::new();
    for spec in &layout.tensors {
        let Some(tensor) = found.get(&spec.name).filter(|_| !fresh.contains(spec.name.as_str()))
        else {
            continue;
        };
        let flat = match spec.kind {
            TensorKind::Statistic => &mut statistics,
            TensorKind::Weight | TensorKind::Bias => &mut parameters,
        };
        let (word, values) = (tensor.element.name(), &mut flat[spec.range()]);
        tensor
            .read(values)
            .ok_or_else(|| TensorError::Type { name: spec.name.clone(), found: word.to_owned() })?;
        if let Some(wrong) = spec.unsound(values) {
            return Err(TensorError::Refused(format!("{} holds {wrong}", spec.name.shown())));
        }
        if tensor.element != Element::F32 {
            *converted.entry(word).or_default() += 1;
        }
    }
    remarks.extend(converted.iter().map(|(word, count)| match count {
        1 => format!("a tensor of {word}: converted to f32"),
        _ => format!("{count} tensors of {word}: converted to f32"),
    }));
    remarks.extend(new_layer(&differences, seed));
    if !differences.missing.is_empty() {
        let names = differences.missing.join(", ");
        remarks.push(format!(
            "it has no auxiliary classifiers: {names} begin anew, with first weights of seed {seed}"
        ));
    }
    remarks.extend(not_tensors(&file.passed_over));
    Ok(Fitted { parameters, statistics, remarks, about: file.about.clone() })
}

/// The tensors that keep their first weights: of layers that tell classes apart, where they differ
/// in the number of classes; and of auxiliary classifiers that the file lacks, as PyTorch's models
/// do that were made to answer only. `None`: something else differs.
fn fresh<'l>(
    differences: &Differences,
    graph: &Graph,
    layout: &'l Layout,
) -> Option<BTreeSet<&'l str>> {
    let heads = classifiers(graph, layout);
    let answering = answering(graph);
    let spec_of = |name: &str| layout.tensors.iter().find(|spec| spec.name == name);
    let is_beside = |name: &String| spec_of(name).is_some_and(|spec| !answering[spec.node]);
    let is_class = |other: &OtherShape| {
        let OtherShape { name, found, expected } = other;
        spec_of(name).is_some_and(|spec| heads.contains(&spec.node))
            && found.len() == expected.len()
            && !found.is_empty()
            && found[1..] == expected[1..]
            && found[0] == differences.shapes[0].found[0]
            && expected[0] == graph.classes
    };
    let fits = differences.missing.iter().all(is_beside)
        && differences.unexpected.is_empty()
        && differences.shapes.iter().all(is_class);
    let is_fresh = |spec: &&TensorSpec| {
        let of_class = !differences.shapes.is_empty() && heads.contains(&spec.node);
        of_class || differences.missing.contains(&spec.name)
    };
    let names = layout.tensors.iter().filter(is_fresh).map(|spec| spec.name.as_str());
    fits.then(|| names.collect())
}

/// By node, whether the model's last node reads it, directly or through others.
fn answering(graph: &Graph) -> Vec<bool> {
    let mut read = vec![false; graph.nodes.len()];
    if let Some(last) = read.last_mut() {
        *last = true;
    }
    // Inputs are earlier nodes: whoever reads a node has been met before it.
    for at in (0..read.len()).rev() {
        if read[at] {
            graph.nodes[at].inputs.iter().flatten().for_each(|input| read[*input] = true);
        }
    }
    read
}

/// The nodes with tensors that the model's answers come from: the last, and those of auxiliary
/// classifiers.
fn classifiers(graph: &Graph, layout: &Layout) -> BTreeSet<usize> {
    let has_tensors = |node: usize| layout.tensors.iter().any(|spec| spec.node == node);
    let answers = graph.nodes.len().checked_sub(1).into_iter();
    let answers = answers.chain(graph.heads.iter().map(|head| head.node));
    let above = |answer: usize| {
        // Inputs are earlier nodes, so this ends.
        let mut node = Some(answer);
        while let Some(at) = node.filter(|at| !has_tensors(*at)) {
            node = graph.nodes[at].inputs.first().copied().flatten();
        }
        node
    };
    answers.filter_map(above).collect()
}

/// What stands before every name of the file and in none of the model's. Empty where nothing does.
fn prefix_of(file: &Foreign<'_>, layout: &Layout) -> String {
    let before_all = |prefix: &str| file.tensors.iter().all(|t| t.name.starts_with(prefix));
    if let Some(first) = layout.tensors.first() {
        let names = file.tensors.iter().map(|tensor| tensor.name.as_str());
        let mut prefixes = names.filter_map(|name| name.strip_suffix(first.name.as_str()));
        let whole = prefixes.find(|prefix| prefix.ends_with('.') && before_all(prefix));
        if let Some(prefix) = whole {
            return prefix.to_owned();
        }
    }
    let mut prefix = String::new();
    for _ in 0..WRAPPERS_MAX {
        let longer = WRAPPERS.iter().map(|wrapper| format!("{prefix}{wrapper}"));
        let Some(longer) = longer.into_iter().find(|longer| before_all(longer)) else { break };
        prefix = longer;
    }
    if file.tensors.is_empty() { String::new() } else { prefix }
}

/// The name that the model has for it.
pub(super) fn today(name: &str, names: &BTreeSet<&str>) -> String {
    let renamed = OLD_PARTS.iter().filter(|_| !names.contains(name)).find_map(|old| {
        let at = name.find(&format!(".{old}"))? + 1;
        // `norm.1.` -> `norm1.`
        let new = format!("{}{}{}", &name[..at], old.replacen('.', "", 1), &name[at + old.len()..]);
        names.contains(new.as_str()).then_some(new)
    });
    renamed.unwrap_or_else(|| name.to_owned())
}

fn new_layer(differences: &Differences, seed: u64) -> Option<String> {
    let OtherShape { found, expected, .. } = differences.shapes.first()?;
    let names: Vec<&str> = differences.shapes.iter().map(|shape| shape.name.as_str()).collect();
    Some(format!(
        "it is for {} classes, this model for {}: {} begin anew, with first weights of seed {seed}",
        found.first()?,
        expected.first()?,
        names.join(", ")
    ))
}

/// Names of what is passed over that are said; the rest is counted.
const PASSED_OVER_MAX: usize = 8;

fn not_tensors(names: &[String]) -> Option<String> {
    let shown: Vec<String> = names.iter().take(PASSED_OVER_MAX).map(|name| name.shown()).collect();
    let more = match names.len().checked_sub(PASSED_OVER_MAX + 1) {
        Some(more) => format!(" and {} more", more + 1),
        None => String::new(),
    };
    let are = if names.len() == 1 { "is no tensor" } else { "are no tensors" };
    (!names.is_empty()).then(|| format!("{}{more} {are}: passed over", shown.join(", ")))
}
