//! A buffer of numbers that threads fill piece by piece at the same time, each its own piece, and
//! that is one `Vec` again when all pieces are given back. Nothing is copied.

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The buffer while it is in pieces.
#[derive(Debug)]
pub struct Pieces {
    whole: Arc<Whole>,
}

/// One piece. It is given back by being dropped.
#[derive(Debug)]
pub struct Piece {
    whole: Arc<Whole>,
    range: Range<usize>,
}

/// A `Vec` taken apart.
#[derive(Debug)]
struct Whole {
    start: *mut f32,
    length: usize,
    capacity: usize,
    /// Numbers of a piece; the last one may have fewer.
    each: usize,
    /// Which pieces were handed out.
    handed: Vec<AtomicBool>,
}

// SAFETY: the memory belongs to this value alone, and no two pieces overlap.
unsafe impl Send for Whole {}
// SAFETY: through a shared reference only `handed` is touched, which is atomic.
unsafe impl Sync for Whole {}

impl Drop for Whole {
    fn drop(&mut self) {
        // SAFETY: these are the parts of a Vec, and whoever held a piece has given it back, since
        // each piece keeps this value alive.
        drop(unsafe { Vec::from_raw_parts(self.start, self.length, self.capacity) });
    }
}

impl Pieces {
    /// Pieces of `each` numbers (above 0), the last one of what is left.
    pub fn new(values: Vec<f32>, each: usize) -> Self {
        assert!(each > 0, "a piece holds something");
        let mut values = ManuallyDrop::new(values);
        let handed = (0..values.len().div_ceil(each)).map(|_| AtomicBool::new(false)).collect();
        let (length, capacity) = (values.len(), values.capacity());
        let whole = Whole { start: values.as_mut_ptr(), length, capacity, each, handed };
        Self { whole: Arc::new(whole) }
    }

    /// A piece by its place; `None`: there is no such piece, or it was handed out before.
    pub fn hand(&self, index: usize) -> Option<Piece> {
        let whole = &self.whole;
        if whole.handed.get(index)?.swap(true, Ordering::Relaxed) {
            return None;
        }
        let start = index * whole.each;
        let range = start..(start + whole.each).min(whole.length);
        Some(Piece { whole: Arc::clone(whole), range })
    }

    /// The buffer; `None` while somebody holds a piece, whose last holder frees it then.
    pub fn whole(self) -> Option<Vec<f32>> {
        let mut whole = ManuallyDrop::new(Arc::into_inner(self.whole)?);
        whole.handed = Vec::new();
        // SAFETY: these are the parts of a Vec; nobody else refers to them, and they are not
        // dropped here.
        Some(unsafe { Vec::from_raw_parts(whole.start, whole.length, whole.capacity) })
    }
}

impl Deref for Piece {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        // SAFETY: the range lies inside the buffer, which lives as long as this piece, and nobody
        // else has a piece of it.
        unsafe {
            std::slice::from_raw_parts(self.whole.start.add(self.range.start), self.range.len())
        }
    }
}

impl DerefMut for Piece {
    fn deref_mut(&mut self) -> &mut [f32] {
        let length = self.range.len();
        // SAFETY: as above, and this piece is borrowed by nobody else.
        unsafe { std::slice::from_raw_parts_mut(self.whole.start.add(self.range.start), length) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_fill_their_pieces_of_one_buffer() {
        let values = vec![0.0; 10];
        let start = values.as_ptr();
        let pieces = Pieces::new(values, 4);
        assert!(pieces.hand(3).is_none());
        std::thread::scope(|scope| {
            for index in 0..3 {
                let mut piece = pieces.hand(index).expect("not handed out");
                assert!(pieces.hand(index).is_none());
                scope.spawn(move || piece.fill(index as f32));
            }
        });
        let whole = pieces.whole().expect("all are back");
        assert_eq!(whole, [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0]);
        assert_eq!(whole.as_ptr(), start, "nothing was copied");
    }

    #[test]
    fn a_piece_outlives_its_buffer_and_keeps_it_from_being_whole() {
        let pieces = Pieces::new(vec![1.0; 5], 5);
        let mut late = pieces.hand(0).expect("there is one");
        assert!(pieces.whole().is_none());
        late[4] = 2.0;
        assert_eq!(*late, [1.0, 1.0, 1.0, 1.0, 2.0]);
        assert_eq!(Pieces::new(Vec::new(), 3).whole(), Some(Vec::new()));
    }
}
