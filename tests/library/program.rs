//! The program, and what it printed.

use std::process::{Command, Output, Stdio};

pub fn kintsugi(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kintsugi"));
    command.args(arguments).stdin(Stdio::null()).output().unwrap()
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Both, what is for people last.
pub fn printed(output: &Output) -> String {
    stdout(output) + &stderr(output)
}
