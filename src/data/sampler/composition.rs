//! Which classes each bundle holds. A bundle is a random part of the set: the smaller it is, the
//! further its classes are from the set's, and the steps inside it learn what it has most of.

use serde::Serialize;

use crate::config::Shown;

use super::Order;

/// A bundle is biased whose most frequent class has this much more of it than of the set.
pub const EXCESS_MAX: f64 = 0.1;

/// One bundle of all owners together: they are in it at the same time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Bundle {
    /// Its number, in forward order from 0.
    pub bundle: u64,
    /// Samples in it.
    pub samples: u64,
    /// Samples of each class, in label order.
    pub classes: Vec<u64>,
    /// The label of its most frequent class.
    pub top_class: usize,
    /// That class's share of the bundle.
    pub top_share: f64,
    /// And of the whole set.
    pub top_share_of_set: f64,
    /// Pearson's, of its classes against the set's. A random part has about as much as
    /// `degrees` x (1 - its share of the set).
    pub chi_square: f64,
}

/// All bundles of an order.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Composition {
    /// In forward order.
    pub bundles: Vec<Bundle>,
    /// Degrees of freedom of `chi_square`.
    pub degrees: usize,
    /// What is wrong with them, and which key to change.
    pub warnings: Vec<String>,
}

/// Counts; `label` says a sample's class, an index of `classes`.
pub fn composition(order: &Order, classes: &[String], label: impl Fn(u64) -> u32) -> Composition {
    let owners = u64::from(order.owners);
    let count = (0..owners).map(|owner| order.cut(owner).count()).max().unwrap_or(0);
    let counted = |bundle: u64| {
        let mut counts = vec![0u64; classes.len()];
        for owner in 0..owners {
            for id in order.bundle_samples(owner, bundle) {
                counts[label(id) as usize] += 1;
            }
        }
        counts
    };
    let all: Vec<Vec<u64>> = (0..count).map(counted).collect();
    let of_set: Vec<u64> =
        (0..classes.len()).map(|class| all.iter().map(|counts| counts[class]).sum()).collect();
    let bundles: Vec<Bundle> = all
        .into_iter()
        .zip(0..)
        .map(|(counts, bundle)| describe(bundle, counts, &of_set))
        .collect();
    let warnings = warnings(order, classes, &bundles);
    let degrees = of_set.iter().filter(|count| **count > 0).count().saturating_sub(1);
    Composition { bundles, degrees, warnings }
}

fn describe(bundle: u64, classes: Vec<u64>, of_set: &[u64]) -> Bundle {
    let samples: u64 = classes.iter().sum();
    let share = |class: usize| of_set[class] as f64 / of_set.iter().sum::<u64>().max(1) as f64;
    // Of equals the first.
    let top = (0..classes.len()).rev().max_by_key(|&class| classes[class]).unwrap_or(0);
    let chi_square = (0..classes.len())
        .map(|class| (classes[class] as f64, share(class) * samples as f64))
        .filter(|(_, expected)| *expected > 0.0)
        .map(|(found, expected)| (found - expected).powi(2) / expected)
        .sum();
    Bundle {
        bundle,
        samples,
        top_class: top,
        top_share: classes[top] as f64 / samples.max(1) as f64,
        top_share_of_set: share(top),
        chi_square,
        classes,
    }
}

fn warnings(order: &Order, classes: &[String], bundles: &[Bundle]) -> Vec<String> {
    let mut warnings = Vec::new();
    if bundles.len() < 2 {
        return warnings;
    }
    let ratio = order.bundling.ratio;
    let full = bundles.iter().map(|bundle| bundle.samples).max().unwrap_or(0);
    // The last bundle is short by chance of division: no ratio cures it.
    let whole = bundles.iter().filter(|bundle| 2 * bundle.samples > full);
    let excess = |bundle: &Bundle| bundle.top_share - bundle.top_share_of_set;
    let biased = whole.clone().filter(|bundle| excess(bundle) > EXCESS_MAX).count();
    if let Some(worst) = whole.max_by(|a, b| excess(a).total_cmp(&excess(b)))
        && biased > 0
    {
        // What is random falls with the square root of the number of samples.
        let cure = (ratio * (excess(worst) / EXCESS_MAX).powi(2)).min(1.0);
        let cure = (cure * 1000.0).ceil() / 1000.0;
        warnings.push(format!(
            "{biased} of {} bundles are biased: bundle {} has {:.0} % of class {}, which is \
             {:.0} % of the set; write data.bundle_ratio = {cure} or more instead of {ratio}",
            bundles.len(),
            worst.bundle,
            worst.top_share * 100.0,
            classes[worst.top_class].shown(),
            worst.top_share_of_set * 100.0,
        ));
    }
    if full < order.global_batch {
        let least = order.global_batch as f64 / order.samples as f64;
        warnings.push(format!(
            "a bundle has {full} samples, a step {}: the same samples come together in every \
             epoch; write data.bundle_ratio = {:.3} or more instead of {ratio}, or a smaller \
             train.global_batch",
            order.global_batch,
            (least * 1000.0).ceil() / 1000.0
        ));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::sampler::Bundling;

    fn of(ratio: f64, batch: u64) -> Composition {
        let bundling = Bundling { ratio, ..Bundling::WHOLE };
        let order = Order::new(6000, 12, 1, batch).unwrap().bundled(bundling).unwrap();
        let classes: Vec<String> = (0..10).map(|class| format!("c{class}")).collect();
        // Class after class, as folders are listed.
        composition(&order, &classes, |id| (id / 600) as u32)
    }

    #[test]
    fn bundles_hold_the_set_once() {
        let found = of(0.1, 96);
        assert_eq!((found.bundles.len(), found.degrees), (10, 9));
        for class in 0..10 {
            let all: u64 = found.bundles.iter().map(|bundle| bundle.classes[class]).sum();
            assert_eq!(all, 600);
        }
        for bundle in &found.bundles {
            assert_eq!(bundle.samples, 600);
            assert_eq!(bundle.classes[bundle.top_class], *bundle.classes.iter().max().unwrap());
            // The 99.99 % point of nine degrees of freedom is 33.7.
            assert!(bundle.chi_square < 33.7, "listed by class, dealt at random: {bundle:?}");
        }
        assert_eq!(found.warnings, Vec::<String>::new());
        assert_eq!(of(0.1, 96), found, "the same each time");
    }

    #[test]
    fn small_bundles_are_warned_of_with_what_to_write() {
        let tiny = of(0.004, 96);
        assert_eq!(tiny.bundles.len(), 250);
        let [biased, small] = tiny.warnings.as_slice() else { panic!("{:?}", tiny.warnings) };
        assert!(biased.contains("of 250 bundles are biased") && biased.contains("of class c"));
        assert!(biased.contains("write data.bundle_ratio = 0.0"), "{biased}");
        assert!(small.contains("data.bundle_ratio = 0.016 or more instead of 0.004"), "{small}");
        // What is advised is enough.
        let advised = biased.split("data.bundle_ratio = ").nth(1).unwrap();
        let ratio: f64 = advised.split(' ').next().unwrap().parse().unwrap();
        assert_eq!(of(ratio.max(0.016), 96).warnings, Vec::<String>::new());
        let whole = of(1.0, 9000);
        assert_eq!((whole.bundles.len(), whole.bundles[0].chi_square), (1, 0.0));
        assert!(whole.warnings.is_empty(), "without bundles nothing is biased");
    }
}
