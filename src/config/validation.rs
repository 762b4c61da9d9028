//! `data.validation`: where the validation set lies, or which share of the training set it is.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::shown::Shown;

/// Largest share that is split off.
const MILLIONTHS_MAX: u32 = 500_000;

/// A place, or a share of the training set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Validation {
    /// A set of its own: a path, or a pattern of tar shards.
    Place(PathBuf),
    /// `"10%"`: split off the training set, by a hash of each sample's name.
    Share(Share),
}

/// A share of a set, above 0, to a half.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    millionths: u32,
}

impl Share {
    /// Millionths of the set.
    pub fn millionths(self) -> u32 {
        self.millionths
    }
}

impl std::fmt::Display for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}%", f64::from(self.millionths) / 10_000.0)
    }
}

impl Validation {
    /// Where it lies, if it is a set of its own.
    pub fn place(&self) -> Option<&Path> {
        match self {
            Self::Place(path) => Some(path),
            Self::Share(_) => None,
        }
    }

    /// The share, if it is one.
    pub fn share(&self) -> Option<Share> {
        match self {
            Self::Place(_) => None,
            Self::Share(share) => Some(*share),
        }
    }
}

impl Shown for Validation {
    fn shown(&self) -> String {
        match self {
            Self::Place(path) => path.shown(),
            Self::Share(share) => format!("{share} of data.train"),
        }
    }
}

/// What is a number and a `%` is a share; a folder of such a name is `./10%`.
impl FromStr for Validation {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let percent = text.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
        let Some(percent) = percent else { return Ok(Self::Place(text.into())) };
        let millionths = (percent * 10_000.0).round();
        match millionths >= 1.0 && millionths <= f64::from(MILLIONTHS_MAX) {
            true => Ok(Self::Share(Share { millionths: millionths as u32 })),
            false => Err(format!(
                "`{text}` is not a share above 0 %, to 50 %: write for example \"10%\", or the \
                 path of a validation set"
            )),
        }
    }
}

impl From<PathBuf> for Validation {
    fn from(path: PathBuf) -> Self {
        Self::Place(path)
    }
}

impl From<&str> for Validation {
    fn from(path: &str) -> Self {
        Self::Place(path.into())
    }
}

impl Serialize for Validation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Place(path) => path.serialize(serializer),
            Self::Share(share) => serializer.collect_str(share),
        }
    }
}

impl<'de> Deserialize<'de> for Validation {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <String as Deserialize>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_with_a_percent_sign_is_a_share_and_anything_else_a_place() {
        let read = |text: &str| text.parse::<Validation>();
        for (text, millionths) in [("10%", 100_000), ("0.5 %", 5000), ("50%", 500_000)] {
            let share = read(text).expect(text).share().expect(text);
            assert_eq!(share.millionths(), millionths);
            assert_eq!(read(&share.to_string()), Ok(Validation::Share(share)), "reads back");
        }
        for text in ["set/validation", "./10%", "val-{0..3}.tar", "ten%", "10%/x", ""] {
            assert_eq!(read(text), Ok(text.into()), "{text}");
        }
        for text in ["0%", "51%", "-5%", "0.00001%", "inf%", "NaN%", "1e9%"] {
            assert!(read(text).expect_err(text).contains("above 0 %, to 50 %"), "{text}");
        }
    }
}
