//! Which size the world should have, and when somebody asks for it: decided here, performed in
//! `resize`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::cluster::world::World;
use crate::config::Every;
use crate::observe::notice::act_on;
use crate::observe::refusal::{if_there, insist};
use crate::observe::storage::Storage;
use crate::run_folder::{RANKS_REQUEST, RENEW, ranks_asked};

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
pub struct Wish {
    /// For good.
    pub target: u32,
    /// Now.
    pub now: u32,
    /// By a person.
    pub asked: bool,
}

impl Wish {
    /// On the wire.
    pub const BYTES: usize = 9;

    /// For the wire.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.target.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.now.to_le_bytes());
        bytes[8] = u8::from(self.asked);
        bytes
    }

    /// The reverse of `to_bytes`.
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
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

/// Where in its epoch a step stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InEpoch {
    /// Others of its epoch follow.
    Within,
    /// It is its epoch's last.
    Last,
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

    /// Growing is tried now.
    pub fn tried(&mut self, now: Duration) {
        self.since = now;
    }

    /// It failed, or brought ranks that died before they had proven themselves.
    pub fn fell_short(&mut self) {
        self.failures += 1;
    }

    /// Times in a row that growing failed, and how many are tried.
    pub fn tries(&self) -> (u32, u32) {
        (self.failures, self.tries_max)
    }

    /// Whether ranks that the world should have are missing, and still tried for.
    pub fn misses_ranks(&self, world: &World) -> bool {
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
    pub fn due_after(&self, world: &World, step: u64, stands: InEpoch) -> bool {
        let due = match self.regrow {
            Every::Epoch | Every::Auto => stands == InEpoch::Last,
            Every::Steps(steps) => step.is_multiple_of(steps),
            Every::Time(_) | Every::Never => false,
        };
        due && (world.ranks() as u32) < world.target
    }

    /// What the writer wants; a request that makes no sense is dropped.
    pub fn wish(&self, world: &World) -> Wish {
        let ranks = world.ranks() as u32;
        let read = if_there(insist(|| self.storage.read(Path::new(RANKS_REQUEST))));
        let text = read.unwrap_or_else(|error| {
            act_on(&format!("what the run was asked for is not done: {error}; ask again"));
            None
        });
        match ranks_asked(&text.unwrap_or_default(), world.owners.len()) {
            Some(target) => Wish { target, now: target, asked: true },
            None => {
                let target = world.target.max(ranks);
                let now = if self.misses_ranks(world) { target } else { ranks };
                Wish { target, now, asked: false }
            }
        }
    }

    /// The request has been answered. What was asked for meanwhile stays.
    pub fn forget_request(&self, world: &World, answered: Wish) {
        let wish = self.wish(world);
        let is_newer = wish.asked && (!answered.asked || wish.target != answered.target);
        let text = self.storage.read(Path::new(RANKS_REQUEST));
        if text.is_ok_and(|text| !is_newer && text.trim_ascii() != RENEW.as_bytes())
            && let Err(error) = self.storage.remove(Path::new(RANKS_REQUEST))
        {
            tracing::warn!("cannot remove {RANKS_REQUEST}: {error}; it will be answered again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::storage::MemoryStorage;

    fn world(ranks: u32, target: u32) -> World {
        World { target, ..World::of_test(ranks, 12) }
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
        assert!(!resizer.due_after(&world(3, 4), 20, InEpoch::Last), "not by the epoch");
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
        assert!(resizer.due_after(&world(3, 4), 20, InEpoch::Last));
        assert!(!resizer.due_after(&world(3, 4), 20, InEpoch::Within));
        assert!(!resizer.due_after(&world(4, 4), 20, InEpoch::Last));
        assert_eq!(resizer.asks(&world(3, 4), 1000 * SECOND), Asks::Nothing);
    }

    #[test]
    fn after_too_many_failures_ranks_are_missed_no_more_until_the_world_changes() {
        let mut resizer = resizer(Every::Epoch, None);
        (0..3).for_each(|_| resizer.fell_short());
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
            resizer.forget_request(&world(3, 4), wish);
            assert_eq!(resizer.asks(&world(3, 4), SECOND), Asks::Nothing, "answered once");
        }
        // What came while the world changed stays.
        let regrow = Wish { target: 4, now: 4, asked: false };
        for (text, answered) in [("2", Wish { now: 3, target: 3, asked: true }), ("4", regrow)] {
            let resizer = resizer(Every::Never, Some(text));
            resizer.forget_request(&world(3, 4), answered);
            assert_eq!(resizer.asks(&world(3, 4), SECOND), Asks::Size, "{text}");
        }
        let renewal = resizer(Every::Never, Some(RENEW));
        renewal.forget_request(&world(3, 4), regrow);
        assert_eq!(renewal.asks(&world(3, 4), SECOND), Asks::Renewal);
        assert!(!resizer(Every::Never, Some("13")).wish(&world(3, 3)).asked, "12 owners");
        assert!(!resizer(Every::Never, Some("many")).wish(&world(3, 3)).asked);
    }
}
