//! Error classes of the shim as enums.

use std::ffi::{CStr, c_char};

use thiserror::Error;

use super::sys;

/// What an MPI call returned, when not success.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum MpiError {
    /// `MPIX_ERR_PROC_FAILED`: a process that the call needs is dead.
    #[error("{call}: a process failed")]
    ProcFailed {
        /// The MPI call.
        call: &'static str,
    },
    /// `MPIX_ERR_REVOKED`: somebody revoked the communicator.
    #[error("{call}: the communicator was revoked")]
    Revoked {
        /// The MPI call.
        call: &'static str,
    },
    /// `MPIX_ERR_PROC_FAILED_PENDING`: a receive from anybody met a death.
    #[error("{call}: a pending operation met a failed process")]
    Pending {
        /// The MPI call.
        call: &'static str,
    },
    /// Nothing came within the limit of the call.
    #[error("{call}: nothing came in time")]
    TimedOut {
        /// The MPI call.
        call: &'static str,
    },
    /// Any other error class.
    #[error("{call}: MPI error class {class}: {text}")]
    Other {
        /// The MPI call.
        call: &'static str,
        /// `MPI_Error_class`; negative for the shim's own (no memory).
        class: i32,
        /// `MPI_Error_string`.
        text: String,
    },
}

impl MpiError {
    /// The error class, as this MPI numbers it (-1 for a time-out).
    pub fn class(&self) -> i32 {
        match self {
            Self::ProcFailed { .. } => class_number(sys::SHIM_PROC_FAILED),
            Self::Revoked { .. } => class_number(sys::SHIM_REVOKED),
            Self::Pending { .. } => class_number(sys::SHIM_PROC_FAILED_PENDING),
            Self::TimedOut { .. } => sys::SHIM_TIMED_OUT,
            Self::Other { class, .. } => *class,
        }
    }
}

/// Whether the work-arounds of `ulfm-shim/ompi_workarounds.c` protect this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workarounds {
    /// This is not the version they were made for.
    NotNeeded,
    /// On, and libmpi calls them.
    Active,
    /// Needed, but libmpi does not call them (the program was linked without `-rdynamic`).
    Unreached,
    /// Needed, but this build's structures are laid out differently, so they are off.
    UnknownLayout,
}

impl Workarounds {
    pub(super) fn from_state(state: i32) -> Self {
        match state {
            sys::SHIM_WORKAROUNDS_NOT_NEEDED => Self::NotNeeded,
            sys::SHIM_WORKAROUNDS_ACTIVE => Self::Active,
            sys::SHIM_WORKAROUNDS_UNREACHED => Self::Unreached,
            _ => Self::UnknownLayout,
        }
    }
}

fn class_number(which: i32) -> i32 {
    // SAFETY: a pure function of its argument.
    unsafe { sys::shim_class_number(which) }
}

/// What a class that a shim function returned means.
pub(super) fn check(call: &'static str, class: i32) -> Result<(), MpiError> {
    if class == 0 {
        return Ok(());
    }
    Err(if class == sys::SHIM_TIMED_OUT {
        MpiError::TimedOut { call }
    } else if class == sys::SHIM_NO_ROOM {
        MpiError::Other { call, class, text: "out of memory".into() }
    } else if class == class_number(sys::SHIM_PROC_FAILED) {
        MpiError::ProcFailed { call }
    } else if class == class_number(sys::SHIM_REVOKED) {
        MpiError::Revoked { call }
    } else if class == class_number(sys::SHIM_PROC_FAILED_PENDING) {
        MpiError::Pending { call }
    } else {
        MpiError::Other { call, class, text: text_of(class) }
    })
}

/// `MPI_Error_string` of a class.
pub(super) fn text_of(class: i32) -> String {
    text(|buffer, size| {
        // SAFETY: the shim writes at most `size` bytes, zero-terminated.
        unsafe { sys::shim_error_text(class, buffer, size) }
    })
}

/// Runs a shim function that fills a text buffer.
pub(super) fn text(fill: impl FnOnce(*mut c_char, i32) -> i32) -> String {
    const BYTES: usize = 1024;
    let mut buffer = [0 as c_char; BYTES];
    fill(buffer.as_mut_ptr(), BYTES as i32);
    buffer[BYTES - 1] = 0;
    // SAFETY: the buffer is initialised and its last byte is zero.
    let text = unsafe { CStr::from_ptr(buffer.as_ptr()) };
    text.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_that_start_recovery_have_their_own_names() {
        assert_eq!(check("call", 0), Ok(()));
        assert_eq!(check("call", 75), Err(MpiError::ProcFailed { call: "call" }));
        assert_eq!(check("call", 76), Err(MpiError::Pending { call: "call" }));
        assert_eq!(check("call", 77), Err(MpiError::Revoked { call: "call" }));
        for class in [75, 76, 77] {
            assert_eq!(check("call", class).expect_err("not success").class(), class);
        }
    }

    #[test]
    fn other_classes_keep_their_number_and_text() {
        let error = check("MPI_Comm_spawn", 5).expect_err("MPI_ERR_COMM");
        assert_eq!(error.class(), 5);
        assert!(error.to_string().contains("MPI_ERR_COMM"), "{error}");
    }
}
