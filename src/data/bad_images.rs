//! How many images may be bad: what was computed without many of its samples, or without any, is
//! not what was asked for.

use super::{DataError, Split};

/// Refuses what no sample went into. `counts`: skipped samples, and all that were tried; where none
/// was tried (a round of the asynchronous exchange may be empty) there is nothing to refuse.
/// `which`: for the message, "of step 7".
///
/// # Errors
/// All were skipped.
pub fn check_any(
    split: Split,
    (skipped, count): (u64, u64),
    which: impl Fn() -> String,
) -> Result<(), DataError> {
    if count == 0 || skipped < count {
        return Ok(());
    }
    Err(DataError::Set(format!(
        "{}: none of the {count} samples {} could be decoded; the log names the files: mend or \
         remove them",
        split.key(),
        which()
    )))
}

/// Refuses more bad images than `data.bad_images_max` allows. `counts`: skipped samples, and those
/// of the epoch or of the evaluation.
///
/// # Errors
/// Too many were skipped.
pub fn check_share(
    split: Split,
    (skipped, of): (u64, u64),
    max: f64,
    which: impl Fn() -> String,
) -> Result<(), DataError> {
    if skipped as f64 <= max * of as f64 {
        return Ok(());
    }
    let percent = 100.0 * skipped as f64 / of as f64;
    Err(DataError::Set(format!(
        "{}: {skipped} of {of} samples {} could not be decoded ({percent:.2} %), more than \
         data.bad_images_max = {max} allows; the log names the files: mend or remove them, or \
         raise data.bad_images_max",
        split.key(),
        which()
    )))
}
