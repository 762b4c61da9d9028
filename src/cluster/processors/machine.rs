//! What a machine gives this process: the processors of its mask (which control groups and SLURM
//! narrow), the nodes of memory that they belong to, and the quota of processor time.

use std::path::Path;

use kintsugi_ffi::affinity;

/// Where the kernel describes processors.
const SYSTEM: &str = "/sys/devices/system";

/// More than any machine has: a list that holds more is nonsense.
const NUMBERS_MAX: usize = 1 << 16;

/// A processor that may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Processor {
    /// Its node of memory.
    pub node: u32,
    /// The least number of those that share its core.
    pub core: u32,
    /// The kernel's number.
    pub number: u32,
}

/// What a machine gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// Ascending by node, core, number: neighbours share as much as they can.
    pub processors: Vec<Processor>,
    /// How many of them may work at a time: as many as there are, or the time that the control
    /// groups' quota gives, rounded down, at least 1.
    pub capacity: u32,
}

impl Machine {
    /// This one, as this process may use it now.
    pub fn here() -> Self {
        // The mask's number and, where it is less, the control groups' quota.
        let capacity = std::thread::available_parallelism().map_or(1, usize::from);
        Self::of(Path::new(SYSTEM), &affinity::allowed().unwrap_or_default(), capacity)
    }

    /// The processors `allowed`, as the files below `system` describe them. What cannot be read
    /// counts as one node of memory, and each processor as a core.
    pub fn of(system: &Path, allowed: &[u32], capacity: usize) -> Self {
        let listed = |name: String| {
            std::fs::read_to_string(system.join(name)).ok().and_then(|text| numbers(&text))
        };
        let online = listed("node/online".into()).unwrap_or_default();
        let nodes: Vec<(u32, Vec<u32>)> = online
            .into_iter()
            .filter_map(|node| Some((node, listed(format!("node/node{node}/cpulist"))?)))
            .collect();
        let described = |&number: &u32| {
            let node = nodes.iter().find(|(_, all)| all.contains(&number)).map_or(0, |own| own.0);
            let siblings = listed(format!("cpu/cpu{number}/topology/thread_siblings_list"));
            let core = siblings.and_then(|all| all.first().copied()).unwrap_or(number);
            Processor { node, core, number }
        };
        let mut processors: Vec<Processor> = allowed.iter().map(described).collect();
        processors.sort_unstable();
        let most = processors.len().max(1);
        Self { processors, capacity: capacity.clamp(1, most) as u32 }
    }

    /// Its nodes of memory.
    pub fn nodes(&self) -> Vec<&[Processor]> {
        self.processors.chunk_by(|one, next| one.node == next.node).collect()
    }
}

/// `0-3,8` from ascending numbers.
pub fn list(numbers: &[u32]) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for &number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let shown = ranges.iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    shown.collect::<Vec<_>>().join(",")
}

/// The numbers of a list as the kernel writes it, `0-3,8`; `None` for what is no list. A node
/// without processors has an empty one.
fn numbers(list: &str) -> Option<Vec<u32>> {
    let mut numbers = Vec::new();
    for range in list.trim().split(',').filter(|_| !list.trim().is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if last < first || numbers.len() + (last - first) as usize >= NUMBERS_MAX {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two nodes of memory, two cores each, two threads a core, and one that is memory only.
    fn system() -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().expect("it has one")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        };
        write("node/online", "0-2\n");
        write("node/node0/cpulist", "0-1,4-5\n");
        write("node/node1/cpulist", "2-3,6-7\n");
        write("node/node2/cpulist", "\n");
        for number in 0..8 {
            let core = number % 4;
            let name = format!("cpu/cpu{number}/topology/thread_siblings_list");
            write(&name, &format!("{core},{}\n", core + 4));
        }
        folder
    }

    fn order(machine: &Machine) -> Vec<u32> {
        machine.processors.iter().map(|processor| processor.number).collect()
    }

    #[test]
    fn processors_stand_by_node_and_core_as_far_as_they_may_be_used() {
        let system = system();
        let all: Vec<u32> = (0..8).collect();
        let machine = Machine::of(system.path(), &all, 8);
        assert_eq!(order(&machine), [0, 4, 1, 5, 2, 6, 3, 7]);
        assert_eq!(machine.nodes().iter().map(|node| node.len()).collect::<Vec<_>>(), [4, 4]);
        let narrowed = Machine::of(system.path(), &[1, 3, 5, 7], 4);
        assert_eq!((order(&narrowed), narrowed.nodes().len()), (vec![1, 5, 3, 7], 2));
        assert_eq!(Machine::of(system.path(), &[2, 3], 2).nodes().len(), 1);
    }

    #[test]
    fn a_quota_limits_what_works_at_a_time() {
        let system = system();
        let capacity = |quota: usize| Machine::of(system.path(), &[0, 1, 2], quota).capacity;
        assert_eq!([0, 2, 3, 64].map(capacity), [1, 2, 3, 3]);
    }

    #[test]
    fn a_machine_that_describes_nothing_is_one_node_of_plain_cores() {
        let empty = tempfile::tempdir().expect("a folder");
        let machine = Machine::of(empty.path(), &[3, 1], 2);
        let plain = |number| Processor { node: 0, core: number, number };
        assert_eq!(machine.processors, [plain(1), plain(3)]);
        assert_eq!(Machine::of(empty.path(), &[], 4).capacity, 1);
    }

    #[test]
    fn this_machine_has_the_processors_that_this_process_may_use() {
        let mut here = order(&Machine::here());
        here.sort_unstable();
        assert_eq!(here, affinity::allowed().expect("Linux says it"));
    }

    #[test]
    fn lists_are_the_kernels() {
        for (text, all) in [("0-3,8", vec![0, 1, 2, 3, 8]), ("5", vec![5]), ("0,2", vec![0, 2])] {
            assert_eq!((list(&all).as_str(), numbers(text)), (text, Some(all)));
        }
        assert_eq!(numbers("\n"), Some(Vec::new()));
        for nonsense in ["a", "3-1", "0-", "1,,2", "0-4294967295", "-1"] {
            assert_eq!(numbers(nonsense), None, "{nonsense:?}");
        }
    }
}
