//! `kintsugi status RUN --live`: the same facts once a second until the run ends. On a terminal a
//! view that is drawn over itself, elsewhere a line whenever something has changed.

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::super::arguments::{asked_to_stop, fail_of};
use crate::cluster::world::{Member, Role};
use crate::config::Config;
use crate::observe::console::{self, print_line};
use crate::observe::log::{EVENTS_FILE, EventTail};
use crate::observe::progress::{clock, duration, speed_of};

use super::facts::{Report, SILENCE_SECONDS_MAX, lines, report};

/// Between two looks.
const PERIOD: Duration = Duration::from_secs(1);
/// How soon Ctrl-C is answered.
const NAP: Duration = Duration::from_millis(50);
/// A run that is silent for longer than `SILENCE_SECONDS_MAX` is not followed on. One whose job may
/// be in SLURM's queue (after a requeue two minutes at least on most sites) is, for a week.
const QUEUE_SECONDS_MAX: f64 = 7.0 * 24.0 * 3600.0;
/// Nodes that are shown.
const NODES_SHOWN: usize = 8;
/// Of the bar, in characters.
const BAR_WIDTH: usize = 30;

/// Follows the run. Exit 0 when it has ended or somebody pressed Ctrl-C, 2 when there is no run, 1
/// when nothing is heard of it.
pub fn run(folder: &Path) -> ExitCode {
    let followed = asked_to_stop().map_err(io::Error::other);
    followed.and_then(|stop| follow(folder, &stop)).unwrap_or_else(|error| fail_of(&error))
}

fn follow(folder: &Path, stop: &AtomicBool) -> io::Result<ExitCode> {
    let (mut tail, mut events) = (EventTail::new(folder.join(EVENTS_FILE)), Vec::new());
    let limit = max_seconds(folder);
    let (mut output, begun) = (Output::of_stdout(), Instant::now());
    loop {
        // Before anything was read there is nothing to show.
        match tail.read_on(|event| events.push(event)) {
            Err(error) if events.is_empty() => return Err(error),
            _ => {}
        }
        let report = report(folder, &events)?;
        let silence = report.last_event_seconds_ago.unwrap_or(begun.elapsed().as_secs_f64());
        let waits = report.state == "silent" || report.queued().is_some();
        let silent = waits && silence > patience(&report);
        let ended = report.result.is_some() && report.queued().is_none();
        output.show(&report, limit);
        if ended || silent {
            output.end(&report);
        }
        // Where nobody reads any more there is nothing to show.
        if !console::output_is_open() || ended {
            return Ok(ExitCode::SUCCESS);
        }
        if silent {
            return Err(io::Error::other(advice(&report)));
        }
        let until = Instant::now() + PERIOD;
        while Instant::now() < until {
            if stop.load(Ordering::Relaxed) {
                return Ok(ExitCode::SUCCESS);
            }
            std::thread::sleep(NAP);
        }
    }
}

/// How long it may be silent.
fn patience(report: &Report) -> f64 {
    match report.queued() {
        Some(_) => QUEUE_SECONDS_MAX,
        None => SILENCE_SECONDS_MAX,
    }
}

/// For whoever waited in vain. A job's run must not be launched a second time.
fn advice(report: &Report) -> String {
    let heard = format!(
        "nothing is heard of {}: no process of it here, no event for {}",
        report.run,
        clock(patience(report))
    );
    match report.queued() {
        Some(job) => format!("{heard}; `squeue` says whether {job} still waits"),
        None => format!("{heard}; `kintsugi launch` goes on with it"),
    }
}

/// `train.max_seconds`, where it can be read.
fn max_seconds(folder: &Path) -> Option<f64> {
    let text = std::fs::read_to_string(folder.join("config.toml")).ok()?;
    toml::from_str::<Config>(&text).ok()?.train.max_seconds
}

/// Where the view goes.
enum Output {
    Screen(Screen),
    /// The line that was printed last.
    Lines(String),
}

impl Output {
    fn of_stdout() -> Self {
        match console::output_is_a_screen() {
            true => Self::Screen(Screen::new()),
            false => Self::Lines(String::new()),
        }
    }

    fn show(&mut self, report: &Report, limit: Option<f64>) {
        match self {
            Self::Screen(screen) => {
                let (height, width) = console::output_size();
                let rows = usize::from(height).saturating_sub(1);
                let view = view(report, limit, rows);
                screen.draw(&view, usize::from(width));
            }
            Self::Lines(before) => {
                let line = one_line(report, limit);
                if line != *before {
                    print_line!("{line}");
                    *before = line;
                }
            }
        }
    }

    /// The view is over. A screen stays as it is.
    fn end(&self, report: &Report) {
        if let Self::Lines(_) = self {
            console::print_text(&lines(report));
        }
    }
}

/// Lines that are drawn over those of the last time. The cursor is hidden meanwhile and comes back
/// whatever ends the view.
struct Screen {
    drawn: usize,
}

// What a terminal is asked for (ECMA-48, DECTCEM).
const HIDE_CURSOR: &str = "\x1b[?25l";
const SHOW_CURSOR: &str = "\x1b[?25h";
const CLEAR_BELOW: &str = "\r\x1b[0J";
/// Clears what is left of a line, so that nothing flickers.
const CLEAR_TO_END_OF_LINE: &str = "\x1b[K";

impl Screen {
    fn new() -> Self {
        console::print_text(HIDE_CURSOR);
        Self { drawn: 0 }
    }

    fn draw(&mut self, view: &[String], width: usize) {
        let mut text = String::new();
        if self.drawn > 0 {
            text.push_str(&format!("\x1b[{}A", self.drawn));
        }
        for line in view {
            // A line that wraps would move all that is drawn next.
            text.extend(line.chars().take(width.saturating_sub(1)));
            text.push_str(CLEAR_TO_END_OF_LINE);
            text.push('\n');
        }
        text.push_str(CLEAR_BELOW);
        console::print_text(&text);
        self.drawn = view.len();
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        console::print_text(SHOW_CURSOR);
    }
}

/// Seconds until the first of the run's limits is reached.
fn remaining(report: &Report, limit: Option<f64>) -> Option<f64> {
    let by_steps = report.steps_total.zip(report.steps_per_second).and_then(|(total, speed)| {
        (speed > 0.0).then(|| total.saturating_sub(report.step) as f64 / speed)
    });
    let by_time = limit.map(|limit| (limit - report.seconds).max(0.0));
    by_steps.into_iter().chain(by_time).reduce(f64::min)
}

fn done(report: &Report, limit: Option<f64>) -> Option<f64> {
    let by_steps = report.steps_total.map(|total| report.step as f64 / total.max(1) as f64);
    let by_time = limit.map(|limit| report.seconds / limit);
    by_steps.into_iter().chain(by_time).reduce(f64::max).map(|done| done.clamp(0.0, 1.0))
}

fn active(report: &Report) -> usize {
    report.members.iter().filter(|member| member.role == Role::Active).count()
}

/// Step, error, speed.
fn figures(report: &Report, limit: Option<f64>) -> Vec<String> {
    let mut figures = vec![match report.steps_total {
        Some(total) => format!("step {}/{total}", report.step),
        None => format!("step {}", report.step),
    }];
    figures.push(format!("epoch {}", report.epoch));
    figures.extend(report.loss.map(|loss| format!("loss of the newest steps {loss:.4}")));
    figures.extend(report.validation_error.map(|e| format!("validation error {:.2}%", e * 100.0)));
    figures.extend(report.images_per_second.map(|speed| format!("{} images/s", speed_of(speed))));
    figures.extend(
        report.steps_per_second.filter(|s| *s > 0.0).map(|s| duration(1.0 / s) + " a step"),
    );
    if report.result.is_none() {
        figures.extend(remaining(report, limit).map(|seconds| clock(seconds) + " left"));
    }
    figures
}

/// All in one line, without what changes by itself.
fn one_line(report: &Report, limit: Option<f64>) -> String {
    let mut parts = vec![report.state.clone()];
    parts.extend(figures(report, limit));
    parts.push(format!("{} ranks", active(report)));
    parts.push(format!("{} recoveries, {} restarts", report.recoveries, report.failed_starts));
    parts.join("  ")
}

/// The whole view, at most `rows` lines.
fn view(report: &Report, limit: Option<f64>, rows: usize) -> Vec<String> {
    let mut view = vec![report.headline()];
    if let Some(done) = done(report, limit) {
        let full = (done * BAR_WIDTH as f64).round() as usize;
        let (full, empty) = ("━".repeat(full), "─".repeat(BAR_WIDTH.saturating_sub(full)));
        view.push(format!("{full}{empty} {:3.0}%", done * 100.0));
    }
    view.push(figures(report, limit).join("  "));
    let ago = report
        .last_event_seconds_ago
        .map_or("no event".into(), |ago| format!("last event {} ago", clock(ago)));
    view.push(format!(
        "{} of running, attempt {}, generation {}, {ago}",
        clock(report.seconds),
        report.attempt,
        report.generation
    ));
    view.push(report.repaired());
    view.extend(report.reading.lines());
    view.extend(report.repairs.iter().cloned());
    view.push(String::new());
    view.extend(nodes(&report.members));
    view.push(String::new());
    // Below them is the line that counts the others.
    members(report, rows.saturating_sub(view.len() + 2), &mut view);
    fitted(view, rows)
}

/// What does not fit goes from below, and is counted: what is drawn over itself must not scroll.
fn fitted(mut view: Vec<String>, rows: usize) -> Vec<String> {
    if view.len() > rows {
        view.retain(|line| !line.is_empty());
    }
    let more = view.len().saturating_sub(rows);
    if more > 0 {
        view.truncate(rows.saturating_sub(1));
        view.extend((rows > 0).then(|| format!("... and {} lines more", more + 1)));
    }
    view
}

/// Who is where, a line a node.
fn nodes(members: &[Member]) -> Vec<String> {
    let mut hosts: Vec<&str> = members.iter().map(|member| member.host.as_str()).collect();
    hosts.sort_unstable();
    hosts.dedup();
    let on = |host: &str, role: Role| {
        members.iter().filter(|member| member.host == host && member.role == role).count()
    };
    let mut told: Vec<String> = hosts
        .iter()
        .take(NODES_SHOWN)
        .map(|host| match on(host, Role::Spare) {
            0 => format!("node {host}: {} ranks", on(host, Role::Active)),
            spares => format!("node {host}: {} ranks, {spares} spares", on(host, Role::Active)),
        })
        .collect();
    if hosts.len() > NODES_SHOWN {
        told.push(format!("... and {} nodes more", hosts.len() - NODES_SHOWN));
    }
    told
}

fn members(report: &Report, rows: usize, view: &mut Vec<String>) {
    if report.members.is_empty() {
        return;
    }
    let rows = if report.members.len() == rows + 1 { rows + 1 } else { rows };
    view.push(format!("{:>5} {:>7} {:>9}  {:<12} computes", "rank", "member", "pid", "host"));
    for member in report.members.iter().take(rows) {
        let (rank, pace) = match member.role {
            Role::Active => {
                let pace = report.rank_seconds.get(member.rank as usize);
                (member.rank.to_string(), pace.map_or("-".into(), |s| duration(*s) + " a step"))
            }
            Role::Spare => ("spare".into(), "-".into()),
        };
        view.push(format!(
            "{rank:>5} {:>7} {:>9}  {:<12} {pace}",
            member.member, member.pid, member.host
        ));
    }
    if report.members.len() > rows {
        view.push(format!("... and {} members more", report.members.len() - rows));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::account::from_nothing;
    use crate::observe::event::name_of;
    use crate::observe::result::Status;

    fn silent() -> Report {
        Report { run: "runs/x".into(), state: "silent".into(), ..Report::default() }
    }

    #[test]
    fn a_run_of_this_machine_is_given_up_and_what_goes_on_with_it_is_named() {
        assert_eq!(patience(&silent()), SILENCE_SECONDS_MAX);
        let told = advice(&silent());
        assert!(told.contains("no event for 2m00s") && told.contains("kintsugi launch"), "{told}");
        assert_eq!(silent().headline(), "runs/x: silent");
    }

    #[test]
    fn the_view_is_never_higher_than_the_terminal_and_counts_what_it_leaves_out() {
        let member = |number: u32| {
            let (pid, host) = (1000 + number, format!("n{}", number % 12));
            Member { member: number, rank: number, role: Role::Active, pid, host, node: 0 }
        };
        for count in [0, 1, 2, 7, 40] {
            let members = (0..count).map(member).collect();
            let report = Report { steps_total: Some(10), members, ..silent() };
            let whole = view(&report, None, usize::MAX);
            assert!(whole.iter().all(|line| !line.contains("more") || line.contains("nodes")));
            for rows in 0..70 {
                let shown = view(&report, None, rows);
                assert!(shown.len() <= rows, "{count} members on {rows} rows: {shown:#?}");
                if rows >= whole.len() {
                    assert_eq!(shown, whole);
                }
                if rows > 0 {
                    let cut = shown.len() < whole.iter().filter(|line| !line.is_empty()).count();
                    let told = shown.iter().any(|line| line.ends_with(" more"));
                    assert!(told || !cut, "{count} members on {rows} rows: {shown:#?}");
                }
            }
        }
    }

    #[test]
    fn a_run_of_a_job_is_followed_through_the_queue_and_not_launched_again() {
        let job = Report { job: Some("7".into()), ..silent() };
        let other_hosts = Report { elsewhere: true, ..silent() };
        for (report, name) in [(&job, "job 7"), (&other_hosts, "its job")] {
            assert_eq!(patience(report), QUEUE_SECONDS_MAX);
            let told = advice(report);
            assert!(told.contains(name) && told.contains("squeue"), "{told}");
            assert!(!told.contains("kintsugi launch"), "{told}");
            let shown = report.headline();
            assert_eq!(shown, format!("runs/x: silent ({name} may be in SLURM's queue)"));
            assert_eq!(view(report, None, 20)[0], shown);
        }
        let result = |status| {
            let (state, reason) = (name_of(&status), Some("asked to stop".into()));
            let result = Some(from_nothing("x", 1, status, "asked to stop"));
            Report { state, reason, result, job: Some("7".into()), ..silent() }
        };
        let put_back = result(Status::Interrupted);
        assert_eq!(patience(&put_back), QUEUE_SECONDS_MAX);
        let shown = "runs/x: interrupted (asked to stop; job 7 may be in SLURM's queue)";
        assert_eq!(put_back.headline(), shown);
        assert_eq!(result(Status::Completed).queued(), None);
        assert_eq!(Report { job: None, ..put_back }.queued(), None);
        let running = Report { state: "running (elsewhere)".into(), ..other_hosts };
        assert_eq!(running.headline(), "runs/x: running (elsewhere)");
    }
}
