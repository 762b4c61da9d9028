//! A whole simulated run: launches under the supervisor's own loop, until there is a result.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::cluster::comm::sim::{self, End, SimOptions, Trace};
use crate::config::Shown;
use crate::config::seed::{Stream, purpose};
use crate::launch::LaunchError;
use crate::launch::ending::files::EndingFiles;
use crate::launch::ending::verdict::{Ending, History, Next};
use crate::launch::supervisor::attempts::{self, Attempts, Run, Tried};
use crate::observe::event::{Event, Kind};
use crate::observe::ledger;
use crate::observe::result::{RunResult, Status};
use crate::observe::storage::Storage;
use crate::train::checkpoint::store;
use crate::train::record::journal::EVENTS;
use crate::train::state::slot_files::INSTANCE;

use super::broken::Rule;
use super::disk::Files;
use super::nodes::{Copies, Nodes};
use super::rank::{self, Attempt, Hours, Left};
use super::scenario::{Fault, RUN_ID, Scenario};
use super::slots::Room;
use super::stand_in::{Seen, Sightings};

/// Starts of the world before a run counts as stuck: far more than it has faults.
const ATTEMPTS_MAX: u32 = 20;
/// Decisions of the board in one attempt: thirty times as many as without failures.
const SETTLES_MAX: u64 = 6_000;
/// Files of a whole checkpoint.
const CHECKPOINT_FILES: usize = 4;
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(900);

/// One attempt, as it ended.
#[derive(Debug)]
pub struct Ended {
    /// From 1.
    pub number: u32,
    /// By process: how it ended.
    pub ends: Vec<End<Left>>,
    /// Faults that fired in it: deaths, storage that failed, flipped bits.
    pub fired: u64,
    /// Whether it was asked to stop.
    pub stopped: bool,
    /// The newest undamaged checkpoint that was published when it began.
    pub checkpoint: Option<u64>,
    /// Whether state that outlived the attempt before lay untouched when it began.
    pub slots_untouched: bool,
}

/// How the run ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Final {
    /// With this result.
    Result(Box<RunResult>),
    /// The ranks refused to begin, for this reason.
    Refused(String),
    /// Not within its bounds.
    Stuck(String),
}

/// Everything that is known of a simulated run.
pub struct Played {
    /// Its end.
    pub end: Final,
    /// Its attempts.
    pub attempts: Vec<Ended>,
    /// Its run directory.
    pub files: Arc<Files>,
    /// What was computed.
    pub sightings: Vec<Seen>,
    /// Checkpoints that were damaged on purpose.
    pub damaged: Vec<Damaged>,
    /// One line per event.
    pub trace: Vec<String>,
    /// Decisions of the board, in all.
    pub settles: u64,
    /// Processes that died.
    pub deaths: u32,
    /// What became of the copies, by node.
    pub copies: Vec<Copies>,
}

impl Played {
    /// Lines of one of its files that can be read.
    pub fn lines<T: DeserializeOwned>(&self, name: &str) -> Vec<T> {
        lines(&self.files, name)
    }
}

/// Readable lines, torn ones passed over.
fn lines<T: DeserializeOwned>(files: &Files, name: &str) -> Vec<T> {
    let body = files.memory.read(Path::new(name)).unwrap_or_default();
    body.split(|&byte| byte == b'\n').filter_map(|l| serde_json::from_slice(l).ok()).collect()
}

/// Plays a scenario to its end.
pub fn play(scenario: &Scenario, rule: Rule, trace: Trace) -> Played {
    let stop = scenario.faults.iter().find_map(|fault| match fault {
        Fault::Stop { after } => Some(*after),
        _ => None,
    });
    let mut scenario = scenario.clone();
    let room = scenario.in_file.then(|| Room::new().expect("room for some slots in memory"));
    if let Some(room) = &room {
        scenario.config.recovery.resident_dir = room.path().to_owned();
    }
    let nodes = scenario.plane.map(|plane| Nodes::new(plane).expect("room for some copies"));
    if let Some(nodes) = &nodes {
        scenario.config.staging.folder = Some(nodes.path().to_owned());
    }
    scenario.config.faults.plan = points(&scenario.faults);
    let files = Arc::new(Files::new(&scenario.faults));
    // Drawn by the first rank of a real run; here it must not depend on the day.
    let drawn = files.memory.create_new(Path::new(INSTANCE), b"0000000000000001\n");
    drawn.expect("the memory's own file");
    let mut supervisor = Supervisor {
        files,
        sightings: Sightings::default(),
        hours: Arc::new(Hours::new(stop)),
        newest: Arc::default(),
        room,
        nodes,
        scenario,
        rule,
        trace_kept: trace,
        number: 0,
        history: History::default(),
        events_seen: 0,
        played: Vec::new(),
        damaged: Vec::new(),
        trace: Vec::new(),
        settles: 0,
        deaths: 0,
    };
    let end = supervisor.launch();
    let sightings = supervisor.sightings.lock().map(|seen| seen.clone()).unwrap_or_default();
    Played {
        end,
        attempts: supervisor.played,
        files: supervisor.files,
        sightings,
        damaged: supervisor.damaged,
        trace: supervisor.trace,
        settles: supervisor.settles,
        deaths: supervisor.deaths,
        copies: supervisor.nodes.map(Nodes::finish).unwrap_or_default(),
    }
}

fn points(faults: &[Fault]) -> Vec<crate::config::PlannedFault> {
    let point = |fault: &Fault| match fault {
        Fault::Point(point) => Some(point.clone()),
        _ => None,
    };
    faults.iter().filter_map(point).collect()
}

/// A checkpoint that was damaged on purpose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damaged {
    step: u64,
    file: PathBuf,
    /// The damaged bytes; `None`: the file was taken away.
    body: Option<Vec<u8>>,
}

impl Damaged {
    /// Until a later attempt writes the checkpoint of that step again.
    fn is_still(&self, storage: &dyn Storage) -> bool {
        storage.read(&self.file).ok() == self.body
    }
}

struct Supervisor {
    room: Option<Room>,
    nodes: Option<Nodes>,
    scenario: Scenario,
    rule: Rule,
    trace_kept: Trace,
    files: Arc<Files>,
    sightings: Sightings,
    hours: Arc<Hours>,
    newest: Arc<AtomicU32>,
    /// The attempt in force.
    number: u32,
    /// What this launch knows of the run.
    history: History,
    /// Events of which it took notice.
    events_seen: usize,
    played: Vec<Ended>,
    damaged: Vec<Damaged>,
    trace: Vec<String>,
    settles: u64,
    deaths: u32,
}

impl Supervisor {
    /// Launches the run until it has a result: one that was interrupted, or that died with its
    /// launch, is launched again.
    fn launch(&mut self) -> Final {
        loop {
            let events: Vec<Event> = lines(&self.files, EVENTS);
            (self.history, self.events_seen) = (past(&events), events.len());
            match attempts::run(self) {
                Ok(result) if result.status == Status::Interrupted => {}
                Ok(result) => return Final::Result(Box::new(result)),
                Err(Broken::Launch(LaunchError::Refused { reason })) => {
                    return Final::Refused(reason);
                }
                Err(Broken::Launch(error)) => return Final::Stuck(error.to_string()),
                Err(Broken::Stuck(what)) => return Final::Stuck(what),
                Err(Broken::Lost) => {
                    if let Some(end) = self.found() {
                        return end;
                    }
                }
            }
        }
    }

    /// What whoever launches it again finds in its files, where that ends the run.
    fn found(&self) -> Option<Final> {
        let files = EndingFiles::of(&self.files.memory);
        match files.result().filter(|result| result.attempt == self.number) {
            Some(result) if result.status == Status::Completed => {
                Some(Final::Result(Box::new(result)))
            }
            Some(_) => None,
            None => files.refusal().map(Final::Refused),
        }
    }

    /// Whether everything died with this attempt, `launch` included.
    fn lost_its_launch(&self, number: u32) -> bool {
        let strikes =
            |fault: &Fault| matches!(fault, Fault::Power { attempt, .. } if *attempt == number);
        let lives = |end: &End<Left>| matches!(end, End::Finished(_));
        self.scenario.faults.iter().any(strikes)
            && self.played.last().is_some_and(|ended| !ended.ends.iter().any(lives))
    }

    /// Damages slots, if that is due; whether none were.
    fn leave_slots(&mut self, number: u32) -> bool {
        let Some(room) = &mut self.room else { return false };
        let mut untouched = true;
        for fault in &self.scenario.faults {
            if let Fault::Rot { attempt, draw } = fault
                && *attempt == number
                && let Some(what) = room.damage(*draw)
            {
                untouched = false;
                self.trace.push(format!("attempt {number}: {what}"));
            }
        }
        room.remember();
        untouched
    }

    fn play_attempt(&mut self, number: u32) -> Result<(), String> {
        self.damage(number);
        let slots_untouched = self.leave_slots(number);
        if let Some(nodes) = &mut self.nodes {
            self.trace.extend(nodes.strike(&self.scenario.faults, number, self.rule));
        }
        let checkpoint = self.newest_good();
        self.hours.pause(PAUSE);
        let fired = |files: &Files| files.fired() + files.flips();
        let fired_before = fired(&self.files);
        let (scenario, files) = (&self.scenario, &self.files);
        let attempt = Attempt {
            scenario,
            number,
            files,
            sightings: &self.sightings,
            hours: &self.hours,
            newest: &self.newest,
            rule: self.rule,
            nodes: self.nodes.as_ref(),
            begun: matches!(ledger::newest(&files.memory), Ok(Some(line)) if line.step > 0),
        };
        let options = options(scenario, number, self.trace_kept);
        let seed = crate::config::seed::key(&[scenario.seed, u64::from(number)]);
        let ranks = scenario.config.run.ranks as usize;
        let outcome =
            sim::run(seed, ranks, options, |comm, join| rank::live(&attempt, comm, join.as_ref()));
        self.settles += outcome.settles;
        self.deaths += outcome.deaths;
        self.trace.extend(outcome.trace.into_iter().map(|line| format!("{number} {line}")));
        let changed = scenario.changes().any(|changed| changed.disturbs_start(number));
        let fired =
            u64::from(outcome.deaths) + u64::from(changed) + fired(&self.files) - fired_before;
        let stopped = self.hours.was_stopped();
        let ends = outcome.ends;
        self.played.push(Ended { number, ends, fired, stopped, checkpoint, slots_untouched });
        outcome.stuck.map_or(Ok(()), Err)
    }

    /// Damages the newest checkpoint, if that is due.
    fn damage(&mut self, number: u32) {
        for fault in &self.scenario.faults {
            let Fault::Damage { attempt, draw } = fault else { continue };
            let newest = store::newest_step(&self.files.memory);
            let (Some(step), true) = (newest, *attempt == number) else { continue };
            let folder = Path::new(store::FOLDER).join(store::name_of(step));
            let names = self.files.memory.list(&folder).unwrap_or_default();
            if names.is_empty() {
                continue;
            }
            let mut draws = Stream::new(&[*draw, purpose::SIMULATE]);
            let path = folder.join(&names[draws.below(names.len() as u64) as usize]);
            let mut body = self.files.memory.read(&path).expect("it was listed");
            let at = draws.below(body.len().max(1) as u64) as usize;
            match draws.below(3) {
                0 => body.truncate(at),
                1 => drop(self.files.memory.remove(&path)),
                _ => body[at] ^= 1 << draws.below(8),
            }
            let there = self.files.memory.read(&path).is_ok();
            if there {
                self.files.memory.write_whole(&path, &[&body]).expect("the memory's own file");
            }
            self.trace.push(format!("attempt {number}: damaged {}", path.shown()));
            self.damaged.push(Damaged { step, file: path, body: there.then_some(body) });
        }
    }

    /// The newest published step that was not damaged; a folder caught between two renames counts,
    /// one that was being removed does not.
    fn newest_good(&self) -> Option<u64> {
        let memory = &self.files.memory;
        let files = |name: &str| memory.list(&Path::new(store::FOLDER).join(name)).map(|f| f.len());
        let mut names = memory.list(Path::new(store::FOLDER)).unwrap_or_default();
        names.retain(|name| files(name).is_ok_and(|files| files == CHECKPOINT_FILES));
        let steps = names.iter().filter_map(|name| {
            store::step_of(name).or_else(|| store::step_of(name.strip_suffix(".old")?))
        });
        let bad: Vec<u64> =
            self.damaged.iter().filter(|d| d.is_still(memory)).map(|d| d.step).collect();
        steps.filter(|step| !bad.contains(step)).max()
    }
}

/// Why a simulated launch has no result.
enum Broken {
    /// What the real one says.
    Launch(LaunchError),
    /// It died with its ranks.
    Lost,
    /// Not within its bounds.
    Stuck(String),
}

impl From<LaunchError> for Broken {
    fn from(error: LaunchError) -> Self {
        Self::Launch(error)
    }
}

impl Attempts for Supervisor {
    type Error = Broken;

    fn run(&self) -> Run<'_> {
        let (config, storage) = (&self.scenario.config, &self.files.memory);
        Run { config, storage, name: RUN_ID.into(), scarce: &[] }
    }

    fn history(&mut self) -> &mut History {
        &mut self.history
    }

    fn raise(&mut self) -> Result<u32, Broken> {
        if self.number == ATTEMPTS_MAX {
            return Err(Broken::Stuck(format!("no result after {ATTEMPTS_MAX} attempts")));
        }
        self.number += 1;
        self.newest.store(self.number, Ordering::Relaxed);
        self.files.memory.create_dir(Path::new("logs")).expect("the memory's own folders");
        Ok(self.number)
    }

    fn attempt(&mut self) -> Result<Tried, Broken> {
        let number = self.number;
        let played = self.play_attempt(number);
        played.map_err(|stuck| Broken::Stuck(format!("attempt {number}: {stuck}")))?;
        if self.lost_its_launch(number) {
            return Err(Broken::Lost);
        }
        let events: Vec<Event> = lines(&self.files, EVENTS);
        for event in &events[self.events_seen..] {
            self.history.on(event);
        }
        self.events_seen = events.len();
        Ok(Tried::Ended(match self.played.last().is_some_and(|ended| ended.stopped) {
            true => Ending::Stopped,
            false => Ending::Exited("simulated".into()),
        }))
    }

    fn decided(&mut self, next: &Next) {
        let number = self.number;
        self.trace.push(format!("supervisor: after attempt {number}: {}", short(next)));
    }

    /// Nobody reads a simulated run's log for its end.
    fn concluded(&mut self, _result: &RunResult) -> Result<(), Broken> {
        Ok(())
    }
}

fn options(scenario: &Scenario, attempt: u32, trace: Trace) -> SimOptions {
    let mut options = SimOptions {
        deaths: scenario.deaths(attempt),
        spares: scenario.config.recovery.spares.unwrap_or(0) as usize,
        settles_max: SETTLES_MAX,
        trace,
        ..SimOptions::calm()
    };
    for fault in &scenario.faults {
        match fault {
            Fault::Crash { attempt: at, settle } | Fault::Power { attempt: at, settle }
                if *at == attempt =>
            {
                options.crash_at = Some(*settle);
            }
            Fault::Slots { spawns } => options.spawns_max = *spawns,
            Fault::Refusals => options.refusal_chance = 1.0 / 3.0,
            _ => {}
        }
    }
    options
}

/// What a launch knows of the run's earlier ones.
fn past(events: &[Event]) -> History {
    let mut history = History::default();
    for event in events {
        history.on(event);
    }
    history
}

fn short(next: &Next) -> String {
    match next {
        Next::Accept(result) => format!("{:?} at step {}", result.status, result.steps),
        Next::Conclude(status, reason) => format!("{status:?}: {reason}"),
        Next::Restart(reason) => format!("starts again: {reason}"),
    }
}

/// What an attempt began from: its `run_start`.
pub fn begun_from(events: &[Event], attempt: u32) -> Option<u64> {
    let start =
        |event: &&Event| event.attempt == attempt && matches!(event.kind, Kind::RunStart { .. });
    events.iter().find(start).map(|event| event.step)
}
