//! Repairs that are over and not yet written down. How a process died is told by its guardian, and
//! a repair can be faster than that: the record waits for the word, training does not. Every
//! survivor keeps it, since the one that is to write it may die meanwhile.

use std::collections::VecDeque;
use std::time::Duration;

use crate::cluster::recovery::{Note, Repaired};
use crate::observe::event::{Kind, Lost, ROLLBACK, RecoveryRecord, ResizeRecord, name_of};
use crate::train::record::cause;
use crate::train::record::journal::{Journal, Stamp};
use crate::train::state::rank::Rank;

/// How often a guardian's word is looked for where nothing else is left to do.
const WITNESS_POLL: Duration = Duration::from_millis(2);

/// Committed steps after its time until a record counts as written by whoever was to write it:
/// ranks look at their clocks within one step of each other.
const STEPS_UNTIL_WRITTEN: u32 = 2;

/// How this process came into the world that has not committed a step yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begin {
    /// With all others.
    Started,
    /// As a replacement.
    Joined,
    /// It lived through a repair.
    Survived,
}

/// A world that has not committed a step yet: what is to be reported once everybody computes.
#[derive(Debug, Default)]
struct NewWorld {
    /// Since when it is whole (monotonic). Set on every rank or on none.
    since: Option<Duration>,
    begin: Option<Begin>,
    /// Repairs that no commit followed yet, oldest first. Every survivor keeps them: the one that
    /// reports may die.
    repairs: Vec<Repair>,
    /// Changes of size that no commit followed yet.
    resizes: Vec<ResizeRecord>,
}

/// A repair that is to be written down.
#[derive(Debug)]
pub struct Repair {
    /// The generation it made.
    pub generation: u32,
    /// The ranks it left.
    pub ranks: u32,
    /// What it did.
    pub repaired: Repaired,
    /// Members that lived through it, and so know of it.
    pub holders: Vec<u32>,
    /// Committed steps that they gave up.
    pub lost_steps: u64,
}

/// Whether a record's witness is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// There are steps to go on with.
    None,
    /// Nothing comes after.
    UntilDue,
}

/// A repair whose record waits for its witness.
#[derive(Debug)]
struct Unwritten {
    repair: Repair,
    /// Of the commit after it.
    stamp: Stamp,
    /// When it is written with what is known (monotonic).
    due: Duration,
    /// Committed steps since it was due.
    steps_after: u32,
}

/// The repairs that this rank lived through and that no line has told yet.
#[derive(Debug, Default)]
pub struct Repairs {
    new_world: NewWorld,
    /// Oldest first.
    unwritten: VecDeque<Unwritten>,
}

impl Repairs {
    /// The world is new to this process: its next step is watched.
    pub fn begins(&mut self, since: Duration, begin: Begin) {
        (self.new_world.since, self.new_world.begin) = (Some(since), Some(begin));
    }

    /// Since when the world is whole, until it has committed a step.
    pub fn whole_since(&self) -> Option<Duration> {
        self.new_world.since
    }

    /// Whether a repair lies behind this process that no commit has followed yet.
    pub fn unproved(&self) -> bool {
        matches!(self.new_world.begin, Some(Begin::Joined | Begin::Survived))
    }

    /// Whether this process lived through a repair that no commit has followed yet.
    pub fn survived(&self) -> bool {
        self.new_world.begin == Some(Begin::Survived)
    }

    /// A repair is over; it is written down behind the next commit.
    pub fn add(&mut self, repair: Repair) {
        self.new_world.repairs.push(repair);
    }

    /// Likewise a change of size.
    pub fn add_resize(&mut self, record: ResizeRecord) {
        self.new_world.resizes.push(record);
    }

    /// Writes down what began the work at hand, or keeps it until its witness has spoken: with
    /// `begun_seconds` after the first commit, without at an end that no commit preceded.
    pub fn report_begin(
        &mut self,
        rank: &mut Rank,
        journal: &mut Journal,
        begun_seconds: Option<f64>,
    ) {
        let reports = rank.reports();
        let world = std::mem::take(&mut self.new_world);
        if world.begin == Some(Begin::Survived) {
            rank.comm.lived_through_repair();
        }
        if let (Some(Begin::Started), Some(seconds), true) =
            (world.begin, begun_seconds, rank.is_writer())
        {
            let name = "begun".to_string();
            journal.event(rank.place(), Kind::Phase { name, seconds });
        }
        if begun_seconds.is_some() && reports && !world.repairs.is_empty() {
            rank.state.tidy();
        }
        self.await_witnesses(rank, journal, world.repairs, begun_seconds);
        for mut record in world.resizes.into_iter().filter(|_| reports) {
            record.seconds.extend(begun_seconds.map(|seconds| ("first_step".into(), seconds)));
            journal.event(rank.place(), Kind::Resized(record));
        }
    }

    /// Takes on what is to be written of repairs, on every rank that lived through them;
    /// `begun_seconds`: what the newest took from its end until everybody computed.
    fn await_witnesses(
        &mut self,
        rank: &Rank,
        journal: &Journal,
        repairs: Vec<Repair>,
        begun_seconds: Option<f64>,
    ) {
        let newest = repairs.len().saturating_sub(1);
        let stamp = journal.stamp(rank.place());
        let due = rank.clock.now() + rank.plan.witness_wait;
        for (index, mut repair) in repairs.into_iter().enumerate() {
            if let (Some(seconds), true) = (begun_seconds, index == newest) {
                repair.repaired.seconds.insert("first_step".into(), seconds);
            }
            self.unwritten.push_back(Unwritten { repair, stamp, due, steps_after: 0 });
        }
    }

    /// Writes down all that is left, before an end.
    pub fn report_rest(&mut self, rank: &mut Rank, journal: &mut Journal) {
        self.report_begin(rank, journal, None);
        self.settle(rank, journal, Patience::UntilDue);
    }

    /// Writes down what can be told, oldest first; forgets what another rank has written.
    pub fn settle(&mut self, rank: &Rank, journal: &mut Journal, patience: Patience) {
        while let Some(next) = self.unwritten.front_mut() {
            let writes = rank.is_first_of(&next.repair.holders);
            let late = rank.clock.now() >= next.due;
            if !writes {
                next.steps_after += u32::from(late);
                if next.steps_after <= STEPS_UNTIL_WRITTEN {
                    return;
                }
                self.unwritten.pop_front();
                continue;
            }
            let (attempt, storage) = (rank.world.attempt, rank.storage.as_ref());
            let mut lost = next.repair.repaired.lost.iter();
            if !late && !lost.all(|member| cause::is_told(storage, attempt, member)) {
                if patience == Patience::None {
                    return;
                }
                rank.clock.sleep(WITNESS_POLL);
                continue;
            }
            if let Some(next) = self.unwritten.pop_front() {
                write_down(rank, journal, next);
            }
        }
    }
}

fn write_down(rank: &Rank, journal: &mut Journal, unwritten: Unwritten) {
    let Unwritten { repair, stamp, .. } = unwritten;
    let Repair { generation, ranks, repaired, lost_steps, .. } = repair;
    let attempt = rank.world.attempt;
    // Whoever was to write it may have died since: just before it did, or just after. One who died
    // of the vote that ended the repair took it for done, and the others repaired anew.
    let told = journal.recovered(attempt);
    let is_told = |member: u32| told.iter().flat_map(|one| &one.lost).any(|l| l.member == member);
    let (storage, clock) = (rank.storage.as_ref(), rank.clock.as_ref());
    let untold = repaired.lost.iter().filter(|member| !is_told(member.member));
    let lost: Vec<Lost> = untold
        .map(|member| Lost {
            member: member.member,
            rank: member.rank,
            host: member.host.clone(),
            cause: cause::of(storage, clock, attempt, member),
        })
        .collect();
    let all_told = !repaired.lost.is_empty() || told.iter().any(|r| r.generation == generation);
    if lost.is_empty() && all_told {
        return;
    }
    let rung = match repaired.lost.is_empty() && lost_steps > 0 {
        true => ROLLBACK.into(),
        false => name_of(&repaired.rung),
    };
    let record = RecoveryRecord {
        generation,
        step: repaired.step + 1,
        lost,
        rung,
        lost_steps,
        ranks,
        seconds: repaired.seconds,
    };
    journal.event_of(stamp, Kind::Recovered(record));
}

/// What recovery said while it ran.
pub fn report_notes(rank: &Rank, journal: &mut Journal, notes: &[Note]) {
    for note in notes {
        let kind = match note {
            Note::RungDown { from, to, reason } => {
                Kind::RungDown { from: name_of(from), to: name_of(to), reason: reason.clone() }
            }
            Note::Retry { rung, reason } => Kind::Warning {
                message: format!("{} failed, trying again: {reason}", name_of(rung)),
            },
        };
        journal.event(rank.place(), kind);
    }
}
