//! What a repair asks of a rank, above all how one without the agreed state gets it. It maps the
//! slots of a dead rank, or copies those of a rank on the same node, or receives it over MPI. The
//! source says what it offers, each receiver says what it still needs, and only that is sent.
//! Everything is adopted after an agreement, in `Repairing::adopt`.

use std::sync::PoisonError;
use std::time::Duration;

use crate::cluster::comm::{CommError, Communicator};
use crate::cluster::faults::Standing;
use crate::cluster::recovery::set::SetIdentity;
use crate::cluster::recovery::{Hooks, Participant, Remark};
use crate::cluster::resident::{Key, Look, Slots};
use crate::cluster::world::World;
use crate::config::{Point, Shown};

use crate::train::state::State;
use crate::train::state::incoming::{Incoming, Way};
use crate::train::state::position::Position;
use crate::train::state::process::Process;
use crate::train::state::proof::Restored;
use crate::train::state::slot_files::SlotFiles;

/// Message tags of a state transfer.
const TAG_OFFER: u32 = 40;
const TAG_ANSWER: u32 = 41;
const TAG_POSITION: u32 = 42;
const TAG_TENSORS: u32 = 43;

/// A position longer than this is no position.
const POSITION_BYTES_MAX: u64 = 1 << 30;

/// A rank while its state is given to others, or comes in.
pub struct Repairing<'a> {
    /// What it holds.
    pub state: &'a mut State,
    /// Who it is.
    pub process: &'a mut Process,
    /// What it has listed of the run's data.
    set: SetIdentity,
    /// How it gave its state to each receiver.
    pub given: Vec<Way>,
}

impl<'a> Repairing<'a> {
    /// A rank that has listed this set.
    pub fn of(state: &'a mut State, process: &'a mut Process, set: SetIdentity) -> Self {
        Self { state, process, set, given: Vec::new() }
    }

    /// What came in is its state, in this world.
    fn take_in(&mut self, world: &World) {
        self.state.adopt(world, self.process.standing.rank as usize);
        self.process.joined(world, self.state.position.step);
    }
}

impl Hooks for Repairing<'_> {
    fn now(&self) -> Duration {
        self.process.clock.now()
    }

    fn who(&self) -> &Participant {
        &self.process.who
    }

    fn committed_step(&self) -> Option<u64> {
        self.state.is_held.then_some(self.state.position.step)
    }

    fn set(&mut self) -> Result<SetIdentity, CommError> {
        Ok(self.set)
    }

    fn transfer(
        &mut self,
        comm: &mut dyn Communicator,
        source: usize,
        receivers: &[usize],
        _step: u64,
    ) -> Result<(), CommError> {
        let rank = comm.rank();
        self.state.incoming = None;
        if rank == source {
            self.given = give(self.state, self.process, comm, receivers)?;
        } else if receivers.contains(&rank) {
            self.state.incoming = Some(receive(self.state, self.process, comm, source)?);
        }
        Ok(())
    }

    fn adopt(&mut self, world: &World) {
        let restored = match &self.state.incoming {
            Some(_) => Restored::Received,
            None if self.process.standing.source && !self.given.is_empty() => Restored::Given,
            None => Restored::Kept,
        };
        self.take_in(world);
        self.state.proof.repaired(restored);
    }

    fn tell(&mut self, remark: Remark) {
        match remark {
            Remark::Reached(point) => self.process.at(point),
            Remark::Restoring { rank, source, step } => {
                self.given.clear();
                let (rank, source) = (rank as u32, rank == source);
                self.process.standing = Standing { rank, source, step, ..self.process.standing };
            }
            // It knows its step, and its seat.
            Remark::Counted(_) | Remark::Promoted(_) => {}
        }
    }
}

/// Everybody goes on from what `source` holds.
pub fn hand_to_all(
    comm: &mut dyn Communicator,
    repairing: &mut Repairing<'_>,
    source: usize,
    world: &World,
) -> Result<(), CommError> {
    let (rank, ranks) = (comm.rank(), comm.size());
    let receivers: Vec<usize> = (0..ranks).filter(|other| *other != source).collect();
    repairing.tell(Remark::Restoring { rank, source, step: 0 });
    if !receivers.is_empty() {
        repairing.transfer(comm, source, &receivers, 0)?;
    }
    let agreement = comm.agree(1);
    if !agreement.committed() {
        return Err(agreement.outcome.err().unwrap_or(CommError::ProcFailed));
    }
    repairing.take_in(world);
    Ok(())
}

/// What a source has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Offer {
    key: Key,
    member: u32,
    /// Where its files can be opened by others.
    space: u64,
    in_file: bool,
    position_bytes: u64,
}

impl Offer {
    const WORDS: usize = 7;

    fn to_words(self) -> [u64; Self::WORDS] {
        [
            u64::from(self.key.attempt),
            u64::from(self.key.generation),
            self.key.step,
            u64::from(self.member),
            self.space,
            u64::from(self.in_file),
            self.position_bytes,
        ]
    }

    fn from_words(words: [u64; Self::WORDS]) -> Self {
        Self {
            key: Key { attempt: words[0] as u32, generation: words[1] as u32, step: words[2] },
            member: words[3] as u32,
            space: words[4],
            in_file: words[5] == 1,
            position_bytes: words[6],
        }
    }
}

fn fatal(text: impl Into<String>) -> CommError {
    CommError::Fatal { call: "state transfer", class: 0, text: text.into() }
}

/// The source's side. Returns how each receiver got it, in their order.
fn give(
    state: &State,
    process: &Process,
    comm: &mut dyn Communicator,
    receivers: &[usize],
) -> Result<Vec<Way>, CommError> {
    let position = state.position.encode();
    let slots = state.slots.read().unwrap_or_else(PoisonError::into_inner);
    let key = slots.key().ok_or_else(|| fatal("the source of the state holds none"))?;
    let offer = Offer {
        key,
        member: slots.identity().member,
        space: kintsugi_ffi::os::pid_space(),
        in_file: slots.file().is_some(),
        position_bytes: position.len() as u64,
    };
    // Offers first: receivers that copy do so at the same time.
    for &receiver in receivers {
        comm.send(bytemuck::cast_slice(&offer.to_words()), receiver, TAG_OFFER)?;
        comm.send(&position, receiver, TAG_POSITION)?;
    }
    let committed = slots.committed();
    let mut ways = Vec::new();
    for &receiver in receivers {
        let mut answer = [0];
        comm.recv(&mut answer, receiver, TAG_ANSWER)?;
        let way = Way::from_byte(answer[0]);
        if way == Way::Sent {
            for (sent, (_, part)) in committed.parts().enumerate() {
                comm.send(bytemuck::cast_slice(part), receiver, TAG_TENSORS)?;
                if sent == 0 {
                    process.at(Point::InTransfer);
                }
            }
        }
        ways.push(way);
    }
    Ok(ways)
}

/// A receiver's side.
fn receive(
    state: &State,
    process: &Process,
    comm: &mut dyn Communicator,
    source: usize,
) -> Result<Incoming, CommError> {
    let mut words = [0u64; Offer::WORDS];
    comm.recv(bytemuck::cast_slice_mut(&mut words), source, TAG_OFFER)?;
    let offer = Offer::from_words(words);
    if offer.position_bytes > POSITION_BYTES_MAX {
        return Err(fatal(format!("a position of {} bytes arrived", offer.position_bytes)));
    }
    let mut position = vec![0; offer.position_bytes as usize];
    comm.recv(&mut position, source, TAG_POSITION)?;
    let position = Position::decode(&position)
        .map_err(|error| fatal(format!("the source's position cannot be read: {error}")))?;
    let mut slots = state.slots.write().unwrap_or_else(PoisonError::into_inner);
    let way = find(&mut slots, state.slot_files.as_ref(), &offer);
    comm.send(&[way.to_byte()], source, TAG_ANSWER)?;
    if way == Way::Sent {
        let (_, mut into) = slots.begin();
        for (received, (_, part)) in into.parts().enumerate() {
            comm.recv(bytemuck::cast_slice_mut(part), source, TAG_TENSORS)?;
            if received == 0 {
                process.at(Point::InTransfer);
            }
        }
    }
    Ok(Incoming { key: offer.key, position, way })
}

/// Looks for the offered state where it costs least.
fn find(slots: &mut Slots, slot_files: Option<&SlotFiles>, offer: &Offer) -> Way {
    if slots.select(offer.key) {
        return Way::Mapped;
    }
    let Some(slot_files) = slot_files else { return Way::Sent };
    if slots.is_vacant() && slot_files.take_over(slots, offer.key) {
        return Way::Mapped;
    }
    slot_files.room(slots);
    if !offer.in_file || offer.space != kintsugi_ffi::os::pid_space() {
        return Way::Sent;
    }
    let path = slot_files.neighbour(offer.member);
    match Look::at(&path).and_then(|look| slots.copy_from(&look, offer.key)) {
        Ok(true) => Way::Copied,
        Ok(false) => Way::Sent,
        Err(error) => {
            tracing::warn!("cannot copy the state from {}: {error}", path.shown());
            Way::Sent
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_and_answers_survive_the_wire() {
        let key = Key { attempt: 3, generation: 2, step: 1 << 39 };
        let offer = Offer { key, member: 7, space: u64::MAX, in_file: true, position_bytes: 9 };
        assert_eq!(Offer::from_words(offer.to_words()), offer);
        for way in [Way::Mapped, Way::Copied, Way::Sent] {
            assert_eq!(Way::from_byte(way.to_byte()), way);
        }
    }

    #[test]
    fn without_a_folder_the_state_is_sent() {
        let mut slots = Slots::vacant(crate::cluster::resident::Shape::of(&[("weights", 3)]));
        let key = Key::default();
        let offer = Offer { key, member: 0, space: 0, in_file: true, position_bytes: 0 };
        assert_eq!(find(&mut slots, None, &offer), Way::Sent);
    }
}
