//! Who gets which processors of a machine: node of memory by node of memory, and nobody more
//! threads than there are processors. Pure.

use super::machine::{Machine, Processor, list};
use crate::config::{Bind, Config};

/// Places that the line names; beyond them it only counts.
const SHOWN_MAX: usize = 16;

/// What is asked of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wish {
    /// Ranks on it.
    pub ranks: u32,
    /// `train.workers`
    pub workers: u32,
    /// `train.threads`, those of one worker.
    pub threads: u32,
    /// `run.bind`
    pub bind: Bind,
}

/// The processors of every rank of a machine, ascending.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Places {
    /// All have all: nobody is bound.
    Shared,
    /// Each has its own.
    Own(Vec<Vec<u32>>),
    /// Each has those of a node of memory, with other ranks.
    Nodes(Vec<Vec<u32>>),
}

impl Places {
    /// One set for each rank, or more to choose from; none where nobody is bound.
    pub fn each(&self) -> &[Vec<u32>] {
        match self {
            Self::Shared => &[],
            Self::Own(each) | Self::Nodes(each) => each,
        }
    }
}

impl Wish {
    /// That of a configuration, of which so many ranks run on one machine.
    pub fn of(config: &Config, ranks: u32) -> Self {
        let (workers, threads) = (config.train.workers, config.train.threads);
        Self { ranks, workers, threads, bind: config.run.bind.unwrap_or_default() }
    }

    /// Workers that a rank starts where so many processors work at a time: no more threads than
    /// those, but one worker at least. Who computes an owner's micro-batch does not show in its
    /// bits; how many threads do, so those of a worker stay.
    pub fn workers_on(&self, capacity: u32) -> u32 {
        self.workers.min(capacity / self.threads.max(1)).max(1)
    }

    /// Whether the ranks have more computing threads than that: they take turns.
    pub fn crowds(self, capacity: u32) -> bool {
        self.ranks.saturating_mul(self.threads_on(capacity)) > capacity
    }

    /// Computing threads of a rank there.
    fn threads_on(&self, capacity: u32) -> u32 {
        self.workers_on(capacity).saturating_mul(self.threads.max(1))
    }
}

/// What of a machine each of its ranks gets. A rank keeps to one node of memory where it fits.
/// With `Bind::Auto` a rank has a processor of its own beside those that its threads compute on,
/// since it also decodes and communicates; where that cannot be, ranks share their node's.
pub fn places(machine: &Machine, wish: Wish) -> Places {
    let threads = wish.threads_on(machine.capacity);
    let ranks = wish.ranks.max(1);
    let least = match wish.bind {
        Bind::None => return Places::Shared,
        Bind::Auto => threads.saturating_add(1),
        Bind::Always => threads,
    };
    let fits = |each: &u32| ranks.saturating_mul(*each) <= machine.capacity;
    if !fits(&threads) {
        return Places::Shared;
    }
    let nodes = machine.nodes();
    let settled = settle(&nodes, ranks as usize);
    let large = |own: &Vec<u32>| own.len() >= least as usize;
    let enough = |each: &Vec<Vec<u32>>| each.len() >= ranks as usize && each.iter().all(large);
    // Where there are nodes for all, whoever comes takes a free one: others run here, too.
    let by_nodes: Vec<Vec<u32>> = match (ranks as usize) < nodes.len() {
        true => nodes.iter().map(|own| sorted(own)).filter(large).collect(),
        false => nodes.iter().zip(&settled).flat_map(|(own, count)| cut(own, *count)).collect(),
    };
    if let Some(each) = Some(by_nodes).filter(|each| fits(&least) && enough(each)) {
        return Places::Own(each);
    }
    let room = |(own, count): (&&[Processor], &usize)| own.len() >= count * threads as usize;
    if nodes.len() > 1 && nodes.iter().zip(&settled).all(room) {
        let whole = |(own, count): (&&[Processor], &usize)| vec![sorted(own); *count];
        return Places::Nodes(nodes.iter().zip(&settled).flat_map(whole).collect());
    }
    let across = Some(cut(&machine.processors, ranks as usize));
    across.filter(|each| fits(&least) && enough(each)).map_or(Places::Shared, Places::Own)
}

/// How many of the ranks go to each node: one after the other to where it then has the most.
fn settle(nodes: &[&[Processor]], ranks: usize) -> Vec<usize> {
    let mut settled = vec![0_usize; nodes.len()];
    for _ in 0..ranks {
        // a / (m + 1) > b / (n + 1), without fractions; of equals the first.
        let better = |&one: &usize, &other: &usize| {
            let left = nodes[one].len() * (settled[other] + 1);
            let right = nodes[other].len() * (settled[one] + 1);
            left.cmp(&right).then(other.cmp(&one))
        };
        let Some(best) = (0..nodes.len()).max_by(better) else { break };
        settled[best] += 1;
    }
    settled
}

/// Nearly equal parts, in order.
fn cut(processors: &[Processor], parts: usize) -> Vec<Vec<u32>> {
    let all = processors.len();
    (0..parts).map(|i| sorted(&processors[i * all / parts..(i + 1) * all / parts])).collect()
}

fn sorted(processors: &[Processor]) -> Vec<u32> {
    let mut numbers: Vec<u32> = processors.iter().map(|processor| processor.number).collect();
    numbers.sort_unstable();
    numbers
}

/// What a person should know of it, in one line.
pub fn line(machine: &Machine, wish: Wish, places: &Places) -> String {
    let mut have = format!("processors: {}", machine.processors.len());
    match machine.nodes().len() {
        0 | 1 => {}
        nodes => have += &format!(" in {nodes} NUMA nodes"),
    }
    if (machine.capacity as usize) < machine.processors.len() {
        have += &format!(", the time of {} by a control group's quota", machine.capacity);
    }
    let (ranks, threads) = (wish.ranks, wish.threads_on(machine.capacity));
    let who = format!("{ranks} ranks of {threads} computing threads");
    match places {
        Places::Own(each) => {
            let choice = if each.len() > ranks as usize { "one of its own" } else { "its own" };
            format!("{have}; each rank is bound to {choice}: {}", shown(each))
        }
        Places::Nodes(each) => {
            format!("{have}; each rank is bound to a NUMA node's: {}", shown(each))
        }
        Places::Shared if wish.bind == Bind::None => format!("{have}; no rank is bound (run.bind)"),
        Places::Shared if wish.crowds(machine.capacity) => {
            format!("{have}; no rank is bound: {who} take turns on them")
        }
        Places::Shared => {
            format!("{have}; no rank is bound: {who} leave none to each for what else it does")
        }
    }
}

fn shown(each: &[Vec<u32>]) -> String {
    let named: Vec<String> = each.iter().take(SHOWN_MAX).map(|place| list(place)).collect();
    let more = match each.len().saturating_sub(SHOWN_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    named.join(" | ") + &more
}

/// What a person should know who asked for more threads than a rank has processors.
pub fn warnings(machine: &Machine, wish: Wish) -> Vec<String> {
    let (have, workers) = (machine.capacity, wish.workers_on(machine.capacity));
    let fewer = (workers < wish.workers).then(|| {
        format!(
            "train.workers = {} with train.threads = {}, and a rank has {have} processors: it \
             starts {workers}; the bits are the same",
            wish.workers, wish.threads
        )
    });
    let crowded = (wish.threads > have).then(|| {
        format!(
            "train.threads = {}, and a rank has {have} processors: its threads take turns, which \
             is much slower than fewer of them; the number belongs to this run's bits and stays: \
             lower it in a new run",
            wish.threads
        )
    });
    fewer.into_iter().chain(crowded).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nodes of so many cores, with this many threads each, numbered as Linux does: first ones of
    /// all cores first.
    fn machine(cores: &[u32], threads: u32) -> Machine {
        let total: u32 = cores.iter().sum();
        let node_of = |core: u32| {
            let ends = cores.iter().scan(0, |end, own| {
                *end += own;
                Some(*end)
            });
            ends.take_while(|end| *end <= core).count() as u32
        };
        let every = (0..total * threads).map(|number| {
            let core = number % total;
            Processor { node: node_of(core), core, number }
        });
        let mut processors: Vec<Processor> = every.collect();
        processors.sort_unstable();
        Machine { capacity: processors.len() as u32, processors }
    }

    fn wish(ranks: u32, threads: u32) -> Wish {
        Wish { ranks, workers: 1, threads, bind: Bind::Auto }
    }

    fn always(wish: Wish) -> Wish {
        Wish { bind: Bind::Always, ..wish }
    }

    fn text(machine: &Machine, wish: Wish) -> String {
        match places(machine, wish) {
            Places::Shared => "shared".into(),
            Places::Own(each) => shown(&each),
            Places::Nodes(each) => format!("nodes {}", shown(&each)),
        }
    }

    #[test]
    fn ranks_get_processors_of_their_own_and_no_core_is_shared() {
        assert_eq!(text(&machine(&[8], 1), wish(4, 1)), "0-1 | 2-3 | 4-5 | 6-7");
        assert_eq!(text(&machine(&[4], 2), wish(4, 1)), "0,4 | 1,5 | 2,6 | 3,7");
        assert_eq!(text(&machine(&[7], 1), wish(3, 1)), "0-1 | 2-3 | 4-6");
        assert_eq!(text(&machine(&[6], 1), wish(1, 2)), "0-5");
    }

    #[test]
    fn a_rank_keeps_to_one_node_of_memory_where_it_fits() {
        assert_eq!(text(&machine(&[10, 10], 1), wish(3, 2)), "0-4 | 5-9 | 10-19");
        assert_eq!(text(&machine(&[8, 8], 1), wish(4, 3)), "0-3 | 4-7 | 8-11 | 12-15");
        assert_eq!(text(&machine(&[4, 4], 1), wish(1, 3)), "0-3 | 4-7", "whichever is free");
        assert_eq!(text(&machine(&[4, 2, 4], 1), wish(2, 3)), "0-3 | 6-9");
        assert_eq!(text(&machine(&[4, 4], 1), wish(1, 5)), "0-7");
        // A mask that leaves little of one node: the other takes more ranks.
        assert_eq!(text(&machine(&[2, 8], 1), wish(4, 1)), "0-1 | 2-3 | 4-6 | 7-9");
        // No node has room for two of them.
        assert_eq!(text(&machine(&[5, 5], 1), wish(3, 3)), "shared", "nobody has one to spare");
        assert_eq!(text(&machine(&[5, 5], 1), always(wish(3, 3))), "0-2 | 3-5 | 6-9");
    }

    #[test]
    fn ranks_that_fill_a_node_share_it_and_do_not_leave_it() {
        let two = machine(&[4, 4], 1);
        assert_eq!(text(&two, wish(4, 2)), "nodes 0-3 | 0-3 | 4-7 | 4-7");
        assert_eq!(text(&two, always(wish(4, 2))), "0-1 | 2-3 | 4-5 | 6-7");
        assert_eq!(text(&two, wish(3, 3)), "shared", "nine threads");
    }

    #[test]
    fn where_processors_are_short_nobody_is_bound() {
        assert_eq!(
            text(&machine(&[4], 1), wish(4, 1)),
            "shared",
            "none left for what else they do"
        );
        assert_eq!(text(&machine(&[4], 1), always(wish(4, 1))), "0 | 1 | 2 | 3");
        assert_eq!(text(&machine(&[2], 1), always(wish(4, 1))), "shared");
        assert_eq!(text(&machine(&[1], 1), always(wish(1, 2))), "shared");
        let none = Wish { bind: Bind::None, ..wish(4, 1) };
        assert_eq!(text(&machine(&[64], 1), none), "shared");
        let held = Machine { capacity: 4, ..machine(&[64], 1) };
        assert_eq!(text(&held, wish(4, 1)), "shared", "64 processors, the time of 4");
        assert_eq!(text(&held, wish(2, 1)), "0-31 | 32-63");
        let unknown = Machine { processors: Vec::new(), capacity: 1 };
        assert_eq!(text(&unknown, always(wish(1, 1))), "shared");
    }

    #[test]
    fn places_are_disjoint_and_large_enough_on_any_machine() {
        for nodes in [vec![1], vec![3, 5], vec![6; 4], vec![1, 9, 2]] {
            for (siblings, threads) in [(1, 1), (2, 1), (1, 2), (2, 3)] {
                let machine = machine(&nodes, siblings);
                for (ranks, bind) in (1..20).flat_map(|n| [(n, Bind::Auto), (n, Bind::Always)]) {
                    let found = places(&machine, Wish { bind, ..wish(ranks, threads) });
                    let about = format!("{nodes:?} {siblings} {threads} {ranks} {found:?}");
                    let least = threads as usize + usize::from(bind == Bind::Auto);
                    let mut all: Vec<u32> = found.each().concat();
                    let count = all.len();
                    all.sort_unstable();
                    all.dedup();
                    match &found {
                        Places::Shared => {}
                        Places::Own(each) => {
                            assert!(all.len() == count && each.len() >= ranks as usize, "{about}");
                            assert!(each.iter().all(|place| place.len() >= least), "{about}");
                        }
                        Places::Nodes(each) => {
                            assert_eq!(each.len(), ranks as usize, "{about}");
                            let on = |place: &Vec<u32>| each.iter().filter(|p| *p == place).count();
                            let room = |p: &Vec<u32>| p.len() >= on(p) * threads as usize;
                            assert!(each.iter().all(room), "{about}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_line_says_what_there_is_and_who_is_bound() {
        let said = |machine: &Machine, wish| line(machine, wish, &places(machine, wish));
        let two = machine(&[4, 4], 1);
        assert_eq!(
            said(&two, wish(2, 2)),
            "processors: 8 in 2 NUMA nodes; each rank is bound to its own: 0-3 | 4-7"
        );
        let held = Machine { capacity: 3, ..machine(&[8], 1) };
        assert_eq!(
            said(&held, wish(4, 2)),
            "processors: 8, the time of 3 by a control group's quota; no rank is bound: 4 ranks \
             of 2 computing threads take turns on them"
        );
        assert!(said(&machine(&[2], 1), wish(2, 1)).ends_with("for what else it does"));
        assert!(said(&two, Wish { bind: Bind::None, ..wish(2, 2) }).ends_with("(run.bind)"));
        assert!(said(&machine(&[64], 1), wish(20, 1)).ends_with(" | 48-50 and 4 more"));
    }

    #[test]
    fn no_rank_starts_more_threads_than_it_has_processors_but_a_team_stays_whole() {
        let two = machine(&[2], 1);
        let of = |workers, threads| Wish { workers, threads, ..wish(2, 1) };
        let starts = |workers, threads| of(workers, threads).workers_on(two.capacity);
        assert_eq!([starts(2, 1), starts(4, 1), starts(2, 2), starts(1, 4)], [2, 2, 1, 1]);
        assert_eq!(warnings(&two, of(2, 1)), Vec::<String>::new());
        let fewer = warnings(&two, of(4, 1));
        assert!(fewer.len() == 1 && fewer[0].contains("it starts 2;"), "{fewer:?}");
        let crowded = warnings(&two, of(1, 4));
        assert!(crowded.len() == 1 && crowded[0].contains("take turns"), "{crowded:?}");
    }
}
