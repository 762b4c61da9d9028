//! From a file and an area to pixels: which blocks are needed, which are passed over.

use std::ops::Range;

use kintsugi_ffi::wide::{Wide, wide};

use super::bits::{Bits, Plain};
use super::colour::{Levels, Rows, Spread};
use super::header::{Header, Plane, Tables};
use super::{NotOurs, inverse};
use crate::data::{Area, Shrink};

/// Columns and rows of a block in the file.
const BLOCK: usize = 8;
/// Narrower planes of a picture that is decoded smaller are not interpolated by libjpeg.
const SPREAD_WIDTH_MIN: usize = 3;

/// What is used again from file to file.
#[derive(Debug, Default)]
pub(in crate::data) struct Scratch {
    tables: Tables,
    plain: Plain,
    planes: [Vec<u8>; 3],
    rows: Rows,
    /// Of a picture that was done with: the next one takes it.
    spare: Vec<u8>,
}

/// Buffers that took more than this for one picture are given back after it.
const KEPT_BYTES_MAX: usize = 16 << 20;

impl Scratch {
    /// Takes back a picture's memory.
    pub(in crate::data) fn reuse(&mut self, pixels: Vec<u8>) {
        self.spare = pixels;
        let planes: usize = self.planes.iter().map(Vec::capacity).sum();
        if planes + self.spare.capacity() + self.plain.bytes.capacity() > KEPT_BYTES_MAX {
            *self = Self::default();
        }
    }
}

/// A file whose header was read.
pub(in crate::data) struct Jpeg<'a> {
    header: Header,
    bytes: &'a [u8],
    scratch: &'a mut Scratch,
}

/// Blocks of a plane that an area needs, across and down.
type Needed = [Range<usize>; 2];

impl<'a> Jpeg<'a> {
    /// Reads the header.
    pub(in crate::data) fn open(
        bytes: &'a [u8],
        scratch: &'a mut Scratch,
    ) -> Result<Self, NotOurs> {
        let header = Header::read(bytes, &mut scratch.tables)?;
        Ok(Self { header, bytes, scratch })
    }

    /// Width and height in pixels.
    pub(in crate::data) fn size(&self) -> [u32; 2] {
        self.header.size
    }

    /// The area's pixels: RGB, row by row. The area lies inside the picture as it is decoded, whose
    /// sides are rounded up.
    pub(in crate::data) fn decode(self, area: Area) -> Result<Vec<u8>, NotOurs> {
        let Self { header, bytes, scratch } = self;
        scratch.plain.take(&bytes[header.data..])?;
        let layout = Layout::of(&header, area)?;
        layout.check_segments(&header, &scratch.plain)?;
        for (plane, levels) in scratch.planes.iter_mut().enumerate().take(header.count) {
            let [columns, rows] = &layout.needed[plane];
            let count = columns.len() * rows.len() * layout.sides[plane].pow(2);
            // What is left of the picture before is overwritten: every needed block is decoded.
            levels.resize(count, 0);
        }
        let Scratch { tables, plain, planes, rows, spare } = scratch;
        wide(Blocks { header: &header, layout: &layout, tables, plain, planes })?;
        let mut pixels = std::mem::take(spare);
        // Every byte is written.
        pixels.resize(3 * area.size[0] as usize * area.size[1] as usize, 0);
        wide(Pixels { header: &header, layout: &layout, area, planes, rows, out: &mut pixels });
        Ok(pixels)
    }
}

/// Which blocks an area needs.
struct Layout {
    /// Units across and down.
    units: [usize; 2],
    needed: [Needed; 3],
    /// Levels across and down of a block as it is decoded: 1, 2, 4 or 8.
    sides: [usize; 3],
    /// Sides of the planes in levels.
    sizes: [[usize; 2]; 3],
    /// Of the planes of chroma.
    spread: Spread,
    /// Rows of units down to the last that is needed.
    end: usize,
}

impl Layout {
    fn of(header: &Header, area: Area) -> Result<Self, NotOurs> {
        let inside = |axis: usize| {
            let end = area.from[axis].checked_add(area.size[axis]);
            let whole = header.size[axis].div_ceil(area.shrink.times());
            area.size[axis] > 0 && end.is_some_and(|end| end <= whole)
        };
        if !inside(0) || !inside(1) {
            return Err(NotOurs);
        }
        let most = header.planes[0].blocks;
        let units =
            [0, 1].map(|axis| (header.size[axis] as usize).div_ceil(BLOCK * most[axis] as usize));
        let needed = [const { [0..0, 0..0] }; 3];
        let (sides, sizes, spread) = ([0; 3], [[0; 2]; 3], Spread::Same);
        let mut layout = Self { units, needed, sides, sizes, spread, end: 0 };
        for (plane, info) in header.planes.iter().enumerate().take(header.count) {
            layout.size(header, plane, area.shrink);
            let spread = if plane == 0 { Spread::Same } else { layout.spread };
            let side = layout.sides[plane];
            for axis in 0..2 {
                let (from, count) = (area.from[axis] as usize, area.size[axis] as usize);
                let [first, count] = spread.needs(axis, from, count, layout.sizes[plane][axis]);
                let needed = first / side..(first + count).div_ceil(side);
                if axis == 1 {
                    layout.end = layout.end.max(needed.end.div_ceil(info.blocks[1] as usize));
                }
                layout.needed[plane][axis] = needed;
            }
        }
        Ok(layout)
    }

    /// How a plane is decoded. Chroma of half luma's size needs no interpolation where its blocks
    /// keep twice as many levels: so does libjpeg.
    fn size(&mut self, header: &Header, plane: usize, shrink: Shrink) {
        let least = BLOCK / shrink.times() as usize;
        let most = header.planes[0].blocks.map(|blocks| blocks as usize * least);
        let blocks = header.planes[plane].blocks.map(|blocks| blocks as usize);
        let fits = |side: usize| (0..2).all(|axis| most[axis].is_multiple_of(blocks[axis] * side));
        let side = [8, 4, 2, 1].into_iter().find(|&side| side >= least && fits(side));
        let side = side.unwrap_or(least);
        self.sides[plane] = side;
        self.sizes[plane] = [0, 1].map(|axis| {
            let whole = BLOCK / least * most[axis];
            (header.size[axis] as usize * blocks[axis] * side).div_ceil(whole)
        });
        if plane > 0 {
            let plain = shrink == Shrink::Eighth || self.sizes[plane][0] < SPREAD_WIDTH_MIN;
            self.spread = match [0, 1].map(|axis| most[axis] / (blocks[axis] * side)) {
                [2, 2] => Spread::WideAndTall,
                [2, _] if plain => Spread::Twice,
                [2, _] => Spread::Wide,
                _ => Spread::Same,
            };
        }
    }

    /// Restart markers stand where the header says.
    fn check_segments(&self, header: &Header, plain: &Plain) -> Result<(), NotOurs> {
        let units = self.units[0] * self.units[1];
        let expected = match header.restart as usize {
            0 => 1,
            interval => units.div_ceil(interval),
        };
        if plain.ends.len() == expected { Ok(()) } else { Err(NotOurs) }
    }

    fn levels<'a>(&self, plane: usize, levels: &'a [u8]) -> Levels<'a> {
        let [columns, rows] = &self.needed[plane];
        Levels {
            levels,
            stride: columns.len() * self.sides[plane],
            from: [columns.start, rows.start].map(|block| block * self.sides[plane]),
            size: self.sizes[plane],
        }
    }
}

/// Reads the symbols and transforms the needed blocks.
struct Blocks<'a> {
    header: &'a Header,
    layout: &'a Layout,
    tables: &'a Tables,
    plain: &'a Plain,
    planes: &'a mut [Vec<u8>; 3],
}

impl Wide for Blocks<'_> {
    type Output = Result<(), NotOurs>;

    #[inline(always)]
    fn run(mut self) -> Self::Output {
        let (layout, plain) = (self.layout, self.plain);
        let interval = match self.header.restart as usize {
            0 => usize::MAX,
            interval => interval,
        };
        let mut bits = Bits::new(&plain.bytes, 0);
        let mut constants = [0; 3];
        let (mut left, mut segment) = (interval, 0);
        for row in 0..layout.end {
            for column in 0..layout.units[0] {
                if left == 0 {
                    // A segment ends where its last bit lies.
                    if bits.place() != plain.ends[segment] {
                        return Err(NotOurs);
                    }
                    bits = Bits::new(&plain.bytes, plain.ends[segment]);
                    (constants, left, segment) = ([0; 3], interval, segment + 1);
                }
                left -= 1;
                self.unit(&mut bits, [column, row], &mut constants)?;
            }
            if bits.place() > plain.ends[segment] {
                return Err(NotOurs);
            }
        }
        Ok(())
    }
}

impl Blocks<'_> {
    /// The blocks of all planes in one unit.
    #[inline(always)]
    fn unit(
        &mut self,
        bits: &mut Bits<'_>,
        [column, row]: [usize; 2],
        constants: &mut [i32; 3],
    ) -> Result<(), NotOurs> {
        for (plane, constant) in constants.iter_mut().enumerate().take(self.header.count) {
            let info = &self.header.planes[plane];
            let [across, down] = info.blocks.map(|blocks| blocks as usize);
            for y in row * down..(row + 1) * down {
                for x in column * across..(column + 1) * across {
                    self.block(bits, info, plane, [x, y], constant)?;
                }
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn block(
        &mut self,
        bits: &mut Bits<'_>,
        info: &Plane,
        plane: usize,
        [x, y]: [usize; 2],
        constant: &mut i32,
    ) -> Result<(), NotOurs> {
        let tables = [&self.tables.constant[info.constant], &self.tables.varying[info.varying]];
        let [columns, rows] = &self.layout.needed[plane];
        if !columns.contains(&x) || !rows.contains(&y) {
            return bits.pass(tables, constant);
        }
        let mut block = [0; 64];
        let last = bits.block(tables, &self.tables.quant[info.quant], constant, &mut block)?;
        let side = self.layout.sides[plane];
        let stride = columns.len() * side;
        let start = (y - rows.start) * side * stride + (x - columns.start) * side;
        let levels = &mut self.planes[plane];
        match (last, side) {
            (0, _) | (_, 1) => inverse::even(block[0], side, levels, start, stride),
            (_, 2) => inverse::quarter(&block, levels, start, stride),
            (_, 4) => inverse::half(&block, levels, start, stride),
            _ => inverse::levels(&block, levels, start, stride),
        }
        Ok(())
    }
}

/// Turns the decoded planes into pixels.
struct Pixels<'a> {
    header: &'a Header,
    layout: &'a Layout,
    area: Area,
    planes: &'a [Vec<u8>; 3],
    rows: &'a mut Rows,
    out: &'a mut [u8],
}

impl Wide for Pixels<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { header, layout, area, planes, rows, out } = self;
        let [width, left, top] =
            [area.size[0], area.from[0], area.from[1]].map(|pixels| pixels as usize);
        let luma = layout.levels(0, &planes[0]);
        for (y, out) in out.chunks_exact_mut(3 * width).enumerate() {
            let luma = luma.row(top + y, left, width);
            if header.count == 1 {
                for (pixel, &level) in out.as_chunks_mut::<3>().0.iter_mut().zip(luma) {
                    *pixel = [level; 3];
                }
                continue;
            }
            for which in 0..2 {
                let plane = layout.levels(1 + which, &planes[1 + which]);
                rows.chroma(which, &plane, [left, top + y], width, layout.spread);
            }
            rows.colours(luma, out);
        }
    }
}
