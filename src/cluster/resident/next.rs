//! The next state while several threads write it: the body of the other slot, cut into ranges that
//! each have one writer at a time.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kintsugi_ffi::mapping::Memory;

use super::places::Places;
use super::state::{PARTS_MAX, Shape, SlotMut};

/// A body that is lent (`Slots::lend`), whole.
#[derive(Debug)]
pub struct Body {
    pub(super) places: Places,
    pub(super) memory: Memory,
}

/// The same in pieces.
#[derive(Debug)]
pub struct Next {
    places: Places,
    pieces: Vec<Mutex<Piece>>,
    /// What lies between them: parts that are not cut, and the ends of pages.
    between: Vec<Memory>,
}

/// One range of every part that is cut.
#[derive(Debug)]
pub struct Piece {
    shape: Shape,
    /// In the shape's order; `None` for parts that are not cut.
    parts: [Option<Memory>; PARTS_MAX],
}

impl Body {
    /// All of it.
    pub fn slot(&mut self) -> SlotMut<'_> {
        self.places.view_mut(self.memory.bytes_mut())
    }

    /// Cut at the same ranges of elements, ascending, of all parts that `is_cut` names.
    ///
    /// # Panics
    /// When ranges overlap, or a part is shorter.
    pub fn cut(self, ranges: &[Range<usize>], is_cut: impl Fn(&str) -> bool) -> Next {
        let Self { places, memory } = self;
        let (shape, starts) = (places.shape(), places.starts());
        let cut_parts = shape.parts().iter().enumerate().filter(|(_, part)| is_cut(part.name));
        let cut_parts: Vec<usize> = cut_parts.map(|(index, _)| index).collect();
        let byte = |part: usize, element: usize| starts[part] + element * size_of::<f32>();
        let ends = cut_parts
            .iter()
            .flat_map(|&part| ranges.iter().map(move |range| (part, range)))
            .flat_map(|(part, range)| [byte(part, range.start), byte(part, range.end)]);
        // Every second piece is one that is written; parts lie in ascending order.
        let mut memories = memory.cut(ends).into_iter();
        let empty = || Piece { shape, parts: Default::default() };
        let mut pieces: Vec<Piece> = ranges.iter().map(|_| empty()).collect();
        let mut between = Vec::new();
        for part in cut_parts {
            for piece in &mut pieces {
                between.extend(memories.next());
                piece.parts[part] = memories.next();
            }
        }
        between.extend(memories);
        Next { places, pieces: pieces.into_iter().map(Mutex::new).collect(), between }
    }
}

impl Next {
    /// One of the ranges, by its number.
    pub fn piece(&self, number: usize) -> MutexGuard<'_, Piece> {
        self.pieces[number].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// In one piece again.
    pub fn join(self) -> Body {
        let mut memories = self.between;
        for piece in self.pieces {
            let piece = piece.into_inner().unwrap_or_else(PoisonError::into_inner);
            memories.extend(piece.parts.into_iter().flatten());
        }
        Body { places: self.places, memory: Memory::join(memories) }
    }
}

impl Piece {
    /// Its range of every part that is cut; the others are empty.
    pub fn slot(&mut self) -> SlotMut<'_> {
        let parts = self.parts.iter_mut().map(|part| match part {
            Some(memory) => bytemuck::cast_slice_mut(memory.bytes_mut()),
            None => &mut [],
        });
        SlotMut::new(self.shape, parts)
    }
}
