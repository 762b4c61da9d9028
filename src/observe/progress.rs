//! Progress for people: a bar on a terminal, plain lines elsewhere, drawn from events.

mod smoothed;

use std::collections::VecDeque;
use std::io::Write;

use indicatif::{ProgressBar, ProgressStyle};

use crate::config::Shown;

use super::console::bar::bar;
use super::console::{self, Diagnostics};
use super::copies::Copies;
use super::data_use::Waits;
use super::event::{Event, Kind, Link, MemoryForecast, RecoveryRecord, names_of};
use super::spans::amount;
pub use super::spans::{clock, duration};
use smoothed::Smoothed;

/// Plain lines about steps come at most this often, in seconds of the run's own clock.
const LINE_SECONDS: f64 = 2.0;
/// Speed is taken over this much of the newest past, in seconds.
const SPEED_SECONDS: f64 = 10.0;
/// Steps kept for the speed.
const SPEED_STEPS_MAX: usize = 4096;

/// Where progress goes.
enum Output {
    Bar(ProgressBar),
    Lines(Box<dyn Write + Send>),
}

/// Follows a run by its events.
pub struct Progress {
    output: Output,
    state: BarState,
    max_seconds: Option<f64>,
    line_due: f64,
    /// It was said that the run waits, and nothing was committed since.
    waiting: bool,
    /// When the next line about staging is due (run seconds).
    staging_due: f64,
    copies: Copies,
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

impl Progress {
    /// A bar if stderr is a terminal, lines on stderr otherwise.
    pub fn new() -> Self {
        if console::errors_are_a_screen() {
            Self::with(Output::Bar(bar(None)))
        } else {
            Self::to(Box::new(Diagnostics))
        }
    }

    /// Plain lines to any writer.
    pub fn to(writer: Box<dyn Write + Send>) -> Self {
        Self::with(Output::Lines(writer))
    }

    fn with(output: Output) -> Self {
        let state = BarState::default();
        let line_due = f64::NEG_INFINITY;
        Self {
            output,
            state,
            max_seconds: None,
            line_due,
            waiting: false,
            staging_due: 0.0,
            copies: Copies::default(),
        }
    }

    /// The run's `train.max_seconds`, for the remaining time and the length of the bar.
    pub fn max_seconds(mut self, seconds: Option<f64>) -> Self {
        self.max_seconds = seconds;
        self
    }

    /// Takes one event, in the order written.
    pub fn on(&mut self, event: &Event) {
        self.state.on(event);
        self.copies.on(event);
        if matches!((&event.kind, &self.output), (Kind::RunEnd { .. }, Output::Lines(_))) {
            let line = self.state.line(self.max_seconds);
            self.print(&line);
        }
        // Each rank that waits says so: one line stands for all.
        let waits = matches!(event.kind, Kind::Waiting { .. });
        let known = waits && std::mem::replace(&mut self.waiting, true);
        self.waiting &= waits || !is_counted(&event.kind);
        let line = match event.kind {
            Kind::Staging(_) => self.staging(event.seconds),
            _ => announcement(event).filter(|_| !known),
        };
        if let Some(line) = line {
            self.print(&line);
        }
        match &event.kind {
            Kind::RunStart { .. } => self.resize(),
            Kind::Step { .. } => self.show_step(event.seconds),
            _ => {}
        }
    }

    /// Every rank that waits may tell how far its staging is: one line in a while stands for all,
    /// and the last one always comes.
    fn staging(&mut self, seconds: f64) -> Option<String> {
        let staged = self.copies.newest()?;
        let early = seconds < self.staging_due && !staged.is_whole();
        if !early {
            self.staging_due = seconds + LINE_SECONDS;
        }
        (!early).then(|| staged.line())
    }

    /// Takes the bar away and leaves its last line.
    pub fn finish(&mut self) {
        match &mut self.output {
            Output::Bar(bar) if bar.is_finished() => {}
            Output::Bar(bar) => {
                if self.state.step > 0 {
                    bar.println(self.state.line(self.max_seconds));
                }
                bar.finish_and_clear();
            }
            // Progress that nobody takes is no reason to end a run.
            Output::Lines(writer) => drop(writer.flush()),
        }
    }

    fn print(&mut self, line: &str) {
        match &mut self.output {
            Output::Bar(bar) => bar.println(line),
            Output::Lines(writer) => drop(writer.write_all(format!("{line}\n").as_bytes())),
        }
    }

    fn resize(&mut self) {
        let Output::Bar(bar) = &self.output else { return };
        let template = "{bar:24.cyan/blue} {percent:>3}%  {msg}";
        let style = ProgressStyle::with_template(template).expect("the template is well formed");
        bar.set_style(style.progress_chars("━╸─"));
        // Thousandths: a bar may count steps or seconds, whichever ends the run first.
        bar.set_length(1000);
    }

    fn show_step(&mut self, seconds: f64) {
        match &self.output {
            Output::Bar(bar) => {
                let done = self.state.fraction_done(self.max_seconds).unwrap_or(0.0);
                bar.set_position((done * 1000.0) as u64);
                bar.set_message(self.state.line(self.max_seconds));
            }
            Output::Lines(_) if seconds >= self.line_due => {
                self.line_due = seconds + LINE_SECONDS;
                let line = self.state.line(self.max_seconds);
                self.print(&line);
            }
            Output::Lines(_) => {}
        }
    }
}

/// What is known of the run: pure.
#[derive(Debug, Default)]
struct BarState {
    steps_total: Option<u64>,
    step: u64,
    epoch: u64,
    learning_rate: Option<f64>,
    seconds: f64,
    loss: Smoothed,
    error: Smoothed,
    /// Behind which step, and the error.
    validation: Option<(u64, f64)>,
    /// The newest steps.
    recent: VecDeque<Recent>,
    /// What the next reported steps waited for.
    waits: Waits,
}

/// A report of steps.
#[derive(Debug, Clone, Copy)]
struct Recent {
    /// Of the run.
    at: f64,
    step: u64,
    samples: u64,
    /// That the steps took.
    seconds: f64,
    waits: Waits,
}

impl BarState {
    fn on(&mut self, event: &Event) {
        self.seconds = event.seconds;
        match &event.kind {
            Kind::RunStart { steps_total, epoch, .. } => {
                self.steps_total = *steps_total;
                self.epoch = *epoch;
                self.step = event.step;
                self.recent.clear();
            }
            Kind::Data { waits, .. } => self.waits = *waits,
            Kind::Step { epoch, loss, error, samples, seconds, learning_rate } => {
                // Where a repair went back there is no other word of it.
                self.go_back_to(event.step.saturating_sub(1));
                self.step = event.step;
                self.learning_rate = Some(*learning_rate);
                self.epoch = *epoch;
                self.loss.add(*loss, *samples);
                self.error.add(*error, *samples);
                self.remember(event.seconds, *samples, *seconds);
            }
            Kind::Evaluation { error, .. } => self.validation = Some((event.step, *error)),
            Kind::Restarted { .. } => {
                self.go_back_to(event.step);
                self.step = event.step;
            }
            _ => {}
        }
    }

    /// What was told of later steps is thrown away with them.
    fn go_back_to(&mut self, step: u64) {
        if step < self.step {
            let (steps_total, seconds, epoch) = (self.steps_total, self.seconds, self.epoch);
            let validation = self.validation.filter(|(measured, _)| *measured <= step);
            *self = Self { steps_total, seconds, epoch, step, validation, ..Self::default() };
        }
    }

    fn remember(&mut self, at: f64, samples: u64, seconds: f64) {
        let waits = std::mem::take(&mut self.waits);
        self.recent.push_back(Recent { at, step: self.step, samples, seconds, waits });
        let old = |first: &Recent| at - first.at > SPEED_SECONDS;
        while self.recent.len() > SPEED_STEPS_MAX || self.recent.front().is_some_and(old) {
            self.recent.pop_front();
        }
    }

    /// Images and steps per second over the newest past, stalls included.
    fn speed(&self) -> Option<(f64, f64)> {
        let (first, last) = (self.recent.front()?, self.recent.back()?);
        let seconds = last.at - first.at;
        let samples: u64 = self.recent.iter().skip(1).map(|step| step.samples).sum();
        let steps = last.step.saturating_sub(first.step);
        (seconds > 0.0).then(|| (samples as f64 / seconds, steps as f64 / seconds))
    }

    /// What the newest steps waited for, where that is much of them.
    fn waits(&self) -> Option<String> {
        let (mut waits, mut seconds) = (Waits::default(), 0.0);
        for recent in &self.recent {
            waits.add(&recent.waits);
            seconds += recent.seconds;
        }
        waits.notable(seconds)
    }

    /// Seconds until the first of the two limits is reached.
    fn remaining(&self, max_seconds: Option<f64>) -> Option<f64> {
        let by_steps = self.steps_total.zip(self.speed()).and_then(|(total, (_, per_second))| {
            let left = total.saturating_sub(self.step) as f64;
            (per_second > 0.0).then(|| left / per_second)
        });
        let by_time = max_seconds.map(|max| (max - self.seconds).max(0.0));
        by_steps.into_iter().chain(by_time).reduce(f64::min)
    }

    fn fraction_done(&self, max_seconds: Option<f64>) -> Option<f64> {
        let by_steps = self.steps_total.map(|total| self.step as f64 / (total.max(1)) as f64);
        let by_time = max_seconds.map(|max| self.seconds / max);
        by_steps.into_iter().chain(by_time).reduce(f64::max).map(|done| done.clamp(0.0, 1.0))
    }

    fn line(&self, max_seconds: Option<f64>) -> String {
        let by_time = max_seconds.is_some_and(|max| {
            let steps =
                self.steps_total.map_or(0.0, |total| self.step as f64 / total.max(1) as f64);
            self.seconds / max > steps
        });
        // The number of steps says nothing about a run that its time will end.
        let mut line = match self.steps_total.filter(|_| !by_time) {
            Some(total) => format!("step {}/{total}", self.step),
            None => format!("step {}", self.step),
        };
        line.push_str(&format!("  epoch {}", self.epoch));
        if let Some(loss) = self.loss.mean() {
            // Of one step it would jump from line to line.
            line.push_str(&format!("  mean loss {loss:.4}"));
        }
        if let Some(error) = self.error.mean() {
            line.push_str(&format!("  error {}", percent(error)));
        }
        if let Some((_, error)) = self.validation {
            line.push_str(&format!("  validation {}", percent(error)));
        }
        if let Some(rate) = self.learning_rate {
            line.push_str(&format!("  rate {}", rate_of(rate)));
        }
        if let Some((images, _)) = self.speed() {
            line.push_str(&format!("  {} images/s", speed_of(images)));
        }
        if let Some(waits) = self.waits() {
            line.push_str(&format!("  {waits}"));
        }
        if let Some(seconds) = self.remaining(max_seconds) {
            line.push_str(&format!("  {} left", clock(seconds)));
        }
        line
    }
}

/// Images or steps a second.
pub fn speed_of(speed: f64) -> String {
    if speed < 100.0 { rate_of(speed) } else { format!("{speed:.0}") }
}

/// A rate of any kind, in three digits.
pub fn rate_of(rate: f64) -> String {
    match rate {
        0.0 => "0".into(),
        rate if (1e-3..1e4).contains(&rate) => {
            let digits = (2 - rate.log10().floor() as i32).max(0) as usize;
            let text = format!("{rate:.digits$}");
            let cut = if text.contains('.') { text.trim_end_matches('0') } else { &text };
            cut.trim_end_matches('.').to_owned()
        }
        rate => format!("{rate:.2e}"),
    }
}

/// `12.34%` of a fraction.
fn percent(fraction: f64) -> String {
    format!("{:.2}%", fraction * 100.0)
}

/// Whether an event tells of samples that were computed.
fn is_counted(kind: &Kind) -> bool {
    matches!(kind, Kind::Step { .. } | Kind::Evaluation { .. })
}

/// The one line that an event is worth by itself.
fn announcement(event: &Event) -> Option<String> {
    let step = event.step;
    Some(match &event.kind {
        Kind::RunStart {
            run_id, ranks, owners, parameters, train_samples, from, weights, ..
        } => format!(
            "{}: {ranks} ranks, {owners} owners, {parameters} parameters, {train_samples} training \
             samples, from {}",
            run_id.shown(),
            weights.as_deref().map_or_else(|| from.clone(), of_weights)
        ),
        Kind::Evaluation { error, average_error, loss, seconds, .. } => format!(
            "validation at step {step}: error {}{}, loss {loss:.4} ({})",
            percent(*error),
            average_error.map_or(String::new(), |e| format!(" (averaged weights {})", percent(e))),
            duration(*seconds)
        ),
        Kind::Memory(forecast) if event.rank == 0 => memory(forecast),
        Kind::FaultInjected { kind, phase, target, .. } => {
            format!("fault injected at step {}: {kind} of rank {target}, {phase}", step + 1)
        }
        Kind::Recovered(record) => recovered(record),
        Kind::Resized(record) => format!(
            "{} ranks instead of {} after step {} ({}, {})",
            record.to,
            record.from,
            record.step,
            record.cause,
            duration(record.seconds.values().sum())
        ),
        Kind::Network { agree_seconds, links } => network(*agree_seconds, links),
        Kind::Nodes { from, to } => {
            format!("nodes: {} instead of {}", to.join(", "), from.join(", "))
        }
        Kind::RungDown { from, to, reason } => {
            format!("recovery steps down from {from} to {to}: {reason}")
        }
        Kind::Restarted { from, lost_steps, lost, weights } => format!(
            "attempt {} goes on from {} at step {step}, {lost_steps} steps lost; lost {}",
            event.attempt,
            gone_on_from(from, weights.as_deref()),
            names_of(lost)
        ),
        Kind::BadImages { set, skipped, of } => format!(
            "bad images: {skipped} of {of} {set} samples could not be decoded and were skipped; \
             the ranks' logs name them"
        ),
        Kind::Waiting { reason, patience_seconds } => format!(
            "waiting up to {} (data.patience) for the storage of the data set: {reason}",
            clock(*patience_seconds)
        ),
        Kind::StepAgain { step } => format!(
            "step {step}: its gradients are larger than any before, and their exact sums need more \
             room: it is computed once more, as in every run of this configuration"
        ),
        Kind::Inexact { reason } => format!("warning: the run is no longer exact: {reason}"),
        Kind::Warning { message } => format!("warning: {message}"),
        Kind::RunEnd { status, reason, state_sha256 } => {
            let hash = state_sha256.as_deref().map(|hash| format!(", state {}", short(hash)));
            format!("{status} at step {step}: {reason}{}", hash.unwrap_or_default())
        }
        _ => return None,
    })
}

/// What is expected of a plan of memory, or became of it.
fn memory(forecast: &MemoryForecast) -> String {
    let expected = duration(forecast.seconds);
    if let Some(took) = forecast.took_seconds {
        return format!("memory: a micro-batch takes {}, {expected} expected", duration(took));
    }
    format!(
        "memory: {} samples a micro-batch take {} near and {} far; {expected} expected, of it {} \
         to compute again and {} to wait; {} out and {} back",
        forecast.samples,
        amount(forecast.near_bytes),
        amount(forecast.far_bytes),
        duration(forecast.again_seconds),
        duration(forecast.waits_seconds),
        amount(forecast.out_bytes),
        amount(forecast.back_bytes),
    )
}

/// First weights that a file gave.
fn of_weights(file: &str) -> String {
    format!("weights {}", file.shown())
}

/// What an attempt goes on from.
pub fn gone_on_from(from: &str, weights: Option<&str>) -> String {
    weights.map_or_else(|| format!("{from} state"), of_weights)
}

/// Interfaces, the slowest and the fastest link, an agreement.
fn network(agree_seconds: f64, links: &[Link]) -> String {
    let mut interfaces: Vec<&str> = links.iter().map(|link| link.interface.as_str()).collect();
    interfaces.sort_unstable();
    interfaces.dedup();
    let rates = links.iter().map(|link| link.bytes_per_second);
    let (least, most) =
        rates.fold((f64::INFINITY, 0.0_f64), |(l, m), rate| (l.min(rate), m.max(rate)));
    format!(
        "network: {} nodes by {}, {}/s to {}/s between neighbours, an agreement of \
         all ranks takes {}",
        links.len() + 1,
        interfaces.join(", "),
        amount(least as u64),
        amount(most as u64),
        duration(agree_seconds)
    )
}

/// Who, where, why, how long.
fn recovered(record: &RecoveryRecord) -> String {
    let phases: Vec<String> = record
        .in_order()
        .iter()
        .filter(|(_, seconds)| *seconds > 0.0)
        .map(|(name, seconds)| format!("{} {}", name.replace('_', " "), duration(*seconds)))
        .collect();
    format!(
        "recovered by {} in {} at step {}, {} ranks: lost {} [{}]",
        record.rung,
        duration(record.seconds.values().sum()),
        record.step,
        record.ranks,
        names_of(&record.lost),
        phases.join(", ")
    )
}

/// Enough of a hash to tell two apart.
pub fn short(hash: &str) -> &str {
    hash.get(..12).unwrap_or(hash)
}

#[cfg(test)]
mod tests;
