//! A process of the run: who it is, where it stands, and what goes wrong with it on purpose.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::cluster::faults::{Injector, Standing};
use crate::cluster::guard::report;
use crate::cluster::recovery::Participant;
use crate::cluster::world::World;
use crate::config::{FaultKind, Point};
use crate::observe::clock::Clock;

/// A process of the run.
pub struct Process {
    /// As others know it.
    pub who: Participant,
    /// Where it stands, for fault injection.
    pub standing: Standing,
    pub(in crate::train) clock: Arc<dyn Clock>,
    injector: Arc<Injector>,
    /// The world's, for whoever records a fault.
    generation: Arc<AtomicU32>,
    /// The last point that says what a failure was met in.
    met_in: Cell<Point>,
    /// A planned bit flip struck and is to be performed.
    flip_due: Cell<bool>,
}

impl Process {
    /// One that stands there.
    pub fn new(
        who: Participant,
        standing: Standing,
        clock: Arc<dyn Clock>,
        injector: Arc<Injector>,
        generation: Arc<AtomicU32>,
    ) -> Self {
        let (met_in, flip_due) = (Cell::new(Point::InStep), Cell::new(false));
        Self { who, standing, clock, injector, generation, met_in, flip_due }
    }

    /// The communicating thread has come to this point: says so to the guardian and to whoever
    /// tells of a failure, and asks whether a fault strikes here.
    pub fn at(&self, point: Point) {
        report::at(point, self.standing.step + 1);
        if point.met_in().is_some() {
            self.met_in.set(point);
        }
        if self.injector.at(point, &self.standing) == Some(FaultKind::BitFlip) {
            self.flip_due.set(true);
        }
    }

    /// What a failure that shows now is said to have been met in.
    pub fn met_in(&self) -> &'static str {
        self.met_in.get().met_in().unwrap_or_default()
    }

    /// Whether a planned bit flip is to be performed now.
    pub fn takes_flip(&self) -> bool {
        self.flip_due.take()
    }

    /// After an agreement: it is a rank of this world, and all of them hold this step.
    pub fn joined(&mut self, world: &World, step: u64) {
        self.standing = Standing { step, source: false, spare: false, ..self.standing };
        self.generation.store(world.generation, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::clock::RealClock;

    fn process() -> Process {
        let (injector, clock) = (Arc::new(Injector::none()), Arc::new(RealClock::default()));
        let (who, standing) = (Participant::default(), Standing::default());
        Process::new(who, standing, clock, injector, Arc::default())
    }

    #[test]
    fn a_failure_was_met_in_the_task_that_is_repaired() {
        let process = process();
        let met_in = |points: &[Point]| {
            points.iter().for_each(|point| process.at(*point));
            process.met_in()
        };
        assert_eq!(met_in(&[]), "step", "of a newcomer");
        assert_eq!(met_in(&[Point::InStep, Point::BeforeLoad, Point::InBucket]), "all_reduce");
        assert_eq!(met_in(&[Point::InRepair, Point::InRevoke, Point::InRestore]), "all_reduce");
        assert_eq!(met_in(&[Point::InStep]), "step");
        assert_eq!(met_in(&[Point::InAllReduce, Point::BeforeVote, Point::AfterVote]), "vote");
        assert_eq!(met_in(&[Point::InResize, Point::AfterVote, Point::InSpawn]), "resize");
        assert_eq!(met_in(&[Point::InEvaluation, Point::AfterVote]), "evaluation");
        assert_eq!(met_in(&[Point::InComparison, Point::InRepair]), "comparison");
        assert_eq!(met_in(&[Point::InFinalize, Point::Over]), "finish");
    }
}
