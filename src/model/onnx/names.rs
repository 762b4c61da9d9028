//! What layers are called: as torch calls the module, so that a state_dict of the same module fits.

use std::collections::{HashMap, HashSet};

use super::proto::Model;
use super::state::{Draft, Weight};

/// Longer names are not taken.
const BYTES_MAX: usize = 256;
/// Dots of a name that are looked at.
const DEPTH_MAX: usize = 16;

/// A name for every layer. Those with tensors choose first.
pub(super) fn of(model: &Model<'_>, drafts: &[Draft<'_>]) -> Vec<String> {
    let containers = containers(model);
    let mut taken = Taken::default();
    let mut names = vec![String::new(); drafts.len()];
    for weighted in [true, false] {
        for (draft, name) in drafts.iter().zip(&mut names) {
            if draft.weights.is_empty() != weighted {
                *name = taken.unique(&wish(model, draft, &containers));
            }
        }
    }
    names
}

#[derive(Default)]
struct Taken {
    names: HashSet<String>,
    counts: HashMap<String, usize>,
}

impl Taken {
    /// The name, or with the first number that makes it another.
    fn unique(&mut self, wish: &str) -> String {
        let count = self.counts.entry(wish.to_owned()).or_insert(0);
        loop {
            *count += 1;
            let name = if *count == 1 { wish.to_owned() } else { format!("{wish}_{count}") };
            // Ends: there are more numbers than names.
            if name != "image" && self.names.insert(name.clone()) {
                return name;
            }
        }
    }
}

fn wish(model: &Model<'_>, draft: &Draft<'_>, containers: &HashSet<&str>) -> String {
    let own = draft.weights.iter().find_map(|(part, weight)| match weight {
        Weight::Held(held) if *part == "weight" => held.name.strip_suffix(".weight"),
        _ => None,
    });
    if let Some(own) = own.filter(|own| !own.is_empty() && own.len() <= BYTES_MAX) {
        return own.to_owned();
    }
    let node = &model.nodes[draft.node];
    let path = path(node.name, node.scopes);
    let kind = draft.kind.name();
    match path.as_str() {
        "" => kind.to_owned(),
        path if containers.contains(path) && draft.weights.is_empty() => format!("{path}.{kind}"),
        path => path.to_owned(),
    }
}

/// Names of modules that hold others with tensors, and of those.
fn containers<'a>(model: &Model<'a>) -> HashSet<&'a str> {
    let names = model.tensors.iter().map(|tensor| tensor.name);
    let names = names.filter(|name| name.len() <= BYTES_MAX);
    names
        .flat_map(|name| name.match_indices('.').take(DEPTH_MAX).map(|(at, _)| &name[..at]))
        .collect()
}

/// The module's path: what torch wrote beside the node, or its name, `/layer1/layer1.0/conv1/Conv`.
fn path(name: &str, scopes: &str) -> String {
    let found = match scopes {
        "" => of_name(name),
        scopes => of_scopes(scopes),
    };
    found.filter(|path| path.len() <= BYTES_MAX).unwrap_or_default()
}

/// Of `['', 'layer1', 'layer1.0', 'conv2d']`: the last but one is the module.
fn of_scopes(scopes: &str) -> Option<String> {
    let mut parts = scopes.trim_matches(['[', ']']).rsplit(", ");
    let module = parts.nth(1)?.trim_matches('\'');
    (!module.starts_with('_')).then(|| module.to_owned())
}

/// Of `/layer1/layer1.0/conv1/Conv`: a step that begins with the one before it stands for both.
fn of_name(name: &str) -> Option<String> {
    let (scopes, _) = name.strip_prefix('/')?.rsplit_once('/')?;
    let (mut path, mut last) = (String::new(), "");
    for step in scopes.split('/') {
        match step.strip_prefix(last).filter(|rest| !last.is_empty() && rest.starts_with('.')) {
            Some(rest) => path.push_str(rest),
            None if path.is_empty() => path.push_str(step),
            None => {
                path.push('.');
                path.push_str(step);
            }
        }
        last = step;
    }
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_torchs() {
        for (name, scopes, path_of) in [
            ("/layer1/layer1.0/conv1/Conv", "", "layer1.0.conv1"),
            ("/features/features.0/features.0.1/Relu", "", "features.0.1"),
            ("/Add", "", ""),
            ("Add_7", "", ""),
            ("node_relu", "['', 'layer1', 'layer1.0', 'layer1.0.relu', 'relu_1']", "layer1.0.relu"),
            ("node_mean", "['', 'mean']", ""),
            ("x", "['_empty_nn_module_stack_from_metadata_hook', 'sym']", ""),
        ] {
            assert_eq!(path(name, scopes), path_of, "{name} {scopes}");
        }
    }

    #[test]
    fn equal_wishes_are_numbered() {
        let mut taken = Taken::default();
        let names = ["relu", "relu", "relu_2", "relu", "image"];
        let names = names.map(|name| taken.unique(name));
        assert_eq!(names, ["relu", "relu_2", "relu_2_2", "relu_3", "image_2"]);
    }
}
