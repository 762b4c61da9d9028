//! Stacked horizontal bars: how long each part takes, a total at the end, the interval of the
//! total where there are several seeds.

use super::drawing::{Drawing, csv_line, csv_number};
use super::statistics::{Estimate, tick_digits, ticks};
use super::svg::{Anchor, Canvas, label_width};
use crate::observe::progress::duration;

const BAR: f64 = 22.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 46.0;

/// Labels left of their bars may take so much, in pixels.
const LABELS_MAX: f64 = 400.0;

/// How much room there is, in pixels, and where labels stand.
struct Frame {
    width: f64,
    /// Left of the bars at least; labels stand there, or else above their bars.
    labels: Option<f64>,
    left: f64,
    right: f64,
    row: f64,
    marks: usize,
}

const WIDE: Frame =
    Frame { width: 960.0, labels: Some(190.0), left: 0.0, right: 210.0, row: 40.0, marks: 6 };
/// Of labels that would leave the bars no room.
const WIDE_ABOVE: Frame =
    Frame { width: 960.0, labels: None, left: 8.0, right: 20.0, row: 70.0, marks: 8 };
const NARROW: Frame =
    Frame { width: 360.0, labels: None, left: 8.0, right: 20.0, row: 70.0, marks: 4 };

/// One part of a bar.
pub struct Segment {
    /// Its name in the key.
    pub name: String,
    /// Its CSS class: its colour or pattern.
    pub class: &'static str,
    /// Its length.
    pub seconds: f64,
}

/// One bar.
pub struct Bar {
    /// To its left.
    pub label: String,
    /// From left to right.
    pub parts: Vec<Segment>,
    /// What the interval is drawn around: all parts, or those before a last one that is apart.
    pub total: Estimate,
    /// To its right.
    pub value: String,
}

/// Bars over a common axis of seconds.
pub struct BarChart {
    /// What its files are called.
    pub id: String,
    /// What a screen reader says.
    pub label: String,
    /// Above it.
    pub heading: String,
    /// From top to bottom.
    pub bars: Vec<Bar>,
}

impl BarChart {
    /// The drawing; `None` when there is nothing to draw.
    pub fn draw(&self) -> Option<Drawing> {
        Some(Drawing {
            name: self.id.clone(),
            wide: self.draw_in(if self.labels_fit() { &WIDE } else { &WIDE_ABOVE })?,
            narrow: self.draw_in(&NARROW)?,
            csv: self.csv(),
        })
    }

    fn draw_in(&self, frame: &Frame) -> Option<String> {
        let longest = self.bars.iter().map(Bar::reach).fold(0.0, f64::max);
        if longest <= 0.0 {
            return None;
        }
        let height = TOP + frame.row * self.bars.len() as f64 + BOTTOM;
        let mut canvas = Canvas::new(frame.width, height);
        let (unit, unit_name) = if longest < 1.0 { (1e-3, "ms") } else { (1.0, "s") };
        let marks = ticks(0.0, longest / unit, frame.marks);
        let to = marks[marks.len() - 1] * unit;
        let left = self.left(frame);
        let x = |seconds: f64| left + seconds / to * (frame.width - left - frame.right);
        let bottom = height - BOTTOM;
        canvas.text("panel", (left, 14.0), Anchor::Start, &self.heading);
        let digits = tick_digits(&marks);
        for mark in &marks {
            let at = x(mark * unit);
            canvas.line("grid", (at, TOP - 6.0), (at, bottom));
            canvas.text("tick", (at, bottom + 18.0), Anchor::Middle, &format!("{mark:.digits$}"));
        }
        let middle = ((left + frame.width - frame.right) / 2.0, height - 8.0);
        canvas.text("axis-label", middle, Anchor::Middle, &format!("time / {unit_name}"));
        for (row, bar) in self.bars.iter().enumerate() {
            let above = if frame.labels.is_some() { (frame.row - BAR) / 2.0 } else { 22.0 };
            let top = TOP + frame.row * row as f64 + above;
            bar.draw(&mut canvas, frame, top, &x);
        }
        canvas.line("axis", (left, TOP - 6.0), (left, bottom));
        Some(canvas.finish(&self.label))
    }

    fn labels_fit(&self) -> bool {
        self.bars.iter().all(|bar| label_width(&bar.label) < LABELS_MAX)
    }

    /// Where the bars begin: to the right of the longest label.
    fn left(&self, frame: &Frame) -> f64 {
        let widths = self.bars.iter().map(|bar| label_width(&bar.label) + 14.0);
        frame.labels.map_or(frame.left, |labels| widths.fold(labels, f64::max))
    }

    fn csv(&self) -> String {
        let mut text = csv_line(&["bar", "part", "seconds"].map(str::to_string));
        for bar in &self.bars {
            for part in &bar.parts {
                let seconds = csv_number(part.seconds);
                text.push_str(&csv_line(&[bar.label.clone(), part.name.clone(), seconds]));
            }
        }
        text
    }

    /// Name and class of every part that is drawn, in order, once each.
    pub fn key(&self) -> Vec<(&str, &'static str)> {
        let mut key: Vec<(&str, &'static str)> = Vec::new();
        for part in self.bars.iter().flat_map(|bar| &bar.parts) {
            if part.seconds > 0.0 && !key.iter().any(|(name, _)| *name == part.name) {
                key.push((&part.name, part.class));
            }
        }
        key
    }
}

impl Bar {
    /// How far right anything of it is drawn.
    fn reach(&self) -> f64 {
        let parts = self.parts.iter().map(|part| part.seconds).sum::<f64>();
        parts.max(self.total.mean + self.total.half_width.unwrap_or(0.0))
    }

    fn draw(&self, canvas: &mut Canvas, frame: &Frame, top: f64, x: &impl Fn(f64) -> f64) {
        let middle = top + BAR / 2.0;
        match frame.labels {
            Some(_) => {
                let at = (x(0.0) - 10.0, middle + 4.0);
                canvas.text("bar-label", at, Anchor::End, &self.label);
            }
            None => canvas.label("bar-label", (x(0.0) + 4.0, top - 6.0), &self.label),
        }
        let mut from = 0.0;
        for part in &self.parts {
            let (start, end) = (x(from), x(from + part.seconds));
            let title = format!("{}: {}", part.name, duration(part.seconds));
            let class = format!("part {}", part.class);
            canvas.rect(&class, (start, top), (end - start, BAR), &title);
            from += part.seconds;
        }
        if let Some(half) = self.total.half_width {
            let (low, high) = (x((self.total.mean - half).max(0.0)), x(self.total.mean + half));
            canvas.line("whisker", (low, middle), (high, middle));
            for end in [low, high] {
                canvas.line("whisker", (end, middle - 5.0), (end, middle + 5.0));
            }
        }
        let at = match frame.labels {
            Some(_) => (x(self.reach()) + 8.0, middle + 4.0),
            None => (x(0.0) + 4.0, top + BAR + 16.0),
        };
        canvas.text("value", at, Anchor::Start, &self.value);
    }
}
