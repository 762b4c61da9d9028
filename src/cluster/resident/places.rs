//! Where the parts of a slot lie in its body: the opaque part first, then the tensors.
//!
//! Every tensor part begins in the middle of a page. That is the start of a cache line, which
//! streaming stores need, and far from the start of a page, where large vectors begin: a gradient
//! 48 bytes before the weight modulo a page made streaming stores up to five times slower, since
//! loads then wait for stores that they only seem to overlap.

use std::ops::Range;

use kintsugi_ffi::mapping::PAGE_BYTES;

use super::state::{EXTRA_BYTES_MAX, PARTS_MAX, Shape, SlotMut, SlotView};

const PHASE_BYTES: usize = PAGE_BYTES / 2;

/// Byte ranges within a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Places {
    shape: Shape,
    starts: [usize; PARTS_MAX],
    body_bytes: usize,
}

impl Places {
    pub fn of(shape: Shape) -> Self {
        let mut at = EXTRA_BYTES_MAX;
        let mut starts = [0; PARTS_MAX];
        for (start, part) in starts.iter_mut().zip(shape.parts()) {
            *start = at + PHASE_BYTES;
            at = (*start + part.elements * size_of::<f32>()).next_multiple_of(PAGE_BYTES);
        }
        Self { shape, starts, body_bytes: at }
    }

    /// What lies there.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Bytes of one slot's body: whole pages.
    pub fn body_bytes(&self) -> usize {
        self.body_bytes
    }

    /// Where each part begins.
    pub fn starts(&self) -> &[usize] {
        &self.starts[..self.shape.parts().len()]
    }

    /// Where each part lies, in the shape's order.
    fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        let parts = self.starts.into_iter().zip(self.shape.parts());
        parts.map(|(start, part)| start..start + part.elements * size_of::<f32>())
    }

    pub fn view<'a>(&self, body: &'a [u8], at: (u64, u32), extra: &'a [u8]) -> SlotView<'a> {
        let mut parts: [&[f32]; PARTS_MAX] = [&[]; PARTS_MAX];
        for (part, range) in parts.iter_mut().zip(self.ranges()) {
            *part = bytemuck::cast_slice(&body[range]);
        }
        let (step, generation) = at;
        SlotView::new(self.shape, step, generation, &parts[..self.shape.parts().len()], extra)
    }

    pub fn view_mut<'a>(&self, body: &'a mut [u8]) -> SlotMut<'a> {
        let (mut rest, mut behind) = (body, 0);
        let parts = self.ranges().map(|range| {
            let (_, from) = std::mem::take(&mut rest).split_at_mut(range.start - behind);
            let (part, after) = from.split_at_mut(range.len());
            (rest, behind) = (after, range.end);
            bytemuck::cast_slice_mut(part)
        });
        SlotMut::new(self.shape, parts)
    }
}
