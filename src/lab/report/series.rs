//! From events to curves: errors, losses, rates, committed steps; and failure marks. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::Run;
use super::axis::{Axis, Ruler};
use super::statistics::DataPoint;
use crate::observe::event::{Event, Kind};
use crate::observe::standing::standing;

/// What `value` says of events, against a run's axis. What a rollback threw away has no place among
/// epochs and steps; in time it has.
pub fn measured(run: &Run, ruler: &Ruler, value: impl Fn(&Kind) -> Option<f64>) -> Vec<DataPoint> {
    let found = run.events.iter().filter_map(|event| {
        let value = value(&event.kind).filter(|value| value.is_finite())?;
        Some((ruler.at(event), value))
    });
    let mut points: Vec<DataPoint> = Vec::new();
    for point in found {
        while ruler.axis != Axis::Time && points.last().is_some_and(|last| last.0 >= point.0) {
            points.pop();
        }
        points.push(point);
    }
    in_order(points)
}

/// Validation errors that stand, over the seconds of the run.
pub fn standing_errors(run: &Run) -> Vec<DataPoint> {
    let error = |event: &&Event| {
        let error = validation_error(&event.kind).filter(|error| error.is_finite())?;
        Some((event.seconds, error))
    };
    in_order(standing(&run.events).iter().filter_map(error).collect())
}

/// The same, of the weights or of their running average, whichever is smaller.
pub fn least_errors(run: &Run) -> Vec<DataPoint> {
    let error = |event: &&Event| {
        let found = [validation_error(&event.kind), average_error(&event.kind)];
        let found = found.into_iter().flatten().filter(|error| error.is_finite());
        Some((event.seconds, found.reduce(f64::min)?))
    };
    in_order(standing(&run.events).iter().filter_map(error).collect())
}

/// Validation error, a fraction.
pub fn validation_error(kind: &Kind) -> Option<f64> {
    match kind {
        Kind::Evaluation { error, .. } => Some(*error),
        _ => None,
    }
}

/// Of the running average of the weights.
pub fn average_error(kind: &Kind) -> Option<f64> {
    match kind {
        Kind::Evaluation { average_error, .. } => *average_error,
        _ => None,
    }
}

/// Validation loss.
pub fn validation_loss(kind: &Kind) -> Option<f64> {
    match kind {
        Kind::Evaluation { loss, .. } => Some(*loss),
        _ => None,
    }
}

/// With which a step moved the weights.
pub fn learning_rate(kind: &Kind) -> Option<f64> {
    match kind {
        Kind::Step { learning_rate, .. } => Some(*learning_rate),
        _ => None,
    }
}

/// What of a step is averaged, and by what it is weighed.
pub type Weighed = fn(&Kind) -> Option<(f64, f64)>;

/// Training loss, by samples.
pub fn training_loss(kind: &Kind) -> Option<(f64, f64)> {
    match kind {
        Kind::Step { loss, samples, .. } => Some((*loss, *samples as f64)),
        _ => None,
    }
}

/// Training error, by samples.
pub fn training_error(kind: &Kind) -> Option<(f64, f64)> {
    match kind {
        Kind::Step { error, samples, .. } => Some((*error, *samples as f64)),
        _ => None,
    }
}

/// Samples a second of the time that steps took, by that time.
pub fn throughput(kind: &Kind) -> Option<(f64, f64)> {
    match kind {
        Kind::Step { samples, seconds, .. } if *seconds > 0.0 => {
            Some((*samples as f64 / seconds, *seconds))
        }
        _ => None,
    }
}

/// A slice of less than this share of both beside it is not drawn by itself.
const LITTLE: f64 = 0.5;

/// Means over each of `bins` slices of the axis up to `until`. A slice with a value that is no
/// number has none; one that holds little beside those around it is one with the slice before it,
/// as the last few steps of an epoch are. Of steps that were done again, among epochs and steps the
/// last time counts.
pub fn sliced(run: &Run, ruler: &Ruler, until: f64, bins: usize, of: Weighed) -> Vec<DataPoint> {
    let last = bins.max(1) - 1;
    let width = until / (last + 1) as f64;
    if width <= 0.0 {
        return Vec::new();
    }
    let mut counted: Vec<(f64, f64, f64)> = Vec::new();
    for event in &run.events {
        let Some((value, weight)) = of(&event.kind) else { continue };
        let x = ruler.at(event);
        while ruler.axis != Axis::Time && counted.last().is_some_and(|last| last.0 >= x) {
            counted.pop();
        }
        counted.push((x, value, weight));
    }
    let mut sums: BTreeMap<usize, [f64; 3]> = BTreeMap::new();
    for (x, value, weight) in counted {
        let slice = sums.entry(((x / width) as usize).min(last)).or_default();
        *slice = added(*slice, [x * weight, value * weight, weight]);
    }
    let slices: Vec<[f64; 3]> = sums.into_values().collect();
    let mut wide: Vec<[f64; 3]> = Vec::new();
    for (at, slice) in slices.iter().enumerate() {
        let before = at.checked_sub(1).map_or(0.0, |before| slices[before][2]);
        let least = slices.get(at + 1).map_or(before, |next| before.min(next[2])) * LITTLE;
        match wide.last_mut() {
            Some(last) if slice[2] < least => *last = added(*last, *slice),
            _ => wide.push(*slice),
        }
    }
    let means = wide.iter().map(|slice| (slice[0] / slice[2], slice[1] / slice[2]));
    means.filter(|point| point.0.is_finite() && point.1.is_finite()).collect()
}

fn added(a: [f64; 3], b: [f64; 3]) -> [f64; 3] {
    [a[0] + b[0], a[1] + b[1], a[2] + b[2]]
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
            if !known && (!stopped || names_lost(&events[index..])) {
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
/// every new attempt that follows a failure: not after a stop that was asked for, unless the new
/// attempt names who was lost before it.
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
        if !before.iter().any(asked_to_end) || names_lost(&events[index..]) {
            call(before, events[index - 1].seconds, &events[index..]);
        }
        old = index;
    }
}

/// Whether the attempt that the first of these events begins names who was lost before it.
fn names_lost(events: &[Event]) -> bool {
    let attempt = events.iter().take_while(|event| event.attempt == events[0].attempt);
    let named = |kind: &Kind| matches!(kind, Kind::Restarted { lost, .. } if !lost.is_empty());
    attempt.map(|event| &event.kind).any(named)
}

/// Whether the attempt ended because somebody asked it to.
pub fn asked_to_end(event: &Event) -> bool {
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
    use crate::observe::event::samples::event;

    fn run_of(steps: &[(u64, f64, f64)]) -> Run {
        let step = |&(step, seconds, loss): &(u64, f64, f64)| {
            let (epoch, error, samples, learning_rate) = (0, 0.5, 8, 0.1);
            let kind = Kind::Step { epoch, loss, error, samples, learning_rate, seconds: 0.1 };
            event(step, seconds, kind)
        };
        Run { events: steps.iter().map(step).collect(), ..Run::default() }
    }

    #[test]
    fn a_slice_with_a_loss_that_is_no_number_has_none() {
        let run = run_of(&[(1, 0.2, 2.0), (2, 0.6, 4.0), (3, 1.2, 1.0), (4, 1.6, f64::NAN)]);
        let ruler = Ruler::new(&run, Axis::Time).unwrap();
        assert_eq!(sliced(&run, &ruler, 2.0, 2, training_loss), [(0.4, 3.0)]);
    }

    /// One step at the end of an epoch is no measurement of a rate.
    #[test]
    fn an_interval_that_is_short_beside_others_is_drawn_with_the_one_before_it() {
        let of = |steps: &[(u64, f64)]| {
            let told: Vec<_> = steps.iter().map(|(step, _)| (*step, 0.0, 1.0)).collect();
            let mut run = run_of(&told);
            for (event, (_, took)) in run.events.iter_mut().zip(steps) {
                if let Kind::Step { seconds, samples, .. } = &mut event.kind {
                    (*seconds, *samples) = (*took, 100);
                }
            }
            let ruler = Ruler::new(&run, Axis::Steps).unwrap();
            let points = sliced(&run, &ruler, 10.0, 10, throughput);
            points.into_iter().map(|point| point.1.round()).collect::<Vec<f64>>()
        };
        let ends = [(2, 1.0), (4, 1.0), (5, 0.1), (7, 1.0), (9, 1.0), (10, 0.1)];
        assert_eq!(of(&ends), [100.0, 182.0, 100.0, 182.0]);
        // What lasts is no short interval.
        assert_eq!(of(&[(2, 1.0), (4, 0.25), (6, 0.25), (8, 0.25)]), [100.0, 400.0, 400.0, 400.0]);
    }

    #[test]
    fn steps_that_were_done_again_count_once_among_steps_and_twice_in_time() {
        let run = run_of(&[(1, 0.1, 1.0), (2, 0.2, 9.0), (3, 0.3, 9.0), (2, 1.2, 3.0)]);
        let loss = |axis: Axis, until: f64| {
            let ruler = Ruler::new(&run, axis).unwrap();
            sliced(&run, &ruler, until, 1, training_loss)
        };
        assert_eq!(loss(Axis::Steps, 4.0), [(1.5, 2.0)]);
        assert_eq!(loss(Axis::Time, 2.0)[0].1, 5.5);
        let ruler = Ruler::new(&run, Axis::Steps).unwrap();
        let rates = measured(&run, &ruler, learning_rate);
        assert_eq!(rates, [(1.0, 0.1), (2.0, 0.1)]);
        assert_eq!(ruler.at_seconds(0.25), 2.0);
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
