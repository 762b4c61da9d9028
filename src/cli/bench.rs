//! `kintsugi bench`: see `lab::bench`.

use std::process::ExitCode;

use clap::ArgAction;

use super::arguments::{Form, fail, form, print_json};
use crate::lab::bench::runs::of_runs;
use crate::lab::bench::{all_reduce, calm, checkpoint, loader, memory, recovery, step, table};
use crate::observe::console::print_text;

/// Compares two things in one run and prints the ratio.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    bench: Bench,
    /// One JSON object on the last line of stdout
    #[arg(long, global = true, action = ArgAction::SetTrue, value_parser = form())]
    json: Form,
}

#[derive(Debug, clap::Subcommand)]
enum Bench {
    /// The gradient all-reduce with and without ULFM, with and without the vote
    AllReduce(all_reduce::Options),
    /// A step with fault tolerance and without, the two taking turns
    Calm(calm::Options),
    /// How long a checkpoint holds the training loop
    Checkpoint(checkpoint::Options),
    /// One core's way from JPEG files to normalised pixels, ours and torchvision's in turns
    Loader(loader::Options),
    /// A step of one worker within less memory than it needs, and in core, in turns
    Memory(memory::Options),
    /// A step of one worker, ours and PyTorch's in turns: load, forward and backward, update
    Step(step::Options),
    /// From SIGKILL to being back in the update loop: respawn, shrink, a renewal, restart from
    /// resident state and from a checkpoint
    Recovery(recovery::Options),
}

/// Runs it.
pub fn run(args: &Args) -> ExitCode {
    let report = match &args.bench {
        Bench::AllReduce(options) if options.worker => {
            let done = all_reduce::worker(options.steps);
            return done.map_or_else(|error| fail(1, error), |()| ExitCode::SUCCESS);
        }
        Bench::AllReduce(options) => all_reduce::run(*options),
        Bench::Calm(options) => of_runs(|runs| calm::run(options, runs)),
        Bench::Checkpoint(options) => of_runs(|runs| checkpoint::run(options, runs)),
        Bench::Loader(options) => of_runs(|runs| loader::run(options, runs)),
        Bench::Memory(options) => of_runs(|runs| memory::run(options, runs)),
        Bench::Step(options) => of_runs(|runs| step::run(options, runs)),
        Bench::Recovery(options) => of_runs(|runs| recovery::run(options, runs)),
    };
    match (report, args.json) {
        (Ok(report), Form::Json) => print_json(&report),
        (Ok(report), Form::Table) => print_text(&table(&report)),
        (Err(reason), _) => return fail(1, reason),
    }
    ExitCode::SUCCESS
}
