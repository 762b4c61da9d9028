//! Why a configuration is refused, for people: key, value and what to write instead.

use std::path::PathBuf;

use thiserror::Error;

use super::shown::Shown;

/// Why a configuration is refused. All of them are exit code 2: nothing was started.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {}: {source}", path.shown())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not TOML.
    #[error("{} is not valid TOML:\n{reason}", path.shown())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The parser's words, with line and column.
        reason: String,
    },
    /// An `-s` that is not `section.key=value`.
    #[error(
        "`-s {}`: {reason}; write -s section.key=value, for example -s train.epochs=3",
        text.shown()
    )]
    Override {
        /// As typed.
        text: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Keys nobody reads: all that there are.
    #[error("{}", listed(keys))]
    UnknownKeys {
        /// Each full key, and the nearest known one, or what to do instead.
        keys: Vec<(String, String)>,
    },
    /// A value of the wrong type or spelling.
    #[error("`{} = {value}`: {}; write for example {example}", key.shown(), reason.shown())]
    BadValue {
        /// The full key.
        key: String,
        /// As written.
        value: String,
        /// What is wrong with it.
        reason: String,
        /// A line that is right.
        example: String,
    },
    /// Every value is well formed, but they make no sense or not yet.
    #[error("`{key} = {value}`: {reason}")]
    Refused {
        /// The full key.
        key: String,
        /// In force.
        value: String,
        /// Why, and what to write instead.
        reason: String,
    },
}

fn listed(keys: &[(String, String)]) -> String {
    let lines = keys.iter().map(|(key, hint)| format!("unknown key `{}`; {hint}", key.shown()));
    lines.collect::<Vec<_>>().join("\n")
}

/// Refuses a key with its value and what to write instead.
pub(super) fn refuse(
    key: &str,
    value: impl std::fmt::Display,
    reason: impl Into<String>,
) -> Result<(), ConfigError> {
    Err(ConfigError::Refused { key: key.into(), value: value.to_string(), reason: reason.into() })
}
