//! What becomes of a measure, and how its figures came about.

use serde::Serialize;

use super::file::Study;
use crate::lab::report::Table;

/// How figures came about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// From sizes and places of values.
    Placement,
    /// The same, and a step of each was computed.
    Confirmed,
    /// Steps were computed, in turns.
    Measured,
    /// A published policy was played.
    Simulated,
    /// By guessed prices and stated assumptions.
    Computed,
}

impl Source {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Placement => "By placement alone: exact for this engine; nothing was computed.",
            Self::Confirmed => {
                "By placement, and a step of each largest micro-batch was computed, and one more \
                 sample tried."
            }
            Self::Measured => {
                "Measured: steps of one worker on this machine's processor, in turns, medians. The \
                 near tier is a budget of its memory and the link is paced: an emulated card."
            }
            Self::Simulated => "Simulated: a published policy is played; no card is measured.",
            Self::Computed => {
                "Computed by guessed prices of steps and by the assumptions named; nothing was \
                 measured."
            }
        }
    }
}

/// What became of a measure.
pub struct Part {
    /// Its heading.
    pub title: String,
    /// How.
    pub source: Source,
    /// Drawings with their captions, HTML.
    pub drawings: Vec<(String, String)>,
    /// Tables of plain words with their captions, HTML.
    pub tables: Vec<(Table, String)>,
    /// The same for programs.
    pub rows: serde_json::Value,
}

/// Rows as JSON.
pub fn json(rows: &impl Serialize) -> serde_json::Value {
    serde_json::to_value(rows).expect("names and numbers are JSON")
}

/// What is written around the parts.
pub struct Frame<'a> {
    /// The file.
    pub study: &'a Study,
    /// Its text.
    pub text: &'a str,
    /// The line that made it.
    pub command: &'a str,
    /// In words.
    pub machine: String,
}
