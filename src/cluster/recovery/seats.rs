//! Who takes which dead rank's seat: pure. A spare of the dead rank's machine goes first (the
//! machine keeps its share of ranks, and the predecessor's memory is there); then one of the
//! machine with the fewest ranks. Of several the newest-born goes, since a machine without any
//! first-born process cannot take replacements later; of those the lowest.

/// One process of a gathering.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate<'a> {
    /// The rank it holds; `None` for a spare.
    pub slot: Option<usize>,
    /// Its machine.
    pub host: &'a str,
    /// Which spawn brought it, 0 for the first-born.
    pub born: u32,
}

/// What everybody becomes: ranks keep theirs, spares fill those of `ranks` that nobody holds as far
/// as they suffice (lowest rank first), the others wait. `home` is the machine of a dead rank.
pub fn choose<'a>(
    candidates: &[Candidate<'a>],
    ranks: usize,
    home: impl Fn(usize) -> Option<&'a str>,
) -> Vec<Option<usize>> {
    let mut seats: Vec<Option<usize>> = candidates.iter().map(|c| c.slot).collect();
    for seat in open(&seats, ranks) {
        let home = home(seat);
        let crowd = |host: &str| {
            let seated = candidates.iter().zip(&seats).filter(|(_, seat)| seat.is_some());
            seated.filter(|(c, _)| c.host == host).count()
        };
        let preference = |place: &usize| {
            let c = &candidates[*place];
            (Some(c.host) != home, crowd(c.host), std::cmp::Reverse(c.born), *place)
        };
        let waiting = (0..seats.len()).filter(|place| seats[*place].is_none());
        let Some(chosen) = waiting.min_by_key(preference) else { break };
        seats[chosen] = Some(seat);
    }
    seats
}

/// Ranks that nobody holds, ascending.
pub fn open(seats: &[Option<usize>], ranks: usize) -> Vec<usize> {
    (0..ranks).filter(|rank| !seats.contains(&Some(*rank))).collect()
}

/// The same seats without gaps: a world that goes on with fewer ranks.
pub fn close_ranks(seats: &[Option<usize>]) -> Vec<Option<usize>> {
    let below = |slot: usize| seats.iter().flatten().filter(|other| **other < slot).count();
    seats.iter().map(|seat| seat.map(below)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rank(slot: usize, host: &str) -> Candidate<'_> {
        Candidate { slot: Some(slot), host, born: 0 }
    }

    fn spare(host: &str, born: u32) -> Candidate<'_> {
        Candidate { slot: None, host, born }
    }

    fn home(_: usize) -> Option<&'static str> {
        Some("b")
    }

    #[test]
    fn a_spare_of_the_same_machine_goes_first() {
        let gathering = [rank(0, "a"), spare("a", 0), spare("b", 0), spare("b", 0)];
        assert_eq!(choose(&gathering, 2, home), [Some(0), None, Some(1), None]);
    }

    #[test]
    fn else_one_of_the_machine_with_the_fewest_ranks() {
        let gathering = [rank(0, "a"), rank(2, "a"), rank(3, "c"), spare("a", 5), spare("c", 0)];
        assert_eq!(choose(&gathering, 4, home)[3..], [None, Some(1)]);
    }

    #[test]
    fn of_several_the_newest_born_and_then_the_lowest() {
        let gathering = [rank(0, "b"), spare("b", 0), spare("b", 2), spare("b", 2)];
        assert_eq!(choose(&gathering, 2, home), [Some(0), None, Some(1), None]);
    }

    #[test]
    fn too_few_spares_fill_the_lowest_ranks() {
        let gathering = [rank(3, "a"), spare("a", 0)];
        let seats = choose(&gathering, 4, |_| None);
        assert_eq!((seats.clone(), open(&seats, 4)), (vec![Some(3), Some(0)], vec![1, 2]));
        assert_eq!(close_ranks(&seats), [Some(1), Some(0)]);
    }

    proptest! {
        #[test]
        fn ranks_keep_their_seats_and_no_seat_is_taken_twice(
            held in proptest::collection::btree_set(0usize..8, 0..8), spares in 0usize..5,
            births in proptest::collection::vec(0u32..3, 5),
        ) {
            let hosts = ["a", "b", "c"];
            let mut gathering: Vec<Candidate<'_>> =
                held.iter().map(|slot| rank(*slot, hosts[slot % 3])).collect();
            gathering.extend((0..spares).map(|i| spare(hosts[i % 3], births[i])));
            let seats = choose(&gathering, 8, |slot| Some(hosts[slot % 3]));
            for (candidate, seat) in gathering.iter().zip(&seats) {
                prop_assert!(candidate.slot.is_none() || candidate.slot == *seat);
            }
            let mut taken: Vec<usize> = seats.iter().flatten().copied().collect();
            taken.sort_unstable();
            prop_assert!(taken.windows(2).all(|w| w[0] < w[1]) && taken.iter().all(|s| *s < 8));
            prop_assert_eq!(taken.len(), (held.len() + spares).min(8));
            let mut closed: Vec<usize> = close_ranks(&seats).into_iter().flatten().collect();
            closed.sort_unstable();
            prop_assert_eq!(closed, (0..taken.len()).collect::<Vec<_>>());
        }
    }
}
