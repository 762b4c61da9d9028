//! What a plan asks of a device, in the words of [`kintsugi_ffi::operation`], and what it answers.

pub use kintsugi_ffi::operation::{
    Access, Algorithm, Direction, Function, Lrn, Norm, Pass, Pooling, ProductPass, Role,
    SoftmaxForm, Statistics, Window,
};

use super::tensor::Desc;

/// A kernel that a backend chose, by the number it gave it.
pub type Kernel = usize;

/// An operation on tensors of a plan. The hint is the forward operation's kernel.
pub type Operation<'a> = kintsugi_ffi::operation::Operation<&'a Desc, Kernel>;

/// An argument of a chosen kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    /// What it is.
    pub role: Role,
    /// What happens to it.
    pub access: Access,
    /// How it must lie.
    pub desc: Desc,
}

/// A chosen kernel and what it wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Which.
    pub kernel: Kernel,
    /// All that it reads and writes, the scratchpad aside.
    pub arguments: Vec<Argument>,
    /// Bytes that every execution needs for itself.
    pub scratch_bytes: usize,
}

impl Choice {
    /// How an argument must lie; `None` if the kernel has no such argument.
    pub fn desc_if_any(&self, role: Role) -> Option<&Desc> {
        let own = |argument: &&Argument| argument.role == role;
        self.arguments.iter().find(own).map(|argument| &argument.desc)
    }

    /// How an argument that the kernel is known to have must lie.
    pub fn desc(&self, role: Role) -> Result<Desc, Refusal> {
        let missing = || Refusal(format!("this operation has no {role:?}"));
        self.desc_if_any(role).cloned().ok_or_else(missing)
    }

    /// Whether an execution writes this argument.
    pub fn writes(&self, role: Role) -> bool {
        let written = |a: &Argument| a.role == role && a.access == Access::Write;
        role == Role::Scratchpad || self.arguments.iter().any(written)
    }
}

/// Why a device cannot do what was asked for, in its words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal(pub String);

/// What a plan needs to know of a device.
pub trait Backend {
    /// Picks a kernel for `operation`, and the orders that were left open.
    fn choose(&mut self, operation: &Operation<'_>) -> Result<Choice, Refusal>;
}
