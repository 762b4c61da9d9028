//! The rules of the house that no compiler checks: which room imports which, how long functions
//! and files are, where unsafe code lives, what must not stay in the source. Each rule is a
//! function of a file's text, and each is tried on a planted breach.

#![allow(clippy::unwrap_used, reason = "a test stops at its first surprise")]

use std::path::{Path, PathBuf};

#[path = "tidy/circles.rs"]
mod circles;
#[path = "tidy/imports.rs"]
mod imports;
#[path = "tidy/repair_path.rs"]
mod repair_path;
#[path = "tidy/words.rs"]
mod words;

/// The rooms; each imports only itself and those before it.
const ROOMS: [&str; 12] = [
    "config",
    "observe",
    "run_folder",
    "cluster",
    "model",
    "data",
    "engine",
    "needs",
    "train",
    "launch",
    "lab",
    "cli",
];

/// Two rooms that stand beside each other: neither imports the other. A rank needs no supervisor.
const BESIDE: [&str; 2] = ["train", "launch"];

const FUNCTION_LINES_MAX: usize = 70;
const FILE_LINES_MAX: usize = 500;
const COLUMNS_MAX: usize = 100;

/// What must not stay; split, so that this file does not name itself.
const BANNED: [&str; 6] = [
    concat!("to", "do!("),
    concat!("unimple", "mented!("),
    concat!("db", "g!("),
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X "),
];

/// The one place that writes to stdout and stderr, and survives what may have become of them.
const CONSOLE: &str = "src/observe/console";

/// What writes to them elsewhere, and panics where they are closed, full or gone.
const WRITERS: [&str; 7] =
    ["print!", "println!", "eprint!", "eprintln!", "stdout()", "stderr()", "ProgressDrawTarget"];

/// Split for the same reason.
const UNSAFE: &str = concat!("un", "safe");

/// A source file: its path from the project's root, with `/`.
struct Source {
    path: String,
    text: String,
}

impl Source {
    fn planted(path: &str, text: &str) -> Self {
        Self { path: path.into(), text: text.into() }
    }

    /// Lines without comments, with their numbers from 1.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(at, line)| {
            let code = line.find("//").map_or(line, |comment| &line[..comment]);
            (at + 1, code)
        })
    }
}

/// `word` as a whole word: `_` is part of words.
fn has_word(line: &str, word: &str) -> bool {
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(part_of_word) && !after.is_some_and(part_of_word)
    })
}

/// `call` where a name begins: `println!` is no `print_line!`, and no `eprintln!`.
fn has_start(line: &str, call: &str) -> bool {
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(call)
        .any(|(at, _)| !line[..at].chars().next_back().is_some_and(part_of_word))
}

/// The room of a file of the library: `src/config/mod.rs` -> `config`.
fn room_of(path: &str) -> Option<usize> {
    let rest = path.strip_prefix("src/")?;
    let name = rest.split(['/', '.']).next()?;
    ROOMS.iter().position(|room| *room == name)
}

/// Rooms that a line names as `crate::room` or in `crate::{room, ...}`.
fn rooms_named(line: &str) -> Vec<usize> {
    let mut rooms = Vec::new();
    for start in ["crate::", "kintsugi::"] {
        for (at, _) in line.match_indices(start) {
            let rest = &line[at + start.len()..];
            let named = |name: &str| {
                let name = name.trim().split(|c: char| !(c.is_alphanumeric() || c == '_')).next();
                ROOMS.iter().position(|room| Some(*room) == name)
            };
            match rest.strip_prefix('{') {
                Some(group) => rooms.extend(group.split(',').filter_map(named)),
                None => rooms.extend(named(rest)),
            }
        }
    }
    rooms
}

fn layer_breaches(source: &Source) -> Vec<String> {
    let Some(own) = room_of(&source.path) else { return Vec::new() };
    // Modules above the file: src/cluster/comm/solo.rs is cluster::comm::solo.
    let inner = source.path.trim_start_matches("src/").trim_end_matches(".rs");
    let depth = inner.trim_end_matches("/mod").split('/').count();
    let mut breaches = Vec::new();
    let mut nested = 0;
    for (number, line) in source.code() {
        for room in rooms_named(line) {
            let (name, other) = (ROOMS[own], ROOMS[room]);
            let beside = room != own && BESIDE.contains(&name) && BESIDE.contains(&other);
            if room <= own && !beside {
                continue;
            }
            breaches.push(format!("{}:{number}: {name} imports {other}", source.path));
        }
        nested += usize::from(has_word(line, "mod") && line.trim_end().ends_with('{'));
        if line.contains(&"super::".repeat(depth + nested)) {
            breaches.push(format!("{}:{number}: leaves its room by super", source.path));
        }
    }
    breaches
}

/// Names and lengths of a formatted file's functions: from `fn` to the brace that closes it at the
/// same indentation.
fn functions(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let indent = &line[..line.len() - code.len()];
        let before_name = code.split_once("fn ").filter(|(before, _)| {
            let qualifiers = ["pub", "const", "async", UNSAFE, "extern", "\"C\""];
            let known = |word: &str| qualifiers.contains(&word) || word.starts_with("pub(");
            before.split_whitespace().all(known) && (before.is_empty() || before.ends_with(' '))
        });
        let Some((_, rest)) = before_name else { continue };
        let name = rest.split(['(', '<']).next().unwrap_or_default().to_owned();
        let closing = format!("{indent}}}");
        let end = lines[at..].iter().position(|line| {
            let same_level = line.starts_with(indent) && !line[indent.len()..].starts_with(' ');
            *line == closing || (same_level && (line.ends_with(';') || line.ends_with("}")))
        });
        if let Some(end) = end {
            found.push((name, end + 1));
        }
    }
    found
}

fn size_breaches(source: &Source) -> Vec<String> {
    let mut breaches = Vec::new();
    let length = source.text.lines().count();
    if length > FILE_LINES_MAX {
        breaches.push(format!("{}: {length} lines, {FILE_LINES_MAX} at most", source.path));
    }
    for (name, length) in functions(&source.text) {
        if length > FUNCTION_LINES_MAX {
            let limit = FUNCTION_LINES_MAX;
            breaches
                .push(format!("{}: fn {name} has {length} lines, {limit} at most", source.path));
        }
    }
    for (at, line) in source.text.lines().enumerate() {
        let columns = line.chars().count();
        if columns > COLUMNS_MAX {
            let limit = COLUMNS_MAX;
            breaches.push(format!(
                "{}:{}: {columns} columns, {limit} at most",
                source.path,
                at + 1
            ));
        }
    }
    breaches
}

fn content_breaches(source: &Source) -> Vec<String> {
    let mut breaches = Vec::new();
    if !source.text.starts_with("//! ") {
        breaches.push(format!("{}: does not open with `//!` on what it is for", source.path));
    }
    for (at, line) in source.text.lines().enumerate() {
        for banned in BANNED.iter().filter(|banned| line.contains(**banned)) {
            breaches.push(format!("{}:{}: `{banned}` must not stay", source.path, at + 1));
        }
    }
    let in_ffi = source.path.starts_with("ffi/");
    for (number, line) in source.code() {
        if !in_ffi && has_word(line, UNSAFE) {
            breaches.push(format!("{}:{number}: {UNSAFE} code outside ffi/", source.path));
        }
        let of_library = in_ffi || source.path.starts_with("src/engine/cpu/");
        if !of_library && has_word(line, concat!("dn", "nl")) {
            breaches.push(format!("{}:{number}: oneDNN outside engine/cpu", source.path));
        }
        let shows = source.path.starts_with("src/") && source.path != "src/config/shown.rs";
        if shows && line.contains(concat!(".dis", "play()")) {
            breaches.push(format!(
                "{}:{number}: a path is shown as it is; write .shown() (config/shown.rs)",
                source.path
            ));
        }
        let silent = source.path.starts_with("src/") && !source.path.starts_with(CONSOLE);
        for writer in WRITERS.iter().filter(|writer| silent && has_start(line, writer)) {
            breaches.push(format!("{}:{number}: `{writer}` outside {CONSOLE}", source.path));
        }
        let in_wire = source.path == "src/train/checkpoint/wire.rs";
        if source.path.starts_with("src/") && !in_wire && line.contains(concat!("bin", "code::")) {
            breaches.push(format!("{}:{number}: bincode outside checkpoint/wire.rs", source.path));
        }
    }
    let stem = Path::new(&source.path).file_stem().unwrap_or_default();
    if ["util", "utils", "common", "helpers", "misc"].iter().any(|name| stem == *name) {
        breaches.push(format!("{}: a name that says nothing", source.path));
    }
    breaches
}

fn breaches(source: &Source) -> Vec<String> {
    [layer_breaches(source), size_breaches(source), content_breaches(source)].concat()
}

/// Every Rust file of the repository.
fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders: Vec<PathBuf> =
        ["src", "ffi", "tests", "benches", "examples"].map(|name| root.join(name)).to_vec();
    let mut sources = Vec::new();
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("target") {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                let path = path.strip_prefix(root).unwrap().display().to_string();
                sources.push(Source { path, text });
            }
        }
    }
    assert!(sources.len() > 40, "only {} files found", sources.len());
    sources
}

#[test]
fn the_house_is_tidy() {
    let breaches: Vec<String> = sources().iter().flat_map(breaches).collect();
    assert!(breaches.is_empty(), "{} breaches:\n{}", breaches.len(), breaches.join("\n"));
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text_of = |path: &str| std::fs::read_to_string(root.join(path)).ok();
    let roots = ["src/lib.rs", "ffi/src/lib.rs"];
    assert!(roots.iter().all(|root| text_of(root).is_some()));
    let breaches: Vec<String> =
        roots.iter().flat_map(|root| circles::circle_breaches(root, &text_of)).collect();
    assert!(breaches.is_empty(), "{} circles:\n{}", breaches.len(), breaches.join("\n"));
}

#[test]
fn no_rooms_import_each_other_in_a_circle() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text_of = |path: &str| std::fs::read_to_string(root.join(path)).ok();
    let breaches = circles::room_circle_breaches("src/lib.rs", &text_of);
    assert!(breaches.is_empty(), "{} circles:\n{}", breaches.len(), breaches.join("\n"));
}

#[test]
fn no_c_files_call_each_other_in_a_circle() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("ulfm-shim");
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files: Vec<(String, String)> = paths
        .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
        .map(|path| (path.display().to_string(), std::fs::read_to_string(path).unwrap()))
        .collect();
    assert!(files.len() > 5, "only {} files found", files.len());
    let breaches = circles::c_circle_breaches(&files);
    assert!(breaches.is_empty(), "{} circles:\n{}", breaches.len(), breaches.join("\n"));
}

#[test]
fn what_happens_when_a_rank_dies_is_read_in_few_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text_of = |path: &str| std::fs::read_to_string(root.join(path)).ok();
    let breaches = repair_path::breaches(&text_of("ARCHITECTURE.md").unwrap(), &text_of);
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
}

#[test]
fn the_table_of_rooms_is_the_librarys() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/src/lib.rs")).unwrap();
    let rooms: Vec<&str> =
        text.lines().filter_map(|l| l.strip_prefix("pub mod ")?.strip_suffix(';')).collect();
    assert_eq!(rooms, ROOMS);
}

#[track_caller]
fn assert_caught(path: &str, text: &str, expected: &str) {
    let breaches = breaches(&Source::planted(path, text));
    assert!(breaches.iter().any(|b| b.contains(expected)), "`{expected}` not in {breaches:?}");
}

const OPENING: &str = "//! A planted file.\n";

#[test]
fn an_import_to_the_right_is_caught() {
    let planted = |code: &str| format!("{OPENING}{code}\n");
    for code in ["use crate::train::Trainer;", "use crate::{config, train};"] {
        assert_caught("src/cluster/world.rs", &planted(code), "cluster imports train");
    }
    let code = planted("fn f() -> crate::cli::Args {}");
    assert_caught("src/config/mod.rs", &code, "config imports cli");
    let code = planted("use crate::train::position::Position;");
    assert_caught("src/launch/ending/verdict.rs", &code, "launch imports train");
    let code = planted("use crate::launch::ending::verdict;");
    assert_caught("src/train/run.rs", &code, "train imports launch");
    let code = planted("use super::super::train;");
    assert_caught("src/cluster/world.rs", &code, "leaves its room");
    let fine = planted("use crate::config::Config;\n// crate::train is not ours\n");
    assert!(breaches(&Source::planted("src/cluster/world.rs", &fine)).is_empty());
}

#[test]
fn long_things_are_caught() {
    let body = |lines: usize| "        let x = 1;\n".repeat(lines);
    let function =
        |lines| format!("{OPENING}pub fn long(\n    a: u8,\n) -> u8 {{\n{}}}\n", body(lines));
    assert_caught("src/config/a.rs", &function(FUNCTION_LINES_MAX - 3), "fn long has 71 lines");
    let fine = Source::planted("src/config/a.rs", &function(FUNCTION_LINES_MAX - 4));
    assert!(breaches(&fine).is_empty(), "{:?}", breaches(&fine));
    let method = format!("{OPENING}impl A {{\n    fn m() {{\n{}    }}\n}}\n", body(90));
    assert_caught("src/config/a.rs", &method, "fn m has 92 lines");
    let file = format!("{OPENING}{}", "\n".repeat(FILE_LINES_MAX));
    assert_caught("src/config/a.rs", &file, "501 lines");
    assert_caught("src/config/a.rs", &format!("{OPENING}// {}", "é".repeat(98)), "101 columns");
    // A declaration has no body; what follows it is not its own.
    let declared =
        format!("{OPENING}trait T {{\n    fn f(\n        a: u8,\n    ) -> u8;\n{}}}\n", body(90));
    assert!(breaches(&Source::planted("src/config/a.rs", &declared)).is_empty());
}

#[test]
fn unsafe_code_leftovers_and_silent_files_are_caught() {
    let word = UNSAFE;
    let code = format!("{OPENING}fn f() {{ {word} {{ g() }} }}\n");
    assert_caught("src/config/a.rs", &code, "outside ffi/");
    assert!(breaches(&Source::planted("ffi/src/a.rs", &code)).is_empty());
    let code = format!("{OPENING}use kintsugi_ffi::{};\n", concat!("dn", "nl"));
    assert_caught("src/engine/mod.rs", &code, "oneDNN outside engine/cpu");
    assert!(breaches(&Source::planted("src/engine/cpu/a.rs", &code)).is_empty());
    let lint = format!("{OPENING}#![deny({word}_code)]\n// {word} is fine here\n");
    assert!(breaches(&Source::planted("src/config/a.rs", &lint)).is_empty());
    for banned in BANNED {
        assert_caught("src/config/a.rs", &format!("{OPENING}{banned}\n"), "must not stay");
    }
    assert_caught("src/config/a.rs", "use std::fmt;\n", "does not open");
    assert_caught("src/config/utils.rs", OPENING, "says nothing");
    let code = format!("{OPENING}fn f() {{ g(path{}) }}\n", concat!(".dis", "play()"));
    assert_caught("src/config/a.rs", &code, "write .shown()");
    for writer in ["println!(\"x\")", "eprint!()", "std::io::stderr().lock()", "io::stdout()"] {
        let code = format!("{OPENING}fn f() {{ let _ = {writer}; }}\n");
        assert_caught("src/config/a.rs", &code, "outside src/observe/console");
        assert!(breaches(&Source::planted("src/observe/console/mod.rs", &code)).is_empty());
    }
    let fine = format!("{OPENING}fn f() {{ print_line!(\"x\"); command.stdout(log); }}\n");
    assert!(breaches(&Source::planted("src/config/a.rs", &fine)).is_empty());
    let code = format!("{OPENING}{}\n", concat!("use bin", "code::serialize;"));
    assert_caught("src/config/a.rs", &code, "checkpoint/wire.rs");
}
