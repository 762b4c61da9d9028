//! How a rank starts, and how it ends: arguments -> surroundings -> prepared -> trainer -> status.
//! Each is made by one function of the one before. `enter` is the only place where spares and
//! newcomers go another way than the ranks of a first start.

use std::process::ExitCode;
use std::sync::PoisonError;

use crate::cluster::comm::Membership;
use crate::cluster::comm::mpi::{launchers_rank, under_mpirun};
use crate::cluster::faults::Standing;
use crate::cluster::guard::report;
use crate::config::Point;
use crate::observe::console::say;
use crate::observe::result::Status;

use crate::train::TrainError;
use crate::train::plan::TrainArguments;
use materials::Preparation;
use surroundings::{Entry, Surroundings};

pub mod surroundings;
mod process;
mod refusals;
pub mod feasible;
pub mod fixed;
pub mod sets;
pub mod materials;
mod network;
pub mod state;
mod trainer;
mod world;
mod rank;
mod spare;

/// Runs the rank; the exit code is README's, for a world of one.
pub fn run(arguments: &TrainArguments) -> ExitCode {
    if under_mpirun() && arguments.guarded {
        process::start_guardian(arguments);
    }
    let entry = Entry::told(arguments);
    if !entry.waits() {
        process::take_place(&arguments.config);
    }
    let code = match run_rank(arguments, entry) {
        Ok(status) => {
            report::ending();
            status.exit_code()
        }
        Err(error) => {
            tracing::error!("{error}");
            say!("error: {error}");
            if under_mpirun() && error.leaves_alone() {
                // The death that the others repair: the runtime does not tell them of an exit with
                // a code, and they would wait for it.
                report::last_words(&error.to_string());
                kintsugi_ffi::os::kill_self_now();
            }
            error.exit_code()
        }
    };
    if under_mpirun() {
        // After failures MPI's own end can wait for the dead; everything is written by now.
        kintsugi_ffi::os::exit_now(i32::from(code));
    }
    ExitCode::from(code)
}

fn run_rank(arguments: &TrainArguments, entry: Entry) -> Result<Status, TrainError> {
    // What is prepared beside MPI's start reads some.
    kintsugi_ffi::os::keep_environment();
    let around = surroundings::surroundings(arguments, entry)?;
    let standing = Standing {
        ranks: 1,
        rank: launchers_rank().unwrap_or(0),
        newcomer: arguments.join.is_some(),
        spare: entry.waits(),
        ..Standing::default()
    };
    around.injector.at(Point::InInit, &standing);
    std::thread::scope(|scope| {
        // What needs no communicator is made beside MPI's own start.
        let mut preparation = Preparation::beside(scope, &around);
        if entry != Entry::ColdSpare {
            preparation.begin();
        }
        enter(&around, process::communicator(arguments), preparation)
    })
}

/// A rank's program once its communicator is there: what a simulation runs too.
pub fn enter(
    around: &Surroundings,
    comm: Result<Box<dyn Membership>, TrainError>,
    mut preparation: Preparation<'_>,
) -> Result<Status, TrainError> {
    let trainer = comm.and_then(|comm| match around.entry {
        Entry::Initial => rank::initial(around, comm, preparation.finish()).map(Some),
        Entry::Newcomer => rank::newcomer(around, comm, preparation.finish()).map(Some),
        Entry::WarmSpare | Entry::ColdSpare => spare::wait(around, comm, &mut preparation),
    });
    let status = trainer.and_then(|trainer| match trainer {
        Some(trainer) => trainer::conclude(around, trainer),
        // A spare that nobody needed.
        None => Ok(Status::Completed),
    });
    if status.is_err()
        && let Some(slots) = preparation.slots()
    {
        slots.read().unwrap_or_else(PoisonError::into_inner).leave_no_empty_file();
    }
    status
}
