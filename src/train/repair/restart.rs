//! A world that was killed at once goes on from the state that outlived it: every rank
//! has taken one file that an earlier attempt left; all compare what they hold, from the highest
//! (attempt, generation, step) down, by hash, and everybody gets the first state that its holders
//! hold alike, or else that most of them do. No checkpoint is read.

use std::collections::BTreeSet;
use std::io;
use std::sync::PoisonError;

use crate::cluster::comm::Communicator;
use crate::cluster::resident::choice::{Holder, Majority, Past, judge, keys_in_order};
use crate::cluster::resident::folder::{is_unknown, look_at, member_of, naming};
use crate::cluster::resident::{Key, Refusal, SlotFile, Slots};
use crate::cluster::world::World;
use crate::config::{Interval, Shown};
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
    /// Where it met resident state that cannot be read now: the newest step on record, which
    /// nothing else may hold. Else 0.
    needed: u64,
}

impl Held {
    /// How many keys, whether they are in a file, what is needed, and the keys.
    const WORDS: usize = 3 + KEY_WORDS * STATES;

    fn to_words(&self) -> [u64; Self::WORDS] {
        let mut words = [0; Self::WORDS];
        let [number, in_file, needed, keys @ ..] = &mut words;
        (*number, *in_file) = (self.keys.len().min(STATES) as u64, u64::from(self.in_file));
        *needed = self.needed;
        for (place, key) in keys.chunks_exact_mut(KEY_WORDS).zip(&self.keys) {
            place.copy_from_slice(&[u64::from(key.attempt), u64::from(key.generation), key.step]);
        }
        words
    }

    fn from_words(words: &[u64]) -> Self {
        let [number, in_file, needed, keys @ ..] = words else {
            return Self { keys: Vec::new(), in_file: false, needed: 0 };
        };
        let key = |k: &[u64]| Key { attempt: k[0] as u32, generation: k[1] as u32, step: k[2] };
        let keys = keys.chunks_exact(KEY_WORDS).take(*number as usize).map(key).collect();
        Self { keys, in_file: *in_file == 1, needed: *needed }
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
    /// Where none is taken since what outlived them differs: the last step after which all were
    /// found to hold the same.
    pub verified: Option<u64>,
    /// Ranks of this attempt whose slots lie in their own memory although they should not.
    pub unhoused: Vec<u32>,
}

/// Looks for a state that outlived the processes, and gives it to every rank. Every rank calls it,
/// or (`recovery.resident = "off"`) none.
///
/// # Errors
/// A rank that was lost; a training set that is not the one of the state; a file that cannot be
/// read now and may hold what nothing else does.
pub fn from_resident(
    comm: &mut dyn Communicator,
    repairing: &mut Repairing<'_>,
    storage: &dyn Storage,
    world: &World,
    integrity: Interval,
) -> Result<Outlived, TrainError> {
    let (past, recorded) = past(storage)?;
    let (mut own, mut rest) = (Own::default(), Rest::default());
    // A rank that could not make sense of the folder still takes part.
    if let Some(slot_files) = &repairing.state.slot_files {
        let mut slots = repairing.state.slots.write().unwrap_or_else(PoisonError::into_inner);
        rest = take_rest(&mut slots, slot_files, &past);
        own = usable(&slots, slot_files, &past)?;
    }
    let in_file = {
        let slots = repairing.state.slots.read().unwrap_or_else(PoisonError::into_inner);
        slots.file().is_some()
    };
    // A record that could not be written ends too early, or never began.
    let needed = if rest.unread.is_some() { recorded.max(1) } else { 0 };
    let held = Held { keys: own.offered.clone(), in_file, needed };
    let words = comm.all_gather_u64(&held.to_words())?;
    let all: Vec<Held> = words.chunks_exact(Held::WORDS).map(Held::from_words).collect();
    let without = all.iter().zip(0..).filter(|(held, _)| !held.in_file);
    let unhoused = without.map(|(_, rank)| rank).collect();
    let needed = all.iter().map(|held| held.needed).max().unwrap_or(0);
    let keys = keys_in_order(all.into_iter().flat_map(|held| held.keys));
    let search = search(comm, repairing.state, &keys, &own)?;
    let found = search.alike.as_ref().or(search.most.as_ref());
    if found.map_or(0, |found| found.key.step) < needed {
        return Err(not_without(rest.unread));
    }
    // From here on neighbours find the file under this member's name. One of an earlier attempt
    // that had it is gone then.
    repairing.state.settle(world, comm.rank());
    if let Some(verified) = search.verified.filter(|_| comm.rank() == 0) {
        let verified = Some(verified).filter(|_| integrity != Interval::Off);
        distrust(storage, &search, verified)?;
    }
    let found = take(comm, repairing, &search, world)?;
    rest.files.into_iter().for_each(SlotFile::discard);
    let verified = search.verified.filter(|_| !found);
    Ok(Outlived { found, verified, unhoused })
}

/// A state that may be gone on from: its key, its hash, who holds it so, and one that offers it.
#[derive(Debug, Clone)]
struct Found {
    key: Key,
    hash: u128,
    holders: BTreeSet<usize>,
    source: usize,
}

/// What comparing the states of all ranks came to; the same on every rank.
#[derive(Debug, Default)]
struct Search {
    /// The highest that all hold alike whose states differed above it, or all holders.
    alike: Option<Found>,
    /// Where there is none: the highest, if most hold it alike.
    most: Option<Found>,
    /// Ranks that held other bits somewhere, or were among those of whom nobody knows.
    doubted: BTreeSet<usize>,
    /// States above the one that is taken.
    above: Vec<Key>,
    /// The last step after which all were found to hold the same; `None` where nothing differs.
    verified: Option<u64>,
}

/// Compares states from the highest down. A flaw may be older than the end, and in the sums since:
/// one is sound where whoever was found to differ above it held it like all others.
fn search(
    comm: &mut dyn Communicator,
    state: &State,
    keys: &[Key],
    own: &Own,
) -> Result<Search, TrainError> {
    let mut search = Search::default();
    let mut disputed = false;
    for &key in keys {
        let Compared { majority, holders, verified } = compare(comm, state, key, own)?;
        match majority {
            Majority::Agreed { hash, source, differing } => {
                let sound = differing.is_empty() && search.doubted.is_subset(&holders);
                let holders = holders.into_iter().filter(|rank| !differing.contains(rank));
                let found = Found { key, hash, holders: holders.collect(), source };
                if sound {
                    search.alike = Some(found);
                    break;
                }
                if !disputed {
                    search.most.get_or_insert(found);
                }
                search.verified = search.verified.or(verified);
                search.doubted.extend(differing);
            }
            Majority::Disputed(ranks) => {
                disputed = true;
                search.verified = search.verified.or(verified);
                search.doubted.extend(ranks);
            }
            Majority::Nobody => {}
        }
        search.above.push(key);
    }
    Ok(search)
}

/// Checkpoints of states that replicas may have differed in go, where something is left to go on
/// from: most ranks' memory, or one of a state that all were found to hold (`verified`; `None`
/// where replicas are not compared). Before anything in memory is touched that tells of it.
fn distrust(
    storage: &dyn Storage,
    search: &Search,
    verified: Option<u64>,
) -> Result<(), TrainError> {
    let sound = match (&search.alike, &search.most, verified) {
        (Some(_), ..) | (None, None, None) => None,
        (None, Some(_), Some(verified)) => Some(verified),
        (None, Some(found), None) => found.key.step.checked_sub(1),
        (None, None, Some(verified)) => {
            let published = store::published(storage).map_err(unread)?;
            published.iter().any(|(step, _)| *step <= verified).then_some(verified)
        }
    };
    if let Some(sound) = sound {
        store::remove_later(storage, sound);
    }
    Ok(())
}

/// Gives all ranks what was found; false where nothing was. Whoever differed gives its states up
/// last: an attempt that dies meanwhile leaves what shows that they differ.
fn take(
    comm: &mut dyn Communicator,
    repairing: &mut Repairing<'_>,
    search: &Search,
    world: &World,
) -> Result<bool, TrainError> {
    let Search { alike, most, doubted, above, .. } = search;
    let Some(mut found) = alike.as_ref().or(most.as_ref()).cloned() else { return Ok(false) };
    let holds = found.holders.contains(&comm.rank());
    if !doubted.is_empty() {
        if alike.is_none() && holds {
            doubt(repairing.state, found.key, world)?;
        } else if alike.is_some() && !doubted.contains(&comm.rank()) {
            give_up(repairing.state, above);
        }
        comm.all_gather_u64(&[0])?;
        give_up(repairing.state, above);
    }
    if alike.is_none() {
        let (attempt, generation) = (world.attempt, world.generation);
        found.key = Key { attempt, generation, ..found.key };
    } else if !holds {
        // What was compared with nothing must not be taken for what it gets.
        give_up(repairing.state, &[found.key]);
    }
    hand_over(comm, repairing, &found, world)?;
    Ok(true)
}

/// Commits a state anew, as one that is not exact.
fn doubt(state: &mut State, key: Key, world: &World) -> Result<(), TrainError> {
    select(state, key)?;
    state.position.exact = false;
    let doubted = state.copy(None);
    state.put(&doubted, world.generation);
    Ok(())
}

fn give_up(state: &State, keys: &[Key]) {
    let mut slots = state.slots.write().unwrap_or_else(PoisonError::into_inner);
    keys.iter().for_each(|key| slots.refuse(*key));
}

/// Makes a state of the own slots the one at hand.
fn select(state: &mut State, key: Key) -> Result<(), TrainError> {
    let mut slots = state.slots.write().unwrap_or_else(PoisonError::into_inner);
    let position = slots.position_bytes(key).map(|bytes| Position::decode(&bytes));
    let Some(Ok(position)) = position.filter(|_| slots.select(key)) else {
        return Err(TrainError::Internal(format!("the resident state of {key} has gone")));
    };
    drop(slots);
    // What an earlier attempt agreed to end with is decided anew.
    state.position = Position { ending: None, ..position };
    Ok(())
}

/// A run whose past cannot be read now is not gone on with: what it gave up might be taken up.
pub fn unread(error: impl std::fmt::Display) -> TrainError {
    TrainError::JobLost(format!("what the run has done so far cannot be read: {error}"))
}

/// Nothing is gone back to for a file that a later look may read.
fn not_without(error: Option<io::Error>) -> TrainError {
    let error = error.map_or_else(|| "another rank met it".into(), |error| error.to_string());
    TrainError::JobLost(format!(
        "resident state cannot be read now ({error}), and no other is known to hold the newest \
         step: start again when it can be read, or go on from the checkpoint, without what the \
         slot file holds, with -s recovery.resident=off"
    ))
}

/// What is known of the run before it is gone on with, and its newest step on record.
fn past(storage: &dyn Storage) -> Result<(Past, u64), TrainError> {
    let entries = ledger::of_storage(storage).map_err(unread)?;
    let recorded = ledger::effective(&entries).last().map_or(0, |line| line.step);
    let rollbacks = entries.iter().filter_map(|entry| match entry {
        Entry::Rollback { to, attempt } => Some((*attempt, *to)),
        Entry::Step(_) | Entry::Withdrawn { .. } | Entry::Gap { .. } => None,
    });
    let newest = store::published(storage).map_err(unread)?.into_iter().next();
    let checkpoint = match newest.map(|(_, folder)| store::read_manifest(storage, &folder)) {
        Some(Ok(manifest)) => Some(manifest.key()),
        Some(Err(error)) if error.is_passing() => return Err(unread(error)),
        Some(Err(_)) | None => None,
    };
    let world = journal::last_world(storage).map_err(unread)?.map(|world| {
        let members = world.members.iter().map(|member| member.member).collect();
        (world.attempt, world.generation, members)
    });
    Ok((Past { rollbacks: rollbacks.collect(), checkpoint, world }, recorded))
}

/// Slot files on this node that are no rank's.
#[derive(Debug, Default)]
struct Rest {
    /// Locked, to be removed in the end.
    files: Vec<SlotFile>,
    /// The first that cannot be read now.
    unread: Option<io::Error>,
}

/// Files that no rank took, since fewer ranks were started than before, or since they could not be
/// read then: the best of all that this rank gets becomes its own.
fn take_rest(slots: &mut Slots, slot_files: &SlotFiles, past: &Past) -> Rest {
    let mut rest = Rest::default();
    let free: Vec<io::Result<SlotFile>> = slot_files.free(slots).collect();
    for file in free {
        let taken = file.and_then(|file| take_better(slots, file, past, &mut rest.files));
        // One that is gone meanwhile holds nothing.
        if let Some(error) = taken.err().filter(is_unknown) {
            rest.unread.get_or_insert(error);
        }
    }
    rest
}

/// The slots lie in `file` if it holds more than they do; the lesser one goes to the rest.
fn take_better(
    slots: &mut Slots,
    file: SlotFile,
    past: &Past,
    rest: &mut Vec<SlotFile>,
) -> io::Result<()> {
    let path = file.path().to_owned();
    let owner = member_of(&path);
    let headers = look_at(&path)?.into_iter().flatten();
    let best = headers.filter(|header| past.check(header, owner).is_ok()).map(|h| h.key).max();
    let own = slots.headers().into_iter().flatten().map(|header| header.key).max();
    if best <= own {
        rest.push(file);
        return Ok(());
    }
    rest.extend(slots.move_to(file).map_err(naming("mapping", &path))?);
    Ok(())
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
                            now holds: put the old one back, or start anew with `launch --fresh`";
                return Err(TrainError::Configuration(text.into()));
            }
            Err(refusal) => refused.push(refusal),
        }
    }
    let torn = own.offered.is_empty() && owner.is_some();
    for refusal in refused {
        let is_usual = match refusal {
            // What a death in the middle of an update leaves.
            Refusal::Uncommitted => !torn,
            // The step before the one that is gone on from.
            Refusal::Older(_) => !own.offered.is_empty(),
            _ => false,
        };
        if !is_usual {
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
    holders: BTreeSet<usize>,
    /// The last step after which all were found to hold the same, as its holders have it.
    verified: Option<u64>,
}

/// Compares one state over all that hold it. Whoever differs says so.
fn compare(
    comm: &mut dyn Communicator,
    state: &State,
    key: Key,
    own: &Own,
) -> Result<Compared, TrainError> {
    /// Of a position that cannot be read.
    const UNKNOWN: u64 = u64::MAX;
    let offers = own.offered.contains(&key);
    let (hash, position) = {
        let slots = state.slots.read().unwrap_or_else(PoisonError::into_inner);
        let holds = offers || own.witnessed.contains(&key);
        let position = slots.position_bytes(key).map(|bytes| Position::decode(&bytes));
        (if holds { slots.hash(key) } else { None }, position.and_then(Result::ok))
    };
    let [low, high] = hash.map_or([0, 0], |hash| [hash as u64, (hash >> 64) as u64]);
    let verified = position.map_or(UNKNOWN, |position| position.verified);
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
            refused(key, "and no bits have a majority");
        }
        Majority::Agreed { differing, .. } if differing.contains(&comm.rank()) => {
            refused(key, "most hold other bits");
        }
        _ => {}
    }
    let verified = ranks().filter(|w| w[0] == 1 && w[4] != UNKNOWN).map(|w| w[4]).min();
    let holders = (0..held.len()).filter(|rank| held[*rank].is_some()).collect();
    Ok(Compared { majority, holders, verified })
}

fn refused(key: Key, what: &str) {
    let refusal = Refusal::Differs;
    act_on(&format!("resident state of {key} on a rank {refusal}: it is refused, {what}"));
}

/// Everybody goes on with the source's position; who lacks the tensors gets them.
fn hand_over(
    comm: &mut dyn Communicator,
    repairing: &mut Repairing<'_>,
    found: &Found,
    world: &World,
) -> Result<(), TrainError> {
    let Found { key, hash, source, .. } = *found;
    if comm.rank() == source {
        select(repairing.state, key)?;
    }
    hand_to_all(comm, repairing, source, world)?;
    let slots = repairing.state.slots.read().unwrap_or_else(PoisonError::into_inner);
    if slots.hash(key) != Some(hash) {
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
            for (in_file, needed) in [(false, 0), (true, 9)] {
                let held = Held { keys: keys.clone(), in_file, needed };
                assert_eq!(Held::from_words(&held.to_words()), held);
            }
        }
    }
}
