//! Means with 95 % intervals, medians, interpolation, and ticks at round numbers. Pure.

/// A mean and half of its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// Half the width of the 95 % interval (Student's t); `None` of fewer than four values, whose
    /// interval says more of Student's t than of them.
    pub half_width: Option<f64>,
    /// How many values.
    pub n: usize,
}

/// Two-sided 95 % quantiles of Student's t for 1..=30 degrees of freedom.
const T_95: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];

/// Values from which an interval is told.
pub const INTERVAL_FROM: usize = 4;

/// The square of the standard error of a mean; `None` of one value.
fn squared_error(values: &[f64]) -> Option<f64> {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares = || values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
    (n > 1.0).then(|| squares() / (n - 1.0) / n)
}

/// Half the width of the 95 % interval of a mean (Student's t); `None` of one value.
pub fn half_width(values: &[f64]) -> Option<f64> {
    let error = squared_error(values)?.sqrt();
    Some(T_95.get(values.len() - 2).copied().unwrap_or(1.96) * error)
}

/// Half the width of the 95 % interval of the difference of two means (Welch's t, with whole
/// degrees of freedom); `None` where one is of one value.
pub fn half_width_of_difference(a: &[f64], b: &[f64]) -> Option<f64> {
    let (ours, theirs) = (squared_error(a)?, squared_error(b)?);
    let part = |error: f64, of: &[f64]| error.powi(2) / (of.len() - 1) as f64;
    let freedom = (ours + theirs).powi(2) / (part(ours, a) + part(theirs, b));
    // Two without any spread have no degrees of freedom, and no error either.
    let whole = (freedom + 1e-9) as usize;
    let t = T_95.get(whole.max(1) - 1).copied().unwrap_or(1.96);
    Some(t * (ours + theirs).sqrt())
}

/// Mean and interval of the finite values; `None` of none.
pub fn estimate(values: impl IntoIterator<Item = f64>) -> Option<Estimate> {
    let values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
    let n = values.len();
    if n == 0 {
        return None;
    }
    let mean = values.iter().sum::<f64>() / n as f64;
    let half_width = half_width(&values).filter(|_| n >= INTERVAL_FROM);
    Some(Estimate { mean, half_width, n })
}

/// A straight line through points, by least squares.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Line {
    /// What y grows by with x.
    pub slope: f64,
    /// y at x = 0.
    pub intercept: f64,
    /// Half the width of the slope's 95 % interval (Student's t); `None` of fewer than four points.
    pub half_width: Option<f64>,
}

/// The line through points; `None` where they have not two places.
pub fn line(points: &[DataPoint]) -> Option<Line> {
    let n = points.len() as f64;
    let mean = |of: fn(&DataPoint) -> f64| points.iter().map(of).sum::<f64>() / n;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let spread: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    if spread.is_nan() || spread <= 0.0 {
        return None;
    }
    let together: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    let slope = together / spread;
    let intercept = y - slope * x;
    let half_width = (points.len() >= INTERVAL_FROM).then(|| {
        let off = |point: &DataPoint| (point.1 - intercept - slope * point.0).powi(2);
        let squares: f64 = points.iter().map(off).sum();
        let t = T_95.get(points.len() - 3).copied().unwrap_or(1.96);
        t * (squares / (n - 2.0) / spread).sqrt()
    });
    Some(Line { slope, intercept, half_width })
}

/// The middle of the samples (mean of the two middle ones); NaN of none.
pub fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// A point of a curve: (seconds, value).
pub type DataPoint = (f64, f64);

/// The curve's value at `x`, linear between its points; `None` outside of them.
pub fn interpolate(points: &[DataPoint], x: f64) -> Option<f64> {
    let after = points.partition_point(|point| point.0 < x);
    match (after.checked_sub(1).map(|before| points[before]), points.get(after)) {
        (_, Some(&(at, value))) if at == x => Some(value),
        (Some((x0, y0)), Some(&(x1, y1))) => Some(y0 + (y1 - y0) * (x - x0) / (x1 - x0)),
        _ => None,
    }
}

/// The mean of several curves with its interval.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MeanCurve {
    /// The mean.
    pub points: Vec<DataPoint>,
    /// (x, low, high) of the 95 % interval; empty of fewer than four curves.
    pub band: Vec<(f64, f64, f64)>,
}

/// Points of an averaged curve.
const GRID_POINTS: u32 = 240;

/// Those that have any point.
fn drawn(curves: &[Vec<DataPoint>]) -> Vec<&Vec<DataPoint>> {
    curves.iter().filter(|curve| !curve.is_empty()).collect()
}

/// From where to where all curves have a value.
fn common(curves: &[&Vec<DataPoint>]) -> Option<(f64, f64)> {
    let from = curves.iter().map(|curve| curve[0].0).fold(f64::NEG_INFINITY, f64::max);
    let to = curves.iter().map(|curve| curve[curve.len() - 1].0).fold(f64::INFINITY, f64::min);
    (from.is_finite() && to > from).then_some((from, to))
}

/// What single curves are where not all have a value, and their mean would be one of fewer: before
/// and behind what they have in common.
pub fn apart(curves: &[Vec<DataPoint>]) -> Vec<Vec<DataPoint>> {
    let curves = drawn(curves);
    if curves.len() < 2 {
        return Vec::new();
    }
    let Some((from, to)) = common(&curves) else {
        return curves.into_iter().cloned().collect();
    };
    let parts = |curve: &Vec<DataPoint>| {
        let at = |x: f64| interpolate(curve, x).map(|y| (x, y));
        let before = curve.iter().copied().filter(|point| point.0 < from).chain(at(from));
        let behind = at(to).into_iter().chain(curve.iter().copied().filter(|point| point.0 > to));
        [before.collect(), behind.collect()]
    };
    let parts = curves.into_iter().flat_map(parts);
    parts.filter(|part: &Vec<DataPoint>| part.len() > 1).collect()
}

/// Averages curves where all of them have a value. One curve stays as it is.
pub fn mean_curve(curves: &[Vec<DataPoint>]) -> MeanCurve {
    let curves = drawn(curves);
    if let [only] = curves.as_slice() {
        return MeanCurve { points: only.to_vec(), band: Vec::new() };
    }
    let mut mean = MeanCurve::default();
    let Some((from, to)) = common(&curves) else { return mean };
    for x in places(&curves, from, to) {
        let at = curves.iter().filter_map(|curve| interpolate(curve, x));
        let Some(here) = estimate(at) else { continue };
        mean.points.push((x, here.mean));
        if let Some(half) = here.half_width {
            mean.band.push((x, here.mean - half, here.mean + half));
        }
    }
    mean
}

/// Where several curves are averaged: at their own points where those are the same in all.
fn places(curves: &[&Vec<DataPoint>], from: f64, to: f64) -> Vec<f64> {
    let own = |curve: &Vec<DataPoint>| -> Vec<f64> {
        let within = curve.iter().map(|point| point.0).filter(|x| (from..=to).contains(x));
        within.collect()
    };
    let first = own(curves[0]);
    if curves.iter().all(|curve| own(curve) == first) {
        return first;
    }
    let at = |index| from + (to - from) * f64::from(index) / f64::from(GRID_POINTS - 1);
    (0..GRID_POINTS).map(|index| at(index).min(to)).collect()
}

/// Round numbers (1, 2, 2.5, 5 times a power of ten) from at most `low` to at least `high`, about
/// `wanted` of them.
pub fn ticks(low: f64, high: f64, wanted: usize) -> Vec<f64> {
    let span = if high > low { high - low } else { low.abs().max(1.0) };
    let rough = span / wanted.max(1) as f64;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|step| *step >= rough * 0.999)
        .unwrap_or(10.0 * power);
    let (first, last) = ((low / step + 1e-9).floor() as i64, (high / step - 1e-9).ceil() as i64);
    (first..=last.max(first + 1)).map(|index| index as f64 * step).collect()
}

/// How many digits after the point the ticks need.
pub fn tick_digits(ticks: &[f64]) -> usize {
    let round = |value: f64, digits: usize| {
        let scale = 10f64.powi(digits as i32);
        ((value * scale).round() / scale - value).abs() < 1e-6 * (1.0 + value.abs()) / scale
    };
    (0..=6).find(|&digits| ticks.iter().all(|&tick| round(tick, digits))).unwrap_or(6)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_interval_is_students() {
        // Five values with mean 3 and variance 2.5: half width 2.776 * sqrt(2.5 / 5).
        let five = estimate([1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        assert_eq!((five.mean, five.n), (3.0, 5));
        assert!((five.half_width.unwrap() - 2.776 * 0.5f64.sqrt()).abs() < 1e-9);
        let few = estimate([1.0, 2.0, 6.0]).unwrap();
        assert_eq!((few.mean, few.half_width), (3.0, None), "three are no sample");
        assert_eq!(estimate([f64::NAN]), None);
    }

    #[test]
    fn the_interval_of_a_difference_is_welchs() {
        // Standard errors 0.5 and 1, 3 degrees of freedom each: together 1.25^2 / (1.0625 / 3).
        let half = half_width_of_difference(
            &[0.0, 0.0, 3f64.sqrt(), 3f64.sqrt()],
            &[0.0, 0.0, 12f64.sqrt(), 12f64.sqrt()],
        );
        assert!((half.unwrap() - 2.776 * 1.25f64.sqrt()).abs() < 1e-9, "{half:?}");
        assert_eq!(half_width_of_difference(&[2.0; 4], &[3.0; 4]), Some(0.0));
        assert_eq!(half_width_of_difference(&[2.0], &[3.0; 4]), None);
    }

    #[test]
    fn a_line_has_the_least_squares() {
        let found = line(&[(1.0, 1.0), (2.0, 3.0), (3.0, 2.0), (4.0, 4.0)]).unwrap();
        // Slope 4 / 5, residuals' squares 1.8, two degrees of freedom.
        assert!((found.slope - 0.8).abs() < 1e-12 && (found.intercept - 0.5).abs() < 1e-12);
        let half = 4.303 * (1.8f64 / 2.0 / 5.0).sqrt();
        assert!((found.half_width.unwrap() - half).abs() < 1e-9, "{found:?}");
        assert_eq!(line(&[(2.0, 1.0), (2.0, 3.0)]), None);
        assert_eq!(line(&[(1.0, 1.0), (2.0, 3.0)]).unwrap().half_width, None);
    }

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn a_mean_curve_is_the_mean_where_all_curves_are() {
        let one: Vec<DataPoint> = (0..=10).map(|x| (f64::from(x), 1.0)).collect();
        let three: Vec<DataPoint> = (2..=12).map(|x| (f64::from(x), 3.0)).collect();
        let mean = mean_curve(&[one.clone(), three]);
        assert_eq!(mean.points[0].0, 2.0);
        assert_eq!(mean.points[mean.points.len() - 1].0, 10.0);
        assert!(mean.points.iter().all(|point| (point.1 - 2.0).abs() < 1e-12));
        assert_eq!(mean.band, [], "two have no interval");
        let four = mean_curve(&vec![one.clone(); INTERVAL_FROM]);
        assert_eq!(four.band.len(), four.points.len());
        assert_eq!(mean_curve(std::slice::from_ref(&one)).points, one);
        assert_eq!(mean_curve(&[]), MeanCurve::default());
    }

    #[test]
    fn beyond_what_curves_have_in_common_they_stand_for_themselves() {
        let short = vec![(0.0, 1.0), (2.0, 3.0)];
        let long = vec![(1.0, 5.0), (4.0, 8.0), (6.0, 9.0)];
        let both = [short.clone(), long.clone()];
        let beyond = [vec![(0.0, 1.0), (1.0, 2.0)], vec![(2.0, 6.0), (4.0, 8.0), (6.0, 9.0)]];
        assert_eq!(apart(&both), beyond);
        let later = vec![(7.0, 1.0), (8.0, 1.0)];
        let strangers = [short.clone(), later];
        assert_eq!(mean_curve(&strangers), MeanCurve::default());
        assert_eq!(apart(&strangers), strangers, "nothing in common");
        assert!(apart(&[long.clone(), long]).is_empty() && apart(&[short, Vec::new()]).is_empty());
    }

    proptest! {
        #[test]
        fn ticks_cover_the_range_and_are_few(low in -1e6f64..1e6, span in 1e-3f64..1e6) {
            let (high, wanted) = (low + span, 6);
            let ticks = ticks(low, high, wanted);
            prop_assert!(ticks.len() >= 2 && ticks.len() <= wanted + 3, "{ticks:?}");
            let slack = span * 1e-6 + low.abs() * 1e-9;
            prop_assert!(ticks[0] <= low + slack && ticks[ticks.len() - 1] >= high - slack);
        }

        #[test]
        fn interpolation_stays_between_neighbours(
            values in prop::collection::vec(0f64..1.0, 2..20),
            at in 0f64..1.0,
        ) {
            let points: Vec<DataPoint> =
                values.iter().enumerate().map(|(x, &value)| (x as f64, value)).collect();
            let value = interpolate(&points, at * (points.len() - 1) as f64).unwrap();
            let least = values.iter().copied().fold(1.0, f64::min);
            let most = values.iter().copied().fold(0.0, f64::max);
            prop_assert!(value >= least - 1e-12 && value <= most + 1e-12);
        }
    }
}
