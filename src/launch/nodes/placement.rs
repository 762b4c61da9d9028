//! Which nodes an attempt runs on. Pure.

use std::collections::BTreeSet;

use crate::cluster::recovery::quorum;
use crate::cluster::resident::Key;

/// What is known of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// Its name.
    pub name: String,
    /// Whether it can be used.
    pub lives: bool,
    /// The newest state of the run that its memory holds.
    pub newest: Option<Key>,
    /// Whether the last attempt ran on it.
    pub used: bool,
}

/// Where the processes of an attempt go: rank `i` to host `i` modulo their number, then the spares
/// likewise, so that every host has as many as the others, or one more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// In the allocation's order.
    pub hosts: Vec<String>,
    /// Spares on each.
    pub spares_per_host: u32,
}

impl Placement {
    /// Processes of one host, at most.
    pub fn processes_per_host(&self, ranks: u32) -> u32 {
        self.ranks_per_host(ranks).saturating_add(self.spares_per_host)
    }

    /// Ranks of one host, at most.
    pub fn ranks_per_host(&self, ranks: u32) -> u32 {
        ranks.div_ceil(self.count())
    }

    /// Spares of all hosts.
    pub fn spares(&self) -> u32 {
        self.spares_per_host.saturating_mul(self.count())
    }

    fn count(&self) -> u32 {
        u32::try_from(self.hosts.len()).unwrap_or(u32::MAX).max(1)
    }
}

/// Why the node of launch may not begin again with those that live: of so many nodes of the last
/// attempt's `world` nothing is heard that it seems to be cut off itself. The others requeue the
/// job; this part of the world must not train on as well. Nodes that are known to be dead, or that
/// were given back, do not count.
pub fn cut_off(
    world: &[String],
    nodes: &[Standing],
    silent: &BTreeSet<String>,
    home: Option<&str>,
) -> Option<String> {
    let lives = |name: &String| nodes.iter().any(|node| node.name == *name && node.lives);
    let living: BTreeSet<&str> = world.iter().filter(|n| lives(n)).map(String::as_str).collect();
    let unheard: Vec<&str> = world
        .iter()
        .filter(|name| !lives(name) && silent.contains(*name))
        .map(String::as_str)
        .collect();
    if unheard.is_empty() {
        return None;
    }
    let reason = quorum::missed(living.len() + unheard.len(), &living, home)?;
    Some(format!("nothing is heard of {}; {reason}", unheard.join(", ")))
}

/// Chooses `wanted` of the living nodes, or as many as there are, and never more than ranks: each
/// gets one at least. Those that hold the newest state come first, so that somebody maps it; then
/// those that were used before.
pub fn choose(nodes: &[Standing], ranks: u32, wanted: usize) -> Vec<String> {
    let ranks = usize::try_from(ranks).unwrap_or(usize::MAX);
    let mut living: Vec<usize> = (0..nodes.len()).filter(|at| nodes[*at].lives).collect();
    living.sort_by_key(|at| {
        let node = &nodes[*at];
        (std::cmp::Reverse(node.newest), !node.used, *at)
    });
    living.truncate(wanted.min(ranks).max(1));
    living.sort_unstable();
    living.into_iter().map(|at| nodes[at].name.clone()).collect()
}

/// On how many nodes ranks that are on these `hosts`, an entry a rank, would be after another
/// start, of `living` nodes of which `wanted` are used: where those are more nodes, and the fullest
/// has fewer ranks than now.
pub fn spread(hosts: &[String], living: usize, wanted: usize) -> Option<usize> {
    let distinct: BTreeSet<&String> = hosts.iter().collect();
    let ranks_on = |name: &String| hosts.iter().filter(|host| *host == name).count();
    let fullest = distinct.iter().map(|name| ranks_on(name)).max()?;
    let possible = living.min(wanted).min(hosts.len());
    (possible > distinct.len() && hosts.len().div_ceil(possible) < fullest).then_some(possible)
}

/// Living nodes that are not used and are not kept: `spare` of them are, and `own`, on which launch
/// runs.
pub fn surplus(nodes: &[Standing], own: Option<&str>, spare: usize) -> Vec<String> {
    let idle = nodes.iter().filter(|node| node.lives && !node.used);
    let others = idle.filter(|node| own != Some(node.name.as_str()));
    others.skip(spare).map(|node| node.name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn node(name: &str, step: u64) -> Standing {
        let key = |step| Key { attempt: 1, generation: 0, step };
        let newest = (step > 0).then(|| key(step));
        Standing { name: name.into(), lives: true, newest, used: step > 0 }
    }

    #[test]
    fn every_living_node_gets_a_rank_and_spare_nodes_wait() {
        let nodes = ["a", "b", "c", "d"].map(|name| node(name, 0));
        assert_eq!(choose(&nodes, 4, 4), ["a", "b", "c", "d"]);
        assert_eq!(choose(&nodes, 4, 3), ["a", "b", "c"]);
        assert_eq!(choose(&nodes, 2, 4), ["a", "b"]);
        assert!(choose(&[], 2, 4).is_empty());
    }

    #[test]
    fn who_hears_nothing_of_most_others_is_cut_off_itself() {
        let world = ["a", "b", "c", "d"].map(String::from);
        let but = |dead: &[&str]| {
            let nodes = ["a", "b", "c", "d"].map(|name| node(name, 3));
            nodes.map(|node| Standing { lives: !dead.contains(&node.name.as_str()), ..node })
        };
        let silent = |names: &[&str]| names.iter().map(|name| (*name).to_string()).collect();
        let reason = |dead: &[&str], unheard: &[&str]| {
            cut_off(&world, &but(dead), &silent(unheard), Some("a"))
        };
        assert_eq!(reason(&[], &[]), None);
        assert_eq!(reason(&["b"], &["b"]), None);
        assert_eq!(reason(&["b", "c"], &["b", "c"]), None, "half, with launch");
        let three = reason(&["b", "c", "d"], &["b", "c", "d"]).unwrap();
        assert!(three.starts_with("nothing is heard of b, c, d; no quorum"), "{three}");
        assert_eq!(reason(&["b", "c", "d"], &[]), None, "all three are known to be dead");
        assert!(reason(&["b", "c", "d"], &["c", "d"]).is_some(), "b is dead, c and d may live");
        assert_eq!(reason(&["b", "c"], &["b", "c", "d"]), None, "d is back");
        assert_eq!(cut_off(&[], &but(&["b"]), &silent(&["b"]), Some("a")), None, "no attempt yet");
    }

    #[test]
    fn a_spare_node_replaces_a_dead_one_and_the_newest_state_is_kept() {
        let mut nodes = [node("a", 8), node("b", 9), node("c", 0), node("d", 9)];
        assert_eq!(choose(&nodes, 3, 3), ["a", "b", "d"]);
        nodes[1].lives = false;
        assert_eq!(choose(&nodes, 3, 3), ["a", "c", "d"]);
        assert_eq!(choose(&nodes, 3, 1), ["d"]);
    }

    #[test]
    fn idle_nodes_are_given_back_but_for_spare_ones_and_launchs_own() {
        let nodes = [node("a", 0), node("b", 9), node("c", 0), node("d", 0)];
        assert_eq!(surplus(&nodes, Some("a"), 0), ["c", "d"]);
        assert_eq!(surplus(&nodes, Some("a"), 1), ["d"]);
        assert_eq!(surplus(&nodes, None, 0), ["a", "c", "d"]);
        let dead = nodes.map(|node| Standing { lives: false, ..node });
        assert!(surplus(&dead, None, 0).is_empty());
    }

    #[test]
    fn ranks_that_came_together_are_spread_where_that_makes_the_fullest_node_lighter() {
        let on = |hosts: &str| hosts.chars().map(String::from).collect::<Vec<String>>();
        assert_eq!(spread(&on("aacd"), 4, 4), Some(4));
        assert_eq!(spread(&on("aaaa"), 2, 4), Some(2));
        assert_eq!(spread(&on("aacd"), 3, 4), None, "b is still gone");
        assert_eq!(spread(&on("aacd"), 4, 3), None, "the fourth is a spare node");
        assert_eq!(spread(&on("abcd"), 4, 4), None);
        assert_eq!(spread(&on("aaac"), 2, 4), None, "on no more nodes than now");
        assert_eq!(spread(&on("aabbc"), 4, 4), None, "one would still have two");
        assert_eq!(spread(&on("ab"), 4, 4), None, "there are no more ranks");
        assert_eq!(spread(&[], 4, 4), None);
    }

    #[test]
    fn ranks_and_spares_are_spread_evenly() {
        let hosts = ["a", "b", "c"].map(str::to_owned).to_vec();
        let placement = Placement { hosts, spares_per_host: 2 };
        assert_eq!((placement.spares(), placement.ranks_per_host(4)), (6, 2));
        assert_eq!(placement.processes_per_host(4), 4);
        assert_eq!(placement.processes_per_host(3), 3);
    }

    proptest! {
        #[test]
        fn somebody_who_holds_the_newest_living_state_is_chosen(
            all in proptest::collection::vec((any::<bool>(), 0u64..4), 1..8),
            ranks in 1u32..9, wanted in 1usize..9,
        ) {
            let nodes: Vec<Standing> = all
                .iter()
                .enumerate()
                .map(|(at, &(lives, step))| Standing { lives, ..node(&at.to_string(), step) })
                .collect();
            let chosen = choose(&nodes, ranks, wanted);
            let living = || nodes.iter().filter(|node| node.lives);
            prop_assert_eq!(chosen.len(), living().count().min(wanted).min(ranks as usize));
            let newest = living().filter_map(|node| node.newest).max();
            let holds = |node: &Standing| chosen.contains(&node.name) && node.newest == newest;
            prop_assert!(newest.is_none() || living().any(holds));
        }
    }
}
