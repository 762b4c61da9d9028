//! Programs that start or are a whole run, started by srun as many times as there are tasks: each
//! copy would be a run's launch, or a world of its own, and take the run from the others.

use kintsugi_ffi::os;
use kintsugi_ffi::proc::command_line;

/// Why this process, which is one of several tasks of a step of SLURM, does not begin; `None`: it
/// is the only one, or a script stands between. A job that was submitted from a step still has its
/// variables: only this very step's daemon, as the parent, proves them.
pub fn refusal() -> Option<String> {
    let variable = |name: &str| std::env::var(name).ok();
    let words = command_line(os::parent_pid());
    let parent = String::from_utf8_lossy(words.first().map_or(b"", Vec::as_slice));
    several_tasks(&variable, &parent).map(|tasks| {
        format!(
            "srun started this program {tasks} times, and each of them would be a run's only one: \
             write `kintsugi launch -n {tasks} ...` without srun in a job's script or a shell of \
             salloc, or `srun --mpi=none --ntasks=1 --cpus-per-task=CORES kintsugi launch -n \
             {tasks} ...`"
        )
    })
}

/// How many tasks the step has whose daemon is called `daemon` (`slurmstepd: [JOB.STEP]`).
fn several_tasks(variable: &dyn Fn(&str) -> Option<String>, daemon: &str) -> Option<u32> {
    let step = format!("[{}.{}]", variable("SLURM_JOB_ID")?, variable("SLURM_STEP_ID")?);
    let tasks = variable("SLURM_STEP_NUM_TASKS")?.parse().ok()?;
    let is_it = daemon.starts_with("slurmstepd: ") && daemon.contains(&step);
    (tasks > 1 && is_it).then_some(tasks)
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
        for other in
            ["slurmstepd: [8.batch]", "slurmstepd: [7.batch]", "slurmstepd: [7.10]", "bash"]
        {
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
