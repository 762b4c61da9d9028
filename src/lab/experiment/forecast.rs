//! How long an experiment takes: what its runs' limits allow, and what those that are made took.
//! Pure.

use std::collections::BTreeMap;

use crate::lab::report::statistics::estimate;

/// Seconds that runs took.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Forecast {
    took: BTreeMap<String, Vec<f64>>,
}

impl Forecast {
    /// A run of this arm is made.
    pub fn took(&mut self, arm: &str, seconds: f64) {
        self.took.entry(arm.to_owned()).or_default().push(seconds);
    }

    /// Seconds that runs of these arms will take, each as the arm's own have taken, else as all
    /// have; `None` before the first.
    pub fn left<'a>(&self, arms: impl IntoIterator<Item = &'a str>) -> Option<f64> {
        let of_all = estimate(self.took.values().flatten().copied())?.mean;
        let of = |arm: &str| estimate(self.took.get(arm)?.iter().copied());
        Some(arms.into_iter().map(|arm| of(arm).map_or(of_all, |own| own.mean)).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arm_takes_what_it_took_and_a_new_one_what_all_took() {
        let mut forecast = Forecast::default();
        assert_eq!(forecast.left(["a"]), None);
        forecast.took("a", 10.0);
        forecast.took("b", 30.0);
        forecast.took("b", 50.0);
        assert_eq!(forecast.left(["a", "b"]), Some(50.0));
        assert_eq!(forecast.left(["c"]), Some(30.0));
        assert_eq!(forecast.left([]), Some(0.0));
    }
}
