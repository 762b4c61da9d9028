//! What a run will need of memory and disk, against what is free. Pure but for the caller's
//! measurements.

const F32: u64 = 4;

/// Sizes that decide what a run needs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sizes {
    /// f32 elements of the parameters.
    pub parameters: u64,
    /// f32 elements of the running statistics.
    pub statistics: u64,
    /// Ranks on this machine.
    pub ranks: u64,
    /// Worker threads per rank.
    pub workers: u64,
    /// Checkpoints kept.
    pub checkpoints: u64,
    /// Bytes of the node's cache of samples, at most (`data.cache`); 0 without one.
    pub cache_bytes: u64,
}

/// Bytes needed on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Estimate {
    /// Of memory, over all ranks; activations and decoded images come on top.
    pub memory_bytes: u64,
    /// Of memory, for the node's cache.
    pub cache_bytes: u64,
    /// Of disk, for checkpoints.
    pub disk_bytes: u64,
}

/// Of the model alone: parameters and statistics.
pub fn model_bytes(sizes: Sizes) -> u64 {
    F32 * (sizes.parameters + sizes.statistics)
}

/// Of one state: parameters, as much of the optimizer, statistics.
pub fn state_bytes(sizes: Sizes) -> u64 {
    F32 * (2 * sizes.parameters + sizes.statistics)
}

/// Each rank holds two slots of the whole state, the gradients of each worker, their sum before
/// and after the all-reduce, and one snapshot; each checkpoint holds one state, and one more than
/// is kept exists while it is verified.
pub fn estimate(sizes: Sizes) -> Estimate {
    let (weights, state) = (sizes.parameters * F32, state_bytes(sizes));
    let worker_copies = 2 * sizes.workers;
    let rank = 2 * state + (worker_copies + 2) * weights + state;
    let (memory_bytes, cache_bytes) = (sizes.ranks * rank, sizes.cache_bytes);
    Estimate { memory_bytes, cache_bytes, disk_bytes: (sizes.checkpoints + 1) * state }
}

/// One line per thing that is short, saying what to change.
pub fn shortages(need: Estimate, free_memory: Option<u64>, free_disk: Option<u64>) -> Vec<String> {
    let mut lines = Vec::new();
    let all_bytes = need.memory_bytes.saturating_add(need.cache_bytes);
    if let Some(free) = free_memory.filter(|free| *free < all_bytes) {
        let (what, instead) = match need.cache_bytes {
            0 => (String::new(), ""),
            cache => (format!(" with data.cache ({})", readable(cache)), "lower data.cache, "),
        };
        lines.push(format!(
            "the state of all ranks{what} needs about {} of memory, {} is free: {instead}start \
             fewer ranks (-n) or a smaller model",
            readable(all_bytes),
            readable(free)
        ));
    }
    if let Some(free) = free_disk.filter(|free| *free < need.disk_bytes) {
        lines.push(format!(
            "checkpoints need about {} of disk, {} is free: lower checkpoint.keep or name \
             another --run-dir",
            readable(need.disk_bytes),
            readable(free)
        ));
    }
    lines
}

/// Memory of a rank that has done no more than start MPI, at the least.
const PROCESS_BYTES_MIN: u64 = 16 << 20;

/// Why so many processes are not even started on a machine with this memory.
pub fn crowd(processes: u64, memory_bytes: u64) -> Option<String> {
    let most = memory_bytes / PROCESS_BYTES_MIN;
    (processes > most).then(|| {
        format!(
            "{processes} ranks and spares on one machine with {} of memory: not even MPI fits into \
             that; start {most} or fewer (-n, --spares)",
            readable(memory_bytes)
        )
    })
}

/// A size for people.
pub fn readable(bytes: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let unit = UNITS.iter().find(|(scale, _)| bytes >= *scale);
    match unit {
        Some((scale, unit)) => format!("{:.1} {unit}", bytes as f64 / *scale as f64),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Sizes = Sizes {
        parameters: 0,
        statistics: 0,
        ranks: 0,
        workers: 0,
        checkpoints: 0,
        cache_bytes: 0,
    };

    #[test]
    fn a_95_megabyte_model_on_four_ranks_needs_gigabytes_of_memory() {
        let sizes =
            Sizes { parameters: 23_750_000, ranks: 4, workers: 1, checkpoints: 2, ..NOTHING };
        let need = estimate(sizes);
        assert_eq!(need.disk_bytes, 3 * 190_000_000);
        assert!((3 << 30..5 << 30).contains(&need.memory_bytes), "{}", need.memory_bytes);
        assert!(shortages(need, Some(64 << 30), Some(64 << 30)).is_empty());
        assert!(shortages(need, None, None).is_empty());
        let short = shortages(need, Some(1 << 30), Some(1 << 20));
        assert!(short[0].contains("memory") && short[1].contains("checkpoint.keep"));
        assert!(!short[0].contains("data.cache"), "{}", short[0]);
    }

    #[test]
    fn a_cache_is_memory_too() {
        let sizes = Sizes { parameters: 1000, ranks: 2, workers: 1, ..NOTHING };
        assert!(shortages(estimate(sizes), Some(1 << 30), None).is_empty());
        let cached = estimate(Sizes { cache_bytes: 2 << 30, ..sizes });
        let short = shortages(cached, Some(1 << 30), None);
        assert!(short[0].contains("data.cache (2.0 GiB)"), "{short:?}");
        assert!(short[0].contains("1.0 GiB is free: lower data.cache"), "{short:?}");
        assert!(shortages(cached, Some(3 << 30), None).is_empty());
    }

    #[test]
    fn a_crowd_is_refused_before_it_is_started() {
        assert_eq!(crowd(64, 4 << 30), None);
        let told = crowd(100_000, 4 << 30).unwrap();
        assert!(told.contains("100000 ranks") && told.contains("start 256 or fewer"), "{told}");
        assert!(crowd(u64::MAX, u64::MAX).is_some());
    }

    #[test]
    fn sizes_are_readable() {
        assert_eq!(readable(512), "512 B");
        assert_eq!(readable(3 << 20), "3.0 MiB");
    }
}
