//! The recovery machine: a pure value that says what to do next. `Revoke -> Repair(promote |
//! respawn | drop) -> Agree -> Restore -> Resumed`; any failure goes back to `Revoke`, with
//! bounded tries per rung, then the next rung, then `GaveUp`. It knows no communicator and no
//! clock: the driver performs its actions and reports what came of them.
//!
//! Every rank of a repair runs its own copy. The copies stay in step because each event is the
//! result of an agreement; a newcomer, which has missed the past, takes its `Position` from the
//! survivors at the next roll call.

use crate::config::Rung;

use super::Policy;

/// Roll calls in one repair. Each one that fails has met a fresh death, so more than this many is
/// no repair any more.
pub const ROLL_CALLS_MAX: u32 = 32;

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Revoke the world, shrink to the living, call the roll.
    Revoke,
    /// Bring the world to its new size.
    Repair(Repair),
    /// Open the connections, take the census, agree on it.
    Agree,
    /// Bring everybody to the same committed step and agree.
    Restore,
    /// Done: go on training.
    Resumed,
    /// No rung is left; why.
    GaveUp(String),
}

/// How a world is repaired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repair {
    /// Waiting spares take the dead's ranks.
    Promote,
    /// New processes take the dead's ranks.
    Respawn,
    /// The living go on with fewer ranks.
    Drop,
}

/// What came of an action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// `Revoke` ended with an agreed roll call, in which somebody stood at this position.
    Counted(Position),
    /// The action succeeded, on every rank.
    Done,
    /// Somebody died, or a call failed; why.
    Failed(String),
    /// This rung cannot be had now and nothing was touched; why.
    Unavailable(String),
    /// This rung was tried and refused by the runtime; why.
    Refused(String),
    /// No other try can help (time is up, all state is lost, a call failed for good); why.
    Hopeless(String),
}

/// How far down the ladder a rank is. Later positions compare greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Position {
    /// Index into the ladder.
    pub rung: usize,
    /// Tries that failed on this rung.
    pub tries: u32,
    /// Roll calls that failed in this repair.
    pub roll_calls: u32,
}

/// The machine of one repair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    ladder: Vec<Rung>,
    tries_max: u32,
    position: Position,
    action: Action,
}

/// A survivor's machine.
pub fn begin(policy: &Policy) -> Machine {
    Machine::new(policy, Action::Revoke)
}

/// A newcomer's machine: its communicator has just become the full world.
pub fn join(policy: &Policy) -> Machine {
    Machine::new(policy, Action::Agree)
}

impl Machine {
    fn new(policy: &Policy, action: Action) -> Self {
        let (ladder, tries_max) = (policy.ladder.clone(), policy.tries_max.max(1));
        Self { ladder, tries_max, position: Position::default(), action }
    }

    /// What to do next.
    pub fn action(&self) -> Action {
        self.action.clone()
    }

    /// How far down the ladder this rank is.
    pub fn position(&self) -> Position {
        self.position
    }

    /// The rung in force, `None` below the last.
    pub fn rung(&self) -> Option<Rung> {
        self.ladder.get(self.position.rung).copied()
    }

    /// Takes in what came of the action. After the end nothing changes any more.
    pub fn on(&mut self, event: Event) {
        self.action = match (&self.action, event) {
            (Action::Resumed | Action::GaveUp(_), _) => return,
            (_, Event::Hopeless(reason)) => Action::GaveUp(reason),
            (Action::Revoke, Event::Counted(position)) => {
                self.position = self.position.max(position);
                self.repair("no rung is configured")
            }
            (Action::Revoke, event) => self.call_again(&reason_of(event)),
            (Action::Repair(_), Event::Done) => Action::Agree,
            (Action::Agree, Event::Done) => Action::Restore,
            (Action::Restore, Event::Done) => Action::Resumed,
            (Action::Repair(_), Event::Unavailable(reason)) => {
                self.step_down();
                self.repair(&reason)
            }
            (_, Event::Refused(reason)) => {
                self.step_down();
                self.revoke_unless_exhausted(&reason)
            }
            (_, event) => self.try_again(&reason_of(event)),
        };
    }

    /// The action of the rung in force; `reason` is why the one above was left.
    fn repair(&self, reason: &str) -> Action {
        match self.rung() {
            Some(Rung::Spare) => Action::Repair(Repair::Promote),
            Some(Rung::Respawn) => Action::Repair(Repair::Respawn),
            Some(Rung::Shrink) => Action::Repair(Repair::Drop),
            Some(Rung::Restart) if self.position.rung == 0 => {
                Action::GaveUp("the ladder says restart".into())
            }
            Some(Rung::Restart) => Action::GaveUp(format!("restart is next: {reason}")),
            None => Action::GaveUp(format!("no rung is left: {reason}")),
        }
    }

    fn call_again(&mut self, reason: &str) -> Action {
        self.position.roll_calls += 1;
        if self.position.roll_calls < ROLL_CALLS_MAX {
            return Action::Revoke;
        }
        Action::GaveUp(format!("{ROLL_CALLS_MAX} roll calls failed, the last because {reason}"))
    }

    fn try_again(&mut self, reason: &str) -> Action {
        self.position.tries += 1;
        if self.position.tries >= self.tries_max {
            self.step_down();
        }
        self.revoke_unless_exhausted(reason)
    }

    fn step_down(&mut self) {
        self.position.rung += 1;
        self.position.tries = 0;
    }

    /// A failure left the communicator in an unknown state, so the next try begins with `Revoke`
    /// unless there is none.
    fn revoke_unless_exhausted(&self, reason: &str) -> Action {
        match self.rung() {
            Some(Rung::Restart) | None => self.repair(reason),
            Some(_) => Action::Revoke,
        }
    }
}

fn reason_of(event: Event) -> String {
    match event {
        Event::Failed(reason)
        | Event::Unavailable(reason)
        | Event::Refused(reason)
        | Event::Hopeless(reason) => reason,
        Event::Done | Event::Counted(_) => "an event came that its action cannot have".into(),
    }
}
