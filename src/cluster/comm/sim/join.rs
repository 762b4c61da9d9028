//! Replacements: how they are started and how they and the survivors become one world.

use std::collections::BTreeSet;

use super::super::{SpawnError, SpawnRequest};
use super::state::{
    Birth, BoardState, Call, CommRank, Group, Joining, Match, Outcome, Reply, Status,
};

impl BoardState {
    /// Starts what the survivors in this instance asked for. `Err` when their requests do not
    /// fill the world exactly.
    pub(super) fn start_replacements(&mut self, key: Match) -> Result<Outcome, String> {
        let group = self.groups[key.0].processes.clone();
        let requests: Vec<(usize, SpawnRequest)> = self.instances[&key]
            .arrived
            .iter()
            .filter_map(|(&rank, call)| match call {
                Call::Spawn(request) => Some((group[rank], request.clone())),
                _ => None,
            })
            .collect();
        let Some((_, first)) = requests.first() else {
            return Err("a spawn without a request".into());
        };
        let first = first.clone();
        let mut seats: Vec<Option<usize>> = vec![None; first.ranks];
        for (process, request) in &requests {
            match seats.get_mut(request.my_rank) {
                Some(seat @ None) => *seat = Some(*process),
                _ => return Err(format!("two survivors or none fit rank {}", request.my_rank)),
            }
        }
        let empty: Vec<usize> = (0..first.ranks).filter(|&seat| seats[seat].is_none()).collect();
        if empty != first.lost {
            return Err(format!("ranks {empty:?} are empty, {:?} were asked for", first.lost));
        }
        let number = u32::try_from(empty.len()).unwrap_or(u32::MAX);
        if self.spawned.saturating_add(number) > self.options.spawns_max {
            return Ok(refused("all slots are taken"));
        }
        if self.chance(self.options.refusal_chance) {
            return Ok(refused("the draw said no"));
        }
        self.spawned += number;
        let joining = self.joinings.len();
        let mut newcomers = BTreeSet::new();
        for &rank in &empty {
            let arguments = first.arguments.clone();
            let birth = Birth { joining, rank, ranks: first.ranks, arguments };
            let nowhere = CommRank { comm: self.nowhere(), rank: 0, size: 1 };
            let process = self.give_birth(nowhere, Some(birth));
            seats[rank] = Some(process);
            newcomers.insert(process);
        }
        let processes = seats.into_iter().flatten().collect();
        let arrived = BTreeSet::new();
        self.joinings.push(Joining { processes, newcomers, arrived, verdict: None });
        Ok(Outcome::Joining(joining))
    }

    /// A communicator of its own for a newcomer that has not joined yet.
    fn nowhere(&mut self) -> usize {
        self.groups.push(Group { processes: vec![self.processes.len()], ..Group::default() });
        self.groups.len() - 1
    }

    /// The merge of survivors and replacements: uniform, as the real one agrees inside.
    pub(super) fn merge(&mut self, process: usize, joining: usize) -> Option<Reply> {
        if self.joinings[joining].verdict.is_none() {
            let Joining { processes, arrived, .. } = &self.joinings[joining];
            let alive = |p: &usize| self.alive(*p);
            if !processes.iter().all(|p| arrived.contains(p) || !alive(p)) {
                return None;
            }
            let processes = processes.clone();
            let absent = processes.iter().any(|p| !alive(p) && !arrived.contains(p));
            let fallen = processes.iter().any(|p| !alive(p));
            let verdict = if absent || (fallen && self.chance(0.5)) {
                Err("a process died while joining".to_string())
            } else {
                self.groups.push(Group { processes, ..Group::default() });
                Ok(self.groups.len() - 1)
            };
            self.joinings[joining].verdict = Some(verdict);
        }
        if self.held(process, 0.125) {
            return None;
        }
        match self.joinings[joining].verdict.clone()? {
            Ok(comm) => Some(Reply::Moved(self.place_in(comm, process))),
            Err(_) if self.joinings[joining].newcomers.contains(&process) => {
                self.record(process, "is sent away");
                self.processes[process].status = Status::Dead;
                Some(Reply::Die)
            }
            Err(text) => {
                let comm = self.processes[process].place.comm;
                self.groups[comm].informed.insert(process);
                Some(Reply::NoSpawn(SpawnError::Failed(text)))
            }
        }
    }
}

fn refused(why: &str) -> Outcome {
    Outcome::NoSpawn(SpawnError::Refused(why.into()))
}
