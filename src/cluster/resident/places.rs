//! Where the parts of a slot lie in its body: the opaque part first, then the tensors.
//!
//! Every tensor part begins in the middle of a page. That is the start of a cache line, which
//! streaming stores need, and far from the start of a page, where large vectors begin: a gradient
//! 48 bytes before the weight modulo a page made streaming stores up to five times slower, since
//! loads then wait for stores that they only seem to overlap.

use std::ops::Range;

use kintsugi_ffi::mapping::PAGE_BYTES;

use super::state::{EXTRA_BYTES_MAX, Shape, SlotMut, SlotView};

const PHASE_BYTES: usize = PAGE_BYTES / 2;

/// Byte ranges within a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Places {
    shape: Shape,
    starts: [usize; 3],
    body_bytes: usize,
}

impl Places {
    pub fn of(shape: Shape) -> Self {
        let mut at = EXTRA_BYTES_MAX;
        let starts = [shape.parameters, shape.parameters, shape.statistics].map(|elements| {
            let start = at + PHASE_BYTES;
            at = (start + elements * size_of::<f32>()).next_multiple_of(PAGE_BYTES);
            start
        });
        Self { shape, starts, body_bytes: at }
    }

    /// Bytes of one slot's body: whole pages.
    pub fn body_bytes(&self) -> usize {
        self.body_bytes
    }

    /// Where parameters, momentum and statistics begin.
    pub fn parts(&self) -> [usize; 3] {
        self.starts
    }

    fn ranges(&self) -> [Range<usize>; 3] {
        let [parameters, momentum, statistics] = self.starts;
        let trained = self.shape.parameters * size_of::<f32>();
        [
            parameters..parameters + trained,
            momentum..momentum + trained,
            statistics..statistics + self.shape.statistics * size_of::<f32>(),
        ]
    }

    pub fn view<'a>(
        &self,
        body: &'a [u8],
        (step, generation): (u64, u32),
        extra: &'a [u8],
    ) -> SlotView<'a> {
        let [parameters, momentum, statistics] =
            self.ranges().map(|range| bytemuck::cast_slice(&body[range]));
        SlotView { step, generation, parameters, momentum, statistics, extra }
    }

    pub fn view_mut<'a>(&self, body: &'a mut [u8]) -> SlotMut<'a> {
        let [first, second, third] = self.ranges();
        let (head, tail) = body.split_at_mut(third.start);
        let statistics = &mut tail[..third.len()];
        let (head, tail) = head.split_at_mut(second.start);
        let (momentum, parameters) = (&mut tail[..second.len()], &mut head[first]);
        SlotMut {
            parameters: bytemuck::cast_slice_mut(parameters),
            momentum: bytemuck::cast_slice_mut(momentum),
            statistics: bytemuck::cast_slice_mut(statistics),
        }
    }
}
