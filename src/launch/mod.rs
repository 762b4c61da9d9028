//! `kintsugi launch`: builds the mpirun line, supervises it, starts it again, and says how the run
//! ended (ARCHITECTURE.md, "The supervisor").
//!
//! `changes` what tells a configuration from a run's · `start` from a configuration to a job ·
//! `attempt` one start of mpirun, and its line · `traces` what an attempt leaves on a machine, and
//! who sees to its end · `ending` what follows from how it ended · `supervisor` the loop over
//! attempts · `stops` who asks for its end · `nodes` several nodes · `machine` what this one gives
//! · `limits` every time-out and their order.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::config::{ConfigError, Shown};
use crate::observe::refusal;
use crate::run_folder::lock::LockError;

use changes::Changes;

pub mod attempt;
pub mod changes;
pub mod ending;
pub mod limits;
pub mod machine;
pub mod nodes;
pub mod start;
pub mod stops;
pub mod supervisor;
pub mod traces;

/// Why a run was not started, or why its supervisor gave it away.
#[derive(Debug, Error)]
pub enum LaunchError {
    /// Exit code 2.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The ranks refused it: exit code 2.
    #[error("{reason}")]
    Refused {
        /// In their words.
        reason: String,
    },
    /// There is no data set where one is named: exit code 3.
    #[error("{reason}")]
    NoData {
        /// The key, its value, and what to write.
        reason: String,
    },
    /// No mpirun: exit code 2.
    #[error(
        "no mpirun found ({looked}); set KINTSUGI_MPIRUN to the mpirun of the Open MPI that this \
         program was built with, or run cluster-scripts/setup.sh and build again"
    )]
    NoMpirun {
        /// Where it was looked for.
        looked: String,
    },
    /// No prterun where one was asked for: exit code 2.
    #[error(
        "run.runtime: {looked}; name the prefix of an installation that cluster-scripts/\
         build-openmpi.sh --runtime made, or \"auto\" with KINTSUGI_RUNTIME unset"
    )]
    NoRuntime {
        /// Where it was looked for.
        looked: String,
    },
    /// What lies there can be exchanged by another user at any moment.
    #[error(
        "{} was put there by user {user}, in a folder where everybody makes names; name another \
         --run-dir",
        path.shown()
    )]
    Planted {
        /// The folder.
        path: PathBuf,
        /// That user's number.
        user: u32,
    },
    /// The folder is somebody else's.
    #[error(
        "{} exists and is not a run (no config.toml in it); name another --run-dir",
        path.shown()
    )]
    NotARun {
        /// The folder.
        path: PathBuf,
    },
    /// Another version of this program began the run: exit code 2.
    #[error(
        "{} was begun by another version, whose config.toml this one cannot read ({reason}); go on \
         with that version, or start anew: in another --run-dir, or by `launch --fresh`",
        path.shown()
    )]
    OtherVersion {
        /// The folder.
        path: PathBuf,
        /// What it stumbles over.
        reason: ConfigError,
    },
    /// The run was started with another configuration.
    #[error(
        "{} was started with other values, which a run that goes on must keep:\n{changes}\n{}\
         put them back, or start anew: in another --run-dir, or by `launch --fresh`",
        path.shown(),
        changes.advice(path)
    )]
    Changed {
        /// The folder.
        path: PathBuf,
        /// What they are.
        changes: Changes,
    },
    /// The run is another launch's: exit code 75 while it holds the run, 85 once it took it over,
    /// or where this one was asked to stop before; or its folder is elsewhere: 2.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A file or process of the supervisor itself: exit code 2 where starting again cannot help.
    #[error("{what}: {source}{}", refusal::advice(source))]
    Io {
        /// What was tried.
        what: String,
        /// What the kernel said.
        source: io::Error,
    },
}

impl LaunchError {
    /// The exit code of `launch` (README, "Exit codes").
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Refused { .. } => 2,
            Self::NoData { .. } => 3,
            Self::NoMpirun { .. } | Self::NoRuntime { .. } => 2,
            Self::Planted { .. } | Self::NotARun { .. } => 2,
            Self::OtherVersion { .. } | Self::Changed { .. } => 2,
            Self::Lock(LockError::Superseded { .. } | LockError::Stopped) => 85,
            Self::Lock(LockError::Moved { .. }) => 2,
            Self::Lock(LockError::Held { .. }) => 75,
            Self::Lock(LockError::Io { source, .. }) | Self::Io { source, .. } => {
                if refusal::remedy(source).is_some() {
                    2
                } else {
                    75
                }
            }
        }
    }

    /// The same once ranks were started: what could be written until then and is read-only now is
    /// ill, as a disk is whose file system the kernel has given up, and may come back.
    fn in_midst(self) -> Self {
        let ill = |source: io::Error| match source.kind() {
            io::ErrorKind::ReadOnlyFilesystem => io::Error::other(format!(
                "{source}; it could be written before: start again when it can be"
            )),
            _ => source,
        };
        match self {
            Self::Io { what, source } => Self::Io { what, source: ill(source) },
            Self::Lock(LockError::Io { what, source }) => {
                Self::Lock(LockError::Io { what, source: ill(source) })
            }
            other => other,
        }
    }
}

/// Names what was tried when the kernel refuses.
fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> LaunchError {
    let what = what.into();
    move |source| LaunchError::Io { what, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_starting_again_cannot_help_is_a_usage_error_and_says_what_to_change() {
        let io = |number| io_error("creating RUN/logs")(io::Error::from_raw_os_error(number));
        let lock = |number| {
            let source = io::Error::from_raw_os_error(number);
            LaunchError::from(LockError::Io { what: "opening RUN/lock".into(), source })
        };
        // ENOENT, EACCES, ENOTDIR, EROFS, ENAMETOOLONG.
        for permanent in [2, 13, 20, 30, 36] {
            assert_eq!((io(permanent).exit_code(), lock(permanent).exit_code()), (2, 2));
            let text = io(permanent).to_string();
            assert!(text.starts_with("creating RUN/logs: ") && text.ends_with(')'), "{text}");
        }
        // Of a run that has begun only EROFS may pass.
        for (number, code) in [(30, 75), (13, 2), (5, 75)] {
            let (io, lock) = (io(number).in_midst(), lock(number).in_midst());
            assert_eq!((io.exit_code(), lock.exit_code()), (code, code), "{number}");
        }
        let text = io(30).in_midst().to_string();
        assert!(text.contains("start again") && !text.contains("name a place"), "{text}");
        // EIO, ENOSPC.
        for passing in [5, 28] {
            assert_eq!((io(passing).exit_code(), lock(passing).exit_code()), (75, 75));
        }
    }
}
