//! What operators look at: TensorBoard's files, and the status of a run as it goes on.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::fixture::{Answer, Story, write_run};
use kintsugi::observe::event::Event;
use kintsugi::observe::log::read_events;
use kintsugi::observe::tensorboard::record::masked_crc32c;
use kintsugi::observe::tensorboard::{FOLDER, Tensorboard};

fn run_of(out: &Path, answer: Answer) -> (PathBuf, Vec<Event>) {
    let (seconds, evaluations, step_seconds) = (12.0, 12, 0.11);
    let story = Story { arm: "quick", answer, seed: 3, seconds, evaluations, step_seconds };
    let folder = write_run(out, story);
    let events = read_events(&folder.join("events.jsonl")).unwrap();
    (folder, events)
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder.join(FOLDER)).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// The bodies of a file's records; every checksum must hold and nothing may be left over.
fn records(path: &Path) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(path).unwrap();
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let mut records = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let length = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
        assert_eq!(word(at + 8), masked_crc32c(&bytes[at..at + 8]));
        let body = &bytes[at + 12..at + 12 + length];
        assert_eq!(word(at + 12 + length), masked_crc32c(body));
        records.push(body.to_vec());
        at += 16 + length;
    }
    records
}

/// A protobuf message's fields: number, and its bytes or its number.
fn fields(mut message: &[u8]) -> Vec<(u64, Vec<u8>, u64)> {
    fn varint(message: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = message.split_first().unwrap();
            *message = rest;
            value |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                break;
            }
        }
        value
    }
    let mut fields = Vec::new();
    while !message.is_empty() {
        let key = varint(&mut message);
        let (length, number) = match key & 7 {
            0 => (0, varint(&mut message)),
            1 => (8, 0),
            2 => (varint(&mut message) as usize, 0),
            5 => (4, 0),
            other => panic!("wire type {other}"),
        };
        let (content, rest) = message.split_at(length);
        message = rest;
        fields.push((key >> 3, content.to_vec(), number));
    }
    fields
}

/// (tag, step, value) of all scalars, in order.
fn scalars(path: &Path) -> Vec<(String, u64, f32)> {
    let mut all = Vec::new();
    for record in records(path) {
        let event = fields(&record);
        let step = event.iter().find(|field| field.0 == 2).unwrap().2;
        for (_, summary, _) in event.iter().filter(|field| field.0 == 5) {
            for (_, value, _) in fields(summary) {
                let value = fields(&value);
                let tag = String::from_utf8(value[0].1.clone()).unwrap();
                let number = f32::from_le_bytes(value[1].1.as_slice().try_into().unwrap());
                all.push((tag, step, number));
            }
        }
    }
    all
}

/// The steps from which readers are told to forget.
fn session_starts(path: &Path) -> Vec<u64> {
    let events = records(path).into_iter().map(|record| fields(&record));
    let starts = events.filter(|event| event.iter().any(|field| field.0 == 7));
    starts.map(|event| event.iter().find(|field| field.0 == 2).unwrap().2).collect()
}

#[test]
fn the_scalars_of_a_run_can_be_read_back() {
    let out = tempfile::tempdir().unwrap();
    let (folder, events) = run_of(out.path(), Answer::Respawn);
    // As a run that begins: the log is still empty.
    let story = folder.join("events.jsonl");
    std::fs::rename(&story, folder.join("later")).unwrap();
    let mut tensorboard = Tensorboard::new(&folder);
    events.iter().for_each(|event| tensorboard.on(event));
    let files = files(&folder);
    assert_eq!(files.len(), 1);
    let name = files[0].file_name().unwrap().to_str().unwrap();
    assert!(name.starts_with("events.out.tfevents."), "{name}");
    assert!(records(&files[0])[0].windows(13).any(|part| part == b"brain.Event:2"));
    let scalars = scalars(&files[0]);
    let of = |tag: &str| -> Vec<(u64, f32)> {
        scalars.iter().filter(|s| s.0 == tag).map(|s| (s.1, s.2)).collect()
    };
    for tag in ["train/loss", "train/learning_rate", "validation/error", "time/step_seconds"] {
        assert!(of(tag).len() > 5, "{tag}");
    }
    assert!(of("time/step_seconds").iter().all(|point| (0.05..0.3).contains(&point.1)));
    assert_eq!(of("world/recoveries").last().unwrap().1, 1.0);
    assert_eq!(of("recovery/seconds").len(), 1);
    assert!(of("train/loss").is_sorted_by_key(|point| point.0));
}

#[test]
fn a_start_writes_a_file_of_its_own_and_takes_lost_steps_back() {
    let out = tempfile::tempdir().unwrap();
    let (folder, events) = run_of(out.path(), Answer::Restart);
    let from = events.iter().position(|event| event.attempt == 2).unwrap();
    let story = folder.join("events.jsonl");
    let body = std::fs::read_to_string(&story).unwrap();
    std::fs::remove_file(&story).unwrap();
    let mut first = Tensorboard::new(&folder);
    events[..from].iter().for_each(|event| first.on(event));
    let before: Vec<&str> = body.lines().take(from).collect();
    std::fs::write(&story, before.join("\n") + "\n").unwrap();
    let mut second = Tensorboard::new(&folder).after_the_past();
    events[from..].iter().for_each(|event| second.on(event));
    let files = files(&folder);
    assert_eq!(files.len(), 2);
    let reached = scalars(&files[0]).last().unwrap().1;
    let forgotten = session_starts(&files[1]);
    assert!(forgotten.iter().any(|step| *step <= reached), "{forgotten:?} of {reached}");
    let counted = scalars(&files[1]);
    let last = |tag: &str| counted.iter().rfind(|scalar| scalar.0 == tag).unwrap().2;
    assert_eq!((last("world/recoveries"), last("world/restarts")), (0.0, 1.0), "as the result");
}

#[test]
fn a_folder_that_cannot_be_made_costs_nothing_but_a_warning() {
    let out = tempfile::tempdir().unwrap();
    let (folder, events) = run_of(out.path(), Answer::Calm);
    std::fs::write(folder.join(FOLDER), "in the way").unwrap();
    let mut tensorboard = Tensorboard::new(&folder);
    events.iter().for_each(|event| tensorboard.on(event));
    assert_eq!(std::fs::read(folder.join(FOLDER)).unwrap(), b"in the way");
}

fn live(run: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kintsugi"));
    command.args(["status", "--live"]).arg(run).stdin(Stdio::null());
    command
}

#[test]
fn a_live_view_without_a_terminal_prints_lines_and_ends_with_the_run() {
    let out = tempfile::tempdir().unwrap();
    let (folder, _) = run_of(out.path(), Answer::Respawn);
    // Still under way when the view begins.
    let result = std::fs::read(folder.join("result.json")).unwrap();
    std::fs::remove_file(folder.join("result.json")).unwrap();
    let world = format!(
        r#"{{"attempt":1,"generation":1,"members":[{{"member":0,"rank":0,"role":"active",
            "pid":{},"host":"{}","node":0}}]}}"#,
        std::process::id(),
        kintsugi_ffi::os::hostname()
    );
    std::fs::write(folder.join("world.json"), world).unwrap();
    let mut view = live(&folder).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = BufReader::new(view.stdout.take().unwrap());
    let mut text = String::new();
    stdout.read_line(&mut text).unwrap();
    std::fs::write(folder.join("result.json"), result).unwrap();
    stdout.read_to_string(&mut text).unwrap();
    assert_eq!(view.wait().unwrap().code(), Some(0), "{text}");
    assert!(text.starts_with("running  step "), "{text}");
    assert!(text.contains("1 recoveries") && text.contains("completed"), "{text}");
    assert!(!text.contains('\x1b'), "{text}");
}

/// Runs a command on a terminal of so many rows, and prints what the terminal was given.
const ON_A_TERMINAL: &str = "
import fcntl, os, pty, struct, sys, termios
child, terminal = pty.fork()
if child == 0:
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack('HHHH', int(sys.argv[1]), 80, 0, 0))
    os.execv(sys.argv[2], sys.argv[2:])
while True:
    try:
        given = os.read(terminal, 65536)
    except OSError:
        break
    if not given:
        break
    os.write(1, given)
os.waitpid(child, 0)
";

/// What `status --live` of a finished run with 40 members draws.
fn drawn(run: &Path, kind: &str, rows: &str) -> String {
    let mut command = Command::new("python3");
    command.args(["-c", ON_A_TERMINAL, rows, env!("CARGO_BIN_EXE_kintsugi")]);
    command.args(["status", "--live"]).arg(run).env("TERM", kind);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_live_view_fits_its_terminal_and_draws_on_none_that_is_dumb() {
    let out = tempfile::tempdir().unwrap();
    let (folder, _) = run_of(out.path(), Answer::Respawn);
    let member = |rank: u32| {
        format!(r#"{{"member":{rank},"rank":{rank},"role":"active","pid":1,"host":"h","node":0}}"#)
    };
    let members = (0..40).map(member).collect::<Vec<_>>().join(",");
    let world = format!(r#"{{"attempt":1,"generation":1,"members":[{members}]}}"#);
    std::fs::write(folder.join("world.json"), world).unwrap();
    for (rows, lines) in [("10", 9), ("20", 19), ("3", 2)] {
        let text = drawn(&folder, "xterm", rows);
        assert_eq!(text.matches('\n').count(), lines, "{rows} rows: {text}");
        assert!(text.contains('\x1b') && text.contains(" more"), "{text}");
    }
    let text = drawn(&folder, "dumb", "10");
    assert!(!text.contains('\x1b') && text.contains("member 39: rank 39"), "{text}");
}

#[test]
fn a_live_view_of_no_run_says_so() {
    let out = tempfile::tempdir().unwrap();
    let output = live(out.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("holds no run"));
}
