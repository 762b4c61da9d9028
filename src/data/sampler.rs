//! The order of samples: pure functions of (seed, epoch, position), O(1) memory.
//!
//! With N samples and V owners, position `p` of every epoch belongs to owner `p mod V`; the
//! owner's row there is `p div V`. Two permutations make a sample of it:
//!
//! - **deal**, once from the seed: a permutation D of `0..N`. Owner `v` has the samples
//!   `D(v), D(v + V), D(v + 2V), ...` for ever.
//! - **epoch**, per (seed, epoch, owner): a permutation E of that owner's rows.
//!
//! So `sample(epoch, p) = D(v + V * E(p div V))` with `v = p mod V`.
//!
//! **Ragged tail.** When V does not divide N, the first `N mod V` owners have one sample more;
//! the epoch's last row holds only theirs. Nothing is dropped and nothing repeated.
//!
//! **Steps** tile an epoch: step `k` of it takes the positions `k * batch ..` up to `batch` of
//! them; the last one takes what is left. When V does not divide the batch, an owner's
//! micro-batch is larger by one in some steps than in others; it may be empty in a short step.
//!
//! Nothing here knows how many ranks there are.

use crate::config::seed::{self, Stream, mix64, purpose};
use crate::config::{Config, resolve_owners};

use super::DataError;

/// What the audit sums over the samples whose gradients entered a step.
pub fn mix(epoch: u64, id: u64) -> u64 {
    mix64(seed::key(&[epoch, id]))
}

/// Rounds of the Feistel network: four per half.
const ROUNDS: u64 = 8;
/// The odd step of SplitMix64.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// A permutation of `0..len` as a pure function: an unbalanced Feistel network over the next
/// power of two, walked until it lands inside (Black and Rogaway 2002, cycle walking).
#[derive(Debug, Clone, Copy, PartialEq)]
struct Permutation {
    len: u64,
    key: u64,
    /// Added last, modulo `len`: a network over a few values alone prefers some places by 1 %.
    turn: u64,
    /// Bits of the low half and of the high half; the domain is `2^(low + high) < 2 * len`.
    low: u32,
    high: u32,
}

impl Permutation {
    /// `len` > 0.
    fn new(len: u64, key: u64) -> Self {
        debug_assert!(len > 0, "an empty range has no permutation");
        let bits = u64::BITS - (len - 1).leading_zeros();
        let turn = Stream::new(&[key]).below(len);
        Self { len, key, turn, low: bits - bits / 2, high: bits / 2 }
    }

    /// One pass through the network: a bijection of the domain.
    fn scramble(&self, value: u64) -> u64 {
        let (low_mask, high_mask) = (mask(self.low), mask(self.high));
        let (mut low, mut high) = (value & low_mask, value >> self.low);
        for round in 0..ROUNDS {
            let half = if round % 2 == 0 { high } else { low };
            // SplitMix64's word number `half * ROUNDS + round`.
            let number = half.wrapping_mul(ROUNDS).wrapping_add(round);
            let word = mix64(self.key.wrapping_add(number.wrapping_mul(GOLDEN)));
            if round % 2 == 0 {
                low ^= word & low_mask;
            } else {
                high ^= word & high_mask;
            }
        }
        (high << self.low) | low
    }

    /// Where `value` (in `0..len`) goes.
    fn at(&self, value: u64) -> u64 {
        // A cycle through `value` holds at most `outside` members that are not in `0..len`.
        let outside = (mask(self.low + self.high) + 1).wrapping_sub(self.len);
        let mut next = self.scramble(value);
        for _ in 0..outside {
            if next < self.len {
                break;
            }
            next = self.scramble(next);
        }
        // Both are below `len`, which may be near the end of the range.
        let room = self.len - self.turn;
        if next < room { next + self.turn } else { next - room }
    }
}

/// The lowest `bits` bits set (`bits` <= 64).
fn mask(bits: u32) -> u64 {
    1u64.checked_shl(bits).map_or(u64::MAX, |bit| bit - 1)
}

/// The order of a whole run.
#[derive(Clone, Debug, PartialEq)]
pub struct Order {
    /// Samples of the training set.
    pub samples: u64,
    /// Virtual owners (V).
    pub owners: u32,
    /// `run.seed`.
    pub seed: u64,
    /// Samples per step over all owners.
    pub global_batch: u64,
}

/// The positions that one step commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepSpan {
    /// The epoch it lies in, from 0.
    pub epoch: u64,
    /// Its first position in that epoch.
    pub first: u64,
    /// Positions; smaller than the global batch in an epoch's last step only.
    pub count: u64,
}

impl Order {
    /// The order that a run of this configuration takes a training set of so many samples in.
    pub fn of(config: &Config, samples: u64) -> Result<Order, DataError> {
        Self::new(samples, resolve_owners(config), config.run.seed, config.train.global_batch)
    }

    /// The order of these numbers; refuses what has none.
    pub fn new(
        samples: u64,
        owners: u32,
        seed: u64,
        global_batch: u64,
    ) -> Result<Order, DataError> {
        let refuse = |text: String| Err(DataError::Set(text));
        if samples == 0 {
            return refuse("the training set has no samples: check data.train".into());
        }
        if global_batch == 0 {
            return refuse("train.global_batch = 0: write the samples per step, 1 or more".into());
        }
        if owners == 0 {
            return refuse("train.owners = 0: write 1 or more".into());
        }
        if u64::from(owners) > samples {
            return refuse(format!(
                "train.owners = {owners}, but the training set has {samples} samples: an owner \
                 without samples computes nothing; write {samples} or fewer"
            ));
        }
        Ok(Order { samples, owners, seed, global_batch })
    }

    /// Steps of one epoch, the short last one included.
    pub fn steps_per_epoch(&self) -> u64 {
        self.samples.div_ceil(self.global_batch)
    }

    /// What is computed after `step` committed steps.
    pub fn locate(&self, step: u64) -> StepSpan {
        let steps = self.steps_per_epoch();
        let first = (step % steps) * self.global_batch;
        StepSpan { epoch: step / steps, first, count: self.global_batch.min(self.samples - first) }
    }

    /// Samples committed after `step` steps.
    pub fn cursor(&self, step: u64) -> u64 {
        let span = self.locate(step);
        span.epoch.saturating_mul(self.samples).saturating_add(span.first)
    }

    /// The sample at `position` (in `0..samples`) of the epoch; it belongs to owner
    /// `position mod owners`.
    pub fn sample(&self, epoch: u64, position: u64) -> u64 {
        debug_assert!(position < self.samples, "a position lies within its epoch");
        let owners = u64::from(self.owners);
        let owner = position % owners;
        self.deal().at(owner + owners * self.rows(epoch, owner).at(position / owners))
    }

    /// Sample ids of the owner's micro-batch in that step, in the order of their positions.
    pub fn owner_samples(&self, step: u64, owner: u32) -> Vec<u64> {
        if owner >= self.owners {
            return Vec::new();
        }
        let (owner, owners) = (u64::from(owner), u64::from(self.owners));
        let StepSpan { epoch, first, count } = self.locate(step);
        let (deal, rows) = (self.deal(), self.rows(epoch, owner));
        // Rows of this owner whose positions lie before the span, and before its end.
        let before = |position: u64| (position + owners - 1 - owner) / owners;
        (before(first)..before(first + count))
            .map(|row| deal.at(owner + owners * rows.at(row)))
            .collect()
    }

    /// What a correct step sums to: samples, and the wrapping sum of their `mix`.
    pub fn expected(&self, step: u64) -> (u64, u64) {
        let epoch = self.locate(step).epoch;
        (0..self.owners)
            .flat_map(|owner| self.owner_samples(step, owner))
            .fold((0, 0), |(count, sum), id| (count + 1, sum.wrapping_add(mix(epoch, id))))
    }

    /// The permanent deal of samples to owners.
    fn deal(&self) -> Permutation {
        Permutation::new(self.samples, seed::key(&[self.seed, purpose::DEAL]))
    }

    /// The epoch's permutation of one owner's rows.
    fn rows(&self, epoch: u64, owner: u64) -> Permutation {
        let rows = (self.samples - owner).div_ceil(u64::from(self.owners));
        Permutation::new(rows, seed::key(&[self.seed, purpose::EPOCH, epoch, owner]))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    fn orders() -> impl Strategy<Value = Order> {
        (1u64..400, 1u32..40, any::<u64>(), 1u64..130).prop_map(
            |(samples, owners, seed, global_batch)| {
                let owners = owners.min(samples as u32);
                Order::new(samples, owners, seed, global_batch).expect("within the limits")
            },
        )
    }

    proptest! {
        #[test]
        fn every_epoch_is_a_permutation(order in orders(), epoch in 0u64..1000) {
            let seen: BTreeSet<u64> =
                (0..order.samples).map(|p| order.sample(epoch, p)).collect();
            prop_assert_eq!(seen, (0..order.samples).collect::<BTreeSet<u64>>());
        }

        #[test]
        fn an_owners_samples_never_change(order in orders(), epoch in 1u64..1000) {
            let held = |epoch: u64| {
                let mut by_owner = BTreeMap::<u64, BTreeSet<u64>>::new();
                for p in 0..order.samples {
                    let owner = p % u64::from(order.owners);
                    by_owner.entry(owner).or_default().insert(order.sample(epoch, p));
                }
                by_owner
            };
            prop_assert_eq!(held(0), held(epoch));
        }

        #[test]
        fn steps_tile_the_epochs(order in orders()) {
            let mut cursor = 0;
            for step in 0..3 * order.steps_per_epoch() {
                let span = order.locate(step);
                prop_assert_eq!(order.cursor(step), cursor);
                prop_assert_eq!((cursor / order.samples, cursor % order.samples),
                    (span.epoch, span.first));
                prop_assert!(span.count >= 1 && span.count <= order.global_batch);
                cursor += span.count;
            }
            prop_assert_eq!(cursor, 3 * order.samples);
        }

        #[test]
        fn owners_split_a_step_by_position(order in orders(), step in 0u64..500) {
            let span = order.locate(step);
            let mut by_owner = vec![Vec::new(); order.owners as usize];
            for p in span.first..span.first + span.count {
                let owner = (p % u64::from(order.owners)) as usize;
                by_owner[owner].push(order.sample(span.epoch, p));
            }
            for owner in 0..order.owners {
                prop_assert_eq!(&order.owner_samples(step, owner), &by_owner[owner as usize]);
            }
        }

        #[test]
        fn a_planted_duplicate_and_a_planted_omission_change_the_sum(
            order in orders(), step in 0u64..500, pick in any::<u64>(),
        ) {
            let span = order.locate(step);
            let ids: Vec<u64> = (span.first..span.first + span.count)
                .map(|p| order.sample(span.epoch, p)).collect();
            let sum = |ids: &[u64]| ids.iter()
                .fold(0u64, |sum, &id| sum.wrapping_add(mix(span.epoch, id)));
            prop_assert_eq!(order.expected(step), (span.count, sum(&ids)));
            let at = (pick % span.count) as usize;
            let mut omitted = ids.clone();
            omitted.remove(at);
            prop_assert_ne!(sum(&omitted), sum(&ids));
            let mut repeated = ids.clone();
            repeated[at] = ids[(at + 1) % ids.len()];
            prop_assert_eq!(sum(&repeated) != sum(&ids), ids.len() > 1);
        }
    }

    #[test]
    fn any_length_is_permuted() {
        for len in (1..70).chain([127, 128, 129, 1000, 4096, 4097]) {
            let permutation = Permutation::new(len, 99 + len);
            let seen: BTreeSet<u64> = (0..len).map(|v| permutation.at(v)).collect();
            assert_eq!(seen.len() as u64, len, "of {len}");
            assert!(seen.iter().all(|&v| v < len), "of {len}");
        }
        assert!(Permutation::new(u64::MAX, 5).at(17) < u64::MAX);
        assert!(Permutation::new(1 << 63, 5).at(17) < 1 << 63);
    }

    /// Every value visits every place about equally often: chi-square over 200,000 keys against
    /// the 99.99 % point of (len - 1)^2 degrees of freedom.
    #[test]
    fn no_position_is_preferred() {
        for (len, limit) in [(2u64, 15.1), (3, 23.5), (5, 45.9), (8, 94.6), (13, 215.8)] {
            let trials = 200_000u64;
            let mut counts = vec![0f64; (len * len) as usize];
            for trial in 0..trials {
                let permutation = Permutation::new(len, seed::key(&[7, trial]));
                for v in 0..len {
                    counts[(v * len + permutation.at(v)) as usize] += 1.0;
                }
            }
            let mean = trials as f64 / len as f64;
            let chi: f64 = counts.iter().map(|c| (c - mean).powi(2) / mean).sum();
            assert!(chi < limit, "chi-square {chi:.1} over {limit} for {len}");
        }
    }

    #[test]
    fn epochs_and_seeds_differ() {
        let order = Order::new(1000, 4, 1, 100).expect("valid");
        let ids = |order: &Order, epoch| -> Vec<u64> {
            (0..1000).map(|p| order.sample(epoch, p)).collect()
        };
        let same = |a: &[u64], b: &[u64]| a.iter().zip(b).filter(|(x, y)| x == y).count();
        let other = Order { seed: 2, ..order.clone() };
        assert!(same(&ids(&order, 0), &ids(&order, 1)) < 30);
        assert!(same(&ids(&order, 0), &ids(&other, 0)) < 30);
    }

    #[test]
    fn a_configuration_says_its_order() {
        let mut config = Config::default();
        (config.run.ranks, config.train.workers, config.train.owners) = (3, 2, None);
        (config.run.seed, config.train.global_batch) = (8, 24);
        assert_eq!(
            Order::of(&config, 90).expect("valid"),
            Order::new(90, 6, 8, 24).expect("valid")
        );
        config.train.owners = Some(4);
        assert_eq!(Order::of(&config, 90).expect("valid").owners, 4);
    }

    #[test]
    fn what_has_no_order_is_refused_by_name() {
        let text = |result: Result<Order, DataError>| result.expect_err("refused").to_string();
        assert!(text(Order::new(0, 1, 1, 1)).contains("data.train"));
        assert!(text(Order::new(9, 0, 1, 1)).contains("train.owners"));
        assert!(text(Order::new(9, 10, 1, 1)).contains("write 9 or fewer"));
        assert!(text(Order::new(9, 3, 1, 0)).contains("train.global_batch"));
    }
}
