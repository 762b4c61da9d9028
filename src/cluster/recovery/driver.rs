//! Performs what the machine decides, over any `Communicator` ("The flow of a repair").
//!
//! The protocol, each line ending in an agreement of all who take part, so that no rank moves on
//! alone; whoever meets an error revokes the communicator *before* it agrees:
//! 1. `Revoke`: revoke, shrink, roll call (old rank, step, machine position), agree. Waiting spares
//!    take part from here to 2.
//! 2. `Repair`: spares take the dead's seats, respawn and merge, or renumber. A spare without a
//!    seat waits again.
//! 3. `Agree`: open every connection, holdings (step, generation, who and where), agree. A newcomer
//!    enters here.
//! 4. `Restore`: the lowest rank with state broadcasts the world, newcomers receive the state into
//!    scratch, agree, adopt.
//!
//! A repair that fails anywhere begins again at 1, with the newcomers that live.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::{Phase, Rung};
use crate::observe::event::Phases;

use super::machine::{self, Action, Event, Machine};
use super::rollcall::{Answer, Holdings, Resident, Roll};
use super::succession::next_world;
use super::{GaveUp, Hooks, Note, Policy, Repaired};
use crate::cluster::comm::{CommError, Membership, SpawnError, SpawnRequest, Waiting};
use crate::cluster::world::{Member, Role, World};

mod growth;
mod seating;

pub use growth::{Growth, grow};

/// Calls of shrink before this rank leaves: each failure has met a fresh death.
const SHRINKS_MAX: u32 = 10;

/// A world table larger than this is no world table.
const DECREE_BYTES_MAX: u64 = 64 << 20;

/// What a repaired world looks like, as its source says: every rank goes on with the same bytes.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct NextWorld {
    world: World,
    lost: Vec<Member>,
    rung: Rung,
}

/// Why a phase did not come to its end.
enum Setback {
    /// A call failed as recovery expects: revoke, agree, try again.
    Comm(CommError),
    /// Nobody can go on.
    Hopeless(String),
}

impl From<CommError> for Setback {
    fn from(error: CommError) -> Self {
        if error.starts_recovery() { Self::Comm(error) } else { Self::Hopeless(error.to_string()) }
    }
}

/// What became of a process that took part in a repair.
enum Ended {
    /// It belongs to the repaired world.
    Resumed(World, Repaired),
    /// It got no seat; see `Called::Waits`.
    Waits(Vec<u32>, Option<usize>),
}

/// What became of a spare that was called.
#[derive(Debug, Clone, PartialEq)]
pub enum Called {
    /// It is a rank now, of this world.
    Seated(World, Repaired),
    /// It was not needed; the pids of the ranks on its machine (by rank, 0 elsewhere), and, for the
    /// first of those that wait, how many they are.
    Waits(Vec<u32>, Option<usize>),
}

/// Survivors, after any `CommError` or a failed vote. Revokes first. On success `comm` and `world`
/// are repaired on every rank and all hold the same committed step.
pub fn recover(
    comm: &mut dyn Membership,
    world: &mut World,
    policy: &Policy,
    hooks: &mut dyn Hooks,
) -> Result<Repaired, GaveUp> {
    let machine = machine::begin(policy);
    match Driver::new(comm, Some(world), policy, hooks, machine).run()? {
        Ended::Resumed(repaired_world, repaired) => {
            *world = repaired_world;
            Ok(repaired)
        }
        Ended::Waits(..) => Err(unseated()),
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
        Ended::Waits(..) => Err(unseated()),
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
        Ended::Waits(pids, first_of) => Ok(Called::Waits(pids, first_of)),
    }
}

fn unseated() -> GaveUp {
    GaveUp::Ladder("a rank lost its seat to nobody (a bug of the seating)".into())
}

struct Driver<'a> {
    comm: &'a mut dyn Membership,
    hooks: &'a mut dyn Hooks,
    machine: Machine,
    /// The world before this repair; a newcomer has none.
    old: Option<&'a World>,
    /// This process's rank in the world before this repair (a newcomer's: in the world it joined;
    /// a spare's: the seat it was given, `None` before).
    slot: Option<usize>,
    /// Ranks of the world before this repair.
    ranks: usize,
    /// The last roll call.
    roll: Roll,
    /// Slots that nobody held then.
    lost: Vec<usize>,
    /// What everybody became after it, where spares were among them.
    seats: Vec<Option<usize>>,
    /// What was done, where that is not the machine's rung: spares are used on every one.
    done_by: Option<Rung>,
    holdings: Holdings,
    /// Too few nodes are left.
    outvoted: bool,
    deadline: Duration,
    ranks_min: usize,
    seconds: Phases,
}

impl<'a> Driver<'a> {
    fn new(
        comm: &'a mut dyn Membership,
        old: Option<&'a World>,
        policy: &Policy,
        hooks: &'a mut dyn Hooks,
        machine: Machine,
    ) -> Self {
        let deadline = hooks.now().saturating_add(policy.limit);
        let slot = (!comm.waits()).then(|| comm.rank());
        let ranks = comm.ranks();
        let seconds = ["revoke_shrink", "spawn", "merge", "agree", "restore"]
            .map(|phase| (phase.to_owned(), 0.0))
            .into();
        Self {
            comm,
            hooks,
            machine,
            old,
            slot,
            ranks,
            roll: Roll::default(),
            lost: Vec::new(),
            seats: Vec::new(),
            done_by: None,
            holdings: Holdings::default(),
            outvoted: false,
            deadline,
            ranks_min: policy.ranks_min,
            seconds,
        }
    }

    fn run(mut self) -> Result<Ended, GaveUp> {
        self.comm.wait_by(Waiting::Sharing);
        let ended = self.go_through();
        self.comm.wait_by(Waiting::Spinning);
        ended
    }

    /// The loop ends because the machine does: tries, rungs and roll calls are bounded.
    fn go_through(&mut self) -> Result<Ended, GaveUp> {
        let mut next_world = None;
        loop {
            let event = match self.machine.action() {
                Action::Revoke => self.revoke_and_count(),
                Action::Repair(repair) => self.repair(repair),
                Action::Agree if self.slot.is_none() => {
                    return Ok(Ended::Waits(self.neighbours(), self.first_of_the_waiting()));
                }
                Action::Agree => self.take_census(),
                Action::Restore => match self.restore() {
                    Ok(agreed) => {
                        next_world = Some(agreed);
                        Event::Done
                    }
                    Err(event) => event,
                },
                Action::Resumed => break,
                Action::GaveUp(reason) => {
                    // Those who have not seen it yet must not wait for this rank.
                    self.comm.revoke();
                    let living = self.roll.answers().iter().map(|a| (a.pid, a.host.clone()));
                    self.hooks.gave_up(living.collect());
                    return Err(match self.outvoted {
                        true => GaveUp::Minority(reason),
                        false => GaveUp::Ladder(self.with_names(reason)),
                    });
                }
            };
            self.advance(event);
        }
        let NextWorld { world, lost, rung } = next_world.expect("resumed only after a restore");
        let seconds = std::mem::take(&mut self.seconds);
        let repaired = Repaired { rung, lost, step: self.holdings.step, seconds };
        Ok(Ended::Resumed(world, repaired))
    }

    /// Tells the machine, and a person when the machine had to go back or down.
    fn advance(&mut self, event: Event) {
        let reason = match &event {
            Event::Failed(why) | Event::Unavailable(why) | Event::Refused(why) => Some(why.clone()),
            Event::Counted(_) | Event::Done | Event::Hopeless(_) => None,
        };
        let before = self.machine.rung();
        self.machine.on(event);
        let (Some(reason), Some(from)) = (reason, before) else { return };
        match self.machine.rung() {
            Some(to) if to != from => self.hooks.note(Note::RungDown { from, to, reason }),
            Some(rung) => self.hooks.note(Note::Retry { rung, reason }),
            None => {}
        }
    }

    /// `Action::Revoke`: the world ends, the living find each other.
    fn revoke_and_count(&mut self) -> Event {
        let begun = self.hooks.now();
        self.hooks.reached(Phase::InRevoke);
        self.comm.revoke();
        self.hooks.reached(Phase::InShrink);
        let event = match self.shrink() {
            Ok(()) => self.call_roll(),
            Err(reason) => Event::Hopeless(reason),
        };
        self.add("revoke_shrink", begun);
        event
    }

    fn shrink(&mut self) -> Result<(), String> {
        let mut last = None;
        for _ in 0..SHRINKS_MAX {
            match self.comm.shrink() {
                Ok(()) => return Ok(()),
                Err(error) if error.starts_recovery() => last = Some(error),
                Err(error) => return Err(error.to_string()),
            }
        }
        let last = last.map_or_else(String::new, |error| format!(": {error}"));
        Err(format!("the world could not be shrunk in {SHRINKS_MAX} tries{last}"))
    }

    fn call_roll(&mut self) -> Event {
        let (pid, host) = self.hooks.identity();
        let answer = Answer {
            slot: self.slot,
            ranks: self.ranks,
            step: self.hooks.committed_step(),
            position: self.machine.position(),
            overdue: self.hooks.now() > self.deadline,
            born: self.comm.born(),
            recruits: self.comm.recruits(),
            nodes: self.nodes_agreed(),
            pid,
            host,
        };
        let gathered = self.comm.all_gather_u64(&answer.to_words()).map_err(Setback::from);
        let words = match self.agree(gathered) {
            Ok(words) => words,
            Err(event) => return event,
        };
        let roll = match Roll::read(&words, self.comm.size()) {
            Ok(roll) => roll,
            Err(reason) => return Event::Hopeless(reason),
        };
        let (overdue, position, source) = (roll.overdue(), roll.position(), roll.source());
        (self.lost, self.seats) = (roll.lost(), roll.slots());
        self.roll = roll;
        let Some((_, step)) = source else {
            return Event::Hopeless("all state was lost".into());
        };
        self.ranks = self.roll.ranks();
        self.hooks.counted(step);
        if let Some(why) = self.roll.quorum_missed(self.hooks.home().as_deref()) {
            self.outvoted = true;
            return Event::Hopeless(why);
        }
        if overdue {
            return Event::Hopeless("the repair took longer than its time limit".into());
        }
        Event::Counted(position)
    }

    /// Nodes of the world before this repair, but for ranks that leave it on purpose; 0 where that
    /// world is not known.
    fn nodes_agreed(&self) -> usize {
        let counts = |m: &&Member| m.role == Role::Spare || self.hooks.stays(m.rank as usize);
        let members = self.old.iter().flat_map(|world| world.members.iter().filter(counts));
        members.map(|member| member.host.as_str()).collect::<BTreeSet<_>>().len()
    }

    fn respawn(&mut self, open: Vec<usize>) -> Event {
        let Some(my_rank) = self.slot else {
            return Event::Hopeless("a spare waits although ranks are open (a bug)".into());
        };
        let request = SpawnRequest {
            my_rank,
            lost: open,
            ranks: self.ranks,
            arguments: self.hooks.arguments(),
        };
        let begun = self.hooks.now();
        let mut merging = None;
        let (comm, hooks) = (&mut *self.comm, &mut *self.hooks);
        let mut reached = |phase: Phase| {
            if phase == Phase::InMerge {
                merging = Some(hooks.now());
            }
            hooks.reached(phase);
        };
        let outcome = comm.spawn_and_merge(&request, &mut reached);
        let spawned = merging.unwrap_or_else(|| self.hooks.now());
        self.add_span("spawn", begun, spawned);
        self.add("merge", spawned);
        match outcome {
            Ok(()) => Event::Done,
            Err(SpawnError::Refused(reason)) => Event::Refused(reason),
            Err(SpawnError::Failed(reason)) => Event::Failed(reason),
        }
    }

    /// `Action::Agree`: every pair is connected while all live, and all know who is here.
    fn take_census(&mut self) -> Event {
        let begun = self.hooks.now();
        let (pid, host) = self.hooks.identity();
        let resident = Resident {
            slot: self.slot.unwrap_or_default(),
            step: self.hooks.committed_step(),
            generation: self.old.map_or(0, |world| world.generation),
            pid,
            host,
        };
        let gathered = self
            .comm
            .warm()
            .and_then(|()| self.comm.all_gather_u64(&resident.to_words()))
            .map_err(Setback::from);
        let agreed = self.agree(gathered);
        self.add("agree", begun);
        let holdings = agreed
            .and_then(|words| Holdings::read(&words, self.comm.size()).map_err(Event::Hopeless));
        match holdings {
            Ok(holdings) => {
                self.holdings = holdings;
                Event::Done
            }
            Err(event) => event,
        }
    }

    /// `Action::Restore`: the world and the state go to who lacks them; adopted after agreement.
    fn restore(&mut self) -> Result<NextWorld, Event> {
        let begun = self.hooks.now();
        self.hooks.restoring(self.comm.rank(), self.holdings.source, self.holdings.step);
        self.hooks.reached(Phase::InRestore);
        let shipped = self.ship();
        let agreed = self.agree(shipped);
        if let Ok(next_world) = &agreed {
            self.hooks.adopt(&next_world.world);
        }
        self.add("restore", begun);
        agreed
    }

    fn ship(&mut self) -> Result<NextWorld, Setback> {
        let Holdings { source, step, .. } = self.holdings;
        let next_world = self.share_next_world(source)?;
        if !self.holdings.receivers.is_empty() {
            let receivers = self.holdings.receivers.clone();
            // It may move much: no pauses between the pieces.
            self.comm.wait_by(Waiting::Spinning);
            let moved = self.hooks.transfer(&mut *self.comm, source, &receivers, step);
            self.comm.wait_by(Waiting::Sharing);
            moved?;
        }
        Ok(next_world)
    }

    /// The source says what the world is now; two broadcasts, since all must know the length.
    fn share_next_world(&mut self, source: usize) -> Result<NextWorld, Setback> {
        let mut body = Vec::new();
        if self.comm.rank() == source {
            let next_world = self.next_world().map_err(Setback::Hopeless)?;
            body = serde_json::to_vec(&next_world)
                .map_err(|error| Setback::Hopeless(format!("world table: {error}")))?;
        }
        let mut length = (body.len() as u64).to_le_bytes();
        self.comm.broadcast(&mut length, source)?;
        let length = u64::from_le_bytes(length);
        if length > DECREE_BYTES_MAX {
            return Err(Setback::Hopeless(format!("a world table of {length} bytes arrived")));
        }
        body.resize(length as usize, 0);
        self.comm.broadcast(&mut body, source)?;
        serde_json::from_slice(&body)
            .map_err(|error| Setback::Hopeless(format!("a torn world table arrived: {error}")))
    }

    /// The repaired world, from the old one and the holdings.
    fn next_world(&self) -> Result<NextWorld, String> {
        let old = self.old.ok_or("the source of the state has no world")?;
        let rung = self.done_by.or(self.machine.rung()).ok_or("a repair without a rung")?;
        let places = self.roll.answers().iter().zip(&self.seats);
        let waiting: Vec<&Answer> =
            places.filter(|(_, seat)| seat.is_none()).map(|(answer, _)| answer).collect();
        let (world, lost) = next_world(old, &self.holdings, &waiting);
        Ok(NextWorld { world, lost, rung })
    }

    /// Ends a phase: whoever failed revokes first, then all learn whether all succeeded.
    fn agree<T>(&mut self, mine: Result<T, Setback>) -> Result<T, Event> {
        if mine.is_err() {
            self.comm.revoke();
        }
        let agreement = self.comm.agree(u32::from(mine.is_ok()));
        match (mine, agreement.outcome) {
            (_, Err(error)) if !error.starts_recovery() => Err(Event::Hopeless(error.to_string())),
            (Err(Setback::Hopeless(reason)), _) => Err(Event::Hopeless(reason)),
            (Err(Setback::Comm(error)), _) | (Ok(_), Err(error)) => {
                Err(Event::Failed(error.to_string()))
            }
            (Ok(_), Ok(())) if agreement.flags & 1 == 0 => {
                Err(Event::Failed("another rank met a failure".into()))
            }
            (Ok(value), Ok(())) => Ok(value),
        }
    }

    /// Names the members that the reason leaves out.
    fn with_names(&self, reason: String) -> String {
        let Some(world) = self.old else { return reason };
        let name = |rank: &usize| {
            let member = world.member_at(*rank)?;
            Some(format!("rank {rank} (member {}, {})", member.member, member.host))
        };
        let names: Vec<String> = self.lost.iter().filter_map(name).collect();
        if names.is_empty() { reason } else { format!("{reason}; lost {}", names.join(", ")) }
    }

    fn add(&mut self, phase: &str, begun: Duration) {
        let now = self.hooks.now();
        self.add_span(phase, begun, now);
    }

    fn add_span(&mut self, phase: &str, begun: Duration, ended: Duration) {
        *self.seconds.entry(phase.to_owned()).or_insert(0.0) +=
            ended.saturating_sub(begun).as_secs_f64();
    }
}

#[cfg(test)]
#[path = "driver_tests.rs"]
mod tests;
