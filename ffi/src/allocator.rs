//! The system's allocator, but that a failed allocation ends the process at once. What Rust does
//! about one takes locks and memory to print a stack: a thread that holds such a lock already waits
//! for itself, and its process computes nothing more and hears no signal. A rank that is dead is
//! replaced, one that hangs is waited for.

use std::alloc::{GlobalAlloc, Layout, System};

use crate::ending;

/// See the module.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ending;

// SAFETY: all memory is the system allocator's; what it refuses ends the process.
unsafe impl GlobalAlloc for Ending {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        or_end(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        or_end(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        or_end(unsafe { System.realloc(memory, layout, bytes) }, bytes)
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[inline]
fn or_end(memory: *mut u8, bytes: usize) -> *mut u8 {
    if memory.is_null() {
        fail(bytes);
    }
    memory
}

/// What is done about an allocation of so many bytes that failed: one line on standard error, and
/// the end.
#[cold]
pub fn fail(bytes: usize) -> ! {
    const LINE_BYTES_MAX: usize = 80;
    let (mut line, mut length) = ([0; LINE_BYTES_MAX], 0);
    let mut digits = [0; 20];
    let number = decimal(bytes, &mut digits);
    for part in [&b"memory allocation of "[..], number, &b" bytes failed\n"[..]] {
        line[length..length + part.len()].copy_from_slice(part);
        length += part.len();
    }
    ending::say(&line[..length]);
    ending::end()
}

/// A number's digits, without memory.
fn decimal(mut number: usize, digits: &mut [u8; 20]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[at..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_without_memory() {
        for number in [0, 7, 10, 4096, usize::MAX] {
            assert_eq!(decimal(number, &mut [0; 20]), number.to_string().as_bytes());
        }
    }
}
