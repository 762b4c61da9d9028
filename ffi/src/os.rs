//! Kernel calls: signals, processes, files, threads.

/// Signals that are sent by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// SIGSTOP.
    Stop,
    /// SIGSEGV.
    Segv,
}

/// Sends a signal to a process.
pub fn kill(pid: u32, signal: Signal) -> std::io::Result<()> {
    let number = match signal {
        Signal::Stop => libc::SIGSTOP,
        Signal::Segv => libc::SIGSEGV,
    };
    // SAFETY: kill takes two integers.
    match unsafe { libc::kill(pid as libc::pid_t, number) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// SIGKILL to this process: nothing is flushed, nothing unwinds.
pub fn kill_self_now() -> ! {
    // SAFETY: getpid and kill take and return integers.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    std::process::abort()
}

/// `_exit`: no destructor and no exit handler runs.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit does not return and touches no memory of ours.
    unsafe { libc::_exit(code) }
}
