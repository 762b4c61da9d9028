//! The limits of the control groups that this process is in: its own and those of all groups above,
//! version 1 and 2. A container or a batch job has less than its machine. Pure but for reading.

use std::path::{Path, PathBuf};

pub mod group;

/// Version 1 says "no limit" by a number near the largest.
const UNLIMITED_MIN: u64 = 1 << 60;
/// Groups above each other that are looked at.
const DEPTH_MAX: usize = 64;

/// The tightest of all groups; `None` where none has a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cgroup {
    /// Bytes of memory.
    pub memory_bytes: Option<u64>,
    /// Bytes of it that can still be had: what caches hold is given back.
    pub memory_free_bytes: Option<u64>,
    /// Processes and threads that can still be started.
    pub processes_free: Option<u64>,
}

/// Those of this process.
pub fn read() -> Cgroup {
    let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    of(&text("/proc/self/cgroup"), &text("/proc/self/mountinfo"), &read)
}

/// Bytes of memory that can be had: the machine's, and no more than the groups leave.
pub fn available_memory_bytes() -> Option<u64> {
    least(crate::os::available_memory_bytes(), read().memory_free_bytes)
}

/// Likewise all there is.
pub fn total_memory_bytes() -> Option<u64> {
    least(crate::os::total_memory_bytes(), read().memory_bytes)
}

/// Processes that the OOM killer has ended in this process's memory groups that have a limit;
/// `None` where none has, or the kernel does not count.
pub fn oom_kills() -> Option<u64> {
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    memory_folders().iter().filter_map(|folder| oom_kills_in(folder, &read)).reduce(u64::max)
}

/// Version 2 counts those of groups below too, version 1 does not.
fn oom_kills_in(folder: &Path, read: &dyn Fn(&Path) -> Option<String>) -> Option<u64> {
    memory(folder, read).0?;
    let text = ["memory.events", "memory.oom_control"].iter().find_map(|f| read(&folder.join(f)));
    let line = text.as_ref()?.lines().find_map(|line| line.strip_prefix("oom_kill "));
    line?.trim().parse().ok()
}

fn least(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}

/// `groups`: /proc/self/cgroup; `mounts`: /proc/self/mountinfo.
fn of(groups: &str, mounts: &str, read: &dyn Fn(&Path) -> Option<String>) -> Cgroup {
    let mut found = Cgroup::default();
    for folder in folders(groups, mounts, "memory") {
        let (limit, free) = memory(&folder, read);
        found.memory_bytes = least(found.memory_bytes, limit);
        found.memory_free_bytes = least(found.memory_free_bytes, free);
    }
    for folder in folders(groups, mounts, "pids") {
        let number = |name: &str| read(&folder.join(name))?.trim().parse::<u64>().ok();
        let free = number("pids.max")
            .map(|most| most.saturating_sub(number("pids.current").unwrap_or_default()));
        found.processes_free = least(found.processes_free, free);
    }
    found
}

/// One group's limit and what is left of it.
fn memory(folder: &Path, read: &dyn Fn(&Path) -> Option<String>) -> (Option<u64>, Option<u64>) {
    let number = |names: [&str; 2]| {
        let text = names.iter().find_map(|name| read(&folder.join(name)));
        text?.trim().parse::<u64>().ok()
    };
    let limit = number(["memory.max", "memory.limit_in_bytes"]);
    let Some(limit) = limit.filter(|limit| *limit < UNLIMITED_MIN) else { return (None, None) };
    let used = number(["memory.current", "memory.usage_in_bytes"]).unwrap_or_default();
    let statistics = read(&folder.join("memory.stat")).unwrap_or_default();
    let cached = ["total_inactive_file ", "inactive_file "].into_iter().find_map(|key| {
        let line = statistics.lines().find_map(|line| line.strip_prefix(key));
        line?.trim().parse::<u64>().ok()
    });
    let free = limit.saturating_sub(used.saturating_sub(cached.unwrap_or_default()));
    (Some(limit), Some(free))
}

/// The folders of this process's memory groups, its own first.
fn memory_folders() -> Vec<PathBuf> {
    let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    folders(&text("/proc/self/cgroup"), &text("/proc/self/mountinfo"), "memory")
}

/// The folders of the groups with this controller, from this process's own up to the mount.
fn folders(groups: &str, mounts: &str, controller: &str) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let hierarchy = match controllers {
            "" => Hierarchy::Unified,
            all if all.split(',').any(|name| name == controller) => Hierarchy::Of(controller),
            _ => continue,
        };
        let Some((root, mount)) = mounts.lines().find_map(|line| mounted(line, hierarchy)) else {
            continue;
        };
        // A container may see the mount of its own group only, under the name it has outside.
        let below = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
        let below = if below.starts_with("..") { Path::new("") } else { below };
        let all = below.ancestors().take(DEPTH_MAX);
        folders.extend(all.map(|below| Path::new(mount).join(below)));
    }
    folders
}

/// A tree of groups, cgroups(7).
#[derive(Clone, Copy)]
enum Hierarchy<'a> {
    /// Version 2: of all controllers.
    Unified,
    /// Version 1: of this one.
    Of(&'a str),
}

/// Root and mount point of a line of mountinfo that has the groups of this hierarchy.
fn mounted<'a>(line: &'a str, hierarchy: Hierarchy<'_>) -> Option<(&'a str, &'a str)> {
    let (place, what) = line.split_once(" - ")?;
    let mut what = what.split(' ');
    let (kind, options) = (what.next()?, what.nth(1)?);
    let fits = match hierarchy {
        Hierarchy::Unified => kind == "cgroup2",
        Hierarchy::Of(controller) => {
            kind == "cgroup" && options.split(',').any(|name| name == controller)
        }
    };
    let mut place = place.split(' ').skip(3);
    fits.then_some((place.next()?, place.next()?))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn found(groups: &str, mounts: &str, files: &[(&str, &str)]) -> Cgroup {
        let files: HashMap<&Path, &str> =
            files.iter().map(|(path, body)| (Path::new(*path), *body)).collect();
        of(groups, mounts, &|path| files.get(path).map(|body| format!("{body}\n")))
    }

    const V2: &str = "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw";
    const V1: &str = "31 24 0:27 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n\
                      32 24 0:28 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n\
                      33 24 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw";

    #[test]
    fn the_tightest_of_nested_groups_counts_and_caches_are_free() {
        let files = [
            ("/sys/fs/cgroup/job/step/memory.max", "max"),
            ("/sys/fs/cgroup/job/step/memory.current", "10"),
            ("/sys/fs/cgroup/job/memory.max", "1000"),
            ("/sys/fs/cgroup/job/memory.current", "700"),
            ("/sys/fs/cgroup/job/memory.stat", "anon 400\nfile 300\ninactive_file 200"),
            ("/sys/fs/cgroup/job/pids.max", "40"),
            ("/sys/fs/cgroup/job/pids.current", "8"),
            ("/sys/fs/cgroup/memory.max", "5000"),
            ("/sys/fs/cgroup/memory.current", "1000"),
        ];
        let expected = Cgroup {
            memory_bytes: Some(1000),
            memory_free_bytes: Some(500),
            processes_free: Some(32),
        };
        assert_eq!(found("0::/job/step", V2, &files), expected);
        assert_eq!(found("0::/other", V2, &files[7..]).memory_free_bytes, Some(4000));
    }

    #[test]
    fn kills_are_counted_where_a_group_has_a_limit() {
        let read = |path: &Path| {
            let text = match path.to_str()? {
                "/v2/memory.max" | "/v1/memory.limit_in_bytes" => "1000",
                "/open/memory.max" => "max",
                "/v2/memory.events" => "low 0\noom 4\noom_kill 3\noom_group_kill 0",
                "/v1/memory.oom_control" => "oom_kill_disable 0\nunder_oom 0\noom_kill 2",
                "/open/memory.events" => "oom_kill 9",
                _ => return None,
            };
            Some(text.to_owned())
        };
        let kills = |folder: &str| oom_kills_in(Path::new(folder), &read);
        assert_eq!([kills("/v2"), kills("/v1"), kills("/open")], [Some(3), Some(2), None]);
    }

    #[test]
    fn version_1_has_a_folder_for_each_controller() {
        let groups = "9:name=systemd:/\n8:pids:/d\n4:memory:/d/c\n1:cpu,cpuacct:/\n0::/";
        let files = [
            ("/sys/fs/cgroup/memory/d/c/memory.limit_in_bytes", "59998208"),
            ("/sys/fs/cgroup/memory/d/c/memory.usage_in_bytes", "9998208"),
            ("/sys/fs/cgroup/memory/d/c/memory.stat", "inactive_file 1\ntotal_inactive_file 7"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712"),
            ("/sys/fs/cgroup/pids/d/pids.max", "30"),
        ];
        let all = found(groups, V1, &files);
        assert_eq!(all.memory_bytes, Some(59_998_208));
        assert_eq!(all.memory_free_bytes, Some(50_000_007));
        assert_eq!(all.processes_free, Some(30));
        assert_eq!(found(groups, V1, &files[3..4]), Cgroup::default(), "no limit at all");
    }

    #[test]
    fn a_container_sees_its_own_group_at_the_mount() {
        let mounts = "31 24 0:27 /docker/c7 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory";
        let files = [("/sys/fs/cgroup/memory/memory.limit_in_bytes", "100")];
        for group in ["4:memory:/docker/c7", "4:memory:/", "4:memory:/../.."] {
            assert_eq!(found(group, mounts, &files).memory_bytes, Some(100), "{group}");
        }
        assert_eq!(found("", "", &[]), Cgroup::default());
        assert_eq!(found("nonsense", "nonsense - x", &[]), Cgroup::default());
    }

    #[test]
    fn this_machine_never_has_more_than_the_kernel_says() {
        let (total, all) = (total_memory_bytes(), crate::os::total_memory_bytes());
        assert!(total.is_some() && total <= all);
    }
}
