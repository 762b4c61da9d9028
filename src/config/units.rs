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

/// Every so many steps, or not at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interval {
    /// `"off"`.
    Off,
    /// `"100steps"`.
    Steps(u64),
}

/// Bytes in a second: `"8MB/s"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(pub u64);

/// How fast something is done that others wait beside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// `"auto"`: gives way to them.
    Auto,
    /// `"50MB/s"`.
    Rate(Rate),
}

/// How much is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheSize {
    /// `"off"`.
    Off,
    /// `"2GiB"`.
    Bytes(Bytes),
}

/// About 30,000 years: far from any overflow in sums of durations.
const MILLISECONDS_MAX: f64 = 1e15;

/// Splits `"250ms"` into its number and unit.
pub(super) fn number_and_unit(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.'))?;
    let number = text[..split].parse::<f64>().ok()?;
    number.is_finite().then(|| (number, text[split..].trim()))
}

fn parse_duration(text: &str) -> Option<Duration> {
    let (number, unit) = number_and_unit(text)?;
    let unit_milliseconds = match unit {
        "ms" => 1.0,
        "s" => 1e3,
        "m" | "min" => 60e3,
        "h" => 3600e3,
        "d" => 86400e3,
        _ => return None,
    };
    // Whole milliseconds, so that what is shown is what is meant; beyond them nothing is.
    let milliseconds = (number * unit_milliseconds).round();
    let meant = milliseconds <= MILLISECONDS_MAX && (milliseconds > 0.0 || number == 0.0);
    meant.then(|| Duration::from_millis(milliseconds as u64))
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
    let bytes = number * scale as f64;
    (bytes < u64::MAX as f64).then_some(bytes as u64)
}

fn show_bytes(bytes: u64) -> String {
    for (scale, unit) in [(1u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")] {
        if bytes >= scale && bytes.is_multiple_of(scale) {
            return format!("{}{unit}", bytes / scale);
        }
    }
    format!("{bytes}B")
}

fn parse_rate(text: &str) -> Option<Rate> {
    parse_bytes(text.trim().strip_suffix("/s")?).filter(|&bytes| bytes > 0).map(Rate)
}

fn parse_pace(text: &str) -> Option<Pace> {
    match text {
        "auto" => Some(Pace::Auto),
        _ => parse_rate(text).map(Pace::Rate),
    }
}

fn parse_cache_size(text: &str) -> Option<CacheSize> {
    match text {
        "off" => Some(CacheSize::Off),
        _ => parse_bytes(text).filter(|&bytes| bytes > 0).map(|b| CacheSize::Bytes(Bytes(b))),
    }
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

fn parse_interval(text: &str) -> Option<Interval> {
    match (text, parse_every(text)) {
        ("off", _) => Some(Interval::Off),
        (_, Some(Every::Steps(steps))) => Some(Interval::Steps(steps)),
        _ => None,
    }
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
    Rate,
    parse_rate,
    |rate: &Rate| format!("{}/s", show_bytes(rate.0)),
    "a rate such as \"8MB/s\" or \"1GiB/s\""
);
as_text!(
    Pace,
    parse_pace,
    |pace: &Pace| match pace {
        Pace::Auto => "auto".to_string(),
        Pace::Rate(rate) => rate.to_string(),
    },
    "a rate such as \"50MB/s\", or \"auto\""
);
as_text!(
    CacheSize,
    parse_cache_size,
    |size: &CacheSize| match size {
        CacheSize::Off => "off".to_string(),
        CacheSize::Bytes(bytes) => bytes.to_string(),
    },
    "a size such as \"2GiB\", or \"off\""
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
as_text!(
    Interval,
    parse_interval,
    |interval: &Interval| match interval {
        Interval::Off => "off".to_string(),
        Interval::Steps(steps) => format!("{steps}steps"),
    },
    "a number of steps such as \"100steps\", or \"off\""
);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_unit_says_what_a_number_means() {
        let span = |text: &str| text.parse::<Span>().map(|span| span.0);
        assert_eq!(span("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(span("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(span("5 min"), Ok(Duration::from_secs(300)));
        assert_eq!(span("10m"), Ok(Duration::from_secs(600)));
        assert_eq!(span("2h"), Ok(Duration::from_secs(7200)));
        assert_eq!("8GiB".parse::<Bytes>(), Ok(Bytes(8 << 30)));
        assert_eq!("95MB".parse::<Bytes>(), Ok(Bytes(95_000_000)));
        assert_eq!("8MB/s".parse::<Rate>(), Ok(Rate(8_000_000)));
        assert_eq!("auto".parse::<Pace>(), Ok(Pace::Auto));
        assert_eq!("2GiB".parse::<CacheSize>(), Ok(CacheSize::Bytes(Bytes(2 << 30))));
        assert_eq!("100steps".parse::<Every>(), Ok(Every::Steps(100)));
        assert_eq!("off".parse::<Limit>(), Ok(Limit::Off));
        assert_eq!("50steps".parse::<Interval>(), Ok(Interval::Steps(50)));
        assert_eq!("off".parse::<Interval>(), Ok(Interval::Off));
        assert!("30s".parse::<Interval>().unwrap_err().contains("100steps"));
    }

    #[test]
    fn what_has_no_unit_or_no_meaning_is_refused_with_an_example() {
        for text in ["", "30", "s", "-3s", "1e3s", "3 weeks", "0.0001ms", "99999999999999d"] {
            let error = text.parse::<Span>().unwrap_err();
            assert!(error.contains("\"30s\""), "{text}: {error}");
        }
        for text in ["", "8", "GiB", "99999999999GiB", "4 mib"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
            assert!(format!("{text}/s").parse::<Rate>().is_err(), "{text}/s");
        }
        for text in ["0steps", "0s", "often", "1.5steps"] {
            assert!(text.parse::<Every>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_reads_back(milliseconds in 0u64..u64::from(u32::MAX), bytes: u32) {
            let span = Span(Duration::from_millis(milliseconds));
            prop_assert_eq!(span.to_string().parse::<Span>(), Ok(span));
            let bytes = Bytes(u64::from(bytes));
            prop_assert_eq!(bytes.to_string().parse::<Bytes>(), Ok(bytes));
            let every = Every::Steps(milliseconds + 1);
            prop_assert_eq!(every.to_string().parse::<Every>(), Ok(every));
        }
    }
}
