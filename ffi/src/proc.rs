//! What the kernel says of a process or thread under /proc, as proc(5) has it. Nothing is said of
//! who is gone, or may not be looked at.

use std::path::Path;

/// `PF_EXITING` (include/linux/sched.h), in the flags.
const PF_EXITING: u64 = 0x4;

/// One look at `/proc/PID/stat`: the fields behind the name, which may hold any character.
#[derive(Debug)]
pub struct Stat(Vec<String>);

impl Stat {
    /// Of a process.
    pub fn of(pid: u32) -> Option<Self> {
        Self::at(format!("/proc/{pid}/stat"))
    }

    /// Of one thread of it.
    pub fn of_thread(pid: u32, thread: u32) -> Option<Self> {
        Self::at(format!("/proc/{pid}/task/{thread}/stat"))
    }

    fn at(path: impl AsRef<Path>) -> Option<Self> {
        let line = std::fs::read(path).ok()?;
        let line = String::from_utf8_lossy(&line);
        let behind_name = line.rsplit_once(')')?.1;
        Some(Self(behind_name.split_ascii_whitespace().map(String::from).collect()))
    }

    /// By its number in proc(5), which counts from 1.
    fn field<T: std::str::FromStr>(&self, number: usize) -> Option<T> {
        self.0.get(number - 3)?.parse().ok()
    }

    /// R, S, D, Z and so on.
    pub fn state(&self) -> Option<char> {
        self.field(3)
    }

    /// Dead, whether its parent knows or not.
    pub fn is_dead(&self) -> bool {
        matches!(self.state(), None | Some('Z' | 'X'))
    }

    /// The same, or on its way there: it executes no instruction of its own any more.
    pub fn ends(&self) -> bool {
        self.is_dead() || self.field(9).is_none_or(|flags: u64| flags & PF_EXITING != 0)
    }

    /// Who started it, or took it over.
    pub fn parent(&self) -> Option<u32> {
        self.field(4)
    }

    /// Since the machine's start, in the kernel's ticks.
    pub fn start_ticks(&self) -> Option<u64> {
        self.field(22)
    }

    /// How it ended, as wait(2) says it.
    pub fn wait_status(&self) -> Option<i32> {
        self.field(52)
    }
}

/// A process's command line, word by word; none of a zombie, or in the middle of exec.
pub fn command_line(pid: u32) -> Vec<Vec<u8>> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    // Each word ends with a zero byte.
    let line = line.strip_suffix(b"\0").unwrap_or(&line);
    if line.is_empty() {
        return Vec::new();
    }
    line.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect()
}
