//! One sample of a shard.

use serde::{Deserialize, Serialize};

use super::name::Name;

/// Labels are below this.
pub const CLASSES_MAX: u32 = 1 << 20;

/// Where a member's bytes lie in its shard.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// Of the first.
    pub offset: u64,
    /// How many.
    pub length: u64,
}

/// One sample.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// The member with its picture.
    pub name: Name,
    /// Where the picture begins in the shard.
    pub offset: u64,
    /// Its bytes.
    pub length: u64,
    /// Its class.
    pub label: u32,
}
