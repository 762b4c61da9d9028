//! The loop of `kintsugi chaos`: waits for the moment of each blow, looks who is in the world,
//! strikes, says so. Ends when the run does, or when its time or its blows are over.

use std::io::ErrorKind::PermissionDenied;
use std::path::Path;
use std::time::{Duration, Instant};

use kintsugi_ffi::os::{self, Signal};

use crate::cluster::world::{Member, Role, World};
use crate::config::Span;
use crate::launch::LaunchError;
use crate::launch::start::run_dir::RunDir;
use crate::run_folder::has_ended;

use super::schedule::{Blow, Blows, Targets, victim};
use super::victim::{Missed, Run, strike};

/// How often a wait looks whether the run is over.
const POLL: Duration = Duration::from_millis(50);
/// How long a blow waits for a victim: a repair may be under way, the world just being rewritten.
const PATIENCE: Duration = Duration::from_secs(10);
/// Without a living process for so long a run is over, with a result or without.
const SILENT_MAX: Duration = Duration::from_secs(30);

/// What is asked for.
#[derive(Debug, Clone, clap::Args)]
pub struct Storm {
    /// The same seed strikes the same ranks at the same moments
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Mean seconds between two blows
    #[arg(long, value_name = "SECONDS", default_value_t = 20.0)]
    pub mtbf: f64,
    /// Ends after this time, for example 10min [default: when the run ends]
    #[arg(long, value_name = "TIME")]
    pub duration: Option<Span>,
    /// Ends after so many blows
    #[arg(long, value_name = "N")]
    pub kills: Option<u64>,
    #[command(flatten)]
    targets: Targets,
    /// What they are struck with
    #[arg(long, value_enum, default_value_t = Weapon::Kill)]
    signal: Weapon,
}

/// What a victim is struck with.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Weapon {
    /// SIGKILL: dead at once
    Kill,
    /// SIGSTOP: silent, until its guardian kills it
    Stop,
}

impl Storm {
    /// Its blows, in their order; `most` where nobody has said how many.
    pub fn planned(&self, most: usize) -> impl Iterator<Item = Blow> {
        let most = self.kills.map_or(most, |kills| usize::try_from(kills).unwrap_or(usize::MAX));
        let limit = self.duration.map_or(Duration::MAX, |limit| limit.0);
        let blows = Blows::new(Duration::from_secs_f64(self.mtbf), self.seed).take(most);
        blows.take_while(move |blow| blow.at <= limit)
    }

    fn signal(&self) -> Signal {
        match self.signal {
            Weapon::Kill => Signal::Kill,
            Weapon::Stop => Signal::Stop,
        }
    }
}

/// What a storm did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Processes struck.
    pub struck: u64,
    /// Blows that found nobody.
    pub missed: u64,
}

/// What ends a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waited {
    Over,
    Reached,
}

/// Rages until the end; `say` gets one line per blow.
///
/// # Errors
/// The run directory cannot be named; somebody else's ranks may not be struck.
pub fn rage(
    folder: &Path,
    storm: &Storm,
    say: &mut dyn FnMut(String),
) -> Result<Outcome, LaunchError> {
    let run = RunDir::at(folder)?;
    let mut watch = Watch { run: &run, alive_at: Instant::now() };
    let (began, mut outcome) = (Instant::now(), Outcome::default());
    for blow in storm.planned(usize::MAX) {
        if watch.wait_until(began + blow.at) == Waited::Over {
            break;
        }
        match watch.strike_one(&blow, storm)? {
            Some(line) => {
                outcome.struck += 1;
                say(format!("{:8.1} s  {line}", began.elapsed().as_secs_f64()));
            }
            None => outcome.missed += 1,
        }
    }
    Ok(outcome)
}

struct Watch<'a> {
    run: &'a RunDir,
    /// When a process of the run was last seen alive.
    alive_at: Instant,
}

impl Watch<'_> {
    fn wait_until(&mut self, moment: Instant) -> Waited {
        loop {
            if self.is_over() {
                return Waited::Over;
            }
            let left = moment.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Waited::Reached;
            }
            std::thread::sleep(left.min(POLL));
        }
    }

    /// A result is there, or nothing has lived for long.
    fn is_over(&mut self) -> bool {
        let path = self.run.path();
        if self.run.result().is_some_and(|result| has_ended(path, &result)) {
            return true;
        }
        if self.members().iter().any(|member| os::process_is_alive(member.pid)) {
            self.alive_at = Instant::now();
        }
        self.alive_at.elapsed() > SILENT_MAX
    }

    fn members(&self) -> Vec<Member> {
        World::read(self.run.path()).map_or_else(|_| Vec::new(), |world| world.members)
    }

    /// Strikes as soon as the drawn victim can be struck; its line, or nothing within patience.
    fn strike_one(&mut self, blow: &Blow, storm: &Storm) -> Result<Option<String>, LaunchError> {
        let (id, host) = (self.run.id(), os::hostname());
        let run = Run { id: &id, path: self.run.path() };
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end && !self.is_over() {
            let members = self.members();
            if let Some(victim) = victim(&members, &host, &storm.targets, blow.draw) {
                match strike(victim.pid, run, storm.signal()) {
                    Ok(()) => return Ok(Some(struck(victim, storm.signal()))),
                    Err(Missed::Gone(pid, source)) if source.kind() == PermissionDenied => {
                        let what = format!("striking process {pid}, which is another user's");
                        return Err(LaunchError::Io { what, source });
                    }
                    Err(_) => {}
                }
            }
            std::thread::sleep(POLL);
        }
        Ok(None)
    }
}

fn struck(victim: &Member, signal: Signal) -> String {
    let Member { member, rank, role, pid, .. } = victim;
    let role = match role {
        Role::Active => format!("rank {rank}"),
        Role::Spare => "a spare".to_owned(),
    };
    format!("{} to {role} (member {member}, pid {pid})", os::signal_name(signal.number()))
}
