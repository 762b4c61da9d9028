//! How many images may be bad: what was computed without many of its samples, or without any, is
//! not what was asked for.

use super::{DataError, Split};

/// Refuses what no sample went into: of `count` that were tried all were skipped. Where none was
/// tried (a round of the asynchronous exchange may be empty) there is nothing to refuse.
/// `which`: for the message, "of step 7".
///
/// # Errors
/// All were skipped.
pub fn check_any(
    split: Split,
    skipped: u64,
    count: u64,
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

/// Refuses more bad images than `data.bad_images_max` allows. `of`: the samples of the epoch or of
/// the evaluation.
///
/// # Errors
/// Too many were skipped.
pub fn check_share(
    split: Split,
    skipped: u64,
    of: u64,
    max: f64,
    which: impl Fn() -> String,
) -> Result<(), DataError> {
    if skipped as f64 <= max * of as f64 {
        return Ok(());
    }
    Err(too_many(split, skipped, of, max, &which()))
}

/// Standard deviations of chance by which a share must be passed before a part of a set says so of
/// the whole.
const SURE: f64 = 3.0;

/// Refuses what a look at a part of a set, or at all of it, shows to be more bad images than
/// `data.bad_images_max` allows. `counts`: those that are bad, those that were looked at, and all.
///
/// # Errors
/// There are too many, or none is good.
pub fn check_look(
    split: Split,
    bad: u64,
    looked: u64,
    all: u64,
    max: f64,
) -> Result<(), DataError> {
    check_any(split, bad, looked, || "that were looked at".into())?;
    // Of few that are drawn the number of bad ones has its own root as deviation.
    let chance = if looked < all { SURE * (bad as f64).sqrt() } else { 0.0 };
    if bad as f64 - chance <= max * looked as f64 {
        return Ok(());
    }
    Err(too_many(split, bad, looked, max, "that were looked at"))
}

fn too_many(split: Split, skipped: u64, of: u64, max: f64, which: &str) -> DataError {
    let percent = 100.0 * skipped as f64 / of as f64;
    DataError::Set(format!(
        "{}: {skipped} of {of} samples {which} could not be decoded ({percent:.2} %), more than \
         data.bad_images_max = {max} allows; the log names the files: mend or remove them, or \
         raise data.bad_images_max",
        split.key(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_set_is_too_bad_only_beyond_chance_and_the_whole_at_once() {
        let refused = |bad, looked, all| check_look(Split::Train, bad, looked, all, 0.01).is_err();
        assert!(!refused(0, 100, 100) && !refused(1, 100, 100));
        assert!(refused(2, 100, 100), "all were looked at");
        assert!(!refused(2, 100, 10_000), "two of a hundred may be chance");
        assert!(refused(30, 100, 10_000));
        assert!(refused(100, 100, 100) && refused(5, 5, 1000), "none is good");
    }
}
