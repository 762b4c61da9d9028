//! Fetches the weights of layers that have been read, each tensor once.

use std::collections::HashMap;

use crate::model::{LayerKind, Layout, TensorKind, TensorSpec};

use super::error::OnnxError;
use super::state::{Draft, Weight};
use super::stored::{Beside, ELEMENTS_MAX, floats};
use super::value::Held;

/// Elements of norms and biases that the file holds once and layers share, and of those it holds
/// as one value: each layer gets its own.
const COPIES_MAX: usize = 1 << 24;

/// The tensors of a file, as layers ask for them.
pub(super) struct Taken<'f> {
    beside: &'f Beside<'f>,
    /// Tensors that several layers had in common.
    pub copied: usize,
    /// Elements that are in no file, or more than once in the model.
    copies: usize,
    /// The node that has a tensor of the file already, with the values of those that are shared.
    users: HashMap<usize, (usize, Vec<f32>)>,
}

impl<'f> Taken<'f> {
    /// Nothing yet; `beside` reads other files.
    pub fn from(beside: &'f Beside<'f>) -> Self {
        Self { beside, copied: 0, copies: 0, users: HashMap::new() }
    }

    /// Both flat vectors: parameters and statistics.
    pub fn all(
        &mut self,
        drafts: &[Draft<'_>],
        layout: &Layout,
    ) -> Result<(Vec<f32>, Vec<f32>), OnnxError> {
        let elements = layout.parameters.saturating_add(layout.statistics);
        if elements > ELEMENTS_MAX {
            let what = "elements of all tensors";
            return Err(OnnxError::TooMany { what, found: elements, most: ELEMENTS_MAX });
        }
        let (mut parameters, mut statistics) = (Vec::new(), Vec::new());
        for tensor in &layout.tensors {
            let draft = &drafts[tensor.node];
            let part = tensor.name.rsplit('.').next().unwrap_or_default();
            let values = match draft.weights.iter().find(|(own, _)| *own == part) {
                Some((_, Weight::Held(held))) => self.held(held, draft, tensor, part)?,
                Some((_, Weight::Fill(value))) => {
                    self.copy(tensor.elements())?;
                    vec![*value; tensor.elements()]
                }
                None => Vec::new(),
            };
            let wrong = match values.len() == tensor.elements() {
                true => tensor.unsound(&values).map(|wrong| format!("it holds {wrong}")),
                false => Some("a value in it is missing".into()),
            };
            if let Some(reason) = wrong {
                return Err(OnnxError::Tensor { name: tensor.name.clone(), reason });
            }
            match tensor.kind {
                TensorKind::Statistic => statistics.extend(values),
                _ => parameters.extend(values),
            }
        }
        Ok((parameters, statistics))
    }

    fn held(
        &mut self,
        held: &Held<'_>,
        draft: &Draft<'_>,
        tensor: &TensorSpec,
        part: &str,
    ) -> Result<Vec<f32>, OnnxError> {
        let refuse = |reason: String| {
            let name = held.tensor.name.to_owned();
            Err(OnnxError::Tensor { name, reason })
        };
        if held.dims() != tensor.shape {
            let (found, wanted) = (held.dims(), &tensor.shape);
            return refuse(format!("shape {found:?}, its layer needs {wanted:?}"));
        }
        let weighs = matches!(draft.kind, LayerKind::Conv(_) | LayerKind::Linear { .. });
        let is_own = weighs && part == "weight";
        if let Some((user, values)) = self.users.get(&held.origin) {
            if is_own || values.len() != tensor.elements() {
                return refuse(format!(
                    "two layers have it (nodes {user} and {}): each layer here has weights of its \
                     own",
                    draft.node
                ));
            }
            // Equal norms, which an exporter has merged.
            let values = values.clone();
            self.copied += 1;
            self.copy(values.len())?;
            return Ok(values);
        }
        let values = floats(&held.tensor, self.beside)?;
        let values = if held.transposed { turned(&values, &tensor.shape) } else { values };
        let kept = if is_own { Vec::new() } else { values.clone() };
        self.users.insert(held.origin, (draft.node, kept));
        Ok(values)
    }

    fn copy(&mut self, elements: usize) -> Result<(), OnnxError> {
        self.copies = self.copies.saturating_add(elements);
        match self.copies {
            0..=COPIES_MAX => Ok(()),
            found => {
                let what = "elements that layers share";
                Err(OnnxError::TooMany { what, found, most: COPIES_MAX })
            }
        }
    }
}

/// Rows of `shape` from its columns.
fn turned(columns: &[f32], shape: &[usize]) -> Vec<f32> {
    let [rows, width] = shape[..] else { return Vec::new() };
    (0..rows).flat_map(|row| (0..width).map(move |at| columns[at * rows + row])).collect()
}
