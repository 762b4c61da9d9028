//! When chaos strikes, and whom: a pure function of the seed, so that a storm can be repeated, as
//! far as moments go (which step they meet depends on the machine).

use std::time::Duration;

use crate::cluster::world::{Member, Role};
use crate::config::seed::{Stream, purpose};

/// Keeps these draws apart from those of `[faults]`.
const CHAOS: u64 = 0x0063_6861_6F73;

/// One blow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Blow {
    /// Its number, from 1.
    pub number: u64,
    /// Since the storm began.
    pub at: Duration,
    /// Modulo the number of candidates: the victim.
    pub draw: u64,
}

/// The blows of a seed, in order of time, without end: gaps are exponential.
#[derive(Debug, Clone)]
pub struct Blows {
    mean: Duration,
    seed: u64,
    number: u64,
    at: Duration,
}

impl Blows {
    /// `mean`: seconds between two blows, on average; positive.
    pub fn new(mean: Duration, seed: u64) -> Self {
        Self { mean, seed, number: 0, at: Duration::ZERO }
    }
}

impl Iterator for Blows {
    type Item = Blow;

    fn next(&mut self) -> Option<Blow> {
        self.number += 1;
        let mut stream = Stream::new(&[self.seed, purpose::FAULTS, CHAOS, self.number]);
        let gap = -self.mean.as_secs_f64() * (1.0 - stream.unit()).ln();
        self.at += Duration::from_secs_f64(gap);
        Some(Blow { number: self.number, at: self.at, draw: stream.next_u64() })
    }
}

/// Who may be struck.
#[derive(Debug, Clone, PartialEq, Eq, Default, clap::Args)]
pub struct Targets {
    /// Strikes only these ranks
    #[arg(long, value_name = "RANK,...", value_delimiter = ',')]
    pub ranks: Vec<u32>,
    /// Strikes waiting spares too
    #[arg(long)]
    pub spares: bool,
}

/// The victim of a draw among the members on this host, ranks first; `None`: nobody fits.
pub fn victim<'a>(
    members: &'a [Member],
    host: &str,
    targets: &Targets,
    draw: u64,
) -> Option<&'a Member> {
    let fits = |member: &&Member| match member.role {
        Role::Active => targets.ranks.is_empty() || targets.ranks.contains(&member.rank),
        Role::Spare => targets.spares,
    };
    let mut candidates: Vec<&Member> =
        members.iter().filter(|member| member.host == host).filter(fits).collect();
    candidates.sort_by_key(|member| (member.role == Role::Spare, member.rank, member.member));
    let count = candidates.len() as u64;
    if count == 0 { None } else { Some(candidates[(draw % count) as usize]) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn member(rank: u32, role: Role, host: &str) -> Member {
        Member { member: rank, rank, role, pid: 100 + rank, host: host.into(), node: 0 }
    }

    #[test]
    fn gaps_have_the_mean_that_was_asked_for() {
        let last = Blows::new(Duration::from_secs(10), 3).take(20_000).last().unwrap();
        let mean = last.at.as_secs_f64() / 20_000.0;
        assert!((mean - 10.0).abs() < 0.3, "{mean}");
    }

    #[test]
    fn only_those_who_were_named_and_are_here_are_struck() {
        let members = [
            member(0, Role::Active, "here"),
            member(1, Role::Active, "here"),
            member(2, Role::Active, "there"),
            member(3, Role::Spare, "here"),
        ];
        let struck = |targets: &Targets| {
            let mut ranks: Vec<u32> = (0..12)
                .filter_map(|draw| victim(&members, "here", targets, draw))
                .map(|member| member.rank)
                .collect();
            ranks.sort_unstable();
            ranks.dedup();
            ranks
        };
        assert_eq!(struck(&Targets::default()), [0, 1]);
        assert_eq!(struck(&Targets { ranks: vec![1, 2], spares: false }), [1]);
        assert_eq!(struck(&Targets { ranks: vec![], spares: true }), [0, 1, 3]);
        assert_eq!(struck(&Targets { ranks: vec![7], spares: false }), [0_u32; 0]);
    }

    proptest! {
        #[test]
        fn a_storm_is_a_function_of_its_seed(seed in any::<u64>()) {
            let draw = || Blows::new(Duration::from_secs(5), seed).take(40).collect::<Vec<_>>();
            prop_assert_eq!(draw(), draw());
            prop_assert!(draw().windows(2).all(|pair| pair[0].at <= pair[1].at));
        }
    }
}
