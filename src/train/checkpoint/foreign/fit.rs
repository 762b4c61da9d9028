//! Gives a model its weights from a foreign file: all of them, or none and the whole list of what
//! does not fit. Other element types become f32, and a last layer for other classes keeps its first
//! weights.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::Shown;
use crate::model::{Graph, Layout, TensorKind, TensorSpec, init};
use crate::train::checkpoint::differences::{Differences, OtherShape};
use crate::train::checkpoint::tensors::TensorError;

use super::file::Foreign;
use super::names::{Matched, matched};
use super::tensor::{Element, Tensor};

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

/// Whose answers a last layer gives.
#[derive(Debug, Clone, Copy)]
pub struct Answers<'a> {
    /// Of first weights, where the file's are others'.
    pub seed: u64,
    /// The classes by name, in label order. Empty: they are whatever the file says.
    pub classes: &'a [String],
}

/// The weights of a model, with first weights where the file is for other classes.
///
/// # Errors
/// What does not fit, whole.
pub fn fit(
    file: &Foreign<'_>,
    graph: &Graph,
    layout: &Layout,
    Answers { seed, classes }: Answers<'_>,
) -> Result<Fitted, TensorError> {
    let names: BTreeSet<&str> = layout.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    let answering = answering(graph);
    let needed = layout.tensors.iter().filter(|tensor| answering[tensor.node]);
    let needed: BTreeSet<&str> = needed.map(|tensor| tensor.name.as_str()).collect();
    let Matched { found, mut remarks } = matched(file, &names, &needed)?;
    remarks.splice(0..0, file.chosen.clone());
    let shapes: Vec<(&str, &[usize])> =
        found.iter().map(|(name, tensor)| (name.as_str(), &tensor.shape[..])).collect();
    let differences = Differences::between(&shapes, layout);
    let fresh = fresh(&differences, graph, layout, other_names(file, classes));
    let Some(fresh) = fresh else { return Err(TensorError::Differ(differences)) };
    let mut parameters = init::parameters(graph, layout, seed);
    let mut statistics = init::statistics(layout);
    let is_fresh = |spec: &TensorSpec| fresh.iter().any(|anew| anew.names.contains(&&*spec.name));
    let taken = layout.tensors.iter().filter(|spec| !is_fresh(spec));
    let taken = taken.filter_map(|spec| Some((spec, *found.get(&spec.name)?)));
    remarks.extend(read(taken, &mut parameters, &mut statistics)?);
    remarks.extend(fresh.iter().map(|Anew { why, names }| {
        format!("{why}: {} begin anew, with first weights of seed {seed}", names.join(", "))
    }));
    remarks.extend(untied(file, &names));
    remarks.extend(not_tensors(&file.passed_over));
    Ok(Fitted { parameters, statistics, remarks, about: file.about.clone() })
}

/// Gives tensors their values; what was done to these.
fn read<'t, 'a: 't>(
    tensors: impl Iterator<Item = (&'t TensorSpec, &'t Tensor<'a>)>,
    parameters: &mut [f32],
    statistics: &mut [f32],
) -> Result<Vec<String>, TensorError> {
    let mut converted: BTreeMap<&str, usize> = BTreeMap::new();
    for (spec, tensor) in tensors {
        let flat = match spec.kind {
            TensorKind::Statistic => &mut *statistics,
            TensorKind::Weight | TensorKind::Bias => &mut *parameters,
        };
        let (word, values) = (tensor.element.name(), &mut flat[spec.range()]);
        tensor
            .read(values)
            .ok_or_else(|| TensorError::Type { name: spec.name.clone(), found: word.to_owned() })?;
        if let Some(wrong) = spec.unsound(values) {
            return Err(TensorError::Refused(format!(
                "{} holds {wrong}: a network with it computes no numbers; take an earlier file, or \
                 write this one again after weights[{:?}].nan_to_num_(0, 0, 0){} in Python",
                spec.name.shown(),
                tensor.name,
                if spec.name.ends_with("running_var") {
                    ".clamp_(min=0)"
                } else {
                    ".clamp_(-1e12, 1e12)"
                }
            )));
        }
        if tensor.element != Element::F32 {
            *converted.entry(word).or_default() += 1;
        }
    }
    let said = converted.iter().map(|(word, count)| match count {
        1 => format!("a tensor of {word}: converted to f32"),
        _ => format!("{count} tensors of {word}: converted to f32"),
    });
    Ok(said.collect())
}

/// Tensors that keep their first weights, in the order of the layout.
struct Anew<'l> {
    why: String,
    names: Vec<&'l str>,
}

/// Which tensors those are: of layers that tell classes apart, where these are others; and of
/// auxiliary classifiers that the file lacks, as PyTorch's models do that were made to answer only.
/// `None`: something else differs.
fn fresh<'l>(
    differences: &Differences,
    graph: &Graph,
    layout: &'l Layout,
    other_names: Option<String>,
) -> Option<Vec<Anew<'l>>> {
    let Differences { missing, unexpected, .. } = differences;
    let is_missing = |spec: &TensorSpec| missing.contains(&spec.name);
    let answering = answering(graph);
    let is_cut = |spec: &TensorSpec| is_missing(spec) && answering[spec.node];
    if !unexpected.is_empty() || layout.tensors.iter().any(is_cut) {
        return None;
    }
    let heads = classifiers(graph, layout);
    let numbers = other_numbers(differences, graph, layout, &heads)?;
    let anew = |why: String, is_new: &dyn Fn(&TensorSpec) -> bool| {
        let names = layout.tensors.iter().filter(|spec| is_new(spec));
        Anew { why, names: names.map(|spec| spec.name.as_str()).collect() }
    };
    let is_of = |spec: &TensorSpec, head: &usize| spec.node == *head && !is_missing(spec);
    let in_file = |head: &&usize| layout.tensors.iter().any(|spec| is_of(spec, head));
    let all = numbers.len() == heads.iter().filter(in_file).count();
    let mut found: Vec<usize> = numbers.values().copied().collect();
    found.sort_unstable();
    found.dedup();
    let what = if all && found.len() == 1 { "it is" } else { "layers of it are" };
    let of_number = |number: &usize| {
        let why = format!("{what} for {number} classes, this model for {}", graph.classes);
        anew(why, &|spec| numbers.get(&spec.node) == Some(number))
    };
    let mut fresh: Vec<_> = found.iter().map(of_number).collect();
    let is_named = |spec: &TensorSpec| {
        heads.contains(&spec.node) && !numbers.contains_key(&spec.node) && !is_missing(spec)
    };
    if let Some(why) = other_names {
        fresh.push(anew(why, &is_named));
    }
    if !missing.is_empty() {
        fresh.push(anew("it has no auxiliary classifiers".into(), &is_missing));
    }
    fresh.retain(|anew| !anew.names.is_empty());
    Some(fresh)
}

/// How many classes the file has, by head, where it has another number there than the model: one in
/// all of the head's tensors. `None`: something else differs.
fn other_numbers(
    differences: &Differences,
    graph: &Graph,
    layout: &Layout,
    heads: &BTreeSet<usize>,
) -> Option<BTreeMap<usize, usize>> {
    let mut numbers = BTreeMap::new();
    let differs = |spec: &TensorSpec| differences.shapes.iter().find(|o| o.name == spec.name);
    for OtherShape { name, found, expected } in &differences.shapes {
        let spec = layout.tensors.iter().find(|spec| spec.name == *name)?;
        let number = *found.first().filter(|number| **number > 0)?;
        let is_class = heads.contains(&spec.node)
            && expected.first() == Some(&graph.classes)
            && (found.len(), &found[1..]) == (expected.len(), &expected[1..]);
        let same = *numbers.entry(spec.node).or_insert(number) == number;
        if !is_class || !same {
            return None;
        }
    }
    let mut tensors = layout.tensors.iter();
    let whole = tensors.all(|spec| !numbers.contains_key(&spec.node) || differs(spec).is_some());
    whole.then_some(numbers)
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

/// That it says the names of as many other classes, or the same in another order. Numbers are no
/// names: who imports weights need not know more, nor does a set of archives. But folders of such
/// names lie in another order, from 10 on.
fn other_names(file: &Foreign<'_>, classes: &[String]) -> Option<String> {
    let found = classes_said(&file.about)?;
    let numbers: Vec<String> = (0..found.len()).map(|class| class.to_string()).collect();
    let named = found != numbers && classes != numbers;
    let sorted = |names: &[String]| {
        let mut names = names.to_vec();
        names.sort();
        names
    };
    let said = named || sorted(&found) == sorted(classes);
    let differ = said && found.len() == classes.len() && found != classes;
    differ.then(|| format!("its classes are {}, not {}", list(&found), list(classes)))
}

/// The names of its classes, as a file says them.
fn classes_said(about: &BTreeMap<String, String>) -> Option<Vec<String>> {
    serde_json::from_str(about.get("classes")?).ok()
}

fn list(names: &[String]) -> String {
    let shown = names.iter().take(NAMES_MAX).map(|name| name.shown().to_string());
    let more = if names.len() > NAMES_MAX { ", ..." } else { "" };
    format!("{}{more}", shown.collect::<Vec<_>>().join(", "))
}

/// That weights get other names for their classes than their file has.
pub fn renamed(about: &BTreeMap<String, String>, classes: &[String]) -> Option<String> {
    let said = classes_said(about);
    let said = said.filter(|said| said.len() == classes.len() && said != classes)?;
    Some(format!("it calls its classes {}, which are {} now", list(&said), list(classes)))
}

/// Which of the model's tensors are one in the file.
fn untied(file: &Foreign<'_>, names: &BTreeSet<&str>) -> Vec<String> {
    let own = file.tied.iter().filter(|(tied, _)| names.contains(tied.as_str()));
    let remark = |(tied, kept): (&String, &String)| {
        let (tied, kept) = (tied.shown(), kept.shown());
        format!("{tied} is {kept} in it: both begin with its values, and each is trained alone")
    };
    own.map(remark).collect()
}

/// Names of what is passed over that are said; the rest is counted.
const PASSED_OVER_MAX: usize = 8;
/// Classes that are named.
const NAMES_MAX: usize = 8;

fn not_tensors(names: &[String]) -> Option<String> {
    let shown: Vec<String> = names.iter().take(PASSED_OVER_MAX).map(|name| name.shown()).collect();
    let more = match names.len().checked_sub(PASSED_OVER_MAX + 1) {
        Some(more) => format!(" and {} more", more + 1),
        None => String::new(),
    };
    let are = if names.len() == 1 { "is no tensor" } else { "are no tensors" };
    (!names.is_empty()).then(|| format!("{}{more} {are}: passed over", shown.join(", ")))
}
