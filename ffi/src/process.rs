//! A child process that does not outlive the one that supervises it; who started whom.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::os::{self, Signal};
use crate::proc::Stat;

/// The child gets a process group of its own and receives `at_our_death` when the *thread* that
/// spawns it ends (prctl(2), PR_SET_PDEATHSIG): spawn it from one that lives as long as it should.
pub fn supervise(command: &mut Command, at_our_death: Signal) {
    let parent = std::process::id();
    command.process_group(0);
    // SAFETY: between fork and exec only async-signal-safe calls are made (prctl, getppid, _exit),
    // and no memory is touched but the two captured integers.
    unsafe {
        command.pre_exec(move || -> io::Result<()> {
            os::set_parent_death_signal(at_our_death)?;
            // The parent may have died before the request was in place.
            if os::parent_pid() != parent {
                os::exit_now(137);
            }
            Ok(())
        });
    }
}

/// The child is in the control group whose `cgroup.procs` is open for writing in `entrance` before
/// it runs anything, and so is all that it starts.
pub fn enter(command: &mut Command, entrance: File) {
    // SAFETY: between fork and exec only write(2) is called, which is async-signal-safe, with a
    // descriptor that the closure owns and a constant.
    unsafe {
        command.pre_exec(move || -> io::Result<()> {
            // 0 stands for the writer.
            let written = libc::write(entrance.as_raw_fd(), c"0".as_ptr().cast(), 1);
            if written == 1 { Ok(()) } else { Err(io::Error::last_os_error()) }
        });
    }
}

/// Closes every descriptor from `first` on: for a process that was started by one with open files
/// that are none of its business.
pub fn close_files_from(first: u32) -> io::Result<()> {
    // SAFETY: the caller has no owner of such a descriptor left; std keeps none at the start.
    let code = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Who lives and was started by one of these.
pub fn children_of(parents: &[u32]) -> Vec<u32> {
    let is_child = |(_, parent): &(u32, u32)| parents.contains(parent);
    living().into_iter().filter(is_child).map(|(process, _)| process).collect()
}

/// Who lives and was started by this one, or by whoever it started.
pub fn descendants_of(ancestor: u32) -> Vec<u32> {
    let living = living();
    let mut found = vec![ancestor];
    let mut at = 0;
    while let Some(&parent) = found.get(at) {
        let children = living.iter().filter(|(_, of)| *of == parent).map(|(process, _)| *process);
        found.extend(children);
        at += 1;
    }
    found.split_off(1)
}

/// Every process with its parent. Who ends meanwhile may be missing.
fn living() -> Vec<(u32, u32)> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| Some((pid, Stat::of(pid)?.parent()?))).collect()
}

/// The calling thread's number, as in /proc/PID/task.
pub fn thread_id() -> u32 {
    // SAFETY: cannot fail, no memory.
    unsafe { libc::gettid() }.cast_unsigned()
}

/// The effective user's number.
pub fn user_id() -> u32 {
    // SAFETY: geteuid takes nothing, cannot fail and touches no memory.
    unsafe { libc::geteuid() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper(at_our_death: Signal) -> std::process::Child {
        let mut command = Command::new("sleep");
        command.arg("60");
        supervise(&mut command, at_our_death);
        command.spawn().unwrap()
    }

    #[test]
    fn a_supervised_child_leads_its_own_group() {
        let mut child = sleeper(Signal::Kill);
        os::kill_group(child.id(), Signal::Kill).unwrap();
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn a_child_ends_with_the_thread_that_spawned_it() {
        let mut child = std::thread::spawn(|| sleeper(Signal::Terminate)).join().unwrap();
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn who_started_whom_is_found() {
        let mut shell = Command::new("sh").args(["-c", "sleep 60 & wait"]).spawn().expect("sh");
        let (us, shell_id) = (std::process::id(), shell.id());
        assert!(children_of(&[us]).contains(&shell_id));
        let mut below = Vec::new();
        let late = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while below.is_empty() && std::time::Instant::now() < late {
            below = descendants_of(shell_id);
        }
        let [sleep] = below[..] else { panic!("one sleeps: {below:?}") };
        assert!(descendants_of(us).contains(&sleep) && !children_of(&[us]).contains(&sleep));
        assert_eq!(descendants_of(sleep), [0; 0]);
        os::kill(sleep, Signal::Kill).expect("it sleeps");
        shell.wait().expect("it is ours");
    }
}
