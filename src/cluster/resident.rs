//! The two slots in which a rank keeps the state of the last two committed steps (DESIGN 4.4).
//! A step reads the committed slot and writes the other one; the commit word, stored last, says
//! which of them counts. Until it is stored the older state stays whole, so a rank that dies or
//! fails a vote in the middle of an update has lost nothing.
//!
//! The slots live in the memory of the process. Their header holds what a file in
//! `recovery.resident_dir` needs, so that they can move there without a change for their users.

use std::sync::atomic::{AtomicU64, Ordering};

use kintsugi_ffi::stream;

/// First word of every slot: `KNTSLOT` and the format.
pub const MAGIC: u64 = u64::from_le_bytes(*b"KNTSLOT\x01");

/// Every part begins in the middle of a page. That is the start of a cache line, which streaming
/// stores need, and far from the start of a page, where large vectors begin: a gradient 48 bytes
/// before the weight modulo a page made streaming stores up to five times slower, since loads then
/// wait for stores that they only seem to overlap.
const PAGE_BYTES: usize = 4096;
const PHASE_BYTES: usize = PAGE_BYTES / 2;

/// Elements of a rank's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Trained elements; momentum is as long.
    pub parameters: usize,
    /// Running statistics.
    pub statistics: usize,
}

/// What a slot belongs to; written before its commit word, checked before it is taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Identity {
    /// Hash of the run's name.
    pub run: u64,
    /// Of what decides the arithmetic.
    pub config_fingerprint: u64,
    /// Whose slot it is.
    pub member: u32,
    /// Starts of mpirun.
    pub attempt: u32,
}

/// What stands before a slot's tensors (DESIGN 4.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// `MAGIC`.
    pub magic: u64,
    /// Whose it is.
    pub identity: Identity,
    /// Elements of each part.
    pub shape: Shape,
    /// Bytes of the opaque part.
    pub extra_bytes: u64,
}

/// The commit word: valid bit, 40 bits of step, 23 bits of generation. Zero is "not committed".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CommitWord(u64);

impl CommitWord {
    const NONE: Self = Self(0);
    const VALID: u64 = 1 << 63;
    const GENERATION_BITS: u32 = 23;
    const STEP_MAX: u64 = (1 << 40) - 1;
    const GENERATION_MAX: u32 = (1 << Self::GENERATION_BITS) - 1;

    fn of(step: u64, generation: u32) -> Self {
        assert!(step <= Self::STEP_MAX, "step {step} does not fit a commit word");
        assert!(generation <= Self::GENERATION_MAX, "generation {generation} does not fit");
        Self(Self::VALID | step << Self::GENERATION_BITS | u64::from(generation))
    }
    fn step(self) -> u64 {
        (self.0 & !Self::VALID) >> Self::GENERATION_BITS
    }
    fn generation(self) -> u32 {
        (self.0 & u64::from(Self::GENERATION_MAX)) as u32
    }
}

/// One state, to read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlotView<'a> {
    /// Committed steps.
    pub step: u64,
    /// The world's generation when it was committed.
    pub generation: u32,
    /// Trained elements.
    pub parameters: &'a [f32],
    /// As long as `parameters`.
    pub momentum: &'a [f32],
    /// Running statistics.
    pub statistics: &'a [f32],
    /// What the caller stored with it.
    pub extra: &'a [u8],
}

/// One state, to write. It counts only after `Slots::commit`.
#[derive(Debug)]
pub struct SlotMut<'a> {
    /// Trained elements.
    pub parameters: &'a mut [f32],
    /// As long as `parameters`.
    pub momentum: &'a mut [f32],
    /// Running statistics.
    pub statistics: &'a mut [f32],
}

/// A vector of zeros that begins in the middle of a page and never moves.
#[derive(Debug)]
struct Aligned {
    memory: Vec<f32>,
    offset: usize,
    len: usize,
}

impl Aligned {
    fn new(len: usize) -> Self {
        let slack = (PAGE_BYTES + PHASE_BYTES) / size_of::<f32>();
        let memory = vec![0.0; len + slack];
        let offset = memory.as_ptr().align_offset(PAGE_BYTES) + PHASE_BYTES / size_of::<f32>();
        assert!(offset <= slack, "a float is never further than a page from a page's start");
        Self { memory, offset, len }
    }
    fn get(&self) -> &[f32] {
        &self.memory[self.offset..self.offset + self.len]
    }
    fn get_mut(&mut self) -> &mut [f32] {
        &mut self.memory[self.offset..self.offset + self.len]
    }
}

#[derive(Debug)]
struct Slot {
    header: Header,
    commit: AtomicU64,
    parameters: Aligned,
    momentum: Aligned,
    statistics: Aligned,
    extra: Vec<u8>,
}

impl Slot {
    fn new(shape: Shape) -> Self {
        Self {
            header: Header { magic: MAGIC, identity: Identity::default(), shape, extra_bytes: 0 },
            commit: AtomicU64::new(CommitWord::NONE.0),
            parameters: Aligned::new(shape.parameters),
            momentum: Aligned::new(shape.parameters),
            statistics: Aligned::new(shape.statistics),
            extra: Vec::new(),
        }
    }
    fn view(&self) -> SlotView<'_> {
        let word = CommitWord(self.commit.load(Ordering::Acquire));
        SlotView {
            step: word.step(),
            generation: word.generation(),
            parameters: self.parameters.get(),
            momentum: self.momentum.get(),
            statistics: self.statistics.get(),
            extra: &self.extra,
        }
    }
    fn view_mut(&mut self) -> SlotMut<'_> {
        SlotMut {
            parameters: self.parameters.get_mut(),
            momentum: self.momentum.get_mut(),
            statistics: self.statistics.get_mut(),
        }
    }
}

/// The state of the last two committed steps.
#[derive(Debug)]
pub struct Slots {
    slots: [Slot; 2],
    current: usize,
    identity: Identity,
}

impl Slots {
    /// Two slots of zeros. Nothing is committed: `holds_state` is false, and `committed` shows
    /// zeros of step 0, until the first `commit` or `replace`.
    pub fn new(shape: Shape) -> Self {
        let slots = [Slot::new(shape), Slot::new(shape)];
        Self { slots, current: 0, identity: Identity::default() }
    }

    /// Names the run and the process in the header of every slot written from now on.
    pub fn identify(&mut self, identity: Identity) {
        self.identity = identity;
    }

    /// Elements of each part.
    pub fn shape(&self) -> Shape {
        self.slots[0].header.shape
    }

    /// The header of the committed slot.
    pub fn header(&self) -> Header {
        self.slots[self.current].header
    }

    /// Whether a state was ever committed here: false in a newcomer before it is restored.
    pub fn holds_state(&self) -> bool {
        self.slots[self.current].commit.load(Ordering::Acquire) != CommitWord::NONE.0
    }

    /// The newest committed state.
    pub fn committed(&self) -> SlotView<'_> {
        self.slots[self.current].view()
    }

    /// The committed state, and the other slot to write the next one into. The other slot's
    /// commit word is cleared: the state before the last is given up.
    pub fn begin(&mut self) -> (SlotView<'_>, SlotMut<'_>) {
        let (first, second) = self.slots.split_at_mut(1);
        let (current, other) = if self.current == 0 {
            (&first[0], &mut second[0])
        } else {
            (&second[0], &mut first[0])
        };
        other.commit.store(CommitWord::NONE.0, Ordering::Release);
        (current.view(), other.view_mut())
    }

    /// What was written since `begin` becomes the committed state. A thread that wrote with
    /// streaming stores must have fenced itself (`stream::sgd` does).
    ///
    /// # Panics
    /// When step or generation are beyond what a commit word holds (2^40, 2^23).
    pub fn commit(&mut self, step: u64, generation: u32, extra: Vec<u8>) {
        let word = CommitWord::of(step, generation);
        let next = 1 - self.current;
        let slot = &mut self.slots[next];
        slot.header.identity = self.identity;
        slot.header.extra_bytes = extra.len() as u64;
        slot.extra = extra;
        stream::fence();
        slot.commit.store(word.0, Ordering::Release);
        self.current = next;
    }

    /// A received state becomes the committed one; the state held before is given up, so that a
    /// rollback can never meet a slot later than its target.
    ///
    /// # Panics
    /// When the parts are not as long as this rank's.
    pub fn replace(&mut self, state: SlotView<'_>) {
        let (_, slot) = self.begin();
        slot.parameters.copy_from_slice(state.parameters);
        slot.momentum.copy_from_slice(state.momentum);
        slot.statistics.copy_from_slice(state.statistics);
        let before = self.current;
        self.commit(state.step, state.generation, state.extra.to_vec());
        self.slots[before].commit.store(CommitWord::NONE.0, Ordering::Release);
    }

    /// Bytes that both slots take.
    pub fn bytes(&self) -> usize {
        self.slots
            .iter()
            .map(|slot| {
                let floats = [&slot.parameters, &slot.momentum, &slot.statistics];
                let floats: usize = floats.iter().map(|part| part.memory.len()).sum();
                floats * size_of::<f32>() + slot.extra.len() + size_of::<Slot>()
            })
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SHAPE: Shape = Shape { parameters: 37, statistics: 5 };

    fn write(slots: &mut Slots, value: f32) {
        let (_, next) = slots.begin();
        next.parameters.fill(value);
        next.momentum.fill(-value);
        next.statistics.fill(value + 0.5);
    }

    #[test]
    fn nothing_counts_before_the_commit_word() {
        let mut slots = Slots::new(SHAPE);
        assert!(!slots.holds_state());
        write(&mut slots, 1.0);
        assert!(!slots.holds_state());
        slots.commit(1, 0, vec![7]);
        assert!(slots.holds_state());
        write(&mut slots, 2.0);
        let seen = slots.committed();
        assert_eq!((seen.step, seen.generation, seen.extra), (1, 0, &[7u8][..]));
        assert!(seen.parameters.iter().all(|&x| x == 1.0));
    }

    #[test]
    fn an_update_abandoned_halfway_can_be_done_again() {
        let mut slots = Slots::new(SHAPE);
        write(&mut slots, 1.0);
        slots.commit(1, 0, Vec::new());
        write(&mut slots, 99.0);
        write(&mut slots, 2.0);
        slots.commit(2, 3, Vec::new());
        let seen = slots.committed();
        assert_eq!((seen.step, seen.generation, seen.momentum[36]), (2, 3, -2.0));
    }

    #[test]
    fn a_received_state_replaces_both_slots() {
        let mut slots = Slots::new(SHAPE);
        write(&mut slots, 5.0);
        slots.commit(9, 1, vec![1]);
        let zeros = [0.25f32; 37];
        let state = SlotView {
            step: 4,
            generation: 2,
            parameters: &zeros,
            momentum: &zeros,
            statistics: &zeros[..5],
            extra: b"tail",
        };
        slots.identify(Identity { run: 1, config_fingerprint: 2, member: 3, attempt: 4 });
        slots.replace(state);
        assert_eq!(slots.committed(), state);
        assert_eq!(slots.header().identity.member, 3);
        assert_eq!(slots.header().extra_bytes, 4);
        assert_eq!(slots.slots[1 - slots.current].commit.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn slots_begin_on_cache_lines_and_away_from_the_start_of_a_page() {
        let mut slots = Slots::new(SHAPE);
        let (view, next) = slots.begin();
        for part in [view.parameters, view.momentum, view.statistics] {
            assert_eq!(part.as_ptr() as usize % 4096, 2048);
        }
        for part in [next.parameters, next.momentum, next.statistics] {
            assert_eq!(part.as_ptr() as usize % 4096, 2048);
        }
        assert!(slots.bytes() >= 2 * 4 * (37 + 37 + 5));
    }

    proptest! {
        #[test]
        fn a_commit_word_keeps_step_and_generation(
            step in 0..=CommitWord::STEP_MAX, generation in 0..=CommitWord::GENERATION_MAX
        ) {
            let word = CommitWord::of(step, generation);
            prop_assert_ne!(word, CommitWord::NONE);
            prop_assert_eq!((word.step(), word.generation()), (step, generation));
        }
    }
}
