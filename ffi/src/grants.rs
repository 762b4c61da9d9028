//! What the kernel grants this process: resource limits (ulimit), and network interfaces.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::io;

/// What a limit is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// Bytes of a file that is written (`ulimit -f`).
    FileBytes,
    /// Processes and threads of this user (`ulimit -u`); root has no such limit.
    Processes,
    /// Bytes of address space (`ulimit -v`).
    AddressBytes,
    /// Open files (`ulimit -n`).
    OpenFiles,
}

/// The limit in force; `None` where there is none.
pub fn limit(resource: Resource) -> Option<u64> {
    let number = match resource {
        Resource::FileBytes => libc::RLIMIT_FSIZE,
        Resource::Processes => libc::RLIMIT_NPROC,
        Resource::AddressBytes => libc::RLIMIT_AS,
        Resource::OpenFiles => libc::RLIMIT_NOFILE,
    };
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel fills the structure.
    if unsafe { libc::getrlimit(number, &raw mut limit) } != 0 {
        return None;
    }
    Some(limit.rlim_cur).filter(|bound| *bound != libc::RLIM_INFINITY)
}

/// Names of the network interfaces that are up and have an internet address, loopback among them,
/// without the labels of further addresses.
pub fn interfaces_up() -> io::Result<Vec<String>> {
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the library stores a list, which is freed below.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut names = BTreeSet::new();
    let mut next = first;
    while !next.is_null() {
        // SAFETY: an entry of the list, which is not freed yet.
        let entry = unsafe { &*next };
        next = entry.ifa_next;
        let up = entry.ifa_flags & libc::IFF_UP as u32 != 0;
        if !up || entry.ifa_addr.is_null() {
            continue;
        }
        // SAFETY: it is an address, which begins with its family.
        let family = i32::from(unsafe { (*entry.ifa_addr).sa_family });
        if family == libc::AF_INET || family == libc::AF_INET6 {
            // SAFETY: the name of an entry is zero-terminated.
            let name = unsafe { CStr::from_ptr(entry.ifa_name) };
            names.insert(device(&name.to_string_lossy()).to_owned());
        }
    }
    // SAFETY: made by getifaddrs and not used any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(names.into_iter().collect())
}

/// The interface that an address of this label belongs to: a second one is called `eth0:1`.
fn device(label: &str) -> &str {
    label.split(':').next().unwrap_or(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_names_its_interface() {
        assert_eq!(["eth0", "eth0:1", "lo:0"].map(device), ["eth0", "eth0", "lo"]);
    }

    #[test]
    fn limits_are_those_that_the_kernel_names() {
        let text = std::fs::read_to_string("/proc/self/limits").unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
        let soft = line.split_whitespace().next().unwrap();
        assert_eq!(limit(Resource::OpenFiles), soft.parse().ok());
    }

    #[test]
    fn interfaces_that_are_up_are_among_those_that_are_there() {
        let there = std::fs::read_to_string("/proc/net/dev").unwrap();
        let up = interfaces_up().unwrap();
        assert!(up.iter().all(|name| there.contains(&format!("{name}:"))), "{up:?} {there}");
    }
}
