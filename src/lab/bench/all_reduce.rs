//! What fault tolerance costs in calm weather: the gradient all-reduce with and without
//! `--with-ft ulfm`, with and without the vote. mpirun with and without alternate pass by pass;
//! inside one mpirun votes alternate step by step.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::cluster::comm::mpi::MpiComm;
use crate::cluster::comm::{CommError, Communicator, ReduceOp};
use crate::cluster::launch::mpirun;

use super::{Case, Report, machine, median};

/// Sizes of the summed vector in MB (10^6 bytes).
const SIZES_MB: [usize; 3] = [1, 10, 95];
/// Marks a worker's result among whatever else mpirun prints.
const MARK: &str = "kintsugi-samples ";
const WARM_UP: usize = 2;

/// How much to measure.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Ranks.
    pub ranks: u32,
    /// Pairs of mpirun.
    pub passes: u32,
    /// Pairs of steps per size and mpirun.
    pub steps: usize,
}

/// Milliseconds of one size.
#[derive(Debug, Serialize, Deserialize)]
struct Samples {
    size_mb: usize,
    plain: Vec<f64>,
    voted: Vec<f64>,
}

/// One rank of the measurement; rank 0 prints.
///
/// # Errors
/// MPI's.
pub fn worker(steps: usize) -> Result<(), CommError> {
    let mut comm = MpiComm::initialise(None)?;
    comm.warm()?;
    for size_mb in SIZES_MB {
        let send = vec![1.0f32; size_mb * 1_000_000 / 4];
        let mut recv = vec![0.0f32; send.len()];
        let mut samples = Samples { size_mb, plain: Vec::new(), voted: Vec::new() };
        for step in 0..2 * (WARM_UP + steps) {
            // Everybody starts together: what is timed is the exchange, not the wait for a rank.
            comm.all_reduce_u64(&[1], &mut [0], ReduceOp::Sum)?;
            let begin = Instant::now();
            comm.all_reduce_f32(&send, &mut recv, ReduceOp::Sum)?;
            let votes = step % 2 == 1;
            if votes && !comm.agree(1).committed() {
                return Err(CommError::ProcFailed);
            }
            let took = begin.elapsed().as_secs_f64() * 1e3;
            if step >= 2 * WARM_UP {
                if votes { samples.voted.push(took) } else { samples.plain.push(took) }
            }
        }
        if comm.rank() == 0 {
            let line = serde_json::to_string(&samples).expect("samples are plain data");
            println!("{MARK}{line}");
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
    let mut flags = mpirun::recovery_flags();
    if launcher == Launcher::WithoutFt
        && let Some(at) = flags.iter().position(|flag| flag == "--with-ft")
    {
        flags.drain(at..at + 2);
    }
    flags
}

fn run_once(mpirun: &Path, launcher: Launcher, options: Options) -> Result<Vec<Samples>, String> {
    let program = std::env::current_exe().map_err(|error| format!("no own program: {error}"))?;
    let output = Command::new(mpirun)
        .args(flags(launcher))
        .args(["-n", &options.ranks.to_string()])
        .arg(program)
        .args(["bench", "all-reduce", "--worker", "--steps", &options.steps.to_string()])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cannot run {}: {error}", mpirun.display()))?;
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
pub fn run(options: Options, command: String) -> Result<Report, String> {
    let chosen = std::env::var_os(mpirun::MPIRUN_VARIABLE).map(Into::into);
    let path = std::env::var_os("PATH");
    let mpicc = Path::new(kintsugi_ffi::mpi::mpicc());
    let mpirun = mpirun::find(chosen, mpicc, path.as_deref()).map_err(|error| error.to_string())?;
    let mut all: BTreeMap<(usize, Launcher, bool), Vec<f64>> = BTreeMap::new();
    for pass in 0..options.passes {
        for launcher in [Launcher::WithFt, Launcher::WithoutFt] {
            eprintln!("pass {} of {}: {launcher:?}", pass + 1, options.passes);
            for samples in run_once(&mpirun, launcher, options)? {
                let size = samples.size_mb;
                all.entry((size, launcher, false)).or_default().extend(samples.plain);
                all.entry((size, launcher, true)).or_default().extend(samples.voted);
            }
        }
    }
    let name = |(size, launcher, vote): &(usize, Launcher, bool)| {
        let ft = if *launcher == Launcher::WithFt { "ulfm" } else { "plain" };
        let vote = if *vote { "vote" } else { "no_vote" };
        format!("{size}MB_{ft}_{vote}")
    };
    let none = BTreeMap::new();
    let cases = all.iter().map(|(key, samples)| Case::of(&name(key), samples, &none)).collect();
    let mut ratios = BTreeMap::new();
    for size in SIZES_MB {
        let of = |launcher, vote| median(&all[&(size, launcher, vote)]);
        let base = of(Launcher::WithoutFt, false);
        ratios.insert(format!("{size}MB_ulfm_vote/plain"), of(Launcher::WithFt, true) / base);
        let vote = of(Launcher::WithFt, true) / of(Launcher::WithFt, false);
        ratios.insert(format!("{size}MB_vote/no_vote"), vote);
    }
    Ok(Report { bench: "all-reduce".into(), command, machine: machine(), cases, ratios })
}
