//! How far copying is: of one rank, or summed over all of a run.

use crate::observe::event::Staged;

/// Words of [`Progress`], for the exchange.
pub const WORDS: usize = 6;

/// Files and bytes that are there, and of how many. A file that several ranks read counts for each
/// of them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Progress {
    /// Files that are on the node of whoever reads them.
    pub files: u64,
    /// All files.
    pub files_total: u64,
    /// Bytes of those that are there.
    pub bytes: u64,
    /// Bytes of all.
    pub bytes_total: u64,
    /// Bytes that are copied a second.
    pub rate: f64,
    /// Ranks that lack a file yet.
    pub lacking: u64,
}

impl Progress {
    /// For the exchange: they sum over ranks.
    pub fn words(&self) -> [u64; WORDS] {
        let Self { files, files_total, bytes, bytes_total, rate, lacking } = *self;
        [files, files_total, bytes, bytes_total, rate as u64, lacking]
    }

    /// As a line tells it, over so many ranks; 0: this one alone.
    pub fn over(&self, ranks: usize) -> Staged {
        let Self { files, files_total, bytes, bytes_total, rate, .. } = *self;
        let (ranks, bytes_per_second) = (ranks as u32, rate);
        Staged { ranks, files, files_total, bytes, bytes_total, bytes_per_second }
    }

    /// The reverse of `words`.
    pub fn from_words(words: &[u64]) -> Self {
        let word = |i: usize| words.get(i).copied().unwrap_or_default();
        let [files, files_total, bytes, bytes_total, rate, lacking] = std::array::from_fn(word);
        Self { files, files_total, bytes, bytes_total, rate: rate as f64, lacking }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_read_back_and_sum() {
        let one =
            Progress { files: 1, files_total: 2, bytes: 3, bytes_total: 4, rate: 5.0, lacking: 1 };
        assert_eq!(Progress::from_words(&one.words()), one);
        let both = Progress::from_words(&one.words().map(|word| 2 * word));
        assert_eq!((both.files_total, both.rate, both.lacking), (4, 10.0, 2));
    }
}
