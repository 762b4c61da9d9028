//! Plain code compiled twice: for every processor of the architecture, and for those with wide
//! registers. Integer code gives the same bits either way.

/// What is run. Its `run`, and all that it calls, must be `#[inline(always)]`: only what is inlined
/// is compiled for wide registers.
pub trait Wide {
    /// What it gives.
    type Output;
    /// Does the work.
    fn run(self) -> Self::Output;
}

/// Runs the work with the widest registers that this processor has.
#[inline]
pub fn wide<W: Wide>(work: W) -> W::Output {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2")
        && std::arch::is_x86_feature_detected!("bmi1")
        && std::arch::is_x86_feature_detected!("bmi2")
    {
        // SAFETY: the processor has what the function was compiled for.
        return unsafe { avx2(work) };
    }
    work.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2")]
fn avx2<W: Wide>(work: W) -> W::Output {
    work.run()
}
