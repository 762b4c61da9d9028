//! Huffman tables as the bit reader wants them: the next ten bits say most symbols at once, with
//! the value that follows them.

use super::NotOurs;

/// Bits that are looked up at once.
pub(super) const LOOKUP_BITS: u32 = 10;
/// Longest code of a JPEG.
const CODE_BITS_MAX: u32 = 16;

/// What the next bits mean.
///
/// Bits 0-7: how many of them are used; 0: the code is longer than the lookup. Bits 16-31: the
/// value of a coefficient that lies in them whole, bits 8-15 being the zeros before it. Where the
/// value is 0 only the code lies in them, and bits 8-15 are its symbol.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry(u32);

impl Entry {
    #[inline(always)]
    pub(super) fn used(self) -> u32 {
        self.0 & 0xFF
    }

    #[inline(always)]
    pub(super) fn middle(self) -> u8 {
        (self.0 >> 8) as u8
    }

    #[inline(always)]
    pub(super) fn value(self) -> i32 {
        self.0 as i32 >> 16
    }
}

/// One table. It is made anew only where a file brings another one than the file before.
#[derive(Debug, Clone)]
pub(super) struct Table {
    /// Codes of each length, from 1.
    counts: [u8; CODE_BITS_MAX as usize],
    symbols: [u8; 256],
    entries: Box<[Entry; 1 << LOOKUP_BITS]>,
    /// By length: where its codes end, in 16 bits.
    ends: [u32; CODE_BITS_MAX as usize + 1],
    /// By length: index of its first symbol, less its first code.
    offsets: [i32; CODE_BITS_MAX as usize + 1],
}

impl Default for Table {
    fn default() -> Self {
        Self {
            counts: [0; 16],
            symbols: [0; 256],
            entries: Box::new([Entry(0); 1 << LOOKUP_BITS]),
            ends: [0; 17],
            offsets: [0; 17],
        }
    }
}

impl Table {
    /// Takes the counts and symbols of a DHT segment.
    pub(super) fn set(&mut self, counts: &[u8; 16], symbols: &[u8]) -> Result<(), NotOurs> {
        if symbols.is_empty() || symbols.len() > 256 {
            return Err(NotOurs);
        }
        if self.counts == *counts && self.symbols[..symbols.len()] == *symbols {
            return Ok(());
        }
        // Until it is whole it equals no other.
        self.counts = [0; 16];
        self.symbols = [0; 256];
        self.symbols[..symbols.len()].copy_from_slice(symbols);
        self.entries.fill(Entry(0));
        let (mut code, mut index) = (0u32, 0usize);
        for length in 1..=CODE_BITS_MAX {
            let count = u32::from(counts[length as usize - 1]);
            self.offsets[length as usize] = index as i32 - code as i32;
            for _ in 0..count {
                if length <= LOOKUP_BITS {
                    self.enter(code, length, symbols[index]);
                }
                code += 1;
                index += 1;
            }
            // No code is all ones.
            if count > 0 && code >= 1 << length {
                return Err(NotOurs);
            }
            self.ends[length as usize] = code << (CODE_BITS_MAX - length);
            code <<= 1;
        }
        self.counts = *counts;
        Ok(())
    }

    fn enter(&mut self, code: u32, length: u32, symbol: u8) {
        let free = LOOKUP_BITS - length;
        let (zeros, size) = (u32::from(symbol >> 4), u32::from(symbol & 15));
        for rest in 0..1u32 << free {
            let mut entry = length | u32::from(symbol) << 8;
            if size > 0 && size <= free {
                let value = extend(rest >> (free - size), size);
                entry = (length + size) | zeros << 8 | (value as u32) << 16;
            }
            // A code that does not fit in is refused by `set`.
            let at = ((code << free) | rest) as usize & ((1 << LOOKUP_BITS) - 1);
            self.entries[at] = Entry(entry);
        }
    }

    #[inline(always)]
    pub(super) fn entry(&self, bits: u64) -> Entry {
        self.entries[(bits >> (64 - LOOKUP_BITS)) as usize]
    }

    /// Symbol and length of a code that is longer than the lookup.
    #[cold]
    pub(super) fn long(&self, bits: u64) -> Result<(u8, u32), NotOurs> {
        let bits = (bits >> 48) as u32;
        for length in LOOKUP_BITS + 1..=CODE_BITS_MAX {
            if bits < self.ends[length as usize] {
                let code = (bits >> (CODE_BITS_MAX - length)) as i32;
                let at = code + self.offsets[length as usize];
                return Ok((self.symbols[at as usize & 255], length));
            }
        }
        Err(NotOurs)
    }
}

/// The value of `size` (1..=15) bits behind a symbol.
#[inline(always)]
pub(super) fn extend(bits: u32, size: u32) -> i32 {
    let negative = bits >> (size - 1) == 0;
    bits as i32 - if negative { (1 << size) - 1 } else { 0 }
}
