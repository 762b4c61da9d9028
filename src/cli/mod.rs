//! The command line: one file per subcommand.

pub mod experiment;
pub mod report;
pub mod audit;
pub mod status;

/// Parses, runs, returns the exit code.
pub fn main() -> std::process::ExitCode {
    std::process::ExitCode::SUCCESS
}
