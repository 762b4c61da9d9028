//! A page that is being written: text, figures with their numbers, the choice of an axis.

use super::axis::Axis;
use super::figures::{self, Figure};
use super::summary::RunSummary;
use super::svg::escape;
use super::{Study, curves, markup, scaling, tables};

/// A page that is being written.
#[derive(Default)]
pub struct Page {
    body: String,
    figures: usize,
}

impl Page {
    /// All that was written.
    pub fn body(&self) -> &str {
        &self.body
    }

    /// More of it, HTML.
    pub fn add(&mut self, html: &str) {
        self.body.push_str(html);
    }

    /// The choice of an axis, which every figure below follows; `first`: which is shown unasked.
    pub fn axes(&mut self, study: &Study, first: Axis) {
        self.add("<p class=\"axes\">Curves against</p>\n");
        for axis in Axis::known(study) {
            let (name, words) = (axis.name(), axis.words());
            let checked = if axis == first { " checked" } else { "" };
            self.add(&format!(
                "<input type=\"radio\" name=\"axis\" class=\"axis\" id=\"axis-{name}\"{checked}>\
                 <label for=\"axis-{name}\">{words}</label>\n"
            ));
        }
    }

    /// What failures and checkpoints took.
    pub fn failures(&mut self, study: &Study, runs: &[RunSummary]) {
        let groups = figures::recovery_groups(runs);
        let checkpoints = figures::checkpoint_groups(study);
        if study.runs.len() > 1 || !groups.is_empty() {
            self.figure(curves::committed_steps(study, runs));
        }
        if !groups.is_empty() {
            self.figure(figures::recovery(runs));
            self.add(&tables::recoveries(&groups));
            let growth = scaling::slopes(study, runs);
            self.figure(scaling::figure(&growth));
            self.add(&scaling::table(&growth));
        }
        if !checkpoints.is_empty() {
            self.figure(figures::checkpoints(&checkpoints));
            self.add(&tables::checkpoints(&checkpoints));
        }
    }

    /// With its number; nothing where there is none.
    pub fn figure(&mut self, figure: Option<Figure>) {
        let Some(figure) = figure else { return };
        self.figures += 1;
        let key: String = figure
            .key
            .iter()
            .map(|(name, class)| {
                format!(
                    "<span><svg viewBox=\"0 0 14 14\" class=\"key\"><rect class=\"part {class}\" \
                         width=\"14\" height=\"14\"/></svg>{}</span>",
                    escape(name)
                )
            })
            .collect();
        let key = if key.is_empty() { key } else { format!("<p class=\"keys\">{key}</p>\n") };
        let caption = format!("Figure {}. {}", self.figures, figure.caption);
        self.add(&markup::figure(&(figure.drawings.concat() + &key), &caption));
    }
}
