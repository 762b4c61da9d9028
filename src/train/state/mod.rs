//! What a rank holds of the run: tensors, position, and where they lie.

use std::sync::{Arc, PoisonError, RwLock};

use crate::cluster::resident::{Identity, SlotView, Slots};
use crate::cluster::world::World;

use incoming::{Incoming, Way};
use position::Position;
use proof::Proof;
use slot_files::SlotFiles;

pub mod arithmetic;
pub mod beside;
pub mod best;
pub mod contents;
pub mod digest;
pub mod slot_files;
pub mod incoming;
pub mod position;
pub mod proof;
pub mod rank;
pub mod process;

/// A copy of a committed state.
#[derive(Debug, Clone, Default)]
pub struct StateCopy {
    /// Everything that is not a tensor.
    pub position: Position,
    /// In the order of the slots' shape.
    parts: Vec<Vec<f32>>,
}

/// What a rank holds of the run.
pub struct State {
    /// Tensors of the last committed step, and those of the next while it is made.
    pub slots: Arc<RwLock<Slots>>,
    /// Where they lie so that they outlive this process; `None`: in its memory.
    pub slot_files: Option<SlotFiles>,
    /// Everything else.
    pub position: Position,
    /// False on a newcomer until it has received a state.
    pub is_held: bool,
    /// What is known of the states that met in the last repair.
    pub proof: Proof,
    /// What comes in, until everybody agreed that it arrived.
    pub(in crate::train) incoming: Option<Incoming>,
}

impl State {
    /// With the state that `slots` and `position` hold, or without one.
    pub fn new(
        slots: Arc<RwLock<Slots>>,
        slot_files: Option<SlotFiles>,
        position: Option<Position>,
    ) -> Self {
        let (is_held, position) = (position.is_some(), position.unwrap_or_else(Position::start));
        Self { slots, slot_files, position, is_held, proof: Proof::default(), incoming: None }
    }

    /// The run is over, or a checkpoint holds as much: nothing of it stays in memory.
    pub fn retire(&self) {
        if let Some(slot_files) = &self.slot_files {
            slot_files.folder.clear();
        }
    }

    /// Whether the state lies where it outlives this process.
    pub fn outlives_its_process(&self) -> bool {
        self.slots.read().unwrap_or_else(PoisonError::into_inner).file().is_some()
    }

    /// A repaired world has committed a step: slots of the dead that nobody took over go.
    pub fn tidy(&self) {
        if let Some(slot_files) = &self.slot_files {
            slot_files.folder.clear_free();
        }
    }

    /// One bit of a committed weight turns over, on purpose.
    pub fn flip_a_bit(&mut self, generation: u32) {
        let mut state = self.copy(None);
        let middle = state.parts.first().map_or(0, |weights| weights.len() / 2);
        let weights = state.parts.first_mut();
        if let Some(weight) = weights.and_then(|weights| weights.get_mut(middle)) {
            *weight = f32::from_bits(weight.to_bits() ^ 1 << 20);
        }
        self.put(&state, generation);
    }

    /// A copy of the committed state, in the memory of `reused`.
    pub fn copy(&self, reused: Option<StateCopy>) -> StateCopy {
        let mut copy = reused.unwrap_or_default();
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        let committed = slots.committed();
        copy.parts.resize_with(committed.shape().parts().len(), Vec::new);
        for (to, (_, from)) in copy.parts.iter_mut().zip(committed.parts()) {
            to.clear();
            to.extend_from_slice(from);
        }
        copy.position.clone_from(&self.position);
        copy
    }

    /// The copied state becomes the committed one.
    pub fn put(&mut self, state: &StateCopy, generation: u32) {
        let extra = state.position.encode();
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let parts: Vec<&[f32]> = state.parts.iter().map(Vec::as_slice).collect();
        let (shape, step) = (slots.shape(), state.position.step);
        slots.replace(SlotView::new(shape, step, generation, &parts, &extra));
        // What is being hashed beside reads the slots, and is waited for.
        drop(slots);
        self.position.clone_from(&state.position);
        self.proof.state_changed();
    }

    /// The slots are this member's from now on.
    pub fn settle(&mut self, world: &World, rank: usize) {
        let Some(member) = world.member_at(rank) else { return };
        let ours =
            self.slot_files.as_ref().map(|slot_files| slot_files.identity).unwrap_or_default();
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        slots.identify(Identity { member: member.member, attempt: world.attempt, ..ours });
    }

    /// What `Exchange::apply` wrote becomes the committed state, together with the position.
    pub fn commit(&self, generation: u32) {
        let position = self.position.encode();
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        slots.commit(self.position.step, generation, &position);
    }

    /// After an agreement: what came in is the state, of a member of this world.
    pub fn adopt(&mut self, world: &World, rank: usize) {
        self.settle(world, rank);
        if let Some(Incoming { key, position, way }) = self.incoming.take() {
            let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
            if way != Way::Mapped {
                slots.commit_as(key, &position.encode());
            }
            // Whatever else lay in a dead rank's slots is given up if it is later.
            assert!(slots.select(key), "a state that everybody agreed on is in its slot");
            drop(slots);
            self.position = position;
            self.is_held = true;
        }
    }

    /// Puts a state that was read or made into the slots, as this attempt's own.
    pub fn begin_with(&mut self, state: SlotView<'_>, position: Position) {
        let extra = position.encode();
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let mut own = state;
        (own.generation, own.extra) = (0, &extra);
        slots.replace(own);
        drop(slots);
        self.position = position;
        self.is_held = true;
    }
}
