//! One rank's copy of the run's state, and how it is shipped: what recovery needs of a process.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::cluster::faults::{Injector, Standing};
use crate::cluster::guard::report;
use crate::cluster::recovery::Participant;
use crate::cluster::recovery::set::SetIdentity;
use crate::cluster::resident::{Identity, SlotView, Slots};
use crate::cluster::world::World;
use crate::config::{FaultKind, Point};
use crate::observe::clock::Clock;

use crate::train::state::incoming::{Incoming, Way};
use crate::train::state::position::Position;
use crate::train::state::proof::Proof;
use crate::train::state::slot_files::SlotFiles;

/// A copy of a committed state.
#[derive(Debug, Clone, Default)]
pub struct StateCopy {
    /// Everything that is not a tensor.
    pub position: Position,
    /// In the order of the slots' shape.
    parts: Vec<Vec<f32>>,
}

/// The state of this rank.
pub struct Replica {
    /// Tensors of the last committed step, and those of the next while it is made.
    pub slots: Arc<RwLock<Slots>>,
    /// Everything else.
    pub position: Position,
    /// False on a newcomer until it has received a state.
    pub holds_state: bool,
    /// Where this process stands, for fault injection.
    pub standing: Standing,
    /// Where the slots lie so that they outlive this process; `None`: in its memory.
    pub slot_files: Option<SlotFiles>,
    /// Ranks of this attempt whose slots lie in their own memory although they should not.
    pub unhoused: usize,
    /// How this rank, as the source, gave its state in the last repair.
    pub given: Vec<Way>,
    /// What is known of the states that met in the last repair.
    pub proof: Proof,
    /// What this process has listed of the run's data.
    pub set: SetIdentity,
    /// What this process computes with.
    pub arithmetic: String,
    /// This process, as others know it.
    pub who: Participant,
    injector: Arc<Injector>,
    /// The last point that says what a failure was met in.
    met_in: Cell<Point>,
    pub(in crate::train) clock: Arc<dyn Clock>,
    /// The world's, for whoever records a fault.
    generation: Arc<AtomicU32>,
    pub(in crate::train) incoming: Option<Incoming>,
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
        generation: Arc<AtomicU32>,
        who: Participant,
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
            slot_files: None,
            unhoused: 0,
            given: Vec::new(),
            proof: Proof::default(),
            set: SetIdentity::default(),
            arithmetic: String::new(),
            who,
            injector,
            met_in: Cell::new(Point::InStep),
            clock,
            generation,
            incoming: None,
            flip_due: AtomicBool::new(false),
        }
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

    /// The communicating thread has come to this point: says so to the guardian and to whoever
    /// tells of a failure, and asks whether a fault strikes here.
    pub fn at(&self, point: Point) {
        report::at(point, self.standing.step + 1);
        if point.met_in().is_some() {
            self.met_in.set(point);
        }
        if self.injector.at(point, &self.standing) == Some(FaultKind::BitFlip) {
            self.flip_due.store(true, Ordering::Relaxed);
        }
    }

    /// What a failure that shows now is said to have been met in.
    pub fn met_in(&self) -> &'static str {
        self.met_in.get().met_in().unwrap_or_default()
    }

    /// Performs a planned bit flip: one bit of a committed weight turns over.
    pub fn flip_if_due(&mut self) {
        if self.flip_due.swap(false, Ordering::Relaxed) {
            let mut state = self.copy_state(None);
            let middle = state.parts.first().map_or(0, |weights| weights.len() / 2);
            let weights = state.parts.first_mut();
            if let Some(weight) = weights.and_then(|weights| weights.get_mut(middle)) {
                *weight = f32::from_bits(weight.to_bits() ^ 1 << 20);
            }
            self.put_state(&state);
        }
    }

    /// A copy of the committed state, in the memory of `reused`.
    pub fn copy_state(&self, reused: Option<StateCopy>) -> StateCopy {
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
    pub fn put_state(&mut self, state: &StateCopy) {
        let extra = state.position.encode();
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let parts: Vec<&[f32]> = state.parts.iter().map(Vec::as_slice).collect();
        let at = (state.position.step, self.generation.load(Ordering::Relaxed));
        let shape = slots.shape();
        slots.replace(SlotView::new(shape, at, &parts, &extra));
        // What is being hashed beside reads the slots, and is waited for.
        drop(slots);
        self.position.clone_from(&state.position);
        self.standing.step = self.position.step;
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

    /// After an agreement: what came in becomes this rank's state, and the rank a member of the
    /// world.
    pub fn adopt_state(&mut self, world: &World) {
        self.settle(world, self.standing.rank as usize);
        if let Some(Incoming { key, position, way }) = self.incoming.take() {
            let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
            if way != Way::Mapped {
                slots.commit_as(key, &position.encode());
            }
            // Whatever else lay in a dead rank's slots is given up if it is later.
            assert!(slots.select(key), "a state that everybody agreed on is in its slot");
            drop(slots);
            self.position = position;
            self.holds_state = true;
        }
        self.standing.source = false;
        self.standing.step = self.position.step;
        self.generation.store(world.generation, Ordering::Relaxed);
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
        self.holds_state = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::resident::Shape;
    use crate::observe::clock::RealClock;

    fn replica() -> Replica {
        let slots = Arc::new(RwLock::new(Slots::vacant(Shape::of(&[("weights", 3)]))));
        let (injector, clock) = (Arc::new(Injector::none()), Arc::new(RealClock::default()));
        Replica::new(slots, None, injector, clock, Arc::default(), Participant::default())
    }

    #[test]
    fn a_failure_was_met_in_the_task_that_is_repaired() {
        let replica = replica();
        let met_in = |points: &[Point]| {
            points.iter().for_each(|point| replica.at(*point));
            replica.met_in()
        };
        assert_eq!(met_in(&[]), "step", "of a newcomer");
        assert_eq!(met_in(&[Point::InStep, Point::BeforeLoad, Point::InBucket]), "all_reduce");
        assert_eq!(met_in(&[Point::InRepair, Point::InRevoke, Point::InRestore]), "all_reduce");
        assert_eq!(met_in(&[Point::InStep]), "step");
        assert_eq!(met_in(&[Point::InAllReduce, Point::BeforeVote, Point::AfterVote]), "vote");
        assert_eq!(met_in(&[Point::InResize, Point::AfterVote, Point::InSpawn]), "resize");
        assert_eq!(met_in(&[Point::InEvaluation, Point::AfterVote]), "evaluation");
        assert_eq!(met_in(&[Point::InRefill, Point::InRepair]), "refill");
        assert_eq!(met_in(&[Point::InComparison, Point::InRepair]), "comparison");
        assert_eq!(met_in(&[Point::InFinalize, Point::Over]), "finish");
    }
}
