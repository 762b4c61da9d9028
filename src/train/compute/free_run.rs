//! What free-running workers share with the communicating thread (Algorithm 1 of Tsuji et
//! al.): Δw with what it counted, and which owner's which micro-batch comes next.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::cluster::faults::Standing;

use crate::train::compute::totals::Totals;

/// Micro-batches of one owner that may be computed beyond the last committed one. The paper has no
/// such bound. Without one, workers fill the time of an all-reduce with gradients of ever older
/// weights, and momentum tolerates little delay: at the bound 2, 2 ranks x 2 workers were at an
/// error of 0.41 when the synchronous exchange, and this one with the bound 1, were below 0.2.
pub const BATCHES_AHEAD_MAX: u64 = 1;

/// The part of Δw that a round sends, with what it counted.
#[derive(Debug, Clone, PartialEq)]
pub struct Taken {
    /// `parameters | statistics`.
    pub delta: Vec<f32>,
    /// What the micro-batches in it counted.
    pub totals: Totals,
    /// Micro-batches in it, per owner.
    pub owner_batches: Vec<u64>,
}

impl Taken {
    fn new(length: usize, owners: usize) -> Self {
        Self { delta: vec![0.0; length], totals: Totals::default(), owner_batches: vec![0; owners] }
    }

    fn is_empty(&self) -> bool {
        self.owner_batches.iter().all(|&batches| batches == 0)
    }

    fn add(&mut self, other: &Self) {
        for (sum, value) in self.delta.iter_mut().zip(&other.delta) {
            *sum += value;
        }
        self.totals.add(&other.totals);
        for (sum, batches) in self.owner_batches.iter_mut().zip(&other.owner_batches) {
            *sum += batches;
        }
    }
}

#[derive(Debug)]
struct Running {
    collected: Taken,
    /// Empty buffers of the last round, used again.
    spare: Option<Taken>,
    owners: Vec<u32>,
    /// Of every owner: the micro-batch that comes next.
    next: Vec<u64>,
    /// Of every owner of this rank: micro-batches that were committed.
    committed: Vec<u64>,
    /// Owners that a worker is computing: one at a time, so that a round holds a prefix of each.
    busy: BTreeSet<u32>,
    /// Micro-batches that were computed since the start.
    finished: u64,
    round: Round,
    /// Micro-batches of each owner in the whole run.
    batches_max: u64,
}

impl Running {
    /// Owners that may be computed now.
    fn open(&self) -> impl Iterator<Item = u32> {
        let ahead =
            |owner: u32| self.next[owner as usize].saturating_sub(self.committed[owner as usize]);
        let free = self.owners.iter().copied().filter(|owner| !self.busy.contains(owner));
        let unfinished = free.filter(|&owner| self.next[owner as usize] < self.batches_max);
        unfinished.filter(move |&owner| ahead(owner) < BATCHES_AHEAD_MAX)
    }

    /// The owner whose turn it is: the one least far, lowest first.
    fn eligible(&self) -> Option<u32> {
        self.open().min_by_key(|&owner| (self.next[owner as usize], owner))
    }

    /// Micro-batches that are computed, or can be, before a round commits.
    fn to_come(&self) -> u64 {
        let busy = self.owners.iter().filter(|owner| self.busy.contains(owner)).count();
        (busy + self.open().count()) as u64
    }
}

/// One owner's next micro-batch, taken by a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// Whose.
    pub owner: u32,
    /// Its index: the step whose micro-batch this is.
    pub batch: u64,
}

/// What micro-batches begin with.
#[derive(Debug, Clone, Copy, Default)]
pub struct Round {
    /// γ.
    pub learning_rate: f64,
    /// Where their rank stands.
    pub standing: Standing,
}

/// Turns, changes and counts of one rank's workers.
#[derive(Debug)]
pub struct FreeRun {
    state: Mutex<Running>,
    changed: Condvar,
    length: usize,
    /// γ is divided by it: a sweep over all owners then moves w as one synchronous step does.
    pub global_batch: u64,
    /// L2 penalty.
    pub weight_decay: f32,
}

impl FreeRun {
    /// `length`: parameters and statistics together.
    pub fn new(length: usize, owners: usize, global_batch: u64, weight_decay: f64) -> Self {
        let state = Running {
            collected: Taken::new(length, owners),
            spare: None,
            owners: Vec::new(),
            next: vec![0; owners],
            committed: vec![0; owners],
            busy: BTreeSet::new(),
            finished: 0,
            round: Round::default(),
            batches_max: u64::MAX,
        };
        let weight_decay = weight_decay as f32;
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
            length,
            global_batch,
            weight_decay,
        }
    }

    /// The run ends with so many micro-batches of each owner, if with any number. A fast rank that
    /// began the next epoch while the last samples of this one are computed would count too many.
    pub fn ending_with(mut self, batches: Option<u64>) -> Self {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        state.batches_max = batches.unwrap_or(u64::MAX);
        self
    }

    fn lock(&self) -> MutexGuard<'_, Running> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A round begins: so do the micro-batches that begin from now on.
    pub fn begin_round(&self, round: Round) {
        self.lock().round = round;
    }

    /// From now on this rank computes `owners`. An owner it already had goes on where it is; a new
    /// one goes on after its last committed micro-batch.
    pub fn assign(&self, owners: &[u32], committed: &[u64]) {
        let mut state = self.lock();
        for &owner in owners {
            if !state.owners.contains(&owner) {
                state.next[owner as usize] = committed[owner as usize];
            }
        }
        state.owners = owners.to_vec();
        state.committed.copy_from_slice(committed);
        self.changed.notify_all();
    }

    /// The next micro-batch to compute, and what it begins with; waits up to `limit` while every
    /// owner is being computed or is as far ahead as it may be.
    pub fn next_turn(&self, limit: Duration) -> Option<(Turn, Round)> {
        let mut state = self.lock();
        if state.eligible().is_none() {
            let waited =
                self.changed.wait_timeout_while(state, limit, |state| state.eligible().is_none());
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let owner = state.eligible()?;
        state.busy.insert(owner);
        let batch = state.next[owner as usize];
        Some((Turn { owner, batch }, state.round))
    }

    /// `Δw <- Δw + change` for a computed micro-batch (`change` is -γ g).
    pub fn add(&self, turn: Turn, change: &[f32], statistics: &[f32], totals: &Totals) {
        let mut state = self.lock();
        state.busy.remove(&turn.owner);
        state.finished += 1;
        if state.owners.contains(&turn.owner) {
            state.next[turn.owner as usize] = turn.batch + 1;
            let (w, s) = state.collected.delta.split_at_mut(change.len());
            for (sum, value) in w.iter_mut().zip(change).chain(s.iter_mut().zip(statistics)) {
                *sum += value;
            }
            state.collected.totals.add(totals);
            state.collected.owner_batches[turn.owner as usize] += 1;
        }
        self.changed.notify_all();
    }

    /// Whether there is anything to send.
    pub fn has_delta(&self) -> bool {
        !self.lock().collected.is_empty()
    }

    /// Whether this rank computes a micro-batch now, of `begun` since the start, or has computed
    /// one that no round has taken. Its owners may be as far ahead as they can be: it need not
    /// begin another.
    pub fn is_at_work(&self, begun: u64) -> bool {
        let state = self.lock();
        begun > state.finished || !state.collected.is_empty()
    }

    /// Whether this rank has nothing more to compute in this run.
    pub fn is_through(&self) -> bool {
        let state = self.lock();
        let left = |owner: &u32| state.next[*owner as usize] < state.batches_max;
        !state.owners.iter().any(left)
    }

    /// Waits until Δw holds half as many micro-batches as this rank has owners, or all that can
    /// come before the next round; else false.
    pub fn wait_for_half_sweep(&self, limit: Duration) -> bool {
        let short = |state: &mut Running| {
            let batches: u64 = state.collected.owner_batches.iter().sum();
            let half = (state.owners.len() as u64).div_ceil(2).max(1);
            batches < half.min(batches + state.to_come())
        };
        let waited = self.changed.wait_timeout_while(self.lock(), limit, short);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Takes Δw; it restarts from zero.
    pub fn take(&self) -> Taken {
        let mut state = self.lock();
        let owners = state.next.len();
        let mut empty = state.spare.take().unwrap_or_else(|| Taken::new(self.length, owners));
        empty.delta.fill(0.0);
        empty.totals = Totals::default();
        empty.owner_batches.fill(0);
        std::mem::replace(&mut state.collected, empty)
    }

    /// A round that was not committed returns what it took.
    pub fn give_back(&self, taken: &Taken) {
        self.lock().collected.add(taken);
        self.changed.notify_all();
    }

    /// A committed round returns its buffers; what it held is committed.
    pub fn committed(&self, taken: Taken) {
        let mut state = self.lock();
        for (sum, batches) in state.committed.iter_mut().zip(&taken.owner_batches) {
            *sum += batches;
        }
        state.spare = Some(taken);
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    fn totals(count: u64) -> Totals {
        Totals { count, ..Totals::default() }
    }

    #[test]
    fn what_a_failed_round_took_is_sent_by_the_next_one() {
        let run = FreeRun::new(2, 2, 8, 0.0);
        run.assign(&[0, 1], &[0, 0]);
        let (turn, _) = run.next_turn(NOW).unwrap();
        run.add(turn, &[1.0], &[0.5], &totals(4));
        let taken = run.take();
        let (turn, _) = run.next_turn(NOW).unwrap();
        run.add(turn, &[2.0], &[0.0], &totals(4));
        run.give_back(&taken);
        let again = run.take();
        assert_eq!(again.delta, vec![3.0, 0.5]);
        assert_eq!((again.totals.count, again.owner_batches), (8, vec![1, 1]));
    }

    /// Without this a repair waited half a minute for who had begun before it.
    #[test]
    fn who_computes_or_has_computed_what_no_round_has_taken_is_at_work() {
        let run = FreeRun::new(1, 1, 8, 0.0);
        run.assign(&[0], &[0]);
        assert!(!run.is_at_work(0), "nobody has begun");
        let (turn, _) = run.next_turn(NOW).unwrap();
        assert!(!run.is_at_work(0), "its samples are waited for");
        assert!(run.is_at_work(1), "it is being computed");
        run.add(turn, &[1.0], &[], &totals(1));
        assert!(run.next_turn(NOW).is_none() && run.is_at_work(1), "none can be begun");
        run.committed(run.take());
        assert!(!run.is_at_work(1), "the next one can");
    }

    #[test]
    fn a_micro_batch_begins_with_the_round_at_hand() {
        let run = FreeRun::new(1, 1, 8, 0.0);
        run.assign(&[0], &[0]);
        let standing = Standing { step: 7, ..Standing::default() };
        run.begin_round(Round { learning_rate: 0.5, standing });
        let (_, round) = run.next_turn(NOW).unwrap();
        assert_eq!((round.learning_rate, round.standing.step), (0.5, 7));
    }

    #[test]
    fn an_owner_is_computed_by_one_worker_at_a_time() {
        let run = FreeRun::new(1, 2, 8, 0.0);
        run.assign(&[0, 1], &[5, 5]);
        assert_eq!(run.next_turn(NOW).unwrap().0.owner, 0);
        assert_eq!(run.next_turn(NOW).unwrap().0.owner, 1);
        assert!(run.next_turn(NOW).is_none());
    }

    #[test]
    fn an_inherited_owner_goes_on_after_its_last_committed_batch() {
        let run = FreeRun::new(1, 2, 8, 0.0);
        run.assign(&[0], &[0, 0]);
        let (turn, _) = run.next_turn(NOW).unwrap();
        run.add(turn, &[1.0], &[], &totals(1));
        run.committed(run.take());
        run.assign(&[0, 1], &[1, 7]);
        let turns: Vec<u64> = (0..2).filter_map(|_| Some(run.next_turn(NOW)?.0.batch)).collect();
        assert_eq!(turns, vec![1, 7], "own work goes on where it was, the dead rank's at 7");
    }

    #[test]
    fn a_round_waits_for_half_as_many_micro_batches_as_there_are_owners() {
        let run = FreeRun::new(1, 3, 8, 0.0);
        run.assign(&[0, 1, 2], &[0, 0, 0]);
        for enough in [false, true] {
            let (turn, _) = run.next_turn(NOW).unwrap();
            run.add(turn, &[1.0], &[], &totals(1));
            assert!(run.has_delta());
            assert_eq!(run.wait_for_half_sweep(NOW), enough);
        }
    }

    #[test]
    fn an_owner_ends_with_the_run_and_is_not_waited_for() {
        let run = FreeRun::new(1, 2, 8, 0.0).ending_with(Some(2));
        run.assign(&[0, 1], &[1, 2]);
        let (turn, _) = run.next_turn(NOW).unwrap();
        assert_eq!((turn.owner, turn.batch), (0, 1), "the other has had its two");
        assert!(run.next_turn(NOW).is_none() && !run.is_through());
        assert!(!run.wait_for_half_sweep(NOW), "what is computed is waited for");
        run.add(turn, &[1.0], &[], &totals(1));
        assert!(run.is_through() && run.wait_for_half_sweep(NOW));
        run.committed(run.take());
        assert!(run.next_turn(NOW).is_none(), "no epoch begins beyond the last");
        assert!(run.wait_for_half_sweep(NOW), "nothing comes any more");
    }

    #[test]
    fn no_owner_runs_further_ahead_than_it_may() {
        let run = FreeRun::new(1, 1, 8, 0.0);
        run.assign(&[0], &[0]);
        for _ in 0..BATCHES_AHEAD_MAX {
            let (turn, _) = run.next_turn(NOW).unwrap();
            run.add(turn, &[1.0], &[], &totals(1));
        }
        assert!(run.next_turn(NOW).is_none());
        let taken = run.take();
        assert!(run.next_turn(NOW).is_none(), "sent is not committed");
        run.committed(taken);
        assert!(run.next_turn(NOW).is_some());
    }
}
