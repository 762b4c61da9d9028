//! The memory of two slots: the committed one to read, and the other, which is read and written
//! whole here, or lent to whoever writes the next state.

use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kintsugi_ffi::mapping::{Memory, Words};

use super::file::SlotFile;
use super::header::HEADER_WORDS;

/// Where the slots lie.
#[derive(Debug)]
pub(super) struct Backing {
    /// Both headers.
    words: Words,
    /// Which slot is the committed one.
    pub current: usize,
    committed: Memory,
    /// `None` while it is lent.
    other: Mutex<Option<Memory>>,
    /// `None`: the memory of this process.
    pub file: Option<SlotFile>,
}

impl Backing {
    /// Both bodies lie one after the other in `memory`; the first is the committed one.
    pub fn new(words: Words, memory: Memory, file: Option<SlotFile>) -> Self {
        let half = memory.len_bytes() / 2;
        let mut halves = memory.cut([half]).into_iter();
        let committed = halves.next().expect("cut in two");
        Self { words, current: 0, committed, other: Mutex::new(halves.next()), file }
    }

    /// A slot's header.
    pub fn page(&self, slot: usize) -> &[AtomicU64] {
        &self.words.get()[slot * HEADER_WORDS..(slot + 1) * HEADER_WORDS]
    }

    /// The committed body.
    pub fn committed(&self) -> &[u8] {
        self.committed.bytes()
    }

    /// Hands on a slot's body; `None` where it is lent: its commit word is cleared then, and nobody
    /// wants to read it.
    pub fn with_body<T>(&self, slot: usize, read: impl FnOnce(Option<&[u8]>) -> T) -> T {
        match slot == self.current {
            true => read(Some(self.committed())),
            false => read(self.other().as_ref().map(Memory::bytes)),
        }
    }

    /// The committed body, and the other one to write.
    ///
    /// # Panics
    /// While it is lent.
    pub fn both(&mut self) -> (&[u8], &mut [u8]) {
        let other = self.other.get_mut().unwrap_or_else(PoisonError::into_inner);
        let other = other.as_mut().expect("what was lent is back before it is written here");
        (self.committed.bytes(), other.bytes_mut())
    }

    /// Takes the other body away.
    ///
    /// # Panics
    /// While it is lent.
    pub fn lend(&self) -> Memory {
        self.other().take().expect("one step is written at a time")
    }

    /// It is back.
    pub fn take_back(&self, body: Memory) {
        *self.other() = Some(body);
    }

    /// The slot that is the committed one from now on.
    ///
    /// # Panics
    /// When it is lent.
    pub fn turn_to(&mut self, slot: usize) {
        if slot != self.current {
            let other = self.other.get_mut().unwrap_or_else(PoisonError::into_inner);
            let other = other.as_mut().expect("what was lent is back before it counts");
            std::mem::swap(&mut self.committed, other);
            self.current = slot;
        }
    }

    /// Makes every page present, lent ones too.
    pub fn populate(&self) {
        self.committed.presence().populate();
    }

    fn other(&self) -> MutexGuard<'_, Option<Memory>> {
        self.other.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
