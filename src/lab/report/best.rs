//! The best of several arms in which nothing failed: by the mean of its complete runs' lowest
//! validation errors, with the arm that comes next, whether their seeds tell the two apart, and in
//! which lengths they differ. Errors on several sets are not compared. Pure.

use serde::Serialize;

use super::groups::{Keys, configuration, differences};
use super::statistics::{Estimate, INTERVAL_FROM, estimate, half_width_of_difference};
use super::summary::{RunSummary, is_calm};
use super::{Run, Study};
use crate::observe::result::Status;

/// What says on which set a run is evaluated; `data.train` too, where that has no set of its own.
const SETS: [&str; 4] =
    ["data.format", "data.validation", "data.synthetic_samples", "data.synthetic_classes"];
/// What says how long it is.
const LENGTHS: [&str; 3] = ["train.epochs", "train.steps", "train.max_seconds"];

/// An arm's lowest validation errors, fractions.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Rated {
    /// The arm.
    pub arm: String,
    /// Over its seeds.
    pub error: Estimate,
    /// Of each.
    pub errors: Vec<f64>,
}

/// What is best, and what comes next.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Best {
    /// The arm with the lowest mean.
    pub best: Rated,
    /// The second lowest.
    pub next: Rated,
    /// Whether the 95 % interval of their difference leaves no doubt which is lower.
    pub is_clear: bool,
    /// Keys of their lengths in which the two differ.
    pub lengths: Vec<String>,
}

impl Rated {
    fn of(arm: &str, runs: &[RunSummary]) -> Option<Self> {
        let is_complete = |run: &&RunSummary| run.status == Some(Status::Completed);
        let own = runs.iter().filter(|run| run.arm == arm).filter(is_complete);
        let errors: Vec<f64> = own.filter_map(|run| run.min_error).collect();
        let error = estimate(errors.iter().copied())?;
        Some(Self { arm: arm.to_owned(), error, errors })
    }

    fn words(&self) -> String {
        let percent = |fraction: f64| format!("{:.2}", fraction * 100.0);
        let mean = percent(self.error.mean);
        match (self.error.half_width, self.errors.as_slice()) {
            (Some(half), all) => format!("{mean} ± {} % over {} seeds", percent(half), all.len()),
            (None, [_]) => format!("{mean} %"),
            (None, few) => {
                let each: Vec<String> = few.iter().map(|error| percent(*error)).collect();
                format!("{mean} % ({})", each.join(", "))
            }
        }
    }
}

impl Best {
    /// In a line.
    pub fn words(&self) -> String {
        let difference = difference(&self.best, &self.next).filter(|_| self.is_clear);
        let doubt = match (difference, self.best.errors.len().min(self.next.errors.len())) {
            (_, 1) => "; one seed does not tell them apart".to_string(),
            (Some((by, half)), _) => {
                format!("; {:.2} ± {:.2} points apart", by * 100.0, half * 100.0)
            }
            (None, _) => "; these seeds do not tell them apart".to_string(),
        };
        let lengths = match self.lengths.join(", ") {
            keys if keys.is_empty() => keys,
            keys => format!(" They differ in their length, too ({keys})."),
        };
        format!(
            "Lowest validation error: {}, {}; next: {}, {}{doubt}.{lengths}",
            self.best.arm,
            self.best.words(),
            self.next.arm,
            self.next.words()
        )
    }
}

/// Which arm is best, in a line, or why none is.
pub fn words(study: &Study, runs: &[RunSummary]) -> Option<String> {
    Some(match ranking(study, runs)? {
        Ok(best) => best.words(),
        Err(keys) => format!(
            "No arm's validation error is called the lowest: they are evaluated on several sets \
             ({}).",
            keys.join(", ")
        ),
    })
}

/// The best arm; `None` where runs failed, no two arms were evaluated with other results, or they
/// were on several sets.
pub fn best(study: &Study, runs: &[RunSummary]) -> Option<Best> {
    ranking(study, runs)?.ok()
}

/// `Err`: the keys that say that errors are of several sets.
fn ranking(study: &Study, runs: &[RunSummary]) -> Option<Result<Best, Vec<String>>> {
    if !is_calm(runs) {
        return None;
    }
    let rated = |arm| {
        let [set, length] = set_and_length(study.runs_of(arm).next()?)?;
        Some((Rated::of(arm, runs)?, set, length))
    };
    let mut rated: Vec<(Rated, Keys, Keys)> = study.arms().into_iter().filter_map(rated).collect();
    rated.sort_by(|(a, ..), (b, ..)| a.error.mean.total_cmp(&b.error.mean));
    // Arms that compute the same differ in something else.
    if rated.first()?.0.error.mean == rated.last()?.0.error.mean {
        return None;
    }
    let several = differing(&rated.iter().map(|(_, set, _)| set).collect::<Vec<_>>());
    if !several.is_empty() {
        return Some(Err(several));
    }
    let mut rated = rated.into_iter();
    let ((best, _, ours), (next, _, theirs)) = (rated.next()?, rated.next()?);
    let is_clear = are_apart(&best, &next);
    Some(Ok(Best { best, next, is_clear, lengths: differing(&[&ours, &theirs]) }))
}

/// Of a configuration; `None` where it cannot be read.
fn set_and_length(run: &Run) -> Option<[Keys; 2]> {
    let config = run.settings()?;
    let validation = config.data.validation.as_ref();
    let has_own = validation.is_some_and(|validation| validation.place().is_some());
    let (mut set, mut length) = (configuration(&run.config), Keys::new());
    set.retain(|key, value| {
        if LENGTHS.contains(&key.as_str()) {
            length.insert(key.clone(), value.clone());
        }
        let of_share = key == "data.train" && !has_own;
        of_share || SETS.iter().any(|section| key.starts_with(*section))
    });
    Some([set, length])
}

fn differing(of: &[&Keys]) -> Vec<String> {
    differences(of).into_iter().map(|difference| difference.key).collect()
}

/// Of two arms' errors, and half of its 95 % interval; `None` of few seeds, where two arms of one
/// kind are often apart by chance.
fn difference(best: &Rated, next: &Rated) -> Option<(f64, f64)> {
    let enough = best.errors.len().min(next.errors.len()) >= INTERVAL_FROM;
    let half = half_width_of_difference(&best.errors, &next.errors).filter(|_| enough)?;
    Some((next.error.mean - best.error.mean, half))
}

/// Whether seeds tell two arms apart: intervals of two means may overlap where that of their
/// difference does not hold zero.
fn are_apart(best: &Rated, next: &Rated) -> bool {
    difference(best, next).is_some_and(|(by, half)| half < by)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rated(arm: &str, errors: &[f64]) -> Rated {
        let error = estimate(errors.iter().copied()).unwrap();
        Rated { arm: arm.into(), error, errors: errors.to_vec() }
    }

    fn told(a: &[f64], b: &[f64]) -> String {
        let (best, next) = (rated("a", a), rated("b", b));
        let is_clear = are_apart(&best, &next);
        Best { best, next, is_clear, lengths: Vec::new() }.words()
    }

    #[test]
    fn single_values_stand_behind_few_seeds_and_intervals_behind_four() {
        let few = told(&[0.1, 0.12], &[0.2, 0.22]);
        assert_eq!(
            few,
            "Lowest validation error: a, 11.00 % (10.00, 12.00); next: b, 21.00 % (20.00, 22.00); \
             these seeds do not tell them apart.",
            "of two and two seeds of one kind one pair in three is apart"
        );
        let four = told(&[0.1, 0.12, 0.1, 0.12], &[0.2; 4]);
        assert!(four.contains("a, 11.00 ± 1.84 % over 4 seeds; next: b, 20.00 ± 0.00"), "{four}");
    }

    #[test]
    fn what_the_difference_tells_apart_may_overlap() {
        // 20.83 and 25.42 %: t = 3.42 with 5.7 degrees of freedom.
        let of = |mean: f64, off: f64| [mean - off, mean - off, mean + off, mean + off];
        let words = told(&of(0.2083, 0.01442), &of(0.2542, 0.01818));
        assert!(words.contains("a, 20.83 ± 2.65 %") && words.contains("b, 25.42 ± 3.34 %"));
        assert!(words.ends_with("over 4 seeds; 4.59 ± 3.44 points apart."), "{words}");
        let near = told(&of(0.2083, 0.01442), &of(0.2402, 0.01818));
        assert!(near.ends_with("these seeds do not tell them apart."), "{near}");
    }

    #[test]
    fn what_chance_explains_is_not_told_apart() {
        assert!(told(&[0.1, 0.12], &[0.11, 0.2]).ends_with("do not tell them apart."));
        assert!(told(&[0.1], &[0.2]).ends_with("one seed does not tell them apart."));
    }
}
