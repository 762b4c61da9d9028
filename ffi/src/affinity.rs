//! Which processors this process may run on, and others of ours (`sched_setaffinity`).

use std::io;
use std::path::Path;

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
    allowed_to(0)
}

/// `thread`: as in /proc/PID/task; 0 is the calling one.
fn allowed_to(thread: i32) -> io::Result<Vec<u32>> {
    let mut set = empty();
    // SAFETY: the set is ours and as large as is said.
    result(unsafe { libc::sched_getaffinity(thread, size_of::<libc::cpu_set_t>(), &raw mut set) })?;
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
        of_each_thread(Path::new("/proc/self/task"), |thread| bind_one(thread, &set))?;
    }
    Ok(())
}

/// Moves every thread of a process, and so those that they will start: from each processor that it
/// may run on to that which stands for it. One that has ended is none, also where its number is
/// somebody else's now.
pub fn move_process(pid: u32, stands_for: impl Fn(u32) -> u32) -> io::Result<()> {
    let moved = of_each_thread(Path::new(&format!("/proc/{pid}/task")), |thread| {
        let old = allowed_to(thread)?;
        let new: Vec<u32> = old.iter().map(|&number| stands_for(number)).collect();
        if new == old { Ok(()) } else { bind_one(thread, &set_of(&new)?) }
    });
    match moved.as_ref().map_err(io::Error::kind) {
        Err(io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => Ok(()),
        _ => moved,
    }
}

/// A thread that ends meanwhile needs nothing any more.
fn of_each_thread(tasks: &Path, then: impl Fn(i32) -> io::Result<()>) -> io::Result<()> {
    let has_ended = |error: &io::Error| error.raw_os_error() == Some(libc::ESRCH);
    for thread in std::fs::read_dir(tasks)? {
        let thread = match thread {
            Err(error) if has_ended(&error) => continue,
            other => other?.file_name(),
        };
        let Some(id) = thread.to_str().and_then(|name| name.parse().ok()) else { continue };
        match then(id) {
            Err(error) if has_ended(&error) => {}
            other => other?,
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

    #[test]
    fn a_process_moves_from_processor_to_processor() {
        let all = allowed().expect("Linux says it");
        let (first, last) = (all[0], all[all.len() - 1]);
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("it starts");
        let place = |number| allowed_to(number).expect("it runs");
        let thread = i32::try_from(child.id()).expect("a number of a process");
        move_process(child.id(), |_| last).expect("it is one of ours");
        assert_eq!(place(thread), [last]);
        move_process(child.id(), |old| if old == last { first } else { old }).expect("so is this");
        assert_eq!(place(thread), [first]);
        child.kill().expect("it runs");
        child.wait().expect("it is ours");
        move_process(child.id(), |_| first).expect("who has ended needs no place");
    }
}
