//! A world that was killed at once goes on from the state that outlived it: every rank
//! has taken one file that an earlier attempt left; all compare what they hold, from the highest
//! (attempt, generation, step) down, by hash, and everybody gets the first state that its holders
//! hold alike, or else that most of them do. No checkpoint is read.

use std::sync::PoisonError;

use crate::cluster::comm::Communicator;
use crate::cluster::resident::choice::{Holder, Majority, Past, judge, keys_in_order};
use crate::cluster::resident::folder::member_of;
use crate::cluster::resident::{Key, Look, Refusal, SlotFile, Slots};
use crate::cluster::world::World;
use crate::config::Shown;
use crate::observe::ledger::{self, Entry};
use crate::observe::notice::act_on;
use crate::observe::storage::Storage;

use crate::train::TrainError;
use crate::train::checkpoint::store;
use crate::train::record::journal;
use crate::train::repair::take_over::{Repairing, hand_to_all};
use crate::train::state::State;
use crate::train::state::position::Position;
use crate::train::state::slot_files::SlotFiles;

/// States that a rank holds: those of its two slots.
const STATES: usize = 2;
/// Words of a key.
const KEY_WORDS: usize = 3;

/// What a rank has to go on from.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Held {
    keys: Vec<Key>,
    /// Its slots outlive it.
    in_file: bool,
}

impl Held {
    /// How many keys, whether they are in a file, and the keys.
    const WORDS: usize = 2 + KEY_WORDS * STATES;

    fn to_words(&self) -> [u64; Self::WORDS] {
        let mut words = [0; Self::WORDS];
        let [number, in_file, keys @ ..] = &mut words;
        (*number, *in_file) = (self.keys.len().min(STATES) as u64, u64::from(self.in_file));
        for (place, key) in keys.chunks_exact_mut(KEY_WORDS).zip(&self.keys) {
            place.copy_from_slice(&[u64::from(key.attempt), u64::from(key.generation), key.step]);
        }
        words
    }

    fn from_words(words: &[u64]) -> Self {
        let [number, in_file, keys @ ..] = words else {
            return Self { keys: Vec::new(), in_file: false };
        };
        let key = |k: &[u64]| Key { attempt: k[0] as u32, generation: k[1] as u32, step: k[2] };
        let keys = keys.chunks_exact(KEY_WORDS).take(*number as usize).map(key).collect();
        Self { keys, in_file: *in_file == 1 }
    }
}

/// The states of a rank's own slots.
#[derive(Debug, Default)]
struct Own {
    /// May be gone on from.
    offered: Vec<Key>,
    /// A member that has left the world committed them: others' are compared with them.
    witnessed: Vec<Key>,
}

/// What outlived the processes of an earlier attempt.
#[derive(Debug, Clone, Default)]
pub struct Outlived {
    /// Whether every rank has a state now.
    pub found: bool,
    /// Where what outlived them differs, and none is taken that all hold alike: the last step after
    /// which all were found to hold the same.
    pub verified: Option<u64>,
    /// Ranks of this attempt whose slots lie in their own memory although they should not.
    pub unhoused: Vec<u32>,
}

/// Looks for a state that outlived the processes, and gives it to every rank. Every rank calls it,
/// or (`recovery.resident = "off"`) none.
///
/// # Errors
/// A rank that was lost; a training set that is not the one of the state.
pub fn from_resident(
    comm: &mut dyn Communicator,
    repairing: &mut Repairing<'_>,
    storage: &dyn Storage,
    world: &World,
) -> Result<Outlived, TrainError> {
    let past = past(storage)?;
    let (mut own, mut rest) = (Own::default(), Vec::new());
    // A rank that could not make sense of the folder still takes part.
    if let Some(slot_files) = &repairing.state.slot_files {
        let mut slots = repairing.state.slots.write().unwrap_or_else(PoisonError::into_inner);
        rest = take_rest(&mut slots, slot_files, &past);
        own = usable(&slots, slot_files, &past)?;
    }
    // From here on neighbours find the file under this member's name.
    repairing.state.settle(world, comm.rank());
    let in_file = {
        let slots = repairing.state.slots.read().unwrap_or_else(PoisonError::into_inner);
        slots.file().is_some()
    };
    let held = Held { keys: own.offered.clone(), in_file };
    let words = comm.all_gather_u64(&held.to_words())?;
    let all: Vec<Held> = words.chunks_exact(Held::WORDS).map(Held::from_words).collect();
    let without = all.iter().zip(0..).filter(|(held, _)| !held.in_file);
    let unhoused = without.map(|(_, rank)| rank).collect();
    let keys = keys_in_order(all.into_iter().flat_map(|held| held.keys));
    let (found, verified) = take(comm, repairing, &keys, &own, world)?;
    rest.into_iter().for_each(SlotFile::discard);
    Ok(Outlived { found, verified, unhoused })
}

/// Takes the highest of these states that all its holders hold alike, else the highest that most
/// do. A flaw may be older than the end, and in the sums since: the latter is not exact.
fn take(
    comm: &mut dyn Communicator,
    repairing: &mut Repairing<'_>,
    keys: &[Key],
    own: &Own,
    world: &World,
) -> Result<(bool, Option<u64>), TrainError> {
    let mut most: Option<(Key, u128, usize)> = None;
    let mut verified = None;
    for &key in keys {
        let compared = compare(comm, repairing, key, own)?;
        match compared.majority {
            Majority::Agreed { hash, source, differing } => {
                if differing.is_empty() && (verified.is_none() || compared.holders > 1) {
                    // Those who agree on a later one must not be believed after the next end.
                    give_up(repairing.state, most.map(|(later, ..)| later));
                    hand_over(comm, repairing, (key, hash), source, world)?;
                    return Ok((true, None));
                }
                most = most.or(Some((key, hash, source)));
                verified = compared.verified;
            }
            Majority::Disputed(_) => verified = compared.verified,
            Majority::Nobody => {}
        }
    }
    let Some((key, hash, source)) = most else { return Ok((false, verified)) };
    hand_over(comm, repairing, (key, hash), source, world)?;
    let mut doubted = repairing.state.copy(None);
    doubted.position.exact = false;
    repairing.state.put(&doubted, world.generation);
    Ok((true, verified))
}

fn give_up(state: &State, key: Option<Key>) {
    if let Some(key) = key {
        state.slots.write().unwrap_or_else(PoisonError::into_inner).refuse(key);
    }
}

/// A run whose past cannot be read now is not gone on with: what it gave up might be taken up.
pub fn unread(error: impl std::fmt::Display) -> TrainError {
    TrainError::JobLost(format!("what the run has done so far cannot be read: {error}"))
}

/// What is known of the run before it is gone on with.
fn past(storage: &dyn Storage) -> Result<Past, TrainError> {
    let entries = ledger::of_storage(storage).map_err(unread)?;
    let rollbacks = entries.iter().filter_map(|entry| match entry {
        Entry::Rollback { to, attempt } => Some((*attempt, *to)),
        Entry::Step(_) | Entry::Withdrawn { .. } | Entry::Gap { .. } => None,
    });
    let newest = store::published(storage).map_err(unread)?.into_iter().next();
    let checkpoint = match newest.map(|(_, folder)| store::read_manifest(storage, &folder)) {
        Some(Ok(manifest)) => Some((manifest.attempt, manifest.step)),
        Some(Err(error)) if error.is_passing() => return Err(unread(error)),
        Some(Err(_)) | None => None,
    };
    let world = journal::last_world(storage).map_err(unread)?.map(|world| {
        let members = world.members.iter().map(|member| member.member).collect();
        (world.attempt, world.generation, members)
    });
    Ok(Past { rollbacks: rollbacks.collect(), checkpoint, world })
}

/// Files that no rank took, since fewer ranks were started than before: the best of all that this
/// rank gets becomes its own, the others are returned, locked, to be removed in the end.
fn take_rest(slots: &mut Slots, slot_files: &SlotFiles, past: &Past) -> Vec<SlotFile> {
    let mut rest = Vec::new();
    let free: Vec<SlotFile> =
        slot_files.folder.take_free().filter_map(|file| slot_files.accept(slots, file)).collect();
    for file in free {
        let owner = member_of(file.path());
        let headers = Look::at(file.path()).and_then(|look| look.headers());
        let best = headers.ok().into_iter().flatten().flatten();
        let best = best.filter(|header| past.check(header, owner).is_ok()).map(|h| h.key).max();
        let own = slots.headers().into_iter().flatten().map(|header| header.key).max();
        if best <= own {
            rest.push(file);
            continue;
        }
        match slots.move_to(file) {
            Ok(before) => rest.extend(before),
            Err(error) => tracing::warn!("resident state cannot be mapped: {error}"),
        }
    }
    rest
}

/// The states of this rank's slots that may be gone on from; the others are named.
fn usable(slots: &Slots, slot_files: &SlotFiles, past: &Past) -> Result<Own, TrainError> {
    let owner = SlotFiles::owner(slots);
    let mut own = Own::default();
    let mut refused = Vec::new();
    for header in slots.headers() {
        let checked = header.and_then(|header| {
            header.check_run(&slot_files.identity, slots.shape())?;
            let may = past.check(&header, owner);
            if matches!(may, Err(Refusal::Evicted(_))) {
                own.witnessed.push(header.key);
            }
            may?;
            match slots.position_bytes(header.key).map(|bytes| Position::decode(&bytes)) {
                Some(Ok(position)) if position.step == header.key.step => Ok(header.key),
                _ => Err(Refusal::Damaged("its position cannot be read")),
            }
        });
        match checked {
            Ok(key) => own.offered.push(key),
            Err(Refusal::Other("training set")) => {
                let text = "resident state was written with another training set than data.train \
                            now holds: put the old one back, or start anew with --fresh";
                return Err(TrainError::Configuration(text.into()));
            }
            Err(refusal) => refused.push(refusal),
        }
    }
    let torn = own.offered.is_empty() && owner.is_some();
    for refusal in refused {
        // One empty slot is what a death in the middle of an update leaves.
        if torn || refusal != Refusal::Uncommitted {
            let path = slots.file().map(|file| file.path().shown());
            let path = path.unwrap_or_default();
            act_on(&format!("resident state {path} {refusal}; not used"));
        }
    }
    Ok(own)
}

/// What all that hold one state hold of it.
struct Compared {
    majority: Majority,
    holders: usize,
    /// The last step after which all were found to hold the same, as the first of them has it.
    verified: Option<u64>,
}

/// Compares one state over all that hold it. Whoever differs gives it up.
fn compare(
    comm: &mut dyn Communicator,
    repairing: &mut Repairing<'_>,
    key: Key,
    own: &Own,
) -> Result<Compared, TrainError> {
    let offers = own.offered.contains(&key);
    let (hash, position) = {
        let slots = repairing.state.slots.read().unwrap_or_else(PoisonError::into_inner);
        let holds = offers || own.witnessed.contains(&key);
        let position = slots.position_bytes(key).map(|bytes| Position::decode(&bytes));
        (if holds { slots.hash(key) } else { None }, position.and_then(Result::ok))
    };
    let [low, high] = hash.map_or([0, 0], |hash| [hash as u64, (hash >> 64) as u64]);
    let verified = position.map_or(0, |position| position.verified);
    let words = [u64::from(hash.is_some()), u64::from(offers), low, high, verified];
    let all = comm.all_gather_u64(&words)?;
    let ranks = || all.chunks_exact(words.len());
    let held = |w: &[u64]| {
        let hash = u128::from(w[2]) | u128::from(w[3]) << 64;
        (w[0] == 1).then_some(Holder { hash, offers: w[1] == 1 })
    };
    let held: Vec<Option<Holder>> = ranks().map(held).collect();
    let majority = judge(&held);
    match &majority {
        Majority::Disputed(ranks) if ranks.contains(&comm.rank()) => {
            refuse(repairing.state, key, "and no bits have a majority");
        }
        Majority::Agreed { differing, .. } if differing.contains(&comm.rank()) => {
            refuse(repairing.state, key, "most hold other bits");
        }
        Majority::Agreed { .. } if hash.is_none() => {
            // What was compared with nothing must not be taken for what it gets.
            give_up(repairing.state, Some(key));
        }
        _ => {}
    }
    let verified = ranks().filter(|w| w[0] == 1).map(|w| w[4]).min();
    Ok(Compared { majority, holders: held.iter().flatten().count(), verified })
}

fn refuse(state: &State, key: Key, what: &str) {
    let refusal = Refusal::Differs;
    act_on(&format!("resident state of {key} on a rank {refusal}: it is refused, {what}"));
    give_up(state, Some(key));
}

/// Everybody goes on with the source's position; who lacks the tensors gets them.
fn hand_over(
    comm: &mut dyn Communicator,
    repairing: &mut Repairing<'_>,
    (key, agreed): (Key, u128),
    source: usize,
    world: &World,
) -> Result<(), TrainError> {
    if comm.rank() == source {
        let mut slots = repairing.state.slots.write().unwrap_or_else(PoisonError::into_inner);
        let position = slots.position_bytes(key).map(|bytes| Position::decode(&bytes));
        let Some(Ok(position)) = position.filter(|_| slots.select(key)) else {
            return Err(TrainError::Internal(format!("the resident state of {key} has gone")));
        };
        drop(slots);
        // What an earlier attempt agreed to end with is decided anew.
        repairing.state.position = Position { ending: None, ..position };
    }
    hand_to_all(comm, repairing, source, world)?;
    let slots = repairing.state.slots.read().unwrap_or_else(PoisonError::into_inner);
    if slots.hash(key) != Some(agreed) {
        let text = format!("the state of {key} arrived with other bits than were agreed on");
        return Err(TrainError::JobLost(text));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_survives_the_wire() {
        let key = |step| Key { attempt: 2, generation: 1, step };
        for keys in [vec![], vec![key(7)], vec![key(7), key(8)]] {
            for in_file in [false, true] {
                let held = Held { keys: keys.clone(), in_file };
                assert_eq!(Held::from_words(&held.to_words()), held);
            }
        }
    }
}
