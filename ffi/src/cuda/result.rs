//! What a failed call of the driver, of NVRTC or of cuDNN becomes. Their codes stay plain numbers:
//! a newer library may know more of them than any list here.

use std::ffi::{CStr, c_char};

/// Success, in all three libraries.
pub(super) const SUCCESS: i32 = 0;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: i32 = 2;
/// `CUDA_ERROR_INVALID_VALUE`, the answer to questions about a parameter behind the last.
pub(super) const NO_SUCH_PARAMETER: i32 = 1;
/// `CUDA_ERROR_NO_DEVICE`.
const NO_DEVICE: i32 = 100;

/// A call that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The library's own refusal.
    #[error("{call}: {code}{}", told(name, text))]
    Call {
        /// Which call, by its C name.
        call: &'static str,
        /// The status.
        code: i32,
        /// The library's name of it; empty where it knows none.
        name: String,
        /// The library's words for it; empty where it has none.
        text: String,
    },
    /// A source that NVRTC does not take, with what it wrote.
    #[error("NVRTC refuses {file}:\n{log}")]
    Source {
        /// The source's name.
        file: String,
        /// The compiler's messages.
        log: String,
    },
    /// Arguments that this wrapper refuses before the library sees them.
    #[error("{call}: {reason}")]
    Refused {
        /// Which call.
        call: &'static str,
        /// What is wrong.
        reason: String,
    },
}

fn told(name: &str, text: &str) -> String {
    match (name, text) {
        ("", "") => String::new(),
        ("", text) => format!(" ({text})"),
        (name, "") => format!(" {name}"),
        (name, text) => format!(" {name} ({text})"),
    }
}

impl Error {
    /// The library's status, if it was the library that refused.
    pub fn code(&self) -> Option<i32> {
        match self {
            Self::Call { code, .. } => Some(*code),
            Self::Source { .. } | Self::Refused { .. } => None,
        }
    }

    /// The device has no more memory: everything else on it goes on.
    pub fn is_out_of_memory(&self) -> bool {
        self.of_driver() == Some(OUT_OF_MEMORY)
    }

    /// The driver is there, a device is not.
    pub fn is_no_device(&self) -> bool {
        self.of_driver() == Some(NO_DEVICE)
    }

    /// Whether every further call of this process fails too, so that it has to end ("the process
    /// must be terminated and relaunched": CUDA driver API, `CUresult`), or its device is gone: a
    /// context that is none any more, memory or a link that is broken, an error without a name.
    pub fn ends_the_process(&self) -> bool {
        const OF_KERNELS: [i32; 4] = [700, 702, 710, 721];
        const OF_CONTEXTS: [i32; 4] = [46, 201, 709, 810];
        const OF_HARDWARE: [i32; 5] = [214, 220, 226, 911, 999];
        self.of_driver().is_some_and(|code| {
            let known = [&OF_KERNELS[..], &OF_CONTEXTS, &OF_HARDWARE].concat();
            known.contains(&code) || (714..=719).contains(&code)
        })
    }

    /// NVRTC's and cuDNN's numbers mean other things.
    fn of_driver(&self) -> Option<i32> {
        match self {
            Self::Call { call, code, .. } if !call.starts_with("cudnn") => {
                call.starts_with("cu").then_some(*code)
            }
            _ => None,
        }
    }
}

/// Arguments that are refused here.
pub(super) fn refused<T>(call: &'static str, reason: impl Into<String>) -> Result<T, Error> {
    Err(Error::Refused { call, reason: reason.into() })
}

/// A library's text; empty where it gives none.
///
/// # Safety
/// Null, or a terminated string that lives for the call.
pub(super) unsafe fn text(of: *const c_char) -> String {
    if of.is_null() {
        return String::new();
    }
    // SAFETY: not null; the caller vouches for the rest.
    unsafe { CStr::from_ptr(of) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(call: &'static str, code: i32, name: &str, text: &str) -> Error {
        Error::Call { call, code, name: name.into(), text: text.into() }
    }

    #[test]
    fn an_error_says_call_code_and_what_the_library_said() {
        let known = of("cuLaunchKernel", 700, "CUDA_ERROR_ILLEGAL_ADDRESS", "illegal access");
        let text = "cuLaunchKernel: 700 CUDA_ERROR_ILLEGAL_ADDRESS (illegal access)";
        assert_eq!(known.to_string(), text);
        assert_eq!(of("cuInit", 4242, "", "").to_string(), "cuInit: 4242");
    }

    #[test]
    fn only_the_drivers_numbers_mean_what_they_mean_there() {
        for code in [46, 201, 214, 700, 716, 999] {
            assert!(of("cuMemAlloc", code, "", "").ends_the_process(), "{code}");
        }
        assert!(![1, 2, 100, 400, 713].iter().any(|&c| of("cuInit", c, "", "").ends_the_process()));
        assert!(!of("cudnnBackendExecute", 700, "", "").ends_the_process());
        assert!(of("cuMemAlloc", 2, "", "").is_out_of_memory());
        assert!(!of("cuMemAlloc", 2, "", "").ends_the_process());
        assert!(!of("nvrtcCompileProgram", 2, "", "").is_out_of_memory());
        assert!(of("cuInit", 100, "", "").is_no_device());
    }
}
