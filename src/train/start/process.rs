//! A rank as a process: its guardian, its processors, its communicator.

use std::time::{Duration, SystemTime};

use crate::cluster::comm::Membership;
use crate::cluster::comm::mpi::environment;
use crate::cluster::comm::mpi::flags::launcher_flags;
use crate::cluster::comm::mpi::{
    JoinArguments, MpiComm, launchers_rank, start_orphan_watch, under_mpirun,
};
use crate::cluster::comm::solo::SoloComm;
use crate::cluster::comm::watched::Watched;
use crate::cluster::guard::judge::{Joins, Limits};
use crate::cluster::guard::{self, report, segment};
use crate::cluster::processors::claim::{self, Claim};
use crate::cluster::processors::machine::Machine;
use crate::cluster::processors::places::{Places, Wish, places};
use crate::config::Config;
use crate::observe::console::say;
use crate::observe::notice::act_on;
use crate::observe::threads::explained;
use crate::run_folder::variables;

use crate::train::TrainError;
use crate::train::plan::TrainArguments;

/// The kernel frees a dead rank's place up to 100 ms late where processors are busy.
const TRY_EVERY: Duration = Duration::from_millis(50);
const TRIES_MAX: u32 = 100;

/// Before MPI is started: see `cluster::guard`. Without one a rank is as good, until it hangs.
pub(super) fn start_guardian(arguments: &TrainArguments) {
    let joins = if arguments.join.is_some() { Joins::Later } else { Joins::First };
    let charge = guard::Charge {
        run_dir: arguments.run_dir.clone(),
        attempt: arguments.attempt.unwrap_or(1),
        limits: Limits::of(&arguments.config.recovery, joins),
        joins,
    };
    if let Err(error) = guard::start(&charge) {
        let error = explained(error);
        act_on(&format!("no guardian ({error}): nobody notices if this rank hangs"));
    }
}

/// Takes a place of this machine that is free under `launch`, and binds the rank's threads there:
/// those that run already, and those that they will start. A replacement finds its predecessor's; a
/// spare takes none before it is promoted. Ranks beyond those that launch counted (a node took over
/// another's) stay unbound, and those of a run whose places another run has.
pub(super) fn take_place(config: &Config) {
    let variable = |name| std::env::var(name).ok();
    let ranks = variable(variables::RANKS_HERE).and_then(|text| text.parse().ok());
    let Some((ranks, job)) = ranks.zip(variable(variables::JOB)) else { return };
    let places = places(&Machine::here(), Wish::of(config, ranks));
    if !try_take(&job, &places) {
        take_when_free(job, places);
    }
}

/// A thread tries again: whoever recovers does not wait for it.
fn take_when_free(job: String, places: Places) {
    let again = move || {
        for _ in 0..TRIES_MAX {
            std::thread::sleep(TRY_EVERY);
            if try_take(&job, &places) {
                return;
            }
        }
    };
    // Without a thread it stays unbound, which is no harm.
    let _ = std::thread::Builder::new().name("place".into()).spawn(again);
}

/// Whether nothing is left to be tried.
fn try_take(job: &str, places: &Places) -> bool {
    match claim::bind(&kintsugi_ffi::os::hostname(), job, places) {
        Ok(claim) => claim == Claim::Held,
        Err(error) => {
            act_on(&format!("run.bind: this rank is not bound to processors: {error}"));
            true
        }
    }
}

/// MPI under mpirun, a world of one elsewhere.
pub(super) fn communicator(arguments: &TrainArguments) -> Result<Box<dyn Membership>, TrainError> {
    if !under_mpirun() {
        // It died between two looks: this is no world of one.
        if arguments.launched || arguments.join.is_some() {
            return Err(TrainError::JobLost("the mpirun that started this rank is gone".into()));
        }
        return Ok(Box::new(SoloComm::default()));
    }
    start_orphan_watch();
    if !arguments.launched && arguments.join.is_none() {
        warn_of_flags();
    }
    let join = arguments.join.as_deref().map(JoinArguments::parse).transpose();
    let join = join.map_err(|error| TrainError::Internal(format!("--join: {error}")))?;
    let before = SystemTime::now();
    let mpi = match &join {
        Some(join) => MpiComm::initialise(Some(join))?,
        None => MpiComm::initialise_with_spares(arguments.config.run.ranks as usize)?,
    };
    report::met();
    if let Some(name) = segment::own(before) {
        report::segment(&name);
    }
    Ok(Box::new(Watched::new(Box::new(mpi))))
}

/// What plain mpirun was not told, once, from its first rank.
fn warn_of_flags() {
    let lacking = environment::lacking();
    if launchers_rank() != Some(0) || lacking.is_empty() {
        return;
    }
    let flags = launcher_flags().join(" ");
    say!(
        "warning: mpirun was started {}\n  use: mpirun {flags} -n RANKS kintsugi train CONFIG\n  \
         or let `kintsugi launch` write the line (--dry-run shows it)",
        lacking.join("; ")
    );
}
