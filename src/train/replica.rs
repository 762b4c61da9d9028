//! One rank's copy of the run's state, and how it is shipped: what recovery needs of a process.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use crate::cluster::comm::{CommError, Communicator};
use crate::cluster::faults::{Injector, Standing};
use crate::cluster::recovery::{Hooks, Note};
use crate::cluster::resident::{Shape, SlotView, Slots};
use crate::cluster::world::World;
use crate::config::{FaultKind, Phase};
use crate::observe::clock::Clock;

use super::position::Position;

/// Message tags of a state transfer.
const TAG_LENGTH: u32 = 40;
const TAG_POSITION: u32 = 41;
const TAG_TENSORS: u32 = 42;

/// Tensors on their way in, until everybody agreed that they arrived.
struct Received {
    parameters: Vec<f32>,
    momentum: Vec<f32>,
    statistics: Vec<f32>,
}

impl Received {
    fn new(shape: Shape) -> Self {
        let parameters = vec![0.0; shape.parameters];
        let statistics = vec![0.0; shape.statistics];
        Self { momentum: parameters.clone(), parameters, statistics }
    }
}

/// A copy of a committed state.
#[derive(Debug, Clone, Default)]
pub struct State {
    /// Everything that is not a tensor.
    pub position: Position,
    parameters: Vec<f32>,
    momentum: Vec<f32>,
    statistics: Vec<f32>,
}

/// The state of this rank.
pub struct Replica {
    /// Tensors of the last two committed steps.
    pub slots: Arc<RwLock<Slots>>,
    /// Everything else.
    pub position: Position,
    /// False on a newcomer until it has received a state.
    pub holds_state: bool,
    /// Where this process stands, for fault injection.
    pub standing: Standing,
    /// What recovery said, for the journal.
    pub notes: Vec<Note>,
    injector: Arc<Injector>,
    clock: Arc<dyn Clock>,
    arguments: Vec<String>,
    /// The world's, for whoever records a fault.
    generation: Arc<AtomicU32>,
    scratch: Option<Received>,
    scratch_position: Option<Position>,
    /// A planned bit flip struck and is to be performed.
    flip_due: AtomicBool,
}

impl Replica {
    /// A replica with the state that `slots` and `position` hold, or without one.
    pub fn new(
        slots: Arc<RwLock<Slots>>,
        position: Option<Position>,
        injector: Arc<Injector>,
        clock: Arc<dyn Clock>,
        arguments: Vec<String>,
        generation: Arc<AtomicU32>,
    ) -> Self {
        let holds_state = position.is_some();
        let position = position.unwrap_or_else(Position::start);
        let standing =
            Standing { newcomer: !holds_state, step: position.step, ..Standing::default() };
        Self {
            slots,
            position,
            holds_state,
            standing,
            notes: Vec::new(),
            injector,
            clock,
            arguments,
            generation,
            scratch: None,
            scratch_position: None,
            flip_due: AtomicBool::new(false),
        }
    }

    /// Asks whether a fault strikes here.
    pub fn reached_point(&self, phase: Phase) {
        if self.injector.at(phase, &self.standing) == Some(FaultKind::BitFlip) {
            self.flip_due.store(true, Ordering::Relaxed);
        }
    }

    /// Performs a planned bit flip: one bit of a committed weight turns over.
    pub fn flip_if_due(&mut self) {
        if self.flip_due.swap(false, Ordering::Relaxed) {
            let mut state = self.copy_state(None);
            let middle = state.parameters.len() / 2;
            if let Some(weight) = state.parameters.get_mut(middle) {
                *weight = f32::from_bits(weight.to_bits() ^ 1 << 20);
            }
            self.put_state(&state);
        }
    }

    /// A copy of the committed state, in the memory of `reused`.
    pub fn copy_state(&self, reused: Option<State>) -> State {
        let mut copy = reused.unwrap_or_default();
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        let committed = slots.committed();
        for (to, from) in [
            (&mut copy.parameters, committed.parameters),
            (&mut copy.momentum, committed.momentum),
            (&mut copy.statistics, committed.statistics),
        ] {
            to.clear();
            to.extend_from_slice(from);
        }
        copy.position.clone_from(&self.position);
        copy
    }

    /// The copied state becomes the committed one.
    pub fn put_state(&mut self, state: &State) {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        slots.replace(SlotView {
            step: state.position.step,
            generation: self.generation.load(Ordering::Relaxed),
            parameters: &state.parameters,
            momentum: &state.momentum,
            statistics: &state.statistics,
            extra: &[],
        });
        self.position.clone_from(&state.position);
        self.standing.step = self.position.step;
    }

    fn send_state(
        &mut self,
        comm: &mut dyn Communicator,
        receivers: &[usize],
    ) -> Result<(), CommError> {
        let position = serde_json::to_vec(&self.position).expect("a position is plain data");
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        let committed = slots.committed();
        for &receiver in receivers {
            comm.send(&(position.len() as u64).to_le_bytes(), receiver, TAG_LENGTH)?;
            comm.send(&position, receiver, TAG_POSITION)?;
            for part in [committed.parameters, committed.momentum, committed.statistics] {
                comm.send(bytemuck::cast_slice(part), receiver, TAG_TENSORS)?;
            }
        }
        Ok(())
    }

    fn receive_state(
        &mut self,
        comm: &mut dyn Communicator,
        source: usize,
    ) -> Result<(), CommError> {
        let mut length = [0; 8];
        comm.recv(&mut length, source, TAG_LENGTH)?;
        let mut position = vec![0; u64::from_le_bytes(length) as usize];
        comm.recv(&mut position, source, TAG_POSITION)?;
        let shape = self.slots.read().unwrap_or_else(PoisonError::into_inner).shape();
        let mut received = self.scratch.take().unwrap_or_else(|| Received::new(shape));
        let parts = [&mut received.parameters, &mut received.momentum, &mut received.statistics];
        for part in parts {
            comm.recv(bytemuck::cast_slice_mut(part), source, TAG_TENSORS)?;
        }
        let decoded = serde_json::from_slice(&position).map_err(|error| CommError::Fatal {
            call: "state transfer",
            class: 0,
            text: format!("the source's position cannot be read: {error}"),
        })?;
        self.scratch = Some(received);
        self.scratch_position = Some(decoded);
        Ok(())
    }
}

impl Hooks for Replica {
    fn reached(&mut self, phase: Phase) {
        self.reached_point(phase);
    }

    fn now(&self) -> Duration {
        self.clock.now()
    }

    fn arguments(&self) -> Vec<String> {
        self.arguments.clone()
    }

    fn committed_step(&self) -> Option<u64> {
        self.holds_state.then_some(self.position.step)
    }

    fn transfer(
        &mut self,
        comm: &mut dyn Communicator,
        source: usize,
        receivers: &[usize],
        _step: u64,
    ) -> Result<(), CommError> {
        let rank = comm.rank();
        self.scratch_position = None;
        if rank == source {
            self.send_state(comm, receivers)
        } else if receivers.contains(&rank) {
            self.receive_state(comm, source)
        } else {
            Ok(())
        }
    }

    fn restoring(&mut self, rank: usize, source: usize, step: u64) {
        self.standing.source = rank == source;
        self.standing.rank = rank as u32;
        self.standing.step = step;
    }

    fn adopt(&mut self, world: &World) {
        if let Some(position) = self.scratch_position.take() {
            let received = self.scratch.take().expect("a position comes with its tensors");
            let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
            slots.replace(SlotView {
                step: position.step,
                generation: world.generation,
                parameters: &received.parameters,
                momentum: &received.momentum,
                statistics: &received.statistics,
                extra: &[],
            });
            self.position = position;
            self.holds_state = true;
        }
        self.standing.source = false;
        self.standing.step = self.position.step;
        self.generation.store(world.generation, Ordering::Relaxed);
    }

    fn identity(&self) -> (u32, String) {
        (std::process::id(), kintsugi_ffi::os::hostname())
    }

    fn note(&mut self, note: Note) {
        self.notes.push(note);
    }
}
