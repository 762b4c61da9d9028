//! A world that changes its size on purpose, between two steps: back to the ranks it should have
//! (`recovery.regrow`), or to as many as somebody asks for (`kintsugi scale`).
//!
//! The writer rank asks with a bit of the vote; once that step is committed, everybody takes part.
//! Then the writer says what it wants, all agree that they heard it, and the world grows (spawn and
//! merge, as for a replacement) or the ranks beyond the new size leave. Whatever dies meanwhile is
//! repaired as always: the run goes on with the world that lives, and asks again later.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::cluster::recovery::driver::{Growth, grow, recover};
use crate::cluster::recovery::{Policy, Repaired};
use crate::cluster::world::World;
use crate::config::{Every, Rung};
use crate::observe::event::{Kind, Phases, ResizeRecord};
use crate::observe::result::Status;
use crate::observe::storage::Storage;
use crate::run_folder::{RANKS_REQUEST, RENEW};

use crate::train::TrainError;
use crate::train::repair::mending::Unreported;
use crate::train::repair::mending::newcomers;
use crate::train::trainer::Trainer;

/// What the writer is to ask for with its next vote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asks {
    /// Nothing.
    Nothing,
    /// Another number of ranks.
    Size,
    /// The end at this step: launch starts the run again, on other nodes.
    Renewal,
}

/// What the writer tells all ranks: the ranks that the world is to have for good, those it is to
/// have now (not more than it has after too many failures), and whether somebody asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Wish {
    target: u32,
    now: u32,
    asked: bool,
}

impl Wish {
    const BYTES: usize = 9;

    fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.target.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.now.to_le_bytes());
        bytes[8] = u8::from(self.asked);
        bytes
    }

    fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| bytes[at + byte]));
        Self { target: word(0), now: word(4), asked: bytes[8] != 0 }
    }
}

/// When a rank asks for another size. Every rank has one, so that any can become the writer.
pub struct Resizer {
    storage: Arc<dyn Storage>,
    regrow: Every,
    tries_max: u32,
    /// Times in a row that growing failed.
    failures: u32,
    /// Since when the world has been as it is, or was last tried to be enlarged.
    since: Duration,
}

impl Resizer {
    /// `regrow`: when ranks that were lost are to come back; `tries_max`: failures in a row after
    /// which they are not missed any more.
    pub fn new(storage: Arc<dyn Storage>, regrow: Every, tries_max: u32) -> Self {
        Self { storage, regrow, tries_max, failures: 0, since: Duration::ZERO }
    }

    /// The world has just lost ranks: the time to regrow begins, and so do the tries.
    pub fn shrunk(&mut self, now: Duration) {
        (self.since, self.failures) = (now, 0);
    }

    fn misses_ranks(&self, world: &World) -> bool {
        (world.ranks() as u32) < world.target && self.failures < self.tries_max
    }

    /// What the writer asks for with its next vote.
    pub fn asks(&self, world: &World, now: Duration) -> Asks {
        let due = match self.regrow {
            Every::Time(every) => now.saturating_sub(self.since) >= every,
            _ => false,
        };
        match self.storage.read(Path::new(RANKS_REQUEST)) {
            Ok(text) if text.trim_ascii() == RENEW.as_bytes() => Asks::Renewal,
            Ok(_) => Asks::Size,
            Err(_) if due && self.misses_ranks(world) => Asks::Size,
            Err(_) => Asks::Nothing,
        }
    }

    /// Whether everybody knows, without being asked, that ranks are to come back after this step.
    pub fn due_after(&self, world: &World, step: u64, epoch_ended: bool) -> bool {
        let due = match self.regrow {
            Every::Epoch | Every::Auto => epoch_ended,
            Every::Steps(steps) => step.is_multiple_of(steps),
            Every::Time(_) | Every::Never => false,
        };
        due && (world.ranks() as u32) < world.target
    }

    /// What the writer wants; a request that makes no sense is dropped.
    fn wish(&self, world: &World) -> Wish {
        let ranks = world.ranks() as u32;
        let text = self.storage.read(Path::new(RANKS_REQUEST)).unwrap_or_default();
        let asked = String::from_utf8_lossy(&text).trim().parse::<u32>().ok();
        match asked.filter(|asked| (1..=world.owners.len() as u32).contains(asked)) {
            Some(target) => Wish { target, now: target, asked: true },
            None => {
                let target = world.target.max(ranks);
                let now = if self.misses_ranks(world) { target } else { ranks };
                Wish { target, now, asked: false }
            }
        }
    }

    /// The request is being answered.
    fn forget_request(&self) {
        if self.storage.read(Path::new(RANKS_REQUEST)).is_ok()
            && let Err(error) = self.storage.remove(Path::new(RANKS_REQUEST))
        {
            tracing::warn!("cannot remove {RANKS_REQUEST}: {error}; it will be answered again");
        }
    }
}

impl Trainer {
    /// What all ranks do between two steps once a change of size was asked for. A rank that
    /// leaves ends its run here.
    pub(in crate::train) fn resize(&mut self) -> Result<Option<Status>, TrainError> {
        let writer = self.is_writer();
        let mut told = match writer {
            true => self.resizer.wish(&self.world).to_bytes(),
            false => [0; Wish::BYTES],
        };
        let heard = self.comm.broadcast(&mut told, 0).map_err(TrainError::from);
        self.vote(heard)?;
        let wish = Wish::from_bytes(told);
        self.replica.position.resize_due = false;
        self.world.target = wish.target;
        if writer {
            self.resizer.forget_request();
        }
        let before = self.world.ranks();
        let mut to = wish.now as usize;
        if to != before && self.world.spares().next().is_some() {
            // They would have to learn the new size, and would fill the seats that were given up.
            to = before;
            self.world.target = before as u32;
            self.refuse_to_resize();
        }
        let cause = if wish.asked { "scale" } else { "regrow" };
        if to > before {
            self.enlarge(to, cause)?;
        } else if to < before {
            if self.comm.rank() >= to {
                self.left = true;
                return Ok(Some(Status::Completed));
            }
            self.reduce(to, cause)?;
        }
        Ok(None)
    }

    fn refuse_to_resize(&mut self) {
        if self.is_writer() {
            let message = "the number of ranks stays: it cannot change while spares wait";
            self.event(Kind::Warning { message: message.into() });
        }
    }

    fn enlarge(&mut self, to: usize, cause: &str) -> Result<(), TrainError> {
        let (before, old) = (self.world.ranks(), self.world.clone());
        self.resizer.since = self.clock.now();
        let policy = &self.plan.policy;
        let grown = grow(self.comm.as_mut(), &mut self.world, to, policy, &mut self.replica);
        match grown? {
            Growth::Grown(repaired) => {
                self.newcomers = newcomers(&old, &self.world);
                let short = self.world.ranks() < to;
                self.resizer.failures = if short { self.resizer.failures + 1 } else { 0 };
                self.resized(before, cause, repaired, usize::MAX);
                Ok(())
            }
            Growth::Refused(reason) => {
                self.could_not_grow(to, &reason);
                Ok(())
            }
            Growth::Broken(error, reason) => {
                self.could_not_grow(to, &reason);
                Err(error.into())
            }
        }
    }

    fn could_not_grow(&mut self, to: usize, reason: &str) {
        self.resizer.failures += 1;
        if !self.is_writer() {
            return;
        }
        let (failures, tries) = (self.resizer.failures, self.resizer.tries_max);
        let next = match self.resizer.misses_ranks(&self.world) {
            true => format!("try {failures} of {tries}"),
            false => "given up until the world changes or somebody asks".into(),
        };
        let message = format!("the world could not grow to {to} ranks ({next}): {reason}");
        self.event(Kind::Warning { message });
    }

    /// The ranks beyond `to` leave: for those who stay it is a shrink whose dead are volunteers.
    fn reduce(&mut self, to: usize, cause: &str) -> Result<(), TrainError> {
        let before = self.world.ranks();
        // Somebody asked for so few.
        let ladder = vec![Rung::Shrink];
        let policy = Policy { ladder, ranks_min: 1, ..self.plan.policy.clone() };
        self.replica.leave_from = Some(to);
        let recovered = recover(self.comm.as_mut(), &mut self.world, &policy, &mut self.replica);
        self.replica.leave_from = None;
        let repaired = recovered?;
        self.resized(before, cause, repaired, to);
        Ok(())
    }

    /// The world has another size. Members with a rank below `leave_from` that are gone died.
    fn resized(&mut self, before: usize, cause: &str, repaired: Repaired, leave_from: usize) {
        let (generation, ranks) = (self.world.generation, self.world.ranks() as u32);
        let mut died = repaired.clone();
        died.lost.retain(|member| (member.rank as usize) < leave_from);
        if !died.lost.is_empty() {
            died.seconds = Phases::default();
            let holders = self.survivors();
            let unreported = Unreported { generation, ranks, repaired: died, holders };
            self.mended.unreported.push(unreported);
        }
        self.mended.resized.push(ResizeRecord {
            generation,
            step: repaired.step,
            cause: cause.into(),
            from: before as u32,
            to: ranks,
            seconds: repaired.seconds,
        });
        self.replica.position.exact &= self.plan.reproducible;
        self.survived();
        if self.is_writer() {
            self.journal.world(&self.world);
            self.keeper.take_over(&self.replica, &self.world, &mut self.journal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::world::{Member, Role};
    use crate::observe::storage::MemoryStorage;

    fn world(ranks: u32, target: u32) -> World {
        let member = |rank| Member {
            member: rank,
            rank,
            role: Role::Active,
            pid: rank,
            host: "here".into(),
            node: 0,
        };
        let mut world = World::initial(1, (0..ranks).map(member).collect(), 12);
        world.target = target;
        world
    }

    fn resizer(regrow: Every, request: Option<&str>) -> Resizer {
        let storage = Arc::new(MemoryStorage::default());
        if let Some(text) = request {
            storage.write_whole(Path::new(RANKS_REQUEST), &[text.as_bytes()]).unwrap();
        }
        Resizer::new(storage, regrow, 3)
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn missing_ranks_are_asked_for_when_their_time_has_come() {
        let mut resizer = resizer(Every::Time(30 * SECOND), None);
        resizer.shrunk(10 * SECOND);
        assert_eq!(resizer.asks(&world(3, 4), 39 * SECOND), Asks::Nothing);
        assert_eq!(resizer.asks(&world(3, 4), 40 * SECOND), Asks::Size);
        assert_eq!(resizer.asks(&world(4, 4), 40 * SECOND), Asks::Nothing, "nobody is missing");
        assert!(!resizer.due_after(&world(3, 4), 20, true), "not by the epoch");
        let wish = resizer.wish(&world(3, 4));
        assert_eq!(wish, Wish { target: 4, now: 4, asked: false });
        assert_eq!(Wish::from_bytes(wish.to_bytes()), wish);
    }

    #[test]
    fn launchs_word_asks_for_a_renewal_and_is_no_number() {
        let resizer = resizer(Every::Never, Some("renew\n"));
        assert_eq!(resizer.asks(&world(3, 3), SECOND), Asks::Renewal);
        assert!(!resizer.wish(&world(3, 3)).asked);
    }

    #[test]
    fn an_epochs_end_is_known_to_all() {
        let resizer = resizer(Every::Epoch, None);
        assert!(resizer.due_after(&world(3, 4), 20, true));
        assert!(!resizer.due_after(&world(3, 4), 20, false));
        assert!(!resizer.due_after(&world(4, 4), 20, true));
        assert_eq!(resizer.asks(&world(3, 4), 1000 * SECOND), Asks::Nothing);
    }

    #[test]
    fn after_too_many_failures_ranks_are_missed_no_more_until_the_world_changes() {
        let mut resizer = resizer(Every::Epoch, None);
        resizer.failures = 3;
        assert_eq!(resizer.wish(&world(3, 4)), Wish { target: 4, now: 3, asked: false });
        resizer.shrunk(SECOND);
        assert_eq!(resizer.wish(&world(2, 4)), Wish { target: 4, now: 4, asked: false });
    }

    #[test]
    fn a_request_counts_whatever_was_wanted_before_and_nonsense_does_not() {
        for (text, now, asked) in [("6\n", 6, true), ("2", 2, true), ("0", 4, false)] {
            let resizer = resizer(Every::Never, Some(text));
            assert_eq!(resizer.asks(&world(3, 4), SECOND), Asks::Size);
            let wish = resizer.wish(&world(3, 4));
            assert_eq!((wish.now, wish.asked), (now, asked), "{text}");
            resizer.forget_request();
            assert_eq!(resizer.asks(&world(3, 4), SECOND), Asks::Nothing, "answered once");
        }
        assert!(!resizer(Every::Never, Some("13")).wish(&world(3, 3)).asked, "12 owners");
        assert!(!resizer(Every::Never, Some("many")).wish(&world(3, 3)).asked);
    }
}
