//! Kernel calls that std does not wrap: signals, processes, limits of files and memory, threads.

use std::ffi::{CString, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

use crate::proc::Stat;

pub use crate::lock::{Lock, lock_file};

/// The signals the project sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Ends a process without its leave.
    Kill,
    /// Freezes it.
    Stop,
    /// Thaws it.
    Continue,
    /// Asks it to end.
    Terminate,
    /// Ctrl-C.
    Interrupt,
    /// "Checkpoint and stop" (forwarded by mpirun at once).
    User1,
    /// What a wild pointer gets.
    Segv,
}

impl Signal {
    /// The kernel's number.
    pub fn number(self) -> i32 {
        match self {
            Self::Kill => libc::SIGKILL,
            Self::Stop => libc::SIGSTOP,
            Self::Continue => libc::SIGCONT,
            Self::Terminate => libc::SIGTERM,
            Self::Interrupt => libc::SIGINT,
            Self::User1 => libc::SIGUSR1,
            Self::Segv => libc::SIGSEGV,
        }
    }
}

pub(crate) fn result(code: libc::c_int) -> io::Result<()> {
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn pid_of(pid: u32) -> io::Result<libc::pid_t> {
    libc::pid_t::try_from(pid)
        .ok()
        .filter(|pid| *pid > 0)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, format!("{pid} is no pid")))
}

/// Sends a signal to one process.
pub fn kill(pid: u32, signal: Signal) -> io::Result<()> {
    let pid = pid_of(pid)?;
    // SAFETY: no memory is involved; pid > 0 names one process.
    result(unsafe { libc::kill(pid, signal.number()) })
}

/// Sends a signal to every process of a group.
pub fn kill_group(group: u32, signal: Signal) -> io::Result<()> {
    let group = pid_of(group)?;
    // SAFETY: no memory is involved; group > 0 names one process group.
    result(unsafe { libc::killpg(group, signal.number()) })
}

/// SIGKILL of this process, as if from outside: no destructor, no handler.
pub fn kill_self_now() -> ! {
    // SAFETY: no memory is involved.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    exit_now(137) // not reached: SIGKILL cannot be blocked
}

/// `_exit`: no destructor, no exit handler (MPI's would communicate).
pub fn exit_now(code: i32) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(code) }
}

/// Sets variables of this process, for the libraries that it calls; nothing where it has more than
/// one thread, any of which might read the environment meanwhile.
pub fn set_variables(variables: &[(String, &str)]) {
    let threads = std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    if threads != 1 {
        return;
    }
    for (name, value) in variables {
        // SAFETY: no other thread is there that could read or write the environment.
        unsafe { std::env::set_var(name, value) };
    }
}

static KEPT: OnceLock<Vec<(OsString, OsString)>> = OnceLock::new();

/// Keeps all variables for `variable`. To be called before a second thread is there: libraries set
/// some of their own (MPI as it starts), and whoever reads the environment meanwhile can miss any.
pub fn keep_environment() {
    KEPT.get_or_init(|| std::env::vars_os().collect());
}

/// A variable of this process: as it was kept, else as it is.
pub fn variable(name: &str) -> Option<OsString> {
    match KEPT.get() {
        Some(kept) => kept.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone()),
        None => std::env::var_os(name),
    }
}

/// Whether a process exists and is not a zombie.
pub fn process_is_alive(pid: u32) -> bool {
    Stat::of(pid).is_some_and(|stat| !stat.is_dead())
}

/// The process that started this one; 1 (or a reaper) when it is gone.
pub fn parent_pid() -> u32 {
    // SAFETY: cannot fail, no memory.
    unsafe { libc::getppid() }.cast_unsigned()
}

/// Has the kernel send `signal` when the *thread* that started this process ends.
pub fn set_parent_death_signal(signal: Signal) -> io::Result<()> {
    let number = libc::c_ulong::from(signal.number().cast_unsigned());
    // SAFETY: sets an attribute of this process.
    result(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, number) })
}

/// From now on the kernel gives this process no new huge pages; it keeps those it has
/// (PR_SET_THP_DISABLE). Where a kernel does not know that, nothing changes.
pub fn stop_huge_pages() {
    // SAFETY: sets an attribute of this process.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
}

/// The kernel forgets what it has of a file's bytes in memory (posix_fadvise(2)): the next reader
/// gets them from the device. What is not yet written stays: sync it first.
pub fn forget_pages(file: &File) -> io::Result<()> {
    // SAFETY: the descriptor is open; no memory is involved.
    match unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) } {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

/// Gives back to the kernel what was freed and lies between memory in use (malloc_trim(3)); a
/// millisecond or two. Nothing with another C library than glibc.
pub fn return_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: touches free memory only, under the allocator's own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Gives a child a session of its own: no terminal, no group of ours, outlives its parent.
pub fn detach(command: &mut Command) {
    // SAFETY: setsid is async-signal-safe.
    unsafe {
        command
            .pre_exec(|| if libc::setsid() < 0 { Err(io::Error::last_os_error()) } else { Ok(()) })
    };
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It exited with this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

impl Ended {
    /// Reads a status as wait(2) gives it.
    pub fn from_wait_status(status: i32) -> Self {
        ended(ExitStatus::from_raw(status))
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(number) => write!(f, "signal {number} ({})", signal_name(*number)),
        }
    }
}

/// Reads a wait status.
pub fn ended(status: ExitStatus) -> Ended {
    match (status.code(), status.signal()) {
        (Some(code), _) => Ended::Code(code),
        (None, Some(signal)) => Ended::Signal(signal),
        (None, None) => Ended::Code(-1),
    }
}

/// "SIGKILL" for 9; "signal" for those without a common name.
pub fn signal_name(number: i32) -> &'static str {
    match number {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGUSR1 => "SIGUSR1",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGUSR2 => "SIGUSR2",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGSTOP => "SIGSTOP",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        libc::SIGXCPU => "SIGXCPU",
        libc::SIGXFSZ => "SIGXFSZ",
        _ => "signal",
    }
}

/// The node's name.
pub fn hostname() -> String {
    let mut name = [0_u8; 256];
    // SAFETY: the buffer has the given length; the last byte stays zero.
    let code = unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) };
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(0);
    if code == 0 && end > 0 {
        String::from_utf8_lossy(&name[..end]).into_owned()
    } else {
        "localhost".into()
    }
}

/// Identifies where a pid has a meaning: this boot of this kernel and this pid namespace. Equal on
/// two processes exactly when one may signal the other by pid.
pub fn pid_space() -> u64 {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let text = format!("{}\n{}\n{}", boot.trim(), namespace.display(), hostname());
    // FNV-1a: any fixed hash will do; std's is seeded per process.
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// The same pids with 0 for those that this process cannot see in its own pid namespace.
pub fn visible(pids: &[u32]) -> Vec<u32> {
    let space = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/pid")).ok();
    let own = space("self");
    let seen = |pid: u32| pid != 0 && own.is_some() && space(&pid.to_string()) == own;
    pids.iter().map(|&pid| if seen(pid) { pid } else { 0 }).collect()
}

fn zero_terminated(path: &Path) -> io::Result<CString> {
    use std::os::unix::ffi::OsStrExt;
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "the path holds a zero byte"))
}

fn statvfs(path: &Path) -> io::Result<libc::statvfs> {
    let path = zero_terminated(path)?;
    let mut answer = std::mem::MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: the path is zero-terminated and the kernel fills the structure.
    result(unsafe { libc::statvfs(path.as_ptr(), answer.as_mut_ptr()) })?;
    // SAFETY: filled above; all zero bytes would be valid too.
    Ok(unsafe { answer.assume_init() })
}

/// Bytes that this user may still write on the file system of `path`.
pub fn free_disk_bytes(path: &Path) -> io::Result<u64> {
    statvfs(path).map(|answer| answer.f_bavail.saturating_mul(answer.f_frsize))
}

/// Whether programs and libraries may be loaded from below `path`: not where it is mounted
/// `noexec`.
pub fn may_execute(path: &Path) -> io::Result<bool> {
    statvfs(path).map(|answer| answer.f_flag & libc::ST_NOEXEC == 0)
}

/// File systems that several machines may see, by their magic numbers (statfs(2)). FUSE among them:
/// nobody knows what is behind it.
const NETWORK_FILE_SYSTEMS: [(u32, &str); 14] = [
    (0x6969, "nfs"),
    (0x0BD0_0BD0, "lustre"),
    (0x4750_4653, "gpfs"),
    (0x1983_0326, "beegfs"),
    (0x00C3_6400, "ceph"),
    (0xFF53_4D42, "cifs"),
    (0xFE53_4D42, "smb2"),
    (0x517B, "smb"),
    (0x5346_414F, "afs"),
    (0x6B41_4653, "kafs"),
    (0xAAD7_AAEA, "panfs"),
    (0x2003_0528, "orangefs"),
    (0x0102_1997, "9p"),
    (0x6573_5546, "fuse"),
];

fn network_name(magic: u32) -> Option<&'static str> {
    NETWORK_FILE_SYSTEMS.iter().find(|known| known.0 == magic).map(|known| known.1)
}

/// The name of the network file system that `path` lies on, if it does on one.
pub fn network_file_system(path: &Path) -> io::Result<Option<&'static str>> {
    let path = zero_terminated(path)?;
    let mut answer = std::mem::MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the path is zero-terminated and the kernel fills the structure.
    result(unsafe { libc::statfs(path.as_ptr(), answer.as_mut_ptr()) })?;
    // SAFETY: filled above; all zero bytes would be valid too.
    let magic = unsafe { answer.assume_init() }.f_type;
    // Magic numbers have 32 bits; where the field has no more, the highest is its sign.
    Ok(network_name((magic & 0xFFFF_FFFF) as u32))
}

fn memory_info(key: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Bytes of memory of this machine.
pub(crate) fn total_memory_bytes() -> Option<u64> {
    memory_info("MemTotal")
}

/// Bytes that can be allocated without swapping (the kernel's estimate).
pub(crate) fn available_memory_bytes() -> Option<u64> {
    memory_info("MemAvailable")
}

/// Standard error goes to this file from now on (C libraries' too).
pub fn redirect_stderr(file: &File) -> io::Result<()> {
    // SAFETY: both are open descriptors; std holds no lock on descriptor 2.
    let code = unsafe { libc::dup2(file.as_raw_fd(), libc::STDERR_FILENO) };
    if code < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// SIGALRM in so many seconds (its default ends the process); 0 disarms. One per process: a new
/// one replaces the old.
pub fn alarm(seconds: u32) {
    // SAFETY: no memory.
    unsafe { libc::alarm(seconds) };
}

static LAST_WORDS: AtomicPtr<&'static str> = AtomicPtr::new(std::ptr::null_mut());

extern "C" fn die_loudly(_signal: libc::c_int) {
    // SAFETY: null, or a leaked box that is never freed; write and kill are async-signal-safe.
    unsafe {
        if let Some(words) = LAST_WORDS.load(Ordering::Acquire).as_ref() {
            libc::write(libc::STDERR_FILENO, words.as_ptr().cast(), words.len());
        }
    }
    kill_self_now()
}

/// Ends this process with a line on standard error in so many seconds, unless disarmed with
/// `alarm(0)`: the guard around a call that may block for ever. `words` end with a newline.
pub fn die_after(seconds: u32, words: &'static str) {
    // Leaked on purpose: the handler may run at any time (some bytes per repair).
    LAST_WORDS.store(Box::into_raw(Box::new(words)), Ordering::Release);
    // SAFETY: the handler calls only async-signal-safe functions.
    unsafe { libc::signal(libc::SIGALRM, die_loudly as *const () as libc::sighandler_t) };
    alarm(seconds);
}

extern "C" fn exit_quietly(_signal: libc::c_int) {
    exit_now(0)
}

/// `_exit(0)` in so many seconds: for a clean-up that may block after all results are written.
pub fn exit_after(seconds: u32) {
    // SAFETY: the handler calls only _exit, which is async-signal-safe.
    unsafe { libc::signal(libc::SIGALRM, exit_quietly as *const () as libc::sighandler_t) };
    alarm(seconds);
}

fn clock(id: libc::clockid_t) -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills the structure; these clocks exist on every Linux.
    unsafe { libc::clock_gettime(id, &mut now) };
    Duration::new(now.tv_sec.try_into().unwrap_or(0), now.tv_nsec.try_into().unwrap_or(0))
}

/// The machine's monotonic clock: comparable between the processes of a node.
pub fn monotonic_time() -> Duration {
    clock(libc::CLOCK_MONOTONIC)
}

/// Time since this machine was started, suspensions included: nobody can set it.
pub fn since_boot() -> Duration {
    clock(libc::CLOCK_BOOTTIME)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// A child that lives until it is killed.
    fn sleeper() -> Command {
        let mut command = Command::new("sleep");
        command.arg("30");
        command
    }

    #[test]
    fn a_killed_process_is_dead_and_says_by_what() {
        let mut child = sleeper().spawn().expect("sleep starts");
        assert!(process_is_alive(child.id()));
        kill(child.id(), Signal::Kill).expect("it is ours");
        let status = child.wait().expect("it was started");
        assert_eq!(ended(status), Ended::Signal(9));
        assert_eq!(ended(status).to_string(), "signal 9 (SIGKILL)");
        assert!(!process_is_alive(child.id()));
    }

    #[test]
    fn a_zombie_is_not_alive() {
        let mut child = sleeper().spawn().expect("sleep starts");
        kill(child.id(), Signal::Kill).expect("it is ours");
        let dead = (0..100).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            !process_is_alive(child.id())
        });
        assert!(dead);
        child.wait().expect("it was started");
    }

    #[test]
    fn a_locked_file_is_busy_until_its_holder_closes_it() {
        let path = std::env::temp_dir().join(format!("kintsugi-lock-{}", std::process::id()));
        let first = File::create(&path).expect("a temporary file");
        let second = File::open(&path).expect("a temporary file");
        assert_eq!(lock_file(&first).expect("flock"), Lock::Taken);
        assert_eq!(lock_file(&second).expect("flock"), Lock::Busy);
        drop(first);
        // A process that another test starts holds it, too, until it has become its program.
        let until = Instant::now() + Duration::from_secs(10);
        while lock_file(&second).expect("flock") == Lock::Busy {
            assert!(Instant::now() < until, "it stays locked");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::fs::remove_file(&path).expect("ours");
    }

    #[test]
    fn pid_0_is_refused() {
        assert!(kill(0, Signal::Continue).is_err());
        assert!(kill(u32::MAX, Signal::Continue).is_err());
    }

    #[test]
    fn the_machine_has_a_name_memory_and_disk() {
        assert!(!hostname().is_empty());
        let total = total_memory_bytes().expect("/proc/meminfo");
        let available = available_memory_bytes().expect("/proc/meminfo");
        assert!(available <= total && available > 0);
        assert!(free_disk_bytes(Path::new("/")).is_ok());
        assert!(free_disk_bytes(Path::new("/no/such/folder")).is_err());
        assert_eq!(pid_space(), pid_space());
    }

    #[test]
    fn a_file_system_of_the_network_is_known_by_its_magic_number() {
        assert_eq!(network_name(0x6969), Some("nfs"));
        assert_eq!(network_name(0x0BD0_0BD0), Some("lustre"));
        for local in [0x0102_1994, 0xEF53, 0x5846_5342, 0x794C_7630] {
            assert_eq!(network_name(local), None, "tmpfs, ext4, xfs, overlay");
        }
        assert_eq!(network_file_system(Path::new("/proc")).expect("it is there"), None);
        assert!(network_file_system(Path::new("/no/such/folder")).is_err());
    }
}
