//! What ranks tell each other in a repair, as fixed-width words: the roll call of a shrunk world
//! (who still lives, and how far down the ladder he is) and the holdings of the repaired one (who
//! holds state, who is new). Pure.

use super::descent::Descent;
use super::quorum;
use super::set::{self, SetIdentity};
use crate::cluster::wire;

/// A host's name travels in this many words: Linux allows 64 bytes.
const HOST_WORDS: usize = 8;

/// A process without a rank, on the wire.
const NO_SLOT: u64 = u64::MAX;

/// One process's answer to the roll call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    /// Its rank in the last full world it knows; `None` for a spare.
    pub slot: Option<usize>,
    /// Ranks of that world; a spare does not say.
    pub ranks: usize,
    /// Its committed step, `None` without state.
    pub step: Option<u64>,
    /// Where its machine stands.
    pub descent: Descent,
    /// Whether its repair has taken longer than it may.
    pub overdue: bool,
    /// Which spawn brought it, 0 for the first-born: those are promoted last.
    pub born: u32,
    /// Nodes of that world; 0 from whoever does not know it.
    pub nodes: usize,
    /// Its process.
    pub pid: u32,
    /// Where it runs.
    pub host: String,
}

impl Answer {
    const WORDS: usize = 11 + HOST_WORDS;

    pub fn to_words(&self) -> [u64; Self::WORDS] {
        let p = self.descent;
        let mut words = [0; Self::WORDS];
        words[..11].copy_from_slice(&[
            self.slot.map_or(NO_SLOT, |slot| slot as u64),
            self.ranks as u64,
            u64::from(self.step.is_some()),
            self.step.unwrap_or(0),
            p.rung as u64,
            u64::from(p.tries),
            u64::from(p.roll_calls),
            u64::from(self.overdue),
            u64::from(self.born),
            u64::from(self.pid),
            self.nodes as u64,
        ]);
        words[11..].copy_from_slice(&wire::of_text::<HOST_WORDS>(&self.host));
        words
    }

    fn from_words(w: &[u64]) -> Self {
        Self {
            slot: (w[0] != NO_SLOT).then_some(w[0] as usize),
            ranks: w[1] as usize,
            step: (w[2] == 1).then_some(w[3]),
            descent: Descent { rung: w[4] as usize, tries: w[5] as u32, roll_calls: w[6] as u32 },
            overdue: w[7] == 1,
            born: w[8] as u32,
            pid: w[9] as u32,
            nodes: w[10] as usize,
            host: wire::to_text(&w[11..]),
        }
    }
}

/// Everybody's answers, in the gathering's order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Roll(Vec<Answer>);

impl Roll {
    /// Reads a gathered roll call of `ranks` answers; the reason when it cannot be one.
    pub fn read(words: &[u64], ranks: usize) -> Result<Self, String> {
        if ranks == 0 || words.len() != ranks * Answer::WORDS {
            return Err(format!("a roll call of {ranks} ranks came as {} words", words.len()));
        }
        let answers: Vec<Answer> =
            words.chunks_exact(Answer::WORDS).map(Answer::from_words).collect();
        let roll = Self(answers);
        let mut held: Vec<usize> = roll.0.iter().filter_map(|a| a.slot).collect();
        held.sort_unstable();
        let distinct = held.windows(2).all(|w| w[0] < w[1]);
        let seated = || roll.0.iter().filter_map(|a| Some((a, a.slot?)));
        let alike = seated().all(|(a, slot)| a.ranks == roll.ranks() && slot < a.ranks);
        if !distinct || !alike {
            return Err(format!("the living do not agree on who they are: {:?}", roll.0));
        }
        Ok(roll)
    }

    /// The answers.
    pub fn answers(&self) -> &[Answer] {
        &self.0
    }

    /// Ranks of the last full world; 0 when only spares are left.
    pub fn ranks(&self) -> usize {
        self.0.iter().find(|a| a.slot.is_some()).map_or(0, |a| a.ranks)
    }

    /// What everybody holds.
    pub fn slots(&self) -> Vec<Option<usize>> {
        self.0.iter().map(|a| a.slot).collect()
    }

    /// Ranks of the last full world that nobody holds any more, ascending.
    pub fn lost(&self) -> Vec<usize> {
        super::seats::open(&self.slots(), self.ranks())
    }

    /// Whether spares are among the living.
    pub fn has_spares(&self) -> bool {
        self.0.iter().any(|a| a.slot.is_none())
    }

    /// Whether the gathering is a world already: ranks only, in their order.
    pub fn is_a_world(&self) -> bool {
        !self.has_spares() && self.0.windows(2).all(|w| w[0].slot < w[1].slot)
    }

    /// The first process that holds state, with its step.
    pub fn source(&self) -> Option<(usize, u64)> {
        self.0.iter().enumerate().find_map(|(place, a)| Some((place, a.step?)))
    }

    /// The furthest descent that anybody stands at.
    pub fn descent(&self) -> Descent {
        self.0.iter().map(|a| a.descent).max().unwrap_or_default()
    }

    /// Why those who answered are too few nodes to go on, if they are. Everybody who has the roll
    /// comes to the same answer.
    pub fn quorum_missed(&self, home: Option<&str>) -> Option<String> {
        let agreed = self.0.iter().map(|a| a.nodes).max().unwrap_or(0);
        let living = self.0.iter().map(|a| a.host.as_str()).collect();
        quorum::missed(agreed, &living, home)
    }

    /// Whether anybody's time is up.
    pub fn overdue(&self) -> bool {
        self.0.iter().any(|a| a.overdue)
    }
}

/// One rank's entry in the holdings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Resident {
    /// Its rank in the last full world it knows, before this repair's renumbering.
    pub slot: usize,
    /// Its committed step, `None` without state.
    pub step: Option<u64>,
    /// The generation it comes from (0 without state).
    pub generation: u32,
    /// What it has listed of the run's data.
    pub set: SetIdentity,
    /// Its process.
    pub pid: u32,
    /// Where it runs.
    pub host: String,
}

impl Resident {
    const HOST_AT: usize = 5 + SetIdentity::WORDS;
    const WORDS: usize = Self::HOST_AT + HOST_WORDS;

    pub fn to_words(&self) -> [u64; Self::WORDS] {
        let mut words = [0; Self::WORDS];
        words[0] = self.slot as u64;
        words[1] = u64::from(self.step.is_some());
        words[2] = self.step.unwrap_or(0);
        words[3] = u64::from(self.generation);
        words[4] = u64::from(self.pid);
        words[5..Self::HOST_AT].copy_from_slice(&self.set.to_words());
        words[Self::HOST_AT..].copy_from_slice(&wire::of_text::<HOST_WORDS>(&self.host));
        words
    }

    fn from_words(w: &[u64]) -> Self {
        Self {
            slot: w[0] as usize,
            step: (w[1] == 1).then_some(w[2]),
            generation: w[3] as u32,
            pid: w[4] as u32,
            set: SetIdentity::from_words(&w[5..]),
            host: wire::to_text(&w[Self::HOST_AT..]),
        }
    }
}

/// The repaired world as it stands before state is handed over.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Holdings {
    /// Everybody, in rank order.
    pub residents: Vec<Resident>,
    /// The lowest rank that holds state.
    pub source: usize,
    /// Ranks without state, ascending.
    pub receivers: Vec<usize>,
    /// The step that everybody goes on from.
    pub step: u64,
}

impl Holdings {
    /// Reads a gathered holdings of `ranks` entries. Fails with the reason when no rank holds state
    /// or when two hold different steps, which the commit rule makes impossible: then
    /// nobody may go on, for nobody knows which is right.
    pub fn read(words: &[u64], ranks: usize) -> Result<Self, String> {
        if words.len() != ranks * Resident::WORDS {
            return Err(format!("a holdings of {ranks} ranks came as {} words", words.len()));
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

    /// The first newcomer that has listed another data set than the source, and why it may not
    /// join; the same on every rank.
    pub fn stranger(&self) -> Option<(usize, String)> {
        let run = self.residents.get(self.source)?.set;
        let mut newcomers = self.receivers.iter().map(|rank| (*rank, &self.residents[*rank]));
        let (rank, newcomer) = newcomers.find(|(_, newcomer)| newcomer.set != run)?;
        Some((rank, set::refusal(rank, &newcomer.host, newcomer.set, run)))
    }

    /// Whether this rank is a newcomer that may not join.
    pub fn is_stranger(&self, rank: usize) -> bool {
        let set = |rank: usize| self.residents.get(rank).map(|resident| resident.set);
        self.receivers.contains(&rank) && set(rank) != set(self.source)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn answer(slot: usize, step: Option<u64>) -> Answer {
        let (descent, host) = (Descent::default(), "here".to_string());
        let slot = Some(slot);
        let (overdue, born, nodes, pid) = (false, 0, 1, 7);
        Answer { slot, ranks: 4, step, descent, overdue, born, nodes, pid, host }
    }

    fn spare() -> Answer {
        Answer { slot: None, ranks: 0, ..answer(0, None) }
    }

    fn roll(answers: &[Answer]) -> Result<Roll, String> {
        let words: Vec<u64> = answers.iter().flat_map(Answer::to_words).collect();
        Roll::read(&words, answers.len())
    }

    fn resident(slot: usize, step: Option<u64>) -> Resident {
        let (set, host) = (SetIdentity::default(), format!("host{slot}"));
        Resident { slot, step, generation: 2, set, pid: 7, host }
    }

    fn holdings(residents: &[Resident]) -> Result<Holdings, String> {
        let words: Vec<u64> = residents.iter().flat_map(Resident::to_words).collect();
        Holdings::read(&words, residents.len())
    }

    #[test]
    fn the_roll_names_the_lost_and_the_furthest_position() {
        let mut late = answer(3, None);
        late.descent = Descent { rung: 1, tries: 0, roll_calls: 4 };
        let roll = roll(&[answer(0, Some(5)), late.clone()]).unwrap();
        assert_eq!(roll.lost(), [1, 2]);
        assert_eq!(roll.descent(), late.descent);
        assert!(roll.source() == Some((0, 5)) && !roll.overdue());
        assert!(roll.is_a_world(), "fewer ranks, but in their order");
    }

    #[test]
    fn spares_are_counted_and_hold_nothing() {
        let roll = roll(&[spare(), answer(3, Some(5)), answer(1, Some(5)), spare()]).unwrap();
        assert_eq!((roll.lost(), roll.ranks()), (vec![0, 2], 4));
        assert!(roll.has_spares() && !roll.is_a_world());
        assert_eq!(roll.source(), Some((1, 5)));
    }

    #[test]
    fn a_quorum_counts_the_nodes_of_all_who_live_spares_included() {
        let at = |host: &str, nodes: usize, answer: Answer| Answer {
            host: host.into(),
            nodes,
            ..answer
        };
        let one = at("a", 4, answer(0, Some(5)));
        let two = [one.clone(), at("b", 0, spare())];
        assert!(roll(&[one]).unwrap().quorum_missed(Some("a")).is_some());
        assert!(roll(&two).unwrap().quorum_missed(Some("c")).is_some());
        assert_eq!(roll(&two).unwrap().quorum_missed(Some("b")), None);
    }

    #[test]
    fn spares_alone_have_lost_everything_and_no_world() {
        let roll = roll(&[spare(), spare()]).unwrap();
        assert_eq!((roll.source(), roll.ranks(), roll.lost()), (None, 0, vec![]));
    }

    #[test]
    fn a_roll_in_which_two_hold_one_rank_is_refused() {
        assert!(roll(&[answer(1, None), answer(1, None)]).is_err());
        assert!(!roll(&[answer(2, None), answer(1, None)]).unwrap().is_a_world());
        assert!(roll(&[answer(4, None)]).is_err());
        assert!(Roll::read(&[], 0).is_err());
    }

    #[test]
    fn the_lowest_rank_with_state_ships_to_those_without() {
        let holdings = holdings(&[resident(0, None), resident(1, Some(9)), resident(2, Some(9))]);
        let holdings = holdings.unwrap();
        assert_eq!((holdings.source, holdings.step), (1, 9));
        assert_eq!(holdings.receivers, [0]);
    }

    #[test]
    fn a_newcomer_with_another_set_is_named() {
        let train = set::Listed { hash: 7, samples: 9 };
        let other = SetIdentity { train, ..SetIdentity::default() };
        let strange = Resident { set: other, ..resident(2, None) };
        let all = [resident(0, None), resident(1, Some(9)), strange];
        let holdings = holdings(&all).unwrap();
        let (rank, why) = holdings.stranger().unwrap();
        assert!(rank == 2 && why.contains("rank 2 (on host2)"), "{why}");
        assert!(holdings.is_stranger(2) && !holdings.is_stranger(0) && !holdings.is_stranger(1));
        assert_eq!(super::Holdings::read(&[], 0).unwrap_or_default().stranger(), None);
    }

    #[test]
    fn a_broken_commit_rule_is_named_and_never_hidden() {
        let steps = holdings(&[resident(0, Some(9)), resident(1, Some(10))]).unwrap_err();
        assert!(steps.contains("commit rule") && steps.contains("step 10"), "{steps}");
        let mut other = resident(1, Some(9));
        other.generation = 3;
        assert!(holdings(&[resident(0, Some(9)), other]).unwrap_err().contains("generation 3"));
    }

    #[test]
    fn without_state_nobody_goes_on() {
        assert_eq!(holdings(&[resident(0, None)]).unwrap_err(), "all state was lost");
    }

    proptest! {
        #[test]
        fn answers_survive_the_wire(
            slot in proptest::option::of(0usize..4), step in any::<Option<u64>>(),
            rung in 0usize..9, tries in any::<u32>(), roll_calls in any::<u32>(),
            overdue in any::<bool>(), born in any::<u32>(), pid in any::<u32>(),
            nodes in 0usize..9,
        ) {
            let descent = Descent { rung, tries, roll_calls };
            let host = "a host".to_string();
            let ranks = 4;
            let answer = Answer {
                slot, ranks, step, descent, overdue, born, nodes, pid, host,
            };
            prop_assert_eq!(Answer::from_words(&answer.to_words()), answer);
        }

        #[test]
        fn residents_survive_the_wire_and_long_hosts_are_cut_at_a_character(
            host in "\\PC{0,80}", pid in any::<u32>(), step in any::<Option<u64>>(),
        ) {
            let validation = set::Listed { hash: u64::from(pid), samples: 9 };
            let set = SetIdentity { validation, ..SetIdentity::default() };
            let resident = Resident { slot: 3, step, generation: 1, set, pid, host: host.clone() };
            let read = Resident::from_words(&resident.to_words());
            prop_assert!(host.starts_with(&read.host));
            prop_assert!(read.host == host || read.host.len() > 60);
            prop_assert_eq!(Resident { host, ..read }, resident);
        }
    }
}
