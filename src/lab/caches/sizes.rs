//! What the samples of a set take of a cache: one place each, or blocks of the page cache, as many
//! as their files have.

use kintsugi_ffi::mapping::PAGE_BYTES;
use serde::Serialize;

use crate::config::seed::{Stream, purpose};
use crate::data::source::Source;
use crate::data::tiers::cache::cost;
use crate::observe::spans::amount;

/// Most samples.
pub const SAMPLES_MAX: u64 = 1 << 24;
/// The spread of drawn sizes: the standard deviation of their logarithm. Assumed: no paper states
/// it. What is played hardly depends on it, which a test holds.
const SPREAD: f64 = 0.5;

/// What the paper states of a set: how much less LRU misses with its method.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Published {
    /// The set.
    pub set: &'static str,
    /// The largest improvement.
    pub best: f64,
    /// The mean. Neither cache sizes nor bundle ratios are stated.
    pub mean: f64,
}

/// Of both sets.
pub static PUBLISHED: [Published; 2] = [
    Published { set: "Food101", best: 0.339, mean: 0.163 },
    Published { set: "ImageNet100", best: 0.336, mean: 0.162 },
];

/// What each sample takes, by its id.
#[derive(Debug, Clone, PartialEq)]
pub struct Sizes {
    blocks: Vec<u32>,
    total: u64,
}

impl Sizes {
    /// One block each.
    pub fn equal(samples: u64) -> Self {
        Self { blocks: vec![1; samples as usize], total: samples }
    }

    /// Of files of so many bytes, by their ids.
    ///
    /// # Errors
    /// They are more than can be played.
    pub fn of_files(bytes: impl Iterator<Item = u64>) -> Result<Self, String> {
        let too_much = |what| Err(format!("the set has more {what} than can be played"));
        let (mut blocks, mut total) = (Vec::new(), 0u64);
        for bytes in bytes {
            let own = cost(bytes) / PAGE_BYTES as u64;
            total = total.saturating_add(own);
            if total > u64::from(u32::MAX) {
                return too_much(format!("blocks ({})", u32::MAX));
            }
            if blocks.len() as u64 == SAMPLES_MAX {
                return too_much(format!("samples ({SAMPLES_MAX})"));
            }
            blocks.push(own as u32);
        }
        Ok(Self { blocks, total })
    }

    /// Of one sample, one at least.
    pub fn of(&self, id: usize) -> u32 {
        self.blocks[id]
    }

    /// Samples.
    pub fn samples(&self) -> usize {
        self.blocks.len()
    }

    /// Blocks of all of them, 2^32 - 1 at most.
    pub fn total(&self) -> u64 {
        self.total
    }
}

/// A set that is known by its count and its mean.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Named {
    /// As `--set` names it.
    pub name: &'static str,
    /// Files that the paper states.
    pub files: u64,
    /// Mean of their sizes in bytes. The paper does not state it.
    pub mean_bytes: f64,
    /// Where the mean is from.
    pub mean_from: &'static str,
}

/// The sets of Lee and Bahn.
pub const NAMED: [Named; 2] = [
    Named {
        name: "food101",
        files: 101 * 1000,
        mean_bytes: 50_700.0,
        mean_from: "of its 75750 training files, as published",
    },
    Named {
        name: "imagenet100",
        files: 100 * 1300,
        mean_bytes: 114_660.0,
        mean_from: "of ImageNet in MLPerf Storage",
    },
];

impl Named {
    /// Sizes in bytes, log-normal.
    fn draw(&self, spread: f64, seed: u64) -> impl Iterator<Item = u64> {
        let mut stream = Stream::new(&[seed, purpose::FILE_SIZES, self.files]);
        // The mean of a log-normal variate is exp(location + spread^2 / 2).
        let location = self.mean_bytes.ln() - spread * spread / 2.0;
        let size = move |_| (location + spread * stream.normal()).exp().round().max(1.0) as u64;
        (0..self.files).map(size)
    }
}

/// What is read, and what is told of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Set {
    /// What the samples take.
    pub sizes: Sizes,
    /// In words, what is assumed of it among them.
    pub about: String,
    /// What the paper states of it, or of its own sets.
    pub published: &'static [Published],
}

impl Set {
    /// Samples of one size.
    pub fn equal(samples: u64) -> Self {
        let about = format!("{samples} samples of one size");
        Self { sizes: Sizes::equal(samples), about, published: &PUBLISHED }
    }

    /// Files with drawn sizes.
    pub fn named(index: usize, seed: u64) -> Self {
        let named = NAMED[index];
        let sizes = Sizes::of_files(named.draw(SPREAD, seed)).expect("the sets above are small");
        let about = format!(
            "{}: {} files (as the paper says) whose sizes are drawn, not those of the real set: \
             log-normal, mean {} ({}), standard deviation of the logarithm {SPREAD} (assumed); {}",
            named.name,
            named.files,
            amount(named.mean_bytes as u64),
            named.mean_from,
            in_blocks(&sizes)
        );
        Self { sizes, about, published: &PUBLISHED[index..=index] }
    }

    /// The samples of a set that lies somewhere.
    ///
    /// # Errors
    /// It lies nowhere, or cannot be played.
    pub fn listed(name: &str, source: &dyn Source) -> Result<Self, String> {
        let locations = (0..source.len()).map_while(|id| source.location(id));
        let sizes = Sizes::of_files(locations.map(|location| location.extent.length()))?;
        if sizes.samples() as u64 != source.len() {
            return Err(
                "its samples are no files: they are drawn, or unpacked into memory whole; \
                        name a configuration whose set is a folder of pictures or shards"
                    .into(),
            );
        }
        let about = format!(
            "{name}: {} samples with the sizes that its source lists, each in blocks of its own; \
             {}",
            source.len(),
            in_blocks(&sizes)
        );
        Ok(Self { sizes, about, published: &PUBLISHED })
    }
}

fn in_blocks(sizes: &Sizes) -> String {
    let bytes = amount(sizes.total * PAGE_BYTES as u64);
    format!("{} blocks of {PAGE_BYTES} bytes ({bytes})", sizes.total)
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::super::trace::Assignment;
    use super::super::{OF_THE_PAPER, Policy, Row, Setting, play};
    use super::*;

    /// Sets of so many samples, each of 1 to `largest` blocks.
    pub fn sets(samples: usize, largest: u64) -> impl Strategy<Value = Sizes> {
        let bytes = prop::collection::vec(1..=largest * PAGE_BYTES as u64, samples);
        bytes.prop_map(|bytes| Sizes::of_files(bytes.into_iter()).expect("few"))
    }

    #[test]
    fn drawn_sizes_have_the_count_the_mean_and_the_spread_that_are_told() {
        for named in NAMED {
            let bytes: Vec<u64> = named.draw(SPREAD, 7).collect();
            let count = bytes.len() as f64;
            assert_eq!(bytes.len() as u64, named.files);
            let mean = bytes.iter().sum::<u64>() as f64 / count;
            // The standard error of the mean is 0.0017 of it at most.
            assert!((mean / named.mean_bytes - 1.0).abs() < 0.008, "{}: {mean}", named.name);
            let logs: Vec<f64> = bytes.iter().map(|&bytes| (bytes as f64).ln()).collect();
            let middle = logs.iter().sum::<f64>() / count;
            let variance = logs.iter().map(|log| (log - middle).powi(2)).sum::<f64>() / count;
            assert!((variance.sqrt() / SPREAD - 1.0).abs() < 0.01, "{}: {variance}", named.name);
        }
        let [food, net] = [Set::named(0, 1), Set::named(1, 1)];
        assert!(food.sizes != Set::named(0, 2).sizes && food.sizes == Set::named(0, 1).sizes);
        let blocks = [food, net].map(|set| set.sizes.total() as f64 / set.sizes.samples() as f64);
        // A file's last block is half full in the mean.
        for (blocks, named) in blocks.into_iter().zip(NAMED) {
            let wanted = named.mean_bytes / PAGE_BYTES as f64 + 0.5;
            assert!((blocks / wanted - 1.0).abs() < 0.01, "{}: {blocks}", named.name);
        }
    }

    /// The spread is assumed, so no figure may hang on it.
    #[test]
    fn misses_hardly_depend_on_the_spread_of_sizes() {
        let few = Named { files: 6000, ..NAMED[1] };
        let setting =
            Setting { epochs: 6, owners: 4, nodes: vec![1], ratios: vec![0.2, 0.1], seed: 5 };
        let rows = |spread: Option<f64>| -> Vec<Row> {
            let sizes = match spread {
                Some(spread) => Sizes::of_files(few.draw(spread, 5)).expect("few"),
                None => Sizes::equal(few.files),
            };
            let mut rows = play(&setting, &OF_THE_PAPER, &sizes).expect("an order");
            rows.retain(|row| row.policy == Policy::Lru && row.assignment == Assignment::Owners);
            rows
        };
        let equal = rows(None);
        for spread in [0.25, 0.5, 1.0] {
            for (drawn, equal) in rows(Some(spread)).iter().zip(&equal) {
                assert!((drawn.miss - equal.miss).abs() < 0.02, "{spread}: {drawn:?} {equal:?}");
            }
        }
    }

    #[test]
    fn a_set_is_no_larger_than_can_be_played() {
        let huge = Sizes::of_files(std::iter::repeat_n(1 << 40, 17));
        assert!(huge.unwrap_err().contains("more blocks"));
        assert_eq!(Sizes::of_files([0, 1, 4096, 4097].into_iter()).unwrap().blocks, [1, 1, 1, 2]);
    }
}
