//! Aligned memory that kernels read and write. An arena lends spans of itself, so that several
//! threads work in it at once: a lease of what another one writes, or to write what another one
//! has, is a mistake of the plan's and ends with a panic.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::c_void;
use std::io;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use crate::allocator;
use crate::operation::Access;

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
        let layout = Self::layout(bytes)
            .expect("the alignment is a power of two and sizes fit the address space");
        Self::of(layout).unwrap_or_else(|| allocator::fail(layout.size()))
    }

    /// The same, for whoever can do without.
    ///
    /// # Errors
    /// `OutOfMemory`: the kernel does not give so much.
    pub fn try_zeroed(bytes: usize) -> io::Result<Self> {
        let made = Self::layout(bytes).and_then(Self::of);
        made.ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// `None`: so much fits no address space.
    fn layout(bytes: usize) -> Option<Layout> {
        let align = if bytes >= 2 * HUGE_PAGE_BYTES { HUGE_PAGE_BYTES } else { ALIGN_BYTES };
        let size = bytes.max(1).checked_next_multiple_of(ALIGN_BYTES)?;
        Layout::from_size_align(size, align).ok()
    }

    /// Every page of it is there: it was written. The system's allocator says what it lacks; that
    /// of the process would end it.
    fn of(layout: Layout) -> Option<Self> {
        let size = layout.size();
        // SAFETY: the layout's size is not zero.
        let start = NonNull::new(unsafe { System.alloc(layout) })?;
        if layout.align() == HUGE_PAGE_BYTES {
            // Before the first byte is written: a page that is there stays as small as it is.
            // SAFETY: the range is this allocation, page aligned; the call only advises.
            unsafe { libc::madvise(start.as_ptr().cast(), size, libc::MADV_HUGEPAGE) };
        }
        // SAFETY: the allocation is so large, and nobody else has it.
        unsafe { start.as_ptr().write_bytes(0, size) };
        Some(Self { start, layout })
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.layout.size()
    }

    /// All of it as numbers.
    pub fn as_slice(&self) -> &[f32] {
        // SAFETY: the allocation is aligned and initialised (zeroed), and any bit pattern is an
        // f32. Borrowed from self.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.bytes() / 4) }
    }

    /// All of it as numbers to write.
    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        // SAFETY: as in `as_slice`; borrowed mutably from self.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().cast(), self.bytes() / 4) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated by `of` with this very layout.
        unsafe { System.dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// A buffer whose spans are lent.
#[derive(Debug)]
pub struct Arena {
    buffer: Buffer,
    lent: Mutex<Vec<(Span, Access)>>,
}

// SAFETY: it owns its memory, which only leases reach.
unsafe impl Send for Arena {}
// SAFETY: `lease` lends no span to two holders of whom one writes it.
unsafe impl Sync for Arena {}

impl Span {
    fn meets(self, other: Self) -> bool {
        self.offset < other.offset + other.bytes && other.offset < self.offset + self.bytes
    }
}

impl Arena {
    /// At least `bytes` zeroed bytes, none of them lent.
    pub fn zeroed(bytes: usize) -> Self {
        Self { buffer: Buffer::zeroed(bytes), lent: Mutex::default() }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.buffer.bytes()
    }

    /// All of it, while nothing is lent.
    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        self.buffer.as_mut_slice()
    }

    /// The same, for whoever can do without.
    ///
    /// # Errors
    /// `OutOfMemory`: the kernel does not give so much.
    pub fn try_zeroed(bytes: usize) -> io::Result<Self> {
        Ok(Self { buffer: Buffer::try_zeroed(bytes)?, lent: Mutex::default() })
    }

    /// Lends these spans until the lease ends. Among themselves they may meet: a kernel may write
    /// its result in the place of its source.
    ///
    /// # Panics
    /// If one is not within the arena, or meets what another lease has and either is written.
    pub fn lease(&self, spans: impl IntoIterator<Item = (Span, Access)>) -> Lease<'_> {
        let spans: Vec<(Span, Access)> = spans.into_iter().collect();
        self.lend(&spans);
        Lease { arena: self, spans }
    }

    /// Lends one span to whoever has it in hand, in whatever thread, until it is dropped.
    ///
    /// # Panics
    /// As `lease`.
    pub fn hold(self: &Arc<Self>, span: Span, access: Access) -> Hold {
        self.lend(&[(span, access)]);
        Hold { arena: Arc::clone(self), span, access }
    }

    fn lend(&self, spans: &[(Span, Access)]) {
        let mut lent = self.lent.lock().unwrap_or_else(PoisonError::into_inner);
        for &(span, access) in spans {
            let end = span.offset.checked_add(span.bytes);
            assert!(
                end.is_some_and(|end| end <= self.bytes())
                    && span.offset.is_multiple_of(ALIGN_BYTES),
                "{span:?} is not within an arena of {} bytes",
                self.bytes()
            );
            let reads = |access: Access| access == Access::Read;
            let clash = |&&(other, of): &&(Span, Access)| {
                span.meets(other) && !(reads(access) && reads(of))
            };
            if let Some(other) = lent.iter().find(clash) {
                panic!("{span:?} to {access:?} is lent already: {other:?}");
            }
        }
        lent.extend_from_slice(spans);
    }

    fn give_back(&self, spans: &[(Span, Access)]) {
        let mut lent = self.lent.lock().unwrap_or_else(PoisonError::into_inner);
        for span in spans {
            if let Some(at) = lent.iter().position(|other| other == span) {
                lent.swap_remove(at);
            }
        }
    }

    fn start(&self, span: Span) -> *mut u8 {
        // SAFETY: the span lies within the allocation (checked when it was lent).
        unsafe { self.buffer.start.as_ptr().add(span.offset) }
    }
}

/// A span that is lent, byte by byte.
#[derive(Debug)]
pub struct Hold {
    arena: Arc<Arena>,
    span: Span,
    access: Access,
}

impl Hold {
    /// All of it.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: within the allocation, which the arena keeps, initialised (zeroed when it was
        // made). Nobody else writes it, and this hold is borrowed.
        unsafe { std::slice::from_raw_parts(self.arena.start(self.span), self.span.bytes) }
    }

    /// All of it, to write.
    ///
    /// # Panics
    /// If it is lent to read.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        assert_eq!(self.access, Access::Write, "{:?} is lent to read", self.span);
        // SAFETY: as in `bytes`; nobody else has it, and this hold is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.arena.start(self.span), self.span.bytes) }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.arena.give_back(&[(self.span, self.access)]);
    }
}

/// Spans of an arena, by their place in the list that was asked for.
#[derive(Debug)]
pub struct Lease<'a> {
    arena: &'a Arena,
    spans: Vec<(Span, Access)>,
}

impl Lease<'_> {
    fn start(&self, span: Span) -> *mut u8 {
        self.arena.start(span)
    }

    /// A span as numbers.
    pub fn slice(&self, at: usize) -> &[f32] {
        let (span, _) = self.spans[at];
        // SAFETY: within the allocation, aligned, initialised (zeroed when it was made); any bit
        // pattern is an f32. No other lease writes it, and this one is borrowed.
        unsafe { std::slice::from_raw_parts(self.start(span).cast(), span.bytes / 4) }
    }

    /// A span as numbers to write.
    ///
    /// # Panics
    /// If it is lent to read.
    pub fn slice_mut(&mut self, at: usize) -> &mut [f32] {
        let (span, access) = self.spans[at];
        assert_eq!(access, Access::Write, "{span:?} is lent to read");
        // SAFETY: as in `slice`; no other lease has it, and this one is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start(span).cast(), span.bytes / 4) }
    }

    /// Two spans that share nothing: one to read, one to write.
    ///
    /// # Panics
    /// If they meet.
    pub fn pair(&mut self, read: usize, write: usize) -> (&[f32], &mut [f32]) {
        let (from, to) = (self.spans[read].0, self.spans[write].0);
        assert!(!from.meets(to), "{from:?} and {to:?} overlap");
        // SAFETY: as in `slice`; what is borrowed mutably beside it is elsewhere.
        let source = unsafe { std::slice::from_raw_parts(self.start(from).cast(), from.bytes / 4) };
        (source, self.slice_mut(write))
    }

    /// All spans, for a kernel that runs while this lease is borrowed.
    pub fn arguments(&mut self) -> impl Iterator<Item = Loan<'_>> {
        let this = &*self;
        this.spans.iter().map(|&(span, access)| Loan {
            start: this.start(span).cast(),
            bytes: span.bytes,
            access,
            lease: PhantomData,
        })
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        self.arena.give_back(&self.spans);
    }
}

/// A span for a kernel.
pub struct Loan<'a> {
    pub(crate) start: *mut c_void,
    pub(crate) bytes: usize,
    pub(crate) access: Access,
    lease: PhantomData<&'a mut ()>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOW: Span = Span { offset: 0, bytes: 8 };
    const HIGH: Span = Span { offset: 64, bytes: 12 };

    #[test]
    fn a_buffer_is_zeroed_aligned_and_writable() {
        for bytes in [1, 4, 100, 5 << 20] {
            let mut buffer = Buffer::zeroed(bytes);
            assert!(buffer.as_slice().iter().all(|&x| x == 0.0));
            assert_eq!(buffer.as_slice().as_ptr() as usize % ALIGN_BYTES, 0);
            buffer.as_mut_slice().fill(1.5);
            assert_eq!(buffer.as_slice()[0], 1.5);
        }
    }

    #[test]
    fn a_pair_of_spans_is_read_and_written_in_either_order() {
        let arena = Arena::zeroed(192);
        let mut lease = arena.lease([(LOW, Access::Write), (HIGH, Access::Write)]);
        lease.pair(1, 0).1.copy_from_slice(&[1.0, 2.0]);
        let (read, write) = lease.pair(0, 1);
        assert_eq!(read, [1.0, 2.0]);
        write.fill(3.0);
        assert_eq!(lease.slice(1), [3.0; 3]);
    }

    #[test]
    fn one_thread_copies_beside_another_that_computes() {
        let arena = Arena::zeroed(192);
        std::thread::scope(|scope| {
            for (span, value) in [(LOW, 1.0), (HIGH, 2.0)] {
                let arena = &arena;
                scope.spawn(move || {
                    for _ in 0..1000 {
                        arena.lease([(span, Access::Write)]).slice_mut(0).fill(value);
                    }
                });
            }
        });
        let read = || arena.lease([(LOW, Access::Read), (HIGH, Access::Read)]);
        let (one, other) = (read(), read());
        assert_eq!((one.slice(0), other.slice(1)), (&[1.0; 2][..], &[2.0; 3][..]));
    }

    #[test]
    fn what_was_given_back_is_lent_again() {
        let arena = Arena::zeroed(64);
        drop(arena.lease([(LOW, Access::Write), (LOW, Access::Read)]));
        drop(arena.lease([(LOW, Access::Write)]));
        assert!(arena.lent.lock().expect("nobody panicked").is_empty());
    }

    #[test]
    #[should_panic(expected = "is lent already")]
    fn what_is_written_is_lent_to_nobody_else() {
        let arena = Arena::zeroed(64);
        let _held = arena.lease([(LOW, Access::Write)]);
        arena.lease([(Span { offset: 0, bytes: 4 }, Access::Read)]);
    }

    #[test]
    #[should_panic(expected = "is lent already")]
    fn what_is_read_is_not_lent_to_write() {
        let arena = Arena::zeroed(64);
        let _held = arena.lease([(LOW, Access::Read)]);
        arena.lease([(LOW, Access::Write)]);
    }

    #[test]
    fn what_another_thread_holds_is_lent_until_it_gives_it_back() {
        let arena = Arc::new(Arena::zeroed(192));
        let odd = Span { offset: 64, bytes: 13 };
        let mut held = arena.hold(odd, Access::Write);
        drop(arena.lease([(LOW, Access::Write)]));
        let writer = std::thread::spawn(move || held.bytes_mut().fill(7));
        writer.join().expect("it ends");
        let (one, other) = (arena.hold(odd, Access::Read), arena.hold(odd, Access::Read));
        assert_eq!((one.bytes(), other.bytes()), (&[7; 13][..], &[7; 13][..]));
    }

    #[test]
    #[should_panic(expected = "is lent already")]
    fn what_is_held_is_not_lent() {
        let arena = Arc::new(Arena::zeroed(64));
        let _held = arena.hold(LOW, Access::Read);
        arena.lease([(LOW, Access::Write)]);
    }

    #[test]
    #[should_panic(expected = "is lent to read")]
    fn what_is_held_to_read_is_not_written() {
        Arc::new(Arena::zeroed(64)).hold(LOW, Access::Read).bytes_mut();
    }

    #[test]
    fn so_much_as_no_machine_has_is_an_error() {
        for bytes in [usize::MAX, usize::MAX / 2] {
            let error = Arena::try_zeroed(bytes).expect_err("nobody has so much");
            assert_eq!(error.kind(), io::ErrorKind::OutOfMemory, "{bytes}");
        }
    }

    #[test]
    #[should_panic(expected = "is lent to read")]
    fn what_is_lent_to_read_is_not_written() {
        Arena::zeroed(64).lease([(LOW, Access::Read)]).slice_mut(0);
    }

    #[test]
    #[should_panic(expected = "overlap")]
    fn spans_that_overlap_are_no_pair() {
        let (arena, long) = (Arena::zeroed(192), Span { offset: 0, bytes: 68 });
        arena.lease([(long, Access::Read), (HIGH, Access::Write)]).pair(0, 1);
    }

    #[test]
    #[should_panic(expected = "is not within an arena")]
    fn a_span_outside_is_refused() {
        Arena::zeroed(64).lease([(HIGH, Access::Read)]);
    }
}
