//! The CPU through oneDNN: a context and a team of OpenMP threads.

use kintsugi_ffi::dnnl::{self, Context};

use crate::engine::error::EngineError;

/// One worker's CPU. The team's size is part of the arithmetic: another size, other bits.
pub struct Team {
    /// What primitives are made with.
    pub context: Context,
    threads: usize,
}

impl Team {
    /// A team of `threads` (at least one) for the calling thread.
    ///
    /// # Errors
    /// oneDNN's; something of the environment makes it another one.
    pub fn new(threads: usize) -> Result<Self, EngineError> {
        let this = Self { context: Context::cpu()?, threads: threads.max(1) };
        this.enter();
        match dnnl::team_size() {
            found if found == this.threads => Ok(this),
            found => Err(EngineError::Refused(format!(
                "a team of {threads} threads has {found} here, and would compute something else: \
                 unset what sets OpenMP up (OMP_..., GOMP_...)"
            ))),
        }
    }

    /// The largest that the environment allows.
    pub fn most() -> usize {
        dnnl::thread_limit()
    }

    /// Refuses teams that the environment would make smaller without a word.
    pub fn check(threads: usize) -> Result<(), EngineError> {
        let limit = Self::most();
        match threads > limit {
            true => Err(EngineError::Refused(format!(
                "OMP_THREAD_LIMIT: a team of {threads} threads would have {limit}, and other bits; \
                 unset it"
            ))),
            false => Ok(()),
        }
    }

    /// GNU OpenMP keeps the team's size per host thread, so whoever computes says it again.
    pub fn enter(&self) {
        dnnl::set_threads(self.threads);
    }
}
