//! How a process takes a place of its machine: by names that only one process can have at a time,
//! and that the kernel frees when it dies. Whoever replaces it finds the place free. The names are
//! abstract sockets', so nothing lies on any disk and nothing is left to be removed. Processors are
//! claimed one by one, whatever run is whose: two runs on one machine never share a place.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Mutex, PoisonError};

use kintsugi_ffi::affinity;

use super::places::Places;

/// What holds this process's place. A process has one, whoever asks for it.
static HELD: Mutex<Vec<UnixDatagram>> = Mutex::new(Vec::new());

/// Of a larger place only so many processors are claimed: each takes a file descriptor.
const CLAIMED_MAX: usize = 64;

/// The names that a place is claimed by.
fn names(scope: &str, places: &Places, number: usize) -> Vec<String> {
    match places {
        Places::Shared => Vec::new(),
        Places::Own(each) => {
            let claimed = each[number].iter().take(CLAIMED_MAX);
            claimed.map(|processor| format!("{scope}-processor-{processor}")).collect()
        }
        Places::Nodes(_) => vec![format!("{scope}-place-{number}")],
    }
}

/// Takes all these names, or none: what holds them as long as it is open.
fn take(names: &[String]) -> io::Result<Option<Vec<UnixDatagram>>> {
    let mut held = Vec::new();
    for name in names {
        match UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name)?) {
            Ok(holder) => held.push(holder),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(Some(held))
}

/// What became of an attempt to take a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// This process has one.
    Held,
    /// Others have them all, or are dead and not yet gone.
    Taken,
}

/// Takes a free place of this machine and binds this process's threads there, unless it has one
/// already. A node that ranks share is theirs by `job`.
///
/// # Errors
/// What the kernel said; this process is bound to nothing.
pub fn bind(host: &str, job: &str, places: &Places) -> io::Result<Claim> {
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    let each = places.each();
    if !held.is_empty() || each.is_empty() {
        return Ok(Claim::Held);
    }
    // Nodes that share a kernel, as a test's do, are machines of their own.
    let scope = match places {
        Places::Nodes(_) => format!("{job}-{host:.32}"),
        _ => format!("kintsugi-{host:.32}"),
    };
    for (number, processors) in each.iter().enumerate() {
        if let Some(holders) = take(&names(&scope, places, number))? {
            affinity::bind(processors)?;
            *held = holders;
            return Ok(Claim::Held);
        }
    }
    Ok(Claim::Taken)
}

/// Whether this process's processors are its place, not the machine's.
pub fn is_bound() -> bool {
    !HELD.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine of its own for a test.
    fn scope(name: &str) -> String {
        format!("kintsugi-test-{name}-{}", std::process::id())
    }

    #[test]
    fn a_place_that_is_let_go_is_the_next_ones_and_none_overlaps_another() {
        let (scope, halves) = (scope("own"), Places::Own(vec![vec![0, 1], vec![2, 3]]));
        let thirds = Places::Own(vec![vec![0], vec![1, 2], vec![3]]);
        let take = |places: &Places, number| take(&names(&scope, places, number)).expect("names");
        let held = take(&halves, 0).expect("free");
        assert!(take(&halves, 0).is_none());
        for taken in [0, 1] {
            assert!(take(&thirds, taken).is_none(), "another run's place {taken}");
        }
        let last = take(&thirds, 2).expect("free");
        assert!(take(&halves, 1).is_none(), "half of it is not enough");
        drop(last);
        let _second = take(&halves, 1).expect("what was taken in vain is free again");
        drop(held);
        assert_eq!(take(&halves, 0).expect("free again").len(), 2);
    }

    #[test]
    fn ranks_that_share_a_node_have_a_place_each() {
        let nodes = Places::Nodes(vec![vec![0, 1], vec![0, 1]]);
        let take = |number| take(&names(&scope("nodes"), &nodes, number)).expect("names");
        let (first, second) = (take(0), take(1));
        assert!(first.is_some() && second.is_some() && take(0).is_none());
    }

    #[test]
    fn a_large_place_takes_no_more_names_than_there_are_descriptors_to_spare() {
        let large = Places::Own(vec![(0..1000).collect()]);
        assert_eq!(names("kintsugi", &large, 0).len(), CLAIMED_MAX);
        assert!(take(&["x".repeat(200)]).is_err(), "too long a name");
    }

    #[test]
    fn where_there_are_no_places_nobody_is_bound() {
        let bound = bind("host", "kintsugi-test", &Places::Shared).expect("nothing to do");
        assert_eq!(bound, Claim::Held);
        assert!(!is_bound());
    }
}
