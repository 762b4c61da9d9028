//! What all who live do together in a repair, waiting spares included: they shrink and agree, get
//! their seats, and start whom they miss.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::cluster::comm::{CommError, Membership, SpawnError, SpawnRequest};
use crate::cluster::recovery::machine::{Event, Repair};
use crate::cluster::recovery::rollcall::{Answer, Resident, Roll};
use crate::cluster::recovery::seats::{self, Candidate};
use crate::cluster::recovery::{Hooks, Policy, Remark};
use crate::cluster::world::{Member, Role, World};
use crate::config::{Point, Rung};
use crate::observe::event::Phases;

/// Calls of shrink before this rank leaves: each failure has met a fresh death.
const SHRINKS_MAX: u32 = 10;

/// Why a phase did not come to its end.
pub(super) enum Setback {
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

/// All who live, as this process knows them.
pub(super) struct Gathering<'a> {
    pub comm: &'a mut dyn Membership,
    pub hooks: &'a mut dyn Hooks,
    pub policy: &'a Policy,
    /// The world before this repair; a newcomer has none.
    pub old: Option<&'a World>,
    /// This process's rank in the world before this repair (a newcomer's: in the world it joined;
    /// a spare's: the seat it was given, `None` before).
    pub slot: Option<usize>,
    /// Ranks of the world before this repair.
    pub ranks: usize,
    /// The last roll call.
    pub roll: Roll,
    /// Slots that nobody held then.
    pub lost: Vec<usize>,
    /// What everybody became after it, where spares were among them.
    pub seats: Vec<Option<usize>>,
    /// What was done, where that is not the machine's rung: spares are used on every one.
    pub done_by: Option<Rung>,
    pub seconds: Phases,
}

impl<'a> Gathering<'a> {
    /// Before the first roll call.
    pub(super) fn of(
        comm: &'a mut dyn Membership,
        old: Option<&'a World>,
        policy: &'a Policy,
        hooks: &'a mut dyn Hooks,
    ) -> Self {
        let slot = (!comm.waits()).then(|| comm.rank());
        let ranks = comm.ranks();
        let seconds = ["revoke_shrink", "spawn", "merge", "agree", "restore"]
            .map(|phase| (phase.to_owned(), 0.0))
            .into();
        Self {
            comm,
            hooks,
            policy,
            old,
            slot,
            ranks,
            roll: Roll::default(),
            lost: Vec::new(),
            seats: Vec::new(),
            done_by: None,
            seconds,
        }
    }

    /// What is left of the world, and whoever waits beside it.
    pub(super) fn shrink(&mut self) -> Result<(), String> {
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

    /// Nodes of the world before this repair, but for ranks that leave it on purpose; 0 where that
    /// world is not known.
    pub(super) fn nodes_agreed(&self) -> usize {
        let stays = |m: &Member| self.policy.leave_from.is_none_or(|from| (m.rank as usize) < from);
        let counts = |m: &&Member| m.role == Role::Spare || stays(m);
        let members = self.old.iter().flat_map(|world| world.members.iter().filter(counts));
        members.map(|member| member.host.as_str()).collect::<BTreeSet<_>>().len()
    }

    /// Whether nobody is lost and nobody else is here.
    pub(super) fn is_whole(&self) -> bool {
        self.lost.is_empty() && self.roll.is_a_world()
    }

    /// Opens every connection, then gathers what everybody is and holds.
    pub(super) fn tell_holdings(&mut self) -> Result<Vec<u64>, CommError> {
        self.comm.warm()?;
        let set = self.hooks.set()?;
        let who = self.hooks.who();
        let resident = Resident {
            slot: self.slot.unwrap_or_default(),
            step: self.hooks.committed_step(),
            generation: self.old.map_or(0, |world| world.generation),
            set,
            pid: who.pid,
            host: who.host.clone(),
        };
        self.comm.all_gather_u64(&resident.to_words())
    }

    /// The world gets its new size. Spares are used whatever the rung is.
    pub(super) fn repair(&mut self, repair: Repair) -> Event {
        if self.roll.has_spares() {
            match self.share_seats() {
                Ok(seats) => self.seats = seats,
                Err(event) => return event,
            }
        }
        let open = seats::open(&self.seats, self.ranks);
        match repair {
            Repair::Promote if open.len() == self.lost.len() && !open.is_empty() => {
                Event::Unavailable("no spare is waiting".into())
            }
            Repair::Promote if !open.is_empty() => {
                let (spares, lost) = (self.lost.len() - open.len(), self.lost.len());
                Event::Unavailable(format!("{spares} spares for {lost} lost ranks"))
            }
            Repair::Promote | Repair::Respawn if open.is_empty() => {
                self.done_by = (!self.lost.is_empty()).then_some(Rung::Spare);
                self.take_seats(&self.seats.clone())
            }
            Repair::Promote | Repair::Respawn => {
                self.done_by = None;
                self.sit_down();
                self.respawn(open)
            }
            Repair::Drop if self.ranks - open.len() < self.policy.ranks_min => {
                let (left, least) = (self.ranks - open.len(), self.policy.ranks_min);
                Event::Unavailable(format!("{left} ranks are left, recovery.min_ranks = {least}"))
            }
            Repair::Drop => {
                self.done_by = None;
                let closed = seats::close_ranks(&self.seats);
                let in_order = closed.iter().enumerate().all(|(place, s)| *s == Some(place));
                if in_order {
                    self.sit_down();
                    return Event::Done;
                }
                self.take_seats(&closed)
            }
        }
    }

    fn respawn(&mut self, open: Vec<usize>) -> Event {
        let Some(my_rank) = self.slot else {
            return Event::Hopeless("a spare waits although ranks are open (a bug)".into());
        };
        let request = SpawnRequest {
            my_rank,
            lost: open,
            ranks: self.ranks,
            arguments: self.hooks.who().arguments.clone(),
        };
        let begun = self.hooks.now();
        let mut merging = None;
        let (comm, hooks) = (&mut *self.comm, &mut *self.hooks);
        let mut reached = |point: Point| {
            if point == Point::InMerge {
                merging = Some(hooks.now());
            }
            hooks.tell(Remark::Reached(point));
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

    /// A spare that has a seat in the world to come is one of those who bring it about.
    fn sit_down(&mut self) {
        let seat = self.seats[self.comm.rank()];
        if let (None, Some(rank)) = (self.slot, seat) {
            self.hooks.tell(Remark::Promoted(rank));
        }
        self.slot = seat;
    }

    /// Who takes which seat, as the first process that knows the old world says.
    fn share_seats(&mut self) -> Result<Vec<Option<usize>>, Event> {
        const WAITS: u64 = u64::MAX;
        let (source, _) = self.roll.source().expect("counted only with state");
        let mut body = vec![0; self.comm.size() * size_of::<u64>()];
        if self.comm.rank() == source {
            let words = self.choose_seats().into_iter().map(|s| s.map_or(WAITS, |s| s as u64));
            body = words.flat_map(u64::to_le_bytes).collect();
        }
        let shared = self.comm.broadcast(&mut body, source).map_err(Setback::from);
        self.agree(shared)?;
        let words = body.chunks_exact(size_of::<u64>());
        let words = words.map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
        Ok(words.map(|word| (word != WAITS).then_some(word as usize)).collect())
    }

    fn choose_seats(&self) -> Vec<Option<usize>> {
        let answers = self.roll.answers();
        let candidates: Vec<Candidate<'_>> = answers
            .iter()
            .map(|a| Candidate { slot: a.slot, host: &a.host, born: a.born })
            .collect();
        let home = |rank: usize| self.old?.member_at(rank).map(|m| m.host.as_str());
        seats::choose(&candidates, self.ranks, home)
    }

    /// The gathering becomes a world, and a pool for those without a seat. What was `seats` before
    /// gaps were closed is what the roll call asks for.
    fn take_seats(&mut self, seats: &[Option<usize>]) -> Event {
        let begun = self.hooks.now();
        let place = self.comm.rank();
        if let (None, Some(rank)) = (self.slot, self.seats[place]) {
            self.hooks.tell(Remark::Promoted(rank));
        }
        self.hooks.tell(Remark::Reached(Point::InMerge));
        let outcome = self.comm.seat(seats);
        self.add("merge", begun);
        match outcome {
            Ok(()) => {
                self.slot = self.seats[place];
                Event::Done
            }
            Err(error) if error.starts_recovery() => Event::Failed(error.to_string()),
            Err(error) => Event::Hopeless(error.to_string()),
        }
    }

    /// Pids of the ranks on this machine, by rank; 0 for the others.
    pub(super) fn neighbours(&self) -> Vec<u32> {
        let host = &self.hooks.who().host;
        let mut pids = vec![0; self.seats.iter().flatten().map(|rank| rank + 1).max().unwrap_or(0)];
        for (answer, seat) in self.roll.answers().iter().zip(&self.seats) {
            if let Some(rank) = seat.filter(|_| answer.host == *host) {
                pids[rank] = answer.pid;
            }
        }
        pids
    }

    /// Those without a seat, in the gathering's order.
    pub(super) fn waiting(&self) -> Vec<&Answer> {
        let places = self.roll.answers().iter().zip(&self.seats);
        places.filter(|(_, seat)| seat.is_none()).map(|(answer, _)| answer).collect()
    }

    /// Ends a phase: whoever failed revokes first, then all learn whether all succeeded.
    pub(super) fn agree<T>(&mut self, mine: Result<T, Setback>) -> Result<T, Event> {
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
    pub(super) fn with_names(&self, reason: String) -> String {
        let Some(world) = self.old else { return reason };
        let name = |rank: &usize| {
            let member = world.member_at(*rank)?;
            Some(format!("rank {rank} (member {}, {})", member.member, member.host))
        };
        let names: Vec<String> = self.lost.iter().filter_map(name).collect();
        if names.is_empty() { reason } else { format!("{reason}; lost {}", names.join(", ")) }
    }

    /// The phase took from then until now.
    pub(super) fn add(&mut self, phase: &str, begun: Duration) {
        let now = self.hooks.now();
        self.add_span(phase, begun, now);
    }

    /// The phase took so long, beside what it took before.
    pub(super) fn add_span(&mut self, phase: &str, begun: Duration, ended: Duration) {
        *self.seconds.entry(phase.to_owned()).or_insert(0.0) +=
            ended.saturating_sub(begun).as_secs_f64();
    }
}
