//! `state.bin`: everything of a run's state that is not a tensor. The only file that uses bincode
//! (version 1.3.3, finished and unmaintained, so pinned). A header names the format, so that an
//! older or newer file is told from a damaged one. The same bytes travel in `SlotView::extra`.

use bincode::Options;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::observe::ledger::Committed;
use crate::train::fixed_point::Grid;
use crate::train::state::best::Improvement;
use crate::train::state::contents::Contents;

/// First bytes of the file.
pub const MAGIC: [u8; 8] = *b"KNTSTATE";
/// The format this release writes.
pub const VERSION: u32 = 1;
const HEADER_BYTES: usize = 16;
/// A state is small; what claims to be larger is damaged.
const PAYLOAD_BYTES_MAX: u64 = 1 << 24;

/// Where the run stands. New fields mean a new `VERSION`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct TrainState {
    /// Committed steps.
    pub step: u64,
    /// Committed samples.
    pub cursor: u64,
    /// `run.seed`: with the cursor, all that random draws need.
    pub seed: u64,
    /// Repairs of the world in this attempt.
    pub generation: u32,
    /// Starts of mpirun.
    pub attempt: u32,
    /// Virtual owners of the run.
    pub owners: u32,
    /// The next member number never used.
    pub next_member: u32,
    /// The run.
    pub run_id: String,
    /// Of what decides the arithmetic.
    pub config_fingerprint: u64,
    /// Of the training set.
    pub data_fingerprint: u64,
    /// Smallest validation error so far, 0..1.
    pub best_error: Option<f64>,
    /// The last one measured.
    pub last_error: Option<f64>,
    /// Seconds since the run's first start, repairs and restarts included.
    pub run_seconds: f64,
    /// Of them, seconds spent in committed steps.
    pub step_seconds: f64,
    /// As in `Position`.
    pub exact: bool,
    /// What the ranks compute with. Younger than this format, so the manifest has it.
    #[serde(skip)]
    pub arithmetic: String,
    /// On which the next step is summed. Younger too.
    #[serde(skip)]
    pub grid: Grid,
    /// The best evaluation. Younger too.
    #[serde(skip)]
    pub improvement: Improvement,
    /// What the samples of its epochs were. Younger too.
    #[serde(skip)]
    pub contents: Contents,
    /// What the order depends on besides seed and cursor (none for a pure order).
    pub order: Vec<u64>,
    /// The last ledger lines, so that a dead writer leaves no gap. Which of them changed no weight
    /// is younger than this format, so the manifest has it.
    #[serde(with = "tail")]
    pub ledger_tail: Vec<Committed>,
    /// An evaluation of this step is still to be made.
    pub evaluation_due: bool,
    /// Run time of the last evaluation, milliseconds.
    pub evaluated_ms: u64,
}

/// Ledger lines as this format has them: fields that are younger stay out of it.
mod tail {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::observe::ledger::Committed;

    #[derive(Serialize, Deserialize)]
    struct Line {
        step: u64,
        epoch: u64,
        cursor: u64,
        count: u64,
        skipped: u64,
        mix: u64,
        attempt: u32,
    }

    pub fn serialize<S: Serializer>(lines: &[Committed], serializer: S) -> Result<S::Ok, S::Error> {
        let line = |line: &Committed| {
            let Committed { step, epoch, cursor, count, skipped, mix, attempt, .. } = *line;
            Line { step, epoch, cursor, count, skipped, mix, attempt }
        };
        lines.iter().map(line).collect::<Vec<_>>().serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<Committed>, D::Error> {
        let line = |line: Line| {
            let Line { step, epoch, cursor, count, skipped, mix, attempt } = line;
            let zero_update = false;
            Committed { step, epoch, cursor, count, skipped, mix, attempt, zero_update }
        };
        Ok(Vec::<Line>::deserialize(d)?.into_iter().map(line).collect())
    }
}

/// Why bytes are not a state.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum WireError {
    /// Too short, wrong magic, wrong length, or not decodable.
    #[error("not a training state: {0}")]
    Malformed(String),
    /// A later release wrote it.
    #[error("training state of format {0}, this release reads {VERSION}")]
    Newer(u32),
}

fn options() -> impl Options {
    bincode::DefaultOptions::new().with_fixint_encoding().with_limit(PAYLOAD_BYTES_MAX)
}

/// Magic, version and payload length (u32, little-endian), payload.
///
/// # Panics
/// When a state is larger than 16 MiB, which its bounded fields exclude.
pub fn encode(state: &TrainState) -> Vec<u8> {
    let payload = options().serialize(state).expect("a state of bounded fields is below the limit");
    let mut bytes = Vec::with_capacity(HEADER_BYTES + payload.len());
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend((payload.len() as u32).to_le_bytes());
    bytes.extend(payload);
    bytes
}

/// The reverse of `encode`; refuses anything else.
pub fn decode(bytes: &[u8]) -> Result<TrainState, WireError> {
    let malformed = |what: &str| WireError::Malformed(what.to_string());
    let (header, payload) =
        bytes.split_at_checked(HEADER_BYTES).ok_or_else(|| malformed("shorter than its header"))?;
    if header[..8] != MAGIC {
        return Err(malformed("wrong first bytes"));
    }
    let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| header[at + i]));
    match word(8) {
        VERSION => {}
        newer if newer > VERSION => return Err(WireError::Newer(newer)),
        older => return Err(malformed(&format!("format {older} never existed"))),
    }
    if word(12) as usize != payload.len() {
        return Err(malformed("not as long as its header says"));
    }
    options().deserialize(payload).map_err(|error| WireError::Malformed(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn state() -> TrainState {
        TrainState {
            step: 0x0102,
            cursor: 3,
            seed: 4,
            generation: 5,
            attempt: 6,
            owners: 12,
            next_member: 7,
            run_id: "ab".into(),
            config_fingerprint: 8,
            data_fingerprint: 9,
            best_error: Some(0.5),
            last_error: None,
            run_seconds: 1.0,
            step_seconds: 2.0,
            exact: true,
            arithmetic: String::new(),
            grid: Grid::default(),
            improvement: Improvement::default(),
            contents: Contents::default(),
            order: vec![10],
            ledger_tail: vec![Committed {
                step: 1,
                epoch: 2,
                cursor: 3,
                count: 4,
                skipped: 5,
                mix: 6,
                attempt: 7,
                zero_update: false,
            }],
            evaluation_due: true,
            evaluated_ms: 8,
        }
    }

    /// Fixed for ever: a release that changes these bytes must raise `VERSION` and read both.
    #[test]
    fn the_format_is_frozen() {
        let numbers =
            |words: &[u64]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
        let halves =
            |words: &[u32]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
        let mut payload = numbers(&[0x0102, 3, 4]);
        payload.extend(halves(&[5, 6, 12, 7]));
        payload.extend(numbers(&[2]));
        payload.extend(b"ab");
        payload.extend(numbers(&[8, 9]));
        payload.push(1);
        payload.extend(numbers(&[0.5f64.to_bits()]));
        payload.push(0);
        payload.extend(numbers(&[1f64.to_bits(), 2f64.to_bits()]));
        payload.push(1);
        payload.extend(numbers(&[1, 10]));
        payload.extend(numbers(&[1, 1, 2, 3, 4, 5, 6]));
        payload.extend(halves(&[7]));
        payload.push(1);
        payload.extend(numbers(&[8]));
        let mut expected = b"KNTSTATE\x01\0\0\0".to_vec();
        expected.extend(halves(&[payload.len() as u32]));
        expected.extend(payload);
        assert_eq!(encode(&state()), expected);
        assert_eq!(decode(&expected), Ok(state()));
    }

    #[test]
    fn a_newer_format_is_told_from_damage() {
        let mut bytes = encode(&state());
        bytes[8] = 2;
        assert_eq!(decode(&bytes), Err(WireError::Newer(2)));
        bytes[8] = 0;
        assert!(matches!(decode(&bytes), Err(WireError::Malformed(_))));
        bytes[0] = b'k';
        assert!(matches!(decode(&bytes), Err(WireError::Malformed(_))));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..300), keep_header in any::<bool>()
        ) {
            let mut bytes = bytes;
            if keep_header {
                let mut headed = b"KNTSTATE\x01\0\0\0".to_vec();
                headed.extend((bytes.len() as u32).to_le_bytes());
                headed.append(&mut bytes);
                bytes = headed;
            }
            if let Ok(state) = decode(&bytes) {
                prop_assert_eq!(encode(&state), bytes);
            }
        }

        #[test]
        fn a_truncated_state_is_refused(cut in 0usize..250) {
            let bytes = encode(&state());
            prop_assert!(decode(&bytes[..cut.min(bytes.len() - 1)]).is_err());
        }
    }
}
