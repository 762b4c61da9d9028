//! What `run.seed` means: counter-based streams, so that any draw can be made anywhere, in any
//! order, by anyone. Ours, ten lines, so that no upgrade can change a run's order.

/// A stream of 64-bit words that is a pure function of its key. Word `i` is
/// SplitMix64's finaliser over `key + (i + 1) * golden ratio`.
#[derive(Debug, Clone)]
pub struct Stream {
    key: u64,
    next: u64,
}

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// SplitMix64's finaliser (Steele, Lea, Flood 2014): a bijection that mixes every bit.
pub fn mix64(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Folds the parts into one key; the order of the parts matters.
pub fn key(parts: &[u64]) -> u64 {
    parts.iter().fold(GOLDEN, |key, &part| {
        mix64(key ^ mix64(part.wrapping_add(GOLDEN))).wrapping_mul(GOLDEN | 1)
    })
}

impl Stream {
    /// The stream of these parts, for example `(seed, purpose, epoch, sample)`.
    pub fn new(parts: &[u64]) -> Self {
        Self { key: key(parts), next: 0 }
    }

    /// The next word.
    pub fn next_u64(&mut self) -> u64 {
        self.next += 1;
        mix64(self.key.wrapping_add(self.next.wrapping_mul(GOLDEN)))
    }

    /// Uniform in `0..bound` (bound > 0); the bias of the multiply-shift is below 2^-32 for bounds
    /// below 2^32.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "an empty range has no members");
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Uniform in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Exponential with mean 1: the wait for the next of events that come at rate 1.
    pub fn exponential(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }

    /// Standard normal (Box-Muller, one of the pair).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

/// Purposes that separate streams of one seed: the second part of every key.
#[allow(missing_docs)]
pub mod purpose {
    pub const WEIGHTS: u64 = 1;
    pub const DEAL: u64 = 2;
    pub const EPOCH: u64 = 3;
    pub const AUGMENT: u64 = 4;
    pub const DROPOUT: u64 = 5;
    pub const SYNTHETIC: u64 = 6;
    pub const FAULTS: u64 = 7;
    pub const SIMULATE: u64 = 8;
    pub const FLEET: u64 = 9;
    pub const MIX: u64 = 10;
    pub const FILE_SIZES: u64 = 11;
}
