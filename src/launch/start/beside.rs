//! Runs that somebody may have meant: one beside the run that begins, or other data than a complete
//! one was trained on.

use std::path::{Path, PathBuf};

use crate::config::{Config, Shown, identity, parse};
use crate::launch::LaunchError;
use crate::run_folder;

use super::run_dir::{Found, Owners, RunDir};

/// What says which pictures a run is of.
const NAMES_OF_DATA: [&str; 3] = ["data.format", "data.train", "data.validation"];

/// A run of the same name.
#[derive(Debug, PartialEq, Eq)]
pub enum Beside {
    /// It has not completed, and all that differs may change.
    Unfinished(PathBuf, String),
    /// Only its length differs, which its schedule follows.
    OtherLength(PathBuf, String),
}

/// The one beside `folder` that is nearest to going on with this configuration.
pub fn beside(folder: &Path, config: &Config, owners: Owners) -> Option<Beside> {
    let begins = format!("{}-", config.run.name);
    let is_hash = |text: &str| text.len() == 8 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_named_so = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.and_then(|name| name.strip_prefix(&begins)).is_some_and(is_hash)
    };
    let beside = run_folder::below(folder.parent()?).unwrap_or_default();
    let others = beside.into_iter().filter(|path| is_named_so(path) && path != folder);
    let found = others.filter_map(|path| of(path, config, owners));
    found.min_by_key(|beside| matches!(beside, Beside::OtherLength(..)))
}

/// One that cannot be read is no reason to say anything.
fn of(path: PathBuf, config: &Config, owners: Owners) -> Option<Beside> {
    let mut asked = config.clone();
    match RunDir::at(&path).ok()?.inspect(&mut asked, owners) {
        // Who went on with one that is being trained would stop it.
        Ok(Found::Unfinished) if run_folder::is_supervised(&path) => None,
        Ok(Found::Unfinished) => {
            let old = parse::read(&path.join("config.toml"), &[]).ok()?;
            let keys = identity::different_keys(&old, &asked);
            // Of other data it is another run, though the same pictures may have moved.
            let same_data = !keys.iter().any(|key| NAMES_OF_DATA.contains(&key.as_str()));
            same_data.then(|| Beside::Unfinished(path, keys.join(", ")))
        }
        Err(LaunchError::Changed { changes, .. }) => {
            Some(Beside::OtherLength(path, changes.of_length()?))
        }
        Ok(Found::Nothing | Found::Completed(_)) | Err(_) => None,
    }
}

/// What the complete run in `folder` was trained on, where other data are asked for.
pub fn other_data(folder: &Path, config: &Config) -> Option<String> {
    let old = parse::read(&folder.join("config.toml"), &[]).ok()?;
    let mut keys = identity::different_keys(&old, config);
    keys.retain(|key| NAMES_OF_DATA.contains(&key.as_str()));
    let of = |data: &Option<PathBuf>| data.as_ref().map(|path| path.shown().to_string());
    let trained = of(&old.data.train).unwrap_or_else(|| "the set that is made".into());
    (!keys.is_empty()).then(|| {
        format!(
            "the run was trained on {trained}; what is asked for now ({}) is not looked at",
            keys.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ScheduleKind;
    use crate::observe::account::from_nothing;
    use crate::observe::result::Status;

    /// A run of this configuration, in a folder of its own.
    fn begun(config: &Config) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(format!("{}-00000000", config.run.name));
        let mut run = RunDir::at(&path).unwrap();
        run.create().unwrap();
        run.write_config(config).unwrap();
        (folder, path)
    }

    fn config() -> Config {
        let mut config = Config::default();
        config.train.steps = Some(10);
        config.train.owners = Some(4);
        config
    }

    #[test]
    fn a_run_that_would_go_on_is_named_with_what_differs_until_it_has_completed() {
        let (folder, path) = begun(&config());
        let own = folder.path().join("run-11111111");
        let mut asked = config();
        (asked.checkpoint.keep, asked.run.ranks) = (1, 2);
        let owners = Owners::Unasked;
        let found = beside(&own, &asked, owners);
        let keys = "checkpoint.keep, run.ranks".to_owned();
        assert_eq!(found, Some(Beside::Unfinished(path.clone(), keys)));
        assert_eq!(beside(&path, &asked, owners), None, "it is none beside itself");
        asked.run.seed = 7;
        assert_eq!(beside(&own, &asked, owners), None, "another run");
        asked.run.seed = config().run.seed;
        asked.data.train = Some("elsewhere".into());
        assert_eq!(beside(&own, &asked, owners), None, "of other data");
        asked.data.train = None;
        asked.data.prefetch = 1;
        assert!(beside(&own, &asked, owners).is_some(), "the same pictures, read otherwise");
        asked.data.prefetch = config().data.prefetch;
        let lock = std::fs::File::create(path.join("lock")).unwrap();
        lock.lock().unwrap();
        assert_eq!(beside(&own, &asked, owners), None, "it is trained now");
        lock.unlock().unwrap();
        asked.run.name = "ru".into();
        assert_eq!(beside(&own, &asked, owners), None, "another name");
        asked.run.name = config().run.name;
        let ended = from_nothing("run-00000000", 1, Status::Completed, "all steps are committed");
        std::fs::write(path.join("result.json"), serde_json::to_vec(&ended).unwrap()).unwrap();
        assert_eq!(beside(&own, &asked, owners), None, "there is nothing to go on with");
    }

    #[test]
    fn a_run_of_another_length_that_rates_follow_is_named_after_one_that_would_go_on() {
        let mut cosine = config();
        cosine.schedule.kind = ScheduleKind::Cosine;
        let (folder, path) = begun(&cosine);
        let own = folder.path().join("run-11111111");
        let mut longer = cosine.clone();
        longer.train.steps = Some(20);
        let differs = "train.steps: 10 -> 20".to_owned();
        let found = beside(&own, &longer, Owners::Asked);
        assert_eq!(found, Some(Beside::OtherLength(path, differs)));
        let mut near = RunDir::at(&folder.path().join("run-22222222")).unwrap();
        near.create().unwrap();
        near.write_config(&longer).unwrap();
        longer.checkpoint.keep = 9;
        let found = beside(&own, &longer, Owners::Asked);
        assert!(matches!(found, Some(Beside::Unfinished(..))), "{found:?}");
    }

    #[test]
    fn other_data_than_a_complete_run_was_trained_on_are_told() {
        let (_folder, path) = begun(&config());
        assert_eq!(other_data(&path, &config()), None);
        let mut asked = config();
        asked.data.train = Some("elsewhere".into());
        let told = other_data(&path, &asked).unwrap();
        assert!(told.contains("the set that is made; ") && told.contains("(data.train)"), "{told}");
    }
}
