//! The page of one run: how it ended, what it was made of, its curves, what was lost and why.

use super::axis::Axis;
use super::curves::{self, Both};
use super::drawing::csv_number;
use super::line_chart::grouped;
use super::markup::{Table, facts};
use super::series::{asked_to_end, failures};
use super::sheet::Page;
use super::summary::RunSummary;
use super::svg::escape;
use super::{Run, Study, page_cache, staging};
use crate::config::{Config, DataFormat, Shown};
use crate::observe::event::{Event, Kind, ResizeRecord, Setup, name_of, names_of};
use crate::observe::progress::duration;
use crate::observe::spans;
use crate::train::update::schedule::scaled_rate;

/// Everything above "How it was made".
pub fn fill(page: &mut Page, study: &Study, run: &Run, runs: &[RunSummary]) {
    let summary = &runs[0];
    page.add(&format!("<h1>{}</h1>\n", escape(&study.title)));
    page.add(&format!("<p class=\"lead\">{}</p>\n", escape(&ending(run, summary))));
    page.add(&made_of(run, summary));
    if let Some(table) = staging::table(study) {
        page.add(&table);
    }
    if let Some(table) = page_cache::table(study) {
        page.add(&table);
        page.figure(page_cache::figure(study));
    }
    page.axes(study, Axis::comparable(study));
    page.figure(curves::of_one_run(study, Both::Error));
    page.figure(curves::of_one_run(study, Both::Loss));
    page.figure(curves::learning_rate(study));
    page.figure(curves::throughput_of_one_run(study));
    page.add("<h2>What was lost, and why</h2>\n");
    page.add(&losses(run, summary));
    page.failures(study, runs);
}

/// How it stands, in a sentence or two.
fn ending(run: &Run, summary: &RunSummary) -> String {
    let mut words = match (&summary.status, &summary.reason) {
        (Some(status), Some(reason)) => format!("{}: {reason}.", name_of(status)),
        _ => "No result yet: it runs, or was cut off.".to_string(),
    };
    let epochs = run.result.as_ref().map_or(0, |result| result.epochs);
    let within = if epochs > 0 { format!(", {epochs} whole epochs") } else { String::new() };
    let length = spans::clock(summary.seconds);
    words.push_str(&format!(" {} steps{within} in {length}.", grouped(summary.steps as f64)));
    if let (Some(last), Some(best)) = (summary.final_error, summary.min_error) {
        let (last, best) = (last * 100.0, best * 100.0);
        words.push_str(&format!(" Validation error {last:.2} % at the end, {best:.2} % at best."));
    }
    words
}

/// Model, data, machine, versions, as far as the run's folder says it.
fn made_of(run: &Run, summary: &RunSummary) -> String {
    let mut rows: Vec<(&str, String)> = Vec::new();
    let mut row = |name, value: Option<String>| {
        rows.extend(value.map(|value: String| (name, escape(&value))));
    };
    let config = run.settings();
    let (config, setup) = (config.as_ref(), run.setup());
    row("model", config.map(|config| model(config, run, setup)));
    row("data set", config.map(|config| data_set(config, run, setup)));
    row("batch", config.map(batch));
    row("optimizer", config.map(optimizer));
    row("ranks", config.map(|config| ranks(config, summary)));
    row("machine", setup.map(|setup| format!("{} ({})", setup.machine, hosts(run).join(", "))));
    row("versions", setup.map(versions));
    row("began", run.events.first().map(|first| spans::date(first.time)));
    row("seed", config.map(|config| config.run.seed.to_string()));
    row(
        "bits",
        run.result.as_ref().map(|result| {
            let kept = match result.exact {
                true => "those of a run without failures",
                false => "not known to be those of a run without failures",
            };
            let hash = result.state_sha256.as_deref();
            hash.map_or(kept.to_string(), |hash| format!("{kept}; state {hash}"))
        }),
    );
    facts("<b>The run.</b>", &rows)
}

fn model(config: &Config, run: &Run, setup: Option<&Setup>) -> String {
    let mut text = config.model.name.clone();
    if let Some(parameters) = start(run).map(|start| start.parameters) {
        text.push_str(&format!(", {} parameters", grouped(parameters as f64)));
    }
    if let Some([channels, height, width]) = setup.map(|setup| setup.input) {
        text.push_str(&format!(", input {channels} x {height} x {width}"));
    }
    if let Some(weights) = &config.model.init {
        text.push_str(&format!(", first weights from {}", weights.shown()));
    }
    text
}

fn data_set(config: &Config, run: &Run, setup: Option<&Setup>) -> String {
    let source = match (&config.data.train, config.data.format) {
        (Some(path), _) => format!(" at {}", path.shown()),
        (None, DataFormat::Synthetic) => ", made in memory".to_string(),
        (None, _) => ", made on first use".to_string(),
    };
    let mut text = name_of(&config.data.format) + &source;
    if let Some(start) = start(run) {
        let (train, validation) = (start.train_samples as f64, start.validation_samples as f64);
        let (train, validation) = (grouped(train), grouped(validation));
        text.push_str(&format!(": {train} training and {validation} validation samples"));
    }
    if let Some(setup) = setup {
        text.push_str(&format!(", {} classes", setup.classes));
    }
    text + &format!(", seen at {} pixels", config.data.image_size)
}

fn batch(config: &Config) -> String {
    let train = &config.train;
    let owners = train.owners.map_or(String::new(), |owners| format!(" in {owners} parts"));
    let exchange = name_of(&train.exchange);
    format!("{} samples a step{owners}, {exchange} exchange", train.global_batch)
}

fn optimizer(config: &Config) -> String {
    let (optimizer, schedule) = (&config.optimizer, &config.schedule);
    let name = name_of(&optimizer.name);
    let kind = name_of(&schedule.kind);
    let (rate, batch) = (optimizer.learning_rate, config.train.global_batch);
    let scaled = schedule.reference_batch.map_or(String::new(), |reference| {
        let scaled = csv_number(scaled_rate(schedule, rate, batch));
        format!("; for {reference} samples (schedule.reference_batch), so {scaled} for {batch}")
    });
    format!("{name}, learning rate {rate} ({kind}){scaled}")
}

fn ranks(config: &Config, summary: &RunSummary) -> String {
    let (kind, precision) = (config.device.kind.name(), config.device.precision.name());
    let workers = config.train.workers;
    let workers = if workers == 1 { "one worker".into() } else { format!("{workers} workers") };
    let ranks = match summary.ranks_by_step.is_empty() {
        true => config.run.ranks.to_string(),
        false => summary.ranks_words(),
    };
    format!("{ranks}; {workers} each, {kind}, {precision}")
}

fn versions(setup: &Setup) -> String {
    let Setup { kintsugi, commit, mpi, arithmetic, .. } = setup;
    let commit = commit.as_ref().map_or(String::new(), |commit| format!(" (commit {commit})"));
    format!("Kintsugi {kintsugi}{commit}, {mpi}, {arithmetic}")
}

/// Where its attempts began.
fn hosts(run: &Run) -> Vec<&str> {
    let of = |event: &'_ Event| matches!(event.kind, Kind::Setup(_));
    let mut hosts: Vec<&str> = Vec::new();
    for event in run.events.iter().filter(|event| of(event)) {
        if let Kind::Setup(setup) = &event.kind
            && !hosts.contains(&setup.host.as_str())
        {
            hosts.push(&setup.host);
        }
    }
    hosts
}

/// What the first `run_start` says.
struct Start {
    parameters: u64,
    train_samples: u64,
    validation_samples: u64,
}

fn start(run: &Run) -> Option<Start> {
    run.events.iter().find_map(|event| match event.kind {
        Kind::RunStart { parameters, train_samples, validation_samples, .. } => {
            Some(Start { parameters, train_samples, validation_samples })
        }
        _ => None,
    })
}

fn losses(run: &Run, summary: &RunSummary) -> String {
    let mut html = String::new();
    let met = failures(&run.events).len();
    match (summary.recoveries.is_empty(), met) {
        (true, 0) => html.push_str("<p>No rank was lost, and no committed step.</p>\n"),
        (true, met) => html.push_str(&format!("<p>{met} failures, none of them repaired.</p>\n")),
        (false, _) => html.push_str(&recoveries(summary)),
    }
    let mut also = Vec::new();
    if let Some(result) = &run.result {
        let (train, validation) = (result.bad_images.train, result.bad_images.validation);
        if train + validation > 0 {
            also.push(format!(
                "{train} training and {validation} validation samples could not be decoded."
            ));
        }
        if result.zero_updates > 0 {
            also.push(format!("{} steps changed no weight.", result.zero_updates));
        }
    }
    also.extend(told(&run.events));
    also.dedup();
    let lines: String = also.iter().map(|line| format!("<li>{}</li>\n", escape(line))).collect();
    if !lines.is_empty() {
        html.push_str(&format!("<ul class=\"findings\">\n{lines}</ul>\n"));
    }
    html
}

/// Stops, changes of the ranks on purpose, and what cost bits or a rung: a line each, in order.
fn told(events: &[Event]) -> Vec<String> {
    let (mut also, mut ended) = (Vec::new(), None);
    for event in events {
        match &event.kind {
            Kind::RunEnd { status, reason, .. } if asked_to_end(event) => {
                ended = Some(format!("After step {}: {status} ({reason})", event.step));
            }
            Kind::RunStart { ranks, .. } => also.extend(ended.take().map(|ended| {
                let (attempt, step) = (event.attempt, event.step);
                format!("{ended}; attempt {attempt} went on from step {step} (ranks: {ranks}).")
            })),
            Kind::Resized(ResizeRecord { step, cause, from, to, .. }) => {
                also.push(format!("After step {step}: ranks from {from} to {to} ({cause})."));
            }
            Kind::Inexact { reason } => also.push(format!("Other bits from here: {reason}.")),
            Kind::RungDown { from, to, reason } => {
                also.push(format!("Step {}: from {from} down to {to}: {reason}.", event.step));
            }
            _ => {}
        }
    }
    also
}

fn recoveries(summary: &RunSummary) -> String {
    let mut table = Table::new([
        "who, and why",
        "in step",
        "went on from step",
        "after",
        "repaired by",
        "computing again after",
        "committed steps lost",
    ]);
    for episode in &summary.recoveries {
        table.row([
            format!("<span class=\"words\">{}</span>", escape(&names_of(&episode.lost))),
            episode.step.to_string(),
            episode.went_on_from().to_string(),
            spans::clock(episode.back_at - episode.seconds()),
            escape(&episode.rung),
            duration(episode.seconds()),
            episode.lost_steps.to_string(),
        ]);
    }
    table.html("<b>Failures and repairs,</b> each as its survivors or the next attempt tell it.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::report::summary::summarise;
    use crate::observe::event::samples::{event, run_start};

    fn start(attempt: u32, step: u64, now: u32) -> Event {
        let mut start = event(step, step as f64, run_start(9));
        if let Kind::RunStart { ranks, .. } = &mut start.kind {
            *ranks = now;
        }
        Event { attempt, ..start }
    }

    #[test]
    fn stops_and_other_numbers_of_ranks_are_told() {
        let (status, reason) = ("interrupted".to_string(), "stopped".to_string());
        let end = Kind::RunEnd { status, reason, state_sha256: None };
        let (generation, step, cause, seconds) = (1, 40, "scale".into(), [].into());
        let (from, to) = (2, 4);
        let resized = Kind::Resized(ResizeRecord { generation, step, cause, from, to, seconds });
        let resized = Event { attempt: 2, ..event(41, 41.0, resized) };
        let events = vec![start(1, 0, 3), event(16, 16.0, end), start(2, 16, 2), resized];
        assert_eq!(
            told(&events),
            [
                "After step 16: interrupted (stopped); attempt 2 went on from step 16 (ranks: 2).",
                "After step 40: ranks from 2 to 4 (scale).",
            ]
        );
        let run = Run { events, config: "[train]\nsteps = 9".into(), ..Run::default() };
        let study = Study { runs: vec![run.clone()], ..Study::default() };
        let summary = &summarise(&study)[0];
        assert_eq!(summary.ranks_words(), "3, from step 17 on 2, from step 41 on 4");
        assert!(made_of(&run, summary).contains("<td>3, from step 17 on 2, from step 41 on 4; "));
        assert!(losses(&run, summary).contains("No rank was lost"));
    }
}
