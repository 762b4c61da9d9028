//! What a run makes lies apart from the pictures that it reads: a folder of its own among theirs
//! would be a class, from then on for every run.

use std::path::Path;

use crate::config::{Config, DataFormat, Resident, Shown, StagingMode, Validation};
use crate::run_folder;

/// Why a run of this configuration is not begun, where it would make something inside one of its
/// sets. Paths are absolute.
pub fn refusal(config: &Config, run_dir: &Path) -> Option<String> {
    let data = &config.data;
    if data.format != DataFormat::ImageFolder {
        return None;
    }
    let validation = data.validation.as_ref().and_then(Validation::place);
    let sets = [("data.train", data.train.as_deref()), ("data.validation", validation)];
    let copies = (config.staging.mode != StagingMode::None).then(|| config.staging.place());
    let resident = &config.recovery.resident_dir;
    let slots = (config.recovery.resident == Resident::On).then_some(resident.as_path());
    let made = [
        ("--run-dir", Some(run_dir)),
        ("staging.folder", copies.as_deref()),
        ("recovery.resident_dir", slots),
    ];
    let pairs = made.iter().flat_map(|made| sets.iter().map(move |set| (made, set)));
    pairs.into_iter().find_map(|((key, made), (set_key, set))| {
        let (made, set) = ((*made)?, (*set)?);
        let inside = run_folder::canonical(made).starts_with(run_folder::canonical(set));
        inside.then(|| {
            format!(
                "{key} {} lies inside {set_key} {}: what the run makes there would be taken for \
                 a class of pictures; name a folder outside of it",
                made.shown(),
                set.shown()
            )
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_run_makes_lies_in_its_sets() {
        let above = tempfile::tempdir().unwrap();
        let at = |name: &str| above.path().join(name);
        std::fs::create_dir(at("train")).unwrap();
        std::os::unix::fs::symlink(at("train"), at("link")).unwrap();
        let mut config = Config::default();
        config.data.format = DataFormat::ImageFolder;
        config.data.train = Some(at("train"));
        config.data.validation = Some(Validation::Place(at("val")));
        config.staging.mode = StagingMode::During;
        config.staging.folder = Some(at("local"));
        let refused = |config: &Config, run: &str| refusal(config, &at(run)).unwrap_or_default();
        assert_eq!(refused(&config, "trained"), "");
        assert!(refused(&config, "link/runs/a").starts_with("--run-dir "));
        assert!(refused(&config, "val").contains("lies inside data.validation"));
        config.staging.folder = Some(at("train/copies"));
        assert!(refused(&config, "run").starts_with("staging.folder "));
        config.staging.mode = StagingMode::None;
        assert_eq!(refused(&config, "run"), "", "nothing is copied");
        config.recovery.resident_dir = at("link");
        assert!(refused(&config, "run").starts_with("recovery.resident_dir "));
        config.data.format = DataFormat::Tar;
        assert_eq!(refused(&config, "train/run"), "", "shards are files of their own");
    }
}
