//! Performs what the machine decides, over any `Communicator` ("The flow of a repair").
//!
//! The protocol, each line ending in an agreement of all who take part, so that no rank moves on
//! alone; whoever meets an error revokes the communicator *before* it agrees:
//! 1. `Revoke`: revoke, shrink, roll call (old rank, step, machine descent), agree. Waiting spares
//!    take part from here to 2.
//! 2. `Repair`: spares take the dead's seats, respawn and merge, or renumber. A spare without a
//!    seat waits again.
//! 3. `Agree`: open every connection, holdings (step, generation, who and where), agree. A newcomer
//!    enters here.
//! 4. `Restore`: the lowest rank with state broadcasts the world, newcomers receive the state into
//!    scratch, agree, adopt.
//!
//! A repair that fails anywhere begins again at 1, with the newcomers that live.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::{Point, Rung};

use super::machine::{self, Action, Event, Machine, Repair};
use super::rollcall::{Answer, Holdings, Roll};
use super::succession::next_world;
use super::unproved::Unproved;
use super::{GaveUp, Hooks, Leaves, Note, Policy, Remark, Repaired};
use crate::cluster::comm::{Membership, Waiting};
use crate::cluster::world::{Member, World};

mod growth;
mod seating;

pub use growth::{Growth, grow};
use seating::{Gathering, Setback};

/// A world table larger than this is no world table.
const NEXT_WORLD_BYTES_MAX: u64 = 64 << 20;

/// What a repaired world looks like, as its source says: every rank goes on with the same bytes.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct NextWorld {
    world: World,
    lost: Vec<Member>,
    rung: Rung,
}

/// What became of a process that took part in a repair.
enum Ended {
    /// It belongs to the repaired world.
    Resumed(World, Repaired),
    /// It got no seat; see `Called::Waits`.
    Waits(Vec<u32>),
}

/// What became of a spare that was called.
#[derive(Debug, Clone, PartialEq)]
pub enum Called {
    /// It is a rank now, of this world.
    Seated(World, Repaired),
    /// It was not needed; the pids of the ranks on its machine, by rank, 0 elsewhere.
    Waits(Vec<u32>),
}

/// Survivors, after any `CommError` or a failed vote. Revokes first. On success `comm` and `world`
/// are repaired on every rank and all hold the same committed step.
pub fn recover(
    comm: &mut dyn Membership,
    world: &mut World,
    policy: &Policy,
    hooks: &mut dyn Hooks,
) -> Result<Repaired, GaveUp> {
    recover_after(comm, world, policy, hooks, &mut Unproved::default())
}

/// Likewise, where a repair lies behind this world that no step has proven yet, or none does.
/// `unproved` says so of this one afterwards.
pub fn recover_after(
    comm: &mut dyn Membership,
    world: &mut World,
    policy: &Policy,
    hooks: &mut dyn Hooks,
    unproved: &mut Unproved,
) -> Result<Repaired, GaveUp> {
    let machine = match unproved.descent() {
        None => machine::begin(policy),
        Some(descent) => machine::begin_after(policy, descent),
    };
    let mut driver = Driver::new(comm, Some(world), policy, hooks, machine);
    driver.notes.extend(unproved.note(policy, &driver.machine));
    match driver.run()? {
        Ended::Resumed(repaired_world, repaired) => {
            *world = repaired_world;
            if !repaired.lost.is_empty() {
                unproved.repaired(repaired.descent);
            }
            Ok(repaired)
        }
        Ended::Waits(_) => Err(unseated()),
    }
}

/// A replacement, right after its communicator joined the full world: enters at `Agree`. Later
/// failures during it are repaired by the same machine.
pub fn join(
    comm: &mut dyn Membership,
    policy: &Policy,
    hooks: &mut dyn Hooks,
) -> Result<(World, Repaired), GaveUp> {
    match Driver::new(comm, None, policy, hooks, machine::join(policy)).run()? {
        Ended::Resumed(world, repaired) => Ok((world, repaired)),
        Ended::Waits(_) => Err(unseated()),
    }
}

/// A spare whose communicator called it (`Call::Gather`): takes part until it is a rank, or not
/// needed.
pub fn answer_call(
    comm: &mut dyn Membership,
    policy: &Policy,
    hooks: &mut dyn Hooks,
) -> Result<Called, GaveUp> {
    match Driver::new(comm, None, policy, hooks, machine::begin(policy)).run()? {
        Ended::Resumed(world, repaired) => Ok(Called::Seated(world, repaired)),
        Ended::Waits(pids) => Ok(Called::Waits(pids)),
    }
}

fn unseated() -> GaveUp {
    let reason = "recovery gave up: a rank lost its seat to nobody (a bug of the seating)".into();
    GaveUp { leaves: Leaves::WithAll, reason, notes: Vec::new(), living: Vec::new() }
}

struct Driver<'a> {
    gathering: Gathering<'a>,
    machine: Machine,
    holdings: Holdings,
    /// How this process gives up.
    leaves: Leaves,
    deadline: Duration,
    notes: Vec<Note>,
}

impl<'a> Driver<'a> {
    fn new(
        comm: &'a mut dyn Membership,
        old: Option<&'a World>,
        policy: &'a Policy,
        hooks: &'a mut dyn Hooks,
        machine: Machine,
    ) -> Self {
        let deadline = hooks.now().saturating_add(policy.limit);
        let gathering = Gathering::of(comm, old, policy, hooks);
        Self {
            gathering,
            machine,
            holdings: Holdings::default(),
            leaves: Leaves::WithAll,
            deadline,
            notes: Vec::new(),
        }
    }

    fn run(mut self) -> Result<Ended, GaveUp> {
        self.gathering.comm.wait_by(Waiting::Sharing);
        let ended = self.go_through();
        self.gathering.comm.wait_by(Waiting::Spinning);
        ended
    }

    /// The loop ends because the machine does: tries, rungs and roll calls are bounded.
    fn go_through(&mut self) -> Result<Ended, GaveUp> {
        let mut next_world = None;
        loop {
            let event = match self.machine.action() {
                Action::Revoke => self.revoke_and_count(),
                Action::Repair(repair) => self.repair(repair),
                Action::Agree if self.gathering.slot.is_none() => {
                    return Ok(Ended::Waits(self.gathering.neighbours()));
                }
                Action::Agree => self.take_holdings(),
                Action::Restore => match self.restore() {
                    Ok(agreed) => {
                        next_world = Some(agreed);
                        Event::Done
                    }
                    Err(event) => event,
                },
                Action::Resumed => break,
                Action::GaveUp(reason) => return Err(self.give_up(reason)),
            };
            self.advance(event);
        }
        let NextWorld { world, lost, rung } = next_world.expect("resumed only after a restore");
        let seconds = std::mem::take(&mut self.gathering.seconds);
        let notes = std::mem::take(&mut self.notes);
        let (descent, step) = (self.machine.descent(), self.holdings.step);
        let repaired = Repaired { rung, lost, step, descent, seconds, notes };
        Ok(Ended::Resumed(world, repaired))
    }

    fn give_up(&mut self, reason: String) -> GaveUp {
        // Those who have not seen it yet must not wait for this rank.
        self.gathering.comm.revoke();
        let reason = match self.leaves {
            Leaves::WithAll => {
                format!("recovery gave up: {}", self.gathering.with_names(reason))
            }
            Leaves::Outvoted | Leaves::Refused => reason,
        };
        let notes = std::mem::take(&mut self.notes);
        let answers = self.gathering.roll.answers().iter();
        let living = answers.map(|answer| (answer.pid, answer.host.clone())).collect();
        GaveUp { leaves: self.leaves, reason, notes, living }
    }

    /// Tells the machine, and notes it when the machine had to go back or down.
    fn advance(&mut self, event: Event) {
        let reason = match &event {
            Event::Failed(why) | Event::Unavailable(why) | Event::Refused(why) => Some(why.clone()),
            Event::Counted(_) | Event::Done | Event::Hopeless(_) => None,
        };
        let before = self.machine.rung();
        self.machine.on(event);
        let (Some(reason), Some(from)) = (reason, before) else { return };
        self.notes.extend(self.machine.rung().map(|to| Note::of(from, to, reason)));
    }

    /// `Action::Revoke`: the world ends, the living find each other.
    fn revoke_and_count(&mut self) -> Event {
        let Gathering { comm, hooks, .. } = &mut self.gathering;
        let begun = hooks.now();
        hooks.tell(Remark::Reached(Point::InRevoke));
        comm.revoke();
        hooks.tell(Remark::Reached(Point::InShrink));
        let event = match self.gathering.shrink() {
            Ok(()) => self.call_roll(),
            Err(reason) => Event::Hopeless(reason),
        };
        self.gathering.add("revoke_shrink", begun);
        event
    }

    fn call_roll(&mut self) -> Event {
        let gathering = &mut self.gathering;
        let who = gathering.hooks.who();
        let (pid, host) = (who.pid, who.host.clone());
        let answer = Answer {
            slot: gathering.slot,
            ranks: gathering.ranks,
            step: gathering.hooks.committed_step(),
            descent: self.machine.descent(),
            overdue: gathering.hooks.now() > self.deadline,
            born: gathering.comm.born(),
            nodes: gathering.nodes_agreed(),
            pid,
            host,
        };
        let gathered = gathering.comm.all_gather_u64(&answer.to_words()).map_err(Setback::from);
        let words = match gathering.agree(gathered) {
            Ok(words) => words,
            Err(event) => return event,
        };
        let roll = match Roll::read(&words, gathering.comm.size()) {
            Ok(roll) => roll,
            Err(reason) => return Event::Hopeless(reason),
        };
        let (overdue, descent, source) = (roll.overdue(), roll.descent(), roll.source());
        (gathering.lost, gathering.seats) = (roll.lost(), roll.slots());
        gathering.roll = roll;
        let Some((_, step)) = source else {
            return Event::Hopeless("all state was lost".into());
        };
        gathering.ranks = gathering.roll.ranks();
        gathering.hooks.tell(Remark::Counted(step));
        if let Some(why) = gathering.roll.quorum_missed(gathering.policy.home.as_deref()) {
            self.leaves = Leaves::Outvoted;
            return Event::Hopeless(why);
        }
        if overdue {
            return Event::Hopeless("the repair took longer than its time limit".into());
        }
        Event::Counted(descent)
    }

    /// `Action::Repair`. With nobody lost (a false alarm, or a newcomer of the last try filled
    /// the rank) the world already has its size.
    fn repair(&mut self, repair: Repair) -> Event {
        if self.gathering.is_whole() {
            return Event::Done;
        }
        self.gathering.repair(repair)
    }

    /// `Action::Agree`: every pair is connected while all live, and all know who is here.
    fn take_holdings(&mut self) -> Event {
        let gathering = &mut self.gathering;
        let begun = gathering.hooks.now();
        let gathered = gathering.tell_holdings();
        let agreed = gathering.agree(gathered.map_err(Setback::from));
        gathering.add("agree", begun);
        let size = gathering.comm.size();
        let holdings =
            agreed.and_then(|words| Holdings::read(&words, size).map_err(Event::Hopeless));
        match holdings.map(|holdings| self.holdings = holdings) {
            Ok(()) => self.look_for_strangers(),
            Err(event) => event,
        }
    }

    /// A newcomer that lists another data set would train in another order: it leaves, and what
    /// brought it is left to the next rung. To drop the lost is to blame for nobody.
    fn look_for_strangers(&mut self) -> Event {
        let Some((_, why)) = self.holdings.stranger() else { return Event::Done };
        if self.holdings.is_stranger(self.gathering.comm.rank()) {
            self.leaves = Leaves::Refused;
            return Event::Hopeless(why);
        }
        match self.machine.rung() {
            Some(Rung::Spare | Rung::Respawn) => Event::Refused(why),
            _ => Event::Failed(why),
        }
    }

    /// `Action::Restore`: the world and the state go to who lacks them; adopted after agreement.
    fn restore(&mut self) -> Result<NextWorld, Event> {
        let Gathering { comm, hooks, .. } = &mut self.gathering;
        let begun = hooks.now();
        let Holdings { source, step, .. } = self.holdings;
        hooks.tell(Remark::Restoring { rank: comm.rank(), source, step });
        hooks.tell(Remark::Reached(Point::InRestore));
        let shipped = self.ship();
        let agreed = self.gathering.agree(shipped);
        if let Ok(next_world) = &agreed {
            self.gathering.hooks.adopt(&next_world.world);
        }
        self.gathering.add("restore", begun);
        agreed
    }

    fn ship(&mut self) -> Result<NextWorld, Setback> {
        let Holdings { source, step, .. } = self.holdings;
        let next_world = self.share_next_world(source)?;
        let receivers = &self.holdings.receivers;
        if !receivers.is_empty() {
            let Gathering { comm, hooks, .. } = &mut self.gathering;
            // It may move much: no pauses between the pieces.
            comm.wait_by(Waiting::Spinning);
            let moved = hooks.transfer(&mut **comm, source, receivers, step);
            comm.wait_by(Waiting::Sharing);
            moved?;
        }
        Ok(next_world)
    }

    /// The source says what the world is now; two broadcasts, since all must know the length.
    fn share_next_world(&mut self, source: usize) -> Result<NextWorld, Setback> {
        let mut body = Vec::new();
        if self.gathering.comm.rank() == source {
            let next_world = self.next_world().map_err(Setback::Hopeless)?;
            body = serde_json::to_vec(&next_world)
                .map_err(|error| Setback::Hopeless(format!("world table: {error}")))?;
        }
        let mut length = (body.len() as u64).to_le_bytes();
        self.gathering.comm.broadcast(&mut length, source)?;
        let length = u64::from_le_bytes(length);
        if length > NEXT_WORLD_BYTES_MAX {
            return Err(Setback::Hopeless(format!("a world table of {length} bytes arrived")));
        }
        body.resize(length as usize, 0);
        self.gathering.comm.broadcast(&mut body, source)?;
        serde_json::from_slice(&body)
            .map_err(|error| Setback::Hopeless(format!("a torn world table arrived: {error}")))
    }

    /// The repaired world, from the old one and the holdings.
    fn next_world(&self) -> Result<NextWorld, String> {
        let old = self.gathering.old.ok_or("the source of the state has no world")?;
        let rung =
            self.gathering.done_by.or(self.machine.rung()).ok_or("a repair without a rung")?;
        let waiting = self.gathering.waiting();
        let (world, lost) = next_world(old, &self.holdings, &waiting);
        Ok(NextWorld { world, lost, rung })
    }
}

#[cfg(test)]
#[path = "driver_tests.rs"]
mod tests;
