//! The part of a repair that everybody who lives takes part in, waiting spares included: who gets
//! which seat, and the world that comes of it.

use crate::cluster::recovery::machine::{Event, Repair};
use crate::cluster::recovery::seats::{self, Candidate};
use crate::config::{Phase, Rung};

use super::{Driver, Setback};

impl Driver<'_> {
    /// `Action::Repair`. With nobody lost (a false alarm, or a newcomer of the last try filled
    /// the rank) the world already has its size. Spares are used whatever the rung is.
    pub(super) fn repair(&mut self, repair: Repair) -> Event {
        if self.lost.is_empty() && self.roll.is_a_world() {
            return Event::Done;
        }
        if let Some(failed) = self.admit_recruits() {
            return failed;
        }
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
            Repair::Drop if self.ranks - open.len() < self.ranks_min => {
                let (left, least) = (self.ranks - open.len(), self.ranks_min);
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

    /// A spare that has a seat in the world to come is one of those who bring it about.
    fn sit_down(&mut self) {
        let seat = self.seats[self.comm.rank()];
        if let (None, Some(rank)) = (self.slot, seat) {
            self.hooks.promoted(rank);
        }
        self.slot = seat;
    }

    /// New spares that wait come in where nobody is lost: a repair is not held up by them. They
    /// answer a roll call of their own. `None` when all is well.
    fn admit_recruits(&mut self) -> Option<Event> {
        let recruiter = self.roll.recruiter().filter(|_| self.lost.is_empty())?;
        let begun = self.hooks.now();
        let admitted = self.comm.admit(recruiter);
        self.add("merge", begun);
        match admitted {
            Ok(()) => match self.revoke_and_count() {
                Event::Counted(_) => None,
                failed => Some(failed),
            },
            Err(error) if error.starts_recovery() => Some(Event::Failed(error.to_string())),
            Err(error) => Some(Event::Hopeless(error.to_string())),
        }
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
            self.hooks.promoted(rank);
        }
        self.hooks.reached(Phase::InMerge);
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
        let (_, host) = self.hooks.identity();
        let mut pids = vec![0; self.seats.iter().flatten().map(|rank| rank + 1).max().unwrap_or(0)];
        for (answer, seat) in self.roll.answers().iter().zip(&self.seats) {
            if let Some(rank) = seat.filter(|_| answer.host == host) {
                pids[rank] = answer.pid;
            }
        }
        pids
    }

    /// For the first spare: how many wait.
    pub(super) fn first_of_the_waiting(&self) -> Option<usize> {
        let waits = |place: &usize| self.seats[*place].is_none();
        let first = (0..self.seats.len()).find(waits)?;
        let all = (0..self.seats.len()).filter(waits).count();
        (first == self.comm.rank()).then_some(all)
    }
}
