//! How a batch norm is shared out among blocks of threads. The order of sums follows from this, so
//! it follows from sizes alone, never from the card.

use super::call::THREADS;
use super::layout::{CHANNELS_LAST, LANES, lanes, pixels};
use crate::engine::plan::tensor::Desc;

/// Groups of channels of one block at most: it has a thread for each of their channels.
const GROUPS_MAX: usize = THREADS / LANES;
/// Blocks that sum, about, and those that compute every element: some for each multiprocessor of
/// a large card.
const SUMMING: usize = 1024;
const COMPUTING: usize = 4096;
/// Rounds of a block at least: before the first it learns what its channels need.
const ROUNDS_MIN: usize = 8;
/// Pixels of a chunk of planes at least, and of a channel's chunks at most.
const PLANES_CHUNK_MIN: usize = 64;
const PLANES_CHUNKS_MAX: usize = 512;

/// Of one tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NormBlocks {
    /// Where the channels are last.
    pub groups: Option<Groups>,
    /// Pixels of one sum, and how many such chunks there are.
    pub chunk: usize,
    /// Of all pixels.
    pub chunks: usize,
}

/// Blocks of pixels and groups of channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Groups {
    /// Lanes of a pixel.
    pub pitch: usize,
    /// Groups of one block.
    pub width: usize,
    /// Blocks beside each other.
    pub across: usize,
    /// Pixels of a block that computes every element.
    pub span: usize,
}

impl NormBlocks {
    /// Of this one.
    pub fn new(data: &Desc) -> Self {
        let (pixels, c) = (pixels(data), data.dims[1]);
        // Without planes there is nothing behind the channels.
        let is_last = data.order == CHANNELS_LAST
            || (c.is_multiple_of(LANES) && data.dims[2..].iter().all(|&side| side == 1));
        if !is_last {
            let chunk = pixels.div_ceil(PLANES_CHUNKS_MAX).max(PLANES_CHUNK_MIN);
            return Self { groups: None, chunk, chunks: pixels.div_ceil(chunk) };
        }
        let pitch = lanes(c);
        let all = pitch / LANES;
        let across = all.div_ceil(GROUPS_MAX);
        let width = all.div_ceil(across);
        let rows = THREADS / width;
        let share = |blocks: usize| {
            let pixels = pixels.div_ceil(blocks.div_ceil(across));
            pixels.next_multiple_of(4 * rows).max(ROUNDS_MIN * rows)
        };
        let (chunk, span) = (share(SUMMING), share(COMPUTING));
        let groups = Some(Groups { pitch, width, across, span });
        Self { groups, chunk, chunks: pixels.div_ceil(chunk) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::cuda::layout::channels_last;
    use crate::engine::plan::tensor::ElementType;

    #[test]
    fn blocks_have_every_channel_and_pixel_once() {
        for (dims, wanted) in [
            ([256, 64, 56, 56], ([64, 8, 1, 256], 896)),
            ([256, 2048, 7, 7], ([2048, 32, 8, 64], 98)),
            ([2, 3, 4, 4], ([8, 1, 1, 2048], 1)),
            ([256, 288, 7, 7], ([288, 18, 2, 112], 112)),
        ] {
            let blocks = NormBlocks::new(&channels_last(&dims, ElementType::Bf16));
            let Groups { pitch, width, across, span } = blocks.groups.expect("channels are last");
            assert_eq!(([pitch, width, across, span], blocks.chunks), wanted, "{dims:?}");
            assert!(width * across * LANES >= pitch && width <= GROUPS_MAX);
        }
    }

    #[test]
    fn what_has_no_planes_has_its_channels_last() {
        let of = |dims: &[usize]| NormBlocks::new(&Desc::plain(dims, ElementType::F32)).groups;
        assert_eq!(of(&[32, 16]).map(|groups| groups.pitch), Some(16));
        assert_eq!((of(&[32, 15]), of(&[32, 16, 2, 2])), (None, None));
    }
}
