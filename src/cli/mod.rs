//! The command line: one file per subcommand.

pub mod model;

/// Parses, runs, returns the exit code.
pub fn main() -> std::process::ExitCode {
    std::process::ExitCode::SUCCESS
}
