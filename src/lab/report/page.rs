//! The report's page: which figures and tables, in which order, and the words around them.

use super::axis::Axis;
use super::best;
use super::compare::Bits;
use super::groups::{Difference, Keys, configuration as configuration_of, differences};
use super::markup::document;
use super::series::failures;
use super::sheet::Page;
use super::statistics::INTERVAL_FROM;
use super::summary::{self, RunSummary, over_seeds};
use super::svg::escape;
use super::{Study, cost, curves, few, one_run, page_cache, staging, tables, which};
use crate::observe::progress::duration;
use crate::observe::result::Status;

/// The whole document: of one run, or of arms that are compared.
pub fn render(study: &Study) -> String {
    let runs = summary::summarise(study);
    let mut page = Page::default();
    match study.runs.as_slice() {
        [run] => one_run::fill(&mut page, study, run, &runs),
        _ => compared(&mut page, study, &runs),
    }
    page.add("<h2>How it was made</h2>\n");
    page.add(&provenance(study));
    page.add(&tables::runs(&runs));
    page.add(&configuration(study));
    document(&study.title, page.body())
}

fn compared(page: &mut Page, study: &Study, runs: &[RunSummary]) {
    let differences = differences_of(study);
    let handling_alone = differences.iter().all(Difference::is_handling);
    page.add(&header(study, runs));
    page.add(&remarks(study, runs));
    if !handling_alone {
        page.add(&tables::differences(study, &differences));
    }
    page.figure(staging::figure(study));
    for table in [staging::gains(study), staging::table(study)].into_iter().flatten() {
        page.add(&table);
    }
    if let Some(table) = page_cache::table(study) {
        page.add(&table);
        page.figure(page_cache::figure(study));
    }
    let alike = match handling_alone {
        true => Alike::ButFailures,
        false => Alike::InPart,
    };
    page.axes(study, first_axis(study, alike));
    if summary::is_calm(runs) {
        page.add(&tables::calm_arms(study, runs));
        page.figure(curves::validation_error(study));
    } else {
        page.add(&tables::arms(study, runs));
        page.figure(curves::validation_error(study));
        if runs.iter().any(|run| run.min_error.is_some()) {
            page.add(&tables::minimum_errors(study, runs));
            page.add(&cost::table(study, runs));
        }
    }
    page.failures(study, runs);
    page.figure(curves::training_loss(study));
    if !handling_alone {
        page.figure(curves::learning_rate(study));
        page.figure(curves::throughput(study));
    } else {
        page.add(&tables::differences(study, &differences));
    }
}

/// How much the arms of a study have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Alike {
    /// All but what fails and what is done about it.
    ButFailures,
    /// Something else differs too.
    InPart,
}

/// Which axis a page shows first: where failures are compared, or all had the same time on one
/// machine, running time.
fn first_axis(study: &Study, alike: Alike) -> Axis {
    let Some(first) = study.runs.first() else { return Axis::Time };
    let limit = first.max_seconds;
    let timed = limit.is_some() && study.runs.iter().all(|run| run.max_seconds == limit);
    let same_machine = study.runs.iter().all(|run| run.machine() == first.machine());
    let failed = study.runs.iter().any(|run| !failures(&run.events).is_empty());
    match failed && alike == Alike::ButFailures || timed && same_machine {
        true => Axis::Time,
        false => Axis::comparable(study),
    }
}

/// In what the arms' configurations differ.
fn differences_of(study: &Study) -> Vec<Difference> {
    let first = |arm| study.runs_of(arm).next();
    let runs = study.arms().into_iter().filter_map(first);
    let keys: Vec<Keys> = runs.map(|run| configuration_of(&run.config)).collect();
    differences(&keys.iter().collect::<Vec<_>>())
}

fn header(study: &Study, runs: &[RunSummary]) -> String {
    let mut html = format!("<h1>{}</h1>\n", escape(&study.title));
    if !study.description.is_empty() {
        html.push_str(&format!("<p class=\"lead\">{}</p>\n", escape(&study.description)));
    }
    let best = best::words(study, runs).map(|words| escape(&words));
    let findings: String = study
        .arms()
        .into_iter()
        .filter_map(|arm| finding(arm, runs))
        .chain(best)
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
        other => sentence.push_str(&format!("; {}", tables::bits(other))),
    }
    sentence.push('.');
    Some(sentence)
}

/// What a reader must know before comparing.
fn remarks(study: &Study, runs: &[RunSummary]) -> String {
    let mut words = Vec::new();
    let is_complete = |run: &&RunSummary| run.status == Some(Status::Completed);
    let others = runs.iter().filter(|run| !is_complete(run));
    let others: Vec<String> =
        others.map(|run| format!("{} ({})", which(&run.arm, run.seed), run.ending())).collect();
    if !others.is_empty() {
        words.push(format!(
            "Not complete: {}. Their figures are of what they have done, and their errors are not \
             ranked.",
            escape(&few(&others))
        ));
    }
    let seeds = || study.arms().into_iter().map(|arm| study.runs_of(arm).count());
    let (least, most) = (seeds().min().unwrap_or(0), seeds().max().unwrap_or(0));
    if least < INTERVAL_FROM && study.arms().len() > 1 {
        let count = match least {
            n if n < most => format!("{n} to {most} seeds an arm"),
            1 => "One seed an arm".to_string(),
            n => format!("{n} seeds an arm"),
        };
        words.push(format!("{count}: curves of one arm may differ by more than the arms do."));
    }
    let limit = study.runs.first().and_then(|run| run.max_seconds);
    // Where steps end a run before, it makes as many on any machine.
    let ends = |limit| runs.iter().any(|run| run.seconds >= limit);
    if limit.is_some_and(ends) && study.runs.iter().all(|run| run.max_seconds == limit) {
        words.push(
            "Time ends these runs, so the machine's load decides how many steps each makes."
                .to_string(),
        );
    }
    match words.is_empty() {
        true => String::new(),
        false => format!("<p class=\"lead\">{}</p>\n", words.join(" ")),
    }
}

/// The paper whose comparison an experiment on failures plays again.
const PAPER: &str = "辻 陽平, 野村 哲弘, 實本 英之, 佐藤 育郎, 松岡 聡 (Tsuji, Nomura, Jitsumoto, \
     Sato, Matsuoka): 動的なプロセス数操作による分散深層学習の耐故障性と性能評価 (fault tolerance \
     and performance of distributed deep learning by changing the number of processes).";

fn provenance(study: &Study) -> String {
    let mut html = String::new();
    let failed = study.runs.iter().any(|run| !failures(&run.events).is_empty());
    if study.experiment.is_some() && failed {
        html.push_str(&format!(
            "<p>Where this comparison of detect/respawn, detect/shrink and checkpoint/restart is \
             used, cite the paper that it plays again in miniature: <cite>{PAPER}</cite></p>\n"
        ));
    }
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
