//! What the board decides when every live process is parked: who dies, who hears of it, who is
//! let go with what. Decisions are drawn in process order. The rules are ULFM's (MPI Forum,
//! "User Level Failure Mitigation"; measured in Open MPI 5.0.11): one failed call may succeed on
//! some ranks and fail on others; the news of a failure is owed to one rank only, which has to
//! revoke; agree and shrink are uniform over the survivors and work on revoked communicators.

use std::sync::Arc;

use super::super::{Agreement, CommError, SpawnError};
use super::options::{Death, When};
use super::reduce::combine;
use super::state::{
    BoardState, Call, CommRank, Group, Instance, Kind, Match, Outcome, Payload, Reply, Status,
};

/// Settles after a death in which further deaths are drawn with `cascade_chance`.
const CASCADE_SETTLES: u64 = 25;

/// How a parked process dies.
enum Manner {
    /// Before the call reached anybody.
    Absent,
    /// After others may have got its part.
    Within,
    /// After it alone saw the call succeed; dead at its next call.
    Ahead,
}

impl BoardState {
    /// One decision over all parked processes.
    pub(super) fn settle(&mut self) {
        self.settles += 1;
        if self.settles > self.options.settles_max {
            return self.halt(format!("not done after {} decisions", self.options.settles_max));
        }
        self.advance_clock();
        self.held_back = false;
        if self.options.crash_at.is_some_and(|at| self.settles >= at) {
            return self.crash();
        }
        if self.planned_deaths() || self.draw_deaths() {
            return;
        }
        for process in self.parked() {
            if let Some(reply) = self.outcome(process) {
                self.release(process, reply);
            }
        }
        if self.runnable.is_empty() && !self.held_back {
            let places: Vec<String> = self.parked().iter().map(|&p| self.whereabouts(p)).collect();
            self.halt(format!("nobody can go on: {}", places.join("; ")));
        }
        self.mix_turns();
    }

    fn parked(&self) -> Vec<usize> {
        (0..self.processes.len()).filter(|&p| self.processes[p].parked.is_some()).collect()
    }

    fn whereabouts(&self, process: usize) -> String {
        let CommRank { comm, rank, .. } = self.processes[process].place;
        let call = self.processes[process].parked.as_ref().map_or("nothing", |p| p.call.name());
        let revoked = if self.groups[comm].revoked { " (revoked)" } else { "" };
        format!("process {process}, rank {rank} of communicator {comm}{revoked}, in {call}")
    }

    /// Turns are taken in a drawn order, so that storage sees every interleaving.
    fn mix_turns(&mut self) {
        for last in (1..self.runnable.len()).rev() {
            let other = self.draws.below(last as u64 + 1) as usize;
            self.runnable.swap(last, other);
        }
    }

    /// Everybody dies: the node's power, or `kill -9` on all.
    fn crash(&mut self) {
        self.options.crash_at = None;
        for process in self.parked() {
            self.deaths += u32::from(self.processes[process].status == Status::Live);
            let manner = if self.chance(0.5) { Manner::Absent } else { Manner::Within };
            self.strike_down(process, &manner);
        }
    }

    /// Deaths that are due. Whether somebody was let go ahead of the others.
    fn planned_deaths(&mut self) -> bool {
        while let Some(&Death { when, draw }) = self.options.deaths.first() {
            let due = match when {
                When::At(settle) => self.settles >= settle,
                When::After(delay) => self.last_death.is_none_or(|at| self.settles >= at + delay),
            };
            let living = self.processes.iter().filter(|p| p.status == Status::Live).count();
            let parked = self.parked();
            if !due || parked.is_empty() {
                return false;
            }
            self.options.deaths.remove(0);
            if living < 2 {
                continue;
            }
            self.deaths += 1;
            let victim = parked[(draw % parked.len() as u64) as usize];
            let manner = match (draw >> 32) % 3 {
                0 => Manner::Absent,
                1 => Manner::Within,
                _ => Manner::Ahead,
            };
            if self.strike_down(victim, &manner) {
                return true;
            }
        }
        false
    }

    /// Whether somebody was let go ahead of the others, who then have to wait.
    fn draw_deaths(&mut self) -> bool {
        for process in self.parked() {
            let living = self.processes.iter().filter(|p| p.status == Status::Live).count();
            if living < 2 || self.deaths >= self.options.deaths_max {
                return false;
            }
            let cascade = self.last_death.is_some_and(|at| self.settles < at + CASCADE_SETTLES);
            let options = &self.options;
            let hazard = if cascade { options.cascade_chance } else { options.death_chance };
            if !self.chance(hazard) {
                continue;
            }
            self.deaths += 1;
            let manner = match self.draws.below(3) {
                0 => Manner::Absent,
                1 => Manner::Within,
                _ => Manner::Ahead,
            };
            if self.strike_down(process, &manner) {
                return true;
            }
        }
        false
    }

    /// Kills a parked process. Whether it was let go ahead.
    fn strike_down(&mut self, process: usize, manner: &Manner) -> bool {
        match manner {
            Manner::Absent => self.withdraw(process),
            Manner::Within => self.carry_out_revoke(process),
            Manner::Ahead => {
                if let Some(reply) = self.success_alone(process) {
                    self.record(process, "sees success alone and will die");
                    self.processes[process].status = Status::Doomed;
                    self.last_death = Some(self.settles);
                    self.release(process, reply);
                    return true;
                }
            }
        }
        self.bury(process);
        self.release(process, Reply::Die);
        false
    }

    /// Takes a dying process's part off the board, unless somebody has it already.
    fn withdraw(&mut self, process: usize) {
        let CommRank { comm, rank, .. } = self.processes[process].place;
        let Some(parked) = &self.processes[process].parked else { return };
        match &parked.call {
            Call::Send { to, tag, .. } => {
                if let Some(letters) = self.mail.get_mut(&(comm, rank, *to, *tag)) {
                    letters.retain(|(number, _)| *number != parked.message);
                }
            }
            Call::Merge(joining) => {
                self.joinings[*joining].arrived.remove(&process);
            }
            call => {
                if let Some(lane) = call.lane()
                    && let Some(instance) = self.instances.get_mut(&(comm, lane, parked.seq))
                    && instance.result.is_none()
                    && instance.verdict.is_none()
                {
                    instance.arrived.remove(&rank);
                }
            }
        }
    }

    fn carry_out_revoke(&mut self, process: usize) {
        let parked = self.processes[process].parked.as_ref();
        if parked.is_some_and(|parked| matches!(parked.call, Call::Revoke)) {
            for comm in self.communicators(process) {
                self.groups[comm].revoked = true;
            }
        }
    }

    /// The success that a dying process may see before everybody else, where one is possible.
    fn success_alone(&mut self, process: usize) -> Option<Reply> {
        let place = self.processes[process].place;
        let parked = self.processes[process].parked.as_ref()?;
        let key = (place.comm, parked.call.lane()?, parked.seq);
        if !self.calls_match(key) {
            return None;
        }
        match &parked.call {
            Call::Agree(_) => {
                let instance = self.instances.get(&key)?;
                if let Some(Outcome::Agreed(agreement)) = &instance.verdict {
                    return Some(Reply::Agreed(agreement.clone()));
                }
                let whole = instance.arrived.len() == self.groups[place.comm].processes.len();
                let flags = agreed_flags(instance.arrived.values());
                whole.then_some(Reply::Agreed(Agreement { flags, outcome: Ok(()) }))
            }
            Call::Collective(kind, _) if self.is_ready(key, *kind) => {
                Some(Reply::Data(self.result(key, *kind)))
            }
            _ => None,
        }
    }

    /// What a parked process is told now; `None` = it waits.
    fn outcome(&mut self, process: usize) -> Option<Reply> {
        let place = self.processes[process].place;
        let parked = self.processes[process].parked.as_ref()?;
        let call = parked.call.clone();
        let key = call.lane().map(|lane| (place.comm, lane, parked.seq));
        if let Some(key) = key
            && !self.calls_match(key)
        {
            return Some(Reply::Misuse(self.mismatch(key)));
        }
        match (call, key) {
            (Call::Collective(kind, _), Some(key)) => self.collective(process, key, kind),
            (Call::Agree(_), Some(key)) => self.agree(process, key),
            (Call::Shrink, Some(key)) => self.shrink(process, key),
            (Call::Spawn(_), Some(key)) => self.spawn(process, key),
            (Call::Merge(joining), _) => self.merge(process, joining),
            (Call::Send { to, .. }, _) => self.answer_send(process, to),
            (Call::Recv { from, tag, bytes }, _) => self.answer_recv(process, from, tag, bytes),
            (Call::Revoke, _) => {
                for comm in self.communicators(process) {
                    self.groups[comm].revoked = true;
                    self.groups[comm].heard_revoke.insert(process);
                }
                Some(Reply::Done)
            }
            (Call::Seat(_), Some(key)) => self.seat(process, key),
            (Call::Await, _) => self.call_spare(process),
            (Call::Finalize, _) => {
                self.processes[process].status = Status::Left;
                Some(Reply::Done)
            }
            _ => unreachable!("calls with a lane have a key"),
        }
    }

    /// Whether everybody in this instance makes the same call.
    fn calls_match(&self, key: Match) -> bool {
        let mut calls = self.instances[&key].arrived.values();
        let Some(first) = calls.next() else { return true };
        calls.all(|call| match (first, call) {
            (Call::Collective(a, x), Call::Collective(b, y)) => a == b && x.shape() == y.shape(),
            (Call::Spawn(a), Call::Spawn(b)) => a.lost == b.lost && a.ranks == b.ranks,
            (Call::Seat(a), Call::Seat(b)) => a == b,
            (a, b) => a.name() == b.name(),
        })
    }

    fn mismatch(&self, key: Match) -> String {
        let calls = self.instances[&key].arrived.iter().map(|(rank, call)| match call {
            Call::Collective(kind, part) => format!("rank {rank}: {kind:?} {:?}", part.shape()),
            Call::Spawn(request) => format!("rank {rank}: {request:?}"),
            call => format!("rank {rank}: {}", call.name()),
        });
        format!("ranks disagree about a call: {}", calls.collect::<Vec<_>>().join(", "))
    }

    fn is_ready(&self, key: Match, kind: Kind) -> bool {
        let arrived = &self.instances[&key].arrived;
        match kind {
            Kind::Broadcast { root } => arrived.contains_key(&root),
            _ => arrived.len() == self.groups[key.0].processes.len(),
        }
    }

    fn result(&mut self, key: Match, kind: Kind) -> Arc<Payload> {
        let instance = self.instances.get_mut(&key).expect("a parked call has an instance");
        if let Some(result) = &instance.result {
            return Arc::clone(result);
        }
        let parts = instance.arrived.iter().filter_map(|(&rank, call)| match call {
            Call::Collective(_, payload) => Some((rank, payload)),
            _ => None,
        });
        let result = Arc::new(combine(kind, parts));
        instance.result = Some(Arc::clone(&result));
        result
    }

    fn collective(&mut self, process: usize, key: Match, kind: Kind) -> Option<Reply> {
        let comm = key.0;
        let ready = self.is_ready(key, kind);
        if let Some(interrupted) = self.revocation(process, comm, ready.into())? {
            return Some(interrupted);
        }
        if ready && !(self.someone_died(comm) && self.chance(0.5)) {
            return (!self.held(process, 0.125)).then(|| Reply::Data(self.result(key, kind)));
        }
        if self.someone_is_gone(comm) { self.failure(process, comm) } else { None }
    }

    /// Whether all live members of the communicator are in this instance.
    pub(super) fn all_live_came(&self, key: Match) -> bool {
        let arrived = &self.instances[&key].arrived;
        let group = &self.groups[key.0].processes;
        group.iter().enumerate().all(|(rank, &p)| arrived.contains_key(&rank) || !self.alive(p))
    }

    pub(super) fn verdict(&self, key: Match) -> Option<Outcome> {
        self.instances[&key].verdict.clone()
    }

    pub(super) fn decide(&mut self, key: Match, verdict: Outcome) {
        let instance = self.instances.get_mut(&key).expect("a parked call has an instance");
        instance.verdict = Some(verdict);
    }

    /// Members of the instance's communicator that are gone: (came first, did not come).
    pub(super) fn gone(&self, key: Match) -> (Vec<usize>, Vec<usize>) {
        let Instance { arrived, .. } = &self.instances[&key];
        let group = self.groups[key.0].processes.iter().enumerate();
        group
            .filter(|&(_, &process)| !self.alive(process))
            .map(|(rank, _)| rank)
            .partition(|rank| arrived.contains_key(rank))
    }

    fn agree(&mut self, process: usize, key: Match) -> Option<Reply> {
        if self.verdict(key).is_none() {
            if !self.all_live_came(key) {
                return None;
            }
            let (came, absent) = self.gone(key);
            let failed = !absent.is_empty() || (!came.is_empty() && self.chance(0.5));
            let counted = !failed || self.chance(0.5);
            let arrived = &self.instances[&key].arrived;
            let parts = arrived.iter().filter(|(rank, _)| counted || !came.contains(rank));
            let flags = agreed_flags(parts.map(|(_, call)| call));
            let outcome = if failed { Err(CommError::ProcFailed) } else { Ok(()) };
            self.decide(key, Outcome::Agreed(Agreement { flags, outcome }));
        }
        if self.held(process, 0.125) {
            return None;
        }
        let Some(Outcome::Agreed(agreement)) = self.verdict(key) else { return None };
        if agreement.outcome.is_err() {
            self.groups[key.0].informed.insert(process);
        }
        Some(Reply::Agreed(agreement))
    }

    fn shrink(&mut self, process: usize, key: Match) -> Option<Reply> {
        if self.verdict(key).is_none() {
            if !self.all_live_came(key) {
                return None;
            }
            let (came, absent) = self.gone(key);
            if !came.is_empty() && self.chance(0.25) {
                self.decide(key, Outcome::ShrinkFailed);
            } else {
                let unseen: Vec<usize> = came.into_iter().filter(|_| self.chance(0.5)).collect();
                let old = &self.groups[key.0].processes;
                let stays = |&(rank, &process): &(usize, &usize)| {
                    unseen.contains(&rank) || (self.alive(process) && !absent.contains(&rank))
                };
                let kept = old.iter().enumerate().filter(stays).map(|(_, &p)| p).collect();
                self.groups.push(Group { processes: kept, ..Group::default() });
                self.decide(key, Outcome::Shrunk(self.groups.len() - 1));
            }
        }
        if self.held(process, 0.125) {
            return None;
        }
        match self.verdict(key)? {
            Outcome::Shrunk(comm) => Some(Reply::Moved(self.place_in(comm, process))),
            _ => Some(Reply::Error(CommError::ProcFailed)),
        }
    }

    pub(super) fn place_in(&self, comm: usize, process: usize) -> CommRank {
        let group = &self.groups[comm].processes;
        let rank = group.iter().position(|&p| p == process).expect("a member has a rank");
        CommRank { comm, rank, size: group.len() }
    }

    fn spawn(&mut self, process: usize, key: Match) -> Option<Reply> {
        if self.verdict(key).is_none() {
            let verdict = if self.groups[key.0].revoked {
                Outcome::NoSpawn(SpawnError::Failed("the communicator was revoked".into()))
            } else if !self.all_live_came(key) {
                return None;
            } else if self.someone_is_gone(key.0) {
                Outcome::NoSpawn(SpawnError::Failed("a survivor died".into()))
            } else {
                match self.start_replacements(key) {
                    Ok(verdict) => verdict,
                    Err(text) => return Some(Reply::Misuse(text)),
                }
            };
            self.decide(key, verdict);
        }
        match self.verdict(key)? {
            Outcome::Joining(joining) => Some(Reply::Joining(joining)),
            Outcome::NoSpawn(error) => {
                if matches!(error, SpawnError::Failed(_)) {
                    self.groups[key.0].informed.insert(process);
                }
                Some(Reply::NoSpawn(error))
            }
            _ => unreachable!("a spawn is decided by a spawn's verdict"),
        }
    }

    fn answer_send(&mut self, process: usize, to: usize) -> Option<Reply> {
        let CommRank { comm, rank, size } = self.processes[process].place;
        if to >= size || to == rank {
            return Some(Reply::Misuse(format!("rank {rank} of {size} sends to rank {to}")));
        }
        let parked = self.processes[process].parked.as_ref()?;
        let Call::Send { tag, .. } = parked.call else { return None };
        let letters = self.mail.get(&(comm, rank, to, tag));
        let waits = letters.is_some_and(|l| l.iter().any(|(m, _)| *m == parked.message));
        let rendezvous = self.lot(process, 0.5);
        let ready = !waits || !rendezvous;
        if let Some(interrupted) = self.revocation(process, comm, ready.into())? {
            return Some(interrupted);
        }
        if !self.alive(self.groups[comm].processes[to]) && (!ready || self.chance(0.5)) {
            return self.peer_failure(process, comm);
        }
        ready.then_some(Reply::Done)
    }

    fn answer_recv(
        &mut self,
        process: usize,
        from: usize,
        tag: u32,
        bytes: usize,
    ) -> Option<Reply> {
        let CommRank { comm, rank, size } = self.processes[process].place;
        if from >= size || from == rank {
            return Some(Reply::Misuse(format!("rank {rank} of {size} receives from {from}")));
        }
        let key = (comm, from, rank, tag);
        let ready = self.mail.get(&key).is_some_and(|letters| !letters.is_empty());
        if let Some(interrupted) = self.revocation(process, comm, ready.into())? {
            return Some(interrupted);
        }
        let sender = self.groups[comm].processes[from];
        let dead = self.processes[sender].status == Status::Dead;
        if (dead && self.chance(0.5)) || (!ready && !self.alive(sender)) {
            return self.peer_failure(process, comm);
        }
        let (_, data) = self.mail.get_mut(&key)?.pop_front()?;
        if data.len() != bytes {
            let sent = data.len();
            return Some(Reply::Misuse(format!("{bytes} bytes expected, {sent} were sent")));
        }
        Some(Reply::Data(Arc::new(Payload::Bytes(data))))
    }
}

fn agreed_flags<'a>(calls: impl Iterator<Item = &'a Call>) -> u32 {
    calls.fold(u32::MAX, |all, call| match call {
        Call::Agree(flags) => all & flags,
        _ => all,
    })
}
