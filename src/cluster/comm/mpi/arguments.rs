//! What the process that starts others tells them on their command line.

use kintsugi_ffi::life::Mark;
use thiserror::Error;

/// What a leader tells replacements, appended to their arguments as `--join STRING`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinArguments {
    /// Which attempt of this world to bring somebody in, from 1.
    pub attempt_of_join: u32,
    /// The rank that the replacement of each index takes.
    pub ranks: Vec<usize>,
    /// Ranks of the repaired world.
    pub world_ranks: usize,
    /// Who starts them: without it they never become members.
    pub leader: Mark,
}

/// A `--join` argument that no leader wrote.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "--join {0:?} is not ATTEMPT/RANKS/RANK,RANK.../LEADER; a recovering leader passes it, do not \
     type it"
)]
pub struct JoinSyntax(pub String);

impl JoinArguments {
    /// `ATTEMPT/WORLD_RANKS/RANK,RANK.../LEADER`
    pub fn to_argument(&self) -> String {
        let ranks: Vec<String> = self.ranks.iter().map(usize::to_string).collect();
        let (attempt, world_ranks, ranks) =
            (self.attempt_of_join, self.world_ranks, ranks.join(","));
        format!("{attempt}/{world_ranks}/{ranks}/{:x}", self.leader.word())
    }

    /// Reads what [`Self::to_argument`] wrote.
    ///
    /// # Errors
    /// Anything else, ranks outside the world included.
    pub fn parse(text: &str) -> Result<Self, JoinSyntax> {
        Self::read(text).ok_or_else(|| JoinSyntax(text.to_owned()))
    }

    fn read(text: &str) -> Option<Self> {
        let mut parts = text.split('/');
        let attempt_of_join = parts.next()?.parse().ok()?;
        let world_ranks: usize = parts.next()?.parse().ok()?;
        let ranks: Vec<usize> =
            parts.next()?.split(',').map(|rank| rank.parse().ok()).collect::<Option<_>>()?;
        let leader = Mark::from_word(u64::from_str_radix(parts.next()?, 16).ok()?);
        let sound = parts.next().is_none() && ranks.iter().all(|rank| *rank < world_ranks);
        sound.then_some(Self { attempt_of_join, ranks, world_ranks, leader })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn join_arguments_survive_the_command_line(
            attempt_of_join in any::<u32>(), leader in any::<u64>(),
            (world_ranks, ranks) in (1_usize..5000).prop_flat_map(|n| {
                (Just(n), proptest::collection::vec(0..n, 1..20))
            }),
        ) {
            let leader = Mark::from_word(leader);
            let arguments = JoinArguments { attempt_of_join, ranks, world_ranks, leader };
            prop_assert_eq!(JoinArguments::parse(&arguments.to_argument()), Ok(arguments));
        }

        #[test]
        fn what_no_leader_wrote_is_refused_not_panicked_on(text in "[0-9,/x-]{0,16}") {
            if let Ok(arguments) = JoinArguments::parse(&text) {
                prop_assert!(arguments.ranks.iter().all(|rank| *rank < arguments.world_ranks));
                prop_assert!(!arguments.ranks.is_empty());
            }
        }
    }
}
