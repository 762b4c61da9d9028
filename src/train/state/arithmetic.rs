//! What the ranks of a world compute with: whoever takes a dead rank's place, or goes on with a
//! run, has equal bits only if it computes with the same.

use xxhash_rust::xxh3::xxh3_64;

use crate::cluster::comm::{CommError, Communicator};
use crate::cluster::wire;

/// A kind of arithmetic travels in so many words.
pub const WORDS: usize = 24;
/// What stands before a hash, where it has no room.
const CUT: &str = "... ";
/// Between what computes and the program that makes it.
const BUILD: &str = ", build ";

/// What a device computes with in a program of this build.
pub fn of(device: &str, build: u64) -> String {
    format!("{device}{BUILD}{build:016x}")
}

/// The device's part, and the build; an earlier release told none.
pub fn parts(kind: &str) -> (&str, &str) {
    kind.split_once(BUILD).unwrap_or((kind, ""))
}

/// On the wire. What is too long is told apart by a hash of all of it.
pub fn to_words(kind: &str) -> [u64; WORDS] {
    const BYTES: usize = WORDS * size_of::<u64>();
    if kind.len() <= BYTES {
        return wire::of_text(kind);
    }
    let hash = format!("{CUT}{:016x}", xxh3_64(kind.as_bytes()));
    let end = (0..=BYTES - hash.len()).rev().find(|at| kind.is_char_boundary(*at)).unwrap_or(0);
    wire::of_text(&format!("{}{hash}", &kind[..end]))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_that_differ_do_so_behind_the_wire_however_long_they_are() {
        let far = |kind: &str| wire::to_text(&to_words(kind));
        let card = of("CUDA NVIDIA RTX PRO 6000 Blackwell Server Edition sm_120 cuDNN 91400", 7);
        assert_eq!(far(&card), card);
        for long in ["x".repeat(500), "é".repeat(150)] {
            let (one, other) = (far(&format!("{long}1")), far(&format!("{long}2")));
            assert_ne!(one, other);
            assert!(one.contains("... ") && one.len() <= 8 * WORDS, "{one}");
        }
    }

    #[test]
    fn a_build_is_told_apart_from_the_device() {
        let kind = of("oneDNN 3.2.0 avx2", 10);
        assert_eq!(parts(&kind), ("oneDNN 3.2.0 avx2", "000000000000000a"));
        assert_eq!(parts("oneDNN 3.2.0 avx2"), ("oneDNN 3.2.0 avx2", ""));
    }
}
