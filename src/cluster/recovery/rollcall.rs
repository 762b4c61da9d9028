//! What ranks tell each other in a repair, as fixed-width words: the roll call of a shrunk world
//! (who still lives, and how far down the ladder he is) and the census of the repaired one (who
//! holds state, who is new). Pure.

use super::machine::Position;

/// A host's name travels in this many words: Linux allows 64 bytes.
const HOST_WORDS: usize = 8;

/// One rank's answer to the roll call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    /// Its rank in the last full world it knows.
    pub slot: usize,
    /// Ranks of that world.
    pub ranks: usize,
    /// Its committed step, `None` without state.
    pub step: Option<u64>,
    /// Where its machine stands.
    pub position: Position,
    /// Whether its repair has taken longer than it may.
    pub overdue: bool,
}

impl Answer {
    const WORDS: usize = 8;

    pub fn to_words(&self) -> [u64; Self::WORDS] {
        let p = self.position;
        [
            self.slot as u64,
            self.ranks as u64,
            u64::from(self.step.is_some()),
            self.step.unwrap_or(0),
            p.rung as u64,
            u64::from(p.tries),
            u64::from(p.roll_calls),
            u64::from(self.overdue),
        ]
    }

    fn from_words(w: &[u64]) -> Self {
        Self {
            slot: w[0] as usize,
            ranks: w[1] as usize,
            step: (w[2] == 1).then_some(w[3]),
            position: Position { rung: w[4] as usize, tries: w[5] as u32, roll_calls: w[6] as u32 },
            overdue: w[7] == 1,
        }
    }
}

/// Everybody's answers, in the shrunk world's rank order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Roll(Vec<Answer>);

impl Roll {
    /// Reads a gathered roll call of `ranks` answers; the reason when it cannot be one.
    pub fn read(words: &[u64], ranks: usize) -> Result<Self, String> {
        if ranks == 0 || words.len() != ranks * Answer::WORDS {
            return Err(format!("a roll call of {ranks} ranks came as {} words", words.len()));
        }
        let answers: Vec<Answer> =
            words.chunks_exact(Answer::WORDS).map(Answer::from_words).collect();
        let ascending = answers.windows(2).all(|w| w[0].slot < w[1].slot);
        let alike = answers.iter().all(|a| a.ranks == answers[0].ranks && a.slot < a.ranks);
        if !ascending || !alike {
            return Err(format!("the living do not agree on who they are: {answers:?}"));
        }
        Ok(Self(answers))
    }

    /// Ranks of the last full world that nobody holds any more, ascending.
    pub fn lost(&self) -> Vec<usize> {
        let held: Vec<usize> = self.0.iter().map(|a| a.slot).collect();
        (0..self.0[0].ranks).filter(|slot| held.binary_search(slot).is_err()).collect()
    }

    /// The furthest position that anybody stands at.
    pub fn position(&self) -> Position {
        self.0.iter().map(|a| a.position).max().unwrap_or_default()
    }

    /// Whether anybody's time is up.
    pub fn overdue(&self) -> bool {
        self.0.iter().any(|a| a.overdue)
    }

    /// Whether anybody holds state.
    pub fn has_state(&self) -> bool {
        self.0.iter().any(|a| a.step.is_some())
    }
}

/// One rank's entry in the census.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Resident {
    /// Its rank in the last full world it knows, before this repair's renumbering.
    pub slot: usize,
    /// Its committed step, `None` without state.
    pub step: Option<u64>,
    /// The generation it comes from (0 without state).
    pub generation: u32,
    /// Its process.
    pub pid: u32,
    /// Where it runs.
    pub host: String,
}

impl Resident {
    const WORDS: usize = 5 + HOST_WORDS;

    pub fn to_words(&self) -> [u64; Self::WORDS] {
        let mut words = [0; Self::WORDS];
        words[0] = self.slot as u64;
        words[1] = u64::from(self.step.is_some());
        words[2] = self.step.unwrap_or(0);
        words[3] = u64::from(self.generation);
        words[4] = u64::from(self.pid);
        let mut host = [0u8; HOST_WORDS * 8];
        let length = floor_char_boundary(&self.host, host.len());
        host[..length].copy_from_slice(&self.host.as_bytes()[..length]);
        for (word, bytes) in words[5..].iter_mut().zip(host.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().expect("chunks of eight"));
        }
        words
    }

    fn from_words(w: &[u64]) -> Self {
        let host: Vec<u8> = w[5..].iter().flat_map(|word| word.to_le_bytes()).collect();
        let host = String::from_utf8_lossy(&host).trim_end_matches('\0').to_owned();
        Self {
            slot: w[0] as usize,
            step: (w[1] == 1).then_some(w[2]),
            generation: w[3] as u32,
            pid: w[4] as u32,
            host,
        }
    }
}

fn floor_char_boundary(text: &str, bytes_max: usize) -> usize {
    let end = text.len().min(bytes_max);
    (0..=end).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0)
}

/// The repaired world as it stands before state is handed over.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Census {
    /// Everybody, in rank order.
    pub residents: Vec<Resident>,
    /// The lowest rank that holds state.
    pub source: usize,
    /// Ranks without state, ascending.
    pub receivers: Vec<usize>,
    /// The step that everybody goes on from.
    pub step: u64,
}

impl Census {
    /// Reads a gathered census of `ranks` entries. Fails with the reason when no rank holds state
    /// or when two hold different steps, which the commit rule (DESIGN 4.2) makes impossible: then
    /// nobody may go on, for nobody knows which is right.
    pub fn read(words: &[u64], ranks: usize) -> Result<Self, String> {
        if words.len() != ranks * Resident::WORDS {
            return Err(format!("a census of {ranks} ranks came as {} words", words.len()));
        }
        let residents: Vec<Resident> =
            words.chunks_exact(Resident::WORDS).map(Resident::from_words).collect();
        let holders = || residents.iter().enumerate().filter_map(|(r, m)| Some((r, m, m.step?)));
        let Some((source, first, step)) = holders().next() else {
            return Err("all state was lost".into());
        };
        if let Some((rank, other, at)) =
            holders().find(|(_, m, at)| *at != step || m.generation != first.generation)
        {
            return Err(format!(
                "the commit rule was broken: rank {source} holds step {step} of generation {}, \
                 rank {rank} holds step {at} of generation {}",
                first.generation, other.generation
            ));
        }
        let receivers =
            (0..ranks).filter(|rank| residents[*rank].step.is_none()).collect::<Vec<_>>();
        Ok(Self { residents, source, receivers, step })
    }
}
