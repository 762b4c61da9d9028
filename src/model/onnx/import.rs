//! A file as a graph of our layers with its weights.

use std::collections::{BTreeMap, HashSet};

use crate::config::Shown;
use crate::model::spec::GraphBuilder;
use crate::model::{Graph, Layout, Shape, layout};

use super::error::OnnxError;
use super::names;
use super::proto::{End, Model, is_fraction};
use super::state::{Draft, State};
use super::stored::Beside;
use super::taken::Taken;
use super::value::{Dim, Flow, Value, shown};
use super::walk::walk;

/// Weight of the loss of each further output (Szegedy et al. 2015, section 5).
pub const HEAD_WEIGHT: f32 = 0.3;
/// Oldest version of the operators whose meaning is known here: 7 has today's broadcasting.
const OPSET_MIN: i64 = 7;

/// A model file that was read whole.
#[derive(Debug, Clone)]
pub struct Imported {
    /// The layers.
    pub graph: Graph,
    /// Where its tensors lie.
    pub layout: Layout,
    /// Trained elements, in the order of the layout.
    pub parameters: Vec<f32>,
    /// Running statistics.
    pub statistics: Vec<f32>,
    /// Convolutions that have a norm in them, by the exporter.
    pub folded: usize,
    /// Norms of which the file says that their statistics never move, or forget all of the past:
    /// they have `MOMENTUM`.
    pub without_momentum: usize,
    /// Tensors that the file holds once for several layers.
    pub copied: usize,
    /// Who wrote the file.
    pub producer: String,
    /// What it says of the model, by name; of files of our own, whose words are known.
    pub about: BTreeMap<String, String>,
}

/// Reads a file. `given` is the shape of an image where the file leaves it open; `beside` reads
/// files that lie beside it.
///
/// # Errors
/// The first node that is no layer here, and why; a graph with a loop; tensors that do not fit.
pub fn import(
    name: &str,
    file: &[u8],
    given: Option<Shape>,
    beside: &Beside<'_>,
) -> Result<Imported, OnnxError> {
    let model = Model::read(file)?;
    let opset = model.opset.unwrap_or_default();
    if opset < OPSET_MIN {
        let text = format!("operators of version {opset}; {OPSET_MIN} or newer are read");
        return Err(OnnxError::Format(text));
    }
    let (input, image, batch) = input(&model, given)?;
    let mut state = State::new(&model, input, image, batch);
    walk(&mut state)?;
    let outputs = outputs(&state)?;
    let (drafts, outputs) = reached(&state.drafts, &outputs);
    let names = names::of(&model, &drafts);
    let graph = graph(name, &state, &drafts, &names, &outputs)?;
    let State { folded, without_momentum, .. } = state;
    let layout = layout::of(&graph);
    let mut taken = Taken::from(beside);
    let (parameters, statistics) = taken.all(&drafts, &layout)?;
    let (producer, copied) = (model.producer.to_owned(), taken.copied);
    let about =
        model.texts.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect();
    Ok(Imported {
        graph,
        layout,
        parameters,
        statistics,
        folded,
        without_momentum,
        copied,
        producer,
        about,
    })
}

/// Name and shape of the one input, and its number of samples.
fn input<'a>(model: &Model<'a>, given: Option<Shape>) -> Result<(&'a str, Shape, Dim), OnnxError> {
    let refuse = |reason: String| Err(OnnxError::Ends(reason));
    let held: HashSet<&str> = model.tensors.iter().map(|t| t.name).collect();
    let free: Vec<&End<'a>> = model.inputs.iter().filter(|end| !held.contains(end.name)).collect();
    let [end] = free[..] else {
        return refuse(format!("{} inputs; one, of images, is taken only", free.len()));
    };
    let name = end.name.shown();
    if !is_fraction(end.kind) {
        let text = "float32, float16 and bfloat16 are taken only";
        return refuse(format!("{name} has element type {}; {text}", end.kind));
    }
    // An input without a shape: whatever is given.
    let open = [None; 4];
    let dims = if end.dims.is_empty() { &open } else { &end.dims[..] };
    let [samples, sizes @ ..] = dims else { unreachable!("one extent at least") };
    let Ok(sizes) = <[Option<i64>; 3]>::try_from(sizes.to_vec()) else {
        let text = format!(
            "{name} has {} extents; samples, channels, height, width are taken only",
            end.dims.len()
        );
        return refuse(text);
    };
    let mut image = [0; 3];
    for (at, size) in sizes.into_iter().enumerate() {
        let size = size.and_then(|size| usize::try_from(size).ok());
        let size = size.or(given.map(|given| given[at]));
        let Some(size) = size else {
            return refuse(format!("{name} is of any size: give --input 3x224x224"));
        };
        if given.is_some_and(|given| given[at] != size) {
            return refuse(format!(
                "{name} has the size {size} where {} is given: export for other images",
                given.unwrap_or_default()[at]
            ));
        }
        image[at] = size;
    }
    Ok((end.name, image, samples.map_or(Dim::Batch, Dim::Known)))
}

/// The layers of the outputs, the first first: the logits, then classifiers within the model.
fn outputs(state: &State<'_>) -> Result<Vec<usize>, OnnxError> {
    let mut outputs = Vec::new();
    for end in &state.model.outputs {
        let refuse = |reason: String| OnnxError::Ends(format!("{} {reason}", end.name.shown()));
        let value = state.values.get(end.name);
        let value = value.ok_or_else(|| refuse("is made by no node".into()))?;
        let Value::Flow(flow @ Flow { from: Some(from), dims }) = value else {
            return Err(refuse(format!("is {}", value.about())));
        };
        if !state.is_plain(flow) || state.drafts[*from].shape[1..] != [1, 1] {
            return Err(refuse(format!("is {}: [N, classes] is taken only", shown(dims))));
        }
        outputs.push(*from);
    }
    match outputs.len() {
        0 => Err(OnnxError::Ends("the model gives nothing".into())),
        _ => Ok(outputs),
    }
}

/// The layers that the outputs need, the logits last; the outputs among them.
fn reached<'a>(drafts: &[Draft<'a>], outputs: &[usize]) -> (Vec<Draft<'a>>, Vec<usize>) {
    let mut needed = vec![false; drafts.len()];
    outputs.iter().for_each(|&output| needed[output] = true);
    for at in (0..drafts.len()).rev() {
        if needed[at] {
            drafts[at].inputs.iter().flatten().for_each(|&input| needed[input] = true);
        }
    }
    let mut order: Vec<usize> = (0..drafts.len()).filter(|&at| needed[at]).collect();
    // Nobody reads the logits: they may come last.
    order.retain(|&at| at != outputs[0]);
    order.push(outputs[0]);
    let mut places = vec![0; drafts.len()];
    order.iter().enumerate().for_each(|(place, &at)| places[at] = place);
    let kept = order.iter().map(|&at| {
        let inputs = drafts[at].inputs.iter().map(|input| input.map(|at| places[at])).collect();
        Draft { inputs, ..drafts[at].clone() }
    });
    (kept.collect(), outputs.iter().map(|&at| places[at]).collect())
}

fn graph(
    name: &str,
    state: &State<'_>,
    drafts: &[Draft<'_>],
    names: &[String],
    outputs: &[usize],
) -> Result<Graph, OnnxError> {
    let classes = drafts.last().map_or(0, |draft| draft.shape[0]);
    let mut builder = GraphBuilder::new(name, state.image, classes);
    for (draft, name) in drafts.iter().zip(names) {
        builder.node(name, draft.kind.clone(), &draft.inputs);
    }
    outputs.iter().skip(1).for_each(|&output| builder.head(output, HEAD_WEIGHT));
    Ok(builder.finish()?)
}

#[cfg(test)]
#[path = "import_tests.rs"]
mod tests;
