//! The header of a JPEG: what stands before its entropy-coded data. Only files of the common kind
//! are read; of any other the whole decoder is asked, which also judges what is damaged.

use super::NotOurs;
use super::table::Table;

/// Largest width and height, as of every decoder here.
const SIDE_MAX: u32 = 16_384;
/// Narrower colour planes are not interpolated by libjpeg.
const PLANE_WIDTH_MIN: u32 = 3;

/// The tables that a file defines, kept from file to file.
#[derive(Debug)]
pub(super) struct Tables {
    pub(super) constant: [Table; 4],
    pub(super) varying: [Table; 4],
    /// In the file's order.
    pub(super) quant: [[i32; 64]; 4],
}

impl Default for Tables {
    fn default() -> Self {
        Self { constant: Default::default(), varying: Default::default(), quant: [[0; 64]; 4] }
    }
}

/// One colour plane.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Plane {
    name: u8,
    /// Blocks of a unit, across and down: 1 or 2.
    pub(super) blocks: [u32; 2],
    pub(super) quant: usize,
    pub(super) constant: usize,
    pub(super) varying: usize,
}

/// What a header says.
#[derive(Debug, Clone, Default)]
pub(super) struct Header {
    /// Width and height in pixels.
    pub(super) size: [u32; 2],
    /// Grey, or luma and two chroma.
    pub(super) planes: [Plane; 3],
    /// 1 or 3 of them.
    pub(super) count: usize,
    /// Units between restart markers; 0 = none.
    pub(super) restart: u32,
    /// Where the entropy-coded data begins.
    pub(super) data: usize,
}

/// What of the tables the file has defined so far.
#[derive(Default)]
struct Defined {
    constant: [bool; 4],
    varying: [bool; 4],
    quant: [bool; 4],
}

/// Reads big-endian numbers, one behind the other.
struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Result<u8, NotOurs> {
        let (&first, rest) = self.rest.split_first().ok_or(NotOurs)?;
        self.rest = rest;
        Ok(first)
    }

    fn word(&mut self) -> Result<u32, NotOurs> {
        Ok(u32::from(self.byte()?) << 8 | u32::from(self.byte()?))
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], NotOurs> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(NotOurs)?;
        self.rest = rest;
        Ok(taken)
    }

    /// The body of a segment.
    fn segment(&mut self) -> Result<Self, NotOurs> {
        let length = self.word()?.checked_sub(2).ok_or(NotOurs)?;
        Ok(Self { rest: self.take(length as usize)? })
    }
}

/// Whether a picture of three planes is luma and chroma by its JFIF header, and red, green and blue
/// by Adobe's mark or by its planes' names. libjpeg believes the first, others the rest.
pub(in crate::data) fn has_disputed_colours(bytes: &[u8]) -> bool {
    let mut reader = Reader { rest: bytes };
    let (mut says_luma, mut says_red, mut has_three) = (false, false, false);
    if reader.word().is_err() {
        return false;
    }
    // Each turn takes a segment of at least four bytes.
    while let (Ok(marker), Ok(segment)) = (reader.word(), reader.segment()) {
        match (marker, segment.rest) {
            (0xFFE0, [b'J', b'F', b'I', b'F', 0, ..]) => says_luma = true,
            (0xFFEE, mark @ [b'A', b'd', b'o', b'b', b'e', ..]) => {
                says_red |= mark.get(11) == Some(&0);
            }
            // A frame's: precision, two sides, planes of three bytes each.
            (0xFFC0..=0xFFC2, [_, _, _, _, _, 3, planes @ ..]) => {
                has_three = true;
                says_red |= planes.iter().step_by(3).take(3).eq(b"RGB");
            }
            (0xFFDA, _) => break,
            _ => {}
        }
    }
    has_three && says_luma && says_red
}

impl Header {
    /// Reads up to the entropy-coded data; the tables are left in `tables`.
    pub(super) fn read(bytes: &[u8], tables: &mut Tables) -> Result<Self, NotOurs> {
        let mut header = Self::default();
        let mut defined = Defined::default();
        let mut reader = Reader { rest: bytes };
        if reader.word()? != 0xFFD8 {
            return Err(NotOurs);
        }
        // Each turn takes a segment of at least four bytes.
        loop {
            let marker = reader.word()?;
            let segment = reader.segment()?;
            match marker {
                0xFFC0 => header.frame(segment)?,
                0xFFC4 => huffman(segment, tables, &mut defined)?,
                0xFFDB => quantisation(segment, tables, &mut defined)?,
                0xFFDD => {
                    let mut segment = segment;
                    header.restart = segment.word()?;
                    if !segment.rest.is_empty() {
                        return Err(NotOurs);
                    }
                }
                0xFFDA => {
                    header.scan(segment, &defined)?;
                    header.data = bytes.len() - reader.rest.len();
                    return Ok(header);
                }
                0xFFE0 | 0xFFE3..=0xFFEC | 0xFFEF | 0xFFFE => {}
                0xFFE1 if segment.rest.starts_with(b"Exif\0\0") => {}
                0xFFE2 if segment.rest.starts_with(b"ICC_PROFILE\0") => {}
                // Adobe's mark, which says that the planes are luma and chroma.
                0xFFEE if segment.rest.starts_with(b"Adobe") && segment.rest.len() == 12 => {
                    if segment.rest[11] != 1 {
                        return Err(NotOurs);
                    }
                }
                _ => return Err(NotOurs),
            }
        }
    }

    fn frame(&mut self, mut segment: Reader<'_>) -> Result<(), NotOurs> {
        if self.count > 0 || segment.byte()? != 8 {
            return Err(NotOurs);
        }
        let (height, width) = (segment.word()?, segment.word()?);
        self.size = [width, height];
        if self.size.iter().any(|side| !(1..=SIDE_MAX).contains(side)) {
            return Err(NotOurs);
        }
        let count = usize::from(segment.byte()?);
        if !matches!(count, 1 | 3) || segment.rest.len() != 3 * count {
            return Err(NotOurs);
        }
        for plane in &mut self.planes[..count] {
            plane.name = segment.byte()?;
            let blocks = segment.byte()?;
            plane.blocks = [u32::from(blocks >> 4), u32::from(blocks & 15)];
            plane.quant = usize::from(segment.byte()?);
        }
        self.count = count;
        let names = self.planes.map(|plane| plane.name);
        let known = match self.planes.map(|plane| plane.blocks) {
            [[1, 1], ..] if count == 1 => true,
            [[1, 1] | [2, 1] | [2, 2], [1, 1], [1, 1]] => names != *b"RGB",
            _ => false,
        };
        if !known || width.div_ceil(self.planes[0].blocks[0]) < PLANE_WIDTH_MIN {
            return Err(NotOurs);
        }
        Ok(())
    }

    fn scan(&mut self, mut segment: Reader<'_>, defined: &Defined) -> Result<(), NotOurs> {
        if self.count == 0 || usize::from(segment.byte()?) != self.count {
            return Err(NotOurs);
        }
        let has = |kind: &[bool; 4], index: usize| kind.get(index) == Some(&true);
        for plane in &mut self.planes[..self.count] {
            if segment.byte()? != plane.name {
                return Err(NotOurs);
            }
            let chosen = segment.byte()?;
            plane.constant = usize::from(chosen >> 4);
            plane.varying = usize::from(chosen & 15);
            let whole = has(&defined.constant, plane.constant)
                && has(&defined.varying, plane.varying)
                && has(&defined.quant, plane.quant);
            if !whole {
                return Err(NotOurs);
            }
        }
        // All coefficients, whole: a baseline file has nothing else.
        if segment.rest == [0, 63, 0] { Ok(()) } else { Err(NotOurs) }
    }
}

fn huffman(
    mut segment: Reader<'_>,
    tables: &mut Tables,
    defined: &mut Defined,
) -> Result<(), NotOurs> {
    while !segment.rest.is_empty() {
        let kind = segment.byte()?;
        let index = usize::from(kind & 15);
        let counts = segment.take(16)?.first_chunk::<16>().ok_or(NotOurs)?;
        let symbols = segment.take(counts.iter().map(|&count| usize::from(count)).sum())?;
        let (into, known) = match kind >> 4 {
            0 => (&mut tables.constant, &mut defined.constant),
            1 => (&mut tables.varying, &mut defined.varying),
            _ => return Err(NotOurs),
        };
        // Eleven bits are the most that a difference of eight-bit levels takes.
        if kind >> 4 == 0 && symbols.iter().any(|&bits| bits > 11) {
            return Err(NotOurs);
        }
        into.get_mut(index).ok_or(NotOurs)?.set(counts, symbols)?;
        known[index] = true;
    }
    Ok(())
}

fn quantisation(
    mut segment: Reader<'_>,
    tables: &mut Tables,
    defined: &mut Defined,
) -> Result<(), NotOurs> {
    while !segment.rest.is_empty() {
        // Eight-bit tables only: the upper half of the byte is 0.
        let index = usize::from(segment.byte()?);
        let values = segment.take(64)?;
        let table = tables.quant.get_mut(index).ok_or(NotOurs)?;
        for (into, &value) in table.iter_mut().zip(values) {
            *into = i32::from(value);
        }
        defined.quant[index] = true;
    }
    Ok(())
}
