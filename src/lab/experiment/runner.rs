//! Makes a run: a subprocess with a limit of time, Ctrl-C passed on. One that is complete and was
//! made by the same arguments is not made again.

use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kintsugi_ffi::os::{self, Signal};
use kintsugi_ffi::process;
use serde::{Deserialize, Serialize};

use super::jobs::{Mover, Requests, Share};
use super::plan::PlannedRun;
use super::room::{Room, forget_set};
use crate::config::{Model, parse};
use crate::lab::report::PageRoom;
use crate::lab::report::read::read_result;
use crate::observe::console::say;
use crate::observe::refusal::if_there;
use crate::observe::result::{RunResult, Status};

/// A run may take this much longer than its T for starting, restarting and ending.
const ALLOWANCE: Duration = Duration::from_secs(300);
/// And this many times its T.
const FACTOR: f64 = 1.5;
/// After the limit: time between the request to end and the order to.
const GRACE: Duration = Duration::from_secs(45);
/// A run that has ended has this long to have said everything.
const LAST_WORDS: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(50);
/// Between two moves of a group's limit: processes take a few megabytes meanwhile.
const TEND_EVERY: Duration = Duration::from_millis(10);

/// How the attempt to make one run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Made {
    /// It is complete.
    Completed,
    /// It was complete already.
    Kept,
    /// It ended otherwise; the exit code, where there was one.
    Failed(Option<i32>),
    /// It was refused before its first step, and `launch` ended with this code.
    Refused(u8),
    /// The user asked for the end of everything.
    Interrupted,
}

/// What a run was made from: kept beside its directory, compared before it is used again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Recipe {
    arguments: Vec<String>,
    #[serde(default)]
    page_cache_bytes: Option<u64>,
    /// Where it did not have all: as many at a time, others in the next turn.
    #[serde(default)]
    processors_in_turns: Option<usize>,
    /// The base configuration's text: the file may change between two experiments.
    config: String,
    /// So may a model's.
    #[serde(default)]
    model: Option<String>,
}

/// Makes runs below one folder.
pub struct Runner {
    /// The `kintsugi` to run.
    pub program: PathBuf,
    /// The experiment's folder.
    pub out: PathBuf,
    /// T; unset: the runs' configuration ends them.
    pub seconds: Option<f64>,
    /// The configuration all runs start from.
    pub config: PathBuf,
    /// How many processors each run has, where it does not have all.
    pub processors: Option<usize>,
}

impl Runner {
    /// Where a run lies.
    pub fn folder(&self, run: &PlannedRun) -> PathBuf {
        self.out.join(&run.folder)
    }

    fn launch(&self, run: &PlannedRun) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("launch").arg("--json");
        if self.processors.is_some() {
            // Who changes places is bound to none; an arm may still ask for it.
            command.args(["--set", "run.bind=none"]);
        }
        command.args(&run.arguments);
        command.arg("--run-dir").arg(self.folder(run));
        command
    }

    fn recipe(&self, run: &PlannedRun) -> io::Result<Recipe> {
        let config = std::fs::read_to_string(&self.config)?;
        let page_cache_bytes = run.page_cache.map(|bytes| bytes.0);
        let (arguments, processors_in_turns) = (run.arguments.clone(), self.processors);
        let own = parse::read(&self.config, &run.overrides()).ok().map(|config| config.model);
        let file = own.filter(Model::is_file);
        let model = file.and_then(|model| std::fs::read_to_string(model.found_name()).ok());
        Ok(Recipe { arguments, page_cache_bytes, processors_in_turns, config, model })
    }

    fn recipe_path(&self, run: &PlannedRun) -> PathBuf {
        self.out.join(format!("{}.recipe.json", run.folder))
    }

    /// Whether the run is there, complete, and made from the same recipe.
    fn is_kept(&self, run: &PlannedRun, recipe: &Recipe) -> bool {
        let made_from = std::fs::read(self.recipe_path(run)).ok();
        let made_from = made_from.and_then(|text| serde_json::from_slice::<Recipe>(&text).ok());
        made_from.as_ref() == Some(recipe) && completed(&self.folder(run))
    }

    /// Seconds that a run took which need not be made again.
    pub fn kept_seconds(&self, run: &PlannedRun) -> io::Result<Option<f64>> {
        let kept = self.is_kept(run, &self.recipe(run)?);
        let result = if kept { read_result(&self.folder(run))? } else { None };
        Ok(result.map(|result| result.seconds))
    }

    /// Makes a run that nobody looks at and removes it again.
    pub fn warm_up(&self, run: &PlannedRun, requests: &Requests) -> io::Result<Made> {
        let made = self.make(run, &Share::Whole, requests)?;
        if made == Made::Completed {
            if_there(std::fs::remove_dir_all(self.folder(run)))?;
            if_there(std::fs::remove_file(self.recipe_path(run)))?;
            if_there(std::fs::remove_file(self.log_path(run)))?;
        }
        Ok(made)
    }

    fn log_path(&self, run: &PlannedRun) -> PathBuf {
        self.out.join(format!("{}.log", run.folder))
    }

    /// Makes one run, or finds it made.
    pub fn make(&self, run: &PlannedRun, on: &Share, requests: &Requests) -> io::Result<Made> {
        let recipe = self.recipe(run)?;
        if self.is_kept(run, &recipe) {
            return Ok(Made::Kept);
        }
        // Whatever lies there from now on is not known to be of a recipe.
        let recipe_path = self.recipe_path(run);
        if_there(std::fs::remove_file(&recipe_path))?;
        let mut command = self.launch(run);
        if self.folder(run).exists() {
            // Going on with half a run would give it a pause that the other arms do not have.
            command.arg("--fresh");
        }
        let said = std::fs::File::create(self.log_path(run))?;
        command.stdin(Stdio::null()).stdout(said);
        // A group of its own: Ctrl-C reaches it once, from here, and it dies with this process.
        process::supervise(&mut command, Signal::Kill);
        let mut room = self.room(run, &mut command)?;
        if self.processors.is_some() {
            command.stderr(Stdio::piped());
        }
        let mut child = command.spawn()?;
        let told = told_by_name(&mut child, run);
        let ended = self.wait(child, room.as_mut(), Mover::new(on), requests);
        if let Some(told) = told {
            let until = Instant::now() + LAST_WORDS;
            while !told.is_finished() && Instant::now() < until {
                std::thread::sleep(POLL);
            }
        }
        if let Some(room) = room {
            std::fs::write(self.room_path(run), serde_json::to_vec(&room.close()?)?)?;
        }
        let made = match ended? {
            (_, true) => Made::Interrupted,
            (code, false) => self.outcome(run, code),
        };
        if made == Made::Completed {
            std::fs::write(recipe_path, serde_json::to_vec_pretty(&recipe)?)?;
        }
        Ok(made)
    }

    /// What came of a run that nobody stopped. A refusal puts back what lay in its folder, which
    /// may be another complete run.
    fn outcome(&self, run: &PlannedRun, code: Option<i32>) -> Made {
        match (code, self.said(run)) {
            (Some(2), _) => Made::Refused(2),
            (Some(3), Some(result)) if result.steps > 0 => Made::Failed(code),
            (Some(3), _) => Made::Refused(3),
            _ if completed(&self.folder(run)) => Made::Completed,
            _ => Made::Failed(code),
        }
    }

    /// The result that `launch` told, where it told one.
    fn said(&self, run: &PlannedRun) -> Option<RunResult> {
        let log = std::fs::read_to_string(self.log_path(run)).ok()?;
        serde_json::from_str(log.lines().last()?).ok()
    }

    /// Why a run is not complete, as `launch` told it.
    pub fn reason(&self, run: &PlannedRun) -> Option<String> {
        self.said(run).map(|result| result.reason)
    }

    /// Where the page cache of a run is limited: its set is forgotten, and the command will run in
    /// a group of its own.
    fn room(&self, run: &PlannedRun, command: &mut Command) -> io::Result<Option<Room>> {
        let Some(bytes) = run.page_cache else { return Ok(None) };
        forget_set(&self.config, &run.overrides()).map_err(io::Error::other)?;
        let room = Room::make(bytes.0).map_err(io::Error::other)?;
        room.receive(command)?;
        Ok(Some(room))
    }

    fn room_path(&self, run: &PlannedRun) -> PathBuf {
        self.out.join(format!("{}.room.json", run.folder))
    }

    /// What a run that was made had for pages of files.
    pub fn room_of(&self, run: &PlannedRun) -> Option<PageRoom> {
        run.page_cache?;
        serde_json::from_slice(&std::fs::read(self.room_path(run)).ok()?).ok()
    }

    /// Waits for the child, passes on what the user asks, ends it at the limit.
    fn wait(
        &self,
        mut child: Child,
        mut room: Option<&mut Room>,
        mut mover: Mover,
        requests: &Requests,
    ) -> io::Result<(Option<i32>, bool)> {
        let limit = self.seconds.map(|t| Duration::from_secs_f64(t * FACTOR) + ALLOWANCE);
        let is_over = |time: Duration, grace| limit.is_some_and(|limit| time > limit + grace);
        let begun = Instant::now();
        let (mut passed_on, mut asked) = (0, false);
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok((status.code(), passed_on > 0));
            }
            for signal in requests.heard().into_iter().skip(passed_on) {
                passed_on += 1;
                let _ = os::kill(child.id(), signal);
            }
            if is_over(begun.elapsed(), Duration::ZERO) && !asked {
                asked = true;
                let _ = os::kill(child.id(), Signal::Terminate);
            }
            if is_over(begun.elapsed(), GRACE) {
                child.kill()?;
            }
            mover.tend(child.id())?;
            match &mut room {
                Some(room) => {
                    room.tend();
                    std::thread::sleep(TEND_EVERY);
                }
                None => std::thread::sleep(POLL),
            }
        }
    }
}

/// Of several runs at a time each line is told with the run's name before it.
fn told_by_name(child: &mut Child, run: &PlannedRun) -> Option<JoinHandle<()>> {
    let (said, name) = (BufReader::new(child.stderr.take()?), run.name());
    Some(std::thread::spawn(move || {
        let lines = said.split(b'\n').map_while(Result::ok);
        lines.for_each(|line| say!("{name}: {}", String::from_utf8_lossy(&line)));
    }))
}

/// What `result.json` says; the exit code of a launcher proves nothing.
fn completed(folder: &Path) -> bool {
    matches!(read_result(folder), Ok(Some(result)) if result.status == Status::Completed)
}
