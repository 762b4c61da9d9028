//! The command line: one file per subcommand, each with its `Args` and `run`.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arguments::fail;
use clap::{CommandFactory, Parser, Subcommand};
use signal_hook::consts::SIGXFSZ;

use crate::observe::console::{self, Diagnostics, say};
use crate::observe::panics;
use crate::observe::result::Status;
use crate::run_folder;

mod agent;
mod arguments;
mod audit;
mod bench;
mod chaos;
pub mod checkpoint;
mod completions;
mod config;
mod copy;
mod data;
mod doctor;
mod evaluate;
mod experiment;
mod guard;
mod init;
mod launch;
mod man;
mod model;
mod predict;
mod probe;
mod report;
mod runs;
mod scale;
mod simulate;
mod start_daemon;
mod status;
mod sweep;
mod train;

/// A fault-tolerant MPI data-parallel trainer: runs with failures end with the same bits.
#[derive(Debug, Parser)]
#[command(name = "kintsugi", version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs one rank's program; alone it is a world of one
    Train(train::Args),
    /// Writes a configuration that trains on a folder of pictures
    Init(init::Args),
    /// Starts the ranks under mpirun and sees the run to its end, whatever dies
    ///
    /// Ctrl-C, SIGTERM or SIGUSR1 ends it with a checkpoint (exit code 85), once more without. A
    /// terminal that closes does not.
    Launch(launch::Args),
    /// Checks that every sample was committed exactly once
    Audit(audit::Args),
    /// Runs arms x seeds of an experiment and reports them
    Experiment(experiment::Args),
    /// Draws runs as one self-contained HTML file
    Report(report::Args),
    /// Lists the runs of a folder, compares two, removes some
    Runs(runs::Args),
    /// Asks a running run for another number of ranks or nodes
    Scale(scale::Args),
    /// Shows how a run stands
    Status(status::Args),
    /// Kills random ranks of a running run, to see that it goes on
    Chaos(chaos::Args),
    /// Lists, verifies, exports and imports checkpoints
    #[command(subcommand)]
    Checkpoint(checkpoint::Args),
    /// Makes and inspects data sets
    #[command(subcommand)]
    Data(data::Args),
    /// Lists the model catalogue and shows a model
    #[command(subcommand)]
    Model(model::Args),
    /// Measures what this machine can do
    #[command(subcommand)]
    Probe(probe::Args),
    /// Plays drawn failures over simulated processes and checks how every run ends
    #[command(subcommand)]
    Simulate(simulate::Args),
    /// Compares two things in one run and prints the ratio
    Bench(bench::Args),
    /// Measures how often a checkpoint is right, class by class
    Evaluate(evaluate::Args),
    /// Says what a checkpoint's model sees in pictures
    Predict(predict::Args),
    /// Says whether recovery works here, and what to do where it does not
    Doctor(doctor::Args),
    /// Says what can be configured, what a key means, and what a run would have
    #[command(subcommand)]
    Config(config::Args),
    /// Prints what makes a shell complete this command line
    Completions(completions::Args),
    /// Prints a manual page
    Man(man::Args),
    /// Watches one rank and kills it when it hangs (started by the rank)
    #[command(hide = true)]
    Guard(guard::Args),
    /// Copies files for one rank (started by the rank)
    #[command(hide = true)]
    Copy(copy::Args),
    /// Speaks for one node of an allocation (started by launch)
    #[command(hide = true)]
    Agent(agent::Args),
    /// Starts one of prterun's daemons on a node (called by prterun)
    #[command(hide = true)]
    StartDaemon(start_daemon::Args),
    /// Ends what an attempt leaves behind (started by launch)
    #[command(hide = true)]
    Sweep(sweep::Args),
}

impl Command {
    /// Run directories that must be there. Paths that may name something else (a checkpoint, an
    /// experiment) are looked at by their commands.
    fn runs(&self) -> Vec<&Path> {
        match self {
            Self::Audit(args) => vec![&args.run],
            Self::Status(args) => vec![&args.run],
            Self::Scale(args) => vec![&args.run],
            Self::Report(args) => args.run_directories(),
            _ => Vec::new(),
        }
    }
}

/// The command line as it is parsed, for who compares it with what is written about it.
pub fn command() -> clap::Command {
    Cli::command()
}

/// Parses, runs, returns the exit code (README, "Exit codes"; usage errors are 2).
pub fn main() -> ExitCode {
    panics::tell_through_the_console();
    file_limits_are_errors();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return explain(&error),
    };
    // The warnings of thousands of simulated runs are no news.
    log_to_stderr(if matches!(cli.command, Command::Simulate(_)) { "off" } else { "warn" });
    let missing = cli.command.runs().into_iter().find_map(|run| run_folder::find(run).err());
    if let Some(missing) = missing {
        return fail(2, missing);
    }
    // A panic of this thread is told by then. Every other exit code is a statement.
    std::panic::catch_unwind(|| run(&cli.command))
        .unwrap_or_else(|_| ExitCode::from(Status::InternalError.exit_code()))
}

/// A file that would exceed `ulimit -f` is an error of the write, as on a full disk, and not the
/// death of the process (SIGXFSZ): a log that grows ends nobody.
fn file_limits_are_errors() {
    let noted = Arc::new(AtomicBool::new(false));
    // Fails for no signal that may be caught; the default is a death.
    let _ = signal_hook::flag::register(SIGXFSZ, noted);
}

fn run(command: &Command) -> ExitCode {
    // Commands whose result is what they print fail where it is lost.
    let printed = match command {
        // What these do does not depend on who listens.
        Command::Train(args) => return train::run(args),
        Command::Launch(args) => return launch::run(args),
        Command::Experiment(args) => return experiment::run(args),
        Command::Chaos(args) => return chaos::run(args),
        Command::Scale(args) => return scale::run(args),
        Command::Guard(args) => return guard::run(args),
        Command::Copy(args) => return copy::run(args),
        Command::Agent(args) => return agent::run(args),
        Command::StartDaemon(args) => return start_daemon::run(args),
        Command::Sweep(args) => return sweep::run(args),
        Command::Init(args) => init::run(args),
        Command::Audit(args) => audit::run(args),
        Command::Report(args) => report::run(args),
        Command::Status(args) => status::run(args),
        Command::Runs(args) => runs::run(args),
        Command::Checkpoint(args) => checkpoint::run(args),
        Command::Data(args) => data::run(args),
        Command::Model(args) => model::run(args),
        Command::Probe(args) => probe::run(args),
        Command::Simulate(args) => simulate::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Evaluate(args) => evaluate::run(args),
        Command::Predict(args) => predict::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Config(args) => config::run(args),
        Command::Completions(args) => completions::run(args, self::command()),
        Command::Man(args) => man::run(args, self::command()),
    };
    console::conclude(printed)
}

/// Prints a usage error on stderr, or help and version on stdout.
fn explain(error: &clap::Error) -> ExitCode {
    let styled = error.render();
    let (terminal, colours) = match error.use_stderr() {
        true => (console::errors_are_a_screen(), ::console::colors_enabled_stderr()),
        false => (console::output_is_a_screen(), ::console::colors_enabled()),
    };
    let text = if terminal && colours { styled.ansi().to_string() } else { styled.to_string() };
    let code = ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
    if error.use_stderr() {
        say!("{}", text.trim_end_matches('\n'));
        return code;
    }
    console::print_text(&text);
    console::conclude(code)
}

/// Diagnostics go to stderr, filtered as `RUST_LOG` says, and by `default` where it says nothing.
fn log_to_stderr(default: &str) {
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let colours = console::errors_are_a_screen();
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter);
    // What `tracing` does about a line that is lost is to print another, which panics.
    let subscriber = subscriber.with_writer(|| Diagnostics).log_internal_errors(false);
    let subscriber = subscriber.with_ansi(colours);
    // Fails only where a subscriber is set already, which then serves.
    let _ = subscriber.with_target(false).try_init();
}
