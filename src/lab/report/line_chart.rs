//! Curves over time or size: axes at round numbers, failure and minimum marks, labels at the
//! curves' ends, or under them where there is no room.

use super::drawing::{Drawing, csv_line, csv_number};
use super::statistics::{DataPoint, MeanCurve, tick_digits, ticks};
use super::svg::{Anchor, Canvas, label_width, spread};

const LABEL_LEFT: f64 = 22.0;
const LABEL_GAP: f64 = 17.0;
/// Height of a row of labels under the plot.
const LABEL_ROW: f64 = 19.0;
const DOTS_MAX: usize = 600;
/// More are drawn smaller.
const LARGE_DOTS_MAX: usize = 100;

/// The size of a drawing, and of what lies around its plot, in pixels.
struct Frame {
    width: f64,
    height: f64,
    left: f64,
    right_min: f64,
    /// Labels at the curves' ends may take so much.
    labels_max: f64,
    top: f64,
    bottom: f64,
    /// Marks on each axis, about.
    marks: (usize, usize),
}

const WIDE: Frame = Frame {
    width: 960.0,
    height: 400.0,
    left: 80.0,
    right_min: 232.0,
    labels_max: 400.0,
    top: 26.0,
    bottom: 48.0,
    marks: (8, 8),
};

const NARROW: Frame = Frame {
    width: 360.0,
    height: 290.0,
    left: 54.0,
    right_min: 12.0,
    labels_max: 0.0,
    top: 44.0,
    bottom: 46.0,
    marks: (4, 6),
};

/// One arm's curve.
#[derive(Default)]
pub struct Series {
    /// The arm.
    pub label: String,
    /// Its colour: 0, 1, 2 ...
    pub colour: usize,
    /// The curve, x in seconds.
    pub curve: MeanCurve,
    /// What single runs measured, where the curve is their mean.
    pub runs: Vec<DataPoint>,
    /// Single runs where there is no mean of all.
    pub beyond: Vec<Vec<DataPoint>>,
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
    /// Passes over the training set, from 0.
    Epochs,
    /// Shares, from 0, written as per cent.
    Shares {
        /// Of what.
        label: String,
    },
    /// Plain numbers, from 0.
    Numbers {
        /// What they are.
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
    /// Where something failed.
    pub failures: Vec<f64>,
    /// Where a checkpoint was written.
    pub checkpoints: Vec<f64>,
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
struct Scale<'a> {
    frame: &'a Frame,
    /// Where the plot ends and the labels of the curves begin, in pixels.
    right: f64,
    /// The smallest x of a logarithmic axis.
    logarithmic_from: Option<f64>,
    x_to: f64,
    y_from: f64,
    y_to: f64,
}

impl Scale<'_> {
    fn x(&self, value: f64) -> f64 {
        let part = match self.logarithmic_from {
            Some(from) if self.x_to > from => (value / from).ln() / (self.x_to / from).ln(),
            _ => value / self.x_to,
        };
        self.frame.left + part * (self.right - self.frame.left)
    }
    fn y(&self, value: f64) -> f64 {
        let part = (value - self.y_from) / (self.y_to - self.y_from);
        self.bottom() - part * (self.bottom() - self.frame.top)
    }
    fn at(&self, point: DataPoint) -> DataPoint {
        (self.x(point.0), self.y(point.1))
    }
    /// Where the plot ends below.
    fn bottom(&self) -> f64 {
        self.frame.height - self.frame.bottom
    }
}

impl LineChart {
    /// The drawing; `None` when there is nothing to draw.
    pub fn draw(&self) -> Option<Drawing> {
        let name = self.id.clone();
        Some(Drawing {
            wide: self.draw_in(&WIDE, &name)?,
            narrow: self.draw_in(&NARROW, &format!("{name}-narrow"))?,
            csv: self.csv(),
            name,
        })
    }

    fn draw_in(&self, frame: &Frame, id: &str) -> Option<String> {
        let curves = self
            .series
            .iter()
            .flat_map(|s| s.curve.points.iter().chain(&s.runs).chain(s.beyond.iter().flatten()));
        let (low, high) =
            curves.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), p| (l.min(p.1), h.max(p.1)));
        if !(low.is_finite() && self.x_to > 0.0) {
            return None;
        }
        let y_ticks = ticks(self.y_from.unwrap_or(low).min(low), high, frame.marks.1);
        let widths = self.series.iter().map(|s| LABEL_LEFT + label_width(&self.end_label(s)));
        let widest = widths.fold(0.0, f64::max);
        let labels_below = widest > frame.labels_max;
        let labels = if labels_below { NARROW.right_min } else { widest.max(frame.right_min) };
        let scale = Scale {
            frame,
            right: frame.width - labels,
            logarithmic_from: match self.x_axis {
                XAxis::Logarithmic { from, .. } => Some(from),
                _ => None,
            },
            x_to: self.x_to,
            y_from: y_ticks[0],
            y_to: y_ticks[y_ticks.len() - 1],
        };
        let rows = if labels_below { self.series.len() as f64 } else { 0.0 };
        let mut canvas = Canvas::new(frame.width, frame.height + rows * LABEL_ROW);
        self.axes(&mut canvas, &scale, &y_ticks);
        self.marks(&mut canvas, &scale);
        let from = (frame.left - 3.0, frame.top - 4.0);
        let plot = (scale.right - frame.left + 6.0, scale.bottom() - frame.top + 8.0);
        canvas.clipped(id, from, plot, |canvas| {
            for series in &self.series {
                series.draw_curve(canvas, &scale);
            }
        });
        for series in &self.series {
            self.diamond(series, &mut canvas, &scale);
        }
        match labels_below {
            true => self.labels_below(&mut canvas, &scale),
            false => self.end_labels(&mut canvas, &scale),
        }
        Some(canvas.finish(&self.label))
    }

    /// What is drawn, a line for every point.
    fn csv(&self) -> String {
        let (unit, _) = self.x_unit();
        let x_label = match self.x_axis {
            XAxis::Time => "running time / s".to_string(),
            _ => self.x_label(),
        };
        let x = |x: f64| match self.x_axis {
            XAxis::Time => csv_number(x),
            _ => csv_number(x / unit),
        };
        let y_label = if self.y_label.is_empty() { &self.label } else { &self.y_label };
        let head = ["curve", "of", &x_label, y_label, "low", "high"].map(str::to_string);
        let mut text = csv_line(&head);
        for series in &self.series {
            let mut line = |of: &str, point: DataPoint, band: Option<(f64, f64, f64)>| {
                let edge = |edge: Option<f64>| edge.map_or(String::new(), csv_number);
                text.push_str(&csv_line(&[
                    series.label.clone(),
                    of.to_string(),
                    x(point.0),
                    csv_number(point.1),
                    edge(band.map(|band| band.1)),
                    edge(band.map(|band| band.2)),
                ]));
            };
            for point in &series.curve.points {
                // Of points some are left out, of the band none.
                let band = series.curve.band.iter().find(|band| band.0 == point.0);
                line("curve", *point, band.copied());
            }
            let (runs, beyond) = (series.runs.iter(), series.beyond.iter().flatten());
            match series.runs.is_empty() {
                true => beyond.for_each(|point| line("run", *point, None)),
                false => runs.for_each(|point| line("run", *point, None)),
            }
        }
        text
    }

    fn write(&self, value: f64, digits: usize) -> String {
        match self.unit {
            Unit::Percent => format!("{:.*} %", digits.saturating_sub(2), value * 100.0),
            Unit::Number => format!("{value:.digits$}"),
        }
    }

    fn axes(&self, canvas: &mut Canvas, scale: &Scale, y_ticks: &[f64]) {
        let (frame, bottom, right) = (scale.frame, scale.bottom(), scale.right);
        let digits = tick_digits(y_ticks);
        for &tick in y_ticks {
            let y = scale.y(tick);
            canvas.line("grid", (frame.left, y), (right, y));
            let at = (frame.left - 8.0, y + 4.0);
            canvas.text("tick", at, Anchor::End, &self.write(tick, digits));
        }
        for (at, text) in self.x_ticks(frame.marks.0) {
            let x = scale.x(at);
            canvas.line("axis", (x, bottom), (x, bottom + 5.0));
            canvas.text("tick", (x, bottom + 19.0), Anchor::Middle, &text);
        }
        canvas.line("axis", (frame.left, bottom), (right, bottom));
        canvas.line("axis", (frame.left, frame.top - 4.0), (frame.left, bottom));
        let middle = ((frame.left + right) / 2.0, bottom + 40.0);
        canvas.text("axis-label", middle, Anchor::Middle, &self.x_label());
        match frame.labels_max > 0.0 {
            true => {
                let at = (15.0, (frame.top + bottom) / 2.0);
                canvas.text_upwards("axis-label", at, &self.y_label);
            }
            false => canvas.text("axis-label", (2.0, 14.0), Anchor::Start, &self.y_label),
        }
    }

    /// What one mark of the x axis is, and its name.
    fn x_unit(&self) -> (f64, &'static str) {
        match &self.x_axis {
            XAxis::Shares { .. } => (0.01, "%"),
            XAxis::Time => time_unit(self.x_to),
            _ => (1.0, ""),
        }
    }

    fn x_label(&self) -> String {
        let (_, unit) = self.x_unit();
        match &self.x_axis {
            XAxis::Logarithmic { label, .. } | XAxis::Numbers { label } => label.clone(),
            XAxis::Shares { label } => format!("{label} / {unit}"),
            XAxis::Steps => "committed steps".to_string(),
            XAxis::Epochs => "epochs".to_string(),
            XAxis::Time => format!("running time / {unit}"),
        }
    }

    /// Where the x axis has marks, and what stands there.
    fn x_ticks(&self, wanted: usize) -> Vec<(f64, String)> {
        if let XAxis::Logarithmic { from, .. } = &self.x_axis {
            let (low, high) = (from.log10().ceil() as i32, self.x_to.log10().floor() as i32);
            let powers = (low..=high).map(|power| 10f64.powi(power));
            return powers.map(|at| (at, grouped(at))).collect();
        }
        let (unit, _) = self.x_unit();
        let marks = ticks(0.0, self.x_to / unit, wanted);
        let digits = tick_digits(&marks);
        let seen = marks.iter().filter(|mark| **mark * unit <= self.x_to * 1.0001);
        seen.map(|mark| (mark * unit, format!("{mark:.digits$}"))).collect()
    }

    fn marks(&self, canvas: &mut Canvas, scale: &Scale) {
        let (top, bottom) = (scale.frame.top, scale.bottom());
        for (index, &at) in self.failures.iter().enumerate() {
            let x = scale.x(at);
            canvas.line("failure", (x, top - 4.0), (x, bottom));
            if index == 0 {
                let word = if self.failures.len() > 1 { "failures" } else { "failure" };
                canvas.text("failure-label", (x, top - 10.0), Anchor::Middle, word);
            }
        }
        for &at in &self.checkpoints {
            canvas.diamond("checkpoint", (scale.x(at), bottom), 4.0, "checkpoint");
        }
    }

    fn diamond(&self, series: &Series, canvas: &mut Canvas, scale: &Scale) {
        let Some(least) = series.diamond.filter(|least| least.0 <= self.x_to) else { return };
        let at = match self.x_axis {
            XAxis::Steps => format!("step {:.0}", least.0),
            XAxis::Epochs => format!("{:.2} epochs", least.0),
            _ => {
                let (unit, unit_name) = self.x_unit();
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
        let drawn: Vec<(&Series, DataPoint)> =
            self.series.iter().filter_map(|series| Some((series, series.end()?))).collect();
        let wanted: Vec<f64> = drawn.iter().map(|(_, end)| scale.y(end.1)).collect();
        let placed = spread(&wanted, LABEL_GAP, scale.frame.top, scale.bottom());
        for ((series, end), y) in drawn.into_iter().zip(placed) {
            let x = scale.right + LABEL_LEFT;
            // From the plot's edge, however early the curve ends: within it a line is data.
            let from = (scale.right + 4.0, scale.y(end.1));
            canvas.line(&format!("leader c{}", series.colour), from, (x - 4.0, y));
            let class = format!("series-label c{}", series.colour);
            let label = self.end_label(series);
            canvas.text(&class, (x, y + 4.0), Anchor::Start, &label);
        }
    }

    fn labels_below(&self, canvas: &mut Canvas, scale: &Scale) {
        for (row, series) in self.series.iter().enumerate() {
            let y = scale.frame.height + (row as f64 + 0.5) * LABEL_ROW;
            let kind = if series.reference { "curve reference" } else { "curve" };
            let class = format!("{kind} c{}", series.colour);
            canvas.polyline(&class, &[(6.0, y), (LABEL_LEFT, y)]);
            let class = format!("series-label c{}", series.colour);
            let at = (LABEL_LEFT + 8.0, y + 4.0);
            canvas.label(&class, at, &self.end_label(series));
        }
    }
}

impl Series {
    /// Where its curve ends, or the last of its runs where they have no mean.
    fn end(&self) -> Option<DataPoint> {
        let single = || self.beyond.iter().filter_map(|part| part.last());
        let last = || single().max_by(|a, b| a.0.total_cmp(&b.0));
        self.curve.points.last().or_else(last).copied()
    }

    /// Whether there is nothing to draw of it.
    pub fn is_empty(&self) -> bool {
        self.curve.points.is_empty() && self.beyond.is_empty()
    }

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
        for part in &self.beyond {
            let part: Vec<DataPoint> = part.iter().map(|&point| scale.at(point)).collect();
            canvas.polyline(&format!("curve single c{colour}"), &part);
        }
        let measured: &[DataPoint] = if self.dots { &self.curve.points } else { &self.runs };
        if !self.reference && !measured.is_empty() && measured.len() <= DOTS_MAX {
            let kind = if measured.len() > LARGE_DOTS_MAX { "dots many" } else { "dots" };
            let places: Vec<DataPoint> = measured.iter().map(|&point| scale.at(point)).collect();
            canvas.dots(&format!("{kind} c{colour}"), &places);
        }
    }

    /// Marks what was measured, and the least point of the curve.
    pub fn with_measurements(mut self) -> Self {
        self.dots = self.runs.is_empty() && self.curve.band.is_empty();
        self.diamond = self.curve.points.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line across the plot would be read as what was measured.
    #[test]
    fn what_leads_to_a_label_begins_where_the_plot_ends() {
        let curve = MeanCurve { points: vec![(0.0, 1.0), (2.0, 3.0)], band: Vec::new() };
        let series = vec![Series { label: "short".into(), curve, ..Series::default() }];
        let drawing = LineChart { x_to: 20.0, series, ..LineChart::default() }.draw().unwrap();
        let (_, leader) = drawing.wide.split_once("<line class=\"leader").expect("its leader");
        let (_, x) = leader.split_once("x1=\"").expect("where it begins");
        let x: f64 = x.split_once('"').expect("a number").0.parse().unwrap();
        assert!(x >= WIDE.width - WIDE.right_min, "{x}");
    }
}
