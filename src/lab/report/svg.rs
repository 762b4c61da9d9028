//! A very small SVG writer: text escaped, numbers short, colours by CSS class so that the page's
//! light, dark and print styles all apply.

use std::fmt::Write;

/// Escapes text for HTML and SVG, attributes included.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// The text that was escaped, for a terminal.
pub fn unescaped(text: &str) -> String {
    let pairs = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&amp;", "&")];
    pairs.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// A coordinate in pixels, to a hundredth.
fn px(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

/// Where text is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    /// Its beginning.
    Start,
    /// Its middle.
    Middle,
    /// Its end.
    End,
}

impl Anchor {
    fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Middle => "middle",
            Self::End => "end",
        }
    }
}

/// Size of labels.
const LABEL_PIXELS: f64 = 13.0;

/// About how many pixels a bold label is wide: a page's font is not known before it is shown.
pub fn label_width(text: &str) -> f64 {
    const PIXELS_PER_CHARACTER: f64 = 8.4;
    text.chars().count() as f64 * PIXELS_PER_CHARACTER
}

/// A drawing of fixed size; every call adds one element.
pub struct Canvas {
    body: String,
    width: f64,
    height: f64,
}

impl Canvas {
    /// Empty.
    pub fn new(width: f64, height: f64) -> Self {
        Self { body: String::new(), width, height }
    }

    fn add(&mut self, element: std::fmt::Arguments<'_>) {
        self.body.write_fmt(element).expect("writing to a string succeeds");
        self.body.push('\n');
    }

    /// A straight line.
    pub fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let (x1, y1, x2, y2) = (px(from.0), px(from.1), px(to.0), px(to.1));
        self.add(format_args!(
            r#"<line class="{class}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>"#
        ));
    }

    /// A rectangle, its `title` shown by a pointer.
    pub fn rect(&mut self, class: &str, at: (f64, f64), size: (f64, f64), title: &str) {
        let (x, y, w, h) = (px(at.0), px(at.1), px(size.0), px(size.1));
        let title = escape(title);
        self.add(format_args!(
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\">\
             <title>{title}</title></rect>"
        ));
    }

    /// A line through points.
    pub fn polyline(&mut self, class: &str, points: &[(f64, f64)]) {
        let points = list(points);
        self.add(format_args!(r#"<polyline class="{class}" points="{points}"/>"#));
    }

    /// A closed, filled shape.
    pub fn polygon(&mut self, class: &str, points: &[(f64, f64)]) {
        let points = list(points);
        self.add(format_args!(r#"<polygon class="{class}" points="{points}"/>"#));
    }

    /// Dots, as one element: strokes without length that have round ends.
    pub fn dots(&mut self, class: &str, points: &[(f64, f64)]) {
        let strokes: String =
            points.iter().map(|at| format!("M{} {}h0", px(at.0), px(at.1))).collect();
        self.add(format_args!(r#"<path class="{class}" d="{strokes}"/>"#));
    }

    /// A diamond (a square on its corner) with a text for the pointer.
    pub fn diamond(&mut self, class: &str, at: (f64, f64), radius: f64, title: &str) {
        let corners = [(0.0, -radius), (radius, 0.0), (0.0, radius), (-radius, 0.0)]
            .map(|(x, y)| (at.0 + x, at.1 + y));
        let (points, title) = (list(&corners), escape(title));
        self.add(format_args!(
            r#"<polygon class="{class}" points="{points}"><title>{title}</title></polygon>"#
        ));
    }

    /// Text on a line.
    pub fn text(&mut self, class: &str, at: (f64, f64), anchor: Anchor, text: &str) {
        let (x, y, anchor, text) = (px(at.0), px(at.1), anchor.name(), escape(text));
        self.add(format_args!(
            r#"<text class="{class}" x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>"#
        ));
    }

    /// A label from here to the drawing's edge at most: one that is longer is written smaller.
    pub fn label(&mut self, class: &str, at: (f64, f64), text: &str) {
        let room = self.width - at.0;
        let size = (LABEL_PIXELS * room / label_width(text)).min(LABEL_PIXELS);
        let (x, y, size, text) = (px(at.0), px(at.1), px(size), escape(text));
        self.add(format_args!(
            r#"<text class="{class}" x="{x}" y="{y}" style="font-size:{size}px">{text}</text>"#
        ));
    }

    /// Text turned to read upwards.
    pub fn text_upwards(&mut self, class: &str, at: (f64, f64), text: &str) {
        let (x, y, text) = (px(at.0), px(at.1), escape(text));
        self.add(format_args!(
            "<text class=\"{class}\" transform=\"translate({x} {y}) rotate(-90)\" \
             text-anchor=\"middle\">{text}</text>"
        ));
    }

    /// Everything `draw` adds is cut at the rectangle's edges; `id` must be unique on the page.
    pub fn clipped(
        &mut self,
        id: &str,
        at: (f64, f64),
        size: (f64, f64),
        draw: impl FnOnce(&mut Self),
    ) {
        let (x, y, w, h) = (px(at.0), px(at.1), px(size.0), px(size.1));
        self.add(format_args!(
            "<clipPath id=\"{id}\"><rect x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\"/>\
             </clipPath><g clip-path=\"url(#{id})\">"
        ));
        draw(self);
        self.add(format_args!("</g>"));
    }

    /// The element, which scales with the page; `label` is what a screen reader says.
    pub fn finish(self, label: &str) -> String {
        let (w, h, label) = (px(self.width), px(self.height), escape(label));
        format!(
            "<svg viewBox=\"0 0 {w} {h}\" role=\"img\" aria-label=\"{label}\" \
             xmlns=\"http://www.w3.org/2000/svg\">\n{}</svg>\n",
            self.body
        )
    }
}

fn list(points: &[(f64, f64)]) -> String {
    let pairs: Vec<String> = points.iter().map(|(x, y)| format!("{},{}", px(*x), px(*y))).collect();
    pairs.join(" ")
}

/// Moves labels apart so that neighbours are at least `gap` away from each other and all lie in
/// `low..=high` where they fit. Returns the new positions, in the order given.
pub fn spread(wanted: &[f64], gap: f64, low: f64, high: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|&a, &b| wanted[a].total_cmp(&wanted[b]));
    let mut placed = vec![0.0; wanted.len()];
    let mut above = low - gap;
    for &index in &order {
        above = wanted[index].max(above + gap);
        placed[index] = above;
    }
    let mut below = high + gap;
    for &index in order.iter().rev() {
        below = placed[index].min(below - gap);
        placed[index] = below;
    }
    placed
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn text_cannot_leave_its_element() {
        assert_eq!(escape(r#"<b a="1">&'"#), "&lt;b a=&quot;1&quot;&gt;&amp;&#39;");
    }

    #[test]
    fn a_label_that_is_too_long_is_written_smaller() {
        let written = |text: &str| {
            let mut canvas = Canvas::new(360.0, 20.0);
            canvas.label("c", (24.0, 10.0), text);
            canvas.finish("")
        };
        assert!(written("checkpoint/restart").contains("font-size:13px"));
        assert!(written(&"x".repeat(80)).contains("font-size:6.5px"));
    }

    proptest! {
        #[test]
        fn labels_that_fit_never_touch(wanted in prop::collection::vec(0f64..300.0, 1..12)) {
            let (gap, low, high) = (15.0, 0.0, 300.0);
            let mut placed = spread(&wanted, gap, low, high);
            placed.sort_by(f64::total_cmp);
            prop_assert!(placed.iter().all(|at| (low - 1e-9..=high + 1e-9).contains(at)));
            prop_assert!(placed.windows(2).all(|pair| pair[1] - pair[0] >= gap - 1e-9));
        }
    }
}
