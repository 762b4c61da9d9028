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

/// A length of time from microseconds to minutes, three figures.
pub fn duration(seconds: f64) -> String {
    match seconds {
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
        let amounts = [12, 3400, 5_600_000, 7_800_000_000_000].map(amount);
        assert_eq!(amounts, ["12 B", "3.4 kB", "5.6 MB", "7800.0 GB"]);
    }
}
