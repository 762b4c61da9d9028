//! What a rank that no `kintsugi launch` started tells its MPI before that begins: the parameters
//! without which a failure is not survived, and on one machine to keep to the loopback. Open MPI
//! gives its parameters on to the replacements that a rank spawns.

use std::path::{Path, PathBuf};

use kintsugi_ffi::{mpi, os};

use crate::cluster::comm::mpi::{flags, loopback};
use crate::run_folder::launcher;

/// The prefix of Open MPI's parameters.
const PREFIX: &str = "OMPI_MCA_";
/// The loopback for the ranks' transport: who has it is alone with the others on its machine.
const INTERFACE: (&str, &str) = ("OMPI_MCA_btl_tcp_if_include", "lo");

/// How a process comes into a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// With all the others, by mpirun.
    Begins,
    /// A rank spawned it: what it is told of sizes is of its like alone, not of the world.
    Replaces,
}

/// Sets what nobody has set, in this process; to be called before any thread is started.
pub fn complete(start: Start) {
    let Some(place) = launcher::place() else { return };
    let inherits = std::env::var(INTERFACE.0).is_ok_and(|value| value == INTERFACE.1);
    let is_local = place.size.is_some() && place.size == place.local_size;
    let mpirun = mpirun();
    let loopback = match start {
        Start::Replaces if inherits => loopback::SETTINGS.to_vec(),
        Start::Begins if is_local => loopback::settings(&mpirun),
        Start::Replaces | Start::Begins => Vec::new(),
    };
    let unnamed = flags::PARAMETERS.into_iter();
    let unnamed = unnamed.filter(|(name, _)| !loopback::is_in_a_file(&mpirun, name));
    let parameters = unnamed.map(|(name, value)| (format!("{PREFIX}{name}"), value));
    let loopback = loopback.into_iter().map(|(name, value)| (name.to_owned(), value));
    let unset = parameters.into_iter().chain(loopback);
    let unset: Vec<_> = unset.filter(|(name, _)| std::env::var_os(name).is_none()).collect();
    os::set_variables(&unset);
}

/// Beside the compiler wrapper that built the program, as launch finds it.
fn mpirun() -> PathBuf {
    Path::new(mpi::mpicc()).with_file_name("mpirun")
}

/// What mpirun was told otherwise, or was not told and no rank can tell itself, in words.
pub fn lacking() -> Vec<String> {
    let now = |name: &str| std::env::var(format!("{PREFIX}{name}")).ok();
    let mut lacking = Vec::new();
    if now("mpi_ft_enable").as_deref() != Some("1") {
        lacking.push("without --with-ft ulfm: one dead rank ends the job".to_owned());
    }
    for (name, wanted) in flags::PARAMETERS {
        match now(name) {
            Some(value) if value == wanted => {}
            Some(value) => lacking
                .push(format!("with --mca {name} {value}: only {wanted} was tested with failures")),
            None => lacking.push(format!(
                "with another {name} in a parameter file: only {wanted} was tested with failures"
            )),
        }
    }
    lacking
}
