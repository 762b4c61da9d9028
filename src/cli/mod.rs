//! The command line: one file per subcommand.

use std::process::ExitCode;

use clap::Parser;

pub mod bench;
pub mod checkpoint;
pub mod data;
pub mod train;

/// A fault-tolerant MPI data-parallel trainer: runs with failures end with the same bits.
#[derive(Debug, Parser)]
#[command(name = "kintsugi", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Train(train::Args),
    Checkpoint(checkpoint::Args),
    Data(data::Args),
    Bench(bench::Args),
}

/// Parses, runs, returns the exit code.
pub fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(tracing::Level::WARN).init();
    match &Cli::parse().command {
        Command::Train(args) => train::run(args),
        Command::Checkpoint(args) => checkpoint::run(args),
        Command::Data(args) => data::run(args),
        Command::Bench(args) => bench::run(args),
    }
}
