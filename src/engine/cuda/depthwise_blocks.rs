//! Which convolutions are depthwise, and how these are shared out among blocks of threads. The
//! order of sums follows from this, so it follows from sizes alone, never from the card.

use super::call::THREADS;
use super::layout::{LANES, lanes};
use crate::engine::plan::operation::{Kernel, ProductPass, Window};
use crate::engine::plan::tensor::{Desc, ElementType};

/// An operation whose tensors lie somehow, as the backend settles it.
type Settled = kintsugi_ffi::operation::Operation<Desc, Kernel>;

/// Elements of a window and its width, at most: what the kernels hold of one.
const WINDOW_MAX: usize = 49;
const WIDTH_MAX: usize = 7;
/// Groups of channels of one block at most: it holds the weights of each.
const GROUPS_MAX: usize = 8;
/// Elements of a strip, which one thread computes at once.
const STRIP: usize = 4;
/// Blocks that sum, about, and those that compute every element: some for each multiprocessor of
/// a large card.
const SUMMING: usize = 1024;
const COMPUTING: usize = 2048;
/// Strips of a thread that sums at least: its sums have to be put together with others.
const SUMMED_MIN: usize = 4;

/// Kernels by the window's width: how they are called, and how many rows of the window a thread
/// sums.
const KERNELS: [(usize, &str, usize); 3] = [(3, "3", 3), (5, "5", 2), (7, "7", 1)];
const ANY: (&str, usize) = ("any", 1);

/// Blocks of strips and groups of channels, of one pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DepthwiseBlocks {
    /// The kernel's width of the window, by name.
    pub kernel: &'static str,
    /// Strips of a row, and in all.
    pub strips: [usize; 2],
    /// Groups of one block.
    pub width: usize,
    /// Blocks beside each other.
    pub across: usize,
    /// Strips of a block.
    pub span: usize,
    /// Blocks of the same strips and groups, where these sum rows of the window.
    pub sets: usize,
}

impl DepthwiseBlocks {
    /// Of a convolution's pass, if it is one that the kernels know: every channel with a window of
    /// its own.
    pub fn of(operation: &Settled) -> Option<Self> {
        let Settled::Conv { src, weights, dst, window, pass, .. } = operation else { return None };
        let [_, 1, 1, rows, columns] = weights.dims[..] else { return None };
        let is_held = columns <= WIDTH_MAX && rows * columns <= WINDOW_MAX;
        is_held.then(|| Self::new(src, dst, window, pass))
    }

    fn new(src: &Desc, dst: &Desc, window: &Window, pass: &ProductPass<usize>) -> Self {
        let ([rows, columns], [_, step]) = (window.kernel, window.stride);
        let unrolled = window.dilation == [1, 1] && step <= 2;
        let known = KERNELS.iter().find(|known| unrolled && known.0 == columns);
        let (kernel, rows_at_once) = known.map_or(ANY, |known| (known.1, known.2));
        let is_data = matches!(pass, ProductPass::BackwardData(_));
        // Strips of a gradient of data begin where a window might: the first one before the row.
        let (desc, length, strip) = match (is_data, known.is_some() && step == 1) {
            (true, _) => (src, src.dims[3] + window.padding[1] % step, STRIP),
            (false, true) => (dst, dst.dims[3], STRIP),
            (false, false) => (dst, dst.dims[3], STRIP / 2),
        };
        let of_row = length.div_ceil(strip);
        let all = desc.dims[0] * desc.dims[2] * of_row;
        let groups = lanes(desc.dims[1]) / LANES;
        let across = groups.div_ceil(GROUPS_MAX);
        let width = groups.div_ceil(across);
        let (blocks, sets, least) = match pass {
            ProductPass::BackwardWeights(_) => (SUMMING, rows.div_ceil(rows_at_once), SUMMED_MIN),
            _ => (COMPUTING, 1, 1),
        };
        let at_once = THREADS / width;
        let span = all.div_ceil(blocks.div_ceil(across * sets)).next_multiple_of(at_once);
        let span = span.max(least * at_once);
        Self { kernel, strips: [of_row, all], width, across, span, sets }
    }

    /// Sums of each weight.
    pub fn chunks(&self) -> usize {
        self.strips[1].div_ceil(self.span)
    }

    /// What the sums of a gradient of weights take.
    pub fn scratch_bytes(operation: &Settled) -> usize {
        match (operation, Self::of(operation)) {
            (
                Settled::Conv { dst, window, pass: ProductPass::BackwardWeights(_), .. },
                Some(blocks),
            ) => {
                let [rows, columns] = window.kernel;
                let sums = blocks.chunks() * rows * columns * lanes(dst.dims[1]);
                sums * ElementType::F32.bytes()
            }
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::cuda::layout::channels_last;
    use crate::engine::plan::operation::Direction;
    use crate::model::saved::Activation;

    fn blocks(
        [n, c, h, w]: [usize; 4],
        [side, step]: [usize; 2],
        pass: ProductPass<usize>,
    ) -> DepthwiseBlocks {
        let sides = |side: usize| (side - 1) / step + 1;
        let of = |h, w| channels_last(&[n, c, h, w], ElementType::Bf16);
        let padding = [side / 2; 2];
        let (kernel, stride) = ([side; 2], [step; 2]);
        let window = Window { kernel, stride, padding, padding_end: padding, dilation: [1, 1] };
        let (src, dst) = (of(h, w), of(sides(h), sides(w)));
        let weights = Desc::plain(&[c, 1, 1, side, side], ElementType::F32);
        let conv = Settled::Conv { src, weights, bias: None, dst, window, pass };
        DepthwiseBlocks::of(&conv).expect("a depthwise one")
    }

    #[test]
    fn blocks_have_every_channel_and_strip_once() {
        let (direction, activation) = (Direction::Training, Activation::None);
        let passes = [
            ProductPass::Forward { direction, activation },
            ProductPass::BackwardData(0),
            ProductPass::BackwardWeights(0),
        ];
        // Strips of a row, groups, blocks beside each other, strips of a block, chunks.
        for (dims, window, wanted) in [
            (
                [256, 32, 112, 112],
                [3, 1],
                [[28, 4, 1, 448, 1792], [28, 4, 1, 448, 1792], [28, 4, 1, 832, 965]],
            ),
            (
                [256, 96, 112, 112],
                [3, 2],
                [[28, 6, 2, 420, 956], [29, 6, 2, 840, 990], [28, 6, 2, 798, 504]],
            ),
            (
                [256, 960, 7, 7],
                [3, 1],
                [[2, 8, 15, 32, 112], [2, 8, 15, 32, 112], [2, 8, 15, 128, 28]],
            ),
            ([2, 3, 6, 6], [5, 1], [[2, 1, 1, 256, 1], [2, 1, 1, 256, 1], [2, 1, 1, 1024, 1]]),
        ] {
            for (pass, wanted) in passes.iter().zip(wanted) {
                let own = blocks(dims, window, *pass);
                let DepthwiseBlocks { strips, width, across, span, .. } = own;
                let numbers = [strips[0], width, across, span, own.chunks()];
                assert_eq!(numbers, wanted, "{dims:?} {pass:?}");
                assert!(width * across * LANES >= lanes(dims[1]) && width <= GROUPS_MAX);
            }
        }
    }

    #[test]
    fn wide_windows_and_groups_of_channels_are_none() {
        let of = |dims: &[usize]| {
            let data = channels_last(&[2, dims[0] * dims[1], 16, 16], ElementType::F32);
            let weights = Desc::plain(dims, ElementType::F32);
            let (window, pass) = (Window::whole([dims[3], dims[4]]), ProductPass::BackwardData(0));
            let (src, dst) = (data.clone(), data);
            DepthwiseBlocks::of(&Settled::Conv { src, weights, bias: None, dst, window, pass })
        };
        let kernels = [[8, 1, 1, 3, 3], [8, 1, 1, 9, 5], [8, 1, 1, 1, 7], [8, 1, 1, 7, 2]]
            .map(|dims| of(&dims).map(|blocks| blocks.kernel));
        assert_eq!(kernels, [Some("3"), Some("5"), Some("7"), Some("any")]);
        for dims in [[8, 1, 1, 1, 8], [8, 1, 1, 13, 5], [4, 2, 1, 3, 3], [4, 1, 2, 3, 3]] {
            assert_eq!(of(&dims), None);
        }
    }
}
