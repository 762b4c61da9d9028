//! What computes, and in which numbers: the section `[device]`.

use serde::{Deserialize, Serialize};

use super::error::refuse;
use super::{Bytes, ConfigError};

/// What computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// Chosen when a run begins: none has it, but those of an earlier release, on processors.
    #[value(skip)]
    Auto,
    /// Processors.
    #[default]
    Cpu,
    /// Cards.
    Cuda,
}

impl DeviceKind {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
        }
    }
}

/// What values between layers are, and what their products are computed in. Sums are f32 always.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// f32, products too.
    #[default]
    F32,
    /// f32, whose products may be rounded to ten bits before: on a card.
    Tf32,
    /// bf16; on a card a gradient of weights is written so too.
    Bf16,
}

impl Precision {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Tf32 => "tf32",
            Self::Bf16 => "bf16",
        }
    }
}

/// `[device]`
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Device {
    /// `"auto"`, `"cpu"` or `"cuda"`.
    pub kind: DeviceKind,
    /// `"f32"` or `"bf16"`, or `"tf32"` on a card.
    pub precision: Precision,
    /// Bytes of the near tier for activations, scratch and copies of weights: the rank's, shared by
    /// its workers.
    pub memory_budget: Option<Bytes>,
}

impl Device {
    /// Takes over what a run has begun on, where nothing is asked for.
    pub fn go_on_from(&mut self, begun: &Self) {
        if self.kind == DeviceKind::Auto {
            self.kind = begun.kind;
        }
    }

    /// Whether such a device computes in such a precision.
    ///
    /// # Errors
    /// What to write.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.kind != DeviceKind::Cuda && self.precision == Precision::Tf32 {
            let reason = "processors have no such products; write \"f32\" or \"bf16\", or compute \
                          on \"cuda\"";
            return refuse("device.precision", "\"tf32\"", reason);
        }
        Ok(())
    }
}
