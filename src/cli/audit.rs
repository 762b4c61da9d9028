//! `kintsugi audit RUN`: was every sample summed exactly once? Compares the ledger, which says what
//! was summed, with the order of samples, a pure function of the configuration.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::arguments::{fail_of, print_json};
use crate::config::{Config, ExchangeKind, Shown};
use crate::data::sampler::Order;
use crate::lab::report::read::{events_of, read_result};
use crate::observe::console;
use crate::observe::event::{Event, Kind};
use crate::observe::ledger::{self, AuditReport, RoundsReport, Whole};
use crate::observe::log::EVENTS_FILE;
use crate::observe::refusal::naming;
use crate::observe::result::{RunResult, Status};
use crate::train::plan::steps_total;

/// Proves from the ledger that every sample was committed exactly once.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run directory.
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    /// One JSON object instead of sentences.
    #[arg(long)]
    pub json: bool,
}

/// What was audited and what was found.
#[derive(Debug, serde::Serialize)]
struct Findings {
    run: String,
    passed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    synchronous: Option<AuditReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    asynchronous: Option<RoundsReport>,
    /// Where `result.json` says something else than the ledger.
    contradictions: Vec<String>,
    /// Whether the run is over.
    finished: bool,
}

/// Audits. Exit 0: exactly once (an asynchronous run that was ended by time: counted); 1: not, or
/// nothing to audit; 2: no run.
pub fn run(args: &Args) -> ExitCode {
    let findings = match audit(&args.run) {
        Ok(findings) => findings,
        Err(error) => return fail_of(&error),
    };
    if args.json {
        print_json(&findings);
    } else {
        console::print_text(&sentences(&findings));
    }
    if findings.passed { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

/// The set's size and the owners, as the run found them when it started.
fn facts(events: &[Event]) -> Option<(u64, u32)> {
    events.iter().find_map(|event| match event.kind {
        Kind::RunStart { train_samples, owners, .. } => Some((train_samples, owners)),
        _ => None,
    })
}

fn invalid(path: &Path, what: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {what}", path.shown()))
}

fn audit(folder: &Path) -> io::Result<Findings> {
    let config_path = folder.join("config.toml");
    let text = std::fs::read_to_string(&config_path).map_err(naming(&config_path))?;
    let mut config: Config = toml::from_str(&text).map_err(|e| invalid(&config_path, e))?;
    let events_path = folder.join(EVENTS_FILE);
    let result = read_result(folder)?;
    let events = events_of(folder, result.as_ref())?;
    if let Some(result) = result.as_ref().filter(|result| result.steps == 0) {
        let text = format!(
            "{} ended before its first step, there is nothing to audit: {}",
            folder.shown(),
            result.reason
        );
        return Err(io::Error::new(io::ErrorKind::NotFound, text));
    }
    let (samples, owners) = facts(&events)
        .ok_or_else(|| invalid(&events_path, "the run has not started: no run_start in it"))?;
    let ledger_path = folder.join(ledger::LEDGER_FILE);
    let entries = ledger::read(&ledger_path).map_err(|error| invalid(&ledger_path, error))?;
    config.train.owners = Some(owners);
    let order = Order::of(&config, samples).map_err(|error| invalid(&config_path, error))?;
    let mut findings = Findings {
        run: folder.shown(),
        passed: true,
        synchronous: None,
        asynchronous: None,
        contradictions: Vec::new(),
        finished: result.is_some(),
    };
    match config.train.exchange {
        ExchangeKind::Synchronous => {
            let report = ledger::audit(&entries, &mut |step| order.expected(step), samples);
            findings.take_in(&report, result.as_ref());
            findings.synchronous = Some(report);
        }
        ExchangeKind::Asynchronous => {
            let whole = result.as_ref().and_then(|result| whole_of(&config, &order, result));
            let report = ledger::audit_rounds(&entries, samples, whole);
            findings.take_in(&report.ledger, result.as_ref());
            findings.asynchronous = Some(report);
        }
    }
    Ok(findings)
}

/// What an asynchronous run has summed that came to the end of its epochs or steps.
fn whole_of(config: &Config, order: &Order, result: &RunResult) -> Option<Whole> {
    let steps = steps_total(config, order)?;
    let ended = result.status == Status::Completed && result.samples >= order.cursor(steps);
    ended.then(|| {
        let (count, mix) = order.expected_of(steps);
        Whole { count, mix }
    })
}

impl Findings {
    /// What the ledger says, and where `result.json` says something else.
    fn take_in(&mut self, report: &AuditReport, result: Option<&RunResult>) {
        self.contradictions = result.map_or_else(Vec::new, |result| contradictions(report, result));
        self.passed = report.passed() && self.contradictions.is_empty();
    }
}

/// Where `result.json` says something else than the ledger.
fn contradictions(report: &AuditReport, result: &RunResult) -> Vec<String> {
    let pairs = [
        ("steps", result.steps, report.steps),
        ("samples", result.samples, report.samples),
        ("lost_steps", result.lost_steps, report.lost_steps),
    ];
    let differing = pairs.iter().filter(|(_, result, ledger)| result != ledger);
    differing
        .map(|(name, result, ledger)| {
            format!("{name}: result.json says {result}, the ledger {ledger}")
        })
        .collect()
}

fn sentences(findings: &Findings) -> String {
    let mut text = String::new();
    let mut say = |line: String| {
        text.push_str(&line);
        text.push('\n');
    };
    let report = match (&findings.synchronous, &findings.asynchronous) {
        (Some(report), _) => {
            say(format!(
                "{} steps, {} samples ({} undecodable), {} whole epochs; {} rollbacks, {} steps \
                 thrown away",
                report.steps,
                report.samples,
                report.skipped,
                report.epochs,
                report.rollbacks,
                report.lost_steps
            ));
            report
        }
        (None, Some(rounds)) => {
            say(format!(
                "asynchronous: {} rounds, {} samples, {:.3} passes over the set, {} rounds without \
                 a sample",
                rounds.ledger.steps, rounds.ledger.samples, rounds.passes, rounds.empty_rounds
            ));
            say(format!(
                "lost {}, repeated {}; in {} rounds that were thrown away {} samples, drawn again",
                rounds.lost, rounds.repeated, rounds.ledger.lost_steps, rounds.thrown_away
            ));
            &rounds.ledger
        }
        (None, None) => return text,
    };
    for finding in &report.findings {
        say(finding.to_string());
    }
    let kept = report.findings.len() as u64;
    if report.findings_total > kept {
        say(format!("and {} more", report.findings_total - kept));
    }
    for contradiction in &findings.contradictions {
        say(contradiction.clone());
    }
    if !findings.finished {
        say("the run has no result.json yet: only what is there was audited".to_string());
    }
    say(verdict(findings, report));
    text
}

fn verdict(findings: &Findings, report: &AuditReport) -> String {
    let only_unproved = report.only_unproved() && findings.contradictions.is_empty();
    match (findings.passed, &findings.asynchronous) {
        (true, None) => "passed: every sample of every step exactly once".to_string(),
        (true, Some(rounds)) if rounds.compared => {
            "passed: every sample of every epoch exactly once; its rounds have no order".to_string()
        }
        (true, Some(_)) => {
            "passed: the ledger hangs together; the run was not ended by its epochs \
                            or steps, so which samples it summed is not proved"
                .to_string()
        }
        (false, None) if only_unproved => {
            let AuditReport { unproved, steps, .. } = report;
            format!(
                "FAILED: {unproved} of {steps} steps are not proved; every sample of all others \
                 exactly once"
            )
        }
        (false, _) => "FAILED".to_string(),
    }
}
