//! Names of members. A name is bytes: two that differ only in what is no text are two.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::config::Shown;
use crate::data::source::leftovers::is_picture;

/// What the member that holds the label is called, behind the key's dot.
pub const LABEL: &str = "cls";

/// A member's name, as the archive has it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "Written", into = "Written")]
pub struct Name(Vec<u8>);

/// As text where it is one; a saved index stays readable.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    Text(String),
    Bytes(Vec<u8>),
}

impl From<Written> for Name {
    fn from(written: Written) -> Self {
        match written {
            Written::Text(text) => Self(text.into_bytes()),
            Written::Bytes(bytes) => Self(bytes),
        }
    }
}

impl From<Name> for Written {
    fn from(name: Name) -> Self {
        String::from_utf8(name.0).map_or_else(|error| Self::Bytes(error.into_bytes()), Self::Text)
    }
}

impl From<&[u8]> for Name {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

impl Name {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// As a path.
    pub fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }

    /// For a message.
    pub fn shown(&self) -> String {
        self.path().shown()
    }

    /// The name without what stands before it in archives of `.`.
    pub fn plain(&self) -> Self {
        let mut bytes = &self.0[..];
        while let Some(rest) = bytes.strip_prefix(b"./") {
            bytes = rest;
        }
        bytes.into()
    }

    /// The sample's key, and what the member is of it. The key is what comes before the first dot
    /// of the file name. A name without a dot has neither.
    pub fn key_and_kind(&self) -> Option<(Self, MemberKind)> {
        let name = &self.0;
        let base = name.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        let dot = base + name[base..].iter().position(|byte| *byte == b'.')?;
        Some((Self(name[..dot].to_vec()).plain(), MemberKind::of(&name[dot + 1..])))
    }
}

/// What a member is of its sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberKind {
    /// What the sample shows.
    Picture,
    /// Its class.
    Label,
    /// A picture or label by its ending, with a further dot before it.
    Dotted,
    /// Something else.
    Other,
}

impl MemberKind {
    /// By what comes after the key's dot.
    fn of(what: &[u8]) -> Self {
        let ending = what.rsplit(|byte| *byte == b'.').next().unwrap_or(what);
        let label = ending.eq_ignore_ascii_case(LABEL.as_bytes());
        let file = [b"x.", ending].concat();
        let picture = is_picture(Path::new(OsStr::from_bytes(&file)));
        match (picture, label, ending.len() == what.len()) {
            (true, _, true) => Self::Picture,
            (_, true, true) => Self::Label,
            (false, false, _) => Self::Other,
            _ => Self::Dotted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(bytes: &[u8]) -> Name {
        bytes.into()
    }

    #[test]
    fn a_key_ends_at_the_first_dot_of_the_file_name() {
        for (full, key, part) in [
            (&b"./a.b/7.JPG"[..], &b"a.b/7"[..], MemberKind::Picture),
            (b"7.cls", b"7", MemberKind::Label),
            (b"7.json", b"7", MemberKind::Other),
            (b"v1.5_000.jpg", b"v1", MemberKind::Dotted),
            (b"v1.5_000.cls", b"v1", MemberKind::Dotted),
            (b"7.left.txt", b"7", MemberKind::Other),
            (b"7.", b"7", MemberKind::Other),
        ] {
            let (found, what) = name(full).key_and_kind().expect("a dot");
            assert_eq!((found.bytes(), what), (key, part), "{}", name(full).shown());
        }
        assert!(name(b"a.b/notes").key_and_kind().is_none());
    }

    #[test]
    fn names_that_are_no_text_are_saved_as_they_are() {
        for bytes in [&b"a/7.jpg"[..], b"caf\xe9.jpg", b"caf\xe8.jpg", b"", b"\xff"] {
            let text = serde_json::to_string(&name(bytes)).expect("saved");
            assert_eq!(serde_json::from_str::<Name>(&text).expect("read").bytes(), bytes);
        }
        assert_eq!(serde_json::to_string(&name(b"a/7.jpg")).expect("saved"), "\"a/7.jpg\"");
        assert_eq!(name(b"caf\xe9").shown(), "caf\\xe9");
    }
}
