//! What we are compared with: a Python process that does the same work with other libraries, once
//! whenever it is asked, so that both take turns.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use kintsugi_ffi::os::Signal;
use kintsugi_ffi::process;

use crate::config::Shown;
use crate::lab::report::statistics::median;

use super::runs::Runs;

/// Longest wait for its start, or for one answer: some compile first.
const ANSWER_LIMIT: Duration = Duration::from_secs(300);

/// A Python process that answers one line for each that it is sent.
pub struct Judge {
    child: Child,
    asks: ChildStdin,
    answers: Receiver<String>,
}

impl Judge {
    /// Runs `python script arguments...` and waits until it says "ready".
    ///
    /// # Errors
    /// It does not start, or says something else.
    pub fn start(python: &Path, script: &Path, arguments: &[&OsStr]) -> Result<Self, String> {
        let mut command = Command::new(python);
        command.arg(script).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        process::supervise(&mut command, Signal::Terminate);
        let failed = |reason: &dyn std::fmt::Display| format!("{}: {reason}", python.shown());
        let mut child = command.spawn().map_err(|error| failed(&error))?;
        let (Some(asks), Some(said)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed(&"it has no pipes"));
        };
        let (send, answers) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(said).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        let judge = Self { child, asks, answers };
        let ready = judge.answer()?;
        if ready != "ready" {
            return Err(format!("{} said {ready:?}, not \"ready\"", script.shown()));
        }
        Ok(judge)
    }

    fn answer(&self) -> Result<String, String> {
        self.answers.recv_timeout(ANSWER_LIMIT).map_err(|_| {
            format!(
                "the python of --python ended or was silent for {} s: has it torch, torchvision \
                 and pillow?",
                ANSWER_LIMIT.as_secs()
            )
        })
    }

    /// What it measures under this name, once; seconds.
    ///
    /// # Errors
    /// It ended, or says something that is no number.
    pub fn pass(&mut self, name: &str) -> Result<f64, String> {
        writeln!(self.asks, "{name}").map_err(|error| format!("asking for {name}: {error}"))?;
        let answer = self.answer()?;
        answer.parse().map_err(|_| format!("{name} took {answer:?}, which is no number"))
    }
}

/// Passes by name, in milliseconds.
pub type Samples<'a> = BTreeMap<&'a str, Vec<f64>>;

/// Lets `ours` and what the judge measures under `names` take turns; `each` is what a pass is
/// divided by. The first turn compiles and warms caches, and is not counted.
///
/// # Errors
/// What kept one of them from its pass.
pub fn take_turns<'a>(
    runs: &Runs,
    turns: u32,
    each: f64,
    mut judge: Option<Judge>,
    names: &[&'a str],
    mut ours: impl FnMut(u32) -> Result<Vec<(&'a str, f64)>, String>,
) -> Result<Samples<'a>, String> {
    let mut samples = Samples::new();
    for turn in 0..=turns {
        if runs.asked_to_end() {
            break;
        }
        let mut times = ours(turn)?;
        if let Some(judge) = &mut judge {
            for name in names {
                times.push((*name, judge.pass(name)?));
            }
        }
        for (name, seconds) in times.into_iter().filter(|_| turn > 0) {
            samples.entry(name).or_default().push(1e3 * seconds / each);
        }
    }
    Ok(samples)
}

/// What each of `names` took, over what `ours` did.
pub fn ratios(samples: &Samples<'_>, ours: &str) -> BTreeMap<String, f64> {
    let of = |name: &str| samples.get(name).map_or(f64::NAN, |times| median(times));
    let others = samples.keys().filter(|name| **name != ours);
    others.map(|name| (format!("{name} / {ours}"), of(name) / of(ours))).collect()
}

impl Drop for Judge {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
