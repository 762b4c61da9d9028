//! How slot files are called: `kintsugi-RUN-MEMBER.slots`, or `kintsugi-RUN-MEMBER.WORD.slots`
//! where another user has that name.

use std::path::Path;

use kintsugi_ffi::private;

pub(super) const PREFIX: &str = "kintsugi-";
pub(super) const SUFFIX: &str = ".slots";
/// Between run and process in the name of a file that is not yet a member's.
pub(super) const NEW: &str = "new";

/// The name that a file of the same run has once it is `member`'s.
pub(super) fn name_of_member(name: &str, member: u32) -> Option<String> {
    let run = name.strip_prefix(PREFIX)?.split('-').next()?;
    Some(format!("{PREFIX}{run}-{member}{SUFFIX}"))
}

/// A name for the same member that nobody can foresee.
pub(super) fn beside(name: &str) -> String {
    format!("{}.{}{SUFFIX}", name.strip_suffix(SUFFIX).unwrap_or(name), private::word())
}

/// The process that makes a file which has no member's name yet.
pub(super) fn maker_of(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?.strip_prefix(PREFIX)?;
    let (_, maker) = name.split_once(&format!("-{NEW}-"))?;
    maker.split('-').next()?.parse().ok()
}

/// The member that a file is named after.
pub fn member_of(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
    let member = name.rsplit('-').next()?.split('.').next()?;
    member.parse().ok().filter(|_| !name.contains(NEW))
}
