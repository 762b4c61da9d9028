//! Which of a file's tensors is which of the model's. Wrappers put prefixes before all names or
//! before those of a part, and beside a model lie tensors that are not its own: of a loss, counts.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::Shown;
use crate::train::checkpoint::differences::is_ignored;
use crate::train::checkpoint::tensors::TensorError;

use super::file::Foreign;
use super::tensor::Tensor;

/// What PyTorch's wrappers put into names (`DataParallel`, `torch.compile`).
const WRAPPERS: [&str; 2] = ["module", "_orig_mod"];
/// What programs call a loss that lies within a model. One with weights for classes has a tensor.
const LOSSES: [&str; 5] = ["criterion", "loss", "loss_fn", "loss_func", "loss_function"];
/// Prefixes of parts, each taken off.
const PREFIXES_MAX: usize = 8;
/// Old files of torchvision's DenseNets write `norm.1` where its models have `norm1`.
const OLD_PARTS: [&str; 4] = ["norm.1.", "norm.2.", "conv.1.", "conv.2."];

/// A file's tensors by the model's names.
#[derive(Debug, Default)]
pub(super) struct Matched<'f, 'a> {
    pub found: BTreeMap<String, &'f Tensor<'a>>,
    /// What was done, a sentence each.
    pub remarks: Vec<String>,
}

/// A tensor's name taken apart.
struct Parted<'f, 'a> {
    tensor: &'f Tensor<'a>,
    /// Its name without wrappers, where only so it is the model's.
    within: bool,
    /// What stands before the model's name for it.
    prefix: String,
    /// The model's name for it; `None`: it has none.
    own: Option<String>,
}

/// Finds the model's tensors. `needed` are those that a file must have. Where they are not all
/// there, or more is than a model may have beside, each keeps its name, less what stands before
/// all: what differs is to be listed.
///
/// # Errors
/// A tensor is there twice, or the whole model is.
pub(super) fn matched<'f, 'a>(
    file: &'f Foreign<'a>,
    names: &BTreeSet<&str>,
    needed: &BTreeSet<&str>,
) -> Result<Matched<'f, 'a>, TensorError> {
    let all: Vec<Parted<'f, 'a>> =
        file.tensors.iter().map(|tensor| parted(tensor, names)).collect();
    let mut own: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for Parted { prefix, own: name, .. } in &all {
        own.entry(prefix).or_default().extend(name.as_deref());
    }
    own.retain(|_, own| !own.is_empty());
    let mut whole = own.iter().filter(|(_, own)| needed.is_subset(own)).map(|(prefix, _)| *prefix);
    let prefixes = match (whole.next(), whole.next()) {
        (Some(first), Some(second)) => return Err(twice(first, second)),
        (Some(only), None) => BTreeSet::from([only]),
        (None, _) => own.keys().copied().collect(),
    };
    let of_parts = prefixes.len() == 1 || prefixes.iter().all(|prefix| is_wrapper(prefix));
    let taken = match of_parts && prefixes.len() <= PREFIXES_MAX {
        true => taken(file, &all, &prefixes)?,
        false => None,
    };
    let is_whole =
        |taken: &Matched<'_, '_>| needed.iter().all(|name| taken.found.contains_key(*name));
    match taken.filter(is_whole) {
        Some(taken) => Ok(taken),
        None => as_it_is(file, &own, names),
    }
}

/// The longest name of the model that a tensor's ends with, its wrappers left out or not.
fn parted<'f, 'a>(tensor: &'f Tensor<'a>, names: &BTreeSet<&str>) -> Parted<'f, 'a> {
    let unwrapped = without_wrappers(&tensor.name);
    let forms = [(true, unwrapped.as_str()), (false, tensor.name.as_str())];
    let known = |(within, form): (bool, &str)| {
        let starts = std::iter::once(0).chain(form.match_indices('.').map(|(at, _)| at + 1));
        starts.into_iter().find_map(|at| {
            let own = today(&form[at..], names);
            let prefix = form[..at].to_owned();
            names.contains(own.as_str()).then_some(Parted {
                tensor,
                within,
                prefix,
                own: Some(own),
            })
        })
    };
    let length = |parted: &Parted<'_, '_>| parted.own.as_ref().map(String::len);
    let none = || Parted { tensor, within: false, prefix: String::new(), own: None };
    forms.into_iter().filter_map(known).max_by_key(length).unwrap_or_else(none)
}

fn without_wrappers(name: &str) -> String {
    let parts = name.split('.').filter(|part| !WRAPPERS.contains(part));
    parts.collect::<Vec<&str>>().join(".")
}

/// Whether a prefix may stand before a part of the names: nothing, or what ends with a wrapper.
fn is_wrapper(prefix: &str) -> bool {
    let last = prefix.strip_suffix('.').and_then(|prefix| prefix.rsplit('.').next());
    prefix.is_empty() || last.is_some_and(|last| WRAPPERS.contains(&last))
}

/// The tensors behind these prefixes, and what lies beside. `None`: something is behind one of them
/// that the model has not.
fn taken<'f, 'a>(
    file: &Foreign<'_>,
    all: &[Parted<'f, 'a>],
    prefixes: &BTreeSet<&str>,
) -> Result<Option<Matched<'f, 'a>>, TensorError> {
    let mut found = BTreeMap::new();
    let mut beside = Vec::new();
    let mut counts: BTreeMap<(bool, &str), usize> = BTreeMap::new();
    for Parted { tensor, within, prefix, own } in all {
        let name = tensor.name.as_str();
        if let Some(own) = own.as_ref().filter(|_| prefixes.contains(prefix.as_str())) {
            insert(&mut found, own.clone(), tensor)?;
            *counts.entry((*within, prefix)).or_default() += 1;
        } else if !is_ignored(name) && !file.tied.contains_key(name) {
            let plain = without_wrappers(name);
            let behind = |form: &str| {
                let own = prefixes.iter().filter_map(|prefix| form.strip_prefix(*prefix));
                let mut own = own.map(|own| own.split('.').next().unwrap_or_default());
                own.any(|first| !LOSSES.contains(&first))
            };
            if behind(name) || behind(&plain) {
                return Ok(None);
            }
            beside.push(name.shown());
        }
    }
    let mut remarks: Vec<String> = counts
        .iter()
        .filter_map(|((within, prefix), count)| {
            let is_before_all =
                |prefix: &str| all.iter().all(|parted| parted.tensor.name.starts_with(prefix));
            let before = |prefix: &str| match is_before_all(prefix) {
                true => format!("every name begins with `{}`: taken off", prefix.shown()),
                false => format!("{count} names begin with `{}`: taken off", prefix.shown()),
            };
            match (within, *prefix) {
                (false, "") => None,
                (false, prefix) => Some(before(prefix)),
                (true, "") => Some(format!("{count} names have a wrapper's `module.` within")),
                (true, prefix) => Some(before(prefix)),
            }
        })
        .collect();
    if !beside.is_empty() {
        remarks.push(format!("{} beside the model: passed over", beside.join(", ")));
    }
    Ok(Some(Matched { found, remarks }))
}

/// Names less what stands before all of them.
fn as_it_is<'f, 'a>(
    file: &'f Foreign<'a>,
    own: &BTreeMap<&str, BTreeSet<&str>>,
    names: &BTreeSet<&str>,
) -> Result<Matched<'f, 'a>, TensorError> {
    let before_all = |prefix: &&&str| file.tensors.iter().all(|t| t.name.starts_with(**prefix));
    let prefix = own.keys().find(before_all).copied().unwrap_or_default();
    let mut found = BTreeMap::new();
    for tensor in &file.tensors {
        let name = today(tensor.name.strip_prefix(prefix).unwrap_or(&tensor.name), names);
        insert(&mut found, name, tensor)?;
    }
    Ok(Matched { found, remarks: Vec::new() })
}

fn insert<'f, 'a>(
    found: &mut BTreeMap<String, &'f Tensor<'a>>,
    own: String,
    tensor: &'f Tensor<'a>,
) -> Result<(), TensorError> {
    let (name, again) = (own.shown(), tensor.name.shown());
    match found.insert(own, tensor) {
        None => Ok(()),
        Some(first) => Err(TensorError::Refused(format!(
            "two of its tensors are called {name}: {} and {again}",
            first.name.shown()
        ))),
    }
}

/// The refusal of a file that holds the model twice.
fn twice(first: &str, second: &str) -> TensorError {
    let word = |prefix: &str| match prefix {
        "" => "without a prefix".to_owned(),
        prefix => format!("with `{}` before its names", prefix.shown()),
    };
    let (one, other) = (word(first), word(second));
    TensorError::Refused(format!(
        "it holds the model twice, {one} and {other}: write one of them alone into a file, in \
         Python those of `for name, tensor in weights.items() if name.startswith(PREFIX)`"
    ))
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
