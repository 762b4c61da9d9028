//! The command line: one file per subcommand.

pub mod data;
pub mod checkpoint;

/// Parses, runs, returns the exit code.
pub fn main() -> std::process::ExitCode {
    std::process::ExitCode::SUCCESS
}
