//! Relative paths of a configuration: they start where the command was given, and the run's own
//! configuration must not depend on that.

use std::path::{Path, PathBuf};

use super::error::ConfigError;
use super::{Config, Memory, Model, Shown, StagingMode, Validation};

/// A runtime that is looked for, not named.
const AUTO: &str = "auto";

/// Makes the paths absolute that may change while a run goes on, and says where those of the model
/// start, whose texts are part of what the run is.
///
/// # Errors
/// A path that is not UTF-8: TOML cannot hold it. A relative one, where the current folder is gone.
pub fn resolve(config: &mut Config) -> Result<(), ConfigError> {
    // Where the current folder is gone, relative paths are refused.
    resolve_from(config, &std::env::current_dir().unwrap_or_default())
}

fn resolve_from(config: &mut Config, from: &Path) -> Result<(), ConfigError> {
    let Config { data, staging, recovery, run, model, memory, .. } = config;
    let validation = match &mut data.validation {
        Some(Validation::Place(path)) => Some(path),
        _ => None,
    };
    // Ranks have the TMPDIR of their attempt, which goes with it: copies are to outlive that, and
    // `data stage` makes them where there is none.
    if staging.mode != StagingMode::None {
        staging.folder = Some(staging.place());
    }
    for (key, path) in [
        ("data.train", data.train.as_mut()),
        ("data.validation", validation),
        ("staging.folder", staging.folder.as_mut()),
    ] {
        if let Some(path) = path {
            *path = absolute(key, path, from)?;
        }
    }
    if memory.far != Memory::RAM {
        let far = absolute("memory.far", Path::new(&memory.far), from)?;
        memory.far = far.to_string_lossy().into_owned();
    }
    let directory = &mut recovery.resident_dir;
    *directory = absolute("recovery.resident_dir", directory, from)?;
    if run.runtime != AUTO {
        let runtime = absolute("run.runtime", Path::new(&run.runtime), from)?;
        run.runtime = runtime.to_string_lossy().into_owned();
    }
    if model.folder.is_none() && model.has_relative_path() {
        model.folder = Some(absolute("model.folder", Path::new("."), from)?);
    }
    Ok(())
}

fn absolute(key: &str, path: &Path, from: &Path) -> Result<PathBuf, ConfigError> {
    let whole = match path.is_absolute() {
        true => path.to_owned(),
        false if from.as_os_str().is_empty() => {
            let reason = "the path is relative, and the folder where this was started is gone: \
                          name whole paths, or start in a folder that is there";
            let value = path.shown();
            return Err(ConfigError::Refused { key: key.into(), value, reason: reason.into() });
        }
        // Takes out what leads nowhere, such as `.`, and follows no link.
        false => from.join(path).components().collect(),
    };
    if whole.to_str().is_some() {
        return Ok(whole);
    }
    let reason = "the path is not UTF-8, and the run's configuration is text: rename the folder, \
                  or lead to it by a link whose path is UTF-8";
    let value = whole.shown();
    Err(ConfigError::Refused { key: key.into(), value, reason: reason.into() })
}

impl Model {
    /// Whether it is a file's, not the catalogue's.
    pub fn is_file(&self) -> bool {
        self.name.ends_with(".toml")
    }

    pub(super) fn has_relative_path(&self) -> bool {
        let init = self.init.as_deref().is_some_and(Path::is_relative);
        init || (self.is_file() && Path::new(&self.name).is_relative())
    }

    fn found(&self, path: &Path) -> PathBuf {
        self.folder.as_deref().map_or_else(|| path.to_owned(), |folder| folder.join(path))
    }

    /// The model's name in the catalogue, or the path of its file from where this process is.
    pub fn found_name(&self) -> String {
        match self.is_file() {
            true => self.found(Path::new(&self.name)).to_string_lossy().into_owned(),
            false => self.name.clone(),
        }
    }

    /// `init` from where this process is.
    pub fn found_init(&self) -> Option<PathBuf> {
        self.init.as_deref().map(|path| self.found(path))
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;
    use crate::config::identity;

    fn config() -> Config {
        let mut config = Config::default();
        config.data.train = Some("set/../set/./train".into());
        config.data.validation = Some("/val".into());
        config.model.name = "mine.toml".into();
        config.model.init = Some("w.safetensors".into());
        config.run.runtime = "prte".into();
        config.memory.far = "far/".into();
        config.train.reproducible = Some(true);
        config
    }

    #[test]
    fn a_resolved_configuration_leads_to_the_same_files_from_anywhere() {
        let mut config = config();
        resolve_from(&mut config, Path::new("/home/me")).unwrap();
        assert_eq!(config.data.train, Some("/home/me/set/../set/train".into()));
        assert_eq!(config.data.validation, Some("/val".into()));
        assert_eq!(config.recovery.resident_dir, Path::new("/dev/shm"));
        assert_eq!(config.run.runtime, "/home/me/prte");
        assert_eq!(config.memory.far, "/home/me/far");
        assert_eq!(config.model.found_name(), "/home/me/mine.toml");
        assert_eq!(config.model.found_init(), Some("/home/me/w.safetensors".into()));
        let text = identity::resolved_text(&config);
        let mut read: Config = toml::from_str(&text).unwrap();
        assert_eq!(read, config);
        resolve_from(&mut read, Path::new("/elsewhere")).unwrap();
        assert_eq!(read, config, "once is for ever");
        let mut plain = Config::default();
        resolve_from(&mut plain, Path::new("/home/me")).unwrap();
        assert_eq!(plain, Config::default(), "nothing in it is relative");
    }

    #[test]
    fn ranks_are_told_where_copies_go_and_nobody_is_where_nothing_is_copied() {
        let mut staged = Config::default();
        staged.staging.mode = StagingMode::Before;
        let place = staged.staging.place();
        resolve_from(&mut staged, Path::new("/home/me")).unwrap();
        assert_eq!(staged.staging.folder, Some(place));
        staged.staging.folder = Some("disk".into());
        resolve_from(&mut staged, Path::new("/home/me")).unwrap();
        assert_eq!(staged.staging.folder, Some("/home/me/disk".into()));
    }

    #[test]
    fn resolving_leaves_what_makes_the_run() {
        let (typed, mut resolved) = (config(), config());
        resolve_from(&mut resolved, Path::new("/home/me")).unwrap();
        assert_eq!(identity::fingerprint(&typed), identity::fingerprint(&resolved));
        assert!(identity::changed_keys(&typed, &resolved).is_empty());
        let mut moved = config();
        resolve_from(&mut moved, Path::new("/srv")).unwrap();
        assert_eq!(identity::fingerprint(&moved), identity::fingerprint(&resolved));
        assert!(identity::changed_keys(&moved, &resolved).is_empty());
    }

    #[test]
    fn relative_paths_are_refused_where_the_folder_of_the_start_is_gone_and_whole_ones_are_not() {
        let text = resolve_from(&mut config(), Path::new("")).unwrap_err().to_string();
        assert!(text.starts_with("`data.train = set/../set/./train`: the path is"), "{text}");
        let mut whole = Config::default();
        whole.data.train = Some("/set".into());
        resolve_from(&mut whole, Path::new("")).unwrap();
    }

    #[test]
    fn a_folder_that_is_not_utf8_is_refused_in_these_words() {
        let folder = Path::new(OsStr::from_bytes(b"/home/\xff"));
        let text = resolve_from(&mut config(), folder).unwrap_err().to_string();
        assert!(text.starts_with("`data.train = /home/\\xff/set/../set/train`: "), "{text}");
        assert!(text.contains("is not UTF-8"), "{text}");
        resolve_from(&mut Config::default(), folder).unwrap();
    }
}
