//! Which pictures are kept for validation: a share by name, whole groups where neighbours are
//! nearly the same picture and their names say which belong together.

use crate::cli::data::{neighbours, report};
use crate::config::{Data, Group, Validation};
use crate::data::set::open::open;
use crate::data::{DataError, Split};

use super::choice;

/// What of a name may say which others it belongs to: all before its last number, all before its
/// last part, and what is before its first mark.
const GROUPS: [&str; 3] =
    [r"^(.*?)[0-9]+\.[^./]*$", r"^(.*)[-_ ][^-_ /]*\.[^./]*$", r"^([^/]*/[^-_ ./]+)[-_ .]"];
/// How far the share of samples may be from the one that was asked for, as a factor.
const NEAR: f64 = 2.0;

/// The key's value, and what there is to say of it.
///
/// # Errors
/// The set cannot be used.
pub fn choose(
    data: &Data,
    samples: u64,
    seed: u64,
) -> Result<(Validation, Vec<String>), DataError> {
    let share = choice::share(samples);
    let plain: Validation = share.parse().map_err(DataError::Set)?;
    let with =
        |validation: &Validation| Data { validation: Some(validation.clone()), ..data.clone() };
    let Some(told) = neighbours::parted(&with(&plain), seed)? else {
        let lacks = lacking(&with(&plain), seed)?;
        let said = format!("validation: {share} of the pictures, by name{lacks}");
        return Ok((plain, vec![said]));
    };
    for pattern in GROUPS {
        let group: Group = pattern.parse().map_err(DataError::Set)?;
        let Some(share) = plain.share() else { break };
        let grouped = Validation::Share(share, Some(group));
        if keeps(&with(&grouped), samples, f64::from(share.millionths()) / 1e6, seed) {
            let said = format!(
                "validation: {share} of the pictures, whole groups by {pattern}: neighbours are \
                 nearly the same picture, as frames of one film are, and stay together"
            );
            return Ok((grouped, vec![said]));
        }
    }
    Ok((plain, vec![format!("warning: {told}")]))
}

/// Whether a split by groups is one: every class on both sides, about the share that was asked for,
/// and no neighbours parted that are nearly the same. What cannot be split so is no error.
fn keeps(data: &Data, samples: u64, share: f64, seed: u64) -> bool {
    let count = |split| -> Option<u64> {
        let set = open(data, split, seed).ok()?;
        let whole = report::counted(&*set.source).iter().all(|class| class.samples > 0);
        whole.then(|| set.source.len())
    };
    let (Some(_), Some(kept)) = (count(Split::Train), count(Split::Validation)) else {
        return false;
    };
    let wanted = share * samples as f64;
    let near = (wanted / NEAR..=wanted * NEAR).contains(&(kept as f64));
    near && matches!(neighbours::parted(data, seed), Ok(None))
}

/// Classes that have no sample for validation.
fn lacking(data: &Data, seed: u64) -> Result<String, DataError> {
    let set = open(data, Split::Validation, seed)?;
    let none = report::counted(&*set.source).iter().filter(|class| class.samples == 0).count();
    Ok(match none {
        0 => String::new(),
        none => format!("; warning: {none} of the classes have none there"),
    })
}
