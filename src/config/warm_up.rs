//! `schedule.warm_up`: how long the learning rate rises, as a share of the run, or as a length of
//! its own that no longer run moves.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::units::number_and_unit;

/// Most epochs or steps that can be written: beyond lies a slip of the finger.
const LENGTH_MAX: f64 = 1e15;
const FORMS: &str = "a share of the run from 0 to 1, such as 0.05, or a length such as \"5epochs\" \
                     or \"500steps\"";

/// A share of the run, or a length.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum WarmUp {
    /// `0.05`: of the run's steps.
    Share(f64),
    /// `"5epochs"`
    Epochs(f64),
    /// `"500steps"`
    Steps(u64),
}

impl WarmUp {
    /// None.
    pub const NONE: Self = Self::Share(0.0);

    /// Steps of a run with so many in all (`None`: nobody knows) and in an epoch.
    pub fn steps(self, total: Option<u64>, steps_per_epoch: u64) -> f64 {
        match self {
            Self::Share(share) => first_step(share.clamp(0.0, 1.0), total.unwrap_or(0) as f64),
            Self::Epochs(epochs) => first_step(epochs, steps_per_epoch as f64),
            Self::Steps(steps) => steps as f64,
        }
    }

    /// Whether a longer run has a longer one.
    pub fn scales(self) -> bool {
        matches!(self, Self::Share(share) if share > 0.0)
    }
}

/// The first whole step at or behind a share of so many. Products that should be whole are a little
/// off: 0.07 of 100 is 7.
pub fn first_step(share: f64, steps: f64) -> f64 {
    const OFF: f64 = 1e-12;
    (share * steps * (1.0 - OFF)).ceil()
}

impl fmt::Display for WarmUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Share(share) => write!(f, "{share}"),
            Self::Epochs(1.0) => f.write_str("1epoch"),
            Self::Epochs(epochs) => write!(f, "{epochs}epochs"),
            Self::Steps(1) => f.write_str("1step"),
            Self::Steps(steps) => write!(f, "{steps}steps"),
        }
    }
}

impl FromStr for WarmUp {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || format!("{text:?} is not {FORMS}");
        let (number, unit) = number_and_unit(text).ok_or_else(refused)?;
        let some = number > 0.0 && number <= LENGTH_MAX;
        match unit {
            "epoch" | "epochs" if some => Ok(Self::Epochs(number)),
            "step" | "steps" if some && number.fract() == 0.0 => Ok(Self::Steps(number as u64)),
            _ => Err(refused()),
        }
    }
}

impl Serialize for WarmUp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Share(share) => share.serialize(serializer),
            length => serializer.collect_str(length),
        }
    }
}

impl<'de> Deserialize<'de> for WarmUp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl Visitor<'_> for Reader {
    type Value = WarmUp;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(FORMS)
    }

    fn visit_f64<E: de::Error>(self, share: f64) -> Result<WarmUp, E> {
        Ok(WarmUp::Share(share))
    }

    fn visit_i64<E: de::Error>(self, share: i64) -> Result<WarmUp, E> {
        Ok(WarmUp::Share(share as f64))
    }

    fn visit_u64<E: de::Error>(self, share: u64) -> Result<WarmUp, E> {
        Ok(WarmUp::Share(share as f64))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<WarmUp, E> {
        text.parse().map_err(E::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_a_share_and_a_text_a_length_and_each_reads_back() {
        let read = |text: &str| -> Result<WarmUp, String> {
            let table: toml::Table = format!("x = {text}").parse().unwrap();
            table["x"].clone().try_into().map_err(|error: toml::de::Error| error.to_string())
        };
        for (text, warm_up) in [
            ("0.05", WarmUp::Share(0.05)),
            ("0", WarmUp::NONE),
            ("\"5epochs\"", WarmUp::Epochs(5.0)),
            ("\"0.5 epochs\"", WarmUp::Epochs(0.5)),
            ("\"1epoch\"", WarmUp::Epochs(1.0)),
            ("\"500steps\"", WarmUp::Steps(500)),
        ] {
            assert_eq!(read(text), Ok(warm_up), "{text}");
            let written = toml::Value::try_from(warm_up).unwrap();
            assert_eq!(written.try_into::<WarmUp>(), Ok(warm_up), "{text}");
        }
        for text in ["\"5\"", "\"0epochs\"", "\"1.5steps\"", "\"5s\"", "\"\"", "true", "[1]"] {
            let refused = read(text).unwrap_err();
            assert!(refused.contains("\"5epochs\""), "{text}: {refused}");
        }
    }

    #[test]
    fn lengths_are_those_of_the_run_and_shares_grow_with_it() {
        assert_eq!(WarmUp::Share(0.05).steps(Some(101), 7), 6.0);
        for (percent, total) in [(7_u32, 100), (14, 100), (28, 200), (54, 450_450), (100, 1)] {
            let share = f64::from(percent) / 100.0;
            let exact = (percent * total).div_ceil(100);
            let steps = WarmUp::Share(share).steps(Some(total.into()), 7);
            assert_eq!(steps, f64::from(exact), "{percent} of {total}");
        }
        assert_eq!(WarmUp::Share(0.05).steps(None, 7), 0.0);
        for total in [None, Some(1), Some(1000)] {
            assert_eq!(WarmUp::Epochs(2.5).steps(total, 7), 18.0);
            assert_eq!(WarmUp::Steps(9).steps(total, 7), 9.0);
        }
        assert!(WarmUp::Share(0.1).scales() && !WarmUp::NONE.scales());
        assert!(!WarmUp::Epochs(1.0).scales() && !WarmUp::Steps(1).scales());
    }
}
