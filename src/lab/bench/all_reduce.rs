//! What fault tolerance costs in calm weather: the gradient all-reduce with and without
//! `--with-ft ulfm`, with and without the vote. mpirun with and without alternate pass by pass;
//! inside one mpirun votes alternate step by step.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::cluster::comm::mpi::MpiComm;
use crate::cluster::comm::mpi::flags::recovery_flags;
use crate::cluster::comm::{CommError, Communicator, Elements, Membership};
use crate::config::Shown;
use crate::observe::console::{print_line, say};
use crate::run_folder::launcher;

use super::{Case, Report, find_mpirun, median};

/// Sizes of the summed vector in MB (10^6 bytes).
const SIZES_MB: [usize; 3] = [1, 10, 95];
/// Marks a worker's result among whatever else mpirun prints.
const MARK: &str = "kintsugi-samples ";
const WARM_UP: usize = 2;

/// How much to measure.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Options {
    /// Ranks
    #[arg(short, long, default_value_t = 4, value_parser = crate::lab::crowd::ranks)]
    pub ranks: u32,
    /// Pairs of mpirun, alternating
    #[arg(long, default_value_t = 4)]
    pub passes: u32,
    /// Pairs of steps per size and mpirun
    #[arg(long, default_value_t = 20)]
    pub steps: usize,
    /// This process is one rank
    #[arg(long, hide = true)]
    pub worker: bool,
}

/// Milliseconds of one size.
#[derive(Debug, Serialize, Deserialize)]
struct Samples {
    size_mb: usize,
    plain: Vec<f64>,
    voted: Vec<f64>,
}

/// One timed step of the cycle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    AllReduce,
    Vote,
}

const CYCLE: [Step; 2] = [Step::AllReduce, Step::Vote];

/// What one rank sums with.
struct Buffers {
    send: Vec<f32>,
    recv: Vec<f32>,
}

impl Buffers {
    fn new(length: usize) -> Self {
        Self { send: vec![1.0; length], recv: vec![0.0; length] }
    }

    fn perform(&mut self, comm: &mut dyn Communicator, step: Step) -> Result<(), CommError> {
        match step {
            Step::AllReduce => comm.all_reduce(Elements::F32(&self.send, &mut self.recv)),
            Step::Vote => {
                comm.all_reduce(Elements::F32(&self.send, &mut self.recv))?;
                comm.agree(1).committed().then_some(()).ok_or(CommError::ProcFailed)
            }
        }
    }
}

/// One rank of the measurement; rank 0 prints.
///
/// # Errors
/// MPI's.
pub fn worker(steps: usize) -> Result<(), CommError> {
    let mut comm = MpiComm::initialise(None)?;
    comm.warm()?;
    for size_mb in SIZES_MB {
        let mut buffers = Buffers::new(size_mb * 1_000_000 / 4);
        let mut times = [const { Vec::new() }; CYCLE.len()];
        for round in 0..WARM_UP + steps {
            for (step, times) in CYCLE.iter().zip(&mut times) {
                // Everybody starts together: what is timed is the exchange, not the wait for a
                // rank.
                comm.all_reduce(Elements::U64(&[1], &mut [0]))?;
                let begin = Instant::now();
                buffers.perform(&mut comm, *step)?;
                if round >= WARM_UP {
                    times.push(begin.elapsed().as_secs_f64() * 1e3);
                }
            }
        }
        if comm.rank() == 0 {
            let [plain, voted] = times;
            let samples = Samples { size_mb, plain, voted };
            let line = serde_json::to_string(&samples).expect("samples are plain data");
            print_line!("{MARK}{line}");
        }
    }
    comm.finalize();
    Ok(())
}

/// Whether recovery is switched on in mpirun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Launcher {
    WithFt,
    WithoutFt,
}

fn flags(launcher: Launcher) -> Vec<String> {
    let mut flags = recovery_flags();
    if launcher == Launcher::WithoutFt
        && let Some(at) = flags.iter().position(|flag| flag == "--with-ft")
    {
        flags.drain(at..at + 2);
    }
    flags
}

fn run_once(mpirun: &Path, launcher: Launcher, options: Options) -> Result<Vec<Samples>, String> {
    let program = std::env::current_exe().map_err(|error| format!("no own program: {error}"))?;
    let mut command = Command::new(mpirun);
    launcher::suit(&mut command);
    let output = command
        .args(flags(launcher))
        .args(["-n", &options.ranks.to_string()])
        .arg(program)
        .args(["bench", "all-reduce", "--worker", "--steps", &options.steps.to_string()])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cannot run {}: {error}", mpirun.shown()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text.lines().filter_map(|line| line.split_once(MARK));
    let samples: Vec<Samples> =
        lines.filter_map(|(_, json)| serde_json::from_str(json).ok()).collect();
    match samples.len() == SIZES_MB.len() {
        true => Ok(samples),
        false => Err(format!("mpirun ended with {} and no result", output.status)),
    }
}

/// Runs the comparison.
///
/// # Errors
/// What kept it from running, for a person.
pub fn run(options: Options) -> Result<Report, String> {
    let mpirun = find_mpirun()?;
    let mut all: BTreeMap<(usize, Launcher, &str), Vec<f64>> = BTreeMap::new();
    for pass in 0..options.passes {
        for launcher in [Launcher::WithFt, Launcher::WithoutFt] {
            say!("pass {} of {}: {launcher:?}", pass + 1, options.passes);
            for samples in run_once(&mpirun, launcher, options)? {
                for (case, times) in [("no_vote", samples.plain), ("vote", samples.voted)] {
                    all.entry((samples.size_mb, launcher, case)).or_default().extend(times);
                }
            }
        }
    }
    let name = |(size, launcher, case): &(usize, Launcher, &str)| {
        let ft = if *launcher == Launcher::WithFt { "ulfm" } else { "plain" };
        format!("{size}MB_{ft}_{case}")
    };
    let none = BTreeMap::new();
    let cases = all.iter().map(|(key, samples)| Case::of(&name(key), samples, &none)).collect();
    let mut ratios = BTreeMap::new();
    for size in SIZES_MB {
        let of = |launcher, case| median(&all[&(size, launcher, case)]);
        let with = |case| of(Launcher::WithFt, case);
        let base = of(Launcher::WithoutFt, "no_vote");
        ratios.insert(format!("{size}MB_ulfm_vote/plain"), with("vote") / base);
        ratios.insert(format!("{size}MB_vote/no_vote"), with("vote") / with("no_vote"));
    }
    Ok(Report::of("all-reduce", cases, ratios))
}
