//! One state of a rank as a slot holds it: its parts by name, how large they are, to read, and to
//! write. Slots, digest, checkpoints, transfer and comparison go over the parts and know no
//! optimizer.

use std::ops::Range;

use xxhash_rust::xxh3::Xxh3;

/// What a caller may store beside the tensors, at most; a longer one is left out with a warning.
pub const EXTRA_BYTES_MAX: usize = 256 << 10;

/// Parts of a state, at most.
pub const PARTS_MAX: usize = 8;

/// One named vector of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Part {
    /// What it is called, in slots and checkpoints.
    pub name: &'static str,
    /// Its length.
    pub elements: usize,
}

/// The parts of a rank's state, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shape {
    parts: [Part; PARTS_MAX],
    count: usize,
}

impl Shape {
    /// Names and elements, in order.
    ///
    /// # Panics
    /// With more than `PARTS_MAX` parts.
    pub const fn of(parts: &[(&'static str, usize)]) -> Self {
        assert!(parts.len() <= PARTS_MAX, "a state has at most eight parts");
        let mut shape = Self { parts: [Part { name: "", elements: 0 }; PARTS_MAX], count: 0 };
        while shape.count < parts.len() {
            let (name, elements) = parts[shape.count];
            shape.parts[shape.count] = Part { name, elements };
            shape.count += 1;
        }
        shape
    }

    /// All of them.
    pub fn parts(&self) -> &[Part] {
        &self.parts[..self.count]
    }

    /// Where a part stands.
    ///
    /// # Panics
    /// When there is none of that name: the program asks for what it did not lay out.
    fn index(&self, name: &str) -> usize {
        let found = self.parts().iter().position(|part| part.name == name);
        found.unwrap_or_else(|| panic!("a state without a part `{name}`"))
    }

    /// Two words that tell shapes apart: elements altogether, and a hash of names and lengths.
    pub fn words(&self) -> [u64; 2] {
        let mut hasher = Xxh3::new();
        let mut elements = 0;
        for part in self.parts() {
            hasher.update(&(part.name.len() as u64).to_le_bytes());
            hasher.update(part.name.as_bytes());
            hasher.update(&(part.elements as u64).to_le_bytes());
            elements += part.elements as u64;
        }
        [elements, hasher.digest()]
    }
}

/// One state, to read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlotView<'a> {
    /// Committed steps.
    pub step: u64,
    /// The world's generation when it was committed.
    pub generation: u32,
    /// What the caller stored with it.
    pub extra: &'a [u8],
    shape: Shape,
    values: [&'a [f32]; PARTS_MAX],
}

impl<'a> SlotView<'a> {
    /// A state of these parts, in the shape's order.
    ///
    /// # Panics
    /// When the parts are not as many, or as long, as the shape says.
    pub fn new(
        shape: Shape,
        step: u64,
        generation: u32,
        parts: &[&'a [f32]],
        extra: &'a [u8],
    ) -> Self {
        let lengths = shape.parts().iter().map(|part| part.elements);
        assert!(
            lengths.eq(parts.iter().map(|part| part.len())),
            "parts are as long as the shape's"
        );
        let mut values: [&[f32]; PARTS_MAX] = [&[]; PARTS_MAX];
        values[..parts.len()].copy_from_slice(parts);
        Self { step, generation, extra, shape, values }
    }

    /// Its parts' names and lengths.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// One part.
    ///
    /// # Panics
    /// When there is none of that name.
    pub fn part(&self, name: &str) -> &'a [f32] {
        self.values[self.shape.index(name)]
    }

    /// All parts, in the shape's order.
    pub fn parts(&self) -> impl Iterator<Item = (&'static str, &'a [f32])> {
        let (shape, values) = (self.shape, self.values);
        (0..shape.count).map(move |at| (shape.parts[at].name, values[at]))
    }
}

/// One state, to write. It counts only after `Slots::commit`.
#[derive(Debug)]
pub struct SlotMut<'a> {
    shape: Shape,
    values: [&'a mut [f32]; PARTS_MAX],
}

impl<'a> SlotMut<'a> {
    /// As many parts as the shape has, in its order.
    pub(super) fn new(shape: Shape, parts: impl Iterator<Item = &'a mut [f32]>) -> Self {
        let mut values: [&mut [f32]; PARTS_MAX] = Default::default();
        for (value, part) in values.iter_mut().zip(parts) {
            *value = part;
        }
        Self { shape, values }
    }

    /// One part.
    ///
    /// # Panics
    /// When there is none of that name.
    pub fn part(&mut self, name: &str) -> &mut [f32] {
        self.values[self.shape.index(name)]
    }

    /// All parts, in the shape's order.
    pub fn parts(&mut self) -> impl Iterator<Item = (&'static str, &mut [f32])> {
        let parts = self.shape.parts.iter().zip(&mut self.values).take(self.shape.count);
        parts.map(|(part, values)| (part.name, &mut **values))
    }

    /// Several parts at once; each name once.
    ///
    /// # Panics
    /// When there is no part of a name.
    pub fn take<const N: usize>(mut self, names: [&str; N]) -> [&'a mut [f32]; N] {
        names.map(|name| std::mem::take(&mut self.values[self.shape.index(name)]))
    }

    /// Like `take`, for as long as the slot is borrowed.
    ///
    /// # Panics
    /// When there is no part of a name, or one is named twice.
    pub fn lend<const N: usize>(&mut self, names: [&str; N]) -> [&mut [f32]; N] {
        let places = names.map(|name| self.shape.index(name));
        let lent = self.values.get_disjoint_mut(places).expect("each part is lent once");
        lent.map(|values| &mut **values)
    }

    /// A range of the elements of all parts that `is_cut` names; the others are empty.
    ///
    /// # Panics
    /// When such a part is shorter.
    pub fn cut(&mut self, range: &Range<usize>, is_cut: impl Fn(&str) -> bool) -> SlotMut<'_> {
        let shape = self.shape;
        let parts = self.parts().map(|(name, values)| match is_cut(name) {
            true => &mut values[range.clone()],
            false => &mut [],
        });
        SlotMut::new(shape, parts)
    }

    /// Becomes a copy of a state of the same parts.
    ///
    /// # Panics
    /// When its parts have other names or lengths.
    pub fn copy_from(&mut self, state: &SlotView<'_>) {
        for (name, values) in self.parts() {
            values.copy_from_slice(state.part(name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_differ_by_names_lengths_and_order() {
        let words = |parts: &[(&'static str, usize)]| Shape::of(parts).words();
        let ours = words(&[("a", 2), ("b", 3)]);
        assert_eq!(ours, words(&[("a", 2), ("b", 3)]));
        for other in [[("a", 3), ("b", 2)], [("b", 3), ("a", 2)], [("a", 2), ("c", 3)]] {
            assert_ne!(ours, words(&other), "{other:?}");
        }
        assert_ne!(words(&[("ab", 0), ("c", 0)]), words(&[("a", 0), ("bc", 0)]));
    }

    #[test]
    fn parts_are_found_by_name() {
        let shape = Shape::of(&[("a", 1), ("b", 2)]);
        let (mut one, mut two) = ([0.0], [0.0; 2]);
        let mut slot = SlotMut::new(shape, [&mut one[..], &mut two[..]].into_iter());
        let state = SlotView::new(shape, 1, 0, &[&[5.0], &[6.0, 7.0]], &[]);
        slot.copy_from(&state);
        let [b, a] = slot.take(["b", "a"]);
        assert_eq!((&*a, &*b), (state.part("a"), &[6.0, 7.0][..]));
    }
}
