//! What tells a configuration that is asked for from the one that a run has, in words.

use std::fmt;
use std::path::Path;

use toml::Table;

use crate::config::{Config, Shown, identity, parse};

/// Keys that a run which goes on must keep, and has other values of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changes {
    keys: Vec<String>,
    /// One line per key: old and new value.
    lines: Vec<String>,
}

impl Changes {
    /// `None`: the run may go on.
    pub fn of(old: &Config, new: &Config) -> Option<Self> {
        let keys = parse::changed_keys(old, new);
        let table = |config: &Config| Table::try_from(config).unwrap_or_default();
        let (old, new) = (table(old), table(new));
        let value = |table: &Table, key: &str| {
            let (section, name) = key.split_once('.').unwrap_or((key, ""));
            let value = table.get(section).and_then(|section| section.get(name));
            match value {
                None => "unset".to_owned(),
                Some(_) if key == "model.text" => "the text of a model file".to_owned(),
                Some(value) => value.to_string(),
            }
        };
        let line = |key: &String| format!("{key}: {} -> {}", value(&old, key), value(&new, key));
        let lines = keys.iter().map(line).collect();
        (!keys.is_empty()).then_some(Self { keys, lines })
    }

    /// In one line, where the run's length is all there is.
    pub fn of_length(&self) -> Option<String> {
        identity::differ_in_length(&self.keys).then(|| self.lines.join(", "))
    }

    /// What else to do than keep the values of the run in `path`: a line, or nothing.
    pub fn advice(&self, path: &Path) -> String {
        match self.of_length() {
            None => String::new(),
            Some(_) => format!(
                "its learning rate follows its length, so one of another length is another run: \
                 --extend {} in place of --run-dir begins it with this one's weights; or\n",
                path.shown()
            ),
        }
    }
}

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "  {}", self.lines.join("\n  "))
    }
}
