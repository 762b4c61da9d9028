//! Durations, sizes and intervals as users write them: `"30s"`, `"8GiB"`, `"100steps"`.

use std::time::Duration;

/// A duration with a unit: `"250ms"`, `"30s"`, `"5min"`, `"2h"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

/// A size with a unit: `"4MiB"`, `"95MB"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

/// How often something happens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Every {
    /// `"auto"`: derived.
    Auto,
    /// `"never"`.
    Never,
    /// `"epoch"`: at each epoch's end.
    Epoch,
    /// `"100steps"`.
    Steps(u64),
    /// A duration.
    Time(Duration),
}

/// A time-out that may be learned or absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// `"auto"`: learned.
    Auto,
    /// `"off"`.
    Off,
    /// A duration.
    Time(Duration),
}

/// Splits `"250ms"` into its number and unit.
fn number_and_unit(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.'))?;
    let number = text[..split].parse::<f64>().ok()?;
    number.is_finite().then(|| (number, text[split..].trim()))
}

fn parse_duration(text: &str) -> Option<Duration> {
    let (number, unit) = number_and_unit(text)?;
    let seconds = match unit {
        "ms" => 1e-3,
        "s" => 1.0,
        "min" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(number * seconds).ok()
}

fn show_duration(time: Duration) -> String {
    let milliseconds = time.as_millis();
    if milliseconds.is_multiple_of(1000) {
        format!("{}s", milliseconds / 1000)
    } else {
        format!("{milliseconds}ms")
    }
}

fn parse_bytes(text: &str) -> Option<u64> {
    let (number, unit) = number_and_unit(text)?;
    let scale: u64 = match unit {
        "B" => 1,
        "kB" | "KB" => 1000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    Some((number * scale as f64) as u64)
}

fn show_bytes(bytes: u64) -> String {
    for (scale, unit) in [(1u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")] {
        if bytes >= scale && bytes.is_multiple_of(scale) {
            return format!("{}{unit}", bytes / scale);
        }
    }
    format!("{bytes}B")
}

fn parse_every(text: &str) -> Option<Every> {
    Some(match text {
        "auto" => Every::Auto,
        "never" => Every::Never,
        "epoch" => Every::Epoch,
        _ => match text.strip_suffix("steps").or_else(|| text.strip_suffix("step")) {
            Some(number) => Every::Steps(number.trim().parse().ok().filter(|&n| n > 0)?),
            None => Every::Time(parse_duration(text).filter(|time| !time.is_zero())?),
        },
    })
}

fn parse_limit(text: &str) -> Option<Limit> {
    Some(match text {
        "auto" => Limit::Auto,
        "off" => Limit::Off,
        _ => Limit::Time(parse_duration(text)?),
    })
}

/// Serde as text for one of the types above.
macro_rules! as_text {
    ($type:ty, $parse:expr, $show:expr, $expected:literal) => {
        impl std::str::FromStr for $type {
            type Err = String;
            fn from_str(text: &str) -> Result<Self, String> {
                $parse(text).ok_or_else(|| format!("`{text}` is not {}", $expected))
            }
        }
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&$show(self))
            }
        }
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <String as serde::Deserialize>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

as_text!(
    Span,
    |t| parse_duration(t).map(Span),
    |s: &Span| show_duration(s.0),
    "a duration such as \"30s\", \"250ms\", \"5min\" or \"2h\""
);
as_text!(
    Bytes,
    |t| parse_bytes(t).map(Bytes),
    |b: &Bytes| show_bytes(b.0),
    "a size such as \"4MiB\" or \"95MB\""
);
as_text!(
    Every,
    parse_every,
    |every: &Every| match every {
        Every::Auto => "auto".to_string(),
        Every::Never => "never".to_string(),
        Every::Epoch => "epoch".to_string(),
        Every::Steps(steps) => format!("{steps}steps"),
        Every::Time(time) => show_duration(*time),
    },
    "an interval such as \"epoch\", \"100steps\", \"30s\" or \"never\""
);
as_text!(
    Limit,
    parse_limit,
    |limit: &Limit| match limit {
        Limit::Auto => "auto".to_string(),
        Limit::Off => "off".to_string(),
        Limit::Time(time) => show_duration(*time),
    },
    "a time limit such as \"30s\", \"auto\" or \"off\""
);
