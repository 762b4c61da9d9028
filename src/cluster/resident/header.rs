//! What stands before a slot's tensors, as 64-bit words, and when a slot that some
//! process left behind must not be used. The words carry a checksum of their own; the commit word
//! lies apart and is stored last.

use std::sync::atomic::{AtomicU64, Ordering};

use thiserror::Error;
use xxhash_rust::xxh3::xxh3_64;

use super::state::Shape;

/// First word of every slot: `KNTSLOT` and the format.
pub const MAGIC: u64 = u64::from_le_bytes(*b"KNTSLOT\x02");
/// Of `MAGIC`, without the format.
const MAGIC_MASK: u64 = u64::from_le_bytes(*b"\xff\xff\xff\xff\xff\xff\xff\0");

/// Words that the checksum covers, and where it stands.
const SUMMED: usize = 13;
/// Where the commit word stands: on a cache line of its own.
const COMMIT: usize = 64;
/// Where the length of the opaque part stands.
const EXTRA_BYTES: usize = 11;
/// Words that one header takes: a page.
pub const HEADER_WORDS: usize = 512;

/// What a slot belongs to; written before its commit word, checked before it is taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Identity {
    /// Drawn when the run began: another run in the same folder has another one.
    pub run: u64,
    /// Of what decides the arithmetic.
    pub config_fingerprint: u64,
    /// Of the training set.
    pub data_fingerprint: u64,
    /// Whose slot it is.
    pub member: u32,
    /// Starts of mpirun.
    pub attempt: u32,
}

/// Which state a slot holds. The highest is the newest: a world that went back has a later
/// attempt, or a later generation, than the steps that it left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Key {
    /// Starts of mpirun when it was committed.
    pub attempt: u32,
    /// The world's generation when it was committed.
    pub generation: u32,
    /// Committed steps.
    pub step: u64,
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { attempt, generation, step } = self;
        write!(f, "step {step} (attempt {attempt}, generation {generation})")
    }
}

/// What stands before a slot's tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Whose it is.
    pub identity: Identity,
    /// Which state.
    pub key: Key,
    /// Of the parts: `Shape::words`.
    pub shape: [u64; 2],
    /// Bytes of the opaque part.
    pub extra_bytes: u64,
    /// XXH3-64 of the opaque part.
    pub extra_checksum: u64,
}

/// Why a slot is not used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refusal {
    /// Nothing was committed, or its writer died while it wrote.
    #[error("holds no committed state")]
    Uncommitted,
    /// Some other file.
    #[error("is no slot of this program")]
    Foreign,
    /// Written by another release.
    #[error("has format {0}, this release reads {format}", format = MAGIC >> 56)]
    Format(u64),
    /// Flipped or torn.
    #[error("is damaged: {0}")]
    Damaged(&'static str),
    /// Left by another run in this folder, or by another configuration of it.
    #[error("belongs to another {0}")]
    Other(&'static str),
    /// The run went back behind it.
    #[error("is later than step {0}, to which the run went back")]
    RolledBack(u64),
    /// Its process was taken out of the world.
    #[error("belongs to member {0}, which is not in the world any more")]
    Evicted(u32),
    /// A checkpoint has more.
    #[error("is older than the checkpoint of step {0}")]
    Older(u64),
    /// Other ranks hold other bits under the same key.
    #[error("differs from what most ranks hold")]
    Differs,
}

/// The commit word: valid bit, 40 bits of step, 23 bits of generation. Zero is "not committed".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CommitWord(pub u64);

impl CommitWord {
    pub const NONE: Self = Self(0);
    const VALID: u64 = 1 << 63;
    const GENERATION_BITS: u32 = 23;
    pub const STEP_MAX: u64 = (1 << 40) - 1;
    pub const GENERATION_MAX: u32 = (1 << Self::GENERATION_BITS) - 1;

    pub fn of(step: u64, generation: u32) -> Self {
        assert!(step <= Self::STEP_MAX, "step {step} does not fit a commit word");
        assert!(generation <= Self::GENERATION_MAX, "generation {generation} does not fit");
        Self(Self::VALID | step << Self::GENERATION_BITS | u64::from(generation))
    }
    pub fn step(self) -> u64 {
        (self.0 & !Self::VALID) >> Self::GENERATION_BITS
    }
    pub fn generation(self) -> u32 {
        (self.0 & u64::from(Self::GENERATION_MAX)) as u32
    }
}

impl Header {
    fn words(&self) -> [u64; SUMMED] {
        let Self { identity, key, shape, .. } = self;
        [
            MAGIC,
            identity.run,
            identity.config_fingerprint,
            identity.data_fingerprint,
            u64::from(identity.member),
            u64::from(identity.attempt),
            u64::from(key.attempt),
            u64::from(key.generation),
            key.step,
            shape[0],
            shape[1],
            self.extra_bytes,
            self.extra_checksum,
        ]
    }

    /// Writes all but the commit word.
    pub(super) fn write(&self, page: &[AtomicU64]) {
        let words = self.words();
        for (place, word) in page.iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
        page[SUMMED].store(checksum(&words), Ordering::Relaxed);
    }

    /// Reads a header page as words; the commit word says whether there is anything to read.
    ///
    /// # Errors
    /// Why nobody may use the slot.
    pub fn read(page: &[u64]) -> Result<Self, Refusal> {
        let commit = CommitWord(page[COMMIT]);
        if commit == CommitWord::NONE {
            return Err(Refusal::Uncommitted);
        }
        if page[0] & MAGIC_MASK != MAGIC & MAGIC_MASK {
            return Err(Refusal::Foreign);
        }
        if page[0] != MAGIC {
            return Err(Refusal::Format(page[0] >> 56));
        }
        if checksum(&page[..SUMMED]) != page[SUMMED] {
            return Err(Refusal::Damaged("its header has another checksum"));
        }
        let half = |word: u64| u32::try_from(word).unwrap_or(u32::MAX);
        let identity = Identity {
            run: page[1],
            config_fingerprint: page[2],
            data_fingerprint: page[3],
            member: half(page[4]),
            attempt: half(page[5]),
        };
        let key = Key { attempt: half(page[6]), generation: half(page[7]), step: page[8] };
        if (commit.step(), commit.generation()) != (key.step, key.generation) {
            return Err(Refusal::Damaged("its commit word names another step"));
        }
        let shape = [page[9], page[10]];
        Ok(Self { identity, key, shape, extra_bytes: page[11], extra_checksum: page[12] })
    }

    /// Whether a slot is of this run: `identity.member` and `.attempt` are not compared.
    ///
    /// # Errors
    /// What it is of instead.
    pub fn check_run(&self, ours: &Identity, shape: Shape) -> Result<(), Refusal> {
        let theirs = &self.identity;
        for (what, differs) in [
            ("run", theirs.run != ours.run),
            ("configuration", theirs.config_fingerprint != ours.config_fingerprint),
            ("model", self.shape != shape.words()),
            ("training set", theirs.data_fingerprint != ours.data_fingerprint),
        ] {
            if differs {
                return Err(Refusal::Other(what));
            }
        }
        Ok(())
    }
}

fn checksum(words: &[u64]) -> u64 {
    xxh3_64(bytemuck::cast_slice(words))
}

/// The words of a header page as they stand now.
pub(super) fn load(page: &[AtomicU64]) -> Vec<u64> {
    // The commit word first: what was written before it is then seen too.
    let commit = page[COMMIT].load(Ordering::Acquire);
    let mut words: Vec<u64> = page.iter().map(|word| word.load(Ordering::Relaxed)).collect();
    words[COMMIT] = commit;
    words
}

pub(super) fn extra_bytes(page: &[AtomicU64]) -> u64 {
    page[EXTRA_BYTES].load(Ordering::Relaxed)
}

pub(super) fn commit_word(page: &[AtomicU64]) -> CommitWord {
    CommitWord(page[COMMIT].load(Ordering::Acquire))
}

pub(super) fn set_commit_word(page: &[AtomicU64], word: CommitWord) {
    page[COMMIT].store(word.0, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SHAPE: Shape = Shape::of(&[("weights", 37), ("sums", 5)]);

    fn header() -> Header {
        let identity =
            Identity { run: 1, config_fingerprint: 2, data_fingerprint: 3, member: 4, attempt: 5 };
        let key = Key { attempt: 5, generation: 6, step: 7 };
        Header { identity, key, shape: SHAPE.words(), extra_bytes: 8, extra_checksum: 9 }
    }

    fn page() -> Vec<AtomicU64> {
        let page: Vec<AtomicU64> = (0..HEADER_WORDS).map(|_| AtomicU64::new(0)).collect();
        header().write(&page);
        set_commit_word(&page, CommitWord::of(7, 6));
        page
    }

    #[test]
    fn a_header_reads_back_only_with_its_commit_word() {
        let page = page();
        assert_eq!(Header::read(&load(&page)), Ok(header()));
        set_commit_word(&page, CommitWord::NONE);
        assert_eq!(Header::read(&load(&page)), Err(Refusal::Uncommitted));
        set_commit_word(&page, CommitWord::of(8, 6));
        assert!(matches!(Header::read(&load(&page)), Err(Refusal::Damaged(_))));
    }

    #[test]
    fn other_runs_and_other_formats_are_told_apart_by_name() {
        let ours = header().identity;
        let check = |identity| Header { identity, ..header() }.check_run(&ours, SHAPE);
        assert_eq!(check(Identity { member: 9, attempt: 9, ..ours }), Ok(()));
        assert_eq!(check(Identity { run: 9, ..ours }), Err(Refusal::Other("run")));
        let other = check(Identity { config_fingerprint: 9, ..ours });
        assert_eq!(other, Err(Refusal::Other("configuration")));
        let other = Shape::of(&[("weights", 38), ("sums", 5)]);
        assert_eq!(header().check_run(&ours, other), Err(Refusal::Other("model")));
        let mut words = load(&page());
        words[0] += 1 << 56;
        assert_eq!(Header::read(&words), Err(Refusal::Format(3)));
        words[0] = 17;
        assert_eq!(Header::read(&words), Err(Refusal::Foreign));
    }

    #[test]
    fn a_later_attempt_outranks_steps_that_it_left_behind() {
        let key = |attempt, generation, step| Key { attempt, generation, step };
        assert!(key(2, 0, 10) > key(1, 7, 33));
        assert!(key(1, 2, 10) > key(1, 1, 11));
        assert!(key(1, 1, 11) > key(1, 1, 10));
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

        #[test]
        fn every_flipped_bit_of_a_header_is_found(word in 0usize..=SUMMED, bit in 0u32..64) {
            let mut words = load(&page());
            words[word] ^= 1 << bit;
            prop_assert!(Header::read(&words).is_err());
        }
    }
}
