//! What the lowest live rank keeps for all: checkpoints at their interval, ledger lines that a
//! dead writer did not get to, the result. Every rank has a keeper, so that any can take over;
//! only the writer's does anything.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::cluster::faults::inject::STRUCK;
use crate::cluster::faults::{FAULTS_FOLDER, Injector, Standing};
use crate::config::{Every, Span};
use crate::data::staging::pace::Urgent;
use crate::observe::clock::Clock;
use crate::observe::event::{Kind, name_of};
use crate::observe::ledger::Entry;
use crate::observe::refusal::to_write;
use crate::observe::result::Status;
use crate::observe::storage::Storage;

use crate::model::parts::{PARAMETERS, STATISTICS, is_of_optimizer};
use crate::train::TrainError;
use crate::train::checkpoint;
use crate::train::checkpoint::{Copying, TrainState, Writer, automatic};
use crate::train::plan::{Facts, Staff};
use crate::train::record::cause::FAULT_AGE_SECONDS_MAX;
use crate::train::record::current::Current;
use crate::train::record::journal::{self, Journal};
use crate::train::record::outcome;
use crate::train::state::State;
use crate::train::state::digest;
use crate::train::state::position::{Ending, Position};
use crate::train::state::rank::{Moment, Rank};

use crate::train::record::due::{self, Last};
use crate::train::record::struck::Struck;
use crate::train::record::why::{self, Saved, Why};

/// Times that a checkpoint is begun which must be written before the run ends.
const FINAL_CHECKPOINT_TRIES: u32 = 2;

/// How often the writer looks whether the run directory still is where it was.
const PLACE_LOOK: Duration = Duration::from_secs(1);

/// Times that the result is written, and the pause between.
const RESULT_TRIES: u32 = 10;
const RESULT_PAUSE: Duration = Duration::from_millis(500);

/// Seconds that a checkpoint held the loop, and that its copy took beside it.
#[derive(Debug, Clone, Copy, Default)]
struct Stall {
    step: u64,
    stall: f64,
    copy: f64,
}

/// What a keeper works with.
pub struct Means {
    /// Of the run.
    pub facts: Facts,
    /// The run directory.
    pub storage: Arc<dyn Storage>,
    /// The rank's.
    pub clock: Arc<dyn Clock>,
    /// Faults of the rank: `in_persist` ones strike in the writer.
    pub injector: Arc<Injector>,
    /// Whether this process belongs to the run's newest attempt.
    pub current: Current,
    /// Who writes checkpoints behind the loop.
    pub staff: Staff,
    /// Whom copies give way to: checkpoints are written so.
    pub urgent: Arc<Urgent>,
}

/// Checkpoints and ledger of one rank, which counts for all while it is the lowest.
pub struct Keeper {
    pub(super) means: Means,
    world_next_member: u32,
    writer: Option<Writer>,
    /// The last checkpoint that was begun; none before the first step that is looked at.
    pub(super) last: Option<Last>,
    /// The newest step whose checkpoint is on disk and verified.
    pub(super) published: Option<u64>,
    /// Whether a checkpoint is due that the writer has no room for, which was said.
    waits: bool,
    /// Why the newest checkpoint that was begun is not on disk.
    pub(super) unwritten: Option<String>,
    /// Stalls of checkpoints that are being written, by step.
    stalls: Vec<Stall>,
    /// When the run directory was last seen in its place.
    placed: Option<Duration>,
    /// The copy of the newest checkpoint.
    copying: Option<Copying>,
    /// What the last checkpoint held the loop, and its storage.
    cost_seconds: f64,
    storage_seconds: f64,
    /// Where the writer stood when it began the checkpoint at hand.
    persisting: Arc<Mutex<Standing>>,
}

impl Keeper {
    /// Nothing is kept yet.
    pub fn new(means: Means) -> Self {
        Self {
            means,
            world_next_member: 0,
            writer: None,
            last: None,
            published: None,
            waits: false,
            unwritten: None,
            stalls: Vec::new(),
            placed: None,
            copying: None,
            cost_seconds: 0.0,
            storage_seconds: 0.0,
            persisting: Arc::default(),
        }
    }

    /// Whether this process belongs to the run's newest attempt.
    pub fn is_current(&self) -> bool {
        self.means.current.is_newest()
    }

    /// This rank is the writer from now on: fills what a dead one left open. What the ledger has to
    /// take back.
    pub fn take_over(&mut self, rank: &Rank, journal: &mut Journal) -> Option<Entry> {
        let position = &rank.state.position;
        self.world_next_member = rank.world.next_member;
        let rollback =
            journal::taken_back(self.means.storage.as_ref(), position, rank.world.attempt);
        if let Some(Entry::Rollback { to, .. }) = rollback {
            // A writer that died may have published one of a step that is given up.
            checkpoint::store::remove_later(self.means.storage.as_ref(), to);
        }
        self.find_last(position.step, journal.seconds());
        journal.take_over(&position.ledger_tail, rollback);
        if self.means.facts.every != Every::Never {
            self.writer();
        }
        rollback
    }

    /// Checkpoints go on from the newest that any writer of this run published.
    fn find_last(&mut self, step: u64, seconds: f64) {
        if self.last.is_some() {
            return;
        }
        let newest = due::newest(self.means.storage.as_ref());
        self.published = newest.map(|newest| newest.step);
        self.last = due::inherited(newest, step, seconds, &self.means.facts.order);
    }

    /// Checkpoints of later steps hold states that are not to be trusted: they go, and the next
    /// one is due from `target` on.
    pub fn distrust(&mut self, target: u64) {
        // One that is still being copied would be written behind this.
        self.wait_for_copy();
        if let Some(writer) = &self.writer
            && !writer.finish(self.means.facts.last_limit)
        {
            tracing::warn!("a checkpoint of a distrusted state may still be written");
        }
        // What it has written goes too: nobody is to be told of it.
        drop(self.writer.as_ref().map(Writer::poll));
        checkpoint::store::remove_later(self.means.storage.as_ref(), target);
        let cursor = self.means.facts.order.cursor(target);
        self.last = self.last.map(|last| Last { step: target, cursor, ..last });
        self.published = self.published.filter(|step| *step <= target);
        self.stalls.retain(|stall| stall.step <= target);
    }

    fn writer(&mut self) -> &Writer {
        let (means, standing) = (&self.means, &self.persisting);
        self.writer.get_or_insert_with(|| {
            let storage: Arc<dyn Storage> = Arc::new(Struck {
                inner: Arc::clone(&means.storage),
                injector: Arc::clone(&means.injector),
                standing: Arc::clone(standing),
                urgent: Arc::clone(&means.urgent),
            });
            let (keep, clock) = (means.facts.keep, Arc::clone(&means.clock));
            let current = means.current.clone();
            let current = Box::new(move || current.is_newest());
            match means.staff {
                Staff::Threads => Writer::new(storage, keep, current),
                Staff::Inline => Writer::inline(storage, keep, current, clock),
            }
        })
    }

    /// A run ends where its directory was moved from under it: nobody would find what it does.
    pub fn look_at_place(&mut self) -> Result<(), TrainError> {
        let now = self.means.clock.now();
        if self.placed.is_some_and(|seen| now.saturating_sub(seen) < PLACE_LOOK) {
            return Ok(());
        }
        self.placed = Some(now);
        self.means.storage.moved().map_or(Ok(()), |why| Err(TrainError::Configuration(why)))
    }

    /// Begins a checkpoint when one is due, and reports those that were finished.
    pub fn after_commit(&mut self, rank: &Rank, journal: &mut Journal) {
        let seconds = journal.seconds();
        self.report(journal, rank.place(), 0.0);
        let Position { step, cursor, .. } = rank.state.position;
        let line = rank.state.position.ledger_tail.last();
        let before = cursor - line.map_or(0, |line| line.count);
        let first = Last { seconds, step: step.saturating_sub(1), cursor: before };
        let last = *self.last.get_or_insert(first);
        let now = Last { seconds, step, cursor };
        let mtbf_seconds = self.means.facts.mtbf.as_secs_f64();
        let auto = || automatic(self.cost_seconds, self.storage_seconds, mtbf_seconds);
        if due::is_due(self.means.facts.every, last, now, self.means.facts.order.samples, auto) {
            self.begin(rank, seconds);
        }
    }

    pub(super) fn begin(&mut self, rank: &Rank, seconds: f64) {
        let began = self.means.clock.now();
        *self.persisting.lock().unwrap_or_else(PoisonError::into_inner) = rank.process.standing;
        let state = self.state(&rank.state.position, rank.place(), seconds);
        let about = self.means.facts.about.clone();
        // One whose thread panicked has said so; the next checkpoint gets another.
        self.writer.take_if(|writer| writer.is_gone());
        let Some(ticket) = self.writer().try_begin() else {
            // It stays due, and is asked for again in each step.
            if !std::mem::replace(&mut self.waits, true) {
                let step = rank.state.position.step;
                tracing::warn!(
                    "the checkpoint due at step {step} waits: those before it are being written"
                );
            }
            return;
        };
        self.waits = false;
        self.copying = Some(ticket.copy_behind(about, Arc::clone(&rank.state.slots), state));
        if self.means.staff == Staff::Inline {
            self.copying.take().map(Copying::wait);
        }
        let stall = (self.means.clock.now() - began).as_secs_f64();
        self.stalls.push(Stall { step: rank.state.position.step, stall, copy: stall });
        let Position { step, cursor, .. } = rank.state.position;
        self.last = Some(Last { seconds, step, cursor });
    }

    /// Before the next commit: what a checkpoint is being made of must stay until it is copied.
    pub fn wait_for_copy(&mut self) {
        let Some(copying) = self.copying.take() else { return };
        let began = self.means.clock.now();
        let copy = copying.wait().as_secs_f64();
        if let Some(newest) = self.stalls.last_mut() {
            newest.copy = copy;
            newest.stall += (self.means.clock.now() - began).as_secs_f64();
        }
    }

    fn state(&self, position: &Position, place: Moment, seconds: f64) -> TrainState {
        TrainState {
            step: position.step,
            cursor: position.cursor,
            seed: self.means.facts.order.seed,
            attempt: place.attempt,
            generation: place.generation,
            owners: self.means.facts.order.owners,
            next_member: self.world_next_member,
            run_id: self.means.facts.run_id.clone(),
            config_fingerprint: self.means.facts.config_fingerprint,
            data_fingerprint: self.means.facts.data_fingerprint,
            evaluation_due: position.evaluation_due,
            evaluated_ms: position.evaluated_ms,
            best_error: position.best_error,
            last_error: position.last_error,
            run_seconds: seconds,
            exact: position.exact,
            arithmetic: position.arithmetic.clone(),
            grid: position.grid.clone(),
            improvement: position.improvement,
            contents: position.contents,
            order: position.owner_batches.clone(),
            ledger_tail: position.ledger_tail.clone(),
            ..TrainState::default()
        }
    }

    /// `held`: seconds that the loop waited for the newest of them just now.
    fn report(&mut self, journal: &mut Journal, place: Moment, held: f64) {
        let Some(writer) = &self.writer else { return };
        for done in writer.poll() {
            let at = self.stalls.iter().position(|stall| stall.step == done.step);
            let Stall { stall, copy, .. } = at.map(|at| self.stalls.remove(at)).unwrap_or_default();
            for message in done.warnings() {
                tracing::warn!("{message}");
                journal.event(place, Kind::Warning { message });
            }
            match done.result {
                Ok(()) => {
                    self.published = Some(done.step);
                    self.unwritten = None;
                    self.cost_seconds = stall;
                    self.storage_seconds = done.write_seconds + done.verify_seconds;
                    let kind = Kind::Checkpoint {
                        name: done.name,
                        bytes: done.bytes,
                        stall_seconds: stall + if self.has_begun(done.step) { held } else { 0.0 },
                        snapshot_seconds: copy,
                        write_seconds: done.write_seconds,
                        verify_seconds: done.verify_seconds,
                    };
                    journal.event(place, kind);
                }
                Err(error) => self.unwritten = Some(error.to_string()),
            }
        }
    }

    /// The end of a run that goes no further: last checkpoint, result. A run that was to be
    /// complete is interrupted where its weights are not on disk.
    pub fn finish(
        &mut self,
        rank: &Rank,
        journal: &mut Journal,
        why: Why<'_>,
    ) -> Result<Status, TrainError> {
        let State { position, .. } = &rank.state;
        self.placed = None;
        self.look_at_place()?;
        let status = why.status();
        if !self.means.current.is_newest_at_the_end() {
            let text = "a newer attempt of this run has started, or may have: no result is written \
                        here";
            return Err(TrainError::JobLost(text.into()));
        }
        // A renewed world goes on from memory; one of its ranks is enough.
        let stays_in_memory =
            position.ending == Some(Ending::Renewed) && rank.state.outlives_its_process();
        if !stays_in_memory
            && (self.means.facts.every != Every::Never || status != Status::Completed)
        {
            self.last_checkpoint(rank, journal);
        }
        let status = self.ended(status, position.step);
        self.complete(position, journal, Journal::has_ledger);
        let saved = Saved { published: self.published, unwritten: self.unwritten.as_deref() };
        let reason = why::reason(why, status, position, &saved);
        let state_sha256 = Some(self.digest(&rank.state));
        self.write_result(rank, journal, status, (why, &reason), &state_sha256)?;
        // A disk that has room again only now.
        self.complete(position, journal, Journal::is_settled);
        let name = name_of(&status);
        journal.event(rank.place(), Kind::RunEnd { status: name, reason, state_sha256 });
        Ok(status)
    }

    /// Tried again for as long as the result is: who audits a completed run expects all its steps.
    /// The result waits for no event.
    fn complete(&self, position: &Position, journal: &mut Journal, is_done: fn(&Journal) -> bool) {
        for _ in 0..RESULT_TRIES {
            journal.settle(&position.ledger_tail);
            if is_done(journal) {
                return;
            }
            self.means.clock.sleep(RESULT_PAUSE);
        }
    }

    /// Tried again for a while: a disk that is full for a moment must not cost the run its end.
    fn write_result(
        &self,
        rank: &Rank,
        journal: &Journal,
        status: Status,
        (why, reason): (Why<'_>, &str),
        state_sha256: &Option<String>,
    ) -> Result<(), TrainError> {
        let mut last = String::new();
        for _ in 0..RESULT_TRIES {
            let written = outcome::Ended {
                run_id: &self.means.facts.run_id,
                place: rank.place(),
                status,
                reason: reason.into(),
                seconds: journal.seconds(),
                position: &rank.state.position,
                samples_per_epoch: self.means.facts.order.samples,
                state_sha256: state_sha256.clone(),
                conclusive: why.is_conclusive(),
            }
            .write(self.means.storage.as_ref());
            match written {
                Ok(()) => return Ok(()),
                Err(error) => last = to_write(&error),
            }
            self.means.clock.sleep(RESULT_PAUSE);
        }
        Err(TrainError::JobLost(format!("cannot write result.json: {last}")))
    }

    /// The checkpoint of the state at hand is on disk after so long: begun if it is not, tried
    /// again once if it fails. False where it is not there, or the writer is still at work.
    pub(super) fn put_on_disk_within(
        &mut self,
        rank: &Rank,
        journal: &mut Journal,
        limit: Duration,
    ) -> bool {
        let (until, step) = (self.means.clock.now() + limit, rank.state.position.step);
        for again in 0..FINAL_CHECKPOINT_TRIES {
            self.wait_for_copy();
            if again > 0 || !self.has_begun(step) {
                // Those before it may have the writer's hands full.
                self.finish_until(until, journal, rank);
                if self.published == Some(step) {
                    return true;
                }
                self.begin(rank, journal.seconds());
                self.wait_for_copy();
            }
            let done = self.finish_until(until, journal, rank);
            if !done || self.published == Some(step) {
                break;
            }
        }
        self.published == Some(step)
    }

    /// False where the writer was still at work then.
    fn finish_until(&mut self, until: Duration, journal: &mut Journal, rank: &Rank) -> bool {
        let began = self.means.clock.now();
        let done = self.writer().finish(until.saturating_sub(began));
        let held = (self.means.clock.now() - began).as_secs_f64();
        self.report(journal, rank.place(), held);
        done
    }

    /// Whether the newest checkpoint that was begun is of this step.
    pub(super) fn has_begun(&self, step: u64) -> bool {
        self.last.is_some_and(|last| last.step == step)
    }

    /// Whether a checkpoint is being written.
    pub(super) fn is_writing(&mut self) -> bool {
        !self.writer().finish(Duration::ZERO)
    }

    /// The checkpoint that the run ends with.
    fn last_checkpoint(&mut self, rank: &Rank, journal: &mut Journal) {
        let limit = self.means.facts.last_limit;
        if !self.put_on_disk_within(rank, journal, limit) && self.is_writing() {
            let limit = Span(limit);
            self.unwritten = Some(format!(
                "it took longer than {limit}; raise recovery.time_limit to wait longer"
            ));
            tracing::warn!("the last checkpoint took too long and was left behind");
        }
    }

    /// How a run ends by this status: complete only with its weights on disk, or where no
    /// checkpoints are wanted.
    fn ended(&self, status: Status, step: u64) -> Status {
        let wanted = status == Status::Completed && self.means.facts.every != Every::Never;
        if wanted && !self.has_checkpoint_of(step) { Status::Interrupted } else { status }
    }

    /// Whether a checkpoint holds all that a resident slot of this step does.
    pub fn has_checkpoint_of(&self, step: u64) -> bool {
        checkpoint::store::newest_step(self.means.storage.as_ref()) == Some(step)
    }

    /// The digest of the whole state.
    pub fn digest(&self, state: &State) -> String {
        let slots = state.slots.read().unwrap_or_else(PoisonError::into_inner);
        let committed = slots.committed();
        let position = digest::Whereabouts {
            step: state.position.step,
            cursor: state.position.cursor,
            seed: self.means.facts.order.seed,
            order: &state.position.owner_batches,
        };
        let of_optimizer = committed.parts().filter(|(name, _)| is_of_optimizer(name));
        let of_optimizer: Vec<&[f32]> = of_optimizer.map(|(_, part)| part).collect();
        digest::state_sha256(
            &self.means.facts.about.layout,
            committed.part(PARAMETERS),
            committed.part(STATISTICS),
            &of_optimizer,
            position,
        )
    }

    /// Seconds since the newest injected fault fired: the "detect" of a repair that it caused.
    pub fn seconds_since_fault(&self) -> Option<f64> {
        let moments = self.means.storage.read(&Path::new(FAULTS_FOLDER).join(STRUCK)).ok()?;
        let moments = String::from_utf8_lossy(&moments).into_owned();
        let struck = moments.lines().filter_map(|line| line.parse::<f64>().ok());
        let newest = struck.fold(f64::NEG_INFINITY, f64::max);
        let age = self.means.clock.unix_seconds() - newest;
        (0.0..FAULT_AGE_SECONDS_MAX).contains(&age).then_some(age)
    }
}
