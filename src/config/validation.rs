//! `data.validation`: where the validation set lies, or which share of the training set it is, and
//! which samples of that no split parts.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use regex::bytes::Regex;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::shown::Shown;

/// Largest share that is split off.
const MILLIONTHS_MAX: u32 = 500_000;

/// A place, or a share of the training set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Validation {
    /// A set of its own: a path, or a pattern of tar shards.
    Place(PathBuf),
    /// `"10%"`: split off the training set, by a hash of each sample's name; or `{ share = "10%",
    /// group = "REGEX" }`: by a hash of what that matches of the name.
    Share(Share, Option<Group>),
}

/// What of a sample's name says which others it belongs to: a regular expression's first group, or
/// all that it matches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Group(String);

impl Group {
    /// As it was written.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// The expression.
    pub fn regex(&self) -> Regex {
        Regex::new(&self.0).expect("it was tried when it was read")
    }
}

impl FromStr for Group {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let tried = Regex::new(text).map_err(|error| {
            let reason = error.to_string();
            let reason = reason.lines().last().unwrap_or_default().trim_start_matches("error: ");
            format!("group = {text:?} is no regular expression ({reason})")
        });
        tried.map(|_| Self(text.to_owned()))
    }
}

/// The longer form.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    share: String,
    group: String,
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
            Self::Share(..) => None,
        }
    }

    /// The share, if it is one.
    pub fn share(&self) -> Option<Share> {
        match self {
            Self::Place(_) => None,
            Self::Share(share, _) => Some(*share),
        }
    }

    /// What keeps samples together.
    pub fn group(&self) -> Option<&Group> {
        match self {
            Self::Share(_, group) => group.as_ref(),
            Self::Place(_) => None,
        }
    }
}

impl Shown for Validation {
    fn shown(&self) -> String {
        match self {
            Self::Place(path) => path.shown(),
            Self::Share(share, None) => format!("{share} of data.train"),
            Self::Share(share, Some(group)) => {
                format!("{share} of data.train, whole groups {:?}", group.text())
            }
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
            true => Ok(Self::Share(Share { millionths: millionths as u32 }, None)),
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
            Self::Share(share, None) => serializer.collect_str(share),
            Self::Share(share, Some(Group(group))) => {
                Written { share: share.to_string(), group: group.clone() }.serialize(serializer)
            }
        }
    }
}

impl<'de> Deserialize<'de> for Validation {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

/// Reads either form.
struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Validation;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a path, a share such as \"10%\", or { share = \"10%\", group = \"REGEX\" }")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Validation, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Validation, M::Error> {
        let Written { share, group } = Written::deserialize(MapAccessDeserializer::new(map))?;
        let custom = <M::Error as serde::de::Error>::custom::<String>;
        let group = group.parse().map_err(custom)?;
        match share.parse().map_err(custom)? {
            Validation::Share(share, _) => Ok(Validation::Share(share, Some(group))),
            Validation::Place(_) => {
                Err(custom(format!("share = {share:?} is no share: write for example \"10%\"")))
            }
        }
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
            assert_eq!(read(&share.to_string()), Ok(Validation::Share(share, None)), "reads back");
        }
        for text in ["set/validation", "./10%", "val-{0..3}.tar", "ten%", "10%/x", ""] {
            assert_eq!(read(text), Ok(text.into()), "{text}");
        }
        for text in ["0%", "51%", "-5%", "0.00001%", "inf%", "NaN%", "1e9%"] {
            assert!(read(text).expect_err(text).contains("above 0 %, to 50 %"), "{text}");
        }
    }
}
