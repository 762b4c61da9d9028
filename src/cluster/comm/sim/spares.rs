//! Spares: how a gathering is seated, and how those who wait are called. Seating is uniform, as
//! the real one agrees inside; a death in it makes it fail, or leaves a dead process in a seat.

use super::super::Call as Called;
use super::super::CommError;
use super::board::Board;
use super::state::{BoardState, Call, CommRank, Group, Match, Outcome, Reply, Status};

impl BoardState {
    /// The communicators that a process revokes: its own, and the pool around it.
    pub(super) fn communicators(&self, process: usize) -> impl Iterator<Item = usize> + use<> {
        let process = &self.processes[process];
        std::iter::once(process.place.comm).chain(process.pool)
    }

    /// A rank steps from its world into the pool: what it calls next meets the spares there.
    fn gather(&mut self, process: usize) -> Option<CommRank> {
        let pool = self.processes[process].pool.take()?;
        let place = self.place_in(pool, process);
        self.processes[process].place = place;
        self.processes[process].calls.clear();
        Some(place)
    }

    pub(super) fn seat(&mut self, process: usize, key: Match) -> Option<Reply> {
        if self.verdict(key).is_none() {
            if self.groups[key.0].revoked {
                self.decide(key, Outcome::NotSeated);
            } else if !self.all_live_came(key) {
                return None;
            } else {
                let (came, absent) = self.gone(key);
                let fails = !absent.is_empty() || (!came.is_empty() && self.chance(0.5));
                let verdict = if fails { Outcome::NotSeated } else { self.make_world(key) };
                self.decide(key, verdict);
            }
        }
        if self.held(process, 0.125) {
            return None;
        }
        match self.verdict(key)? {
            Outcome::Seated(world, pool) => {
                Some(match self.groups[world].processes.contains(&process) {
                    true => Reply::Seated(self.place_in(world, process), pool),
                    false => Reply::Seated(self.place_in(pool?, process), None),
                })
            }
            _ => {
                self.groups[key.0].informed.insert(process);
                Some(Reply::Error(CommError::ProcFailed))
            }
        }
    }

    fn make_world(&mut self, key: Match) -> Outcome {
        let gathering = self.groups[key.0].processes.clone();
        let seats = self.instances[&key].arrived.values().find_map(|call| match call {
            Call::Seat(seats) => Some(seats.clone()),
            _ => None,
        });
        let seats = seats.unwrap_or_default();
        let mut seated: Vec<(usize, usize)> =
            seats.iter().zip(&gathering).filter_map(|(seat, p)| Some(((*seat)?, *p))).collect();
        seated.sort_unstable();
        let ranks: Vec<usize> = seated.into_iter().map(|(_, process)| process).collect();
        self.groups.push(Group { processes: ranks.clone(), ..Group::default() });
        let world = self.groups.len() - 1;
        let somebody_waits = ranks.len() < gathering.len();
        let pool = somebody_waits.then(|| {
            self.groups.push(Group { processes: gathering, ranks, ..Group::default() });
            self.groups.len() - 1
        });
        Outcome::Seated(world, pool)
    }

    /// What a waiting spare is told, sooner or later.
    pub(super) fn call_spare(&mut self, process: usize) -> Option<Reply> {
        let pool = self.processes[process].place.comm;
        let ranks = self.groups[pool].ranks.clone();
        let left = |p: &usize| self.processes[*p].status == Status::Left;
        let call = if self.groups[pool].revoked {
            Called::Gather
        } else if ranks.iter().any(|p| self.alive(*p)) {
            return None;
        } else if ranks.iter().any(left) {
            Called::Dismissed
        } else {
            Called::Abandoned
        };
        (!self.held(process, 0.25)).then_some(Reply::Called(call))
    }
}

impl Board {
    /// See `BoardState::gather`.
    pub(super) fn gather(&self, process: usize) -> Option<CommRank> {
        self.lock().gather(process)
    }

    /// For one collective of everybody a rank stands in the pool; `back` undoes it.
    pub(super) fn step_into_pool(&self, process: usize) -> Option<Back> {
        let mut state = self.lock();
        let pool = state.processes[process].pool?;
        let place = state.place_in(pool, process);
        let process = &mut state.processes[process];
        let calls = std::mem::take(&mut process.calls);
        let back = Back { place: process.place, calls };
        process.place = place;
        Some(back)
    }

    /// See `step_into_pool`.
    pub(super) fn step_back(&self, process: usize, back: Back) {
        let mut state = self.lock();
        let process = &mut state.processes[process];
        (process.place, process.calls) = (back.place, back.calls);
    }

    /// How many ranks the pool has in which this process waits.
    pub(super) fn waits_for(&self, process: usize) -> Option<usize> {
        let state = self.lock();
        let group = &state.groups[state.processes[process].place.comm];
        let waits = !group.ranks.is_empty() && !group.ranks.contains(&process);
        waits.then_some(group.ranks.len())
    }

    /// Spares that are dead, by their order in the pool.
    pub(super) fn dead_spares(&self, process: usize) -> Vec<usize> {
        let state = self.lock();
        let Some(pool) = state.processes[process].pool else { return Vec::new() };
        let Group { processes, ranks, .. } = &state.groups[pool];
        let spares = processes.iter().filter(|p| !ranks.contains(p)).enumerate();
        spares.filter(|(_, p)| !state.alive(**p)).map(|(index, _)| index).collect()
    }
}

/// Where a rank stood before it stepped into the pool.
#[derive(Debug)]
pub(super) struct Back {
    place: CommRank,
    calls: std::collections::BTreeMap<super::state::Lane, u64>,
}
