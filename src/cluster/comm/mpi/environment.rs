//! What a rank that no `kintsugi launch` started tells its MPI before that begins: the parameters
//! without which a failure is not survived, and on one machine to keep to the loopback. Open MPI
//! gives its parameters on to the replacements that a rank spawns.

use std::path::Path;

use kintsugi_ffi::{mpi, os};

use crate::cluster::comm::mpi::{flags, loopback};
use crate::run_folder::launcher;

/// The prefix of Open MPI's parameters.
const PREFIX: &str = "OMPI_MCA_";
/// The loopback for the ranks' transport: who has it is alone with the others on its machine.
const INTERFACE: (&str, &str) = ("OMPI_MCA_btl_tcp_if_include", "lo");

/// Sets what nobody has set, in this process; to be called before any thread is started.
pub fn complete() {
    let Some(place) = launcher::place() else { return };
    let is_replacement = std::env::var(INTERFACE.0).is_ok_and(|value| value == INTERFACE.1);
    let is_local = place.size.is_some() && place.size == place.local_size;
    // Beside the compiler wrapper that built the program, as launch finds it.
    let mpirun = Path::new(mpi::mpicc()).with_file_name("mpirun");
    let loopback = match (is_replacement, is_local) {
        (true, _) => loopback::SETTINGS.to_vec(),
        (false, true) => loopback::settings(&mpirun),
        (false, false) => Vec::new(),
    };
    let parameters = flags::PARAMETERS.map(|(name, value)| (format!("{PREFIX}{name}"), value));
    let loopback = loopback.into_iter().map(|(name, value)| (name.to_owned(), value));
    let unset = parameters.into_iter().chain(loopback);
    let unset: Vec<_> = unset.filter(|(name, _)| std::env::var_os(name).is_none()).collect();
    os::set_variables(&unset);
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
            value => lacking.push(format!(
                "with --mca {name} {}: only {wanted} was tested with failures",
                value.unwrap_or_default()
            )),
        }
    }
    lacking
}
