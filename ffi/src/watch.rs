//! Waiting for the deaths of processes that are not our children, and for their calls, without a
//! core: a pidfd (Linux 5.3) and a bell of each in one poll(2). A process that is gone already
//! counts as dead at once.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use crate::bell;

/// Processes of this machine that are watched.
#[derive(Debug, Default)]
pub struct Watch {
    living: Vec<OwnedFd>,
    /// Bells that have not been rung.
    bells: Vec<OwnedFd>,
    /// Whose bells could not be heard so far.
    unheard: Vec<u32>,
    /// Pids that could not be watched although they live (an old kernel): nothing is known of them.
    unseen: usize,
}

impl Watch {
    /// Watches these; those that are gone already are dead from the start.
    pub fn new(pids: &[u32]) -> Self {
        let mut watch = Self { unheard: pids.to_vec(), ..Self::default() };
        for &pid in pids {
            match open(pid) {
                Ok(descriptor) => watch.living.push(descriptor),
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                Err(_) => watch.unseen += 1,
            }
        }
        watch
    }

    /// How many of them may still live.
    pub fn living(&self) -> usize {
        self.living.len() + self.unseen
    }

    /// Listens for the bells that hang by now. Whoever hangs none is heard by nobody.
    pub fn listen(&mut self) {
        let Self { bells, unheard, .. } = self;
        unheard.retain(|&pid| bell::listen(pid).map(|heard| bells.push(heard)).is_err());
    }

    /// Waits until one more dies or rings, at most so long. Whether one did.
    pub fn wait(&mut self, limit: Duration) -> bool {
        let all = self.living.iter().chain(&self.bells);
        let mut polled: Vec<libc::pollfd> = all
            .map(|fd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 })
            .collect();
        let limit = libc::timespec {
            tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        };
        let number = polled.len() as libc::nfds_t;
        // SAFETY: the array has `number` entries; no signal mask is given.
        let ready = unsafe { libc::ppoll(polled.as_mut_ptr(), number, &limit, std::ptr::null()) };
        if ready <= 0 {
            return false; // nobody, or a signal: the caller looks again anyway
        }
        let mut heard = polled.iter().map(|entry| entry.revents != 0);
        self.living.retain(|_| !heard.next().unwrap_or(false));
        self.bells.retain(|_| !heard.next().unwrap_or(false));
        true
    }
}

fn open(pid: u32) -> io::Result<OwnedFd> {
    let pid = libc::pid_t::try_from(pid).map_err(io::Error::other)?;
    // SAFETY: no memory is involved.
    let code = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    match i32::try_from(code) {
        // SAFETY: the kernel has just made this descriptor for us.
        Ok(descriptor) if descriptor >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_death_wakes_the_watch_and_counts_once() {
        let sleeper = || Command::new("sleep").arg("30").spawn().unwrap();
        let (mut first, mut second) = (sleeper(), sleeper());
        let mut watch = Watch::new(&[first.id(), second.id()]);
        assert!(!watch.wait(Duration::from_millis(5)));
        assert_eq!(watch.living(), 2);
        let begun = Instant::now();
        first.kill().unwrap();
        assert!(watch.wait(Duration::from_secs(20)));
        assert!(begun.elapsed() < Duration::from_secs(15), "the death woke it, not the limit");
        assert_eq!(watch.living(), 1);
        assert!(!watch.wait(Duration::from_millis(5)), "the same death is not news again");
        for child in [&mut first, &mut second] {
            let _ = child.kill();
            child.wait().unwrap();
        }
    }

    #[test]
    fn a_bell_is_heard_at_once_and_by_all_who_listen() {
        let own = [std::process::id()];
        let (mut early, mut late) = (Watch::new(&own), Watch::new(&own));
        early.listen();
        assert!(early.bells.is_empty(), "it hangs no bell yet");
        let bell = bell::Bell::hang().expect("a name that is free");
        early.listen();
        late.listen();
        assert!(!early.wait(Duration::from_millis(5)));
        bell.ring();
        let begun = Instant::now();
        assert!(early.wait(Duration::from_secs(20)) && late.wait(Duration::from_secs(20)));
        assert!(begun.elapsed() < Duration::from_secs(15), "the bell woke them, not the limit");
        assert_eq!((early.living(), early.bells.len()), (1, 0), "nobody died; it rings once");
        // A process that another test starts holds it, too, until it has become its program.
        let until = Instant::now() + Duration::from_secs(10);
        while bell::Bell::hang().is_err() {
            assert!(Instant::now() < until, "its name stays taken");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn who_is_gone_already_is_dead_from_the_start() {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert_eq!(Watch::new(&[child.id()]).living(), 0);
    }
}
