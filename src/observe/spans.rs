//! Lengths of time and amounts of bytes as people read them.

/// `42s`, `3m07s`, `2h05m`.
pub fn clock(seconds: f64) -> String {
    let whole = seconds.max(0.0).round() as u64;
    match whole {
        0..60 => format!("{whole}s"),
        60..3600 => format!("{}m{:02}s", whole / 60, whole % 60),
        _ => format!("{}h{:02}m", whole / 3600, whole % 3600 / 60),
    }
}

/// A length of time from microseconds to minutes, three figures; a difference may be negative.
pub fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 0.0 => format!("-{}", duration(-s)),
        s if s < 0.0000995 => format!("{:.0} µs", s * 1e6),
        s if s < 0.0995 => format!("{:.1} ms", s * 1e3),
        s if s < 0.9995 => format!("{:.0} ms", s * 1e3),
        s if s < 99.95 => format!("{s:.2} s"),
        s => clock(s),
    }
}

/// Bytes, three figures or four: the one form in which sizes are told (`config::Bytes` has another,
/// to be read back).
pub fn amount(bytes: u64) -> String {
    match bytes as f64 {
        b if b < 999.5 => format!("{b:.0} B"),
        b if b < 999.5e3 => format!("{:.1} kB", b / 1e3),
        b if b < 999.5e6 => format!("{:.1} MB", b / 1e6),
        b => format!("{:.1} GB", b / 1e9),
    }
}

/// A time since 1970 as a date and the time of day, of Greenwich.
pub fn date(seconds: f64) -> String {
    let minutes = (seconds.max(0.0) / 60.0) as u64;
    let (mut day, minute) = (minutes / 1440, minutes % 1440);
    let is_leap =
        |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    let mut year = 1970;
    while day >= 365 + u64::from(is_leap(year)) {
        day -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths {
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    format!("{year}-{month:02}-{:02} {:02}:{:02} UTC", day + 1, minute / 60, minute % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_written_as_people_read_it() {
        assert_eq!(clock(42.4), "42s");
        assert_eq!(clock(187.0), "3m07s");
        assert_eq!(clock(7500.0), "2h05m");
        assert_eq!(duration(0.00004), "40 µs");
        assert_eq!(duration(0.0123), "12.3 ms");
        assert_eq!(duration(0.25), "250 ms");
        assert_eq!(duration(3.5), "3.50 s");
        assert_eq!([-0.174_18, -3.5].map(duration), ["-174 ms", "-3.50 s"]);
        assert_eq!(date(0.0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_400.0), "2000-02-29 00:00 UTC");
        assert_eq!(date(1_767_225_599.0), "2025-12-31 23:59 UTC");
        assert_eq!(date(1_795_823_700.0), "2026-11-27 23:55 UTC");
        let amounts = [12, 3400, 5_600_000, 7_800_000_000_000].map(amount);
        assert_eq!(amounts, ["12 B", "3.4 kB", "5.6 MB", "7800.0 GB"]);
    }
}
