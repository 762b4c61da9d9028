//! `kintsugi bench`: see `lab::bench`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::ArgAction;

use super::arguments::{Form, form};
use crate::lab::bench::{Report, all_reduce, calm, checkpoint, print_table};
use crate::lab::bench::{loader, recovery, spares, staging, step, workers};
use crate::observe::console::{print_line, say};

/// Compares two things in one run and prints the ratio.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, clap::Subcommand)]
enum Bench {
    /// The gradient all-reduce with and without ULFM, with and without the vote
    AllReduce {
        /// Ranks
        #[arg(short, long, default_value_t = 4, value_parser = super::arguments::ranks)]
        ranks: u32,
        /// Pairs of mpirun, alternating
        #[arg(long, default_value_t = 4)]
        passes: u32,
        /// Pairs of steps per size and mpirun
        #[arg(long, default_value_t = 20)]
        steps: usize,
        /// One JSON object on the last line of stdout
        #[arg(long, action = ArgAction::SetTrue, value_parser = form())]
        json: Form,
        /// This process is one rank
        #[arg(long, hide = true)]
        worker: bool,
    },
    /// A step with fault tolerance and without, the two taking turns
    Calm {
        /// The configuration to run
        #[arg(long, default_value = "configs/bench/cnn11.toml")]
        config: PathBuf,
        /// Ranks
        #[arg(short, long, default_value_t = 4, value_parser = super::arguments::ranks)]
        ranks: u32,
        /// Starts of the two; with several, each start is one sample, and six make an interval
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
        starts: u32,
        /// Turns of each of the two, in each start
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
        turns: u32,
        /// Whole steps of a turn, at least; it lasts a second or longer
        #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u64).range(1..))]
        steps: u64,
        /// One JSON object on the last line of stdout
        #[arg(long, action = ArgAction::SetTrue, value_parser = form())]
        json: Form,
    },
    /// How long a checkpoint holds the training loop
    Checkpoint {
        /// The configuration to run
        #[arg(long, default_value = "configs/bench/95mb.toml")]
        config: PathBuf,
        /// Ranks
        #[arg(short, long, default_value_t = 4, value_parser = super::arguments::ranks)]
        ranks: u32,
        /// Checkpoints
        #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
        repeats: u32,
        /// One JSON object on the last line of stdout
        #[arg(long, action = ArgAction::SetTrue, value_parser = form())]
        json: Form,
    },
    /// The processor time of a waiting spare, beside steps of 95 MB and of 1 MB
    Spares {
        /// The configuration with large steps
        #[arg(long, default_value = "configs/bench/95mb.toml")]
        large: PathBuf,
        /// The configuration with small steps
        #[arg(long, default_value = "configs/mlp_synthetic.toml")]
        small: PathBuf,
        /// Ranks
        #[arg(short, long, default_value_t = 4, value_parser = super::arguments::ranks)]
        ranks: u32,
        /// Seconds of each run
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(2..))]
        seconds: u32,
        /// Runs of each kind
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
        turns: u32,
        /// One JSON object on the last line of stdout
        #[arg(long, action = ArgAction::SetTrue, value_parser = form())]
        json: Form,
    },
    /// One core's way from JPEG files to normalised pixels, ours and torchvision's in turns
    Loader {
        /// A python with torch, torchvision and pillow; without it the loader is measured alone
        #[arg(long)]
        python: Option<PathBuf>,
        /// What it runs
        #[arg(long, default_value = "benches/loader.py")]
        script: PathBuf,
        /// Pictures of a pass
        #[arg(long, default_value_t = 200)]
        #[arg(value_parser = clap::value_parser!(u64).range(1..100_000))]
        files: u64,
        /// Pictures that the loader is asked for at once, as a worker asks for its micro-batch
        #[arg(long, default_value_t = 16)]
        #[arg(value_parser = clap::value_parser!(u64).range(1..100_000))]
        micro_batch: u64,
        /// Times as wide and high as 500 x 375; above 1 scaled decoding takes turns, too
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
        times: u32,
        /// Passes of each
        #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..))]
        turns: u32,
        /// One JSON object on the last line of stdout
        #[arg(long, action = ArgAction::SetTrue, value_parser = form())]
        json: Form,
    },
    /// A step of one worker, ours and PyTorch's in turns: load, forward and backward, update
    Step(StepArgs),
    /// A step of workers with one thread each and of one worker with as many threads, in turns
    Workers(WorkersArgs),
    /// One epoch over a share that takes as long to copy as to train on, in five modes of staging
    Staging {
        /// The configuration to run
        #[arg(long, default_value = "configs/bench/staging.toml")]
        config: PathBuf,
        /// Ranks
        #[arg(short, long, default_value_t = 2, value_parser = super::arguments::ranks)]
        ranks: u32,
        /// Runs of each mode; 0: none
        #[arg(long, default_value_t = 5)]
        repeats: u32,
        /// Turns of steps with everything local, and with nothing staged; 0: none
        #[arg(long, default_value_t = 20)]
        idle_turns: u32,
        /// Kills in each mode, with an empty local folder for the newcomer; 0: none
        #[arg(long, default_value_t = 5)]
        kills: u32,
        /// One JSON object on the last line of stdout
        #[arg(long, action = ArgAction::SetTrue, value_parser = form())]
        json: Form,
    },
    /// From SIGKILL to being back in the update loop: respawn, shrink, a renewal, restart from
    /// resident state and from a checkpoint
    Recovery {
        /// The configuration to run
        #[arg(long, default_value = "configs/bench/95mb.toml")]
        config: PathBuf,
        /// Ranks
        #[arg(short, long, default_value_t = 4, value_parser = super::arguments::ranks)]
        ranks: u32,
        /// Repairs per case
        #[arg(long, default_value_t = 10)]
        repeats: u32,
        /// One JSON object on the last line of stdout
        #[arg(long, action = ArgAction::SetTrue, value_parser = form())]
        json: Form,
    },
}

/// Of `bench step`.
#[derive(Debug, clap::Args)]
struct StepArgs {
    /// A catalogue model, or the path of a *.toml model file
    #[arg(long, default_value = "resnet18")]
    model: String,
    /// Width and height of the images, in pixels
    #[arg(long, default_value_t = 224)]
    image_size: u32,
    /// Samples of a step
    #[arg(long, default_value_t = 16, value_parser = super::arguments::crowd)]
    batch: usize,
    /// Computing threads
    #[arg(long, default_value_t = 1, value_parser = super::arguments::crowd)]
    threads: usize,
    /// `device.precision`
    #[arg(long, default_value = "f32")]
    precision: String,
    /// A python with torch and torchvision; without it we are measured alone
    #[arg(long)]
    python: Option<PathBuf>,
    /// What it runs
    #[arg(long, default_value = "benches/step.py")]
    script: PathBuf,
    /// Steps of each
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..))]
    turns: u32,
    /// One JSON object on the last line of stdout
    #[arg(long, action = ArgAction::SetTrue, value_parser = form())]
    json: Form,
}

impl StepArgs {
    fn options(&self) -> step::Options {
        step::Options {
            model: self.model.clone(),
            image_size: self.image_size,
            batch: self.batch,
            threads: self.threads,
            precision: self.precision.clone(),
            python: self.python.clone(),
            script: self.script.clone(),
            turns: self.turns,
        }
    }
}

/// Of `bench workers`.
#[derive(Debug, clap::Args)]
struct WorkersArgs {
    /// The configuration to run
    #[arg(long, default_value = "configs/bench/cnn11.toml")]
    config: PathBuf,
    /// Overrides one key of the configuration: section.key=value
    #[arg(short = 's', long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Computing threads in all
    #[arg(long, default_value_t = 2, value_parser = super::arguments::crowd)]
    threads: usize,
    /// Turns of each of the three
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..))]
    turns: u32,
    /// Whole steps of a turn, at least; it lasts a second or longer
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u64).range(1..))]
    steps: u64,
    /// One JSON object on the last line of stdout
    #[arg(long, action = ArgAction::SetTrue, value_parser = form())]
    json: Form,
}

impl WorkersArgs {
    fn options(&self) -> workers::Options {
        workers::Options {
            config: self.config.clone(),
            keys: self.set.clone(),
            threads: self.threads,
            turns: self.turns,
            steps: self.steps,
        }
    }
}

/// Runs it.
pub fn run(args: &Args) -> ExitCode {
    let command = std::env::args().collect::<Vec<_>>().join(" ");
    let (report, form) = match &args.bench {
        Bench::AllReduce { steps, worker: true, .. } => {
            return match all_reduce::worker(*steps) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => fail(&error.to_string()),
            };
        }
        Bench::AllReduce { ranks, passes, steps, json, .. } => {
            let options = all_reduce::Options { ranks: *ranks, passes: *passes, steps: *steps };
            (all_reduce::run(options, command), *json)
        }
        Bench::Calm { config, ranks, starts, turns, steps, json } => {
            let (config, ranks, turns, steps) = (config.clone(), *ranks, *turns, *steps);
            let options = calm::Options { config, ranks, starts: *starts, turns, steps };
            (calm::run(&options, command), *json)
        }
        Bench::Checkpoint { config, ranks, repeats, json } => {
            let (config, ranks, repeats) = (config.clone(), *ranks, *repeats);
            (checkpoint::run(&checkpoint::Options { config, ranks, repeats }, command), *json)
        }
        Bench::Loader { python, script, files, micro_batch, times, turns, json } => {
            let (python, script) = (python.clone(), script.clone());
            let (files, micro_batch, times, turns) = (*files, *micro_batch, *times, *turns);
            let options = loader::Options { python, script, files, micro_batch, times, turns };
            (loader::run(&options, command), *json)
        }
        Bench::Spares { large, small, ranks, seconds, turns, json } => {
            let (large, small) = (large.clone(), small.clone());
            let (ranks, seconds, turns) = (*ranks, *seconds, *turns);
            let options = spares::Options { large, small, ranks, seconds, turns };
            (spares::run(&options, command), *json)
        }
        Bench::Step(args) => (step::run(&args.options(), command), args.json),
        Bench::Workers(args) => (workers::run(&args.options(), command), args.json),
        Bench::Staging { config, ranks, repeats, idle_turns, kills, json } => {
            let (config, ranks, repeats) = (config.clone(), *ranks, *repeats);
            let (idle_turns, kills) = (*idle_turns, *kills);
            let options = staging::Options { config, ranks, repeats, idle_turns, kills };
            (staging::run(&options, command), *json)
        }
        Bench::Recovery { config, ranks, repeats, json } => {
            let (config, ranks, repeats) = (config.clone(), *ranks, *repeats);
            (recovery::run(&recovery::Options { config, ranks, repeats }, command), *json)
        }
    };
    match report {
        Ok(report) => print(&report, form),
        Err(error) => fail(&error),
    }
}

fn print(report: &Report, form: Form) -> ExitCode {
    match form {
        Form::Json => {
            print_line!("{}", serde_json::to_string(report).expect("a report is plain data"));
        }
        Form::Table => print_table(report),
    }
    ExitCode::SUCCESS
}

fn fail(reason: &str) -> ExitCode {
    say!("error: {reason}");
    ExitCode::from(1)
}
