//! What `cluster-scripts/job.sh` makes of signals and of SLURM's words, with a stand-in for
//! `scontrol`.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use kintsugi_ffi::os::Signal;

use crate::fake_ranks::{AFTER_KILL, Lab, wait_for};
use crate::support::beside_its_like;

/// Knows job 7, the last task of an array, as SLURM does: with all of its tasks. A job that is
/// requeued is asked to end.
const SCONTROL: &str = r#"#!/bin/sh
case "$*" in
"--oneliner show job 7")
  echo "JobId=7 ArrayJobId=7 ArrayTaskId=3 JobName=x Requeue=1 Restarts=0 BatchFlag=1"
  echo "JobId=8 ArrayJobId=7 ArrayTaskId=1 JobName=x Requeue=1 Restarts=4 BatchFlag=1" ;;
"requeue "*) echo "$2" > "$(dirname "$0")/requeued"; (sleep 0.5; kill -TERM $PPID) & ;;
*) exit 1 ;;
esac
"#;

/// A job's script, which gets the program's arguments.
fn script(lab: &Lab, before: &str) -> Command {
    let folder = lab.folder.path();
    let scontrol = folder.join("scontrol");
    std::fs::write(&scontrol, SCONTROL).unwrap();
    std::fs::set_permissions(&scontrol, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var("PATH").unwrap();
    let text = r#"source "$0"; eval "before=($BEFORE)"; run_as_job USR1 "$KINTSUGI" "$@""#;
    let mut command = Command::new("bash");
    command.args(["-c", text]).arg(job_sh());
    command.env("PATH", format!("{}:{path}", folder.display())).env("BEFORE", before);
    command.env("KINTSUGI", env!("CARGO_BIN_EXE_kintsugi"));
    command.env("SLURM_JOB_ID", "7").env("SLURM_JOB_NODELIST", "here");
    command
}

fn job_sh() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("cluster-scripts/job.sh")
}

fn requeued(lab: &Lab) -> String {
    std::fs::read_to_string(lab.folder.path().join("requeued")).unwrap_or_default()
}

#[test]
fn a_warning_while_the_program_starts_is_heard_once_and_only_this_task_is_requeued() {
    let _turn = beside_its_like();
    let lab = Lab::new();
    let job = lab.launch_by(script(&lab, ""), "polite", &[]);
    assert!(wait_for(|| lab.text().contains("restart 0")), "{}", lab.text());
    job.signal(Signal::User1);
    std::thread::sleep(Duration::from_millis(300));
    job.signal(Signal::User1);
    assert_eq!(job.code(), Some(85), "{}", lab.text());
    assert!(lab.text().contains("ended with 85, asked to stop by USR1"), "{}", lab.text());
    // Where the ranks were there already, they were let write their checkpoint.
    let hurried = lab.text().contains("stopping:") && !lab.text().contains("so it does");
    assert!(!hurried, "{}", lab.text());
    assert_eq!(requeued(&lab), "7_3\n", "{}", lab.text());
    // The stand-in ends behind the script that it has asked to.
    lab.assert_nothing_left(AFTER_KILL);
}

#[test]
fn a_program_whose_job_is_warned_while_it_copies_ahead_is_not_started() {
    let _turn = beside_its_like();
    let lab = Lab::new();
    let job = lab.launch_by(script(&lab, "sleep 1"), "polite", &[]);
    assert!(wait_for(|| lab.text().contains("restart 0")), "{}", lab.text());
    job.signal(Signal::User1);
    assert_eq!(job.code(), Some(85), "{}", lab.text());
    assert!(lab.text().contains("before kintsugi was started"), "{}", lab.text());
    assert_eq!(requeued(&lab), "7_3\n", "{}", lab.text());
    assert!(!lab.run().exists());
    // The stand-in ends behind the script that it has asked to.
    lab.assert_nothing_left(AFTER_KILL);
}

#[test]
fn ranks_are_as_many_as_tasks_where_these_lie_evenly() {
    let ranks = |variables: &[(&str, &str)]| {
        let text = r#"source "$0"; set_ranks 0 && echo "$ranks""#;
        let mut command = Command::new("bash");
        command.args(["-c", text]).arg(job_sh()).envs(variables.iter().copied());
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let job = [("SLURM_JOB_NUM_NODES", "2"), ("SLURM_NTASKS", "4")];
    let with = |placed| ranks(&[&job[..], &[("SLURM_TASKS_PER_NODE", placed)]].concat());
    assert_eq!(with("2(x2)"), "4\n");
    let refused = with("3,1");
    assert!(refused.contains("(3,1): say how many on each, --ntasks-per-node"), "{refused}");
    // Of processors, where nobody asked for tasks.
    assert_eq!(ranks(&[job[0], ("SLURM_TASKS_PER_NODE", "4,2")]), "2\n");
}
