//! The entropy-coded part of a file: first made plain (stuffing and markers taken out), then read
//! block by block. A block that nobody looks at is passed over, all but its constant part.

use super::NotOurs;
use super::table::{Table, extend};

/// Zeros behind the data, so that every read of eight bytes lies inside.
const MARGIN: usize = 16;
/// What is copied at once where no marker is.
const STRIDE: usize = 32;

/// The natural place of a coefficient, by its place in the file. The last 16 take what damaged
/// data says beyond the block.
pub(super) const NATURAL: [u8; 80] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20,
    13, 6, 7, 14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59,
    52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63,
    63, 63, 63, 63, 63, 63,
];

/// Plain data, and where its segments (from restart marker to restart marker) end.
#[derive(Debug, Default)]
pub(super) struct Plain {
    pub(super) bytes: Vec<u8>,
    pub(super) ends: Vec<usize>,
}

impl Plain {
    /// Takes what stands between the header and the end marker. Anything but restart markers in
    /// their order on the way, or no end marker, and the file is not ours.
    pub(super) fn take(&mut self, data: &[u8]) -> Result<(), NotOurs> {
        self.bytes.clear();
        self.ends.clear();
        self.bytes.reserve(data.len() + MARGIN);
        let mut rest = data;
        loop {
            while let Some(chunk) = rest.first_chunk::<STRIDE>() {
                if chunk.iter().fold(false, |found, &byte| found | (byte == 0xFF)) {
                    break;
                }
                self.bytes.extend_from_slice(chunk);
                rest = &rest[STRIDE..];
            }
            let marker = rest.iter().position(|&byte| byte == 0xFF).ok_or(NotOurs)?;
            self.bytes.extend_from_slice(&rest[..marker]);
            rest = &rest[marker + 1..];
            let expected = 0xD0 + (self.ends.len() % 8) as u8;
            match rest.first() {
                Some(0) => self.bytes.push(0xFF),
                Some(&kind) if kind == expected => self.ends.push(self.bytes.len()),
                Some(0xD9) => {
                    self.ends.push(self.bytes.len());
                    self.bytes.resize(self.bytes.len() + MARGIN, 0);
                    return Ok(());
                }
                _ => return Err(NotOurs),
            }
            rest = &rest[1..];
        }
    }
}

/// A reader of plain data.
pub(super) struct Bits<'a> {
    data: &'a [u8],
    at: usize,
    /// The next bits, at its upper end.
    buffer: u64,
    /// How many of them are good.
    good: u32,
}

impl<'a> Bits<'a> {
    /// From byte `at` on.
    pub(super) fn new(data: &'a [u8], at: usize) -> Self {
        Self { data, at, buffer: 0, good: 0 }
    }

    /// The byte behind the last one of which a bit was used.
    pub(super) fn place(&self) -> usize {
        (self.at * 8 - (self.good as usize).min(self.at * 8)).div_ceil(8)
    }

    /// At least 56 bits are good afterwards. Behind the data come zeros, and `place` lies there.
    #[inline(always)]
    fn refill(&mut self) {
        if let Some(next) = self.data.get(self.at..).and_then(|rest| rest.first_chunk::<8>()) {
            self.buffer |= u64::from_be_bytes(*next) >> self.good;
        }
        self.at += ((63 - self.good) >> 3) as usize;
        self.good |= 56;
    }

    #[inline(always)]
    fn drop(&mut self, bits: u32) {
        self.buffer <<= bits;
        self.good -= bits;
    }

    /// The value behind a symbol of this size, which may be 0.
    #[inline(always)]
    fn value(&mut self, size: u32) -> i32 {
        if size == 0 {
            return 0;
        }
        let bits = (self.buffer >> (64 - size)) as u32;
        self.drop(size);
        extend(bits, size)
    }

    /// The next symbol, where the lookup has no whole value.
    #[inline(always)]
    fn symbol(&mut self, table: &Table) -> Result<u8, NotOurs> {
        let entry = table.entry(self.buffer);
        let (symbol, length) = match entry.used() {
            0 => table.long(self.buffer)?,
            length => (entry.middle(), length),
        };
        self.drop(length);
        Ok(symbol)
    }

    /// The constant part of a block, as a difference.
    #[inline(always)]
    fn constant(&mut self, table: &Table) -> Result<i32, NotOurs> {
        self.refill();
        let entry = table.entry(self.buffer);
        if entry.value() != 0 {
            self.drop(entry.used());
            return Ok(entry.value());
        }
        let size = self.symbol(table)?;
        Ok(self.value(u32::from(size & 15)))
    }

    /// Reads a block into `block` (all zeros), dequantised, in natural order. How far it reaches:
    /// the largest place in the file's order of what is not zero.
    #[inline(always)]
    pub(super) fn block(
        &mut self,
        tables: [&Table; 2],
        quant: &[i32; 64],
        constant: &mut i32,
        block: &mut [i32; 64],
    ) -> Result<usize, NotOurs> {
        *constant = constant.wrapping_add(self.constant(tables[0])?);
        block[0] = constant.wrapping_mul(quant[0]);
        let mut at = 1;
        let mut last = 0;
        while at < 64 {
            self.refill();
            let entry = tables[1].entry(self.buffer);
            let mut value = entry.value();
            if value != 0 {
                at += usize::from(entry.middle());
                self.drop(entry.used());
            } else {
                let symbol = self.symbol(tables[1])?;
                at += usize::from(symbol >> 4);
                let size = u32::from(symbol & 15);
                if size == 0 {
                    if symbol == 0xF0 {
                        at += 1;
                        continue;
                    }
                    // Other runs of no size are not of baseline files.
                    return if symbol == 0 { Ok(last) } else { Err(NotOurs) };
                }
                value = self.value(size);
            }
            block[usize::from(NATURAL[at] & 63)] = value.wrapping_mul(quant[at & 63]);
            last = at;
            at += 1;
        }
        if at > 64 { Err(NotOurs) } else { Ok(last) }
    }

    /// Passes over a block, all but its constant part.
    #[inline(always)]
    pub(super) fn pass(&mut self, tables: [&Table; 2], constant: &mut i32) -> Result<(), NotOurs> {
        *constant = constant.wrapping_add(self.constant(tables[0])?);
        let mut at = 1;
        while at < 64 {
            self.refill();
            let entry = tables[1].entry(self.buffer);
            if entry.value() != 0 {
                at += usize::from(entry.middle()) + 1;
                self.drop(entry.used());
                continue;
            }
            let symbol = self.symbol(tables[1])?;
            if symbol == 0 {
                return Ok(());
            }
            let size = u32::from(symbol & 15);
            if size == 0 && symbol != 0xF0 {
                return Err(NotOurs);
            }
            at += usize::from(symbol >> 4) + 1;
            self.drop(size);
        }
        if at > 64 { Err(NotOurs) } else { Ok(()) }
    }
}
