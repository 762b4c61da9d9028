//! What the ranks of a world compute with: whoever takes a dead rank's place, or goes on with a
//! run, has equal bits only if it computes with the same.

use crate::cluster::comm::{CommError, Communicator};
use crate::cluster::wire;

/// A kind of arithmetic travels in so many words.
pub const WORDS: usize = 8;

/// On the wire.
pub fn to_words(kind: &str) -> [u64; WORDS] {
    wire::of_text(kind)
}

/// Every rank's kind, in rank order.
///
/// # Errors
/// A rank was lost.
pub fn gather(comm: &mut dyn Communicator, mine: &str) -> Result<Vec<String>, CommError> {
    let told = comm.all_gather_u64(&to_words(mine))?;
    Ok(told.chunks_exact(WORDS).map(wire::to_text).collect())
}

/// The kinds that there are: one, where all ranks have the same bits.
pub fn distinct(kinds: &[String]) -> Vec<String> {
    let mut kinds = kinds.to_vec();
    kinds.sort();
    kinds.dedup();
    kinds
}
