//! Aligned memory that kernels read and write: arenas for activations, copies of weights.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// A range of bytes within an arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Span {
    /// First byte; a multiple of [`ALIGN_BYTES`].
    pub offset: usize,
    /// Length in bytes.
    pub bytes: usize,
}

/// A cache line, and the widest vector.
pub const ALIGN_BYTES: usize = 64;
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Owned, zeroed, aligned bytes, seen as `f32`.
#[derive(Debug)]
pub struct Buffer {
    start: NonNull<u8>,
    layout: Layout,
}

impl Buffer {
    /// At least `bytes` zeroed bytes. Large buffers ask the kernel for huge pages.
    pub fn zeroed(bytes: usize) -> Self {
        let align = if bytes >= 2 * HUGE_PAGE_BYTES { HUGE_PAGE_BYTES } else { ALIGN_BYTES };
        let size = bytes.max(1).next_multiple_of(ALIGN_BYTES);
        let layout = Layout::from_size_align(size, align)
            .expect("the alignment is a power of two and sizes fit the address space");
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        if align == HUGE_PAGE_BYTES {
            // SAFETY: the range is this allocation, page aligned; the call only advises.
            unsafe { libc::madvise(start.as_ptr().cast(), size, libc::MADV_HUGEPAGE) };
        }
        Self { start, layout }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.layout.size()
    }

    fn check(&self, span: Span) {
        let end = span.offset.checked_add(span.bytes);
        assert!(
            end.is_some_and(|end| end <= self.bytes()) && span.offset.is_multiple_of(ALIGN_BYTES),
            "span {span:?} is not within a buffer of {} bytes",
            self.bytes()
        );
    }

    /// The span as numbers.
    pub fn slice(&self, span: Span) -> &[f32] {
        self.check(span);
        // SAFETY: the span lies within the allocation, is aligned, and all bytes are initialised
        // (zeroed at allocation); any bit pattern is an f32. Borrowed from self.
        unsafe {
            std::slice::from_raw_parts(self.start.as_ptr().add(span.offset).cast(), span.bytes / 4)
        }
    }

    /// The span as numbers to write.
    pub fn slice_mut(&mut self, span: Span) -> &mut [f32] {
        self.check(span);
        // SAFETY: as in `slice`; borrowed mutably from self.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.start.as_ptr().add(span.offset).cast(),
                span.bytes / 4,
            )
        }
    }

    /// Two spans that share nothing: one to read, one to write.
    pub fn pair(&mut self, read: Span, write: Span) -> (&[f32], &mut [f32]) {
        self.check(read);
        self.check(write);
        let numbers = |bytes: usize| bytes / size_of::<f32>();
        let (first, second) =
            if read.offset < write.offset { (read, write) } else { (write, read) };
        let between = numbers(second.offset);
        assert!(first.offset + first.bytes <= second.offset, "{read:?} and {write:?} overlap");
        let (low, high) = self.as_mut_slice().split_at_mut(between);
        let low = &mut low[numbers(first.offset)..][..numbers(first.bytes)];
        let high = &mut high[..numbers(second.bytes)];
        if read.offset < write.offset { (low, high) } else { (high, low) }
    }

    /// All of it as numbers.
    pub fn as_slice(&self) -> &[f32] {
        self.slice(Span { offset: 0, bytes: self.bytes() })
    }

    /// All of it as numbers to write.
    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        let bytes = self.bytes();
        self.slice_mut(Span { offset: 0, bytes })
    }

    /// Where the span starts, for kernels that run while this buffer is borrowed mutably.
    pub(crate) fn address(&mut self, span: Span) -> *mut std::ffi::c_void {
        self.check(span);
        // SAFETY: the span lies within the allocation.
        unsafe { self.start.as_ptr().add(span.offset).cast() }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated by `zeroed` with this very layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_zeroed_aligned_and_writable() {
        for bytes in [1, 4, 100, 5 << 20] {
            let mut buffer = Buffer::zeroed(bytes);
            assert!(buffer.as_slice().iter().all(|&x| x == 0.0));
            assert_eq!(buffer.as_slice().as_ptr() as usize % ALIGN_BYTES, 0);
            buffer.as_mut_slice().fill(1.5);
            assert_eq!(buffer.slice(Span { offset: 0, bytes: 4 }), [1.5]);
        }
    }

    #[test]
    fn a_pair_of_spans_is_read_and_written_in_either_order() {
        let mut buffer = Buffer::zeroed(192);
        let (low, high) = (Span { offset: 0, bytes: 8 }, Span { offset: 64, bytes: 12 });
        buffer.pair(high, low).1.copy_from_slice(&[1.0, 2.0]);
        let (read, write) = buffer.pair(low, high);
        assert_eq!(read, [1.0, 2.0]);
        write.fill(3.0);
        assert_eq!(buffer.slice(high), [3.0; 3]);
    }

    #[test]
    #[should_panic(expected = "overlap")]
    fn spans_that_overlap_are_no_pair() {
        Buffer::zeroed(192).pair(Span { offset: 0, bytes: 68 }, Span { offset: 64, bytes: 4 });
    }

    #[test]
    #[should_panic(expected = "is not within a buffer")]
    fn a_span_outside_is_refused() {
        Buffer::zeroed(64).slice(Span { offset: 64, bytes: 4 });
    }
}
