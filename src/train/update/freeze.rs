//! What `model.freeze` keeps as it is. Its prefixes are whole parts of names: `conv1` is `conv1`
//! and what belongs to it, never `conv10`. A norm whose scale and shift are frozen keeps its
//! running statistics, too, and the engine normalises with them.

use thiserror::Error;

use crate::config::{Config, ExchangeKind, Shown};
use crate::model::{Layout, TensorKind, TensorSpec};

/// A prefix without a tensor is a typing error, not a wish.
#[derive(Debug, Clone, PartialEq, Error)]
#[error("model.freeze names \"{}\", but {reason}", prefix.shown())]
#[allow(missing_docs)]
pub struct FreezeError {
    pub prefix: String,
    pub reason: String,
}

/// Whether a name is, or begins with, all parts of the prefix. A dot at its end says the same.
fn covers(prefix: &str, name: &str) -> bool {
    let prefix = prefix.strip_suffix('.').unwrap_or(prefix);
    name.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Tensors of the layout, by their number, that stay as they are.
pub fn frozen(layout: &Layout, freeze: &[String]) -> Vec<bool> {
    let named = |name: &str| freeze.iter().any(|prefix| covers(prefix, name));
    let whole = |node: usize| {
        let own = layout.tensors.iter().filter(move |t| t.node == node);
        let mut own = own.filter(|t| t.kind != TensorKind::Statistic).peekable();
        own.peek().is_some() && own.all(|t| named(&t.name))
    };
    let is_frozen = |t: &TensorSpec| match t.kind {
        TensorKind::Statistic => whole(t.node),
        TensorKind::Weight | TensorKind::Bias => named(&t.name),
    };
    layout.tensors.iter().map(is_frozen).collect()
}

/// The same of a run. The asynchronous exchange does not act upon `model.freeze`.
pub fn frozen_in(config: &Config, layout: &Layout) -> Vec<bool> {
    match config.train.exchange {
        ExchangeKind::Asynchronous => vec![false; layout.tensors.len()],
        ExchangeKind::Synchronous => frozen(layout, &config.model.freeze),
    }
}

/// Refuses a prefix that names nothing that could be trained.
pub fn check_freeze(layout: &Layout, freeze: &[String]) -> Result<(), FreezeError> {
    for prefix in freeze {
        let own = |statistic: bool| {
            let kind = layout.tensors.iter().filter(move |t| {
                (t.kind == TensorKind::Statistic) == statistic && covers(prefix, &t.name)
            });
            kind.count()
        };
        if own(false) > 0 {
            continue;
        }
        let reason = match own(true) {
            0 => format!("{}; a prefix is whole parts of a name", unknown(layout, prefix)),
            _ => "running statistics follow their norm: name its weight and bias".into(),
        };
        return Err(FreezeError { prefix: prefix.clone(), reason });
    }
    Ok(())
}

/// What there is instead.
fn unknown(layout: &Layout, prefix: &str) -> String {
    let begins = layout.tensors.iter().find(|t| t.name.starts_with(prefix) && !prefix.is_empty());
    match begins {
        Some(tensor) => {
            let more = tensor.name[prefix.len()..].find('.').unwrap_or(tensor.name.len());
            let part = tensor.name.get(..prefix.len() + more).unwrap_or(&tensor.name);
            format!("no layer or tensor is called so (there is {})", part.shown())
        }
        None => {
            let first = layout.tensors.first().map_or("", |t| &t.name);
            format!("no tensor of the model begins so (the first is {})", first.shown())
        }
    }
}

/// What is frozen, in one sentence; nothing of nothing.
pub fn remark(layout: &Layout, frozen: &[bool]) -> Option<String> {
    let tensors = || layout.tensors.iter().zip(frozen);
    let of = |statistic: bool| {
        tensors().filter(move |(t, _)| (t.kind == TensorKind::Statistic) == statistic)
    };
    let kept = of(false).filter(|(_, frozen)| **frozen);
    let (number, elements) =
        kept.fold((0, 0), |(n, elements), (t, _)| (n + 1, elements + t.elements()));
    if number == 0 {
        return None;
    }
    let norms = of(true).filter(|(t, frozen)| **frozen && t.name.ends_with(".running_mean"));
    let norms = match norms.count() {
        0 => String::new(),
        1 => "; 1 norm keeps its running statistics and normalises with them".into(),
        n => format!("; {n} norms keep their running statistics and normalise with them"),
    };
    Some(format!(
        "model.freeze: {number} of {} tensors ({elements} of {} parameters) are not trained{norms}",
        of(false).count(),
        layout.parameters,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{catalogue, layout};

    fn resnet() -> Layout {
        layout::of(&catalogue::build("resnet18", [3, 32, 32], 10, 1.0).expect("in the catalogue"))
    }

    fn names(freeze: &[&str]) -> Vec<String> {
        freeze.iter().map(|name| (*name).to_string()).collect()
    }

    fn kept(freeze: &[&str]) -> Vec<String> {
        let layout = resnet();
        let frozen = frozen(&layout, &names(freeze));
        let pairs = layout.tensors.iter().zip(frozen).filter(|(_, frozen)| *frozen);
        pairs.map(|(t, _)| t.name.clone()).collect()
    }

    #[test]
    fn a_prefix_is_whole_parts_of_a_name() {
        for (prefix, name, covered) in [
            ("conv1", "conv1.weight", true),
            ("conv1.", "conv1.weight", true),
            ("conv1", "conv10.weight", false),
            ("conv1.weight", "conv1.weight", true),
            ("layer1", "layer1.0.conv1.weight", true),
            ("layer1.0", "layer1.0.conv1.weight", true),
            ("layer1.0.conv", "layer1.0.conv1.weight", false),
        ] {
            assert_eq!(covers(prefix, name), covered, "{prefix} {name}");
        }
    }

    #[test]
    fn a_norm_keeps_its_statistics_where_scale_and_shift_are_frozen() {
        let whole = ["bn1.weight", "bn1.bias", "bn1.running_mean", "bn1.running_var"];
        assert_eq!(kept(&["bn1"]), whole);
        assert_eq!(kept(&["bn1.bias", "bn1.weight"]), whole);
        assert_eq!(kept(&["bn1.bias"]), ["bn1.bias"]);
        assert!(kept(&[]).is_empty());
        assert_eq!(kept(&["layer1"]).len(), 4 + 4 * 4);
    }

    #[test]
    fn a_prefix_that_freezes_nothing_is_named_with_what_there_is() {
        let refused =
            |prefix: &str| check_freeze(&resnet(), &names(&[prefix])).map_err(|e| e.to_string());
        assert_eq!(refused("layer1.0"), Ok(()));
        let text = |prefix: &str| refused(prefix).expect_err(prefix);
        assert!(text("layer").contains("there is layer1)"), "{}", text("layer"));
        assert!(text("fcc").contains("\"fcc\"") && text("fcc").contains("conv1.weight"));
        assert!(text("bn1.running_mean").contains("weight and bias"));
        assert!(text("").contains("begins so"));
    }

    #[test]
    fn what_is_frozen_is_said_with_a_count() {
        let layout = resnet();
        let said = |freeze: &[&str]| remark(&layout, &frozen(&layout, &names(freeze)));
        assert_eq!(said(&[]), None);
        let text = said(&["conv1", "bn1"]).expect("something is frozen");
        assert!(text.starts_with("model.freeze: 3 of 62 tensors (9536 of "), "{text}");
        assert!(text.ends_with("; 1 norm keeps its running statistics and normalises with them"));
        assert!(said(&["fc"]).is_some_and(|text| text.ends_with("are not trained")));
    }
}
