//! A mean that follows the newest samples.

/// Loss and error are averaged over about this many of the newest samples.
const SAMPLES: f64 = 2000.0;

/// A mean over about the newest [`SAMPLES`].
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Smoothed {
    sum: f64,
    weight: f64,
    /// The newest value was no number: no mean of older ones stands for it.
    lost: bool,
}

impl Smoothed {
    pub(super) fn add(&mut self, value: f64, samples: u64) {
        self.lost = !value.is_finite();
        if self.lost || samples == 0 {
            return;
        }
        let samples = samples as f64;
        let kept = (-samples / SAMPLES).exp();
        self.sum = self.sum * kept + value * samples;
        self.weight = self.weight * kept + samples;
    }

    pub(super) fn mean(&self) -> Option<f64> {
        if self.lost {
            return Some(f64::NAN);
        }
        (self.weight > 0.0).then(|| self.sum / self.weight)
    }
}
