//! Warnings that a person must act on. A rank says them in its own log, which nobody reads while
//! all is well: marked there, they are shown by whoever supervises the rank.

/// How such a line begins, behind its time and level.
const MARK: &str = "to act on: ";

/// Says one in this process's log, on one line.
pub fn act_on(text: &str) {
    tracing::warn!("{MARK}{}", text.replace('\n', " "));
}

/// The warning in a line of a log, where it is one to act on.
pub fn in_line(line: &str) -> Option<&str> {
    let (before, text) = line.split_once(MARK)?;
    before.trim_end().ends_with("WARN").then(|| text.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marked_warning_is_found_and_no_other_line_is() {
        let line = "2026-11-25T09:34:16.123456Z  WARN to act on: no room in /dev/shm\n";
        assert_eq!(in_line(line), Some("no room in /dev/shm"));
        assert_eq!(in_line("2026-11-25T09:34:16.123456Z  WARN no room"), None);
        assert_eq!(in_line("step 3 is to act on: x"), None);
    }

    #[test]
    fn what_is_said_is_found_again() {
        let (file, text) = (tempfile::NamedTempFile::new().unwrap(), "a checkpoint\nis bad");
        let writer = std::sync::Mutex::new(file.reopen().unwrap());
        let subscriber = tracing_subscriber::fmt().with_writer(writer).with_ansi(false);
        let subscriber = subscriber.with_target(false).finish();
        tracing::subscriber::with_default(subscriber, || act_on(text));
        let log = std::fs::read_to_string(file.path()).unwrap();
        assert_eq!(log.lines().filter_map(in_line).collect::<Vec<_>>(), ["a checkpoint is bad"]);
    }
}
