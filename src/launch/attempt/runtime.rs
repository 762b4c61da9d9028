//! The newer runtime: prterun of PRRTE's and PMIx's development heads, under which the death of a
//! whole node does not end the job. Over several nodes it takes mpirun's place where it is found.
//! Its line and the step in which one of its daemons starts, as pure functions (measured with
//! PRRTE 5.0.0 and PMIx 7.0.0 in the making, below Open MPI 5.0.11).

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::config::Shown;
use crate::launch::LaunchError;
use crate::launch::nodes::Placement;
use crate::launch::nodes::srun::SRUN_UNSET;

/// Where it is installed, for `run.runtime = "auto"`; its daemons' starter finds it here too.
pub const RUNTIME_VARIABLE: &str = "KINTSUGI_RUNTIME";

/// Where Open MPI lies: its own mpirun says so to the ranks, another one does not.
const OPENMPI_VARIABLE: &str = "OPAL_PREFIX";

/// `run.runtime` when the environment decides.
const AUTO: &str = "auto";

/// Silence after which a daemon is asked whether it lives, between two questions, and how many it
/// may leave unanswered: a node that falls silent is given up after 2 to 3 s.
const KEEPALIVE_SECONDS: u64 = 1;
const KEEPALIVE_INTERVAL_SECONDS: u64 = 1;
const KEEPALIVE_PROBES: u64 = 2;

/// The end of that.
pub const SILENCE_MAX: Duration =
    Duration::from_secs(KEEPALIVE_SECONDS + KEEPALIVE_INTERVAL_SECONDS * KEEPALIVE_PROBES);

/// A step that fails so soon did not start its daemon. Later it lost its node, which prterun has
/// heard already: told once more, it would end the job.
const START_MAX: Duration = Duration::from_secs(10);

/// What mpirun takes as options, Open MPI takes from the environment here.
const PARAMETERS: [(&str, &str); 6] = [
    // Failure notices and agreement.
    ("OMPI_MCA_mpi_ft_enable", "1"),
    // Only components that are tested with failures.
    ("OMPI_MCA_pml", "ob1"),
    ("OMPI_MCA_btl", "self,sm,tcp"),
    ("OMPI_MCA_coll", "^han"),
    // The runtime sees from slots only that cores are short; spares come without one.
    ("OMPI_MCA_mpi_yield_when_idle", "1"),
    // No barrier with the dead in MPI_Finalize.
    ("OMPI_MCA_async_mpi_finalize", "1"),
];

/// An installation, and what it needs to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runtime {
    /// Of PRRTE and PMIx.
    pub prefix: PathBuf,
    /// Of the Open MPI that the ranks are linked with.
    pub openmpi: PathBuf,
    /// This program: it starts the daemons.
    pub program: PathBuf,
}

impl Runtime {
    /// The one that `run.runtime` names, or for "auto" the environment; `None` where neither does.
    ///
    /// # Errors
    /// There is no prterun where one was named, or a path that its options cannot carry.
    pub fn find(
        key: &str,
        variable: Option<PathBuf>,
        mpirun: &Path,
        program: &Path,
    ) -> Result<Option<Self>, LaunchError> {
        let named = match key {
            AUTO => variable.filter(|path| !path.as_os_str().is_empty()),
            path => Some(PathBuf::from(path)),
        };
        let Some(prefix) = named else { return Ok(None) };
        let refuse = |looked: String| Err(LaunchError::NoRuntime { looked });
        if !prefix.is_absolute() || !prefix.join("bin/prterun").is_file() {
            let shown = prefix.shown();
            return refuse(format!("{shown}/bin/prterun is not a file with an absolute path"));
        }
        if program.to_string_lossy().contains(char::is_whitespace) {
            let shown = program.shown();
            return refuse(format!("prterun cannot call {shown}, for its path has a space in it"));
        }
        // PREFIX/bin/mpirun.
        let openmpi = mpirun.parent().and_then(Path::parent).unwrap_or(Path::new("/usr"));
        let (openmpi, program) = (openmpi.to_owned(), program.to_owned());
        Ok(Some(Self { prefix, openmpi, program }))
    }

    /// The line up to what both launchers share.
    pub fn line(&self, placement: &Placement, ranks: u32) -> Vec<String> {
        let slots = placement.processes_per_host(ranks);
        let hosts: Vec<String> =
            placement.hosts.iter().map(|host| format!("{host}:{slots}")).collect();
        let prterun = self.prefix.join("bin/prterun").to_string_lossy().into_owned();
        let steps = placement.hosts.len().max(1).to_string();
        let starter = format!("{} start-daemon", self.program.to_string_lossy().into_owned());
        let mut line: Vec<String> = [
            &[prterun.as_str(), "--allow-run-as-root"][..],
            &["--personality", "ompi", "--with-ft", "mpi"],
            // A rank that dies is not a failure of the job, and neither is a node.
            &["--rtos", "recoverable"],
            &["--bind-to", "none", "--map-by", "node:OVERSUBSCRIBE", "--host", &hosts.join(",")],
            // Its own SLURM launcher starts all daemons in one step, which SLURM ends with a node.
            &["--prtemca", "plm", "ssh", "--prtemca", "plm_ssh_agent", &starter],
            // Every daemon from here: one that was started by a daemon that is gone would go too.
            &["--prtemca", "plm_ssh_no_tree_spawn", "1"],
            // A daemon that leaves its step is killed by SLURM, or survives it: sites differ. So
            // all steps last, and none waits for the end of another.
            &["--leave-session-attached", "--prtemca", "plm_ssh_num_concurrent", &steps],
        ]
        .concat()
        .into_iter()
        .map(str::to_owned)
        .collect();
        for (name, value) in [
            ("prte_keepalive_time", KEEPALIVE_SECONDS),
            ("prte_keepalive_intvl", KEEPALIVE_INTERVAL_SECONDS),
            ("prte_keepalive_probes", KEEPALIVE_PROBES),
        ] {
            line.extend(["--prtemca".to_owned(), name.to_owned(), value.to_string()]);
        }
        line.extend(["--output", "tag"].map(str::to_owned));
        line
    }

    /// What prterun and the ranks must find set beside what mpirun's do.
    pub fn environment(&self) -> Vec<(String, String)> {
        let pair = |name: &str, value: String| (name.to_owned(), value);
        let mut set = vec![
            pair(RUNTIME_VARIABLE, self.prefix.to_string_lossy().into_owned()),
            pair(OPENMPI_VARIABLE, self.openmpi.to_string_lossy().into_owned()),
        ];
        set.extend(PARAMETERS.map(|(name, value)| pair(name, value.to_owned())));
        set
    }
}

/// What prterun wants started: `[option]... NODE WORD...`, as it would call ssh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Daemon {
    /// Where.
    pub node: String,
    /// Words of a shell's command line.
    pub command: String,
}

impl Daemon {
    /// Reads the call; `None` where it names no node or no command.
    pub fn read(words: &[String]) -> Option<Self> {
        let mut words = words.iter().skip_while(|word| word.starts_with('-'));
        let node = words.next()?.clone();
        let command = words.cloned().collect::<Vec<_>>().join(" ");
        (!command.trim().is_empty()).then_some(Self { node, command })
    }

    /// One step per daemon: SLURM ends a step that has lost a node.
    pub fn step(&self, shell: &str) -> Vec<String> {
        let flags = ["srun", "--overlap", "--no-kill", "--quiet", "--mpi=none", "--cpu-bind=none"];
        let place = ["--nodes=1", "--ntasks=1", "--nodelist", &self.node];
        let command = [shell, "-c", &self.command];
        [&flags[..], &place, &command].concat().into_iter().map(str::to_owned).collect()
    }

    /// Starts it and waits for its end; the exit code that prterun shall see.
    ///
    /// # Errors
    /// No srun.
    pub fn start(&self, prefix: &Path) -> std::io::Result<u8> {
        let shell = std::env::var("SHELL").unwrap_or_else(|_| "/bin/sh".into());
        let line = self.step(&shell);
        let own = prefix.join("bin").into_os_string();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = [own, path].join(std::ffi::OsStr::new(":"));
        let mut command = Command::new(&line[0]);
        command.args(&line[1..]).env("PATH", path).stdin(Stdio::null());
        for name in SRUN_UNSET {
            command.env_remove(name);
        }
        let begun = Instant::now();
        let status = command.status()?;
        Ok(code(status, begun.elapsed()))
    }
}

/// Only a daemon that did not start is news to prterun.
fn code(status: ExitStatus, after: Duration) -> u8 {
    u8::from(!status.success() && after < START_MAX)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    fn runtime() -> Runtime {
        Runtime {
            prefix: "/opt/runtime".into(),
            openmpi: "/opt/mpi".into(),
            program: "/opt/bin/kintsugi".into(),
        }
    }

    #[test]
    fn the_line_names_the_nodes_that_live_and_how_daemons_are_started_and_missed() {
        let hosts = ["n1", "n3"].map(str::to_owned).to_vec();
        let line = runtime().line(&Placement { hosts, spares_per_host: 3 }, 4);
        assert_eq!(
            line.join(" "),
            "/opt/runtime/bin/prterun --allow-run-as-root --personality ompi --with-ft mpi \
             --rtos recoverable --bind-to none --map-by node:OVERSUBSCRIBE --host n1:5,n3:5 \
             --prtemca plm ssh --prtemca plm_ssh_agent /opt/bin/kintsugi start-daemon \
             --prtemca plm_ssh_no_tree_spawn 1 --leave-session-attached \
             --prtemca plm_ssh_num_concurrent 2 --prtemca prte_keepalive_time 1 \
             --prtemca prte_keepalive_intvl 1 --prtemca prte_keepalive_probes 2 --output tag"
        );
        // One word for prterun, which takes it apart itself.
        assert!(line.contains(&"/opt/bin/kintsugi start-daemon".to_owned()));
    }

    #[test]
    fn open_mpi_hears_through_the_environment_what_mpirun_would_have_told_it() {
        let set = runtime().environment();
        let value = |name: &str| {
            set.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
        };
        assert_eq!(value("OPAL_PREFIX"), Some("/opt/mpi"));
        assert_eq!(value(RUNTIME_VARIABLE), Some("/opt/runtime"));
        assert_eq!(value("OMPI_MCA_mpi_ft_enable"), Some("1"));
        assert_eq!(value("OMPI_MCA_coll"), Some("^han"));
    }

    #[test]
    fn it_is_where_the_key_says_then_where_the_environment_does_and_must_be_there() {
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().to_owned();
        let find = |key: &str, variable: Option<&Path>, program: &str| {
            let variable = variable.map(Path::to_path_buf);
            let mpirun = Path::new("/opt/mpi/bin/mpirun");
            Runtime::find(key, variable, mpirun, Path::new(program))
        };
        let key = prefix.to_str().unwrap();
        assert_eq!(find("auto", None, "/k").unwrap(), None);
        assert_eq!(find("auto", Some(Path::new("")), "/k").unwrap(), None);
        assert!(find(key, None, "/k").unwrap_err().to_string().contains("prterun"));
        std::fs::create_dir(prefix.join("bin")).unwrap();
        std::fs::write(prefix.join("bin/prterun"), "").unwrap();
        let found = find(key, None, "/k").unwrap().unwrap();
        assert_eq!((&found.prefix, found.openmpi), (&prefix, PathBuf::from("/opt/mpi")));
        assert_eq!(find("auto", Some(&prefix), "/k").unwrap().unwrap().prefix, prefix);
        assert!(find("runtime", Some(&prefix), "/k").is_err());
        assert!(find(key, None, "/a b/k").unwrap_err().to_string().contains("space"));
    }

    #[test]
    fn a_daemon_is_started_by_a_step_of_its_own() {
        let words = ["-x", "n2", "PATH=a:$PATH", ";", "prted", "--flag"].map(str::to_owned);
        let daemon = Daemon::read(&words).unwrap();
        assert_eq!(daemon.node, "n2");
        assert_eq!(
            daemon.step("/bin/sh")[6..],
            ["--nodes=1", "--ntasks=1", "--nodelist", "n2", "/bin/sh", "-c"]
                .map(str::to_owned)
                .into_iter()
                .chain(["PATH=a:$PATH ; prted --flag".to_owned()])
                .collect::<Vec<_>>()
        );
        for bad in [&words[..1], &words[..2], &[]] {
            assert_eq!(Daemon::read(bad), None);
        }
    }

    #[test]
    fn a_step_that_ends_with_its_node_is_no_failed_start() {
        let [good, bad] = [0, 1 << 8].map(ExitStatus::from_raw);
        assert_eq!(code(bad, Duration::from_secs(1)), 1);
        assert_eq!(code(bad, Duration::from_secs(30)), 0);
        assert_eq!(code(good, Duration::from_secs(1)), 0);
    }
}
