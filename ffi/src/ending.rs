//! The end of a process that cannot go on, at once and without a lock: nothing is flushed, no
//! handler runs, nobody is waited for.

use std::sync::atomic::{AtomicI32, Ordering};

use crate::os;

/// By a signal (SIGABRT): what the others of a world notice at once.
const BY_SIGNAL: i32 = -1;

/// How this process ends.
static ENDING: AtomicI32 = AtomicI32::new(BY_SIGNAL);

/// A process that is alone ends with this exit code, not by a signal.
pub fn end_with_code(code: u8) {
    ENDING.store(i32::from(code), Ordering::Relaxed);
}

/// Says something on standard error without memory, a lock or a buffer. Whether it is heard changes
/// nothing.
pub fn say(words: &[u8]) {
    // SAFETY: the words live for the call.
    unsafe { libc::write(libc::STDERR_FILENO, words.as_ptr().cast(), words.len()) };
}

/// Ends it.
pub fn end() -> ! {
    match ENDING.load(Ordering::Relaxed) {
        BY_SIGNAL => abort(),
        code => os::exit_now(code),
    }
}

/// SIGABRT with what the kernel does about it: MPI's handler prints a stack, which takes memory and
/// locks that whoever ends may lack or hold.
fn abort() -> ! {
    // SAFETY: no memory is involved; the default action is restored before the signal is sent.
    unsafe {
        libc::signal(libc::SIGABRT, libc::SIG_DFL);
        let mut aborts: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut aborts);
        libc::sigaddset(&raw mut aborts, libc::SIGABRT);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const aborts, std::ptr::null_mut());
        libc::raise(libc::SIGABRT);
    }
    os::kill_self_now() // not reached
}
