//! What this machine, the kernel and control groups let a run have, and what of that is too little
//! for it. Pure but for reading.

use std::path::Path;

use kintsugi_ffi::cgroup::{self, Cgroup};
use kintsugi_ffi::grants::{self, Resource};
use kintsugi_ffi::{os, process};

use crate::needs::{Limit, Needs};
use crate::observe::spans::amount;

/// What a rank maps before it holds anything: libraries, thread stacks, shared segments.
const RANK_ADDRESS_BYTES: u64 = 2 << 30;
/// Processes and threads of a rank besides its workers: its guardian, and the threads of MPI, PMIx
/// and of the rank's own beat, loader and writer.
const THREADS_PER_RANK: u64 = 12;
/// Those of launch, its janitor and mpirun.
const THREADS_OF_LAUNCH: u64 = 12;
/// Files that a rank has open besides a connection to every other.
const FILES_PER_RANK: u64 = 64;
/// Without them, and one for each rank, a rank does not get through MPI's start.
const FILES_OF_MPI: u64 = 26;

/// Memory of a rank that has done no more than start MPI, at the least.
const PROCESS_BYTES_MIN: u64 = 16 << 20;
/// Where shared memory lies.
pub(in crate::launch) const SHARED: &str = "/dev/shm";

/// What can be had; `None` where there is no limit, or nobody asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ceilings {
    /// Bytes of one file.
    pub file_bytes: Option<u64>,
    /// Bytes of address space of one process.
    pub address_bytes: Option<u64>,
    /// Bytes of memory that are free.
    pub memory_bytes: Option<u64>,
    /// Bytes that are free in `/dev/shm`.
    pub shared_bytes: Option<u64>,
    /// Bytes that are free in the run's folder.
    pub disk_bytes: Option<u64>,
    /// Open files of one process.
    pub open_files: Option<u64>,
    /// Processes and threads of this user.
    pub processes: Option<u64>,
    /// Likewise that its control groups still allow.
    pub group_processes: Option<u64>,
}

impl Ceilings {
    /// What the kernel and control groups grant this process.
    pub fn granted(cgroup: Cgroup) -> Self {
        Self {
            file_bytes: grants::limit(Resource::FileBytes),
            address_bytes: grants::limit(Resource::AddressBytes),
            open_files: grants::limit(Resource::OpenFiles),
            // The kernel does not hold root to it.
            processes: grants::limit(Resource::Processes).filter(|_| process::user_id() != 0),
            group_processes: cgroup.processes_free,
            ..Self::default()
        }
    }

    /// Likewise what is free of memory and in `folder`; the run has `held_bytes` of shared memory
    /// already.
    pub fn with_free(self, folder: &Path, held_bytes: u64) -> Self {
        let and_held = |free: u64| free.saturating_add(held_bytes);
        Self {
            memory_bytes: cgroup::available_memory_bytes().map(and_held),
            shared_bytes: os::free_disk_bytes(Path::new(SHARED)).ok().map(and_held),
            disk_bytes: os::free_disk_bytes(folder).ok(),
            ..self
        }
    }
}

/// One line per ceiling that is too low, saying what to change. `crowd`: ranks and spares here, and
/// the workers of each.
pub fn complaints(have: Ceilings, need: &Needs, crowd: (u64, u64)) -> Vec<String> {
    let mut lines = Vec::new();
    let (ranks, workers) = crowd;
    let threads = THREADS_OF_LAUNCH + ranks * (THREADS_PER_RANK + workers);
    for (have, limit, what, cure) in [
        (have.file_bytes, Limit::File, "is what a file may have (ulimit -f)", "raise it"),
        (have.address_bytes, Limit::Process, "is what a process may map (ulimit -v)", "raise it"),
        (have.memory_bytes, Limit::Memory, "of memory is free", ", or start fewer ranks (-n)"),
        (
            have.shared_bytes,
            Limit::SharedMemory,
            "of /dev/shm is free",
            ", or enlarge it (containers: --shm-size) or name another recovery.resident_dir",
        ),
        (have.disk_bytes, Limit::Disk, "of disk is free", ", or name another --run-dir"),
    ] {
        let mapped = if limit == Limit::Process { RANK_ADDRESS_BYTES } else { 0 };
        let wanted = need.bytes(limit).saturating_add(mapped);
        let Some(have) = have.filter(|have| *have < wanted) else { continue };
        let Some((largest, advice)) = need.largest(limit) else { continue };
        let advice = if cure.starts_with(',') { advice } else { "" };
        let (have, wanted) = (amount(have), amount(wanted));
        lines.push(format!(
            "{have} {what}, and this run needs about {wanted}, above all for {largest}: \
             {advice}{cure}"
        ));
    }
    for (have, wanted, what) in [
        (
            have.open_files,
            FILES_PER_RANK + ranks,
            "open files are what a process may have (ulimit -n)",
        ),
        (have.processes, threads, "processes and threads are what this user may have (ulimit -u)"),
        (
            have.group_processes,
            threads,
            "processes and threads may still be started (pids.max of its control group)",
        ),
    ] {
        if let Some(have) = have.filter(|have| *have < wanted) {
            lines.push(format!("{have} {what}, and this run needs about {wanted}: raise it"));
        }
    }
    lines
}

/// Why no run of so many ranks and spares can be started, where a file of the needed size cannot
/// even be written: it could not keep what it learns; or where so few files can be open that not
/// even MPI starts (measured with 1 to 12 ranks).
pub fn refusal(have: Ceilings, need: &Needs, ranks: u64) -> Option<String> {
    let hopeless = |files: &u64| *files < FILES_OF_MPI + ranks;
    let open_files = have.open_files.filter(hopeless);
    let sure = Ceilings { file_bytes: have.file_bytes, open_files, ..Ceilings::default() };
    complaints(sure, need, (ranks, 0)).into_iter().next()
}

/// Why so many processes are not even started on a machine with this memory.
pub fn too_many(processes: u64, memory_bytes: u64) -> Option<String> {
    let most = memory_bytes / PROCESS_BYTES_MIN;
    (processes > most).then(|| {
        format!(
            "{processes} ranks and spares on one machine with {} of memory: not even MPI fits into \
             that; start {most} or fewer (-n, --spares)",
            amount(memory_bytes)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, OptimizerKind, Resident};
    use crate::model::catalogue;
    use crate::needs::{Load, needs};

    fn needs_of(name: &str, change: impl FnOnce(&mut Config)) -> Needs {
        let mut config = Config::default();
        (config.run.ranks, config.model.name) = (4, name.into());
        change(&mut config);
        let graph = catalogue::build(name, [3, 32, 32], 10, 1.0).unwrap();
        let load = Load { ranks: 4, samples: 60_000, planned: None };
        needs(&config, &graph, load)
    }

    fn said(have: Ceilings, need: &Needs) -> Vec<String> {
        complaints(have, need, (4, 1))
    }

    #[test]
    fn a_ceiling_that_suffices_is_not_mentioned() {
        let need = needs_of("resnet20", |_| {});
        assert_eq!(said(Ceilings::default(), &need), Vec::<String>::new());
        let plenty = Ceilings {
            file_bytes: Some(1 << 40),
            address_bytes: Some(1 << 40),
            memory_bytes: Some(1 << 40),
            shared_bytes: Some(1 << 40),
            disk_bytes: Some(1 << 40),
            open_files: Some(1024),
            processes: Some(4096),
            group_processes: Some(4096),
        };
        assert_eq!(said(plenty, &need), Vec::<String>::new());
        assert_eq!(refusal(plenty, &need, 4), None);
    }

    #[test]
    fn each_ceiling_that_is_too_low_is_named_with_what_to_change() {
        let scarce = Ceilings {
            file_bytes: Some(102_400),
            address_bytes: Some(60 << 20),
            memory_bytes: Some(1 << 20),
            shared_bytes: Some(1 << 20),
            disk_bytes: Some(1 << 10),
            open_files: Some(16),
            processes: Some(30),
            group_processes: Some(31),
        };
        let need = needs_of("resnet18", |_| {});
        let lines = said(scarce, &need);
        let names = [
            ("ulimit -f", "both slots of the state"),
            ("ulimit -v", "raise it"),
            ("of memory", "(-n)"),
            ("/dev/shm", "recovery.resident_dir"),
            ("of disk", "checkpoint.keep_best = 0, or name another --run-dir"),
            ("ulimit -n", "raise it"),
            ("ulimit -u", "raise it"),
            ("pids.max", "raise it"),
        ];
        assert_eq!(lines.len(), names.len());
        for (line, (name, cure)) in lines.iter().zip(names) {
            assert!(line.contains(name) && line.contains(cure), "{line}");
        }
        assert_eq!(refusal(scarce, &need, 4).as_ref(), lines.first());
        let open = |files| Ceilings { file_bytes: None, open_files: Some(files), ..scarce };
        assert_eq!(refusal(open(30), &need, 4), None);
        let few = refusal(open(29), &need, 4);
        assert!(few.unwrap().starts_with("29 open files are what a process may have (ulimit -n)"));
    }

    #[test]
    fn the_largest_file_follows_the_optimizer_and_where_the_state_lies() {
        let limited = |bytes| Ceilings { file_bytes: Some(bytes), ..Ceilings::default() };
        let model_bytes = 4 * 11_181_642;
        let adamw = |config: &mut Config| {
            config.optimizer.name = OptimizerKind::AdamW;
            config.optimizer.ema_decay = Some(0.999);
        };
        // Two slots of the weights and as much of the optimizer.
        let sgd = needs_of("resnet18", |_| {});
        assert_eq!(refusal(limited(5 * model_bytes), &sgd, 4), None);
        let text = refusal(limited(5 * model_bytes), &needs_of("resnet18", adamw), 4).unwrap();
        assert!(text.contains("both slots of the state 3"), "{text}");
        // Without resident files AdamW's checkpoint has the largest: two moments and the average.
        let off = |config: &mut Config| {
            adamw(config);
            config.recovery.resident = Resident::Off;
        };
        let text = refusal(limited(2 * model_bytes), &needs_of("resnet18", off), 4).unwrap();
        assert!(text.contains("optimizer.safetensors"), "{text}");
    }

    #[test]
    fn a_small_run_starts_where_a_rank_s_shared_memory_may_be_made() {
        let need = needs_of("resnet20", |_| {});
        let limited = |bytes| Ceilings { file_bytes: Some(bytes), ..Ceilings::default() };
        assert_eq!(refusal(limited(16 << 20), &need, 4), None);
        assert!(refusal(limited((16 << 20) - 1), &need, 4).is_some());
    }

    #[test]
    fn a_crowd_is_refused_before_it_is_started() {
        assert_eq!(too_many(64, 4 << 30), None);
        let told = too_many(100_000, 4 << 30).unwrap();
        assert!(told.contains("100000 ranks") && told.contains("start 256 or fewer"), "{told}");
        assert!(too_many(u64::MAX, u64::MAX).is_some());
    }
}
