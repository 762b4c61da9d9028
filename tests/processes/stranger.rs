//! A second user of this machine, for tests that run as root.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

use kintsugi_ffi::process;

/// A user whom every Linux has (nobody), and who owns nothing.
pub const USER: u32 = 65534;

/// A second user, who acts through a shell.
pub struct Stranger(());

impl Stranger {
    /// `None`, with a line that is counted, where this process cannot become another user.
    pub fn new(what: &str) -> Option<Self> {
        let can = process::user_id() == 0 && shell("true").status().is_ok_and(|end| end.success());
        if !can {
            // Not through print!, whose words a passing test keeps to itself.
            let line = format!("skipped: second user: {what} (needs root)\n");
            std::io::stdout().write_all(line.as_bytes()).unwrap();
        }
        can.then_some(Self(()))
    }

    /// Runs it.
    pub fn tries(&self, script: &str) -> Output {
        shell(script).output().expect("a shell starts")
    }

    /// It must succeed.
    pub fn does(&self, script: &str) {
        let output = self.tries(script);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{script}: {said}");
    }
}

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]).uid(USER).gid(USER).current_dir("/").stdin(Stdio::null());
    command
}
