//! What a panic does: it is told through the console, and where a thread must not die alone it ends
//! the process. A world waits for ever for a rank whose worker is dead, and not for a dead rank.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::PanicHookInfo;

use kintsugi_ffi::ending;

use super::console;

/// Panics are told through the console from now on.
pub fn tell_through_the_console() {
    std::panic::set_hook(Box::new(tell));
}

/// A process that is alone ends with this exit code, not by a signal.
pub fn end_with_code(code: u8) {
    ending::end_with_code(code);
}

fn tell(info: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let backtrace = Backtrace::capture();
    let stack = match backtrace.status() {
        BacktraceStatus::Captured => format!("stack backtrace:\n{backtrace}\n"),
        _ => String::new(),
    };
    let name = thread.name().unwrap_or("<unnamed>");
    console::last_words(&format!("\nthread '{name}' {info}\n{stack}"));
}

/// Runs what this process cannot do without. A panic in it ends the process, whatever else fails.
pub fn vital<T>(work: impl FnOnce() -> T) -> T {
    let ends = EndsTheProcess;
    let done = work();
    std::mem::forget(ends);
    done
}

/// Dropped only by a panic.
struct EndsTheProcess;

impl Drop for EndsTheProcess {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // An exception of C++, which no hook has told.
            ending::say(b"an exception of a library, most likely for want of memory\n");
        }
        ending::end()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, ExitStatus, Stdio};

    use kintsugi_ffi::os;

    use super::*;

    const CASE: &str = "KINTSUGI_TEST_PANIC";

    /// `victim` in a process of its own, whose stderr takes nothing; a hang is ended by SIGALRM.
    fn ended(case: &str) -> ExitStatus {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "observe::panics::tests::victim", "--nocapture"])
            .env(CASE, case)
            .stdout(Stdio::null())
            .stderr(full)
            .status()
            .unwrap()
    }

    /// Does nothing unless it is the victim's process.
    #[test]
    fn victim() {
        let Ok(case) = std::env::var(CASE) else { return };
        os::alarm(20);
        tell_through_the_console();
        if case == "alone" {
            end_with_code(70);
        }
        let worker = std::thread::spawn(|| vital(|| panic!("as a test")));
        let _ = worker.join();
        // Reached only by a process that goes on without its worker.
        os::exit_now(0);
    }

    #[test]
    fn a_thread_that_is_needed_takes_its_process_along_though_nobody_can_be_told() {
        assert_eq!(ended("rank").signal(), Some(6));
        assert_eq!(ended("alone").code(), Some(70));
    }
}
