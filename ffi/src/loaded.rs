//! Which file code of this process was loaded from.

use std::ffi::{CStr, OsStr, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// The file that has the function or data at this address (`dladdr`), as the loader was told of it;
/// nothing where no loaded file has it.
pub fn file_of(address: usize) -> Option<PathBuf> {
    // SAFETY: plain numbers and pointers, for which zero is a value.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address may be asked about; the result is ours.
    let known = unsafe { libc::dladdr(address as *const c_void, &mut found) } != 0;
    if !known || found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: not null, so a terminated string that lives as long as the file is loaded.
    let path = unsafe { CStr::from_ptr(found.dli_fname) };
    Some(PathBuf::from(OsStr::from_bytes(path.to_bytes())))
}
