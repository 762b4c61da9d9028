//! Why a process ended, as far as those knew who were there: its guardian, the kernel, itself.
//! One small file per process that did not end in order, `RUN/logs/attempt-N-pid-P.end`, of lines
//! `key: text`; whoever reports the loss reads it.

use std::io::Write;
use std::path::Path;

use crate::config::Shown;
use crate::run_folder::variables;

/// Why somebody ended it on purpose.
pub const VERDICT: &str = "verdict";
/// Signal or exit code.
pub const STATUS: &str = "status";
/// What the kernel's OOM killer did meanwhile.
pub const MEMORY: &str = "memory";
/// What is said of a death by the OOM killer, whether it is known or likely.
pub const OUT_OF_MEMORY: &str = "out of memory";
/// The rank of a first-born process that ended before MPI had started: those that wait for it there
/// never hear of it.
pub const UNMET: &str = "rank that had not started MPI";

/// Lines of its log that are looked at, and that are quoted.
const TAIL_LINES: usize = 60;
const QUOTED_LINES: usize = 3;
/// A quotation is cut here.
const QUOTED_CHARACTERS_MAX: usize = 400;

/// A process, in the names of its files below `RUN/logs`.
pub fn name_of(attempt: u32, host: &str, pid: u32) -> String {
    match std::env::var_os(variables::NODES) {
        Some(_) => format!("attempt-{attempt}-{host}-pid-{pid}"),
        None => format!("attempt-{attempt}-pid-{pid}"),
    }
}

/// The file below `RUN/logs`.
pub fn file_name(attempt: u32, host: &str, pid: u32) -> String {
    format!("{}.end", name_of(attempt, host, pid))
}

/// The file below `RUN/logs` of a world that was killed whole, on purpose.
pub fn world_name(attempt: u32) -> String {
    format!("attempt-{attempt}.end")
}

/// Adds a line. Best effort: a full disk must not keep a hung rank alive.
pub fn leave(path: &Path, key: &str, text: &str) {
    let file = std::fs::File::options().create(true).append(true).open(path);
    let line = format!("{key}: {}\n", text.replace('\n', " "));
    let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
    if let Err(error) = written {
        tracing::warn!("{}: {error}", path.shown());
    }
}

/// Files of a folder with a verdict that begins with `text`.
pub fn verdicts_beginning(folder: &Path, text: &str) -> usize {
    let line = format!("{VERDICT}: {text}");
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let ends = entries.flatten().filter(|entry| entry.path().extension() == Some("end".as_ref()));
    ends.filter(|entry| {
        let body = std::fs::read_to_string(entry.path()).unwrap_or_default();
        body.lines().any(|words| words.starts_with(&line))
    })
    .count()
}

/// Whether a file says how its process ended.
pub fn tells(body: &str) -> bool {
    let says = |key: &str, line: &str| line.strip_prefix(key).is_some_and(|r| r.starts_with(':'));
    body.lines().any(|line| says(VERDICT, line) || says(STATUS, line))
}

/// How a process ended, by a file that says so.
pub fn status(body: &str) -> Option<&str> {
    last(body, STATUS)
}

/// Whether a file says why somebody ended its process on purpose.
pub fn has_verdict(body: &str) -> bool {
    last(body, VERDICT).is_some()
}

/// The rank whose process ended before MPI had started, by a file that says that it ended.
pub fn unmet(body: &str) -> Option<u32> {
    tells(body).then(|| last(body, UNMET)?.parse().ok()).flatten()
}

/// The newest line under a key.
fn last<'a>(body: &'a str, key: &str) -> Option<&'a str> {
    body.lines().rev().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "))
}

/// What is known of an end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Evidence {
    /// "injected kill in_all_reduce".
    pub injected: Option<String>,
    /// The body of its file, empty if there is none.
    pub last_words: String,
    /// The end of its log.
    pub log: String,
}

/// One line for a person: who or what ended the process.
pub fn cause(evidence: &Evidence) -> String {
    let word = |key: &str| last(&evidence.last_words, key).map(str::to_owned);
    let (verdict, status) = (word(VERDICT), word(STATUS));
    // Who was killed by its guardian died of what the guardian saw, not of the signal.
    let end = match (verdict, word(MEMORY)) {
        (Some(verdict), _) => Some(verdict),
        (None, Some(memory)) => Some(match status {
            Some(status) => format!("{memory}; {status}"),
            None => memory,
        }),
        (None, None) => status,
    };
    let quoted = quote(&evidence.log).map(|quoted| format!("its log says: {quoted}"));
    let known: Vec<String> =
        [evidence.injected.clone(), end, quoted].into_iter().flatten().collect();
    if known.is_empty() {
        return "ended without a trace: no guardian saw it and its log does not say why".into();
    }
    known.join("; ")
}

/// Whether a cause is that memory was short.
pub fn is_out_of_memory(cause: &str) -> bool {
    cause.contains(OUT_OF_MEMORY)
}

/// Where in a log a death begins: behind it MPI's own backtrace may follow.
const TELLING: [&str; 4] = ["panicked", "ERROR", "memory allocation of", "error:"];

/// What this program warned of before is no reason to die of: its own word has another level.
const WARNED: &str = " WARN ";

/// What RUST_BACKTRACE adds behind a reason.
const BACKTRACE: &str = "stack backtrace:";

fn quote(log: &str) -> Option<String> {
    let log = log.rfind(BACKTRACE).map_or(log, |at| &log[..at]);
    let lines = log.lines().map(str::trim);
    let lines: Vec<&str> =
        lines.filter(|line| !line.is_empty() && !line.contains(WARNED)).collect();
    let tail = &lines[lines.len().saturating_sub(TAIL_LINES)..];
    let telling = tail.iter().position(|line| TELLING.iter().any(|word| line.contains(word)));
    let from = telling.unwrap_or(tail.len().saturating_sub(QUOTED_LINES));
    let quoted: Vec<&str> = tail[from..].iter().copied().take(QUOTED_LINES).collect();
    let text: String = quoted.join(" | ").chars().take(QUOTED_CHARACTERS_MAX).collect();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evidence(injected: Option<&str>, last_words: &str, log: &str) -> Evidence {
        let injected = injected.map(str::to_owned);
        Evidence { injected, last_words: last_words.into(), log: log.into() }
    }

    #[test]
    fn a_cause_says_what_each_witness_saw() {
        for (evidence, expected) in [
            (evidence(None, "status: signal 9 (SIGKILL)\n", ""), "signal 9 (SIGKILL)"),
            (
                evidence(None, "verdict: stopped: no beat\nstatus: signal 9 (SIGKILL)\n", ""),
                "stopped: no beat",
            ),
            (
                evidence(Some("injected exit"), "status: exit code 0\n", ""),
                "injected exit; exit code 0",
            ),
            (
                evidence(None, "status: signal 9\nmemory: the OOM killer struck\n", ""),
                "the OOM killer struck; signal 9",
            ),
            (
                evidence(None, "", "thread 'main' panicked\n\n  at x\n"),
                "its log says: thread 'main' panicked | at x",
            ),
        ] {
            assert_eq!(cause(&evidence), expected);
        }
        assert!(cause(&Evidence::default()).contains("without a trace"));
    }

    #[test]
    fn a_long_log_is_quoted_by_its_end_only() {
        let log: String = (0..100).map(|n| format!("line {n} {}\n", "x".repeat(300))).collect();
        let text = cause(&evidence(None, "", &log));
        assert!(text.contains("line 97") && !text.contains("line 96"), "{text}");
        let log = "a\nthread 'w' panicked at x\nwhy\nnote\n[host:1] *** signal ***\n[host:1] end\n";
        let text = cause(&evidence(None, "", log));
        assert_eq!(text, "its log says: thread 'w' panicked at x | why | note");
        let log = "2026-01-01T00:00:00Z  WARN to act on: nothing is staged\nfree(): invalid size\n";
        assert_eq!(cause(&evidence(None, "", log)), "its log says: free(): invalid size");
        let frames: String = (0..40).map(|n| format!("  {n}: frame\n")).collect();
        let log = format!("memory allocation of 9 bytes failed\nstack backtrace:\n{frames}");
        let text = cause(&evidence(None, "", &log));
        assert_eq!(text, "its log says: memory allocation of 9 bytes failed");
        assert!(text.chars().count() < QUOTED_CHARACTERS_MAX + 50);
    }

    #[test]
    fn words_are_added_line_by_line_and_a_missing_folder_is_no_disaster() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(file_name(1, "here", 42));
        leave(&path, VERDICT, "two\nlines");
        leave(&path, STATUS, "exit code 3");
        let body = std::fs::read_to_string(&path).unwrap();
        assert_eq!(body, "verdict: two lines\nstatus: exit code 3\n");
        assert!(tells(&body) && !tells("") && !tells("memory: full\n"));
        assert_eq!(verdicts_beginning(folder.path(), "two"), 1);
        assert_eq!(verdicts_beginning(folder.path(), "lines"), 0);
        leave(Path::new("/no/such/folder/x.end"), STATUS, "exit code 3");
    }
}
