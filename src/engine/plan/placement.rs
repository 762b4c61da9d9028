//! Places values in one arena by their intervals of life: pure. Two intervals share memory only if
//! one ends before the other begins, or if a step said that it may overwrite one with the other.

pub use kintsugi_ffi::arena::{ALIGN_BYTES, Span};

use super::lifetime::{Interval, Value};

/// In a step that reads `from` and writes `to`, the latter may take the place of the former.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overwrite {
    /// Read, then dead.
    pub from: usize,
    /// Written.
    pub to: usize,
}

/// Where every value lies.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Placement {
    /// For every value one span per interval, in their order.
    pub spans: Vec<Vec<Span>>,
    /// Bytes of the whole arena.
    pub bytes: usize,
}

/// One interval of one value, to be placed.
#[derive(Debug, Clone, Copy)]
struct Item {
    bytes: usize,
    first: usize,
    last: usize,
}

/// Greedy by size: the largest first, each at the lowest offset that is free while it lives
/// (Pisarchyk and Lee 2020, section 5). `overwrites`, each with its step, are tried in order.
pub fn place(
    values: &[Value],
    overwrites: impl IntoIterator<Item = (usize, Overwrite)>,
) -> Placement {
    let mut items = Vec::new();
    let mut first_item = Vec::with_capacity(values.len());
    for value in values {
        first_item.push(items.len());
        let item = |i: &Interval| Item { bytes: value.bytes, first: i.first, last: i.last };
        items.extend(value.intervals.iter().map(item));
    }
    let interval = |value: usize, at: fn(&Interval) -> usize, step: usize| {
        let index = values[value].intervals.iter().position(|i| at(i) == step)?;
        Some(first_item[value] + index)
    };
    let pairs: Vec<(usize, usize)> = overwrites
        .into_iter()
        .filter_map(|(step, Overwrite { from, to })| {
            Some((interval(from, |i| i.last, step)?, interval(to, |i| i.first, step)?))
        })
        .collect();
    let (slots, slot_of) = merge(&items, &pairs);
    let (offsets, bytes) = pack(&slots);
    let span =
        |value: &Value, item: usize| Span { offset: offsets[slot_of[item]], bytes: value.bytes };
    let spans = values.iter().zip(&first_item).map(|(value, &first)| {
        (first..first + value.intervals.len()).map(|item| span(value, item)).collect()
    });
    Placement { spans: spans.collect(), bytes }
}

/// An offset for each slot, and the bytes of all.
fn pack(slots: &[Item]) -> (Vec<usize>, usize) {
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
    (offsets, total)
}

/// Joins items that may overwrite one another (from, to) into slots.
fn merge(items: &[Item], pairs: &[(usize, usize)]) -> (Vec<Item>, Vec<usize>) {
    let mut slots = items.to_vec();
    let mut slot_of: Vec<usize> = (0..items.len()).collect();
    // An item that others share a slot with keeps it: it can no longer move into another's.
    let mut shared = vec![false; items.len()];
    for &(from, to) in pairs {
        let (source, target) = (items[from], items[to]);
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
    let mut index = vec![usize::MAX; items.len()];
    for (at, &root) in slot_of.iter().enumerate() {
        if at == root {
            index[at] = compact.len();
            compact.push(slots[at]);
        }
    }
    let slot_of = slot_of.into_iter().map(|root| index[root]).collect();
    (compact, slot_of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn value(bytes: usize, intervals: &[(usize, usize)]) -> Value {
        let interval = |&(first, last): &(usize, usize)| Interval { first, last };
        Value { bytes, intervals: intervals.iter().map(interval).collect() }
    }

    /// Up to four intervals one after the other: (gap before, length) each.
    fn values() -> impl Strategy<Value = Vec<Value>> {
        let life = prop::collection::vec((1usize..15, 0usize..12), 0..4);
        let one = (1usize..5000, life).prop_map(|(bytes, life)| {
            let mut next = 0;
            let mut intervals = Vec::new();
            for (gap, length) in life {
                let first = next + gap - 1;
                intervals.push(Interval { first, last: first + length });
                next = first + length + 1;
            }
            Value { bytes, intervals }
        });
        prop::collection::vec(one, 1..60)
    }

    fn overlap(a: Span, b: Span) -> bool {
        a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes
    }

    proptest! {
        #[test]
        fn every_interval_has_a_place_and_what_lives_together_never_shares_it(
            values in values(),
            pairs in prop::collection::vec((0usize..60, 0usize..60, 0usize..60), 0..60),
        ) {
            let overwrites: Vec<(usize, Overwrite)> = pairs
                .into_iter()
                .map(|(step, from, to)| {
                    (step, Overwrite { from: from % values.len(), to: to % values.len() })
                })
                .collect();
            let placement = place(&values, overwrites.iter().copied());
            let mut all = Vec::new();
            prop_assert_eq!(placement.spans.len(), values.len());
            for (index, (value, spans)) in values.iter().zip(&placement.spans).enumerate() {
                prop_assert_eq!(spans.len(), value.intervals.len());
                for (interval, span) in value.intervals.iter().zip(spans) {
                    prop_assert_eq!(span.bytes, value.bytes);
                    prop_assert_eq!(span.offset % ALIGN_BYTES, 0);
                    prop_assert!(span.offset + span.bytes <= placement.bytes);
                    all.push((index, *interval, *span));
                }
            }
            for (i, &(value_a, a, span_a)) in all.iter().enumerate() {
                for &(value_b, b, span_b) in &all[i + 1..] {
                    let together = a.first <= b.last && b.first <= a.last;
                    let allowed = overwrites.iter().any(|&(step, o)| {
                        let both = (o.from, o.to);
                        both == (value_a, value_b) && a.last == step && b.first == step
                            || both == (value_b, value_a) && b.last == step && a.first == step
                    });
                    let shared = overlap(span_a, span_b);
                    prop_assert!(!(together && shared) || allowed, "{value_a} {value_b}");
                }
            }
        }
    }

    #[test]
    fn a_chain_of_overwrites_needs_one_place() {
        let values = [value(1000, &[(0, 1)]), value(1000, &[(1, 2)]), value(1000, &[(2, 3)])];
        let chain = [(1, Overwrite { from: 0, to: 1 }), (2, Overwrite { from: 1, to: 2 })];
        assert_eq!(place(&values, chain).bytes, 1024);
        assert_eq!(place(&values, []).bytes, 2048);
    }

    #[test]
    fn a_value_is_not_overwritten_in_the_step_that_writes_it() {
        let values = [value(1000, &[(0, 1)]), value(1000, &[(1, 1)]), value(1000, &[(1, 2)])];
        let chain = [(1, Overwrite { from: 0, to: 1 }), (1, Overwrite { from: 1, to: 2 })];
        assert_eq!(place(&values, chain).bytes, 2048);
    }

    #[test]
    fn a_value_that_is_read_later_is_not_overwritten() {
        let values = [value(64, &[(0, 5)]), value(64, &[(1, 2)])];
        assert_eq!(place(&values, [(1, Overwrite { from: 0, to: 1 })]).bytes, 128);
    }

    #[test]
    fn what_is_away_leaves_its_place_to_others_and_comes_back_elsewhere() {
        // The first is away while the second and third live, and comes back beside the third.
        let values = [value(640, &[(0, 1), (4, 5)]), value(640, &[(2, 3)]), value(640, &[(3, 5)])];
        let placement = place(&values, []);
        assert_eq!(placement.bytes, 1280, "two at once, never three");
        assert_eq!(placement.spans[0][0], placement.spans[1][0]);
        let kept = [value(640, &[(0, 5)]), values[1].clone(), values[2].clone()];
        assert_eq!(place(&kept, []).bytes, 1920);
    }

    #[test]
    fn only_the_interval_that_ends_in_the_step_is_overwritten() {
        let values = [value(64, &[(0, 1), (3, 4)]), value(64, &[(1, 2)]), value(64, &[(4, 5)])];
        let both = [(1, Overwrite { from: 0, to: 1 }), (4, Overwrite { from: 0, to: 2 })];
        assert_eq!(place(&values, both).bytes, 64);
        assert_eq!(place(&values, [both[0]]).bytes, 128);
    }
}
