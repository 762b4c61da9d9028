//! Programs that start or are a whole run, started by srun as many times as there are tasks: each
//! copy would be a run's launch, or a world of its own, and take the run from the others.

use std::io::IsTerminal;

use kintsugi_ffi::os;
use kintsugi_ffi::proc::{Stat, command_line};

/// Why this process, which is one of several tasks of a step of SLURM, does not begin; `None`: it
/// is the only one. A shell in a terminal (`srun --pty`) is its step's one that works. And a job
/// that was submitted from a step still has its variables: only a daemon of this very step, above
/// this process, proves them.
pub fn refusal() -> Option<String> {
    let variable = |name: &str| std::env::var(name).ok();
    let tasks = several_tasks(&variable, &daemon_above()?)?;
    (!std::io::stdin().is_terminal()).then(|| {
        format!(
            "srun started this program {tasks} times, and each of them would be a run's only one: \
             write `kintsugi launch -n {tasks} ...` without srun in a job's script or a shell of \
             salloc, or `srun --mpi=none --ntasks=1 --cpus-per-task=CORES kintsugi launch -n \
             {tasks} ...`"
        )
    })
}

/// How many tasks the step has, whose daemon is called `daemon`.
fn several_tasks(variable: &dyn Fn(&str) -> Option<String>, daemon: &str) -> Option<u32> {
    let step = format!("[{}.{}]", variable("SLURM_JOB_ID")?, variable("SLURM_STEP_ID")?);
    let tasks = variable("SLURM_STEP_NUM_TASKS")?.parse().ok()?;
    (tasks > 1 && daemon.contains(&step)).then_some(tasks)
}

/// What the nearest `slurmstepd` above this process calls itself: `slurmstepd: [JOB.STEP]`, or with
/// `batch` in the step's place.
fn daemon_above() -> Option<String> {
    let mut above = os::parent_pid();
    while above > 1 {
        let words = command_line(above);
        let title = String::from_utf8_lossy(words.first().map_or(b"", Vec::as_slice));
        if title.starts_with("slurmstepd: ") {
            return Some(title.into_owned());
        }
        above = Stat::of(above)?.parent()?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_task_of_several_in_this_very_step_is_one_of_several() {
        let all = [("SLURM_JOB_ID", "7"), ("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "4")];
        let variable = |name: &str| {
            all.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        assert_eq!(several_tasks(&variable, "slurmstepd: [7.0]"), Some(4));
        // The script of a job that was submitted from a step; an interactive one.
        for other in ["slurmstepd: [8.batch]", "slurmstepd: [7.batch]", "slurmstepd: [7.10]"] {
            assert_eq!(several_tasks(&variable, other), None, "{other}");
        }
        let alone = |name: &str| match name {
            "SLURM_STEP_NUM_TASKS" => Some("1".to_owned()),
            name => variable(name),
        };
        assert_eq!(several_tasks(&alone, "slurmstepd: [7.0]"), None);
        assert_eq!(several_tasks(&|_| None, "slurmstepd: [7.0]"), None);
    }
}
