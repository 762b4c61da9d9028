//! What a collective computes: always in rank order, so that a replaced world computes the bits
//! of the old one.

use super::state::{Kind, Payload};

/// Combines the parts of a collective, given in ascending rank order.
pub(super) fn combine<'a>(
    kind: Kind,
    parts: impl Iterator<Item = (usize, &'a Payload)>,
) -> Payload {
    match kind {
        Kind::Warm => Payload::Empty,
        Kind::Broadcast { root } => parts
            .filter(|(rank, _)| *rank == root)
            .map(|(_, payload)| payload.clone())
            .next()
            .unwrap_or(Payload::Empty),
        Kind::Gather => Payload::U64(
            parts
                .flat_map(|(_, payload)| match payload {
                    Payload::U64(words) => words.clone(),
                    _ => Vec::new(),
                })
                .collect(),
        ),
        Kind::Reduce => {
            let whole = parts.map(|(_, payload)| payload.clone());
            whole.reduce(|sum, part| add(sum, &part)).unwrap_or(Payload::Empty)
        }
        Kind::Meet => {
            let words = parts.flat_map(|(_, payload)| match payload {
                Payload::U64(words) => words.as_slice(),
                _ => &[],
            });
            Payload::U64(words.copied().max().into_iter().collect())
        }
    }
}

/// Integers wrap.
fn add(mut sum: Payload, part: &Payload) -> Payload {
    match (&mut sum, part) {
        (Payload::F32(a), Payload::F32(b)) => fold(a, b, |x, y| x + y),
        (Payload::U64(a), Payload::U64(b)) => fold(a, b, u64::wrapping_add),
        (Payload::I32(a), Payload::I32(b)) => fold(a, b, i32::wrapping_add),
        (Payload::I64(a), Payload::I64(b)) => fold(a, b, i64::wrapping_add),
        _ => unreachable!("calls that do not match never get here"),
    }
    sum
}

fn fold<E: Copy>(sum: &mut [E], part: &[E], combine: impl Fn(E, E) -> E) {
    for (sum, part) in sum.iter_mut().zip(part) {
        *sum = combine(*sum, *part);
    }
}
