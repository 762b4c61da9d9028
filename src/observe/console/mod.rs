//! The one place that writes to stdout and stderr (`tests/tidy.rs` forbids others). Nobody is
//! obliged to read them: a closed pipe, a full disk, a terminal that is gone or stopped cost the
//! words, never the work.
//!
//! `say!` tells a person something on stderr, `tell!` on stdout, beside the work. `print_line!` is
//! a command's result on stdout: the reader sets the pace, and `conclude` judges a lost one.

use std::fmt;
use std::io::{self, ErrorKind, IsTerminal};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};

use outlet::{Outlet, Pace};

pub mod bar;
mod outlet;

/// Stdout of this process.
#[derive(Debug)]
struct Stream {
    outlet: Outlet,
    /// The first error that lost a part of a result.
    lost: Option<io::Error>,
}

static OUTPUT: Mutex<Stream> = Mutex::new(Stream { outlet: Outlet::new(), lost: None });
static ERRORS: Mutex<Outlet> = Mutex::new(Outlet::new());

/// A thread that panicked while it wrote left counts that are whole.
fn hold<T>(stream: &Mutex<T>) -> MutexGuard<'_, T> {
    stream.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A line for people, on stderr.
macro_rules! say {
    ($($text:tt)*) => { $crate::observe::console::error_line(::std::format_args!($($text)*)) };
}

/// A line for people, on stdout, beside the work.
macro_rules! tell {
    ($($text:tt)*) => { $crate::observe::console::note_line(::std::format_args!($($text)*)) };
}

/// A line of a command's result, on stdout.
macro_rules! print_line {
    ($($text:tt)*) => { $crate::observe::console::result_line(::std::format_args!($($text)*)) };
}

pub(crate) use {print_line, say, tell};

/// See `say!`.
pub fn error_line(line: fmt::Arguments<'_>) {
    write_errors(&format!("{line}\n"));
}

/// See `tell!`.
pub fn note_line(line: fmt::Arguments<'_>) {
    write_output(&format!("{line}\n"), Pace::Work);
}

/// See `print_line!`.
pub fn result_line(line: fmt::Arguments<'_>) {
    write_output(&format!("{line}\n"), Pace::Reader);
}

/// A part of a command's result that has its ends of lines.
pub fn print_text(text: &str) {
    write_output(text, Pace::Reader);
}

/// Whether stdout took all that it was given.
pub fn output_is_open() -> bool {
    hold(&OUTPUT).lost.is_none()
}

/// Whether a person sees stdout, on a terminal that can be drawn on.
pub fn output_is_a_screen() -> bool {
    io::stdout().is_terminal() && can_be_drawn_on()
}

/// Rows and columns of the terminal at stdout.
pub fn output_size() -> (u16, u16) {
    ::console::Term::stdout().size()
}

/// The same of stderr.
pub fn errors_are_a_screen() -> bool {
    io::stderr().is_terminal() && can_be_drawn_on()
}

/// What the terminal says of itself. One that says nothing, or is dumb, gets plain lines: no bar,
/// no colours.
fn can_be_drawn_on() -> bool {
    std::env::var_os("TERM").is_some_and(|kind| kind != "dumb")
}

/// The exit code of a command whose result is what it prints. A reader that closed the pipe has
/// read what it wanted: the code stays. A result that was lost (a full disk) is a failure.
pub fn conclude(code: ExitCode) -> ExitCode {
    let lost = hold(&OUTPUT).lost.take();
    match lost {
        Some(error) if error.kind() != ErrorKind::BrokenPipe => {
            say!("error: stdout: {error}; the output is not whole: write it elsewhere");
            if code == ExitCode::SUCCESS { ExitCode::FAILURE } else { code }
        }
        _ => code,
    }
}

/// Where `tracing` writes: an error of stderr is not its concern, nor that of who logs.
#[derive(Debug, Clone, Copy, Default)]
pub struct Diagnostics;

impl io::Write for Diagnostics {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        write_errors(&String::from_utf8_lossy(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_output(text: &str, pace: Pace) {
    let stdout = io::stdout();
    let mut stream = hold(&OUTPUT);
    // Nobody is there any more, or a part is missing already.
    if stream.lost.is_some() {
        return;
    }
    if let Err(error) = stream.outlet.write(stdout.as_fd(), text, pace)
        && (pace == Pace::Reader || error.kind() == ErrorKind::BrokenPipe)
    {
        stream.lost = Some(error);
    }
}

fn write_errors(text: &str) {
    // There is nobody left to be told of an error.
    let _ = hold(&ERRORS).write(io::stderr().as_fd(), text, Pace::Work);
}

/// The last words of a thread that panics: it may have been within this file.
pub(super) fn last_words(text: &str) {
    let stderr = io::stderr();
    let _ = match ERRORS.try_lock() {
        Ok(mut outlet) => outlet.write(stderr.as_fd(), text, Pace::Work),
        Err(_) => Outlet::new().write(stderr.as_fd(), text, Pace::Work),
    };
}
