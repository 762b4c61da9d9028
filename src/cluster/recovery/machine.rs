//! The recovery machine: a pure value that says what to do next. `Revoke -> Repair(promote |
//! respawn | drop) -> Agree -> Restore -> Resumed`; any failure goes back to `Revoke`, with
//! bounded tries per rung, then the next rung, then `GaveUp`. It knows no communicator and no
//! clock: the driver performs its actions and reports what came of them.
//!
//! Every rank of a repair runs its own copy. The copies stay in step because each event is the
//! result of an agreement; a newcomer, which has missed the past, takes its `Descent` from the
//! survivors at the next roll call.

use crate::config::Rung;

use super::Policy;
use super::descent::Descent;

/// Roll calls in one repair. Each one that fails has met a fresh death, so more than this many is
/// no repair any more.
pub const ROLL_CALLS_MAX: u32 = 32;

/// Why a repair that no step has proven is a failed try, for people.
pub const UNPROVEN: &str = "a rank died before the repaired world had proven itself";
const UNCONFIGURED: &str = "no rung is configured";

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Revoke the world, shrink to the living, call the roll.
    Revoke,
    /// Bring the world to its new size.
    Repair(Repair),
    /// Open the connections, take the holdings, agree on it.
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
    /// `Revoke` ended with an agreed roll call, in which somebody stood at this descent.
    Counted(Descent),
    /// The action succeeded, on every rank.
    Done,
    /// Somebody died, or a call failed; why.
    Failed(String),
    /// This rung cannot be had now and nothing was touched; why.
    Unavailable(String),
    /// This rung was tried, and the runtime refused or what came is not taken; why.
    Refused(String),
    /// No other try can help (time is up, all state is lost, a call failed for good); why.
    Hopeless(String),
}

/// The machine of one repair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    ladder: Vec<Rung>,
    tries_max: u32,
    descent: Descent,
    action: Action,
}

/// A survivor's machine.
pub fn begin(policy: &Policy) -> Machine {
    Machine::new(policy, Action::Revoke)
}

/// A survivor's machine, where the repair before this one stood at `unproved` and no step has
/// proven it: to bring processes in was a try that failed, and the ladder goes on from there.
pub fn begin_after(policy: &Policy, unproved: Descent) -> Machine {
    let mut machine = begin(policy);
    machine.descent = Descent { roll_calls: 0, ..unproved };
    if matches!(machine.rung(), Some(Rung::Spare | Rung::Respawn)) {
        machine.count_try();
    }
    machine
}

/// A newcomer's machine: its communicator has just become the full world.
pub fn join(policy: &Policy) -> Machine {
    Machine::new(policy, Action::Agree)
}

/// The machine of a world that has just grown on purpose. What fails now falls back to the ranks
/// that live, where the ladder allows a smaller world.
pub fn grow(policy: &Policy) -> Machine {
    let mut machine = Machine::new(policy, Action::Agree);
    let shrink = policy.ladder.iter().position(|rung| *rung == Rung::Shrink);
    machine.descent.rung = shrink.unwrap_or(0);
    machine
}

impl Machine {
    fn new(policy: &Policy, action: Action) -> Self {
        let (ladder, tries_max) = (policy.ladder.clone(), policy.tries_max.max(1));
        Self { ladder, tries_max, descent: Descent::default(), action }
    }

    /// What to do next.
    pub fn action(&self) -> Action {
        self.action.clone()
    }

    /// How far down the ladder this rank is.
    pub fn descent(&self) -> Descent {
        self.descent
    }

    /// The rung in force, `None` below the last.
    pub fn rung(&self) -> Option<Rung> {
        self.ladder.get(self.descent.rung).copied()
    }

    /// Takes in what came of the action. After the end nothing changes any more.
    pub fn on(&mut self, event: Event) {
        self.action = match (&self.action, event) {
            (Action::Resumed | Action::GaveUp(_), _) => return,
            (_, Event::Hopeless(reason)) => Action::GaveUp(reason),
            (Action::Revoke, Event::Counted(descent)) => {
                self.descent = self.descent.max(descent);
                self.repair(if self.descent.rung == 0 { UNCONFIGURED } else { UNPROVEN })
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
            Some(Rung::Restart) if self.descent.rung == 0 => {
                Action::GaveUp("the ladder says restart".into())
            }
            Some(Rung::Restart) => Action::GaveUp(format!("restart is next: {reason}")),
            None => Action::GaveUp(format!("no rung is left: {reason}")),
        }
    }

    fn call_again(&mut self, reason: &str) -> Action {
        self.descent.roll_calls += 1;
        if self.descent.roll_calls < ROLL_CALLS_MAX {
            return Action::Revoke;
        }
        Action::GaveUp(format!("{ROLL_CALLS_MAX} roll calls failed, the last because {reason}"))
    }

    fn try_again(&mut self, reason: &str) -> Action {
        self.count_try();
        self.revoke_unless_exhausted(reason)
    }

    fn count_try(&mut self) {
        self.descent.tries += 1;
        if self.descent.tries >= self.tries_max {
            self.step_down();
        }
    }

    fn step_down(&mut self) {
        self.descent.rung += 1;
        self.descent.tries = 0;
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn policy(ladder: &[Rung], tries_max: u32) -> Policy {
        Policy::new(ladder.to_vec(), tries_max, Duration::from_secs(60))
    }

    /// Every event that may follow an action.
    fn events(action: &Action, descent: Descent) -> Vec<Event> {
        let failed = || Event::Failed("f".into());
        let hopeless = || Event::Hopeless("h".into());
        match action {
            Action::Revoke => vec![Event::Counted(descent), failed(), hopeless()],
            Action::Repair(Repair::Promote) => {
                vec![Event::Done, failed(), Event::Unavailable("u".into()), hopeless()]
            }
            Action::Repair(Repair::Respawn) => {
                vec![Event::Done, failed(), Event::Refused("r".into()), hopeless()]
            }
            Action::Repair(Repair::Drop) => vec![Event::Done, failed()],
            Action::Agree => {
                vec![Event::Done, failed(), Event::Refused("r".into()), hopeless()]
            }
            Action::Restore => vec![Event::Done, failed(), hopeless()],
            Action::Resumed | Action::GaveUp(_) => Vec::new(),
        }
    }

    /// Longest path: each of `tries` per rung may fail in any of three actions, and roll calls.
    fn steps_max(ladder: usize, tries: u32, roll_calls: u32) -> u32 {
        (ladder as u32 + 1) * (tries + 1) * 4 + 2 * roll_calls
    }

    struct Walk {
        paths: u64,
        resumed: u64,
        roll_calls_max: u32,
        steps_max: u32,
    }

    impl Walk {
        /// Walks every path from here; roll calls beyond the small bound are cut (the real bound
        /// is tested alone).
        fn from(&mut self, machine: &Machine, trail: &mut Vec<Action>) {
            let action = machine.action();
            trail.push(action.clone());
            assert!(trail.len() as u32 <= self.steps_max, "no end: {trail:?}");
            let next = events(&action, machine.descent());
            if next.is_empty() {
                self.paths += 1;
                if action == Action::Resumed {
                    self.resumed += 1;
                    let tail = &trail[trail.len() - 3..];
                    assert_eq!(tail, [Action::Agree, Action::Restore, Action::Resumed]);
                }
            }
            for event in next {
                if machine.descent().roll_calls >= self.roll_calls_max
                    && action == Action::Revoke
                    && matches!(event, Event::Failed(_))
                {
                    continue;
                }
                let mut after = machine.clone();
                after.on(event.clone());
                check_step(machine, &event, &after);
                self.from(&after, trail);
            }
            trail.pop();
        }
    }

    fn check_step(before: &Machine, event: &Event, after: &Machine) {
        assert!(after.descent() >= before.descent(), "the ladder is only climbed down");
        assert!(after.descent().tries < after.tries_max);
        match event {
            Event::Hopeless(why) => assert_eq!(after.action(), Action::GaveUp(why.clone())),
            Event::Failed(_) | Event::Refused(_) => assert!(
                matches!(after.action(), Action::Revoke | Action::GaveUp(_)),
                "a failure goes back to Revoke: {before:?} {event:?} {after:?}"
            ),
            Event::Done => assert_eq!(after.descent(), before.descent()),
            Event::Unavailable(_) | Event::Counted(_) => {
                assert!(matches!(after.action(), Action::Repair(_) | Action::GaveUp(_)));
            }
        }
    }

    #[test]
    fn every_path_of_every_ladder_ends_and_resumes_only_after_agree_and_restore() {
        use Rung::{Respawn, Restart, Shrink, Spare};
        let ladders: [&[Rung]; 7] = [
            &[Spare, Respawn, Shrink, Restart],
            &[Respawn, Shrink],
            &[Respawn, Restart],
            &[Shrink],
            &[Spare, Shrink, Restart],
            &[Restart],
            &[],
        ];
        let mut paths = 0;
        for ladder in ladders {
            for tries in 1..=2 {
                let policy = policy(ladder, tries);
                for start in [begin(&policy), join(&policy)] {
                    let bound = steps_max(ladder.len(), tries, 1);
                    let mut walk =
                        Walk { paths: 0, resumed: 0, roll_calls_max: 1, steps_max: bound };
                    walk.from(&start, &mut Vec::new());
                    let can_resume = start.action() == Action::Agree
                        || ladder.iter().any(|rung| *rung != Restart);
                    assert_eq!(walk.resumed > 0, can_resume, "{ladder:?}");
                    paths += walk.paths;
                }
            }
        }
        assert!(paths > 10_000, "only {paths} paths were walked");
    }

    #[test]
    fn roll_calls_are_bounded() {
        let mut machine = begin(&policy(&[Rung::Shrink], 1));
        for call in 0..ROLL_CALLS_MAX {
            assert_eq!(machine.action(), Action::Revoke, "call {call}");
            machine.on(Event::Failed("a death".into()));
        }
        assert!(matches!(machine.action(), Action::GaveUp(why) if why.contains("a death")));
    }

    #[test]
    fn a_ladder_without_spares_steps_down_at_once() {
        let mut machine = begin(&policy(&[Rung::Spare, Rung::Respawn], 3));
        machine.on(Event::Counted(Descent::default()));
        assert_eq!(machine.action(), Action::Repair(Repair::Promote));
        machine.on(Event::Unavailable("no spare is waiting".into()));
        assert_eq!(machine.action(), Action::Repair(Repair::Respawn));
        assert_eq!(machine.rung(), Some(Rung::Respawn));
    }

    #[test]
    fn a_rung_is_tried_as_often_as_it_says_then_the_next_with_the_reason_at_the_end() {
        let mut machine = begin(&policy(&[Rung::Respawn, Rung::Shrink, Rung::Restart], 2));
        let mut repairs = Vec::new();
        for _ in 0..4 {
            machine.on(Event::Counted(Descent::default()));
            repairs.push(machine.action());
            machine.on(Event::Failed("joining failed".into()));
        }
        let (respawn, drop) = (Action::Repair(Repair::Respawn), Action::Repair(Repair::Drop));
        assert_eq!(repairs, [respawn.clone(), respawn, drop.clone(), drop]);
        assert_eq!(machine.action(), Action::GaveUp("restart is next: joining failed".into()));
    }

    #[test]
    fn a_newcomer_takes_the_survivors_place_on_the_ladder() {
        let policy = policy(&[Rung::Respawn, Rung::Shrink], 3);
        let (mut survivor, mut newcomer) = (begin(&policy), join(&policy));
        for event in [
            Event::Counted(Descent::default()),
            Event::Refused("no slot".into()),
            Event::Counted(Descent { rung: 1, ..Descent::default() }),
            Event::Done,
        ] {
            survivor.on(event);
        }
        for machine in [&mut survivor, &mut newcomer] {
            assert_eq!(machine.action(), Action::Agree);
            machine.on(Event::Failed("a death".into()));
        }
        let furthest = survivor.descent().max(newcomer.descent());
        for machine in [&mut survivor, &mut newcomer] {
            machine.on(Event::Counted(furthest));
        }
        assert_eq!(survivor, newcomer);
        assert_eq!(survivor.action(), Action::Repair(Repair::Drop));
    }

    #[test]
    fn growth_that_fails_falls_back_to_the_living_newcomers_included() {
        let policy = policy(&[Rung::Spare, Rung::Respawn, Rung::Shrink], 3);
        let (mut old, mut newcomer) = (grow(&policy), join(&policy));
        for machine in [&mut old, &mut newcomer] {
            assert_eq!(machine.action(), Action::Agree);
            machine.on(Event::Failed("a death".into()));
        }
        let furthest = old.descent().max(newcomer.descent());
        for machine in [&mut old, &mut newcomer] {
            machine.on(Event::Counted(furthest));
            assert_eq!(machine.action(), Action::Repair(Repair::Drop));
        }
        assert_eq!(old, newcomer);
    }

    #[test]
    fn nothing_happens_after_the_end() {
        let mut machine = begin(&policy(&[Rung::Restart], 1));
        machine.on(Event::Counted(Descent::default()));
        let end = machine.clone();
        assert_eq!(end.action(), Action::GaveUp("the ladder says restart".into()));
        machine.on(Event::Done);
        machine.on(Event::Failed("late".into()));
        assert_eq!(machine, end);
    }
}
