//! What a rank does between two steps when the world has to be repaired, and what is written
//! about it once everybody computes again.

use std::time::Duration;

use crate::cluster::comm::CommError;
use crate::cluster::guard::{Activity, pulse};
use crate::cluster::recovery::driver::recover;
use crate::cluster::recovery::{GaveUp, Note, Repaired};
use crate::cluster::world::{Member, Role, World};
use crate::config::Rung;
use crate::observe::event::{Kind, ResizeRecord};

use crate::train::TrainError;
use crate::train::trainer::Trainer;

/// Repairs without a committed step between before the run gives up.
const REPAIRS_WITHOUT_STEP_MAX: u32 = 20;

/// How this process came into the world that has not committed a step yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::train) enum Begin {
    /// With all others.
    Started,
    /// As a replacement.
    Joined,
    /// It lived through a repair.
    Survived,
}

/// What is to be reported once everybody computes again.
#[derive(Debug, Default)]
pub(in crate::train) struct Mended {
    /// Since when the world is whole (monotonic), until it has committed a step. Set on every rank
    /// or on none.
    pub at: Option<Duration>,
    begin: Option<Begin>,
    /// Repairs that no commit followed yet, oldest first. Every survivor keeps them: the one that
    /// reports may die.
    pub unreported: Vec<Unreported>,
    /// Changes of size that no commit followed yet.
    pub resized: Vec<ResizeRecord>,
}

/// A repair that no commit followed yet.
#[derive(Debug)]
pub(in crate::train) struct Unreported {
    /// The generation it made.
    pub generation: u32,
    /// The ranks it left.
    pub ranks: u32,
    /// What it did.
    pub repaired: Repaired,
    /// Members that lived through it, and so know of it.
    pub holders: Vec<u32>,
}

impl Mended {
    /// Whether a repair lies behind this process that no commit has followed yet.
    pub(in crate::train) fn unproved(&self) -> bool {
        matches!(self.begin, Some(Begin::Joined | Begin::Survived))
    }

    pub(in crate::train) fn since(at: Duration, begin: Begin) -> Self {
        Self { at: Some(at), begin: Some(begin), ..Self::default() }
    }
}

/// New spares on their way in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::train) enum Recruits {
    #[default]
    None,
    /// The writer has heard of them, and asks for a gathering.
    Known,
    /// All have agreed to gather before the next step.
    Agreed,
}

impl Trainer {
    /// A gathering without a failure, at a step boundary: new spares come in.
    pub(in crate::train) fn take_in_recruits(&mut self) -> Result<(), TrainError> {
        self.repair(&CommError::Revoked)
    }

    /// Repairs the world, or ends with the ladder.
    pub(in crate::train) fn repair(&mut self, error: &CommError) -> Result<(), TrainError> {
        pulse().enter(Activity::Recovery);
        self.repairs_without_step += 1;
        if self.repairs_without_step > REPAIRS_WITHOUT_STEP_MAX {
            let text = format!("{REPAIRS_WITHOUT_STEP_MAX} repairs without a committed step");
            return Err(TrainError::JobLost(text));
        }
        let planned = std::mem::take(&mut self.recruits) == Recruits::Agreed;
        let begun = self.clock.now();
        let detect = self.keeper.seconds_since_fault();
        let before = self.world.clone();
        let ladder = &self.plan.policy;
        let result = recover(self.comm.as_mut(), &mut self.world, ladder, &mut self.replica);
        let notes = std::mem::take(&mut self.replica.notes);
        self.newcomers = newcomers(&before, &self.world);
        let mut repaired = match result {
            Ok(repaired) => repaired,
            Err(GaveUp::Minority(why)) => return Err(TrainError::Minority(why)),
            Err(reason) => {
                if self.comm.rank() == 0 {
                    self.report_notes(&notes);
                }
                return Err(reason.into());
            }
        };
        if let Some(detect) = detect {
            repaired.seconds.insert("detect".into(), detect);
        }
        if self.world.ranks() < before.ranks() {
            self.replica.position.exact &= self.plan.reproducible;
            self.resizer.shrunk(self.clock.now());
        }
        if self.reports() {
            self.report_notes(&notes);
            let held = (self.clock.now() - begun).as_secs_f64();
            if planned && repaired.lost.is_empty() {
                let name = "refill".to_string();
                self.event(Kind::Phase { name, seconds: held });
            } else {
                let phase = self.replica.stage.name().to_string();
                self.event(Kind::FailureDetected { phase, error: error.to_string() });
            }
            self.journal.world(&self.world);
            self.report_spares(&before);
            let restore = repaired.seconds.get("restore").copied().unwrap_or(0.0);
            for way in std::mem::take(&mut self.replica.given) {
                self.event(Kind::Phase { name: way.name().into(), seconds: restore });
            }
        }
        if self.is_writer() {
            self.keeper.take_over(&self.replica, &self.world, &mut self.journal);
        }
        let (generation, ranks) = (self.world.generation, self.world.ranks() as u32);
        if !(planned && repaired.lost.is_empty()) {
            let holders = self.survivors();
            let unreported = Unreported { generation, ranks, repaired, holders };
            self.mended.unreported.push(unreported);
        }
        self.make_up_for_evaluation();
        self.survived();
        Ok(())
    }

    /// The world is whole again, or has another size: its next step is watched.
    pub(in crate::train) fn survived(&mut self) {
        (self.mended.at, self.mended.begin) = (Some(self.clock.now()), Some(Begin::Survived));
        self.watch_neighbours();
    }

    /// Whether this is the lowest rank that lived through the repairs at hand: the newcomers of
    /// the last one know nothing of them.
    pub(in crate::train) fn reports(&self) -> bool {
        self.is_first_of(&self.survivors())
    }

    /// Whether this is the lowest rank of these members, as far as they live. Where recovery gave
    /// up, ranks of the communicator are no longer those of the world.
    pub(in crate::train) fn is_first_of(&self, members: &[u32]) -> bool {
        let (living, (pid, host)) = (&self.replica.living, &self.replica.identity);
        let gave_up = !living.is_empty();
        let ranks = (0..self.world.ranks()).filter_map(|rank| self.world.member_at(rank));
        let lives = |m: &&Member| !gave_up || living.contains(&(m.pid, m.host.clone()));
        let first = ranks.filter(lives).find(|m| members.contains(&m.member));
        first.is_some_and(|first| match gave_up {
            true => (first.pid, &first.host) == (*pid, host),
            false => first.rank == self.comm.rank() as u32,
        })
    }

    /// Members that are ranks since before the last repair or change of size.
    pub(in crate::train) fn survivors(&self) -> Vec<u32> {
        let ranks = (0..self.world.ranks()).filter_map(|rank| self.world.member_at(rank));
        ranks.map(|m| m.member).filter(|member| !self.newcomers.contains(member)).collect()
    }

    /// Whether nobody waits any more.
    pub(in crate::train) fn spares_are_used_up(&self) -> bool {
        self.world.spares().all(|spare| self.dead_spares.contains(&spare.member))
    }

    /// What became of the spares in a repair.
    fn report_spares(&mut self, before: &World) {
        for spare in before.spares() {
            let now = self.world.members.iter().find(|m| m.member == spare.member);
            let state = match now.map(|m| m.role) {
                Some(Role::Spare) => continue,
                Some(Role::Active) => "promoted",
                None if self.dead_spares.contains(&spare.member) => continue,
                None => "lost",
            };
            self.event(Kind::Spare { member: spare.member, state: state.into() });
        }
        let known = |member: &u32| before.members.iter().any(|m| m.member == *member);
        let joined: Vec<u32> = self.world.spares().map(|m| m.member).collect();
        for member in joined.into_iter().filter(|member| !known(member)) {
            self.event(Kind::Spare { member, state: "joined".into() });
        }
        self.dead_spares.clear();
    }

    /// The writer's look at the spares, once per step: one that died is no failure of the world,
    /// only a line, and a shorter list for whoever reads `world.json`.
    pub(in crate::train) fn look_at_spares(&mut self) {
        if self.recruits == Recruits::None && self.comm.recruits_wait() {
            self.recruits = Recruits::Known;
        }
        let failed = self.comm.failed_spares();
        if failed.len() == self.dead_spares.len() {
            return;
        }
        let members: Vec<u32> = self.world.spares().map(|m| m.member).collect();
        for member in failed.into_iter().filter_map(|index| members.get(index).copied()) {
            if self.dead_spares.insert(member) {
                self.event(Kind::Spare { member, state: "lost".into() });
            }
        }
        let mut picture = self.world.clone();
        picture.members.retain(|m| !self.dead_spares.contains(&m.member));
        self.journal.world(&picture);
    }

    fn report_notes(&mut self, notes: &[Note]) {
        for note in notes {
            let kind = match note {
                Note::RungDown { from, to, reason } => Kind::RungDown {
                    from: rung_name(*from).into(),
                    to: rung_name(*to).into(),
                    reason: reason.clone(),
                },
                Note::Retry { rung, reason } => Kind::Warning {
                    message: format!("{} failed, trying again: {reason}", rung_name(*rung)),
                },
            };
            self.event(kind);
        }
    }

    /// Writes down what began the work at hand, or owes it: with `begun_seconds` after the first
    /// commit, without at an end that no commit preceded.
    pub(in crate::train) fn report_begin(&mut self, begun_seconds: Option<f64>) {
        let reports = self.reports();
        let mut mended = std::mem::take(&mut self.mended);
        if mended.begin == Some(Begin::Survived) {
            self.comm.lived_through_repair();
        }
        if let (Some(Begin::Started), Some(seconds), true) =
            (mended.begin, begun_seconds, self.is_writer())
        {
            let name = "begun".to_string();
            self.event(Kind::Phase { name, seconds });
        }
        if begun_seconds.is_some() && reports && !mended.unreported.is_empty() {
            self.replica.tidy();
        }
        self.owe(std::mem::take(&mut mended.unreported), begun_seconds);
        for mut record in mended.resized.into_iter().filter(|_| reports) {
            record.seconds.extend(begun_seconds.map(|seconds| ("first_step".into(), seconds)));
            self.event(Kind::Resized(record));
        }
    }
}

/// Members that became ranks between two worlds.
pub(in crate::train) fn newcomers(before: &World, after: &World) -> Vec<u32> {
    let ranks = |world: &World| -> Vec<u32> {
        (0..world.ranks()).filter_map(|rank| Some(world.member_at(rank)?.member)).collect()
    };
    let before = ranks(before);
    ranks(after).into_iter().filter(|member| !before.contains(member)).collect()
}

/// As in the configuration.
pub fn rung_name(rung: Rung) -> &'static str {
    match rung {
        Rung::Spare => "spare",
        Rung::Respawn => "respawn",
        Rung::Shrink => "shrink",
        Rung::Restart => "restart",
    }
}
