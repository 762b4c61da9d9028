//! An evaluation for people: what each class is taken for, drawn and tabled, on one page.

use crate::lab::report::svg::{Anchor, Canvas, escape, label_width};
use crate::lab::report::{NONE, Table, figure, page_of};

use super::scores::Scores;

/// A drawing of more classes shows nothing.
const DRAWN_CLASSES_MAX: usize = 100;
/// Pairs of classes that are tabled.
const CONFUSED_MAX: usize = 30;
/// Edge of the drawing's matrix, in pixels.
const EDGE: f64 = 640.0;
/// Longest name beside it, in characters.
const NAME_MAX: usize = 18;
/// Cells from which numbers find room.
const NUMBERED_CLASSES_MAX: usize = 20;
/// Shades of the page's style.
const SHADES: u64 = 9;

/// What was evaluated, in words.
pub struct About<'a> {
    /// The model's name.
    pub model: &'a str,
    /// Steps it has been trained.
    pub step: u64,
    /// Where the checkpoint lies.
    pub checkpoint: &'a str,
    /// The command line.
    pub command: &'a str,
}

/// The whole document.
pub fn render(about: &About<'_>, names: &[String], scores: &Scores) -> String {
    let title = format!("{} at step {}", about.model, about.step);
    let mut body = format!(
        "<h1>{}</h1>\n<p class=\"lead\">{} samples: error {:.2} %, loss {:.4}{}.</p>\n",
        escape(&title),
        scores.samples(),
        100.0 * scores.error(),
        scores.loss(),
        among_five(names, scores),
    );
    if names.len() <= DRAWN_CLASSES_MAX {
        body.push_str(&figure(
            &matrix(names, scores),
            "Figure 1. <b>What each class is taken for.</b> A row holds the samples of a class, a \
             column what the model says of them; the darker, the larger a part of the row. The \
             pointer shows numbers.",
        ));
    }
    body.push_str(&confusions(names, scores));
    body.push_str(&classes(names, scores));
    body.push_str(&format!(
        "<h2>How it was made</h2>\n<pre>$ {}</pre>\n<p>Checkpoint: {}.</p>\n",
        escape(about.command),
        escape(about.checkpoint)
    ));
    page_of(&title, &body)
}

/// Of five classes or fewer it says nothing.
pub fn among_five(names: &[String], scores: &Scores) -> String {
    if names.len() <= 5 {
        return String::new();
    }
    format!(", the right class among the first five {:.2} %", 100.0 * scores.top5())
}

fn short(name: &str) -> String {
    match name.char_indices().nth(NAME_MAX) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

fn matrix(names: &[String], scores: &Scores) -> String {
    let classes = names.len();
    let cell = EDGE / classes as f64;
    let labels: Vec<String> = names.iter().map(|name| short(name)).collect();
    let margin = 14.0 + labels.iter().map(|name| label_width(name)).fold(0.0, f64::max);
    let mut canvas = Canvas::new(margin + EDGE + 8.0, EDGE + margin + 8.0);
    let of: Vec<u64> = scores.of_classes(names).iter().map(|class| class.samples).collect();
    for label in 0..classes {
        for taken_for in 0..classes {
            let count = scores.count(label, taken_for);
            if count == 0 {
                continue;
            }
            let at = (margin + taken_for as f64 * cell, label as f64 * cell);
            let shade = (SHADES * count).div_ceil(of[label]);
            let title = format!("{} taken for {}: {count}", names[label], names[taken_for]);
            canvas.rect(&format!("heat h{shade}"), at, (cell, cell), &title);
            if classes <= NUMBERED_CLASSES_MAX {
                let middle = (at.0 + cell / 2.0, at.1 + cell / 2.0 + 4.0);
                let class = if 2 * shade > SHADES { "heat-number-light" } else { "heat-number" };
                canvas.text(class, middle, Anchor::Middle, &count.to_string());
            }
        }
    }
    for step in 0..=classes {
        let along = step as f64 * cell;
        canvas.line("grid", (margin, along), (margin + EDGE, along));
        canvas.line("grid", (margin + along, 0.0), (margin + along, EDGE));
    }
    // Names that would overlap are left out: the pointer shows them.
    let every = (14.0 / cell).ceil().max(1.0) as usize;
    for (index, name) in labels.iter().enumerate().step_by(every) {
        let middle = (index as f64 + 0.5) * cell;
        canvas.text("tick", (margin - 8.0, middle + 4.0), Anchor::End, name);
        let below = EDGE + 10.0 + label_width(name) / 2.0;
        canvas.text_upwards("tick", (margin + middle + 4.0, below), name);
    }
    canvas.finish("Samples of each class by what the model says of them")
}

fn confusions(names: &[String], scores: &Scores) -> String {
    let confused = scores.confused();
    if confused.is_empty() {
        return "<p>No sample was taken for another class.</p>\n".into();
    }
    let name = |class: usize| names.get(class).map(|name| escape(name)).unwrap_or_default();
    let mut table = Table::new(["class", "taken for", "samples"]);
    for pair in confused.iter().take(CONFUSED_MAX) {
        table.row([name(pair.class), name(pair.taken_for), pair.samples.to_string()]);
    }
    let shown = match confused.len() {
        all @ 0..=CONFUSED_MAX => format!("all {all} pairs"),
        all => format!("the {CONFUSED_MAX} most frequent of {all} pairs"),
    };
    table.html(&format!("<b>Taken for another class</b>: {shown}."))
}

fn classes(names: &[String], scores: &Scores) -> String {
    let percent = |share: Option<f64>| {
        share.map_or(NONE.to_string(), |share| format!("{:.1} %", 100.0 * share))
    };
    // Of five classes or fewer the last column says nothing.
    let columns = if names.len() > 5 { 4 } else { 3 };
    let head = ["class", "samples", "recognised", "among the first five"];
    let mut table = Table::new(head[..columns].iter().copied());
    for class in scores.of_classes(names) {
        let (top1, top5) = (percent(class.top1), percent(class.top5));
        let cells = [escape(&class.name), class.samples.to_string(), top1, top5];
        table.row(&cells[..columns]);
    }
    table.html("<b>Class by class.</b>")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(classes: usize) -> String {
        let names: Vec<String> = (0..classes).map(|class| format!("<class {class}>")).collect();
        let mut scores = Scores::new(classes);
        let row = |answer: usize| -> Vec<f32> {
            (0..classes).map(|class| if class == answer { -0.1 } else { -5.0 }).collect()
        };
        (0..classes).for_each(|label| scores.add(&row(label / 2), &[label as u32]));
        let about = About { model: "m", step: 3, checkpoint: "c", command: "kintsugi <x>" };
        render(&about, &names, &scores)
    }

    #[test]
    fn a_page_draws_few_classes_and_tables_many() {
        let few = page(6);
        assert!(few.contains("&lt;class 3&gt; taken for &lt;class 1&gt;: 1"), "{few}");
        assert!(few.contains("among the first five") && !few.contains("<class"));
        assert!(!page(4).contains("among the first five"), "four are always among them");
        let many = page(101);
        assert!(!many.contains("<figure>") && many.contains("the 30 most frequent of 100 pairs"));
    }
}
