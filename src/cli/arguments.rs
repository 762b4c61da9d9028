//! What several commands read alike.

use clap::builder::{BoolValueParser, TypedValueParser};

use crate::train::compute::committed::Which;

/// What a command prints its findings as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// For people.
    Table,
    /// For programs.
    Json,
}

/// Reads the flag `--json`.
pub(super) fn form() -> impl TypedValueParser<Value = Form> {
    BoolValueParser::new().map(|json| if json { Form::Json } else { Form::Table })
}

/// Reads the flag `--average`.
pub(super) fn which() -> impl TypedValueParser<Value = Which> {
    BoolValueParser::new().map(|average| match average {
        true => Which::Averaged,
        false => Which::Trained,
    })
}

/// Most processes or threads that are asked for: more is a slip of the finger.
const CROWD_MAX: u64 = 4096;

/// Reads a number of processes or threads.
pub(super) fn crowd(text: &str) -> Result<usize, String> {
    let number = text.parse::<u64>().ok().filter(|number| (1..=CROWD_MAX).contains(number));
    let number = number.and_then(|number| usize::try_from(number).ok());
    number.ok_or_else(|| format!("write a number from 1 to {CROWD_MAX}"))
}

/// The same, of ranks.
pub(super) fn ranks(text: &str) -> Result<u32, String> {
    crowd(text).and_then(|ranks| u32::try_from(ranks).map_err(|error| error.to_string()))
}
