//! How slot files are called: `kintsugi-RUN-MEMBER.slots`.

use std::path::Path;

pub(super) const PREFIX: &str = "kintsugi-";
pub(super) const SUFFIX: &str = ".slots";
/// Between run and process in the name of a file that is not yet a member's.
pub(super) const NEW: &str = "new";

/// The name that a file of the same run has once it is `member`'s.
pub(super) fn name_of_member(name: &str, member: u32) -> Option<String> {
    let run = name.strip_prefix(PREFIX)?.split('-').next()?;
    Some(format!("{PREFIX}{run}-{member}{SUFFIX}"))
}

/// The member that a file is named after.
pub fn member_of(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
    name.rsplit('-').next()?.parse().ok().filter(|_| !name.contains(NEW))
}
