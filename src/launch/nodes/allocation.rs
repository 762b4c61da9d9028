//! Which nodes SLURM has given to this job, from its environment.

use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::super::{LaunchError, limits};

/// The job's number, its nodes and their number: each has an older name that is read too.
pub const JOB: [&str; 2] = ["SLURM_JOB_ID", "SLURM_JOBID"];
const LIST: [&str; 2] = ["SLURM_JOB_NODELIST", "SLURM_NODELIST"];
const COUNT: [&str; 2] = ["SLURM_JOB_NUM_NODES", "SLURM_NNODES"];
const TASKS: &str = "SLURM_TASKS_PER_NODE";

/// The nodes of a job with more than one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocation {
    /// The job's number.
    pub job: String,
    /// Their names, in SLURM's order.
    pub nodes: Vec<String>,
    /// The same as SLURM writes it: `n[1-3,7]`.
    pub list: String,
    /// Which of them this process runs on; `None` outside (`salloc` on a login node).
    pub own: Option<usize>,
}

impl Allocation {
    /// The one that this process runs in; `None` where there is none, or one of a single node.
    ///
    /// # Errors
    /// The list of nodes cannot be read.
    pub fn find() -> Result<Option<Self>, LaunchError> {
        let variable = |name: &str| std::env::var(name).ok();
        Self::of(&variable, &expand, &kintsugi_ffi::os::hostname())
    }

    fn of(
        variable: &dyn Fn(&str) -> Option<String>,
        expand: &dyn Fn(&str) -> io::Result<Vec<String>>,
        host: &str,
    ) -> Result<Option<Self>, LaunchError> {
        let Some(job) = JOB.into_iter().find_map(variable) else { return Ok(None) };
        let list = LIST.into_iter().find_map(variable);
        // mpirun goes by the list alone. A plain name is one node, and nobody has to be asked.
        let several = |list: &String| list.contains(['[', ',']);
        let Some(list) = list.filter(several) else { return Ok(None) };
        let nodes = expand(&list).map_err(|source| LaunchError::Io {
            what: format!(
                "scontrol show hostnames {list} (unset SLURM_JOB_ID to use this machine only)"
            ),
            source,
        })?;
        let called = variable("SLURMD_NODENAME").unwrap_or_else(|| host.to_owned());
        let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
        let own = nodes.iter().position(|node| *node == called);
        let own = own.or_else(|| nodes.iter().position(|node| short(node) == short(host)));
        Ok(Some(Self { job, nodes, list, own }).filter(|found| found.nodes.len() > 1))
    }

    /// What mpirun and srun must find set to see these nodes, and do not: each reads some of
    /// SLURM's variables only, and not all need be there.
    pub fn unsaid(&self, variable: &dyn Fn(&str) -> Option<String>) -> Vec<(String, String)> {
        let count = self.nodes.len().to_string();
        let mut say: Vec<(&str, &str)> = Vec::new();
        say.extend(JOB.map(|name| (name, self.job.as_str())));
        say.extend(LIST.map(|name| (name, self.list.as_str())));
        say.extend(COUNT.map(|name| (name, count.as_str())));
        say.retain(|(name, value)| variable(name).as_deref() != Some(value));
        // How many start where is said to mpirun otherwise: it only must be there.
        let tasks = format!("1(x{count})");
        say.extend(variable(TASKS).is_none().then_some((TASKS, tasks.as_str())));
        say.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }
}

/// What to say where a job has one node, which is not this machine: ranks start here.
pub fn elsewhere() -> Option<String> {
    let variable = |name: &str| std::env::var(name).ok();
    elsewhere_than(&variable, &kintsugi_ffi::os::hostname())
}

fn elsewhere_than(variable: &dyn Fn(&str) -> Option<String>, host: &str) -> Option<String> {
    let (job, node) = (JOB.into_iter().find_map(variable)?, LIST.into_iter().find_map(variable)?);
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    let is_here = variable("SLURMD_NODENAME").is_some() || short(&node) == short(host);
    (!is_here && !node.contains(['[', ','])).then(|| {
        format!(
            "ranks start on this machine ({host}), which is not {node}, the node of job {job}: \
             there, give the command in the job's script or by srun"
        )
    })
}

/// Variables of SLURM in an environment that is none of its jobs': copied from another machine, or
/// kept by a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stray {
    /// What they say.
    job: String,
    node: String,
}

impl Stray {
    /// For people.
    pub fn told(&self) -> String {
        format!(
            "SLURM's variables are those of job {} on {}, and there is no srun here: they are left \
             aside, this machine only is used (unset SLURM_JOB_ID to be rid of this line)",
            self.job, self.node
        )
    }
}

/// Those of this process, if they are stray.
pub fn stray() -> Option<Stray> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut sruns = std::env::split_paths(&path).map(|folder| folder.join("srun"));
    let srun = sruns.find(|file| file.is_file());
    let all = std::env::vars_os().filter_map(|(name, value)| {
        Some((name.into_string().ok()?, value.to_string_lossy().into_owned()))
    });
    stray_among(&all.collect::<Vec<_>>(), srun.as_deref())
}

fn stray_among(variables: &[(String, String)], srun: Option<&Path>) -> Option<Stray> {
    let value = |names: [&str; 2]| {
        let found = |name: &str| variables.iter().find(|(known, _)| known == name);
        Some(names.into_iter().find_map(found)?.1.clone())
    };
    let job = value(JOB).filter(|_| srun.is_none())?;
    let node = value(LIST);
    Some(Stray { job, node: node.unwrap_or_else(|| "an unnamed node".into()) })
}

/// After how long SLURM itself gives up a silent node, where it says so.
pub fn slurmd_timeout() -> Option<Duration> {
    let config = super::orphan::command("scontrol", &["show", "config"]).ok()?;
    limits::slurmd_timeout(&config)
}

/// SLURM's own reading of `n[1-3,7]`.
fn expand(list: &str) -> io::Result<Vec<String>> {
    let output = Command::new("scontrol").args(["show", "hostnames", list]).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let nodes: Vec<String> = text.lines().map(|line| line.trim().to_owned()).collect();
    if !output.status.success() || nodes.iter().any(String::is_empty) {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(io::Error::other(said));
    }
    Ok(nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(variables: &[(&str, &str)], host: &str) -> Option<Allocation> {
        let variable = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string())
        };
        let expand = |_: &str| Ok(["n1", "n2", "n3"].map(str::to_owned).to_vec());
        Allocation::of(&variable, &expand, host).unwrap()
    }

    #[test]
    fn variables_of_a_job_where_there_is_no_srun_are_stray() {
        let all = [("HOME", "/root"), ("SLURM_JOBID", "77"), ("SLURM_NODELIST", "node17")];
        let all = all.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let stray = stray_among(&all, None).unwrap();
        assert!(stray.told().contains("job 77 on node17"), "{}", stray.told());
        assert_eq!(stray_among(&all, Some(Path::new("srun"))), None, "SLURM is here");
        assert_eq!(stray_among(&all[..1], None), None);
    }

    const JOB: [(&str, &str); 3] =
        [("SLURM_JOB_ID", "7"), ("SLURM_JOB_NUM_NODES", "3"), ("SLURM_JOB_NODELIST", "n[1-3]")];

    #[test]
    fn one_machine_is_no_allocation_of_several_nodes() {
        assert_eq!(find(&[], "n1"), None);
        let one = [("SLURM_JOB_ID", "7"), ("SLURM_NNODES", "1"), ("SLURM_NODELIST", "n1")];
        assert_eq!(find(&one, "n1"), None);
    }

    #[test]
    fn a_shell_beside_its_job_is_told_where_ranks_start() {
        let told = |more: &[(&str, &str)], host: &str| {
            let all = [&[("SLURM_JOB_ID", "7"), ("SLURM_JOB_NODELIST", "n1")], more].concat();
            let variable = |name: &str| {
                all.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).into())
            };
            elsewhere_than(&variable, host)
        };
        assert!(told(&[], "login").is_some_and(|text| text.contains("n1, the node of job 7")));
        assert_eq!(told(&[], "n1.cluster"), None);
        assert_eq!(told(&[("SLURMD_NODENAME", "n1")], "vm"), None);
    }

    #[test]
    fn some_of_the_variables_are_enough_and_mpirun_is_told_the_others() {
        let told = |variables: &[(&str, &str)]| {
            let variable = |name: &str| {
                variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).into())
            };
            let unsaid = find(variables, "n1").expect("three nodes").unsaid(&variable);
            unsaid.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>()
        };
        let old = [("SLURM_JOBID", "7"), ("SLURM_NODELIST", "n[1-3]")];
        let rest = [
            "SLURM_JOB_ID=7",
            "SLURM_JOB_NODELIST=n[1-3]",
            "SLURM_JOB_NUM_NODES=3",
            "SLURM_NNODES=3",
            "SLURM_TASKS_PER_NODE=1(x3)",
        ];
        assert_eq!(told(&old), rest);
        let whole = rest.map(|told| told.split_once('=').unwrap());
        assert_eq!(told(&[&old[..], &whole].concat()), [""; 0]);
        let other = [&whole[..], &[("SLURM_JOBID", "7"), ("SLURM_NODELIST", "n1")]].concat();
        assert_eq!(told(&other), ["SLURM_NODELIST=n[1-3]"]);
    }

    #[test]
    fn its_own_node_is_known_by_name() {
        assert_eq!(find(&JOB, "n2").and_then(|found| found.own), Some(1));
        assert_eq!(find(&JOB, "n3.site.org").and_then(|found| found.own), Some(2));
        assert_eq!(
            find(&JOB, "login").map(|found| (found.own, found.nodes.len())),
            Some((None, 3))
        );
        let named = [&JOB[..], &[("SLURMD_NODENAME", "n1")]].concat();
        assert_eq!(find(&named, "n2").and_then(|found| found.own), Some(0));
    }
}
