//! Shared libraries that are loaded while the program runs, and what to say when one is not there.
//! They stay loaded until the process ends: what they started may run on behind any `dlclose`.

use std::ffi::{CStr, CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use super::result::Error;
use crate::loaded::file_of;

/// Why a library cannot be used. None of these is alarming by itself: most machines have no card.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// No such file in any of the places, the system's included.
    #[error("no {file}")]
    Nowhere {
        /// Its name, as the loader was asked for it.
        file: String,
    },
    /// It is there, but the loader refuses it.
    #[error("{file} does not load: {said}")]
    Unloadable {
        /// Its path.
        file: String,
        /// The loader's own words.
        said: String,
    },
    /// It is loaded but lacks a function: of another version than this program needs.
    #[error("{file} has no {symbol}: it is too old, or something else of that name")]
    Symbol {
        /// Its path.
        file: String,
        /// The function's name.
        symbol: &'static str,
    },
    /// It is loaded, but older than what this program asks of it.
    #[error("{file} is of version {version}, which is too old")]
    Old {
        /// Its path.
        file: String,
        /// As it says itself: 90100 is 9.1.0.
        version: usize,
    },
    /// It is there, but would end the process without another one.
    #[error("{file} is not loaded: it needs {needs}, and there is none")]
    Needs {
        /// Its path.
        file: String,
        /// What it needs.
        needs: &'static str,
    },
    /// It is loaded, but its first call failed; the driver does so where there is no device.
    #[error("{0}")]
    Call(#[from] Error),
}

/// A library that is loaded.
#[derive(Debug, Clone)]
pub struct Library {
    handle: NonNull<c_void>,
    file: PathBuf,
}

// SAFETY: the loader's handle is valid in every thread, and is never closed.
unsafe impl Send for Library {}
// SAFETY: as above; the loader has a lock of its own.
unsafe impl Sync for Library {}

impl Library {
    /// Loads a file by its path, or by its plain name from where the system looks (`dlopen`). One
    /// that was loaded by path before is found by its plain name afterwards, by other libraries
    /// too: that is how those of a folder of wheels find each other.
    ///
    /// # Errors
    /// `Nowhere` for a plain name that the system does not know, `Unloadable` with the loader's
    /// words else.
    pub fn open(file: &Path) -> Result<Self, Missing> {
        let shown = file.display().to_string();
        let Ok(name) = CString::new(file.as_os_str().as_bytes()) else {
            return Err(Missing::Nowhere { file: shown });
        };
        // SAFETY: a terminated string. What the library does when it is loaded is trusted as much
        // as its calls are.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        let Some(handle) = NonNull::new(handle) else {
            let said = loaders_words();
            // Of a library that itself lacks another one the loader names that other one.
            let absent = said.starts_with(&format!("{shown}: cannot open shared object file"))
                && said.ends_with("No such file or directory");
            return Err(match absent {
                true => Missing::Nowhere { file: shown },
                false => Missing::Unloadable { file: shown, said },
            });
        };
        Ok(Self { handle, file: file.to_owned() })
    }

    /// The same name, if the process has a library of that name.
    pub fn loaded(file: &Path) -> Option<PathBuf> {
        let name = CString::new(file.as_os_str().as_bytes()).ok()?;
        // SAFETY: a terminated string; nothing is loaded that is not there.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
        (!handle.is_null()).then(|| file.to_owned())
    }

    /// The address of a function (`dlsym`).
    ///
    /// # Errors
    /// `Symbol` where the library has none of that name.
    pub fn symbol(&self, symbol: &'static str) -> Result<NonNull<c_void>, Missing> {
        let missing = || Missing::Symbol { file: self.file.display().to_string(), symbol };
        let name = CString::new(symbol).map_err(|_| missing())?;
        // SAFETY: a live handle and a terminated string.
        let address = unsafe { libc::dlsym(self.handle.as_ptr(), name.as_ptr()) };
        NonNull::new(address).ok_or_else(missing)
    }

    /// Where the file that has this function lies: what a plain name came to.
    pub fn place(&self, symbol: &'static str) -> PathBuf {
        let Ok(address) = self.symbol(symbol) else { return self.file.clone() };
        file_of(address.as_ptr() as usize).unwrap_or_else(|| self.file.clone())
    }
}

/// What the loader has to say of this thread's last failure.
fn loaders_words() -> String {
    // SAFETY: returns null or a terminated string that lives until this thread's next call.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "it does not say why".into();
    }
    // SAFETY: not null, and copied at once.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_nowhere_is_no_failure_of_the_loader() {
        let of = |file: &str| Library::open(Path::new(file)).expect_err("there is none");
        assert_eq!(of("libkintsugi-none.so.1"), nowhere("libkintsugi-none.so.1"));
        assert_eq!(of("/nowhere/liba.so"), nowhere("/nowhere/liba.so"));
        assert_eq!(of("with\0zero"), nowhere("with\0zero"));
        // Every Linux has this file, and it is no library.
        let error = of("/proc/self/status");
        assert!(matches!(error, Missing::Unloadable { .. }), "{error}");
    }

    fn nowhere(file: &str) -> Missing {
        Missing::Nowhere { file: file.into() }
    }

    #[test]
    fn a_function_that_is_missing_is_named() {
        let library = Library::open(Path::new("libc.so.6")).expect("every program has it");
        assert!(library.symbol("malloc").is_ok());
        assert!(library.place("malloc").is_absolute());
        let error = library.symbol("cuInit").expect_err("not of libc").to_string();
        assert!(error.contains("libc.so.6 has no cuInit"), "{error}");
    }
}
