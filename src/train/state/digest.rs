//! `state_sha256`: the one number by which two runs are compared. It covers the
//! tensors, the optimizer's tensors, step, cursor, seed and order state; not generation, times,
//! paths, faults or the run's name.

use sha2::{Digest, Sha256};

use crate::model::{Layout, TensorKind, TensorSpec};

/// Where a run stands in its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Whereabouts<'a> {
    /// Committed steps.
    pub step: u64,
    /// Committed samples.
    pub cursor: u64,
    /// `run.seed`.
    pub seed: u64,
    /// What else the order depends on (the sampler's words; none for a pure order).
    pub order: &'a [u64],
}

/// Lower-case hex SHA-256 over the tensors sorted by name (name, dtype, shape, little-endian
/// bytes), the tensors of each of the optimizer's parts likewise (running statistics where they lie
/// behind its parameters), and the position. Every part is preceded by its length, so no two states
/// give the same bytes.
pub fn state_sha256(
    layout: &Layout,
    parameters: &[f32],
    statistics: &[f32],
    optimizer: &[&[f32]],
    position: Whereabouts<'_>,
) -> String {
    let mut sorted: Vec<&TensorSpec> = layout.tensors.iter().collect();
    sorted.sort_by(|a, b| a.name.cmp(&b.name));
    let of = |statistic: bool| {
        let kind = move |t: &&&TensorSpec| (t.kind == TensorKind::Statistic) == statistic;
        sorted.iter().filter(kind)
    };
    let mut hasher = Sha256::new();
    hash_text(&mut hasher, "kintsugi state 1");
    hash_number(&mut hasher, sorted.len() as u64);
    for tensor in &sorted {
        let values = if tensor.kind == TensorKind::Statistic { statistics } else { parameters };
        hash_tensor(&mut hasher, tensor, values);
    }
    for part in optimizer {
        let (trained, statistics) = part.split_at(layout.parameters);
        for (kind, values) in [(false, trained), (true, statistics)] {
            if kind && values.is_empty() {
                continue;
            }
            hash_number(&mut hasher, of(kind).count() as u64);
            of(kind).for_each(|tensor| hash_tensor(&mut hasher, tensor, values));
        }
    }
    for word in [position.step, position.cursor, position.seed, position.order.len() as u64] {
        hash_number(&mut hasher, word);
    }
    for &word in position.order {
        hash_number(&mut hasher, word);
    }
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn hash_number(hasher: &mut Sha256, number: u64) {
    hasher.update(number.to_le_bytes());
}

fn hash_text(hasher: &mut Sha256, text: &str) {
    hash_number(hasher, text.len() as u64);
    hasher.update(text);
}

fn hash_tensor(hasher: &mut Sha256, tensor: &TensorSpec, values: &[f32]) {
    hash_text(hasher, &tensor.name);
    hash_text(hasher, "F32");
    hash_number(hasher, tensor.shape.len() as u64);
    for &extent in &tensor.shape {
        hash_number(hasher, extent as u64);
    }
    let elements: usize = tensor.shape.iter().product();
    let mut bytes = [0u8; 4096];
    for part in values[tensor.offset..tensor.offset + elements].chunks(bytes.len() / 4) {
        for (four, value) in bytes.chunks_exact_mut(4).zip(part) {
            four.copy_from_slice(&value.to_le_bytes());
        }
        hasher.update(&bytes[..part.len() * 4]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tensor(name: &str, shape: &[usize], offset: usize, kind: TensorKind) -> TensorSpec {
        TensorSpec { name: name.into(), shape: shape.to_vec(), offset, kind, node: 0 }
    }

    fn layout() -> Layout {
        let tensors = vec![
            tensor("fc.weight", &[2, 3], 0, TensorKind::Weight),
            tensor("fc.bias", &[2], 6, TensorKind::Bias),
            tensor("bn.running_mean", &[2], 0, TensorKind::Statistic),
        ];
        Layout { tensors, parameters: 8, statistics: 2 }
    }

    const AT: Whereabouts<'_> = Whereabouts { step: 3, cursor: 96, seed: 1, order: &[] };
    const W: [f32; 8] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
    const V: [f32; 8] = [0.5; 8];
    const S: [f32; 2] = [0.25, -0.25];

    #[test]
    fn the_digest_is_stable_over_releases() {
        // The same bytes hashed by Python's hashlib, from the description above alone.
        let digest = state_sha256(&layout(), &W, &S, &[&V], AT);
        assert_eq!(digest, GOLDEN);
    }
    const GOLDEN: &str = "0212a6d9be987af4e434f6f2f742a9443a9b9f3a110ec948e217a75ff7e3e44f";

    #[test]
    fn the_order_of_tensors_in_memory_does_not_matter() {
        let mut moved = layout();
        moved.tensors = vec![
            tensor("bn.running_mean", &[2], 0, TensorKind::Statistic),
            tensor("fc.bias", &[2], 0, TensorKind::Bias),
            tensor("fc.weight", &[2, 3], 2, TensorKind::Weight),
        ];
        let w = [7.0, 8.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let expected = state_sha256(&layout(), &W, &S, &[&V], AT);
        assert_eq!(state_sha256(&moved, &w, &S, &[&V], AT), expected);
    }

    #[test]
    fn step_cursor_seed_and_order_count() {
        let digest = |at| state_sha256(&layout(), &W, &S, &[&V], at);
        let others = [
            Whereabouts { step: 4, ..AT },
            Whereabouts { cursor: 97, ..AT },
            Whereabouts { seed: 2, ..AT },
            Whereabouts { order: &[0], ..AT },
        ];
        assert!(others.iter().all(|&at| digest(at) != digest(AT)));
    }

    proptest! {
        #[test]
        fn every_bit_counts(index in 0usize..18, bit in 0u32..32) {
            let (mut w, mut v, mut s) = (W, V, S);
            let value = match index {
                0..8 => &mut w[index],
                8..16 => &mut v[index - 8],
                _ => &mut s[index - 16],
            };
            *value = f32::from_bits(value.to_bits() ^ 1 << bit);
            prop_assert_ne!(
                state_sha256(&layout(), &w, &s, &[&v], AT),
                state_sha256(&layout(), &W, &S, &[&V], AT)
            );
        }
    }
}
