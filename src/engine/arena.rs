//! Places values in one arena by their lifetimes: pure. Two values share memory only if one is
//! dead before the other is born, or if a step said that it may overwrite one with the other.

use kintsugi_ffi::dnnl::{Span, buffer::ALIGN_BYTES};

/// When a value lives: from the step that writes it to the last that reads it, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifetime {
    /// Size.
    pub bytes: usize,
    /// The step that writes it.
    pub first: usize,
    /// The last step that touches it.
    pub last: usize,
}

/// `to` may take the place of `from` in the step that reads one and writes the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overwrite {
    /// Read, then dead.
    pub from: usize,
    /// Written.
    pub to: usize,
}

/// Where every value lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// One span per value.
    pub spans: Vec<Span>,
    /// Bytes of the whole arena.
    pub bytes: usize,
}

/// Greedy by size: the largest first, each at the lowest offset that is free while it lives
/// (Pisarchyk and Lee 2020, section 5). `overwrites` are tried in order.
pub fn place(values: &[Lifetime], overwrites: &[Overwrite]) -> Placement {
    let (slots, slot_of) = merge(values, overwrites);
    let mut order: Vec<usize> = (0..slots.len()).collect();
    order.sort_by_key(|&at| (std::cmp::Reverse(slots[at].bytes), slots[at].first, at));
    let mut offsets = vec![0; slots.len()];
    let mut placed: Vec<usize> = Vec::new();
    let mut total = 0;
    for at in order {
        let slot = slots[at];
        let size = slot.bytes.next_multiple_of(ALIGN_BYTES);
        let mut busy: Vec<(usize, usize)> = placed
            .iter()
            .filter(|&&other| slots[other].first <= slot.last && slot.first <= slots[other].last)
            .map(|&other| (offsets[other], slots[other].bytes.next_multiple_of(ALIGN_BYTES)))
            .collect();
        busy.sort_unstable();
        let mut offset = 0;
        for (start, length) in busy {
            if offset + size <= start {
                break;
            }
            offset = offset.max(start + length);
        }
        offsets[at] = offset;
        total = total.max(offset + size);
        placed.push(at);
    }
    let span =
        |(value, &slot): (&Lifetime, &usize)| Span { offset: offsets[slot], bytes: value.bytes };
    Placement { spans: values.iter().zip(&slot_of).map(span).collect(), bytes: total }
}

/// Joins values that may overwrite one another into slots.
fn merge(values: &[Lifetime], overwrites: &[Overwrite]) -> (Vec<Lifetime>, Vec<usize>) {
    let mut slots = values.to_vec();
    let mut slot_of: Vec<usize> = (0..values.len()).collect();
    // A value that others share a slot with keeps it: it can no longer move into another's.
    let mut shared = vec![false; values.len()];
    for &Overwrite { from, to } in overwrites {
        let (source, target) = (values[from], values[to]);
        let root = slot_of[from];
        // What is written in a step cannot make room for another in the same step.
        let fits = source.last == target.first
            && source.first < target.first
            && slots[root].last == target.first
            && slots[root].bytes >= target.bytes
            && slot_of[to] == to
            && !shared[to]
            && from != to;
        if fits {
            slot_of[to] = root;
            shared[root] = true;
            slots[root].last = target.last;
        }
    }
    // Slots that were merged away keep no memory.
    let mut compact = Vec::new();
    let mut index = vec![usize::MAX; values.len()];
    for (at, &root) in slot_of.iter().enumerate() {
        if at == root {
            index[at] = compact.len();
            compact.push(slots[at]);
        }
    }
    (compact, slot_of.iter().map(|&root| index[root]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{Strategy, prop, prop_assert, proptest};

    fn lifetimes() -> impl Strategy<Value = Vec<Lifetime>> {
        let one = (1usize..5000, 0usize..40, 0usize..12)
            .prop_map(|(bytes, first, length)| Lifetime { bytes, first, last: first + length });
        prop::collection::vec(one, 1..60)
    }

    fn overlap(a: Span, b: Span) -> bool {
        a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes
    }

    proptest! {
        #[test]
        fn values_that_live_together_never_share_memory(
            values in lifetimes(),
            pairs in prop::collection::vec((0usize..60, 0usize..60), 0..40),
        ) {
            let overwrites: Vec<Overwrite> = pairs
                .into_iter()
                .map(|(from, to)| Overwrite { from: from % values.len(), to: to % values.len() })
                .collect();
            let placement = place(&values, &overwrites);
            for (i, a) in values.iter().enumerate() {
                prop_assert!(placement.spans[i].offset + a.bytes <= placement.bytes);
                for (j, b) in values.iter().enumerate().skip(i + 1) {
                    let together = a.first <= b.last && b.first <= a.last;
                    let allowed = overwrites.iter().any(|o| {
                        (o.from, o.to) == (i, j) && a.last == b.first
                            || (o.from, o.to) == (j, i) && b.last == a.first
                    });
                    let shared = overlap(placement.spans[i], placement.spans[j]);
                    prop_assert!(!(together && shared) || allowed, "{i} {j}");
                }
            }
        }
    }

    #[test]
    fn a_chain_of_overwrites_needs_one_place() {
        let value = |first, last| Lifetime { bytes: 1000, first, last };
        let values = [value(0, 1), value(1, 2), value(2, 3)];
        let chain = [Overwrite { from: 0, to: 1 }, Overwrite { from: 1, to: 2 }];
        assert_eq!(place(&values, &chain).bytes, 1024);
        assert_eq!(place(&values, &[]).bytes, 2048);
    }

    #[test]
    fn a_value_is_not_overwritten_in_the_step_that_writes_it() {
        let value = |first, last| Lifetime { bytes: 1000, first, last };
        let values = [value(0, 1), value(1, 1), value(1, 2)];
        let chain = [Overwrite { from: 0, to: 1 }, Overwrite { from: 1, to: 2 }];
        assert_eq!(place(&values, &chain).bytes, 2048);
    }

    #[test]
    fn a_value_that_is_read_later_is_not_overwritten() {
        let values =
            [Lifetime { bytes: 64, first: 0, last: 5 }, Lifetime { bytes: 64, first: 1, last: 2 }];
        assert_eq!(place(&values, &[Overwrite { from: 0, to: 1 }]).bytes, 128);
    }
}
