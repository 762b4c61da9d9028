//! The loop around mpirun: starts it, follows what its ranks commit, ends it when they commit
//! nothing, starts it again from whatever state exists, and stops when the run is over.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kintsugi_ffi::os::Signal;
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use crate::cluster::guard::last_words;
use crate::cluster::resident::Folder;
use crate::config::{Config, Rung};
use crate::observe::clock::{Clock, RealClock};
use crate::observe::event::Event;
use crate::observe::log::EventTail;
use crate::observe::result::{RunResult, Status};

use super::attempt::{self, Attempt};
use super::mpirun::{Plan, TUNABLES_VARIABLE};
use super::nodes::Crew;
use super::nodes::crew::{Mission, Nodes};
use super::nodes::spreading::Spreading;
use super::nodes::switchboard::Loss;
use super::run_dir::RunDir;
use super::runtime::Runtime;
use super::verdict::{self, Ending, History, Next};
use super::{LaunchError, io_error, janitor};
use crate::run_folder::heard::{HEARD, Heard};
use crate::run_folder::lock::RunLock;

mod answer;
pub mod scaling;
mod spread;
mod telling;

/// How often the supervisor looks.
const POLL: Duration = Duration::from_millis(20);
/// How often it asks whether a later launch has taken over.
const LOCK_POLL: Duration = Duration::from_secs(1);
/// How long mpirun may go on after its ranks wrote the result.
const AFTER_RESULT_MAX: Duration = Duration::from_secs(10);

/// A run to be launched.
#[derive(Debug)]
pub struct Job {
    /// Everything.
    pub config: Config,
    /// Where it lives.
    pub run: RunDir,
    /// The launcher.
    pub mpirun: PathBuf,
    /// This program: what ranks and janitors run.
    pub program: PathBuf,
    /// What ranks run instead, in tests of the supervisor.
    pub rank_program: Option<PathBuf>,
    /// Several nodes, where there are.
    pub nodes: Option<Nodes>,
    /// What takes mpirun's place there.
    pub runtime: Option<Runtime>,
}

impl Job {
    /// The resident state of the run on this node.
    pub fn slots(&self) -> Folder {
        Folder::new(&self.config.recovery.resident_dir, &self.run.id())
    }

    /// The mpirun line of an attempt; `origin` is the unix time at which the run's seconds were 0.
    pub fn plan(&self, attempt: u32, origin: f64) -> Plan {
        let (job, temporary, shared_memory) = attempt::place(&self.run.id(), attempt);
        let program = self.rank_program.as_ref().unwrap_or(&self.program);
        let text = |path: &Path| path.display().to_string();
        let train = &self.config.train;
        Plan {
            mpirun: self.mpirun.clone(),
            ranks: self.config.run.ranks,
            spares: self.config.recovery.spares.unwrap_or(0),
            threads_per_rank: train.workers.saturating_mul(train.threads),
            cores: attempt::cores(),
            rank_command: vec![
                text(program),
                "train".into(),
                text(&self.run.join("config.toml")),
                "--run-dir".into(),
                text(self.run.path()),
                "--attempt".into(),
                attempt.to_string(),
                "--origin".into(),
                format!("{origin:.6}"),
                "--launched".into(),
            ],
            job,
            temporary,
            shared_memory,
            placement: self.nodes.as_ref().map(|nodes| nodes.place_all(self.config.run.ranks)),
            runtime: self.runtime.clone(),
            respawns: self.config.recovery.rungs().contains(&Rung::Respawn),
            home: kintsugi_ffi::os::hostname(),
            tunables: std::env::var(TUNABLES_VARIABLE).ok(),
        }
    }

    /// What the processes of an attempt are known by.
    fn name(&self, attempt: u32) -> String {
        janitor::job_name(&self.run.id(), attempt)
    }

    /// What agents on its nodes need to know.
    pub fn mission(&self) -> Mission {
        Mission {
            program: self.program.clone(),
            run: self.run.id(),
            logs: self.run.join("logs"),
            slots: self.slots(),
            timeout: self.config.recovery.node_timeout.0,
        }
    }
}

/// Runs it to its end. `show` gets every event, and warnings of the supervisor's own. Call it on
/// the main thread: mpirun ends with the thread that started it.
pub fn supervise(
    job: &Job,
    lock: RunLock,
    show: &mut dyn FnMut(&Event),
) -> Result<RunResult, LaunchError> {
    let mut signals =
        Signals::new([SIGINT, SIGTERM, SIGUSR1]).map_err(io_error("catching signals"))?;
    scaling::forget(&job.run);
    janitor::clear_stale(&job.run.id()).map_err(io_error("ending an earlier attempt"))?;
    let mut stopped = false;
    let crew = job.nodes.clone().map(|nodes| {
        let mut stop = || {
            stopped |= signals.pending().next().is_some();
            stopped
        };
        Crew::assemble(nodes, job.mission(), &mut stop)
    });
    let crew = crew.transpose().map_err(io_error("starting agents on the nodes (srun)"))?;
    let mut supervisor = Supervisor {
        job,
        lock,
        show,
        signals,
        tail: EventTail::new(job.run.join("events.jsonl")),
        history: History::default(),
        last: None,
        attempt: 0,
        origin: now_unix(),
        restarting: false,
        crew,
        left_out: Vec::new(),
        mending: None,
        stopped,
        ranks: job.config.run.ranks,
        scaling: scaling::Scaling::default(),
        spreading: Spreading::new(job.config.recovery.regrow),
        answer: answer::Answer::of(
            job.nodes.as_ref().map_or(1, |nodes| nodes.allocation.nodes.len()),
        ),
        spread_looked: Instant::now(),
    };
    supervisor.read_the_past();
    // Restarts within this launch count as time of the run; the pause before it does not.
    supervisor.origin -= supervisor.last.as_ref().map_or(0.0, |last| last.seconds);
    supervisor.run()
}

/// Seconds since 1970.
pub fn now_unix() -> f64 {
    RealClock::default().unix_seconds()
}

/// What became of an attempt.
enum Tried {
    /// It ended so; the log of its mpirun.
    Ended(Ending, PathBuf),
    /// It was not begun: the run ends.
    Not(Status, String),
}

/// A node was lost and is yet to be made up for.
struct Mending {
    since: Instant,
    /// The last one seen by then.
    step: u64,
    why: String,
}

fn left_out(loss: &Loss) -> String {
    format!("node {} is left out: {}", loss.node, loss.why)
}

struct Supervisor<'a> {
    job: &'a Job,
    lock: RunLock,
    show: &'a mut dyn FnMut(&Event),
    signals: Signals,
    tail: EventTail,
    history: History,
    /// The newest event: its time and place are those of our own.
    last: Option<Event>,
    attempt: u32,
    origin: f64,
    /// An attempt of this launch has ended.
    restarting: bool,
    /// The agents of several nodes.
    crew: Option<Crew>,
    /// Nodes that the running attempt lost and survived.
    left_out: Vec<Loss>,
    /// The last of them, until further steps are committed.
    mending: Option<Mending>,
    /// Somebody asked for the end before there was an attempt to stop.
    stopped: bool,
    /// Of the attempt that runs, or ran last.
    ranks: u32,
    /// Another number of nodes, where somebody asks for it.
    scaling: scaling::Scaling,
    /// The same number of nodes, once more of them live.
    spreading: Spreading,
    /// What ranks that lost some of their number wait for.
    answer: answer::Answer,
    /// When that was last looked at.
    spread_looked: Instant,
}

impl Supervisor<'_> {
    /// What earlier launches of this run wrote, without showing it again.
    fn read_the_past(&mut self) {
        loop {
            let events = self.tail.poll();
            if events.is_empty() {
                return;
            }
            for event in events {
                self.history.on(&event);
                self.last = Some(event);
            }
        }
    }

    /// Bounded by `verdict::STALLED_ATTEMPTS_MAX`: all but so many attempts bring the run forward.
    fn run(&mut self) -> Result<RunResult, LaunchError> {
        loop {
            self.attempt = self.lock.raise()?;
            self.job.run.put_result_aside(self.attempt)?;
            self.job.run.forget_refusal()?;
            self.history.attempt_begins();
            let (ending, log) = match self.attempt()? {
                Tried::Ended(ending, log) => (ending, log),
                Tried::Not(status, reason) => return self.conclude(status, &reason),
            };
            let stalled = self.history.attempt_ends(&ending);
            let result = self.job.run.result().filter(|r| r.attempt == self.attempt);
            if result.is_none()
                && let Some(reason) = self.job.run.refusal()
            {
                return Err(LaunchError::Refused { reason });
            }
            let may_restart = verdict::may_restart(&self.job.config);
            match verdict::next(&ending, result, stalled, may_restart) {
                Next::Accept(result) => {
                    if result.status == Status::Completed {
                        // Its ranks did so, unless they were killed between the two.
                        self.job.slots().clear();
                        if let Some(crew) = &mut self.crew {
                            crew.clear_slots();
                        }
                    }
                    return Ok(*result);
                }
                Next::Conclude(status, reason) => {
                    self.quote(&log);
                    return self.conclude(status, &reason);
                }
                Next::Restart(reason) => {
                    self.quote(&log);
                    let logs = self.job.run.join("logs");
                    if let Some(first) = last_words::first_of_attempt(&logs, self.attempt) {
                        self.warn(&format!("the first to end was {first}"));
                    }
                    let next = self.attempt + 1;
                    self.warn(&format!("{reason}; starting again (attempt {next})"));
                }
            }
        }
    }

    /// One attempt, from start to the last of its processes.
    fn attempt(&mut self) -> Result<Tried, LaunchError> {
        let log = self.job.run.join(&format!("logs/mpirun-{}.log", self.attempt));
        let mut plan = self.job.plan(self.attempt, self.origin);
        if self.restarting {
            // As many ranks as the run should have by now (`kintsugi scale`).
            plan.ranks = self.job.run.target_ranks().unwrap_or(plan.ranks);
            self.apply_scaling();
            plan.ranks = self.scaling.ranks.take().unwrap_or(plan.ranks);
        }
        plan.say_ranks();
        if !self.restarting && plan.placement.is_some() {
            plan.rank_command.push("--measure-network".into());
        }
        self.spreading.attempt_begins();
        if let Some(crew) = &mut self.crew {
            match crew.place(plan.ranks, &plan.job) {
                Ok(placement) => plan.placement = Some(placement),
                Err(few) => return Ok(Tried::Not(Status::JobLost, few)),
            }
            self.tell_losses();
            self.placed(plan.ranks);
        }
        if self.stopped {
            let reason = "asked to stop before the ranks were started".to_owned();
            return Ok(Tried::Not(Status::Interrupted, reason));
        }
        self.restarting = true;
        self.mending = None;
        self.say_heard(Heard { attempt: self.attempt, generation: 0 });
        let mut attempt = Attempt::start(&plan, &self.job.program, &log)?;
        let recorded = self.lock.record_mpirun(attempt.pid()).map_err(LaunchError::from);
        let ending = recorded.and_then(|()| self.watch(&mut attempt));
        let killed = ending.as_ref().ok().and_then(Ending::killed_for);
        let told = killed.map(|why| self.job.run.say_why_killed(self.attempt, why));
        let (hurried, signals) = (ending.is_err() || told.is_some(), &mut self.signals);
        attempt.close(&mut || hurried || signals.pending().next().is_some())?;
        let ending = self.end_on_nodes(&plan.job, ending?);
        self.follow();
        self.end_of_spread();
        Ok(Tried::Ended(ending, log))
    }

    /// Nothing is left on the other nodes; one that is gone may be why mpirun ended.
    fn end_on_nodes(&mut self, job: &str, ending: Ending) -> Ending {
        let Some(crew) = &mut self.crew else { return ending };
        crew.end(job);
        let lost = crew.lost_in_use().map(|loss| format!("lost node {}: {}", loss.node, loss.why));
        let lost = lost.or(self.mending.take().map(|mending| mending.why));
        self.tell_losses();
        match (ending, lost) {
            (Ending::Exited(how), Some(lost)) => {
                Ending::NodeLost(format!("{lost}; mpirun ended ({how})"))
            }
            (ending, _) => ending,
        }
    }

    /// Until mpirun ends, hangs, or somebody asks for the end.
    fn watch(&mut self, attempt: &mut Attempt) -> Result<Ending, LaunchError> {
        let mut sign_of_life = attempt.started();
        let mut lock_checked = Instant::now();
        let mut result_seen: Option<Instant> = None;
        loop {
            if self.follow() {
                sign_of_life = Instant::now();
            }
            if let Some(how) = attempt.poll()? {
                return Ok(Ending::Exited(how));
            }
            if self.signals.pending().next().is_some() {
                return self.stop(attempt);
            }
            if let Some(why) = self.lost_node() {
                return Ok(Ending::NodeLost(why));
            }
            self.answer();
            self.look_at_scaling();
            self.look_at_spread();
            let silence = sign_of_life.elapsed();
            let committing = self.history.committing();
            if let Some(why) = verdict::hung(&self.job.config, committing, silence) {
                return Ok(Ending::Hung(why));
            }
            if lock_checked.elapsed() >= LOCK_POLL {
                self.lock.check()?;
                lock_checked = Instant::now();
                if result_seen.is_none() && self.job.run.result().is_some() {
                    result_seen = Some(Instant::now());
                }
            }
            if result_seen.is_some_and(|seen| seen.elapsed() > AFTER_RESULT_MAX) {
                return Ok(Ending::Exited("it went on after the result was written".into()));
            }
            std::thread::sleep(POLL);
        }
    }

    /// A node without which the attempt cannot go on: any, but for the runtime that survives it.
    /// That one has half of `recovery.time_limit` to prove it by further steps.
    fn lost_node(&mut self) -> Option<String> {
        let crew = self.crew.as_mut()?;
        crew.recall();
        let step = self.last.as_ref().map_or(0, |last| last.step);
        let Some(loss) = crew.lost_in_use() else {
            // The first further step may have been on its way when the node died.
            self.mending.take_if(|mending| step > mending.step + 1);
            let Mending { since, why, .. } = self.mending.as_ref()?;
            let late = since.elapsed() > self.job.config.recovery.time_limit.0 / 2;
            return late.then(|| format!("{why}; no step was committed since"));
        };
        let why = format!("lost node {}: {}", loss.node, loss.why);
        // A world that has not begun has no state in memory, and no launcher survives that.
        if self.job.runtime.is_none() || !self.history.committing() {
            return Some(why);
        }
        for loss in crew.leave_out() {
            self.warn(&left_out(&loss));
            self.left_out.push(loss);
        }
        self.show_nodes(None);
        self.mending = Some(Mending { since: Instant::now(), step, why });
        None
    }

    /// Nobody asked for the end: ranks may go on with fewer.
    fn answer(&mut self) {
        if let Some(heard) = self.answer.due(Instant::now()) {
            self.say_heard(heard);
        }
    }

    fn say_heard(&mut self, heard: Heard) {
        if let Err(error) = heard.write(self.job.run.path()) {
            self.warn(&format!("ranks cannot be answered (RUN/{HEARD}): {error}"));
        }
    }

    /// Asks the ranks for a checkpoint and their end, and waits for them; a second signal hurries.
    fn stop(&mut self, attempt: &mut Attempt) -> Result<Ending, LaunchError> {
        let patience = self.job.config.recovery.time_limit.0;
        self.warn("stopping: the ranks write a checkpoint (once more to stop at once)");
        match (&self.crew, &self.job.runtime) {
            // prterun of the newer runtime was seen not to hand the signal on.
            (Some(crew), Some(_)) => crew.stop(&self.job.name(self.attempt)),
            _ => attempt.signal(Signal::User1),
        }
        let end = Instant::now() + patience;
        while attempt.poll()?.is_none() && Instant::now() < end {
            if self.signals.pending().next().is_some() {
                break;
            }
            self.follow();
            std::thread::sleep(POLL);
        }
        Ok(Ending::Stopped)
    }

    /// Takes what the ranks wrote since; says whether it shows that the world goes on.
    fn follow(&mut self) -> bool {
        let mut alive = false;
        for event in self.tail.poll() {
            alive |= self.history.on(&event);
            self.spreading.on(&event);
            self.answer.on(&event, Instant::now());
            (self.show)(&event);
            self.last = Some(event);
        }
        alive
    }
}
