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
//! **Bundles** ([`Bundling`]) narrow E: an owner's rows are cut into slices with fixed boundaries,
//! which come one after another. Owners advance together, so that all are in the same bundle.
//!
//! **Ragged tail.** When V does not divide N, the first `N mod V` owners have one sample more;
//! the epoch's last row holds only theirs. Nothing is dropped and nothing repeated.
//!
//! **Steps** tile an epoch: step `k` of it takes the positions `k * batch ..` up to `batch` of
//! them; the last one takes what is left. When V does not divide the batch, an owner's
//! micro-batch is larger by one in some steps than in others; it may be empty in a short step.
//!
//! Nothing here knows how many ranks there are.

use crate::config::seed::{self, mix64, purpose};
use crate::config::{Config, resolve_owners};

use super::DataError;

mod bundles;
pub mod composition;
mod permutation;

pub use bundles::{Bundling, Cut};

use bundles::Rows;
use permutation::Permutation;

/// What the audit sums over the samples whose gradients entered a step.
pub fn mix(epoch: u64, id: u64) -> u64 {
    mix64(seed::key(&[epoch, id]))
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
    /// How each owner's rows come in an epoch.
    pub bundling: Bundling,
}

/// Bundles of less than this share of those that the ratio asks for are told.
const BUNDLES_SHORT: f64 = 0.75;

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
        let owners = resolve_owners(config);
        Self::new(samples, owners, config.run.seed, config.train.global_batch)?
            .bundled(Bundling::of(&config.data))
    }

    /// The order of these numbers, without bundles; refuses what has none.
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
        Ok(Order { samples, owners, seed, global_batch, bundling: Bundling::WHOLE })
    }

    /// The same with these bundles.
    pub fn bundled(self, bundling: Bundling) -> Result<Order, DataError> {
        let ratio = bundling.ratio;
        if !(ratio > 0.0 && ratio <= 1.0) {
            return Err(DataError::Set(format!(
                "data.bundle_ratio = {ratio}: write a share above 0, to 1"
            )));
        }
        Ok(Order { bundling, ..self })
    }

    /// What is to be said of a batch that is larger than the set, and of bundles that are fewer
    /// than were asked for.
    pub fn remark(&self) -> Option<String> {
        let Self { samples, owners, global_batch, .. } = self;
        if global_batch > samples {
            return Some(format!(
                "train.global_batch = {global_batch}, and the training set has {samples} samples: \
                 every step is a whole epoch of {samples}"
            ));
        }
        let (ratio, cut) = (self.bundling.ratio, self.cut(0));
        let (bundles, rows) = (cut.count(), cut.rows());
        (ratio < 1.0 && (bundles as f64 * ratio < BUNDLES_SHORT || bundles == 1)).then(|| {
            format!(
                "data.bundle_ratio = {ratio}: each of {owners} owners has {rows} samples, which \
                 make {bundles} bundles; lower train.owners or raise the ratio"
            )
        })
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
        self.deal().at(owner + owners * self.walk(epoch, owner).at(position / owners))
    }

    /// Sample ids of the owner's micro-batch in that step, in the order of their positions.
    pub fn owner_samples(&self, step: u64, owner: u32) -> Vec<u64> {
        if owner >= self.owners {
            return Vec::new();
        }
        let (owner, owners) = (u64::from(owner), u64::from(self.owners));
        let StepSpan { epoch, first, count } = self.locate(step);
        let (deal, mut rows) = (self.deal(), self.walk(epoch, owner));
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

    /// The same of the first `steps` steps together.
    pub fn expected_of(&self, steps: u64) -> (u64, u64) {
        let sum = |(count, mix): (u64, u64), step| {
            let (more, other) = self.expected(step);
            (count + more, mix.wrapping_add(other))
        };
        (0..steps).fold((0, 0), sum)
    }

    /// The permanent deal of samples to owners.
    fn deal(&self) -> Permutation {
        Permutation::new(self.samples, seed::key(&[self.seed, purpose::DEAL]))
    }

    /// Samples that an owner holds.
    fn rows(&self, owner: u64) -> u64 {
        (self.samples - owner).div_ceil(u64::from(self.owners))
    }

    /// The epoch's order of one owner's rows.
    fn walk(&self, epoch: u64, owner: u64) -> Rows {
        Rows::new(self.seed, epoch, owner, self.cut(owner), self.bundling)
    }

    /// Where the rows of an owner (below `owners`) are cut into bundles.
    pub fn cut(&self, owner: u64) -> Cut {
        Cut::new(self.rows(owner), self.bundling.ratio)
    }

    /// The samples of one of an owner's bundles: the same in every epoch. Empty beyond the last.
    pub fn bundle_samples(&self, owner: u64, bundle: u64) -> Vec<u64> {
        let (deal, owners) = (self.deal(), u64::from(self.owners));
        self.cut(owner).rows_of(bundle).map(|row| deal.at(owner + owners * row)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;
    use crate::config::WithinBundle;

    fn orders() -> impl Strategy<Value = Order> {
        let numbers = (1u64..400, 1u32..40, any::<u64>(), 1u64..130);
        (numbers, bundles::tests::bundlings()).prop_map(
            |((samples, owners, seed, global_batch), bundling)| {
                let owners = owners.min(samples as u32);
                let order = Order::new(samples, owners, seed, global_batch);
                order.and_then(|order| order.bundled(bundling)).expect("within the limits")
            },
        )
    }

    #[test]
    fn a_batch_of_more_than_there_is_is_told_with_what_each_step_has() {
        let order = |batch| Order::new(300, 1, 1, batch).unwrap();
        assert_eq!(order(300).remark(), None);
        let told = order(1000).remark().expect("larger than the set");
        assert!(told.contains("= 1000") && told.contains("a whole epoch of 300"), "{told}");
        assert_eq!(order(1000).steps_per_epoch(), 1);
    }

    #[test]
    fn bundles_that_owners_have_too_few_samples_for_are_told() {
        let told = |owners, ratio| {
            let bundling = Bundling { ratio, ..Bundling::WHOLE };
            let order = Order::new(400, owners, 1, 40).and_then(|order| order.bundled(bundling));
            order.expect("within the limits").remark()
        };
        for (owners, ratio) in [(40, 1.0), (40, 0.1), (4, 0.01), (40, 0.3), (7, 0.34)] {
            assert_eq!(told(owners, ratio), None, "{owners} {ratio}");
        }
        assert!(told(40, 0.01).expect("100 were asked for").contains("make 10 bundles"));
        assert!(told(400, 0.3).expect("1 sample each").contains("make 1 bundles"));
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
        fn a_bundle_holds_the_same_samples_in_every_epoch(order in orders(), epoch in 0u64..99) {
            let owners = u64::from(order.owners);
            for owner in 0..owners {
                let cut = order.cut(owner);
                let positions = (owner..order.samples).step_by(owners as usize);
                let ids: Vec<u64> = positions.map(|p| order.sample(epoch, p)).collect();
                let backwards = epoch % 2 == 1
                    && (order.bundling.alternating
                        || order.bundling.within == WithinBundle::Reverse);
                let mut bundles: Vec<u64> = (0..cut.count()).collect();
                if backwards {
                    bundles.reverse();
                }
                let mut at = 0;
                for bundle in bundles {
                    let held: BTreeSet<u64> =
                        order.bundle_samples(owner, bundle).into_iter().collect();
                    let next = at + held.len();
                    prop_assert_eq!(ids[at..next].iter().copied().collect::<BTreeSet<_>>(), held);
                    at = next;
                }
                prop_assert_eq!(at, ids.len());
            }
        }

        #[test]
        fn an_odd_epoch_in_reverse_is_the_exact_reverse(order in orders(), pair in 0u64..99) {
            let within = WithinBundle::Reverse;
            let order = Order { bundling: Bundling { within, ..order.bundling }, ..order };
            let owners = u64::from(order.owners);
            for owner in 0..owners {
                let of = |epoch: u64| -> Vec<u64> {
                    let positions = (owner..order.samples).step_by(owners as usize);
                    positions.map(|p| order.sample(epoch, p)).collect()
                };
                let mut forward = of(2 * pair);
                forward.reverse();
                prop_assert_eq!(forward, of(2 * pair + 1));
            }
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

    /// What runs without bundles have always had: their checkpoints and hashes rest on it.
    #[test]
    fn the_order_without_bundles_is_fixed() {
        for (samples, owners, seed, batch, ids, steps) in [
            (1000, 4, 1, 96, 0x35c0_7f18_1197_faaf, 0x2a28_b3b5_9d92_7ca7),
            (1013, 7, 5, 100, 0x4448_4337_753b_bbc3, 0x2962_bff5_6fc5_31bc),
            (20, 20, 3, 6, 0x249b_25a8_4d86_31e9, 0x851f_e8d1_33a5_f06f),
        ] {
            let order = Order::new(samples, owners, seed, batch).expect("valid");
            let found: Vec<u64> =
                (0..4 * samples).map(|at| order.sample(at / samples, at % samples)).collect();
            assert_eq!(seed::key(&found), ids, "{samples} samples by position");
            let found: Vec<u64> = (0..2 * order.steps_per_epoch())
                .flat_map(|step| (0..owners).map(move |owner| (step, owner)))
                .flat_map(|(step, owner)| order.owner_samples(step, owner))
                .collect();
            assert_eq!(seed::key(&found), steps, "{samples} samples by step");
        }
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
        (config.data.bundle_ratio, config.data.alternating) = (0.2, true);
        config.data.within_bundle = WithinBundle::Reverse;
        let within = WithinBundle::Reverse;
        let bundling = Bundling { ratio: 0.2, alternating: true, within };
        assert_eq!(Order::of(&config, 90).expect("valid").bundling, bundling);
    }

    #[test]
    fn what_has_no_order_is_refused_by_name() {
        let text = |result: Result<Order, DataError>| result.expect_err("refused").to_string();
        assert!(text(Order::new(0, 1, 1, 1)).contains("data.train"));
        assert!(text(Order::new(9, 0, 1, 1)).contains("train.owners"));
        assert!(text(Order::new(9, 10, 1, 1)).contains("write 9 or fewer"));
        assert!(text(Order::new(9, 3, 1, 0)).contains("train.global_batch"));
        for ratio in [0.0, -0.5, 1.01, f64::NAN] {
            let order = Order::new(9, 3, 1, 3).expect("valid");
            let bundled = order.bundled(Bundling { ratio, ..Bundling::WHOLE });
            assert!(text(bundled).contains("data.bundle_ratio"));
        }
    }
}
