//! What the samples of an epoch were, as one number. Each epoch reads each sample once, and the
//! number is a sum that no order and no reader shows in, so every epoch of a set that nobody
//! changes has the same: a picture that was written anew at its old length, or that whoever takes
//! an owner over finds otherwise on its node, is found at the end of the epoch that reads it so.
//! Nodes whose sets differ from the start, and of which none takes over, are not.

use serde::{Deserialize, Serialize};

/// Sums over the contents of samples, each with its number. A state of an earlier release has none;
/// what another build goes on with is not exact, whatever its samples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Contents {
    /// Over the committed steps of the epoch at hand.
    pub in_epoch: u64,
    /// Over the first whole epoch.
    pub of_epoch: Option<u64>,
    /// Over the validation set in its first evaluation, with the hash of its listing.
    pub of_validation: Option<(u64, u64)>,
}

impl Contents {
    /// Nothing summed yet: nothing to write down.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// A step was committed.
    pub fn add(&mut self, of_step: u64) {
        self.in_epoch = self.in_epoch.wrapping_add(of_step);
    }

    /// Its epoch has ended. False: samples were others than in the first whole one.
    pub fn end_epoch(&mut self) -> bool {
        let in_epoch = std::mem::take(&mut self.in_epoch);
        *self.of_epoch.get_or_insert(in_epoch) == in_epoch
    }

    /// The whole validation set was read, which was listed so. False: its samples are others than
    /// in its first evaluation. A run may go on with another set: that is measured anew.
    pub fn measured(&mut self, listed: u64, sum: u64) -> bool {
        match self.of_validation {
            Some((same, before)) if same == listed => before == sum,
            _ => {
                self.of_validation = Some((listed, sum));
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epoch(contents: &mut Contents, steps: &[u64]) -> bool {
        steps.iter().for_each(|of_step| contents.add(*of_step));
        contents.end_epoch()
    }

    #[test]
    fn epochs_of_the_same_samples_agree_in_whatever_steps_and_others_do_not() {
        let mut contents = Contents::default();
        assert!(epoch(&mut contents, &[u64::MAX, 7, 9]));
        assert!(epoch(&mut contents, &[9, u64::MAX - 1, 8]));
        assert!(!epoch(&mut contents, &[9, u64::MAX - 1, 9]));
        assert!(epoch(&mut contents, &[15]), "the first one is what all are compared with");
        let measured = [(7, 3), (7, 3), (7, 4), (7, 3), (8, 4), (8, 3)];
        let same = measured.map(|(listed, sum)| contents.measured(listed, sum));
        assert_eq!(same, [true, true, false, true, true, false]);
    }
}
