//! Which processors this process may run on (`sched_setaffinity`).

use std::io;

use crate::os::result;

/// Passes over the threads: one that was started meanwhile by a thread not yet bound is met by the
/// next pass.
const PASSES: usize = 2;

fn empty() -> libc::cpu_set_t {
    // SAFETY: a set of processors is bits, and none is set.
    unsafe { std::mem::zeroed() }
}

/// The processors of the calling thread, ascending. Those beyond the 1024th are not seen.
pub fn allowed() -> io::Result<Vec<u32>> {
    let mut set = empty();
    // SAFETY: the set is ours and as large as is said.
    result(unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) })?;
    // SAFETY: every number is below the set's size.
    let has = |number: &u32| unsafe { libc::CPU_ISSET(*number as usize, &set) };
    Ok((0..libc::CPU_SETSIZE as u32).filter(has).collect())
}

fn set_of(processors: &[u32]) -> io::Result<libc::cpu_set_t> {
    let mut set = empty();
    for &number in processors {
        if number as usize >= libc::CPU_SETSIZE as usize {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        // SAFETY: the number is below the set's size.
        unsafe { libc::CPU_SET(number as usize, &mut set) };
    }
    Ok(set)
}

/// `thread`: as in /proc/PID/task; 0 is the calling one.
fn bind_one(thread: i32, set: &libc::cpu_set_t) -> io::Result<()> {
    // SAFETY: the set is as large as is said.
    result(unsafe { libc::sched_setaffinity(thread, size_of::<libc::cpu_set_t>(), set) }).map(drop)
}

/// Binds the calling thread, and so what it will start, to these processors.
pub fn bind_thread(processors: &[u32]) -> io::Result<()> {
    bind_one(0, &set_of(processors)?)
}

/// Binds every thread of this process, and so those that they will start, to these processors.
pub fn bind(processors: &[u32]) -> io::Result<()> {
    let set = set_of(processors)?;
    for _ in 0..PASSES {
        for thread in std::fs::read_dir("/proc/self/task")? {
            let name = thread?.file_name();
            let Some(id) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            match bind_one(id, &set) {
                // It has ended meanwhile.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                other => other?,
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_bound_with_the_threads_that_it_has_and_starts() {
        let all = allowed().expect("Linux says it");
        assert!(!all.is_empty());
        // A process of its own: other tests go on in this one.
        if std::env::var_os("KINTSUGI_BINDS").is_none() {
            let program = std::env::current_exe().expect("the test program");
            let name =
                "affinity::tests::a_process_is_bound_with_the_threads_that_it_has_and_starts";
            let mut command = std::process::Command::new(program);
            let ended = command.args(["--exact", name]).env("KINTSUGI_BINDS", "1").output();
            let ended = ended.expect("it starts");
            assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
            return;
        }
        let (begin, wait) = std::sync::mpsc::channel::<()>();
        let before = std::thread::spawn(move || (wait.recv(), allowed().expect("Linux says it")));
        bind(&all[..1]).expect("it is one of ours");
        begin.send(()).expect("it waits");
        assert_eq!(before.join().expect("it ends").1, all[..1]);
        assert_eq!(allowed().expect("Linux says it"), all[..1]);
        let after = std::thread::spawn(|| allowed().expect("Linux says it"));
        assert_eq!(after.join().expect("it ends"), all[..1]);
        assert!(bind(&[4096]).is_err() && bind(&[]).is_err());
    }
}
