//! Stacked horizontal bars: how long each part takes, a total at the end, the interval of the
//! total where there are several seeds.

use super::statistics::{Estimate, tick_digits, ticks};
use super::svg::{Anchor, Canvas, label_width};
use crate::observe::progress::duration;

const WIDTH: f64 = 960.0;
const LEFT_MIN: f64 = 190.0;
const RIGHT: f64 = 210.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 46.0;
const ROW: f64 = 40.0;
const BAR: f64 = 22.0;

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
    /// What a screen reader says.
    pub label: String,
    /// Above it.
    pub heading: String,
    /// From top to bottom.
    pub bars: Vec<Bar>,
}

impl BarChart {
    /// The drawing; `None` when there is nothing to draw.
    pub fn draw(&self) -> Option<String> {
        let longest = self.bars.iter().map(Bar::reach).fold(0.0, f64::max);
        if longest <= 0.0 {
            return None;
        }
        let height = TOP + ROW * self.bars.len() as f64 + BOTTOM;
        let mut canvas = Canvas::new(WIDTH, height);
        let (unit, unit_name) = if longest < 1.0 { (1e-3, "ms") } else { (1.0, "s") };
        let marks = ticks(0.0, longest / unit, 6);
        let to = marks[marks.len() - 1] * unit;
        let left = self.left();
        let x = |seconds: f64| left + seconds / to * (WIDTH - left - RIGHT);
        let bottom = height - BOTTOM;
        canvas.text("panel", (left, 14.0), Anchor::Start, &self.heading);
        let digits = tick_digits(&marks);
        for mark in &marks {
            let at = x(mark * unit);
            canvas.line("grid", (at, TOP - 6.0), (at, bottom));
            canvas.text("tick", (at, bottom + 18.0), Anchor::Middle, &format!("{mark:.digits$}"));
        }
        let middle = ((left + WIDTH - RIGHT) / 2.0, height - 8.0);
        canvas.text("axis-label", middle, Anchor::Middle, &format!("time / {unit_name}"));
        for (row, bar) in self.bars.iter().enumerate() {
            bar.draw(&mut canvas, TOP + ROW * row as f64 + (ROW - BAR) / 2.0, &x);
        }
        canvas.line("axis", (left, TOP - 6.0), (left, bottom));
        Some(canvas.finish(&self.label))
    }

    /// Where the bars begin: to the right of the longest label.
    fn left(&self) -> f64 {
        let widths = self.bars.iter().map(|bar| label_width(&bar.label) + 14.0);
        widths.fold(LEFT_MIN, f64::max)
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

    fn draw(&self, canvas: &mut Canvas, top: f64, x: &impl Fn(f64) -> f64) {
        let middle = top + BAR / 2.0;
        canvas.text("bar-label", (x(0.0) - 10.0, middle + 4.0), Anchor::End, &self.label);
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
        let at = (x(self.reach()) + 8.0, middle + 4.0);
        canvas.text("value", at, Anchor::Start, &self.value);
    }
}
