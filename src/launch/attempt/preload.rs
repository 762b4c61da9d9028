//! What mpirun is loaded with besides its own libraries: the cure for a defect of PMIx's server
//! (`ulfm-shim/launcher/closed_descriptors.c`), by `LD_PRELOAD`, from a private folder.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::process::Command;

use kintsugi_ffi::launcher::CLOSED_DESCRIPTORS;
use kintsugi_ffi::os;

/// ld.so(8).
pub const PRELOAD_VARIABLE: &str = "LD_PRELOAD";
const FILE: &str = "libclosed_descriptors.so";

/// Has `mpirun` loaded with the cure, which is written into `folder`.
///
/// # Errors
/// The file cannot be written.
pub fn cure(mpirun: &mut Command, folder: &Path) -> io::Result<()> {
    let theirs = std::env::var_os(PRELOAD_VARIABLE);
    mpirun.envs(lay_down(folder, theirs.as_deref())?.map(|value| (PRELOAD_VARIABLE, value)));
    Ok(())
}

/// Writes the library into `folder`; the value of [`PRELOAD_VARIABLE`] that names it before
/// `theirs`, what the user preloads. `None` where nothing may be loaded from there: the dynamic
/// linker would complain in every log, and a forgotten replacement still starts itself again.
///
/// # Errors
/// The file cannot be written.
pub fn lay_down(folder: &Path, theirs: Option<&OsStr>) -> io::Result<Option<OsString>> {
    if !os::may_execute(folder)? {
        return Ok(None);
    }
    let file = folder.join(FILE);
    std::fs::write(&file, CLOSED_DESCRIPTORS)?;
    let mut value = file.into_os_string();
    if let Some(theirs) = theirs.filter(|theirs| !theirs.is_empty()) {
        value.push(":");
        value.push(theirs);
    }
    Ok(Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_user_preloads_stays_behind_it() {
        let folder = tempfile::tempdir().unwrap();
        let alone = lay_down(folder.path(), None).unwrap().unwrap();
        assert_eq!(std::fs::read(&alone).unwrap(), CLOSED_DESCRIPTORS);
        let both = lay_down(folder.path(), Some(OsStr::new("their.so"))).unwrap().unwrap();
        assert_eq!(
            both.to_str(),
            Some(format!("{}:their.so", alone.to_string_lossy().into_owned()).as_str())
        );
        let empty = lay_down(folder.path(), Some(OsStr::new(""))).unwrap();
        assert_eq!(empty, Some(alone));
    }
}
