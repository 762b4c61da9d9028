//! Numbers that a person asks for: of processes and threads, and others that have a largest.

/// Most that are asked for: more is a slip of the finger.
const CROWD_MAX: u64 = 4096;

/// Reads a number from 1 to `MAX`.
///
/// # Errors
/// What to write instead.
pub fn within<N: TryFrom<u64>, const MAX: u64>(text: &str) -> Result<N, String> {
    let number = text.parse::<u64>().ok().filter(|number| (1..=MAX).contains(number));
    let number = number.and_then(|number| N::try_from(number).ok());
    number.ok_or_else(|| format!("write a number from 1 to {MAX}"))
}

/// Reads a number of processes or threads.
///
/// # Errors
/// What to write instead.
pub fn crowd(text: &str) -> Result<usize, String> {
    within::<usize, CROWD_MAX>(text)
}

/// The same, of ranks.
///
/// # Errors
/// What to write instead.
pub fn ranks(text: &str) -> Result<u32, String> {
    within::<u32, CROWD_MAX>(text)
}
