//! The members of one sample: what shares a key.

use super::left::{Left, Reason};
use super::name::{LABEL, Name};
use super::sample::{CLASSES_MAX, Place, Sample};

/// Longest label that is read.
pub const LABEL_BYTES_MAX: u64 = 64;

/// The members of one key that have come.
#[derive(Default)]
pub struct Group {
    /// What they share.
    pub key: Name,
    picture: Option<(Name, Place)>,
    label: Option<(Name, u32)>,
}

impl Group {
    /// The key's first members are to come.
    pub fn of(key: Name) -> Self {
        Self { key, ..Self::default() }
    }

    /// A picture.
    pub fn take_picture(&mut self, name: Name, place: Place) -> Result<(), String> {
        match &self.picture {
            Some((first, _)) => {
                let (first, second) = (first.shown(), name.shown());
                Err(format!("the key {} has two pictures, {first} and {second}", self.key.shown()))
            }
            None => {
                self.picture = Some((name, place));
                Ok(())
            }
        }
    }

    /// A label of this length, and its bytes.
    pub fn take_label(
        &mut self,
        name: Name,
        length: u64,
        bytes: std::io::Result<Vec<u8>>,
    ) -> Result<(), String> {
        let wrong = |what: String| {
            format!("{}: {what}; it must hold one number below {CLASSES_MAX}", name.shown())
        };
        if self.label.is_some() {
            return Err(format!("the key {} has two labels: {}", self.key.shown(), name.shown()));
        }
        if length > LABEL_BYTES_MAX {
            return Err(wrong(format!("{length} bytes are no label")));
        }
        let bytes = bytes.map_err(|error| wrong(error.to_string()))?;
        let text = String::from_utf8(bytes).map_err(|_| wrong("it is no valid UTF-8".into()))?;
        let label = text.trim().parse().ok().filter(|label| *label < CLASSES_MAX);
        let label = label.ok_or_else(|| wrong(format!("{:?} is no label", text.trim())))?;
        self.label = Some((name, label));
        Ok(())
    }

    /// The sample. What has a label and no picture is none, and is counted.
    pub fn sample(self, left: &mut Left) -> Result<Option<Sample>, String> {
        let Some((name, Place { offset, length })) = self.picture else {
            self.label.iter().for_each(|(label, _)| left.member(Reason::Pictureless, label));
            return Ok(None);
        };
        let Some((_, label)) = self.label else {
            let lacks = format!("{} has no label: {}.{LABEL} ", name.shown(), self.key.shown());
            return Err(lacks + "is not beside it");
        };
        Ok(Some(Sample { name, offset, length, label }))
    }
}
