//! How often a model is right, from its log-probabilities: a plain sum, without an engine.

use std::collections::BTreeMap;

use serde::Serialize;

/// A label is among the guesses if fewer classes than these are more probable.
const GUESSES: usize = 5;

/// What was found over samples.
#[derive(Debug, Clone, PartialEq)]
pub struct Scores {
    classes: usize,
    /// Samples by label and by the most probable class.
    pairs: BTreeMap<(usize, usize), u64>,
    /// Of each label: samples whose label is among the five most probable.
    among_five: Vec<u64>,
    /// Cross-entropy (natural logarithm), summed.
    loss_sum: f64,
}

/// Of one class.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OfClass {
    /// Its label.
    pub class: usize,
    /// Its name.
    pub name: String,
    /// Samples of it.
    pub samples: u64,
    /// Those that were recognised; a fraction 0..1, `None` without a sample.
    pub top1: Option<f64>,
    /// Those whose label was among the five most probable classes.
    pub top5: Option<f64>,
}

/// Samples of one class that were taken for another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Confused {
    /// Their label.
    pub class: usize,
    /// What they were taken for.
    pub taken_for: usize,
    /// How many.
    pub samples: u64,
}

impl Scores {
    /// Nothing was looked at yet.
    pub fn new(classes: usize) -> Self {
        Self { classes, pairs: BTreeMap::new(), among_five: vec![0; classes], loss_sum: 0.0 }
    }

    /// Takes in a batch: `[labels, classes]` log-probabilities. Of equally probable classes the
    /// lowest counts; what is no number is no right answer.
    pub fn add(&mut self, log_probabilities: &[f32], labels: &[u32]) {
        let mut loss_sum = 0.0;
        for (row, &label) in log_probabilities.chunks_exact(self.classes).zip(labels) {
            let label = label as usize;
            loss_sum -= f64::from(row[label]);
            let before = ahead_of(row, label);
            *self.pairs.entry((label, most_probable(row, label, before))).or_default() += 1;
            self.among_five[label] += u64::from(before < GUESSES);
        }
        self.loss_sum += loss_sum;
    }

    /// Samples.
    pub fn samples(&self) -> u64 {
        self.pairs.values().sum()
    }

    /// The mean loss.
    pub fn loss(&self) -> f64 {
        self.loss_sum / self.samples() as f64
    }

    /// Samples that were not recognised, a fraction 0..1.
    pub fn error(&self) -> f64 {
        let right: u64 = self.right().sum();
        (self.samples() - right) as f64 / self.samples() as f64
    }

    /// Samples whose label was among the five most probable classes, a fraction 0..1.
    pub fn top5(&self) -> f64 {
        self.among_five.iter().sum::<u64>() as f64 / self.samples() as f64
    }

    fn right(&self) -> impl Iterator<Item = u64> {
        (0..self.classes).map(|class| self.count(class, class))
    }

    /// Samples with this label that were taken for that class.
    pub fn count(&self, label: usize, taken_for: usize) -> u64 {
        self.pairs.get(&(label, taken_for)).copied().unwrap_or_default()
    }

    /// Class by class.
    pub fn of_classes(&self, names: &[String]) -> Vec<OfClass> {
        let mut samples = vec![0; self.classes];
        self.pairs.iter().for_each(|(&(label, _), count)| samples[label] += count);
        let share = |part: u64, of: u64| (of > 0).then(|| part as f64 / of as f64);
        (0..self.classes)
            .map(|class| OfClass {
                class,
                name: names.get(class).cloned().unwrap_or_default(),
                samples: samples[class],
                top1: share(self.count(class, class), samples[class]),
                top5: share(self.among_five[class], samples[class]),
            })
            .collect()
    }

    /// What was taken for something else, the most frequent first.
    pub fn confused(&self) -> Vec<Confused> {
        let wrong = self.pairs.iter().filter(|((label, taken_for), _)| label != taken_for);
        let mut confused: Vec<Confused> = wrong
            .map(|(&(class, taken_for), &samples)| Confused { class, taken_for, samples })
            .collect();
        confused.sort_by_key(|pair| std::cmp::Reverse(pair.samples));
        confused
    }
}

/// Classes that are answered before the label: none of them if it is the answer. What is no number
/// is no guess.
fn ahead_of(row: &[f32], label: usize) -> usize {
    let own = row[label];
    if own.is_nan() {
        return usize::MAX;
    }
    let better = |&(class, &value): &(usize, &f32)| value > own || (value == own && class < label);
    row.iter().enumerate().filter(better).count()
}

/// The answer. If it is no number, any class but the label.
fn most_probable(row: &[f32], label: usize, ahead: usize) -> usize {
    if ahead == 0 {
        return label;
    }
    let best = row.iter().enumerate().filter(|(class, value)| *class != label && !value.is_nan());
    let best = best.max_by(|(a, x), (b, y)| x.total_cmp(y).then(b.cmp(a)));
    best.map_or(usize::from(label == 0).min(row.len() - 1), |(class, _)| class)
}

/// The most probable classes with their probabilities, best first; `None`: the answer is no number.
pub fn best(row: &[f32], count: usize) -> Option<Vec<(usize, f64)>> {
    if row.iter().any(|value| value.is_nan()) {
        return None;
    }
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
    order.truncate(count);
    Some(order.into_iter().map(|class| (class, f64::from(row[class]).exp())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_counted_by_label_and_by_what_was_answered() {
        let mut scores = Scores::new(3);
        scores.add(&[-0.1, -3.0, -4.0, -3.0, -0.1, -4.0, -1.0, -1.0, -1.0], &[0, 0, 1]);
        assert_eq!((scores.count(0, 0), scores.count(0, 1), scores.count(1, 0)), (1, 1, 1));
        assert_eq!((scores.samples(), scores.error()), (3, 2.0 / 3.0));
        assert!((scores.loss() - (0.1 + 3.0 + 1.0) / 3.0).abs() < 1e-7);
        let names = ["ant", "bee", "cow"].map(String::from);
        let of = scores.of_classes(&names);
        assert_eq!(
            (of[0].samples, of[0].top1, of[1].top1, of[2].top1),
            (2, Some(0.5), Some(0.0), None)
        );
        let confused = scores.confused();
        assert_eq!((confused.len(), confused[0].samples), (2, 1));
    }

    #[test]
    fn a_label_among_the_five_most_probable_counts_as_guessed() {
        let mut scores = Scores::new(7);
        let row: Vec<f32> = (0..7).map(|class| -(class as f32)).collect();
        (0..7).for_each(|label| scores.add(&row, &[label]));
        assert_eq!((scores.top5(), scores.error()), (5.0 / 7.0, 6.0 / 7.0));
    }

    #[test]
    fn what_is_no_number_is_no_right_answer() {
        let mut scores = Scores::new(3);
        scores.add(&[f32::NAN; 6], &[0, 2]);
        assert_eq!((scores.error(), scores.top5()), (1.0, 0.0));
        assert!(scores.loss().is_nan());
        assert_eq!(best(&[f32::NAN, 0.0], 2), None);
    }

    #[test]
    fn the_best_come_first_and_the_lowest_of_equals() {
        let row = [0.1f32, 0.4, 0.4, 0.1].map(f32::ln);
        let found = best(&row, 3).expect("numbers");
        assert_eq!(found.iter().map(|pair| pair.0).collect::<Vec<_>>(), [1, 2, 0]);
        assert!((found[0].1 - 0.4).abs() < 1e-6);
    }
}
