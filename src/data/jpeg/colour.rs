//! From planes to pixels: chroma is interpolated as libjpeg does it by default (a triangle over
//! the nearest samples), and turned into red, green and blue with its 16-bit factors.

/// How a plane of chroma becomes as wide and high as luma.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Spread {
    /// It is.
    #[default]
    Same,
    /// Twice as wide, interpolated.
    Wide,
    /// Twice as wide and high, interpolated.
    WideAndTall,
    /// Each level twice: of planes that libjpeg does not interpolate.
    Twice,
}

impl Spread {
    /// Columns (axis 0) or rows (1) of the plane, of `side` in all, that so many of luma need from
    /// `from` on: first and number.
    pub(super) fn needs(self, axis: usize, from: usize, count: usize, side: usize) -> [usize; 2] {
        match (self, axis) {
            (Self::WideAndTall, _) | (Self::Wide, 0) => {
                let (first, count) = Levels::around(from, count, side);
                [first, count]
            }
            (Self::Twice, 0) => [from / 2, (from + count).div_ceil(2) - from / 2],
            _ => [from, count],
        }
    }
}

/// A plane of levels: the part of it that was decoded.
#[derive(Debug, Clone, Copy)]
pub(super) struct Levels<'a> {
    pub(super) levels: &'a [u8],
    pub(super) stride: usize,
    /// Column and row of the whole plane that the first level stands for.
    pub(super) from: [usize; 2],
    /// Columns and rows of the whole plane.
    pub(super) size: [usize; 2],
}

impl<'a> Levels<'a> {
    /// `count` levels of row `y` from column `x` on.
    #[inline(always)]
    pub(super) fn row(&self, y: usize, x: usize, count: usize) -> &'a [u8] {
        let start = (y - self.from[1]) * self.stride + x - self.from[0];
        &self.levels[start..start + count]
    }

    /// Columns of the plane around `count` columns from `x` of one twice as wide: first and number.
    pub(super) fn around(x: usize, count: usize, width: usize) -> (usize, usize) {
        let first = (x / 2).saturating_sub(1);
        let last = ((x + count - 1) / 2 + 1).min(width - 1);
        (first, last - first + 1)
    }

    /// Row `y` of a plane twice as high, four times as bright: three parts of the nearest row, one
    /// of the next.
    #[inline(always)]
    fn tall(&self, y: usize, x: usize, into: &mut [u16]) {
        let near = y / 2;
        let far = if y.is_multiple_of(2) {
            near.saturating_sub(1)
        } else {
            (near + 1).min(self.size[1] - 1)
        };
        let (near, far) = (self.row(near, x, into.len()), self.row(far, x, into.len()));
        for ((sum, &near), &far) in into.iter_mut().zip(near).zip(far) {
            *sum = 3 * u16::from(near) + u16::from(far);
        }
    }
}

/// How far a row of sums is brighter than levels, and how ties are rounded.
#[derive(Debug, Clone, Copy)]
struct Scale {
    shift: u32,
    /// Of columns that lie left and right of a sample's middle.
    halves: [u16; 2],
}

/// One output row's buffers.
#[derive(Debug, Default)]
pub(super) struct Rows {
    sums: Vec<u16>,
    wide: Vec<u8>,
    chroma: [Vec<u8>; 2],
}

impl Rows {
    /// Chroma of `count` pixels of row `y` from column `x` on.
    #[inline(always)]
    pub(super) fn chroma(
        &mut self,
        which: usize,
        plane: &Levels<'_>,
        [x, y]: [usize; 2],
        count: usize,
        spread: Spread,
    ) {
        let out = &mut self.chroma[which];
        out.clear();
        match spread {
            Spread::Same => return out.extend_from_slice(plane.row(y, x, count)),
            Spread::Twice => {
                let [first, width] = spread.needs(0, x, count, plane.size[0]);
                let twice = plane.row(y, first, width).iter().flat_map(|&level| [level; 2]);
                return out.extend(twice.skip(x % 2).take(count));
            }
            Spread::Wide | Spread::WideAndTall => {}
        }
        let (first, width) = Levels::around(x, count, plane.size[0]);
        self.sums.clear();
        self.sums.resize(width, 0);
        let scale = if spread == Spread::WideAndTall {
            plane.tall(y, first, &mut self.sums);
            Scale { shift: 4, halves: [8, 7] }
        } else {
            for (sum, &level) in self.sums.iter_mut().zip(plane.row(y, first, width)) {
                *sum = u16::from(level);
            }
            Scale { shift: 2, halves: [1, 2] }
        };
        self.wide.clear();
        self.wide.resize(2 * width, 0);
        widen(&self.sums, scale, &mut self.wide);
        out.extend_from_slice(&self.wide[x - 2 * first..x - 2 * first + count]);
    }

    /// Red, green and blue of a row, interleaved.
    #[inline(always)]
    pub(super) fn colours(&self, luma: &[u8], out: &mut [u8]) {
        let chroma = self.chroma[0].iter().zip(&self.chroma[1]);
        for ((pixel, &y), (&cb, &cr)) in out.as_chunks_mut::<3>().0.iter_mut().zip(luma).zip(chroma)
        {
            let (y, cb, cr) = (i32::from(y), i32::from(cb) - 128, i32::from(cr) - 128);
            let half = 1 << 15;
            let red = y + ((91_881 * cr + half) >> 16);
            let green = y + ((-22_554 * cb - 46_802 * cr + half) >> 16);
            let blue = y + ((116_130 * cb + half) >> 16);
            *pixel = [red, green, blue].map(|level| level.clamp(0, 255) as u8);
        }
    }
}

/// Twice as many columns: three parts of the nearest, one of the next. A plane's own first and
/// last column have no next one and stand for themselves; that the columns of a part have one is
/// the caller's matter, who asks for one more on each side.
#[inline(always)]
fn widen(sums: &[u16], scale: Scale, out: &mut [u8]) {
    let Scale { shift, halves: [left, right] } = scale;
    let level = |sum: u16| (sum >> shift) as u8;
    let (Some(&first), Some(&last)) = (sums.first(), sums.last()) else { return };
    let end = out.len() - 1;
    out[0] = level(4 * first + left);
    out[end] = level(4 * last + right);
    let pairs = out[1..end].as_chunks_mut::<2>().0;
    for (pair, (&a, &b)) in pairs.iter_mut().zip(sums.iter().zip(&sums[1..])) {
        *pair = [level(3 * a + b + right), level(3 * b + a + left)];
    }
}
