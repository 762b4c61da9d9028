//! Numbers of processes and threads that a person asks for.

/// Most that are asked for: more is a slip of the finger.
const CROWD_MAX: u64 = 4096;

/// Reads a number of processes or threads.
///
/// # Errors
/// What to write instead.
pub fn crowd(text: &str) -> Result<usize, String> {
    let number = text.parse::<u64>().ok().filter(|number| (1..=CROWD_MAX).contains(number));
    let number = number.and_then(|number| usize::try_from(number).ok());
    number.ok_or_else(|| format!("write a number from 1 to {CROWD_MAX}"))
}

/// The same, of ranks.
///
/// # Errors
/// What to write instead.
pub fn ranks(text: &str) -> Result<u32, String> {
    crowd(text).and_then(|ranks| u32::try_from(ranks).map_err(|error| error.to_string()))
}
