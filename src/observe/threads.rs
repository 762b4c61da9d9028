//! Starting threads: where none can be had, what says so in words, and what can do without.

use std::io;
use std::thread::Scope;

use kintsugi_ffi::cgroup;
use kintsugi_ffi::grants::{self, Resource};
use kintsugi_ffi::process;

/// Processes that a control group still allows, below which it is what refuses one.
const FEW: u64 = 2;

/// What the kernel's refusal of a thread or process means, with the limit that it has met.
pub fn explained(error: io::Error) -> io::Error {
    // EAGAIN.
    if error.kind() != io::ErrorKind::WouldBlock {
        return error;
    }
    // The kernel does not hold root to it.
    let limit = grants::limit(Resource::Processes).filter(|_| process::user_id() != 0);
    let free = cgroup::read().processes_free.filter(|free| *free < FEW);
    let why = match (free, limit) {
        (Some(_), _) => "its control group allows no more processes (pids.max)".to_owned(),
        (None, Some(limit)) => format!("the limit on processes (ulimit -u) is {limit}"),
        (None, None) => "a limit of this machine or of a group above is reached (pids.max, \
                         kernel.threads-max, kernel.pid_max)"
            .to_owned(),
    };
    io::Error::new(error.kind(), format!("cannot start a thread or process: {why}; raise it"))
}

/// Has `work` done by this thread and up to `number - 1` others: by as many as can be had.
pub fn share<'scope>(
    scope: &'scope Scope<'scope, '_>,
    number: usize,
    work: impl Fn() + Copy + Send + 'scope,
) {
    for _ in 1..number {
        if std::thread::Builder::new().spawn_scoped(scope, work).is_err() {
            break;
        }
    }
    work();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_want_of_a_thread_is_explained() {
        let error = |number| explained(io::Error::from_raw_os_error(number)).to_string();
        // ENOMEM.
        assert_eq!(error(12), io::Error::from_raw_os_error(12).to_string());
        let limited = process::user_id() != 0 && grants::limit(Resource::Processes).is_some();
        // EAGAIN.
        assert_eq!(error(11).contains("ulimit -u"), limited);
        assert!(error(11).contains("cannot start a thread") && error(11).contains("raise it"));
    }

    #[test]
    fn work_is_shared() {
        let done = std::sync::atomic::AtomicUsize::new(0);
        let work = || {
            done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        };
        std::thread::scope(|scope| share(scope, 3, work));
        assert_eq!(done.into_inner(), 3);
    }
}
