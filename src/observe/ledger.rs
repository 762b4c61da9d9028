//! `RUN/ledger.jsonl`: one line per committed step, from what was *summed*; a rollback is a line
//! too. `kintsugi audit` compares it with the order.

use std::io;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::log::{JsonLines, parse_lines, read_lines, whole_lines};
use super::notice::act_on;
use super::refusal::{if_there, insist};
use super::storage::Storage;

mod audit;

pub use audit::{AuditReport, Finding, Problem, RoundsReport, Whole, audit, audit_rounds};

/// The ledger of a run, below its folder.
pub const LEDGER_FILE: &str = "ledger.jsonl";

/// A line.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    /// A committed step.
    Step(Committed),
    /// The run went back: steps after `to` no longer count.
    Rollback {
        /// Steps that still count.
        to: u64,
        /// The attempt that starts there.
        attempt: u32,
    },
    /// Steps after `to` were written by a writer that died in the vote and alone took them for
    /// committed: they never counted.
    Withdrawn {
        /// Steps that count.
        to: u64,
        /// The attempt.
        attempt: u32,
    },
    /// Steps that count and have no lines: those could not be written, and whoever had them is
    /// gone. Which samples entered their sums is not proved.
    Gap {
        /// The first of them.
        from: u64,
        /// The last.
        to: u64,
        /// Samples committed in the whole run, these steps included.
        cursor: u64,
        /// Writer's attempt.
        attempt: u32,
    },
}

/// What one committed step summed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Committed {
    /// Steps committed with this one (the first line has 1).
    pub step: u64,
    /// The epoch it belonged to.
    pub epoch: u64,
    /// Samples committed in the whole run, this step included.
    pub cursor: u64,
    /// Samples whose gradients entered the sum, skipped ones included.
    pub count: u64,
    /// Of them, images that could not be decoded.
    pub skipped: u64,
    /// Wrapping sum over the samples of `data::sampler::mix(epoch, id)`.
    pub mix: u64,
    /// Writer's attempt.
    pub attempt: u32,
    /// The summed gradients held something that is not a finite number, or nothing: the step was
    /// committed and counted, and changed no weight.
    #[serde(default, skip_serializing_if = "is_false")]
    pub zero_update: bool,
}

impl Committed {
    /// Samples that were really computed.
    pub fn computed(&self) -> u64 {
        self.count.saturating_sub(self.skipped)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form that serde asks for")]
fn is_false(value: &bool) -> bool {
    !value
}

/// Writes `RUN/ledger.jsonl`.
pub type Ledger = JsonLines<Entry>;

impl JsonLines<Entry> {
    /// The ledger of the run whose folder is the storage's root.
    pub fn new(storage: Arc<dyn Storage>) -> Self {
        Self::at(storage, LEDGER_FILE)
    }

    /// Appends what a dead writer, or a full disk, left out: the lines of `tail` (the last
    /// committed steps, oldest first, which every rank's state holds) that the file lacks. Steps
    /// before these that nobody has a line of get one that says so. Returns how many lines of
    /// `tail` it wrote.
    pub fn catch_up<'a>(
        &mut self,
        tail: impl IntoIterator<Item = &'a Committed>,
    ) -> io::Result<usize> {
        let end = self.storage().read_end(self.path(), LAST_BYTES_MAX)?;
        let last = last_step(self.path(), whole_lines(&end, LAST_BYTES_MAX))?;
        let mut missing = tail.into_iter().filter(|line| line.step > last).peekable();
        if let Some(first) = missing.peek().filter(|first| first.step > last + 1) {
            let (from, to, attempt) = (last + 1, first.step - 1, first.attempt);
            let cursor = first.cursor.saturating_sub(first.count);
            self.append(&Entry::Gap { from, to, cursor, attempt })?;
        }
        let mut appended = 0;
        for line in missing {
            self.append(&Entry::Step(*line))?;
            appended += 1;
        }
        Ok(appended)
    }
}

/// Lines looked at from the end of a ledger for its last whole one: torn lines are few.
const LAST_LINES_MAX: usize = 64;

/// Bytes looked at from the end of a ledger: many times as much as so many lines.
const LAST_BYTES_MAX: usize = 64 << 10;

/// The step after which a ledger's next line has to come, without reading all of it.
fn last_step(path: &Path, body: &[u8]) -> io::Result<u64> {
    let mut newlines = body.iter().enumerate().rev().filter(|&(_, &byte)| byte == b'\n');
    let start = newlines.nth(LAST_LINES_MAX).map_or(0, |(index, _)| index + 1);
    let last: Vec<Entry> = parse_lines(path, &body[start..])?;
    Ok(match last.last() {
        Some(Entry::Step(line)) => line.step,
        Some(Entry::Rollback { to, .. } | Entry::Withdrawn { to, .. } | Entry::Gap { to, .. }) => {
            *to
        }
        None => 0,
    })
}

/// All entries of a ledger.
pub fn read(path: &Path) -> io::Result<Vec<Entry>> {
    read_lines(path)
}

/// The lines of the steps that count in the end, in the order written: a rollback takes away those
/// after it.
pub fn effective(entries: &[Entry]) -> Vec<Committed> {
    let mut counted: Vec<Committed> = Vec::new();
    for entry in entries {
        match entry {
            Entry::Step(line) => counted.push(*line),
            Entry::Gap { .. } => {}
            Entry::Rollback { to, .. } | Entry::Withdrawn { to, .. } => {
                while counted.last().is_some_and(|line| line.step > *to) {
                    counted.pop();
                }
            }
        }
    }
    counted
}

/// Lines that a run's ledger counts although the run goes on before them. They are at its end, and
/// no more of it is read than it takes to know that.
pub fn counted_after(storage: &dyn Storage, step: u64) -> Vec<Committed> {
    let path = Path::new(LEDGER_FILE);
    let mut bytes_max = LAST_BYTES_MAX;
    loop {
        let read = insist(|| storage.read_end(path, bytes_max)).and_then(|end| {
            Ok((parse_lines(path, whole_lines(&end, bytes_max))?, end.len() < bytes_max))
        });
        let (entries, whole) = read.unwrap_or_else(|error| {
            act_on(&format!("steps that the ledger counts too often stay in it: {error}"));
            (Vec::new(), true)
        });
        match counted_in_end(&entries, step) {
            End::Reached(lines) => return lines,
            End::Earlier(lines) if whole => return lines,
            End::Earlier(_) => bytes_max = bytes_max.saturating_mul(8),
        }
    }
}

enum End {
    /// No line before these entries can count.
    Reached(Vec<Committed>),
    /// Some may.
    Earlier(Vec<Committed>),
}

/// Steps that count grow from line to line: before one that is not after `step`, and before a
/// rollback to there, nothing is.
fn counted_in_end(entries: &[Entry], step: u64) -> End {
    let counted = effective(entries);
    let back = |entry: &Entry| match entry {
        Entry::Rollback { to, .. } | Entry::Withdrawn { to, .. } => *to <= step,
        Entry::Step(_) | Entry::Gap { .. } => false,
    };
    let reached = entries.iter().any(back) || counted.iter().any(|line| line.step <= step);
    let lines = counted.into_iter().filter(|line| line.step > step).collect();
    if reached { End::Reached(lines) } else { End::Earlier(lines) }
}

/// The newest step that counts, as far as the end of a run's ledger knows.
///
/// # Errors
/// It cannot be read, or a line is damaged.
pub fn newest(storage: &dyn Storage) -> io::Result<Option<Committed>> {
    let path = Path::new(LEDGER_FILE);
    let end = insist(|| storage.read_end(path, LAST_BYTES_MAX))?;
    let entries = parse_lines(path, whole_lines(&end, LAST_BYTES_MAX))?;
    Ok(effective(&entries).last().copied())
}

/// All entries of a run's ledger; none where there is none, or its lines are damaged.
///
/// # Errors
/// It cannot be read now: nobody knows what it says.
pub fn of_storage(storage: &dyn Storage) -> io::Result<Vec<Entry>> {
    let path = Path::new(LEDGER_FILE);
    let body = if_there(insist(|| storage.read(path)))?.unwrap_or_default();
    Ok(parse_lines(path, &body).unwrap_or_default())
}

/// Skipped samples of the steps that count, behind this cursor and up to this step.
pub fn skipped_between(entries: &[Entry], after_cursor: u64, to_step: u64) -> u64 {
    let lines = effective(entries).into_iter();
    let within = lines.filter(|line| line.cursor > after_cursor && line.step <= to_step);
    within.map(|line| line.skipped).sum()
}

/// Steps that count and changed no weight.
pub fn zero_updates(entries: &[Entry]) -> u64 {
    effective(entries).iter().filter(|line| line.zero_update).count() as u64
}

/// Committed steps that rollbacks threw away. What was withdrawn never counted.
pub fn lost_steps(entries: &[Entry]) -> u64 {
    let mut counted: Vec<(u64, u64)> = Vec::new();
    let mut lost = 0;
    for entry in entries {
        match entry {
            Entry::Step(line) => counted.push((line.step, line.step)),
            Entry::Gap { from, to, .. } => counted.push((*from, *to)),
            Entry::Rollback { to, .. } => lost += cut_back(&mut counted, *to),
            Entry::Withdrawn { to, .. } => {
                cut_back(&mut counted, *to);
            }
        }
    }
    lost
}

/// Takes steps after `to` away from stretches (first, last) of steps; how many.
fn cut_back(counted: &mut Vec<(u64, u64)>, to: u64) -> u64 {
    let mut taken = 0;
    while let Some((first, last)) = counted.pop_if(|(_, last)| *last > to) {
        if first <= to {
            counted.push((first, to));
        }
        taken += last.saturating_sub(to.max(first.saturating_sub(1)));
    }
    taken
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::observe::storage::MemoryStorage;

    fn line(step: u64) -> Committed {
        Committed {
            step,
            epoch: 0,
            cursor: step * 10,
            count: 10,
            skipped: 0,
            mix: step,
            attempt: 1,
            zero_update: false,
        }
    }

    fn steps(lines: &[Committed]) -> Vec<u64> {
        lines.iter().map(|line| line.step).collect()
    }

    #[test]
    fn a_rollback_takes_away_the_steps_after_it() {
        let mut entries: Vec<Entry> = (1..=9).map(|step| Entry::Step(line(step))).collect();
        entries.push(Entry::Rollback { to: 6, attempt: 2 });
        entries.push(Entry::Step(line(7)));
        assert_eq!(steps(&effective(&entries)), [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(lost_steps(&entries), 3);
        entries.push(Entry::Rollback { to: 0, attempt: 3 });
        assert_eq!(effective(&entries), []);
        assert_eq!(lost_steps(&entries), 10);
    }

    #[test]
    fn a_step_that_only_a_dead_writer_committed_is_not_lost() {
        let mut entries: Vec<Entry> = (1..=4).map(|step| Entry::Step(line(step))).collect();
        entries.push(Entry::Withdrawn { to: 3, attempt: 1 });
        entries.push(Entry::Step(line(4)));
        assert_eq!((lost_steps(&entries), effective(&entries).len()), (0, 4));
    }

    #[test]
    fn a_successor_writes_exactly_what_the_dead_writer_did_not() {
        for written in 0..=8u64 {
            let storage = Arc::new(MemoryStorage::new());
            let mut dead = Ledger::new(storage.clone());
            for step in 1..=written {
                dead.append(&Entry::Step(line(step))).unwrap();
            }
            if written > 0 {
                let mut body = storage.read(Path::new(LEDGER_FILE)).unwrap();
                body.extend_from_slice(br#"{"step":{"st"#);
                storage.write_whole(Path::new(LEDGER_FILE), &[&body]).unwrap();
            }
            let mut successor = Ledger::new(storage.clone());
            let tail: Vec<Committed> = (1..=8).map(line).collect();
            assert_eq!(successor.catch_up(&tail).unwrap() as u64, 8 - written);
            let body = storage.read(Path::new(LEDGER_FILE)).unwrap();
            let entries: Vec<Entry> = parse_lines(Path::new(LEDGER_FILE), &body).unwrap();
            assert_eq!(steps(&effective(&entries)), (1..=8).collect::<Vec<_>>());
        }
    }

    #[test]
    fn steps_whose_lines_nobody_has_are_named_in_one_line() {
        let storage = Arc::new(MemoryStorage::new());
        let mut ledger = Ledger::new(storage.clone());
        for step in 1..=3 {
            ledger.append(&Entry::Step(line(step))).unwrap();
        }
        let tail: Vec<Committed> = (8..=9).map(line).collect();
        for written in [2, 0] {
            assert_eq!(ledger.catch_up(&tail).unwrap(), written);
        }
        let entries = of_storage(storage.as_ref()).unwrap();
        let gap = Entry::Gap { from: 4, to: 7, cursor: 70, attempt: 1 };
        assert_eq!(entries[3..], [gap, Entry::Step(line(8)), Entry::Step(line(9))]);
        for (to, lost) in [(9, 0), (8, 1), (7, 2), (5, 4), (3, 6), (1, 8)] {
            let back = [&entries[..], &[Entry::Rollback { to, attempt: 2 }]].concat();
            assert_eq!(lost_steps(&back), lost, "back to {to}");
        }
    }

    #[test]
    fn after_a_rollback_the_tail_begins_at_its_target() {
        let storage = Arc::new(MemoryStorage::new());
        let mut ledger = Ledger::new(storage);
        for step in 1..=5 {
            ledger.append(&Entry::Step(line(step))).unwrap();
        }
        ledger.append(&Entry::Rollback { to: 3, attempt: 2 }).unwrap();
        let tail: Vec<Committed> = (2..=4).map(line).collect();
        assert_eq!(ledger.catch_up(&tail).unwrap(), 1);
    }

    #[test]
    fn a_successor_finds_the_last_line_of_a_long_ledger() {
        let folder = tempfile::tempdir().unwrap();
        let storage = Arc::new(crate::observe::storage::FileSystem::new(folder.path()));
        let mut ledger = Ledger::new(storage);
        for step in 1..=2000 {
            ledger.append(&Entry::Step(line(step))).unwrap();
        }
        let bytes = std::fs::metadata(folder.path().join(LEDGER_FILE)).unwrap().len();
        assert!(bytes > 2 * LAST_BYTES_MAX as u64, "not long: {bytes}");
        let tail: Vec<Committed> = (1990..=2002).map(line).collect();
        assert_eq!(ledger.catch_up(&tail).unwrap(), 2);
        let steps = steps(&effective(&read(&folder.path().join(LEDGER_FILE)).unwrap()));
        assert_eq!(steps, (1..=2002).collect::<Vec<_>>());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn the_end_of_a_ledger_tells_which_lines_come_after_a_step(
            moves in prop::collection::vec((1..400u64, 0..6u64), 0..20),
            step in 0..3000u64,
        ) {
            let storage = MemoryStorage::new();
            let (mut body, mut entries, mut at) = (Vec::new(), Vec::new(), 0);
            for (forward, back) in moves {
                entries.extend((at + 1..=at + forward).map(|step| Entry::Step(line(step))));
                at = (at + forward).saturating_sub(back * back * 30);
                match back {
                    0 => {}
                    1 => entries.push(Entry::Withdrawn { to: at, attempt: 1 }),
                    _ => entries.push(Entry::Rollback { to: at, attempt: 1 }),
                }
            }
            for entry in &entries {
                serde_json::to_writer(&mut body, entry).unwrap();
                body.push(b'\n');
            }
            storage.write_whole(Path::new(LEDGER_FILE), &[&body]).unwrap();
            let all = effective(&entries).into_iter().filter(|line| line.step > step);
            prop_assert_eq!(counted_after(&storage, step), all.collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_64_bit_mix_survives_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let storage = Arc::new(crate::observe::storage::FileSystem::new(folder.path()));
        let written = Entry::Step(Committed { mix: u64::MAX - 1, ..line(1) });
        Ledger::new(storage).append(&written).unwrap();
        assert_eq!(read(&folder.path().join(LEDGER_FILE)).unwrap(), [written]);
    }
}
