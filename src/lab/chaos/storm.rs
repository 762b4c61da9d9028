//! The loop of `kintsugi chaos`: waits for the moment of each blow, looks who is in the world,
//! strikes, says so. Ends when the run does, or when its time or its blows are over.

use std::path::Path;
use std::time::{Duration, Instant};

use kintsugi_ffi::os::{self, Signal};

use crate::cluster::world::{Member, World};
use crate::launch::LaunchError;
use crate::launch::run_dir::RunDir;

use super::schedule::{Blow, Blows, Targets, victim};
use super::victim::{Run, strike};

/// How often a wait looks whether the run is over.
const POLL: Duration = Duration::from_millis(50);
/// How long a blow waits for a victim: a repair may be under way, the world just being rewritten.
const PATIENCE: Duration = Duration::from_secs(10);
/// Without a living process for so long a run is over, with a result or without.
const SILENT_MAX: Duration = Duration::from_secs(30);

/// What is asked for.
#[derive(Debug, Clone)]
pub struct Storm {
    /// Of the moments and victims.
    pub seed: u64,
    /// Between two blows, on average.
    pub mean: Duration,
    /// Longest storm.
    pub duration: Option<Duration>,
    /// Most blows.
    pub blows: Option<u64>,
    /// Who may be struck.
    pub targets: Targets,
    /// With what.
    pub signal: Signal,
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
/// The run directory cannot be named.
pub fn rage(
    folder: &Path,
    storm: &Storm,
    say: &mut dyn FnMut(String),
) -> Result<Outcome, LaunchError> {
    let run = RunDir::at(folder)?;
    let mut watch = Watch { run: &run, alive_at: Instant::now() };
    let (began, mut outcome) = (Instant::now(), Outcome::default());
    let wanted =
        storm.blows.map_or(usize::MAX, |blows| usize::try_from(blows).unwrap_or(usize::MAX));
    let blows = Blows::new(storm.mean, storm.seed).take(wanted);
    for blow in blows.take_while(|blow| storm.duration.is_none_or(|limit| blow.at <= limit)) {
        if watch.wait_until(began + blow.at) == Waited::Over {
            break;
        }
        match watch.strike_one(&blow, storm) {
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
        if self.run.result().is_some() {
            return true;
        }
        if self.members().iter().any(|member| os::process_is_alive(member.pid)) {
            self.alive_at = Instant::now();
        }
        self.alive_at.elapsed() > SILENT_MAX
    }

    fn members(&self) -> Vec<Member> {
        let text = std::fs::read(self.run.join("world.json")).unwrap_or_default();
        World::decode(&text).map_or_else(|_| Vec::new(), |world| world.members)
    }

    /// Strikes as soon as the drawn victim can be struck; its line, or nothing within patience.
    fn strike_one(&mut self, blow: &Blow, storm: &Storm) -> Option<String> {
        let (id, host) = (self.run.id(), os::hostname());
        let run = Run { id: &id, path: self.run.path() };
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end && !self.is_over() {
            let members = self.members();
            if let Some(victim) = victim(&members, &host, &storm.targets, blow.draw)
                && strike(victim.pid, run, storm.signal).is_ok()
            {
                let Member { member, rank, role, pid, .. } = victim;
                let role = match role {
                    crate::cluster::world::Role::Active => format!("rank {rank}"),
                    crate::cluster::world::Role::Spare => "a spare".to_owned(),
                };
                let signal = os::signal_name(storm.signal.number());
                return Some(format!("{signal} to {role} (member {member}, pid {pid})"));
            }
            std::thread::sleep(POLL);
        }
        None
    }
}
