//! The report's page: which figures and tables, in which order, and the words around them.

use super::compare::Bits;
use super::figures::{self, Figure};
use super::markup::{self, document};
use super::summary::{self, RunSummary, over_seeds};
use super::svg::escape;
use super::{Study, page_cache, staging, tables};
use crate::observe::progress::duration;

/// The whole document.
pub fn render(study: &Study) -> String {
    let runs = summary::summarise(study);
    let groups = figures::recovery_groups(&runs);
    let checkpoints = figures::checkpoint_groups(study);
    let mut page = Page { body: String::new(), figures: 0 };
    page.add(&header(study, &runs));
    if let Some(table) = staging::table(study) {
        page.add(&table);
    }
    if let Some(table) = page_cache::table(study) {
        page.add(&table);
        page.figure(page_cache::figure(study));
    }
    // Of one arm there is nothing to compare.
    if study.arms().len() > 1 && summary::is_calm(&runs) {
        page.add(&tables::calm_arms(study, &runs));
        page.figure(figures::validation_error(study));
        page.figure(figures::validation_error_by_step(study, &runs));
    } else {
        page.add(&tables::arms(study, &runs));
        page.figure(figures::validation_error(study));
        page.add(&tables::minimum_errors(study, &runs));
    }
    page.figure(figures::committed_steps(study, &runs));
    if !groups.is_empty() {
        page.figure(figures::recovery(&runs));
        page.add(&tables::recoveries(&groups));
    }
    if !checkpoints.is_empty() {
        page.figure(figures::checkpoints(&checkpoints));
        page.add(&tables::checkpoints(&checkpoints));
    }
    page.figure(figures::training_loss(study));
    page.add("<h2>How it was made</h2>\n");
    page.add(&provenance(study));
    page.add(&tables::differences(study));
    page.add(&tables::runs(&runs));
    page.add(&configuration(study));
    document(&study.title, &page.body)
}

struct Page {
    body: String,
    figures: usize,
}

impl Page {
    fn add(&mut self, html: &str) {
        self.body.push_str(html);
    }

    fn figure(&mut self, figure: Option<Figure>) {
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

fn header(study: &Study, runs: &[RunSummary]) -> String {
    let mut html = format!("<h1>{}</h1>\n", escape(&study.title));
    if !study.description.is_empty() {
        html.push_str(&format!("<p class=\"lead\">{}</p>\n", escape(&study.description)));
    }
    let findings: String = study
        .arms()
        .into_iter()
        .filter_map(|arm| finding(arm, runs))
        .map(|sentence| format!("<li>{sentence}</li>\n"))
        .collect();
    if !findings.is_empty() {
        html.push_str(&format!("<ul class=\"findings\">\n{findings}</ul>\n"));
    }
    html
}

/// What the failures did to an arm, in a sentence; `None` of an arm that met none.
fn finding(arm: &str, runs: &[RunSummary]) -> Option<String> {
    let runs: Vec<&RunSummary> = runs.iter().filter(|run| run.arm == arm).collect();
    let recoveries: usize = runs.iter().map(|run| run.recoveries.len()).sum();
    if recoveries == 0 {
        return None;
    }
    let seconds: f64 = runs.iter().map(|run| run.recovery_seconds()).sum();
    let lost = over_seeds(&runs, |run| Some(run.lost_steps as f64)).map_or(0.0, |lost| lost.mean);
    let redo: f64 = runs.iter().map(|run| run.redo_seconds()).sum();
    let mut sentence = format!(
        "<b>{}</b>: computing again after {}",
        escape(arm),
        duration(seconds / recoveries as f64)
    );
    if lost == 0.0 {
        sentence.push_str(", no committed step lost");
    } else {
        let each = duration(redo / recoveries as f64);
        let steps = if runs.len() > 1 { "steps lost a run" } else { "steps lost" };
        sentence.push_str(&format!(", {lost:.0} {steps}, {each} to do them again"));
    }
    match tables::worst_bits(&runs) {
        Bits::Unknown => {}
        Bits::SameState => sentence.push_str("; the same state hash as the calm run"),
        Bits::SameLosses { steps } => sentence.push_str(&format!(
            "; the calm run's training loss over all {steps} steps that both report"
        )),
        Bits::Differs { from_step } => {
            sentence.push_str(&format!("; other sums than the calm run's from step {from_step}"));
        }
    }
    sentence.push('.');
    Some(sentence)
}

fn provenance(study: &Study) -> String {
    let mut html = String::new();
    if !study.command.is_empty() {
        html.push_str(&format!("<pre>$ {}</pre>\n", escape(&study.command)));
    }
    if !study.machine.is_empty() {
        html.push_str(&format!("<p>Machine: {}.</p>\n", escape(&study.machine)));
    }
    html
}

fn configuration(study: &Study) -> String {
    let mut html = String::new();
    if let Some(experiment) = &study.experiment {
        let text = escape(experiment);
        html.push_str(&format!(
            "<details><summary>The experiment file</summary><pre>{text}</pre></details>\n"
        ));
    }
    let shown = study.arms().into_iter().filter_map(|arm| study.runs_of(arm).next());
    for run in shown.filter(|run| !run.config.is_empty()) {
        html.push_str(&format!(
            "<details><summary>Configuration of {}</summary><pre>{}</pre></details>\n",
            escape(&run.arm),
            escape(&run.config)
        ));
    }
    html
}
