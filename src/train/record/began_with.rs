//! `RUN/set.json`: the data sets that the run began with. Its steps follow their order, so no other
//! training set goes on with them, whatever the state is that an attempt finds.

use std::io;
use std::path::Path;

use crate::cluster::recovery::set::SetIdentity;
use crate::observe::event::Kind;
use crate::observe::refusal::if_there;
use crate::observe::storage::Storage;

use crate::train::TrainError;

/// The file's name.
const SET: &str = "set.json";

/// What the run began with. `None`: an earlier release began it, or nobody has.
fn read(storage: &dyn Storage) -> io::Result<Option<SetIdentity>> {
    let body = if_there(storage.read(Path::new(SET)))?;
    Ok(body.map(|body| serde_json::from_slice(&body)).transpose()?)
}

/// Whether a run that has steps may go on with this training set.
///
/// # Errors
/// It may not; or nobody can know now.
pub fn check(storage: &dyn Storage, set: SetIdentity) -> Result<(), TrainError> {
    let before = read(storage)
        .map_err(|error| TrainError::JobLost(format!("{SET} cannot be read: {error}")))?;
    match before.filter(|before| before.train != set.train) {
        None => Ok(()),
        Some(before) => Err(TrainError::Data(format!(
            "data.train is not the training set that the run began with (samples: {}): put that \
             one back, or begin anew with `launch --fresh`",
            set.train.beside(before.train)
        ))),
    }
}

/// Writes down what an attempt begins with. What there is to say where errors were measured on
/// another set before.
///
/// # Errors
/// It cannot be written.
pub fn note(storage: &dyn Storage, set: SetIdentity) -> io::Result<Option<Kind>> {
    // What cannot be read is written anew.
    let before = read(storage).unwrap_or_default();
    if before == Some(set) {
        return Ok(None);
    }
    storage.write_whole(Path::new(SET), &[&serde_json::to_vec(&set)?])?;
    let measured = before.map(|before| before.validation).filter(|listed| listed.samples > 0);
    let other =
        measured.filter(|measured| set.validation.samples > 0 && *measured != set.validation);
    Ok(other.map(|other| {
        let message = format!(
            "data.validation is not the set that earlier errors were measured on (samples: {}): \
             they compare with later ones only roughly",
            set.validation.beside(other)
        );
        Kind::Warning { message }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::recovery::set::Listed;
    use crate::observe::storage::MemoryStorage;

    #[test]
    fn a_run_goes_on_with_the_training_set_that_it_began_with() {
        let set = |train, validation| {
            let listed = |samples| Listed { hash: samples, samples };
            SetIdentity { train: listed(train), validation: listed(validation) }
        };
        let storage = MemoryStorage::default();
        assert_eq!(check(&storage, set(9, 3)), Ok(()), "an earlier release began it");
        assert_eq!(note(&storage, set(9, 3)).unwrap(), None);
        assert_eq!(check(&storage, set(9, 4)), Ok(()));
        let refused = check(&storage, set(10, 3)).unwrap_err();
        assert!(
            matches!(&refused, TrainError::Data(why) if why.contains("10, not 9")),
            "{refused}"
        );
        let Some(Kind::Warning { message }) = note(&storage, set(9, 4)).unwrap() else {
            panic!("other errors are measured");
        };
        assert!(message.contains("4, not 3"), "{message}");
        assert_eq!(note(&storage, set(9, 0)).unwrap(), None);
        storage.write_whole(Path::new(SET), &[b"{"]).unwrap();
        assert!(matches!(check(&storage, set(9, 3)), Err(TrainError::JobLost(_))));
    }
}
