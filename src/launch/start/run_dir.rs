//! The run directory: opening a new one or one that goes on, and the files the supervisor owns.

use std::io;
use std::path::{Path, PathBuf};

use kintsugi_ffi::private;

use crate::cluster::guard::last_words;
use crate::cluster::world::{Role, World};
use crate::config::{
    Config, ConfigError, ExchangeKind, Shown, Train, check_owners, identity, parse, resolve_owners,
};
use crate::data::sampler::Order;
use crate::launch::changes::Changes;
use crate::launch::ending::files::EndingFiles;
use crate::launch::{LaunchError, io_error};
use crate::model::catalogue;
use crate::observe::event::Kind;
use crate::observe::ledger;
use crate::observe::log::{EVENTS_FILE, read_events};
use crate::observe::refusal::{Meaning, if_there, insist};
use crate::observe::result::{LAUNCHER_GONE, RunResult, Status};
use crate::observe::storage::{FileSystem, PARTIAL_PREFIX, Storage};
use crate::run_folder::before::Before;
use crate::run_folder::{self, RANKS_REQUEST};

/// How many old runs `--fresh` keeps beside the new one under numbered names.
const ASIDE_MAX: u32 = 1000;

/// A run directory, by its absolute path.
#[derive(Debug, Clone)]
pub struct RunDir {
    path: PathBuf,
    storage: FileSystem,
}

/// What was found at the path of a run.
#[derive(Debug, Clone, PartialEq)]
pub enum Found {
    /// Nothing: a run begins.
    Nothing,
    /// A run that goes on, with the configuration in force.
    Unfinished,
    /// A run that is complete and asks for no more than it has.
    Completed(Box<RunResult>),
}

/// Whether the configuration that is asked for names `train.owners`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owners {
    /// It does: a run with others is another one.
    Asked,
    /// It does not: those of the run's start stay.
    Unasked,
}

impl RunDir {
    /// Names it; creates nothing.
    pub fn at(path: &Path) -> Result<Self, LaunchError> {
        let failed = io_error(format!("resolving {}", path.shown()));
        let path = std::path::absolute(path).map_err(failed)?;
        let refusal = run_folder::refusal_of_name(&path);
        refusal.map_or(Ok(()), |reason| Err(LaunchError::Refused { reason }))?;
        Ok(Self { storage: FileSystem::new(&path), path })
    }

    /// Absolute.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A file of the run.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The run's files, by relative path.
    pub fn storage(&self) -> &FileSystem {
        &self.storage
    }

    /// What people call the run.
    pub fn name(&self) -> String {
        self.path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into())
    }

    /// Short, the same for every attempt of this directory, different for every other directory.
    pub fn id(&self) -> String {
        run_folder::id(&self.path)
    }

    /// Refuses a path that another user made where everybody makes names. To be asked before
    /// anything in it is read, locked or moved.
    pub fn refuse_planted(&self) -> Result<(), LaunchError> {
        match private::planted_by(&self.path) {
            Some(user) => Err(LaunchError::Planted { path: self.path.clone(), user }),
            None => Ok(()),
        }
    }

    /// Looks at the path with the configuration that is asked for. `config` takes over what the
    /// run fixed at its start (`train.owners`, `model.text`, `model.init_hash`) where nothing else
    /// was asked for.
    pub fn inspect(&self, config: &mut Config, owners: Owners) -> Result<Found, LaunchError> {
        let Some(old) = self.go_on_with(config, owners)? else {
            return match self.is_empty()? {
                true => Ok(Found::Nothing),
                // Another launch has begun the run between the two looks.
                false if is_there(&self.join("config.toml"))? => self.inspect(config, owners),
                false => Err(LaunchError::NotARun { path: self.path.clone() }),
            };
        };
        self.go_on(&old, config)
    }

    /// Whether a run is complete or goes on; `config` is as `go_on_with` leaves it.
    ///
    /// # Errors
    /// It would go on, and was begun with sums of a kind that is gone, has fewer owners than there
    /// would be ranks or workers, or is beyond the length that is asked for.
    pub fn go_on(&self, old: &Config, config: &Config) -> Result<Found, LaunchError> {
        let same = limits(old) == limits(config);
        if let Some(result) = self.result().filter(|result| result.status == Status::Completed)
            && (same || is_long_enough(&result, &config.train, self.samples(config)?))
        {
            return Ok(Found::Completed(Box::new(result)));
        }
        self.refuse_plain_sums(old)?;
        self.refuse_idle_ranks(config)?;
        let ends = |config: &Config| (config.train.steps, config.train.epochs);
        if ends(old) != ends(config) {
            self.refuse_to_be_shorter(&config.train, self.samples(config)?)?;
        }
        Ok(Found::Unfinished)
    }

    /// Samples at which a run of the asynchronous exchange ends by its steps or epochs: its rounds
    /// are no steps. `None` of other runs, and where the run does not say how large its set is.
    fn samples(&self, config: &Config) -> Result<Option<u64>, LaunchError> {
        if config.train.exchange == ExchangeKind::Synchronous {
            return Ok(None);
        }
        let events = match insist(|| read_events(&self.join(EVENTS_FILE))) {
            Err(error) if Meaning::of(&error) == Meaning::Damaged => None,
            events => if_there(events).map_err(io_error("reading how large the run's set is"))?,
        };
        let set = events.unwrap_or_default().iter().find_map(|event| match event.kind {
            Kind::RunStart { train_samples, .. } => Some(train_samples),
            _ => None,
        });
        let of_set = |set: u64| {
            let order = Order::of(config, set).ok()?;
            let of_steps = config.train.steps.map(|steps| order.cursor(steps));
            let of_epochs = config.train.epochs.map(|epochs| epochs.saturating_mul(set));
            of_steps.into_iter().chain(of_epochs).min()
        };
        Ok(set.and_then(of_set))
    }

    /// Refuses to end before where the run is: what it holds is no run of that length, nor of so
    /// many `samples` (of `RunDir::samples`).
    fn refuse_to_be_shorter(&self, train: &Train, samples: Option<u64>) -> Result<(), LaunchError> {
        let newest = match ledger::newest(&self.storage) {
            // Nothing is known of it, now or later.
            Err(error) if Meaning::of(&error) == Meaning::Damaged => None,
            newest => newest.map_err(io_error("reading how far the run is"))?,
        };
        let Some(line) = newest else { return Ok(()) };
        let synchronous = train.exchange == ExchangeKind::Synchronous;
        let said = match (train.steps.filter(|_| synchronous), train.epochs) {
            _ if samples.is_some_and(|most| line.cursor > most) => {
                format!("train.steps and train.epochs that are {} samples", samples.unwrap_or(0))
            }
            _ if !synchronous => return Ok(()),
            (Some(most), _) if line.step > most => format!("train.steps = {most}"),
            (_, Some(most)) if line.epoch >= most => format!("train.epochs = {most}"),
            _ => return Ok(()),
        };
        Err(LaunchError::Refused {
            reason: format!(
                "{said}: by its ledger {} is at step {}, in epoch {} (from 0), with {} samples, \
                 beyond it: leave it at its length, or start anew: in another --run-dir, or by \
                 `launch --fresh`",
                self.path.shown(),
                line.step,
                line.epoch,
                line.cursor
            ),
        })
    }

    /// Refuses to go on with more ranks or workers than the run has owners, which it keeps.
    fn refuse_idle_ranks(&self, config: &Config) -> Result<(), LaunchError> {
        check_owners(config).map_err(|_| LaunchError::Refused {
            reason: format!(
                "{} ranks x {} workers: {} was begun with {} owners and keeps them, and who has no \
                 owner computes nothing; go on with fewer, or start anew: in another --run-dir, or \
                 by `launch --fresh`",
                config.run.ranks,
                config.train.workers,
                self.path.shown(),
                resolve_owners(config)
            ),
        })
    }

    /// Refuses to go on where a run was begun with sums of a kind that is gone.
    fn refuse_plain_sums(&self, old: &Config) -> Result<(), LaunchError> {
        if !identity::sums_plainly(old) {
            return Ok(());
        }
        let reason = format!(
            "{} was begun with plain sums, which are gone: go on with the release that began it, \
             or start anew: in another --run-dir, or by `launch --fresh`",
            self.path.shown()
        );
        Err(LaunchError::Refused { reason })
    }

    /// `config` takes over what the run fixed at its start, as in `inspect`. What the run was begun
    /// with; `None` where there is no run.
    ///
    /// # Errors
    /// A key has another value that a run that goes on must keep.
    pub fn go_on_with(
        &self,
        config: &mut Config,
        owners: Owners,
    ) -> Result<Option<Config>, LaunchError> {
        let file = self.join("config.toml");
        if !is_there(&file)? {
            return Ok(None);
        }
        let old = match parse::read(&file, &[]) {
            Ok(old) => old,
            Err(ConfigError::Read { path, source }) if Meaning::of(&source) != Meaning::Damaged => {
                return Err(io_error(format!("reading {}", path.shown()))(source));
            }
            Err(reason) => {
                return Err(LaunchError::OtherVersion { path: self.path.clone(), reason });
            }
        };
        if owners == Owners::Unasked {
            config.train.owners = old.train.owners;
        }
        if config.model.name == old.model.name
            && config.model.text.is_none()
            && catalogue::is_another_now(&old.model, &config.model)
        {
            let reason = format!(
                "model.name = {}: the file is not the one that {} was begun with, whose text is \
                 model.text in its config.toml: put it back, or start anew: in another --run-dir, \
                 or by `launch --fresh`",
                config.model.found_name().shown(),
                self.path.shown()
            );
            return Err(LaunchError::Refused { reason });
        }
        config.model.go_on_from(&old.model);
        config.device.go_on_from(&old.device);
        let mut asked = config.clone();
        if identity::sums_plainly(&old) {
            // A reason of its own, where the run is to go on (`refuse_plain_sums`).
            asked.train.reproducible = old.train.reproducible;
        }
        if let Some(changes) = Changes::of(&old, &asked) {
            return Err(LaunchError::Changed { path: self.path.clone(), changes });
        }
        Ok(Some(old))
    }

    /// Absent, or holding nothing but what a launch leaves that did not get far, or has yet to.
    fn is_empty(&self) -> Result<bool, LaunchError> {
        let failed = || io_error(format!("listing {}", self.path.shown()));
        let listed = insist(|| std::fs::read_dir(&self.path));
        let Some(entries) = if_there(listed).map_err(failed())? else { return Ok(true) };
        for entry in entries {
            let name = entry.map_err(failed())?.file_name();
            let begins = name.as_encoded_bytes().starts_with(PARTIAL_PREFIX.as_bytes());
            if !begins && ["lock", "logs", "instance"].iter().all(|left| name != *left) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Ranks that the world of this run should have, once it has formed in this attempt or later
    /// (what an earlier launch was asked for is not what this one was): as many as were asked for
    /// and had not come when all ranks were lost, else what it was to have.
    ///
    /// # Errors
    /// Its table cannot be read now.
    pub fn target_ranks(&self, since_attempt: u32) -> io::Result<Option<u32>> {
        let world = World::newest(&self.path)?.filter(|world| world.attempt >= since_attempt);
        let request = Path::new(RANKS_REQUEST);
        let text = if_there(insist(|| self.storage.read(request)))?.unwrap_or_default();
        let owners = world.as_ref().map_or(0, |world| world.owners.len());
        if let Some(asked) = run_folder::ranks_asked(&text, owners) {
            // Asked of an attempt that cannot begin, it is not asked again.
            self.storage.remove(request)?;
            return Ok(Some(asked));
        }
        Ok(world.map(|world| world.target).filter(|target| *target > 0))
    }

    /// The host of every rank of this attempt, as its table has it.
    ///
    /// # Errors
    /// As of `target_ranks`.
    pub fn hosts_of_ranks(&self, attempt: u32) -> io::Result<Option<Vec<String>>> {
        let world = World::newest(&self.path)?.filter(|world| world.attempt == attempt);
        let ranks = |world: World| {
            let ranks = world.members.into_iter().filter(|member| member.role == Role::Active);
            ranks.map(|member| member.host).collect()
        };
        Ok(world.map(ranks))
    }

    /// What is there now, so that a start that is refused leaves it so; `aside`: where the run that
    /// was there has gone.
    pub fn before(&self, aside: Option<PathBuf>) -> Result<Before, LaunchError> {
        let before = match aside {
            Some(aside) => Before::moved_to(&self.path, aside),
            None => Before::of(&self.path),
        };
        before.map_err(io_error(format!("reading {}", self.path.shown())))
    }

    /// Creates the folder with its `logs`, and holds it: what is written from now on is written in
    /// this one or not at all.
    pub fn create(&mut self) -> Result<(), LaunchError> {
        let logs = self.join("logs");
        let failed = || io_error(format!("creating {}", logs.shown()));
        // Somebody may have been faster than who looked at the path. Whatever else is wrong with it
        // is wrong with what lies in it too.
        if let Err(error) = std::fs::create_dir(&self.path)
            && error.kind() == std::io::ErrorKind::AlreadyExists
        {
            self.refuse_planted()?;
        }
        std::fs::create_dir_all(&logs).map_err(failed())?;
        self.storage = FileSystem::holding(&self.path).map_err(failed())?;
        Ok(())
    }

    /// Whether `create` could make the folder, where there is none: another name is made beside the
    /// first that is missing, and taken away at once. Whoever makes the folder meanwhile keeps it.
    pub fn check_makeable(&self) -> Result<(), LaunchError> {
        let nearest = run_folder::nearest(&self.path);
        if nearest == self.path && nearest.is_dir() {
            return Ok(());
        }
        let probe = nearest.join(format!(".kintsugi-look-{}", std::process::id()));
        std::fs::create_dir(&probe)
            .and_then(|()| std::fs::remove_dir(&probe))
            .map_err(io_error(format!("creating {}", self.join("logs").shown())))
    }

    /// Writes the configuration in force.
    pub fn write_config(&self, config: &Config) -> Result<(), LaunchError> {
        let text = identity::resolved_text(config);
        self.storage
            .write_whole(Path::new("config.toml"), &[text.as_bytes()])
            .map_err(io_error("writing the run's configuration"))
    }

    /// Moves the whole run to `NAME.old-N`, the first N that is free; returns the new name.
    pub fn move_aside(&self) -> Result<PathBuf, LaunchError> {
        let name = self.path.file_name().map(|n| n.to_string_lossy().into_owned());
        let name = name.unwrap_or_else(|| "run".into());
        let aside = (1..=ASIDE_MAX)
            .map(|number| self.path.with_file_name(format!("{name}.old-{number}")))
            .find(|path| is_there(path).is_ok_and(|there| !there));
        let aside = aside.ok_or_else(|| LaunchError::Io {
            what: format!("moving {} aside", self.path.shown()),
            source: std::io::Error::other(format!("{ASIDE_MAX} old runs are there already")),
        })?;
        std::fs::rename(&self.path, &aside).map_err(io_error(format!(
            "moving {} to {}",
            self.path.shown(),
            aside.shown()
        )))?;
        Ok(aside)
    }

    /// How the run, or its last attempt, ended; `None` where no complete record exists.
    pub fn result(&self) -> Option<RunResult> {
        EndingFiles::of(&self.storage).result()
    }

    /// Leaves word of why all ranks of an attempt are killed, for whoever names the lost.
    pub fn say_why_killed(&self, attempt: u32, why: &str) {
        let name = format!("logs/{}", last_words::world_name(attempt));
        last_words::leave(&self.join(&name), last_words::VERDICT, why);
    }

    /// The same of an attempt that an earlier launch did not live to see the end of, as a result of
    /// it would tell.
    pub fn say_if_orphaned(&self, attempt: u32) {
        let of_it = self.result().filter(|result| result.attempt == attempt);
        let had_an_end = of_it.is_some_and(|result| !result.reason.starts_with(LAUNCHER_GONE));
        if attempt > 0 && !had_an_end {
            self.say_why_killed(attempt, LAUNCHER_GONE);
        }
    }
}

/// Whether there is such a name, links followed.
fn is_there(path: &Path) -> Result<bool, LaunchError> {
    insist(|| std::fs::exists(path)).map_err(io_error(format!("looking at {}", path.shown())))
}

/// What ends a run.
fn limits(config: &Config) -> (Option<u64>, Option<u64>, Option<f64>, Option<u32>) {
    let train = &config.train;
    (train.epochs, train.steps, train.max_seconds, train.patience)
}

/// Whether a run that has completed so is as long as it is asked to be by now, or has so many
/// `samples` (of `RunDir::samples`).
fn is_long_enough(result: &RunResult, train: &Train, samples: Option<u64>) -> bool {
    let counts = train.exchange == ExchangeKind::Synchronous;
    let reached = |limit: Option<u64>, has: u64| counts && limit.is_some_and(|limit| has >= limit);
    reached(train.steps, result.steps)
        || reached(train.epochs, result.epochs)
        || samples.is_some_and(|samples| result.samples >= samples)
        || train.max_seconds.is_some_and(|limit| result.seconds >= limit)
}

#[cfg(test)]
#[path = "run_dir_tests.rs"]
mod tests;
