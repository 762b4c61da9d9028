//! What a rank writes about the run: events, ledger lines, the picture of the world. One journal
//! per rank; most lines come from the lowest live rank. A failed write is a warning, never the
//! end of a run.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::cluster::world::World;
use crate::observe::clock::Clock;
use crate::observe::event::{Event, Kind, RecoveryRecord, VERSION};
use crate::observe::event_writer::EventWriter;
pub use crate::observe::ledger::LEDGER_FILE as LEDGER;
use crate::observe::ledger::{self, Committed, Entry, Ledger};
pub use crate::observe::log::EVENTS_FILE as EVENTS;
use crate::observe::log::last_lines;
use crate::observe::metrics::Metrics;
use crate::observe::notice::act_on;
use crate::observe::progress::Progress;
use crate::observe::refusal::{if_there, insist};
use crate::observe::storage::Storage;
use crate::observe::tensorboard::Tensorboard;
use crate::train::state::position::Position;
use crate::train::state::rank::Moment;

/// The end of the events in which repairs are looked for that no step has followed yet.
const RECENT_EVENTS_BYTES: usize = 256 << 10;
/// See `cluster::world`.
pub const WORLD: &str = "world.json";
/// Ledger lines that wait for a disk that takes them, at most (4 MB); of more the oldest are given
/// up, and the ledger says which.
const WAITING_LINES_MAX: usize = 1 << 16;

/// The picture of the last world; `None` where there is none, or it is damaged.
///
/// # Errors
/// It cannot be read now.
pub fn last_world(storage: &dyn Storage) -> io::Result<Option<World>> {
    let body = if_there(insist(|| storage.read(Path::new(WORLD))))?;
    Ok(body.and_then(|body| World::decode(&body).ok()))
}

/// Where and when an event happened.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stamp {
    place: Moment,
    /// Seconds since 1970.
    time: f64,
    /// Of the run.
    seconds: f64,
}

impl Stamp {
    /// At this unix time of a run whose seconds were zero at `origin`.
    pub fn new(place: Moment, time: f64, origin: f64) -> Self {
        Self { place, time, seconds: (time - origin).max(0.0) }
    }

    /// What happened there and then.
    pub fn event(self, kind: Kind) -> Event {
        let Self { place, time, seconds } = self;
        let Moment { attempt, generation, step, rank } = place;
        Event { v: VERSION, time, seconds, attempt, generation, step, rank, kind }
    }
}

/// Writes the run's lines.
pub struct Journal {
    storage: Arc<dyn Storage>,
    events: EventWriter,
    ledger: Ledger,
    clock: Arc<dyn Clock>,
    /// Unix time at which the run's seconds were zero.
    origin: f64,
    /// Drawn by this process itself when no supervisor does.
    progress: Option<Progress>,
    /// Likewise; the writer's.
    tensorboard: Option<Tensorboard>,
    /// Likewise.
    metrics: Option<Metrics>,
    /// Files that could not be written once.
    failed: BTreeSet<&'static str>,
    /// Ledger lines could not be written: the next ones come with those that are missing.
    behind: bool,
    /// These, as far back as they are known.
    waiting: VecDeque<Committed>,
    /// A rollback that could not be written: it comes before anything else.
    unwritten: Option<Entry>,
    skipped_said: bool,
    undecoded_said: bool,
}

impl Journal {
    /// `origin`: unix seconds at which the run's own seconds were zero.
    pub fn new(
        storage: Arc<dyn Storage>,
        clock: Arc<dyn Clock>,
        origin: f64,
        progress: Option<Progress>,
    ) -> Self {
        let events = EventWriter::new(Arc::clone(&storage));
        let ledger = Ledger::new(Arc::clone(&storage));
        Self {
            storage,
            events,
            ledger,
            clock,
            origin,
            progress,
            tensorboard: None,
            metrics: None,
            failed: BTreeSet::new(),
            behind: false,
            waiting: VecDeque::new(),
            unwritten: None,
            skipped_said: false,
            undecoded_said: false,
        }
    }

    /// Where no supervisor writes TensorBoard's files, the writer does.
    pub fn with_tensorboard(self, tensorboard: Option<Tensorboard>) -> Self {
        Self { tensorboard, ..self }
    }

    /// Likewise with `metrics.csv`.
    pub fn with_metrics(self, metrics: Option<Metrics>) -> Self {
        Self { metrics, ..self }
    }

    /// Unix time at which the run's seconds were zero.
    pub fn origin(&self) -> f64 {
        self.origin
    }

    /// Seconds since the run's first start.
    pub fn seconds(&self) -> f64 {
        (self.clock.unix_seconds() - self.origin).max(0.0)
    }

    /// Where and when something happens that is written later.
    pub fn stamp(&self, place: Moment) -> Stamp {
        Stamp::new(place, self.clock.unix_seconds(), self.origin)
    }

    /// Where something happened at this time of the run.
    pub fn stamp_at(&self, place: Moment, seconds: f64) -> Stamp {
        Stamp { place, time: self.origin + seconds, seconds }
    }

    /// Writes an event.
    pub fn event(&mut self, place: Moment, kind: Kind) {
        self.event_of(self.stamp(place), kind);
    }

    /// Writes an event that happened before.
    pub fn event_of(&mut self, stamp: Stamp, kind: Kind) {
        let event = stamp.event(kind);
        if let Some(progress) = &mut self.progress {
            progress.on(&event);
        }
        if let Some(tensorboard) = self.tensorboard.as_mut().filter(|_| event.rank == 0) {
            tensorboard.on(&event);
        }
        let written = self.events.write(event.clone());
        self.warn_once(written, EVENTS);
        if let Some(metrics) = self.metrics.as_mut().filter(|_| event.rank == 0) {
            metrics.on(&event);
        }
    }

    /// The last repairs of an attempt that stand in the events; none where those cannot be read.
    pub fn recovered(&self, attempt: u32) -> Vec<RecoveryRecord> {
        let recovered = self.recent_events().into_iter().filter(|event| event.attempt == attempt);
        recovered
            .filter_map(|event| match event.kind {
                Kind::Recovered(record) => Some(record),
                _ => None,
            })
            .collect()
    }

    /// Whether the last events have a step that was committed there and then.
    pub fn tells_step(&self, stamp: Stamp) -> bool {
        let Moment { attempt, generation, step, .. } = stamp.place;
        self.recent_events().iter().any(|event| {
            matches!(event.kind, Kind::Step { .. })
                && (event.attempt, event.generation, event.step) == (attempt, generation, step)
        })
    }

    /// Whether the last events of an attempt have an evaluation of this step with this result.
    pub fn tells(&self, attempt: u32, step: u64, evaluation: &Kind) -> bool {
        let result = |kind: &Kind| match kind {
            Kind::Evaluation { error, loss, .. } => Some((error.to_bits(), loss.to_bits())),
            _ => None,
        };
        self.recent_events().iter().any(|event| {
            (event.attempt, event.step) == (attempt, step)
                && result(&event.kind).is_some_and(|found| Some(found) == result(evaluation))
        })
    }

    /// The last step whose reading stands in the events, of earlier generations of this attempt;
    /// `None` where there is none, or they cannot be read.
    pub fn reading_before(&self, place: Moment) -> Option<u64> {
        let mut before = self
            .recent_events()
            .into_iter()
            .filter(|event| event.attempt == place.attempt && event.generation < place.generation);
        before.rfind(|e| matches!(e.kind, Kind::Data { .. })).map(|event| event.step)
    }

    fn recent_events(&self) -> Vec<Event> {
        let end = last_lines(&*self.storage, Path::new(EVENTS), RECENT_EVENTS_BYTES);
        end.unwrap_or_default()
    }

    /// Appends the line of the step that was just committed, the last of `tail`; after a failure
    /// (a full disk) also those that the file lacks. Says what is remarkable about it.
    pub fn committed(&mut self, place: Moment, tail: &[Committed]) {
        let written = match (tail.last(), self.behind) {
            (None, _) => Ok(()),
            (Some(line), false) => self.ledger.append(&Entry::Step(*line)),
            (Some(_), true) => self.catch_up(tail),
        };
        self.behind = written.is_err();
        self.warn_once(written, LEDGER);
        if let Some(line) = tail.last() {
            self.keep(line);
            self.remark(place, line);
        }
    }

    /// Every rank's state holds the newest lines; a disk may be full for longer.
    fn keep(&mut self, line: &Committed) {
        if !self.behind {
            return;
        }
        if self.waiting.len() == WAITING_LINES_MAX {
            self.waiting.pop_front();
        }
        self.waiting.push_back(*line);
    }

    fn remark(&mut self, place: Moment, line: &Committed) {
        let Committed { step, skipped, count, .. } = *line;
        // Epoch after epoch they are the same ones.
        let first = |said: &mut bool| !std::mem::replace(said, true);
        let message = if count > 0 && line.computed() == 0 {
            first(&mut self.undecoded_said).then(|| {
                format!(
                    "step {step}: none of its {count} samples could be decoded: no update; the \
                     ranks' logs name every such file"
                )
            })
        } else if skipped > 0 && first(&mut self.skipped_said) {
            Some(format!(
                "step {step}: {skipped} of {count} samples could not be decoded and were skipped; \
                 the ranks' logs name every such file"
            ))
        } else {
            None
        };
        if line.zero_update && line.computed() > 0 {
            let message = format!(
                "step {step}: gradients are not finite, or weights would be beyond 2^40; no update"
            );
            self.event(place, Kind::Warning { message });
        }
        if let Some(message) = message {
            self.event(place, Kind::Warning { message });
        }
    }

    fn catch_up(&mut self, tail: &[Committed]) -> std::io::Result<()> {
        if let Some(rollback) = &self.unwritten {
            self.ledger.append(rollback)?;
            self.unwritten = None;
        }
        let first = tail.first().map_or(u64::MAX, |line| line.step);
        let before = self.waiting.iter().filter(|line| line.step < first);
        self.ledger.catch_up(before.chain(tail))?;
        self.waiting.clear();
        Ok(())
    }

    /// Another process wrote until now: its last lines may be torn or missing.
    pub fn take_over(&mut self, tail: &[Committed], rollback: Option<Entry>) {
        self.ledger = Ledger::new(Arc::clone(&self.storage));
        self.unwritten = rollback;
        let step = tail.last().map_or(0, |line| line.step);
        self.waiting.retain(|line| line.step <= step);
        self.behind = true;
        self.settle(tail);
    }

    /// Writes events that wait, if it can be done now. Every rank may have some.
    pub fn settle_events(&mut self) {
        if !self.events.is_settled() {
            let written = self.events.settle();
            self.warn_once(written, EVENTS);
        }
    }

    /// Writes what could not be written before, if it can be now.
    pub fn settle(&mut self, tail: &[Committed]) {
        self.settle_events();
        if self.behind {
            let caught_up = self.catch_up(tail);
            self.behind = caught_up.is_err();
            self.warn_once(caught_up, LEDGER);
        }
    }

    /// Whether no line of the ledger lacks.
    pub fn has_ledger(&self) -> bool {
        !self.behind
    }

    /// Whether nothing lacks.
    pub fn is_settled(&self) -> bool {
        self.has_ledger() && self.events.is_settled()
    }

    /// Rewrites `world.json`. It serves whoever looks at a run, and a restart from resident state,
    /// which no power cut survives: a repair does not wait for the disk.
    pub fn world(&mut self, world: &World) {
        let text = serde_json::to_vec_pretty(world).expect("a world is plain data");
        let written = self.storage.replace(Path::new(WORLD), &text);
        self.warn_once(written, WORLD);
    }

    /// The last lines of progress, and of the record.
    pub fn finish(&mut self) {
        if !self.events.is_settled() {
            self.settle_events();
            self.metrics.iter_mut().for_each(Metrics::finish);
        }
        for (name, lacks) in [(EVENTS, !self.events.is_settled()), (LEDGER, !self.has_ledger())] {
            if lacks {
                act_on(&format!(
                    "{name} is not whole: its last lines could not be written before the end, and \
                     `kintsugi audit` cannot vouch for them"
                ));
            }
        }
        if let Some(progress) = &mut self.progress {
            progress.finish();
        }
    }

    fn warn_once(&mut self, result: std::io::Result<()>, name: &'static str) {
        if let Err(error) = result
            && self.failed.insert(name)
        {
            let later = "training goes on, what is missing is written when it can be";
            act_on(&format!("cannot write {name}: {error}; {later}"));
        }
    }
}

/// What the ledger has to take back before the next step is written: steps that were committed and
/// given up, or what a writer that died in the vote alone took for committed.
pub fn taken_back(storage: &dyn Storage, position: &Position, attempt: u32) -> Option<Entry> {
    let to = position.step;
    let later = ledger::counted_after(storage, to);
    if later.is_empty() {
        return None;
    }
    let given_up = position.gone_back > 0 || later.iter().any(|line| line.attempt < attempt);
    Some(match given_up {
        true => Entry::Rollback { to, attempt },
        false => Entry::Withdrawn { to, attempt },
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::observe::clock::RealClock;
    use crate::observe::ledger::{effective, of_storage};
    use crate::observe::storage::{Fault, MemoryStorage, Operation};
    use crate::train::state::position::{LEDGER_TAIL_MAX, Position};

    fn line(step: u64) -> Committed {
        let (epoch, count, skipped, mix, attempt) = (0, 10, 0, step, 1);
        let (cursor, zero_update) = (step * count, false);
        Committed { step, epoch, cursor, count, skipped, mix, attempt, zero_update }
    }

    /// Steps 1 to 3 are written, the disk is full for those up to `FULL_TO`, then it has room.
    const FULL_TO: u64 = 3 * LEDGER_TAIL_MAX as u64;

    fn after_a_full_disk(
        succeed: impl FnOnce(Journal, &Arc<MemoryStorage>) -> Journal,
    ) -> Vec<Entry> {
        let full = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&full);
        let storage = Arc::new(MemoryStorage::with_faults(move |operation, _| {
            let refused = operation == Operation::AppendLine && asked.load(Ordering::Relaxed);
            refused.then_some(Fault::Fails(std::io::ErrorKind::StorageFull))
        }));
        let mut journal = journal(&storage);
        let mut position = Position::start();
        let mut commit = |journal: &mut Journal, step| {
            position.commit(line(step));
            journal.committed(Moment::default(), &position.ledger_tail);
        };
        (1..=3).for_each(|step| commit(&mut journal, step));
        full.store(true, Ordering::Relaxed);
        (4..=FULL_TO).for_each(|step| commit(&mut journal, step));
        full.store(false, Ordering::Relaxed);
        let mut journal = succeed(journal, &storage);
        commit(&mut journal, FULL_TO + 1);
        of_storage(storage.as_ref()).unwrap()
    }

    fn journal(storage: &Arc<MemoryStorage>) -> Journal {
        let storage: Arc<dyn Storage> = Arc::<MemoryStorage>::clone(storage);
        Journal::new(storage, Arc::new(RealClock::default()), 0.0, None)
    }

    #[test]
    fn a_disk_that_has_room_again_gets_every_line() {
        let entries = after_a_full_disk(|journal, _| journal);
        let lines: Vec<Committed> = (1..=FULL_TO + 1).map(line).collect();
        assert_eq!(entries, lines.into_iter().map(Entry::Step).collect::<Vec<_>>());
    }

    #[test]
    fn an_event_that_was_not_written_is_written_before_the_end_is_left() {
        let ill = Arc::new(AtomicBool::new(true));
        let asked = Arc::clone(&ill);
        let storage = Arc::new(MemoryStorage::with_faults(move |operation, path| {
            let refused = path == Path::new(EVENTS) && asked.load(Ordering::Relaxed);
            (refused && operation == Operation::AppendLine).then_some(Fault::Tears(9))
        }));
        let mut journal = journal(&storage);
        journal.event(Moment::default(), Kind::Epoch { epoch: 7 });
        journal.settle(&[]);
        assert!(journal.has_ledger() && !journal.is_settled());
        ill.store(false, Ordering::Relaxed);
        journal.finish();
        let events = journal.recent_events();
        assert_eq!(events.len(), 1);
        assert_eq!(events[0].kind, Kind::Epoch { epoch: 7 });
    }

    #[test]
    fn who_takes_over_from_a_dead_writer_writes_what_it_has_and_names_the_rest() {
        let entries = after_a_full_disk(|_, storage| {
            let mut successor = journal(storage);
            successor.behind = true;
            successor
        });
        let first = FULL_TO + 2 - LEDGER_TAIL_MAX as u64;
        let gap = Entry::Gap { from: 4, to: first - 1, cursor: 10 * (first - 1), attempt: 1 };
        assert_eq!(entries[3], gap);
        let counted = effective(&entries).into_iter().map(|line| line.step);
        assert!(counted.eq((1..=3).chain(first..=FULL_TO + 1)));
    }
}
