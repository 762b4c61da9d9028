//! The job's own node died, and with it script and launch. SLURM would let a job with `--no-kill`
//! stay *running* until its time limit, with nobody in it: so an agent that has lost launch looks
//! whether the machine is gone too, and then puts the job back into the queue.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long a machine may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Between two looks.
const PAUSE: Duration = Duration::from_secs(1);
/// Looks in a row that must find the machine gone and SLURM's controller there: whoever is cut off
/// from both is himself the one that is lost.
const LOOKS: u32 = 3;
/// Looks in a row that must find it alive: a machine that goes down ends its processes first, and
/// its network after them.
const LIVES_LOOKS: u32 = 20;
/// Longest watch: a cut may end.
const WATCH_MAX: Duration = Duration::from_secs(600);
/// Longest wait for a command of SLURM.
const COMMAND_MAX: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(20);

/// What came of the watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The machine lives on: the job's script decides.
    Lives,
    /// The job is in the queue again, or over.
    Requeued,
    /// Neither could be found out, or SLURM refused.
    Undecided(String),
}

/// What is seen in one look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sight {
    Lives,
    /// It does not answer, and SLURM's controller does.
    Gone,
    /// Nobody answers.
    Blind,
}

/// Watches the machine of a launch whose connection is gone.
pub fn watch(job: &str, hosts: &[String], port: u16) -> Outcome {
    let end = Instant::now() + WATCH_MAX;
    let mut runs_as = None;
    let look = || {
        if machine_answers(hosts, port) {
            return Sight::Lives;
        }
        runs_as = command("squeue", &["--noheader", "--job", job, "--format=%A %i %T"])
            .ok()
            .and_then(|queue| running_as(&queue, job));
        if runs_as.is_some() { Sight::Gone } else { Sight::Blind }
    };
    let sight = decide(look, || std::thread::sleep(PAUSE), || Instant::now() < end);
    match (sight, runs_as) {
        (Sight::Lives, _) => Outcome::Lives,
        (Sight::Gone, Some(name)) => match command("scontrol", &["requeue", &name]) {
            Ok(_) => Outcome::Requeued,
            Err(error) => Outcome::Undecided(format!("scontrol requeue {name}: {error}")),
        },
        _ => Outcome::Undecided("neither launch's machine nor SLURM answers".into()),
    }
}

/// Looks until it is sure, or until it `may` not go on.
fn decide(
    mut look: impl FnMut() -> Sight,
    mut pause: impl FnMut(),
    mut may: impl FnMut() -> bool,
) -> Sight {
    let (mut last, mut count) = (Sight::Blind, 0);
    while may() {
        let sight = look();
        count = if sight == last { count + 1 } else { 1 };
        last = sight;
        match sight {
            Sight::Lives if count >= LIVES_LOOKS => return sight,
            Sight::Gone if count >= LOOKS => return sight,
            _ => pause(),
        }
    }
    Sight::Blind
}

/// Whoever refuses a connection has a kernel that lives.
fn machine_answers(hosts: &[String], port: u16) -> bool {
    let addresses = hosts.iter().filter_map(|host| (host.as_str(), port).to_socket_addrs().ok());
    let answers = |address: SocketAddr| match TcpStream::connect_timeout(&address, ANSWER_MAX) {
        Ok(_) => true,
        Err(error) => error.kind() == io::ErrorKind::ConnectionRefused,
    };
    addresses.flatten().any(answers)
}

/// By what name a job that runs is requeued, from lines of number, name and state: those of all
/// tasks of an array where the number is the array's too, and of all parts of a heterogeneous job,
/// which are requeued by the number of its first. An array's number would requeue every task.
fn running_as(queue: &str, job: &str) -> Option<String> {
    let words = queue.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let own = words.into_iter().find(|words| words.first() == Some(&job))?;
    match own[..] {
        [_, task, "RUNNING"] if task.contains('_') => Some(task.to_owned()),
        [_, _, "RUNNING"] => Some(job.to_owned()),
        _ => None,
    }
}

/// Runs a command under a time limit; its output.
pub(super) fn command(program: &str, arguments: &[&str]) -> io::Result<String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let end = Instant::now() + COMMAND_MAX;
    while child.try_wait()?.is_none() {
        if Instant::now() >= end {
            child.kill()?;
            child.wait()?;
            return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer"));
        }
        std::thread::sleep(POLL);
    }
    let output = child.wait_with_output()?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decided(sights: &[Sight]) -> (Sight, usize) {
        let mut seen = 0;
        let mut left = sights.len();
        let look = || {
            seen += 1;
            sights[seen - 1]
        };
        let may = || {
            left = left.wrapping_sub(1);
            left != usize::MAX
        };
        let sight = decide(look, || {}, may);
        (sight, seen)
    }

    #[test]
    fn only_a_machine_that_stays_gone_while_slurm_answers_gives_the_job_back() {
        use Sight::{Blind, Gone, Lives};
        assert_eq!(decided(&[Gone, Gone, Gone, Lives]), (Gone, 3));
        assert_eq!(decided(&[Gone, Gone, Blind, Gone, Gone, Gone]), (Gone, 6));
        assert_eq!(decided(&[Lives, Gone, Gone, Gone]), (Gone, 4));
        let lives = [&[Gone, Gone][..], &[Lives; LIVES_LOOKS as usize]].concat();
        assert_eq!(decided(&lives), (Lives, lives.len()));
        assert_eq!(decided(&[Blind, Gone, Gone, Blind]), (Blind, 4));
    }

    #[test]
    fn a_task_of_an_array_is_requeued_alone() {
        let array = "7 7_3 RUNNING\n9 7_2 RUNNING\n8 7_1 PENDING\n";
        let named = |queue, job| running_as(queue, job);
        assert_eq!(named(array, "7").as_deref(), Some("7_3"));
        assert_eq!(named(array, "9").as_deref(), Some("7_2"));
        assert_eq!(named(array, "8"), None);
        assert_eq!(named("5 5+0 RUNNING\n6 5+1 RUNNING\n", "5").as_deref(), Some("5"));
        assert_eq!(named("4 4 RUNNING\n", "4").as_deref(), Some("4"));
        assert_eq!(named("4 4 COMPLETING\n", "4"), None);
        assert_eq!(named("", "4"), None);
    }

    #[test]
    fn a_closed_port_is_a_machine_that_lives() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let here = ["127.0.0.1".to_owned()];
        assert!(machine_answers(&here, port));
        drop(listener);
        assert!(machine_answers(&here, port));
        assert!(!machine_answers(&["no.such.host.invalid".into()], port));
    }

    #[test]
    fn a_command_that_hangs_or_fails_is_an_error() {
        assert_eq!(command("sh", &["-c", "echo yes"]).unwrap(), "yes\n");
        assert!(command("sh", &["-c", "echo no >&2; exit 3"]).unwrap_err().to_string() == "no");
        assert!(command("/no/such/program", &[]).is_err());
    }
}
