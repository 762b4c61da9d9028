//! How a process takes a place of its machine: by a name that only one process can have at a time,
//! and that the kernel frees when it dies. Whoever replaces it finds the place free. The name is an
//! abstract socket's, so nothing lies on any disk and nothing is left to be removed.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Mutex, PoisonError};

use kintsugi_ffi::affinity;

use super::places::Places;

/// What holds this process's place. A process has one, whoever asks for it.
static HELD: Mutex<Option<UnixDatagram>> = Mutex::new(None);

/// Takes a free one of `count` places of the job `job` on this machine: its number, and what holds
/// it as long as it is open.
///
/// # Errors
/// The kernel gives out no name.
fn take(job: &str, count: usize) -> io::Result<Option<(usize, UnixDatagram)>> {
    for number in 0..count {
        let name = SocketAddr::from_abstract_name(format!("{job}-place-{number}"))?;
        match UnixDatagram::bind_addr(&name) {
            Ok(holder) => return Ok(Some((number, holder))),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// What became of an attempt to take a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// This process has one.
    Held,
    /// Others have them all, or are dead and not yet gone.
    Taken,
}

/// Takes a free place and binds this process's threads there, unless it has one already.
///
/// # Errors
/// What the kernel said; this process is bound to nothing.
pub fn bind(job: &str, places: &Places) -> io::Result<Claim> {
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    let each = places.each();
    if held.is_some() || each.is_empty() {
        return Ok(Claim::Held);
    }
    let Some((number, holder)) = take(job, each.len())? else { return Ok(Claim::Taken) };
    affinity::bind(&each[number])?;
    *held = Some(holder);
    Ok(Claim::Held)
}

/// Whether this process's processors are its place, not the machine's.
pub fn is_bound() -> bool {
    HELD.lock().unwrap_or_else(PoisonError::into_inner).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_is_let_go_is_the_next_ones() {
        let job = format!("kintsugi-test-{}", std::process::id());
        let free = || take(&job, 2).expect("names can be had");
        let (first, held) = free().expect("free");
        let (second, _other) = free().expect("free");
        assert_eq!((first, second), (0, 1));
        assert!(free().is_none());
        drop(held);
        assert_eq!(free().expect("free again").0, 0);
        let elsewhere = take(&format!("{job}-other"), 1).expect("names can be had");
        assert!(elsewhere.is_some(), "another job's places are its own");
    }

    #[test]
    fn a_name_that_is_too_long_is_an_error() {
        assert!(take(&"x".repeat(200), 1).is_err());
    }

    #[test]
    fn where_there_are_no_places_nobody_is_bound() {
        assert_eq!(bind("kintsugi-test", &Places::Shared).expect("nothing to do"), Claim::Held);
        assert!(!is_bound());
    }
}
