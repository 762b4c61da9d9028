//! `kintsugi simulate unified-memory`: what CUDA's managed memory does beyond a card's capacity
//! (Negishi et al.): the ten actions of the paper, misses in sweeps, and the three designs of a
//! trainer over it. A published policy is played; no card is measured. Pure; nothing reads a clock
//! but `card`, which does the actions on one (`kintsugi probe unified-memory`).

pub mod actions;
pub mod card;
pub mod designs;
pub mod pager;
pub mod sweeps;
pub mod tables;

use crate::config::MemoryPolicy;

/// What everything that is printed begins with.
pub const SIMULATES: &str = "Simulates published policies; no card is measured.";

/// A policy, and who published it.
pub fn published(policy: MemoryPolicy) -> &'static str {
    match policy {
        MemoryPolicy::Driver => {
            "NVIDIA's open kernel driver, 535 to 595.45: free memory is taken first, then what \
             contents left, what is discarded, and what is used, in the order of allocation, \
             migration and prefetch, not of access"
        }
        MemoryPolicy::Lru => {
            "least recently used, by access too (Mattson et al. 1970), else as the driver; no \
             driver does it"
        }
        MemoryPolicy::Belady => {
            "whose next touch is furthest (Belady 1966), seen beforehand, else as the driver; \
             no driver does it"
        }
    }
}
