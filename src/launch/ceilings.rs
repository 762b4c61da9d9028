//! What the kernel and control groups let a run have on this machine besides memory: files,
//! address space, processes. Pure but for reading.

use kintsugi_ffi::cgroup::Cgroup;
use kintsugi_ffi::grants::{self, Resource};
use kintsugi_ffi::process;

use crate::config::Resident;

use super::estimate::{Sizes, model_bytes, readable, state_bytes};

/// The shared memory of an Open MPI rank is a file of so many bytes, whatever the world's size: a
/// rank that cannot make it talks TCP to its neighbours. PMIx's files have a few percent of that.
const RANK_SEGMENT_BYTES: u64 = 16 << 20;
/// What a checkpoint's file holds besides values: the names and shapes of its tensors.
const CHECKPOINT_HEAD_BYTES: u64 = 1 << 20;
/// What a rank maps before it holds anything: libraries, thread stacks, shared segments.
const RANK_ADDRESS_BYTES: u64 = 2 << 30;
/// Processes and threads of a rank besides its workers: its guardian, and the threads of MPI, PMIx
/// and of the rank's own beat, loader and writer.
const THREADS_PER_RANK: u64 = 12;
/// Those of launch, its janitor and mpirun.
const THREADS_OF_LAUNCH: u64 = 12;
/// Files that a rank has open besides a connection to every other.
const FILES_PER_RANK: u64 = 64;

/// The limits of this process; `None` where there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ceilings {
    /// Bytes of one file.
    pub file_bytes: Option<u64>,
    /// Bytes of address space of one process.
    pub address_bytes: Option<u64>,
    /// Open files of one process.
    pub open_files: Option<u64>,
    /// Processes and threads of this user.
    pub processes: Option<u64>,
    /// Likewise that its control groups still allow.
    pub group_processes: Option<u64>,
}

/// Those in force.
pub fn read(cgroup: Cgroup) -> Ceilings {
    Ceilings {
        file_bytes: grants::limit(Resource::FileBytes),
        address_bytes: grants::limit(Resource::AddressBytes),
        open_files: grants::limit(Resource::OpenFiles),
        // The kernel does not hold root to it.
        processes: grants::limit(Resource::Processes).filter(|_| process::user_id() != 0),
        group_processes: cgroup.processes_free,
    }
}

/// What a run needs of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// Bytes of its largest file.
    pub file_bytes: u64,
    /// Bytes that one rank maps.
    pub address_bytes: u64,
    /// Files that one rank has open.
    pub open_files: u64,
    /// Processes and threads on this machine.
    pub processes: u64,
}

/// Of a run of this size: `memory_bytes` of its state over all ranks.
pub fn needs(sizes: Sizes, memory_bytes: u64, resident: Resident) -> Needs {
    let ranks = sizes.ranks.max(1);
    let state_file_bytes = match resident {
        Resident::On => 2 * state_bytes(sizes),
        Resident::Off => model_bytes(sizes) + CHECKPOINT_HEAD_BYTES,
    };
    Needs {
        file_bytes: state_file_bytes.max(RANK_SEGMENT_BYTES),
        address_bytes: RANK_ADDRESS_BYTES + memory_bytes / ranks,
        open_files: FILES_PER_RANK + ranks,
        processes: THREADS_OF_LAUNCH + ranks * (THREADS_PER_RANK + sizes.workers),
    }
}

/// One line per limit that is too low.
pub fn complaints(have: Ceilings, need: Needs) -> Vec<String> {
    let count = |number: u64| number.to_string();
    let short = |have: Option<u64>, need: u64| have.filter(|have| *have < need);
    let mut lines = Vec::new();
    let mut say = |have: u64, need: u64, what: &str, name: &str, show: &dyn Fn(u64) -> String| {
        let (have, need) = (show(have), show(need));
        lines.push(format!("{what} {have} ({name}), and this run needs about {need}: raise it"));
    };
    if let Some(have) = short(have.file_bytes, need.file_bytes) {
        say(have, need.file_bytes, "no file may be larger than", "ulimit -f", &readable);
    }
    if let Some(have) = short(have.address_bytes, need.address_bytes) {
        say(have, need.address_bytes, "a process may map no more than", "ulimit -v", &readable);
    }
    if let Some(have) = short(have.open_files, need.open_files) {
        say(have, need.open_files, "the open files of a process are at most", "ulimit -n", &count);
    }
    if let Some(have) = short(have.processes, need.processes) {
        let what = "the processes and threads of this user are at most";
        say(have, need.processes, what, "ulimit -u", &count);
    }
    if let Some(have) = short(have.group_processes, need.processes) {
        let what = "the processes and threads that may still be started are";
        say(have, need.processes, what, "pids.max of its control group", &count);
    }
    lines
}

/// Why no run can be started, where a file of the needed size cannot even be written: it could not
/// keep what it learns.
pub fn refusal(have: Ceilings, need: Needs) -> Option<String> {
    let too_small = have.file_bytes.is_some_and(|have| have < need.file_bytes);
    let file_only = Ceilings { file_bytes: have.file_bytes, ..Ceilings::default() };
    complaints(file_only, need).pop().filter(|_| too_small)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(parameters: u64, ranks: u64) -> Sizes {
        let (statistics, workers, checkpoints, cache_bytes) = (0, 1, 2, 0);
        Sizes { parameters, statistics, ranks, workers, checkpoints, cache_bytes }
    }

    fn small() -> Needs {
        let sizes = Sizes { statistics: 2000, checkpoints: 3, ..sizes(1_070_292, 4) };
        needs(sizes, 160 << 20, Resident::On)
    }

    #[test]
    fn a_limit_that_suffices_is_not_mentioned() {
        assert_eq!(complaints(Ceilings::default(), small()), Vec::<String>::new());
        let plenty = Ceilings {
            file_bytes: Some(1 << 40),
            address_bytes: Some(1 << 40),
            open_files: Some(1024),
            processes: Some(4096),
            group_processes: Some(4096),
        };
        assert_eq!(complaints(plenty, small()), Vec::<String>::new());
        assert_eq!(refusal(plenty, small()), None);
    }

    #[test]
    fn each_limit_that_is_too_low_is_named_as_the_shell_names_it() {
        let scarce = Ceilings {
            file_bytes: Some(102_400),
            address_bytes: Some(60 << 20),
            open_files: Some(16),
            processes: Some(30),
            group_processes: Some(31),
        };
        let lines = complaints(scarce, small());
        let names = ["ulimit -f", "ulimit -v", "ulimit -n", "ulimit -u", "pids.max"];
        assert_eq!(lines.len(), names.len());
        for (line, name) in lines.iter().zip(names) {
            assert!(line.contains(name) && line.ends_with("raise it"), "{line}");
        }
        assert!(lines[0].contains("100.0 KiB") && lines[0].contains("16.3 MiB"), "{}", lines[0]);
        assert_eq!(refusal(scarce, small()).as_ref(), lines.first());
        assert_eq!(refusal(Ceilings { file_bytes: None, ..scarce }, small()), None);
    }

    #[test]
    fn a_large_model_needs_large_files() {
        let sizes = sizes(23_750_000, 2);
        assert_eq!(needs(sizes, 0, Resident::On).file_bytes, 380_000_000);
        // Without resident files the model of a checkpoint is the largest.
        assert_eq!(needs(sizes, 0, Resident::Off).file_bytes, 95_000_000 + (1 << 20));
    }

    #[test]
    fn a_small_run_starts_where_a_rank_s_shared_memory_may_be_made() {
        let sizes = sizes(107_338, 4);
        let need = needs(sizes, 0, Resident::On);
        let limited = |bytes| Ceilings { file_bytes: Some(bytes), ..Ceilings::default() };
        assert_eq!(refusal(limited(16 << 20), need), None);
        assert!(refusal(limited((16 << 20) - 1), need).is_some());
    }
}
