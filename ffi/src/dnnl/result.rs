//! oneDNN's status codes as an enum.

use super::sys;

/// Why oneDNN refused (`dnnl_status_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Status {
    OutOfMemory,
    InvalidArguments,
    Unimplemented,
    LastImplReached,
    RuntimeError,
    NotRequired,
    Other(i32),
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::OutOfMemory => f.write_str("out of memory"),
            Self::InvalidArguments => f.write_str("invalid arguments"),
            Self::Unimplemented => f.write_str("no implementation for these shapes on this CPU"),
            Self::LastImplReached => f.write_str("no further implementation"),
            Self::RuntimeError => f.write_str("run-time error"),
            Self::NotRequired => f.write_str("not required"),
            Self::Other(code) => write!(f, "status {code}"),
        }
    }
}

/// A call that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// oneDNN's own refusal.
    #[error("oneDNN {call}: {status}")]
    Call {
        /// Which call.
        call: &'static str,
        /// What it said.
        status: Status,
    },
    /// Arguments that this wrapper refuses before oneDNN sees them.
    #[error("oneDNN {call}: {reason}")]
    Refused {
        /// Which call.
        call: &'static str,
        /// What is wrong.
        reason: String,
    },
}

/// Turns a status into a result.
pub fn check(call: &'static str, status: sys::status) -> Result<(), Error> {
    let status = match status {
        sys::SUCCESS => return Ok(()),
        1 => Status::OutOfMemory,
        2 => Status::InvalidArguments,
        3 => Status::Unimplemented,
        4 => Status::LastImplReached,
        5 => Status::RuntimeError,
        6 => Status::NotRequired,
        other => Status::Other(other),
    };
    Err(Error::Call { call, status })
}
