//! A micro-batch on its way: threads fill one buffer, a chunk each, and it is whole when all chunks
//! are delivered. No picture is copied.

use kintsugi_ffi::pieces::{Piece, Pieces};

use crate::data::{Batch, DataError};

/// Samples of a chunk.
pub(super) const CHUNK: usize = 16;

/// A micro-batch: (step, owner), in the order in which they are decoded.
pub(super) type Key = (u64, u32);

/// Where a chunk belongs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ticket {
    pub(super) key: Key,
    /// Which slot it belongs to: a dropped and planned again one is another.
    pub(super) serial: u64,
    pub(super) index: usize,
}

/// What one thread decodes at a time. It is dropped before its ticket is delivered.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) ticket: Ticket,
    /// The epoch of its step.
    pub(super) epoch: u64,
    /// Its samples.
    pub(super) ids: Vec<u64>,
    /// Room for their values, which hold anything.
    pub(super) values: Piece,
}

/// What became of a chunk's samples, beside the values of those that were decoded, which lie one
/// behind the other.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Filled {
    /// Of those that were decoded.
    pub(super) labels: Vec<u32>,
    pub(super) count: u64,
    pub(super) skipped: u64,
    pub(super) altered: u64,
    pub(super) contents: u64,
    pub(super) mix: u64,
}

/// One micro-batch's buffer.
pub(super) struct Slot {
    serial: u64,
    epoch: u64,
    ids: Vec<u64>,
    /// Values of a sample.
    each: usize,
    /// From the first chunk on.
    pieces: Option<Pieces>,
    /// Chunks that a thread has taken.
    handed: usize,
    parts: Vec<Option<Result<Filled, DataError>>>,
    missing: usize,
    /// Callers that wait for it: it stays whatever the plan says.
    pub(super) wanted: u32,
}

impl Slot {
    /// `each`: values of a sample, above 0.
    pub(super) fn new(serial: u64, epoch: u64, ids: Vec<u64>, each: usize) -> Self {
        let missing = ids.len().div_ceil(CHUNK);
        let parts = (0..missing).map(|_| None).collect();
        Self { serial, epoch, ids, each, pieces: None, handed: 0, parts, missing, wanted: 0 }
    }

    /// Whether a chunk of it is not being decoded yet.
    pub(super) fn is_open(&self) -> bool {
        self.handed < self.parts.len()
    }

    /// Whether every chunk is delivered.
    pub(super) fn is_whole(&self) -> bool {
        self.missing == 0
    }

    /// The next chunk. The first one takes a buffer of so many values.
    pub(super) fn hand(
        &mut self,
        key: Key,
        buffer: impl FnOnce(usize) -> Vec<f32>,
    ) -> Option<Chunk> {
        let index = self.handed;
        let ids = self.ids.chunks(CHUNK).nth(index)?.to_vec();
        let (length, each) = (self.ids.len() * self.each, CHUNK * self.each);
        let pieces = self.pieces.get_or_insert_with(|| Pieces::new(buffer(length), each));
        let values = pieces.hand(index)?;
        self.handed += 1;
        let ticket = Ticket { key, serial: self.serial, index };
        Some(Chunk { ticket, epoch: self.epoch, ids, values })
    }

    /// A chunk is decoded and dropped. Says whether all are now.
    pub(super) fn deliver(&mut self, ticket: Ticket, part: Result<Filled, DataError>) -> bool {
        if ticket.serial != self.serial {
            return false;
        }
        if self.parts[ticket.index].replace(part).is_none() {
            self.missing -= 1;
        }
        self.is_whole()
    }

    /// The micro-batch of delivered chunks; the first error in their order, if there is one.
    pub(super) fn into_batch(self) -> Result<Batch, DataError> {
        assert!(self.is_whole(), "a micro-batch is taken when its chunks are delivered");
        let pieces = self.pieces.map_or_else(|| Some(Vec::new()), Pieces::whole);
        let mut images = pieces.expect("a chunk is dropped before it is delivered");
        let mut batch = Batch::default();
        let mut end = 0;
        for (index, part) in self.parts.into_iter().flatten().enumerate() {
            let part = part?;
            let (start, length) = (index * CHUNK * self.each, part.labels.len() * self.each);
            if start != end {
                // Samples before it were skipped.
                images.copy_within(start..start + length, end);
            }
            end += length;
            batch.labels.extend_from_slice(&part.labels);
            batch.count += part.count;
            batch.skipped += part.skipped;
            batch.altered += part.altered;
            batch.contents = batch.contents.wrapping_add(part.contents);
            batch.mix = batch.mix.wrapping_add(part.mix);
        }
        images.truncate(end);
        Ok(Batch { images, ..batch })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fills each picture's two values with its id; those of `bad` are skipped.
    fn fill(chunk: Chunk, bad: &[u64]) -> (Ticket, Filled) {
        let Chunk { ticket, ids, mut values, .. } = chunk;
        let mut filled = Filled { count: ids.len() as u64, ..Filled::default() };
        for id in ids {
            if bad.contains(&id) {
                filled.skipped += 1;
                continue;
            }
            let start = 2 * filled.labels.len();
            values[start..start + 2].fill(id as f32);
            filled.labels.push(id as u32);
        }
        (ticket, filled)
    }

    fn whole(bad: &[u64], buffer: &mut Vec<Vec<f32>>) -> Batch {
        let mut slot = Slot::new(7, 0, (0..40).collect(), 2);
        let chunks: Vec<Chunk> = std::iter::from_fn(|| {
            slot.hand((3, 1), |length| {
                let mut values = buffer.pop().unwrap_or_default();
                values.resize(length, 0.0);
                values
            })
        })
        .collect();
        assert_eq!(chunks.iter().map(|chunk| chunk.ids.len()).collect::<Vec<_>>(), [16, 16, 8]);
        for (number, chunk) in chunks.into_iter().rev().enumerate() {
            let (ticket, filled) = fill(chunk, bad);
            assert_eq!(slot.deliver(ticket, Ok(filled)), number == 2);
        }
        slot.into_batch().expect("no chunk failed")
    }

    #[test]
    fn chunks_come_together_in_their_order_in_a_buffer_that_is_used_again() {
        let batch = whole(&[], &mut Vec::new());
        assert_eq!(batch.labels, (0..40).collect::<Vec<_>>());
        let place = batch.images.as_ptr();
        for bad in [&[0][..], &[15, 16, 39], &[20, 21, 22], &[]] {
            let batch = whole(bad, &mut vec![batch.images.clone()]);
            assert_eq!(batch.skipped, bad.len() as u64);
            assert!(!batch.labels.iter().any(|&label| bad.contains(&u64::from(label))));
            let expected: Vec<f32> =
                batch.labels.iter().flat_map(|&label| [label as f32; 2]).collect();
            assert_eq!(batch.images, expected);
        }
        let again = whole(&[], &mut vec![batch.images]);
        assert_eq!(again.images.as_ptr(), place);
    }

    #[test]
    fn the_first_error_in_their_order_is_the_micro_batchs() {
        let mut slot = Slot::new(7, 0, (0..40).collect(), 1);
        for name in ["first", "second", "third"] {
            let ticket = slot.hand((0, 0), |length| vec![0.0; length]).expect("open").ticket;
            let part = match name {
                "first" => Ok(Filled { labels: vec![0; 16], count: 16, ..Filled::default() }),
                _ => Err(DataError::Set(name.into())),
            };
            slot.deliver(ticket, part);
        }
        assert_eq!(slot.into_batch().expect_err("two failed").to_string(), "second");
        let none = Slot::new(7, 0, Vec::new(), 1);
        assert!(none.is_whole());
        assert_eq!(none.into_batch().expect("nothing failed"), Batch::default());
    }
}
