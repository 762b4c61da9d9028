//! Curves over time or size: axes at round numbers, failure and minimum marks, labels at the
//! curves' ends instead of a key to look up.

use super::statistics::{DataPoint, MeanCurve, interpolate, tick_digits, ticks};
use super::svg::{Anchor, Canvas, label_width, spread};

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 64.0;
const RIGHT_MIN: f64 = 232.0;
const LABEL_LEFT: f64 = 22.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 48.0;
const LABEL_GAP: f64 = 17.0;
const DOTS_MAX: usize = 160;

/// One arm's curve.
#[derive(Default)]
pub struct Series {
    /// The arm.
    pub label: String,
    /// Its colour: 0, 1, 2 ...
    pub colour: usize,
    /// The curve, x in seconds.
    pub curve: MeanCurve,
    /// Where it is least, if that is marked.
    pub diamond: Option<DataPoint>,
    /// A dot at every point: each one was measured.
    pub dots: bool,
    /// Drawn broad and pale, so that a curve that lies on it leaves it visible.
    pub reference: bool,
}

/// How y values are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Unit {
    /// Fractions, written as per cent.
    Percent,
    /// Plain numbers.
    #[default]
    Number,
}

/// What lies along the x axis.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum XAxis {
    /// Seconds, from 0.
    #[default]
    Time,
    /// Committed steps, from 0.
    Steps,
    /// Shares, from 0, written as per cent.
    Shares {
        /// Of what.
        label: String,
    },
    /// Sizes from a smallest one (above 0) on, every factor of ten as wide as any other.
    Logarithmic {
        /// The smallest.
        from: f64,
        /// What they are.
        label: String,
    },
}

/// A chart of curves.
#[derive(Default)]
pub struct LineChart {
    /// Unique on the page.
    pub id: String,
    /// What a screen reader says.
    pub label: String,
    /// Along the y axis.
    pub y_label: String,
    /// How y values are written.
    pub unit: Unit,
    /// The y range that must be visible; `None` = of the data.
    pub y_from: Option<f64>,
    /// What lies along the x axis.
    pub x_axis: XAxis,
    /// Its end.
    pub x_to: f64,
    /// Seconds at which something failed.
    pub failures: Vec<f64>,
    /// The arms.
    pub series: Vec<Series>,
}

/// `100,000`.
pub fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) && !text.ends_with('-') {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Seconds, minutes or hours, whichever gives small numbers.
pub fn time_unit(seconds: f64) -> (f64, &'static str) {
    match seconds {
        s if s <= 300.0 => (1.0, "s"),
        s if s <= 3.0 * 3600.0 => (60.0, "min"),
        _ => (3600.0, "h"),
    }
}

/// From data to pixels.
struct Scale {
    /// Where the plot ends and the labels of the curves begin, in pixels.
    right: f64,
    /// The smallest x of a logarithmic axis.
    logarithmic_from: Option<f64>,
    x_to: f64,
    y_from: f64,
    y_to: f64,
}

impl Scale {
    fn x(&self, value: f64) -> f64 {
        let part = match self.logarithmic_from {
            Some(from) if self.x_to > from => (value / from).ln() / (self.x_to / from).ln(),
            _ => value / self.x_to,
        };
        LEFT + part * (self.right - LEFT)
    }
    fn y(&self, value: f64) -> f64 {
        let part = (value - self.y_from) / (self.y_to - self.y_from);
        HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM)
    }
    fn at(&self, point: DataPoint) -> DataPoint {
        (self.x(point.0), self.y(point.1))
    }
}

impl LineChart {
    /// The drawing; `None` when there is nothing to draw.
    pub fn draw(&self) -> Option<String> {
        let values = || self.series.iter().flat_map(|s| s.curve.points.iter().map(|p| p.1));
        let (low, high) =
            values().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        if !(low.is_finite() && self.x_to > 0.0) {
            return None;
        }
        let y_ticks = ticks(self.y_from.unwrap_or(low).min(low), high, 8);
        let widths = self.series.iter().map(|s| LABEL_LEFT + label_width(&self.end_label(s)));
        let scale = Scale {
            right: WIDTH - widths.fold(RIGHT_MIN, f64::max),
            logarithmic_from: match self.x_axis {
                XAxis::Time | XAxis::Steps | XAxis::Shares { .. } => None,
                XAxis::Logarithmic { from, .. } => Some(from),
            },
            x_to: self.x_to,
            y_from: y_ticks[0],
            y_to: y_ticks[y_ticks.len() - 1],
        };
        let mut canvas = Canvas::new(WIDTH, HEIGHT);
        self.axes(&mut canvas, &scale, &y_ticks);
        self.failure_marks(&mut canvas, &scale);
        let plot = (scale.right - LEFT + 6.0, HEIGHT - TOP - BOTTOM + 8.0);
        canvas.clipped(&self.id, (LEFT - 3.0, TOP - 4.0), plot, |canvas| {
            for series in &self.series {
                series.draw_curve(canvas, &scale);
            }
        });
        for series in &self.series {
            self.diamond(series, &mut canvas, &scale);
        }
        self.end_labels(&mut canvas, &scale);
        Some(canvas.finish(&self.label))
    }

    fn write(&self, value: f64, digits: usize) -> String {
        match self.unit {
            Unit::Percent => format!("{:.*} %", digits.saturating_sub(2), value * 100.0),
            Unit::Number => format!("{value:.digits$}"),
        }
    }

    fn axes(&self, canvas: &mut Canvas, scale: &Scale, y_ticks: &[f64]) {
        let (bottom, right) = (HEIGHT - BOTTOM, scale.right);
        let digits = tick_digits(y_ticks);
        for &tick in y_ticks {
            let y = scale.y(tick);
            canvas.line("grid", (LEFT, y), (right, y));
            canvas.text("tick", (LEFT - 8.0, y + 4.0), Anchor::End, &self.write(tick, digits));
        }
        let (x_ticks, label) = self.x_ticks();
        for (at, text) in x_ticks {
            let x = scale.x(at);
            canvas.line("axis", (x, bottom), (x, bottom + 5.0));
            canvas.text("tick", (x, bottom + 19.0), Anchor::Middle, &text);
        }
        canvas.line("axis", (LEFT, bottom), (right, bottom));
        canvas.line("axis", (LEFT, TOP - 4.0), (LEFT, bottom));
        let middle = ((LEFT + right) / 2.0, HEIGHT - 8.0);
        canvas.text("axis-label", middle, Anchor::Middle, &label);
        canvas.text_upwards("axis-label", (15.0, (TOP + bottom) / 2.0), &self.y_label);
    }

    /// Where the x axis has marks, what stands there, and what the axis is called.
    fn x_ticks(&self) -> (Vec<(f64, String)>, String) {
        if let XAxis::Logarithmic { from, label } = &self.x_axis {
            let (low, high) = (from.log10().ceil() as i32, self.x_to.log10().floor() as i32);
            let powers = (low..=high).map(|power| 10f64.powi(power));
            return (powers.map(|at| (at, grouped(at))).collect(), label.clone());
        }
        let (unit, label) = match &self.x_axis {
            XAxis::Shares { label } => (0.01, format!("{label} / %")),
            XAxis::Steps => (1.0, "committed steps".to_string()),
            _ => {
                let (unit, name) = time_unit(self.x_to);
                (unit, format!("wall time / {name}"))
            }
        };
        let marks = ticks(0.0, self.x_to / unit, 8);
        let digits = tick_digits(&marks);
        let seen = marks.iter().filter(|mark| **mark * unit <= self.x_to * 1.0001);
        let marks = seen.map(|mark| (mark * unit, format!("{mark:.digits$}"))).collect();
        (marks, label)
    }

    fn failure_marks(&self, canvas: &mut Canvas, scale: &Scale) {
        for (index, &seconds) in self.failures.iter().enumerate() {
            let x = scale.x(seconds);
            canvas.line("failure", (x, TOP - 4.0), (x, HEIGHT - BOTTOM));
            if index == 0 {
                let word = if self.failures.len() > 1 { "failures" } else { "failure" };
                canvas.text("failure-label", (x, TOP - 10.0), Anchor::Middle, word);
            }
        }
    }

    fn diamond(&self, series: &Series, canvas: &mut Canvas, scale: &Scale) {
        let Some(least) = series.diamond else { return };
        let at = match self.x_axis {
            XAxis::Steps => format!("step {:.0}", least.0),
            _ => {
                let (unit, unit_name) = time_unit(self.x_to);
                format!("{:.1} {unit_name}", least.0 / unit)
            }
        };
        let title = format!("{}: {} at {at}", series.label, self.write(least.1, 4));
        let class = format!("diamond c{}", series.colour);
        let radius = if series.reference { 10.0 } else { 6.5 };
        canvas.diamond(&class, scale.at(least), radius, &title);
    }

    fn end_label(&self, series: &Series) -> String {
        match series.diamond {
            Some(least) => format!("{}  ◆ {}", series.label, self.write(least.1, 3)),
            None => series.label.clone(),
        }
    }

    fn end_labels(&self, canvas: &mut Canvas, scale: &Scale) {
        let drawn: Vec<(&Series, DataPoint)> = self
            .series
            .iter()
            .filter_map(|series| Some((series, *series.curve.points.last()?)))
            .collect();
        let wanted: Vec<f64> = drawn.iter().map(|(_, end)| scale.y(end.1)).collect();
        let placed = spread(&wanted, LABEL_GAP, TOP, HEIGHT - BOTTOM);
        for ((series, end), y) in drawn.into_iter().zip(placed) {
            let from = scale.at(end);
            let x = scale.right + LABEL_LEFT;
            canvas.line(
                &format!("leader c{}", series.colour),
                (from.0 + 4.0, from.1),
                (x - 4.0, y),
            );
            let class = format!("series-label c{}", series.colour);
            let label = self.end_label(series);
            canvas.text(&class, (x, y + 4.0), Anchor::Start, &label);
        }
    }
}

impl Series {
    fn draw_curve(&self, canvas: &mut Canvas, scale: &Scale) {
        let colour = self.colour;
        if !self.curve.band.is_empty() {
            let upper = self.curve.band.iter().map(|&(x, _, high)| scale.at((x, high)));
            let lower = self.curve.band.iter().rev().map(|&(x, low, _)| scale.at((x, low)));
            let outline: Vec<DataPoint> = upper.chain(lower).collect();
            canvas.polygon(&format!("band c{colour}"), &outline);
        }
        let points: Vec<DataPoint> =
            self.curve.points.iter().map(|&point| scale.at(point)).collect();
        let kind = if self.reference { "curve reference" } else { "curve" };
        canvas.polyline(&format!("{kind} c{colour}"), &points);
        if self.dots && !self.reference && points.len() <= DOTS_MAX {
            for &point in &points {
                canvas.dot(&format!("dot c{colour}"), point, 2.4);
            }
        }
    }

    /// Marks every point as a measurement, the least one above the others.
    pub fn with_measurements(mut self) -> Self {
        self.dots = true;
        let least = self.curve.points.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1));
        self.diamond = least.filter(|point| interpolate(&self.curve.points, point.0).is_some());
        self
    }
}
