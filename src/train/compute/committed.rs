//! The committed state as workers read it: tensor by tensor, each under the slots' lock, which is
//! free while they compute. A repair writes slots while workers are held in the middle of a pass.

use std::cell::Cell;
use std::sync::{PoisonError, RwLock};

use crate::cluster::resident::{SlotView, Slots};
use crate::engine::{EngineError, Flat, WeightSource};
use crate::model::TensorSpec;
use crate::model::parts::{AVERAGE, PARAMETERS, STATISTICS};

/// Which weights of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Which {
    /// Those that are trained.
    #[default]
    Trained,
    /// Their running average, where a run keeps one, with averaged running statistics.
    Averaged,
}

/// The state of one step.
pub struct Committed<'a> {
    slots: &'a RwLock<Slots>,
    which: Which,
    step: u64,
    /// Another step was committed while this one's micro-batch was computed.
    passed: Cell<bool>,
}

impl<'a> Committed<'a> {
    /// The state that is committed now.
    pub fn now(slots: &'a RwLock<Slots>) -> Self {
        let step = slots.read().unwrap_or_else(PoisonError::into_inner).committed().step;
        Self { slots, which: Which::Trained, step, passed: Cell::new(false) }
    }

    /// The same state's other weights.
    pub fn of(self, which: Which) -> Self {
        Self { which, ..self }
    }

    /// Which step it was.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Whether weights of another step were read, too. The step that the micro-batch belonged to
    /// was given up then, and nobody wants what was computed.
    pub fn passed(&self) -> bool {
        self.passed.get()
    }
}

impl WeightSource for Committed<'_> {
    fn read(&self, tensor: &TensorSpec, take: &mut dyn FnMut(&[f32])) -> Result<(), EngineError> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        let committed = slots.committed();
        if committed.step != self.step {
            self.passed.set(true);
        }
        flat(&committed, self.which).read(tensor, take)
    }
}

/// A slot as an engine reads it.
pub fn flat<'a>(slot: &SlotView<'a>, which: Which) -> Flat<'a> {
    let (parameters, statistics) = match which {
        Which::Trained => (slot.part(PARAMETERS), slot.part(STATISTICS)),
        Which::Averaged => slot.part(AVERAGE).split_at(slot.part(PARAMETERS).len()),
    };
    Flat { parameters, statistics }
}
