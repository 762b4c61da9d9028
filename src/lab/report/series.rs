//! From events to curves: validation error, committed steps, training loss, failure marks. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::statistics::DataPoint;
use crate::observe::event::{Event, Kind};

/// Validation error (a fraction) against what `at` says of an event: its seconds, or its step.
pub fn validation_error(events: &[Event], at: impl Fn(&Event) -> f64) -> Vec<DataPoint> {
    let measured = events.iter().filter_map(|event| match event.kind {
        Kind::Evaluation { error, .. } if error.is_finite() => Some((at(event), error)),
        _ => None,
    });
    in_order(measured.collect())
}

/// Committed steps against seconds. A restart from an older state is a vertical drop.
pub fn committed_steps(events: &[Event]) -> Vec<DataPoint> {
    let mut points: Vec<DataPoint> = Vec::new();
    for event in events {
        let here = (event.seconds, event.step as f64);
        let before = points.last().map_or(0.0, |point| point.1);
        match &event.kind {
            Kind::Step { seconds, .. } if here.1 < before => {
                points.extend([(here.0 - seconds, before), (here.0 - seconds, here.1 - 1.0), here]);
            }
            Kind::Restarted { .. } if here.1 < before => points.extend([(here.0, before), here]),
            // The first word of a new attempt may come before its state is loaded, and what a rank
            // says when it dies may be a step old.
            _ => points.push((here.0, here.1.max(before))),
        }
    }
    in_order(points)
}

/// The largest fall of a curve of committed steps from one point to the next.
pub fn largest_fall(points: &[DataPoint]) -> f64 {
    points.windows(2).map(|pair| pair[0].1 - pair[1].1).fold(0.0, f64::max)
}

/// Mean training loss of the samples of each of `bins` slices of time up to `until` seconds. A
/// slice with a loss that is no number has none.
pub fn training_loss(events: &[Event], until: f64, bins: usize) -> Vec<DataPoint> {
    let width = until / bins.max(1) as f64;
    let mut sums: BTreeMap<u64, (f64, f64, f64)> = BTreeMap::new();
    for event in events {
        let Kind::Step { loss, samples, .. } = event.kind else { continue };
        if width <= 0.0 {
            continue;
        }
        let slice = sums.entry((event.seconds / width) as u64).or_default();
        let weight = samples as f64;
        slice.0 += event.seconds * weight;
        slice.1 += loss * weight;
        slice.2 += weight;
    }
    let means = sums.values().map(|slice| (slice.0 / slice.2, slice.1 / slice.2));
    means.filter(|point| point.0.is_finite() && point.1.is_finite()).collect()
}

/// Seconds at which something failed: when it was injected, or else when it was noticed, or else
/// when the attempt ended.
pub fn failures(events: &[Event]) -> Vec<f64> {
    let mut times = Vec::new();
    // Until the next committed step, whatever is noticed is the same failure.
    let mut known = false;
    // What was noticed of a repair, by attempt and generation: its record may come steps later.
    let mut noticed = BTreeSet::new();
    let mut stopped = false;
    for (index, event) in events.iter().enumerate() {
        let before = index.checked_sub(1).map(|before| &events[before]);
        if let Some(before) = before.filter(|before| before.attempt < event.attempt) {
            if !known && !stopped {
                times.push(before.seconds);
            }
            (known, stopped) = (true, false);
        }
        let repair = (event.attempt, event.generation);
        let fresh = match &event.kind {
            Kind::FailureDetected { .. } => noticed.insert(repair),
            Kind::Recovered(record) => noticed.insert((event.attempt, record.generation)),
            _ => false,
        };
        match event.kind {
            Kind::Step { .. } => known = false,
            Kind::RunEnd { .. } => stopped = asked_to_end(event),
            Kind::FaultInjected { .. } => {
                times.push(event.seconds);
                known = true;
            }
            Kind::FailureDetected { .. } | Kind::Recovered { .. } if fresh && !known => {
                times.push(event.seconds);
                known = true;
            }
            _ => {}
        }
    }
    cluster(times, SAME_FAILURE_SECONDS)
}

/// Writers take turns, so the order of lines is not exact: times this close are one failure.
const SAME_FAILURE_SECONDS: f64 = 1.5;

/// The first of each group of times that lie within `width` of its first.
pub fn cluster(mut times: Vec<f64>, width: f64) -> Vec<f64> {
    times.sort_by(f64::total_cmp);
    let mut firsts: Vec<f64> = Vec::new();
    for time in times {
        if firsts.last().is_none_or(|first| time - first > width) {
            firsts.push(time);
        }
    }
    firsts
}

/// Calls with (events of the old attempt, seconds of its end, events from the new attempt on) at
/// every new attempt that follows a failure: not after a stop that was asked for.
pub fn for_each_restart<'a>(
    events: &'a [Event],
    mut call: impl FnMut(&'a [Event], f64, &'a [Event]),
) {
    let mut old = 0;
    for index in 1..events.len() {
        if events[index].attempt <= events[index - 1].attempt {
            continue;
        }
        let before = &events[old..index];
        if !before.iter().any(asked_to_end) {
            call(before, events[index - 1].seconds, &events[index..]);
        }
        old = index;
    }
}

/// Whether the attempt ended because somebody asked it to: no failure, whatever comes after.
fn asked_to_end(event: &Event) -> bool {
    match &event.kind {
        Kind::RunEnd { status, .. } => ["interrupted", "completed"].contains(&status.as_str()),
        _ => false,
    }
}

/// Clocks of successive writers may differ by a little: a curve never runs back in time.
fn in_order(mut points: Vec<DataPoint>) -> Vec<DataPoint> {
    let mut latest = 0f64;
    for point in &mut points {
        latest = latest.max(point.0);
        point.0 = latest;
    }
    points
}

/// At most about `most` points, with every fall and both ends kept.
pub fn thin(points: &[DataPoint], most: usize) -> Vec<DataPoint> {
    let every = points.len().div_ceil(most.max(2));
    if every <= 1 {
        return points.to_vec();
    }
    let falls = |index: usize| {
        let around = &points[index.saturating_sub(1)..(index + 2).min(points.len())];
        around.windows(2).any(|pair| pair[1].1 < pair[0].1)
    };
    let kept =
        |index: &usize| index.is_multiple_of(every) || *index + 1 == points.len() || falls(*index);
    (0..points.len()).filter(kept).map(|index| points[index]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_with_a_loss_that_is_no_number_has_none() {
        let step = |seconds: f64, loss: f64| {
            let (epoch, error, samples, learning_rate) = (0, 0.5, 8, 0.1);
            let kind = Kind::Step { epoch, loss, error, samples, learning_rate, seconds: 0.1 };
            let (v, time, attempt, generation) = (1, 0.0, 1, 0);
            Event { v, time, seconds, attempt, generation, step: 1, rank: 0, kind }
        };
        let events = [step(0.2, 2.0), step(0.6, 4.0), step(1.2, 1.0), step(1.6, f64::NAN)];
        assert_eq!(training_loss(&events, 2.0, 2), [(0.4, 3.0)]);
    }

    #[test]
    fn times_close_together_are_one_failure() {
        assert_eq!(cluster(vec![10.2, 3.0, 10.0, 3.4, 20.0], 1.0), [3.0, 10.0, 20.0]);
        assert_eq!(cluster(vec![], 1.0), Vec::<f64>::new());
    }

    #[test]
    fn thinning_keeps_ends_and_falls() {
        let mut points: Vec<DataPoint> = (0..1000).map(|x| (f64::from(x), f64::from(x))).collect();
        for point in &mut points[577..] {
            point.1 -= 100.0;
        }
        let thinned = thin(&points, 50);
        assert!(thinned.len() < 60);
        assert_eq!((thinned[0], thinned[thinned.len() - 1]), (points[0], points[999]));
        assert_eq!(largest_fall(&thinned), largest_fall(&points));
        assert!(thinned.contains(&points[576]) && thinned.contains(&points[577]));
    }
}
