//! The mpirun line: which flags and environment make failures survivable (measured with
//! Open MPI 5.0.11), as pure functions.

use std::path::{Path, PathBuf};

use crate::cluster::comm::mpi::flags::recovery_flags;
use crate::config::Shown;
use crate::launch::LaunchError;
use crate::launch::nodes::Placement;
use crate::launch::nodes::allocation::JOB;
use crate::launch::nodes::srun::{SRUN_SET, SRUN_UNSET};
use crate::launch::traces::folders::Folders;
use crate::run_folder::variables;

use super::runtime::Runtime;

/// Names another mpirun than the one beside the compiler wrapper this program was built with.
pub const MPIRUN_VARIABLE: &str = "KINTSUGI_MPIRUN";

/// Switches the work-around `ulfm-shim/pmix_addresses.c` on.
pub const ADDRESSES_VARIABLE: &str = "KINTSUGI_PMIX_ADDRESSES";

/// The C library's settings.
pub const TUNABLES_VARIABLE: &str = "GLIBC_TUNABLES";

/// Asks for huge pages where memory is large. A dead rank is noticed only when the kernel has freed
/// its pages, and a new one waits for its own: with 4 KiB pages that is a good part of a recovery.
const HUGE_PAGES: &str = "glibc.malloc.hugetlb";

/// What an mpirun line is made of.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The launcher.
    pub mpirun: PathBuf,
    /// Ranks to start.
    pub ranks: u32,
    /// Spares to start beside them, on one node.
    pub spares: u32,
    /// Computing threads of one rank.
    pub threads_per_rank: u32,
    /// Cores of this machine.
    pub cores: u32,
    /// What each rank runs, arguments included.
    pub rank_command: Vec<String>,
    /// `kintsugi-RUN-ATTEMPT`.
    pub job: String,
    /// Its private folders.
    pub folders: Folders,
    /// Below it ranks make pictures, where the configuration names none.
    pub pictures: Option<PathBuf>,
    /// Over several nodes: which.
    pub placement: Option<Placement>,
    /// What takes mpirun's place there, so that a node's death is survived.
    pub runtime: Option<Runtime>,
    /// Whether the ladder starts processes.
    pub respawns: bool,
    /// On one machine: what limits launcher and ranks to its loopback.
    pub loopback: Vec<(&'static str, &'static str)>,
    /// This machine, as ranks on it call it.
    pub home: String,
    /// What the user has in `TUNABLES_VARIABLE`.
    pub tunables: Option<String>,
    /// Over several nodes: variables of SLURM that mpirun misses.
    pub slurm: Vec<(String, String)>,
}

impl Plan {
    /// More computing threads than cores: whoever waits must give way.
    fn oversubscribed(&self) -> bool {
        self.ranks_here().saturating_mul(self.threads_per_rank) > self.cores
    }

    /// Ranks of each machine, at most.
    pub fn ranks_here(&self) -> u32 {
        let placed = self.placement.as_ref().map(|placement| placement.ranks_per_host(self.ranks));
        placed.unwrap_or(self.ranks)
    }

    /// The other launcher and its nodes, where this is not mpirun's line.
    fn over_nodes(&self) -> Option<(&Runtime, &Placement)> {
        self.runtime.as_ref().zip(self.placement.as_ref())
    }

    /// The ranks are told how many they are: the configuration has the number that the run began
    /// with, and those beyond it would take themselves for spares.
    pub fn say_ranks(&mut self) {
        self.rank_command.extend(["--ranks".to_owned(), self.ranks.to_string()]);
    }

    /// Ranks and spares of all nodes.
    fn processes(&self) -> u32 {
        let spares = self.placement.as_ref().map_or(self.spares, Placement::spares);
        self.ranks.saturating_add(spares)
    }
}

/// What the environment of mpirun must hold and must not hold.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Environment {
    /// Set, in this order.
    pub set: Vec<(String, String)>,
    /// Removed.
    pub unset: Vec<String>,
}

/// The flags of a world that spans these nodes.
fn node_flags(placement: &Placement, ranks: u32) -> Vec<String> {
    let slots = placement.processes_per_host(ranks);
    let hosts: Vec<String> = placement.hosts.iter().map(|host| format!("{host}:{slots}")).collect();
    [
        // Rank i on host i modulo their number. Replaces `--oversubscribe`, which means the same.
        &["--map-by", "node:OVERSUBSCRIBE"][..],
        &["--host", &hosts.join(",")],
        // Beside our agents' steps; and SLURM must not end all daemons because one node is gone.
        &["--prtemca", "plm_slurm_args", "--overlap --no-kill"],
    ]
    .concat()
    .into_iter()
    .map(str::to_owned)
    .collect()
}

/// The whole line, launcher first.
pub fn command_line(plan: &Plan) -> Vec<String> {
    let mut line = match plan.over_nodes() {
        Some((runtime, placement)) => runtime.line(placement, plan.ranks),
        None => mpirun_line(plan),
    };
    for (name, _) in environment(plan).set {
        // Folders of this machine are none of other nodes' business; ranks here inherit them.
        let inherited = name == "TMPDIR"
            || name == variables::SEGMENTS
            || plan.loopback.iter().any(|(known, _)| name == *known)
            || plan.slurm.iter().any(|(known, _)| name == *known);
        if !inherited && SRUN_SET.iter().all(|(known, _)| name != *known) {
            line.extend(["-x".to_owned(), name]);
        }
    }
    line.extend(["-n".into(), plan.processes().to_string()]);
    line.extend(plan.rank_command.iter().cloned());
    line
}

/// mpirun and its options.
fn mpirun_line(plan: &Plan) -> Vec<String> {
    let mut line = vec![plan.mpirun.to_string_lossy().into_owned()];
    let mut flags = recovery_flags();
    if let Some(placement) = &plan.placement {
        flags.retain(|flag| flag != "--oversubscribe");
        flags.extend(node_flags(placement, plan.ranks));
    }
    line.extend(flags);
    line.extend(["--output".into(), "tag".into()]);
    if plan.oversubscribed() || plan.placement.is_some() {
        // The runtime sees it from slots only, and replacements and spares come without one.
        line.extend(["--mca", "mpi_yield_when_idle", "1"].map(str::to_owned));
    }
    line
}

/// What mpirun and, through it, every rank and every later replacement finds set.
pub fn environment(plan: &Plan) -> Environment {
    let pair = |name: &str, value: String| (name.to_owned(), value);
    let mut set = vec![
        pair("TMPDIR", plan.folders.temporary.to_string_lossy().into_owned()),
        pair(variables::JOB, plan.job.clone()),
        pair(variables::SEGMENTS, plan.folders.shared_memory.to_string_lossy().into_owned()),
        pair(TUNABLES_VARIABLE, tunables(plan.tunables.as_deref())),
        pair(variables::RANKS_HERE, plan.ranks_here().to_string()),
    ];
    if let Some(pictures) = &plan.pictures {
        set.push(pair(variables::DATA, pictures.to_string_lossy().into_owned()));
    }
    if plan.oversubscribed() {
        // Idle OpenMP threads that spin take the cores of those that compute.
        set.push(pair("OMP_WAIT_POLICY", "passive".into()));
        set.push(pair("GOMP_SPINCOUNT", "0".into()));
    }
    // Every rank would pin its threads to the same first cores; and a team that is smaller than
    // asked has other bits.
    const UNSET: [&str; 5] = [
        "OMP_PROC_BIND",
        "OMP_PLACES",
        "GOMP_CPU_AFFINITY",
        "OMP_THREAD_LIMIT",
        "OMP_MAX_ACTIVE_LEVELS",
    ];
    let mut unset = UNSET.map(str::to_owned).to_vec();
    if let Some(placement) = &plan.placement {
        set.push(pair(variables::NODES, placement.hosts.len().to_string()));
        set.push(pair(variables::HOME, plan.home.clone()));
        if plan.respawns {
            set.push(pair(ADDRESSES_VARIABLE, "1".into()));
        }
        set.extend(plan.slurm.iter().cloned());
        set.extend(SRUN_SET.map(|(name, value)| pair(name, value.into())));
        unset.extend(SRUN_UNSET.map(str::to_owned));
    }
    if plan.placement.is_none() {
        // By them mpirun would start ranks on other nodes: a job's that is another machine's, or
        // that launch cannot see.
        unset.extend(JOB.map(str::to_owned));
        set.extend(plan.loopback.iter().map(|(name, value)| pair(name, (*value).to_owned())));
    }
    if let Some((runtime, _)) = plan.over_nodes() {
        set.extend(runtime.environment());
    }
    Environment { set, unset }
}

/// The user's own, with huge pages unless he has said something about them.
pub fn tunables(users: Option<&str>) -> String {
    let huge_pages = format!("{HUGE_PAGES}=1");
    match users.filter(|users| !users.is_empty()) {
        None => huge_pages,
        Some(users) if users.contains(HUGE_PAGES) => users.to_owned(),
        Some(users) => format!("{users}:{huge_pages}"),
    }
}

/// The line as one can paste it into a shell.
pub fn pasteable(plan: &Plan) -> String {
    let environment = environment(plan);
    let mut words = vec!["env".to_owned()];
    words.extend(environment.unset.iter().flat_map(|name| ["-u".to_owned(), name.clone()]));
    words.extend(environment.set.iter().map(|(name, value)| format!("{name}={value}")));
    words.extend(command_line(plan));
    shell_quoted(&words)
}

/// Quotes what a POSIX shell would read otherwise.
pub fn shell_quoted(words: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./,:@%+^".contains(c);
    let quote = |word: &String| match !word.is_empty() && word.chars().all(plain) {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    };
    words.iter().map(quote).collect::<Vec<_>>().join(" ")
}

/// Finds mpirun: the environment's choice, the sibling of the compiler wrapper `mpicc`, `path`.
pub fn find(
    chosen: Option<PathBuf>,
    mpicc: &Path,
    path: Option<&std::ffi::OsStr>,
) -> Result<PathBuf, LaunchError> {
    if let Some(chosen) = chosen {
        let looked = format!("{MPIRUN_VARIABLE}={} is not a file", chosen.shown());
        return chosen.is_file().then_some(chosen).ok_or(LaunchError::NoMpirun { looked });
    }
    let folder = mpicc.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folders = folder.map(Path::to_path_buf).into_iter();
    let on_path = path.map(std::env::split_paths).into_iter().flatten();
    let mut candidates = folders.chain(on_path).map(|folder| folder.join("mpirun"));
    candidates.find(|candidate| candidate.is_file()).ok_or_else(|| LaunchError::NoMpirun {
        looked: format!("not beside {}, not in PATH", mpicc.shown()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(ranks: u32, cores: u32) -> Plan {
        Plan {
            mpirun: "/opt/mpi/bin/mpirun".into(),
            ranks,
            spares: 0,
            threads_per_rank: 1,
            cores,
            rank_command: ["kintsugi", "train", "runs/a b/config.toml"].map(str::to_owned).to_vec(),
            job: "kintsugi-0-1".into(),
            folders: Folders::draw("kintsugi-0-1"),
            pictures: None,
            placement: None,
            runtime: None,
            respawns: false,
            loopback: vec![("OMPI_MCA_btl_tcp_if_include", "lo")],
            home: "n1".into(),
            tunables: None,
            slurm: Vec::new(),
        }
    }

    #[test]
    fn mpirun_sees_the_nodes_that_launch_sees() {
        let alone = pasteable(&plan(4, 8));
        assert!(alone.contains("-u SLURM_JOB_ID -u SLURM_JOBID"), "{alone}");
        let hosts = ["n1", "n2"].map(str::to_owned).to_vec();
        let placement = Some(Placement { hosts, spares_per_host: 1 });
        let slurm = vec![("SLURM_JOBID".to_owned(), "7".to_owned())];
        let several = pasteable(&Plan { placement, slurm, ..plan(4, 8) });
        assert!(several.contains(" SLURM_JOBID=7 "), "{several}");
        assert!(!several.contains("-u SLURM_JOB") && !several.contains("-x SLURM"), "{several}");
    }

    #[test]
    fn huge_pages_are_asked_for_unless_the_user_has_a_say() {
        assert_eq!(tunables(None), "glibc.malloc.hugetlb=1");
        assert_eq!(
            tunables(Some("glibc.pthread.rseq=0")),
            "glibc.pthread.rseq=0:glibc.malloc.hugetlb=1"
        );
        assert_eq!(tunables(Some("glibc.malloc.hugetlb=0")), "glibc.malloc.hugetlb=0");
    }

    #[test]
    fn every_recovery_flag_is_on_the_line_and_the_program_is_last() {
        let line = command_line(&plan(4, 8));
        let flags = recovery_flags();
        assert!(line.windows(flags.len()).any(|window| window == flags));
        assert_eq!(line[line.len() - 5..][..2], ["-n", "4"]);
        assert_eq!(line[0], "/opt/mpi/bin/mpirun");
    }

    #[test]
    fn spares_are_started_with_the_ranks_and_need_no_core() {
        let plan = Plan { spares: 2, ..plan(4, 4) };
        let line = command_line(&plan);
        assert_eq!(line[line.len() - 5..][..2], ["-n", "6"]);
        assert!(!plan.oversubscribed());
    }

    #[test]
    fn over_several_nodes_the_line_names_those_that_live_and_no_folder_of_this_one() {
        let hosts = ["n1", "n3", "n4"].map(str::to_owned).to_vec();
        let placement = Some(Placement { hosts, spares_per_host: 3 });
        let plan = Plan { placement, spares: 3, ..plan(4, 8) };
        let line = command_line(&plan);
        let has = |flags: &[&str]| line.windows(flags.len()).any(|window| window == flags);
        assert!(has(&["--host", "n1:5,n3:5,n4:5"]) && has(&["--map-by", "node:OVERSUBSCRIBE"]));
        assert!(has(&["--prtemca", "plm_slurm_args", "--overlap --no-kill"]));
        assert!(has(&["-n", "13"]) && has(&["-x", variables::JOB]));
        assert!(has(&["-x", variables::RANKS_HERE]) && plan.ranks_here() == 2);
        assert!(has(&["-x", variables::NODES]) && has(&["-x", variables::HOME]));
        for absent in ["--oversubscribe", "TMPDIR", variables::SEGMENTS, "SLURM_OVERLAP"] {
            assert!(!line.iter().any(|word| word == absent), "{absent}");
        }
        assert!(!has(&["-x", ADDRESSES_VARIABLE]), "nobody is started");
        let respawns = command_line(&Plan { respawns: true, ..plan.clone() });
        assert!(respawns.iter().any(|word| word == ADDRESSES_VARIABLE));
        // Two ranks on a node of two cores fit; on this node alone they would not.
        assert!(!Plan { cores: 2, ..plan }.oversubscribed());
    }

    #[test]
    fn the_newer_runtime_takes_mpiruns_place_over_several_nodes_only() {
        let runtime = Runtime {
            prefix: "/opt/runtime".into(),
            openmpi: "/opt/mpi".into(),
            program: "/opt/kintsugi".into(),
        };
        let plain = plan(4, 8);
        let alone = Plan { runtime: Some(runtime), ..plain.clone() };
        assert_eq!(pasteable(&alone), pasteable(&plain));
        let hosts = ["n1", "n2"].map(str::to_owned).to_vec();
        let placement = Some(Placement { hosts, spares_per_host: 1 });
        let over_nodes = Plan { placement, spares: 1, ..alone };
        let line = command_line(&over_nodes);
        let has = |flags: &[&str]| line.windows(flags.len()).any(|window| window == flags);
        assert_eq!(line[0], "/opt/runtime/bin/prterun");
        assert!(has(&["-n", "6"]) && has(&["-x", variables::JOB]) && has(&["-x", "OPAL_PREFIX"]));
        // Its parameters are not options of this launcher.
        for absent in ["--mca", "--oversubscribe", "plm_slurm_args", "SLURM_OVERLAP", "TMPDIR"] {
            assert!(!line.iter().any(|word| word == absent), "{absent}");
        }
        assert!(pasteable(&over_nodes).contains("OMPI_MCA_mpi_ft_enable=1"));
    }

    #[test]
    fn one_machine_offers_its_loopback_and_several_what_the_others_reach() {
        let offers = |plan: &Plan| pasteable(plan).contains("OMPI_MCA_btl_tcp_if_include=lo");
        assert!(offers(&plan(4, 8)));
        let hosts = ["n1", "n2"].map(str::to_owned).to_vec();
        let placement = Some(Placement { hosts, spares_per_host: 0 });
        assert!(!offers(&Plan { placement, ..plan(4, 8) }));
    }

    #[test]
    fn threads_give_way_only_where_cores_are_short() {
        let passive = |plan: &Plan| pasteable(plan).contains("OMP_WAIT_POLICY=passive");
        assert!(!passive(&plan(4, 8)));
        assert!(passive(&plan(4, 2)));
        assert!(passive(&Plan { threads_per_rank: 3, ..plan(4, 8) }));
    }

    #[test]
    fn the_printed_line_survives_a_shell() {
        let text = pasteable(&plan(4, 2));
        let words = std::process::Command::new("sh")
            .args(["-c", &format!("printf '%s\\n' {text}")])
            .output()
            .unwrap();
        let words = String::from_utf8(words.stdout).unwrap();
        assert!(words.lines().any(|word| word == "runs/a b/config.toml"), "{words}");
        assert_eq!(shell_quoted(&["it's".into(), String::new()]), r"'it'\''s' ''");
    }

    #[test]
    fn mpirun_is_the_chosen_one_then_the_wrappers_sibling_then_the_paths() {
        let folder = tempfile::tempdir().unwrap();
        let (built, path) = (folder.path().join("built"), folder.path().join("path"));
        for place in [&built, &path] {
            std::fs::create_dir(place).unwrap();
        }
        let look = |chosen: Option<PathBuf>| {
            find(chosen, &built.join("mpicc"), Some(path.as_os_str())).ok()
        };
        assert_eq!(look(None), None);
        std::fs::write(path.join("mpirun"), "").unwrap();
        assert_eq!(look(None), Some(path.join("mpirun")));
        std::fs::write(built.join("mpirun"), "").unwrap();
        assert_eq!(look(None), Some(built.join("mpirun")));
        assert_eq!(look(Some(path.join("mpirun"))), Some(path.join("mpirun")));
        assert_eq!(look(Some(path.join("absent"))), None);
    }
}
