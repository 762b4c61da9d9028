//! How the news of failures and revocations reaches a parked process: late, to some sooner than
//! to others, to some never unless somebody revokes.

use super::super::CommError;
use super::state::{BoardState, Lane, Reply, Status};

/// Longest time an answer is held back by draws, in settles.
const DELAY_MAX: u32 = 3;

/// The data of a call that moves some.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Data {
    /// The call could end.
    Here,
    /// It waits for another process.
    Awaited,
}

impl From<bool> for Data {
    /// Whether the call could end.
    fn from(could_end: bool) -> Self {
        if could_end { Self::Here } else { Self::Awaited }
    }
}

impl BoardState {
    /// Holds an answer back for a while, sometimes.
    pub(super) fn held(&mut self, process: usize, probability: f64) -> bool {
        let hold = self.chance(probability);
        let Some(parked) = &mut self.processes[process].parked else { return false };
        if !hold || parked.delayed >= DELAY_MAX {
            return false;
        }
        parked.delayed += 1;
        self.held_back = true;
        true
    }

    /// The yes-or-no that is drawn once for this call.
    pub(super) fn lot(&mut self, process: usize, probability: f64) -> bool {
        let draw = self.chance(probability);
        let Some(parked) = &mut self.processes[process].parked else { return draw };
        *parked.lot.get_or_insert(draw)
    }

    /// Whether a member died; one that finalized had completed its calls.
    pub(super) fn someone_died(&self, comm: usize) -> bool {
        let mut group = self.groups[comm].processes.iter();
        group.any(|&p| self.processes[p].status == Status::Dead)
    }

    /// Whether a member will never come again.
    pub(super) fn someone_is_gone(&self, comm: usize) -> bool {
        self.groups[comm].processes.iter().any(|&p| !self.alive(p))
    }

    /// What a revocation does to a call that moves data: `None` = it is still on its way,
    /// `Some(None)` = nothing, the call goes on.
    pub(super) fn revocation(
        &mut self,
        process: usize,
        comm: usize,
        data: Data,
    ) -> Option<Option<Reply>> {
        let heard = self.groups[comm].heard_revoke.contains(&process);
        if !heard && (!self.groups[comm].revoked || (data == Data::Here && self.chance(0.5))) {
            return Some(None);
        }
        if !heard && self.held(process, 0.5) {
            return None;
        }
        self.groups[comm].heard_revoke.insert(process);
        Some(Some(Reply::Error(CommError::Revoked)))
    }

    /// The news of a failure. Some never hear it while another process that knows is alive:
    /// only a revocation frees those.
    pub(super) fn failure(&mut self, process: usize, comm: usize) -> Option<Reply> {
        let blind = self.lot(process, 0.35);
        if blind && !self.groups[comm].revoked && self.another_will_tell(process, comm) {
            return None;
        }
        if self.held(process, if blind { 0.9 } else { 0.25 }) {
            return None;
        }
        self.groups[comm].informed.insert(process);
        let pending = self.chance(0.125);
        Some(Reply::Error(if pending { CommError::Pending } else { CommError::ProcFailed }))
    }

    /// Whether a live process knows of a failure here and is not itself waiting for data.
    fn another_will_tell(&self, process: usize, comm: usize) -> bool {
        self.groups[comm].informed.iter().any(|&other| {
            let parked = self.processes[other].parked.as_ref();
            let waits = parked.is_some_and(|parked| parked.call.lane() == Some(Lane::Data));
            other != process && self.alive(other) && !waits
        })
    }

    /// A call that names a dead peer is always told, sooner or later.
    pub(super) fn peer_failure(&mut self, process: usize, comm: usize) -> Option<Reply> {
        if self.held(process, 0.25) {
            return None;
        }
        self.groups[comm].informed.insert(process);
        Some(Reply::Error(CommError::ProcFailed))
    }
}
