//! Which part of a world that fell apart may go on. A cut cable makes two groups of
//! survivors, each of which sees the other die; only one of them may train on. Pure.
//!
//! A world on one node cannot be cut in two, and has no quorum.

use std::collections::BTreeSet;

/// Why survivors on the hosts `living` may not go on in the name of a world that spanned `agreed`
/// nodes; `None` where they may. `home` is the supervisor's node: with exactly half of the nodes,
/// those go on who still have it.
pub fn missed(agreed: usize, living: &BTreeSet<&str>, home: Option<&str>) -> Option<String> {
    if agreed < 2 {
        return None;
    }
    let has_home = home.is_some_and(|home| living.contains(home));
    match (2 * living.len()).cmp(&agreed) {
        std::cmp::Ordering::Greater => return None,
        std::cmp::Ordering::Equal if has_home => return None,
        _ => {}
    }
    let names: Vec<&str> = living.iter().copied().collect();
    let half = match (2 * living.len() == agreed, home) {
        (true, Some(home)) => format!(", without that of launch, {home}"),
        (true, None) => ", and nobody says which half counts".to_owned(),
        (false, _) => String::new(),
    };
    Some(format!(
        "no quorum: who lives is on {} of {agreed} nodes ({}){half}; the others may be training \
         on, so nothing is written here",
        living.len(),
        names.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn may(agreed: usize, living: &[&str], home: Option<&str>) -> bool {
        missed(agreed, &living.iter().copied().collect(), home).is_none()
    }

    #[test]
    fn more_than_half_of_the_nodes_go_on_and_fewer_do_not() {
        assert!(may(4, &["a", "b", "c"], None));
        assert!(!may(4, &["a"], Some("a")), "not even launch's own node alone");
        assert!(may(3, &["a", "b"], Some("c")));
        assert!(!may(3, &["c"], Some("c")));
    }

    #[test]
    fn of_two_halves_the_one_with_launch_goes_on() {
        assert!(may(4, &["a", "b"], Some("a")));
        assert!(!may(4, &["c", "d"], Some("a")));
        assert!(!may(2, &["b"], None), "without a launch nobody says which");
        let why = missed(4, &["c", "d"].into(), Some("a")).unwrap();
        assert!(why.contains("2 of 4 nodes (c, d), without that of launch, a"), "{why}");
    }

    #[test]
    fn one_node_cannot_be_cut_in_two() {
        assert!(may(1, &["a"], None) && may(0, &[], None));
    }

    proptest! {
        #[test]
        fn never_do_both_parts_of_a_cut_world_go_on(
            side in proptest::collection::vec(any::<bool>(), 2..9), home in 0usize..9,
        ) {
            let names: Vec<String> = (0..side.len()).map(|node| format!("n{node}")).collect();
            let home = names.get(home).map(String::as_str);
            let part = |of: bool| -> BTreeSet<&str> {
                let there = names.iter().zip(&side).filter(|(_, side)| **side == of);
                there.map(|(name, _)| name.as_str()).collect()
            };
            let goes_on = |of: bool| missed(side.len(), &part(of), home).is_none();
            prop_assert!(!(goes_on(true) && goes_on(false)));
            prop_assert!(home.is_none() || goes_on(true) || goes_on(false), "one of two does");
        }
    }
}
