//! What the samples of a micro-batch are to be taken for: one class each, or shares of several
//! (label smoothing, mixed pictures); their cross-entropy and its gradient.

use std::ops::Range;

/// Sums over a micro-batch.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Outcome {
    /// Cross-entropy (natural logarithm), summed.
    pub loss_sum: f64,
    /// Samples whose most probable class is not their label (of several: the one that they most
    /// are; ties: the lowest class counts).
    pub errors: u64,
    /// Samples.
    pub samples: u64,
}

/// Probabilities that a model is to give. Of sample i and K classes, smoothing e and share s:
/// `(1 - e) (s labels[i] + (1 - s) partners[i]) + e / K`, as torch's `CrossEntropyLoss` has it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Targets<'a> {
    /// A class for each sample.
    pub labels: &'a [u32],
    /// Another class for each, and what the first keeps, 0 to 1; `None`: all.
    pub partners: Option<(&'a [u32], f32)>,
    /// What all classes have in equal shares, 0 to 1.
    pub smoothing: f32,
}

impl<'a> From<&'a [u32]> for Targets<'a> {
    /// One class each.
    fn from(labels: &'a [u32]) -> Self {
        Self { labels, partners: None, smoothing: 0.0 }
    }
}

impl<'a> From<&'a Vec<u32>> for Targets<'a> {
    fn from(labels: &'a Vec<u32>) -> Self {
        labels.as_slice().into()
    }
}

impl Targets<'_> {
    /// Those of some samples.
    pub fn part(&self, samples: Range<usize>) -> Self {
        let partners = self.partners.map(|(labels, share)| (&labels[samples.clone()], share));
        Self { labels: &self.labels[samples], partners, ..*self }
    }

    /// The class that a sample most is: its label where both have the same share.
    pub fn class(&self, sample: usize) -> u32 {
        match self.partners {
            Some((labels, share)) if share < 0.5 => labels[sample],
            _ => self.labels[sample],
        }
    }

    /// Whether each sample is one class and nothing else.
    fn is_hard(&self) -> bool {
        self.partners.is_none() && self.smoothing == 0.0
    }

    /// Adds `factor` times the sample's probabilities to a row of zeros.
    fn write(&self, sample: usize, factor: f32, row: &mut [f32]) {
        if self.smoothing > 0.0 {
            row.fill(factor * self.smoothing / row.len() as f32);
        }
        let rest = factor * (1.0 - self.smoothing);
        match self.partners {
            None => row[self.labels[sample] as usize] += rest,
            Some((labels, share)) => {
                row[self.labels[sample] as usize] += rest * share;
                row[labels[sample] as usize] += rest * (1.0 - share);
            }
        }
    }

    /// The gradient of a weighted sum of losses with respect to log-probabilities, over
    /// `[samples, classes]`.
    pub(super) fn write_seed(&self, seed: &mut [f32], classes: usize, weight: f32) {
        seed.fill(0.0);
        let rows = seed.chunks_exact_mut(classes).take(self.labels.len());
        rows.enumerate().for_each(|(sample, row)| self.write(sample, -weight, row));
    }

    /// Sums loss and errors over rows of log-probabilities.
    pub(super) fn score(&self, logarithms: &[f32], classes: usize) -> Outcome {
        let mut outcome = Outcome::default();
        let mut wanted = vec![0.0; if self.is_hard() { 0 } else { classes }];
        for (sample, row) in logarithms.chunks_exact(classes).take(self.labels.len()).enumerate() {
            let label = self.class(sample) as usize;
            let own = row[label];
            if self.is_hard() {
                outcome.loss_sum -= f64::from(own);
            } else {
                wanted.fill(0.0);
                self.write(sample, 1.0, &mut wanted);
                // A class that is not wanted at all may have the probability 0.
                let pairs = wanted.iter().zip(row).filter(|(share, _)| **share > 0.0);
                let terms = pairs.map(|(&share, &value)| f64::from(share) * f64::from(value));
                outcome.loss_sum -= terms.sum::<f64>();
            }
            outcome.samples += 1;
            let better =
                |(class, &value): (usize, &f32)| value > own || (value == own && class < label);
            // A NaN is no right answer either.
            if own.is_nan() || row.iter().enumerate().any(better) {
                outcome.errors += 1;
            }
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLASSES: usize = 5;
    const LABELS: [u32; 4] = [1, 4, 0, 1];
    const BEFORE: [u32; 4] = [1, 1, 4, 0];

    /// The script's logits, as log-probabilities.
    fn logarithms() -> Vec<f32> {
        let row = |i: usize| (0..CLASSES).map(move |c| ((7 * c + 5 * i) % 11) as f64 / 4.0 - 1.25);
        let logarithms = |i: usize| {
            let whole = row(i).map(f64::exp).sum::<f64>().ln();
            row(i).map(move |x| (x - whole) as f32)
        };
        (0..LABELS.len()).flat_map(logarithms).collect()
    }

    fn targets(partners: Option<(&[u32], f32)>, smoothing: f32) -> Targets<'_> {
        Targets { labels: &LABELS, partners, smoothing }
    }

    /// torch 2.15's sum of losses and its gradient at the logits: `python -P
    /// tests/library/soft_targets.py`.
    #[test]
    fn losses_and_gradients_are_torchs() {
        let mixed = Some((&BEFORE[..], 0.3));
        let cases = [targets(None, 0.1), targets(mixed, 0.0), targets(mixed, 0.1)];
        let logarithms = logarithms();
        for (case, (loss, gradient)) in cases.into_iter().zip(TORCH) {
            let outcome = case.score(&logarithms, CLASSES);
            assert!((outcome.loss_sum - loss).abs() < 2e-6 * loss, "{case:?}: {outcome:?}");
            let mut seed = vec![f32::NAN; logarithms.len()];
            case.write_seed(&mut seed, CLASSES, 1.0);
            let rows = seed.chunks(CLASSES).zip(logarithms.chunks(CLASSES));
            let ours = rows.flat_map(|(seed, row)| {
                let sum: f32 = seed.iter().sum();
                seed.iter().zip(row).map(move |(s, x)| s - x.exp() * sum)
            });
            for (at, (ours, torchs)) in ours.zip(gradient).enumerate() {
                assert!((ours - torchs).abs() < 1e-6, "{case:?}, {at}: {ours}, torch {torchs}");
            }
        }
    }

    const TORCH: [(f64, [f32; 20]); 3] = [
        (
            8.2921038,
            [
                0.01916072, -0.6946455, 0.06290326, 0.4570753, 0.1555062, 0.1997713, 0.06084933,
                0.4452558, 0.151158, -0.8570344, -0.5306708, 0.1232262, 0.03268997, 0.2832098,
                0.09154467, 0.09434623, -0.8779343, 0.2220709, 0.06905293, 0.4924642,
            ],
        ),
        (
            8.3671036,
            [
                0.03916073, -0.7746456, 0.08290327, 0.4770754, 0.1755062, 0.2197713, -0.6191506,
                0.4652558, 0.171158, -0.2370345, 0.08932918, 0.1432262, 0.05268998, 0.3032099,
                -0.5884553, -0.5856538, -0.2579344, 0.242071, 0.08905294, 0.5124642,
            ],
        ),
        (
            8.2921028,
            [
                0.01916072, -0.6946455, 0.06290326, 0.4570753, 0.1555062, 0.1997713, -0.5691506,
                0.4452558, 0.151158, -0.2270345, 0.09932917, 0.1232262, 0.03268998, 0.2832099,
                -0.5384553, -0.5356538, -0.2479344, 0.2220709, 0.06905293, 0.4924642,
            ],
        ),
    ];

    #[test]
    fn the_larger_label_counts_and_hard_targets_are_labels_alone() {
        assert_eq!(targets(Some((&BEFORE, 0.3)), 0.0).class(1), 1);
        assert_eq!(targets(Some((&BEFORE, 0.5)), 0.0).class(1), 4);
        let plain = Targets::from(&LABELS[..]);
        let (logarithms, mut seed) = (logarithms(), vec![f32::NAN; 20]);
        plain.write_seed(&mut seed, CLASSES, 0.3);
        let one =
            |at: usize| if at % CLASSES == LABELS[at / CLASSES] as usize { -0.3 } else { 0.0 };
        assert_eq!(seed, (0..20).map(one).collect::<Vec<f32>>());
        // All of it to the own label is the plain loss, though the partner be impossible.
        let mut one_sided = logarithms.clone();
        one_sided[CLASSES + 1] = f32::NEG_INFINITY;
        let kept = targets(Some((&BEFORE, 1.0)), 0.0).score(&one_sided, CLASSES);
        assert!((kept.loss_sum - plain.score(&one_sided, CLASSES).loss_sum).abs() < 1e-6);
        let part = targets(Some((&BEFORE, 0.3)), 0.1).part(1..3);
        assert_eq!((part.labels, part.partners), (&LABELS[1..3], Some((&BEFORE[1..3], 0.3))));
    }
}
