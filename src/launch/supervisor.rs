//! A launch of real processes: starts mpirun for each attempt of the loop (`attempts`), follows
//! what its ranks commit, and ends it when they commit nothing, lose a node, or somebody asks for
//! the end.

use std::time::{Duration, Instant};

use kintsugi_ffi::os::Signal;

use crate::config::Shown;
use crate::data::tiers::supply;
use crate::observe::event::{Event, Kind};
use crate::observe::result::{ASKED_TO_STOP, RunResult, Status};
use crate::run_folder::before::Before;
use crate::run_folder::lock::RunLock;

use super::attempt::Attempt;
use super::ending::verdict::{self, Awaited, Ending, History, Next};
use super::nodes::ClusterNodes;
use super::nodes::connections::Loss;
use super::start::job::Job;
use super::stops::Stops;
use super::traces::{folders, janitor};
use super::{LaunchError, io_error};

use attempts::{Attempts, Run, Tried};
use awake::Awake;
use deserted::Deserted;
use record::Record;
use scaling::Scaling;
use spread::Spread;
use start::Start;

pub mod attempts;
mod awake;
mod deserted;
mod notices;
mod record;
mod scaling;
mod spread;
mod start;

/// How often the supervisor looks.
const POLL: Duration = Duration::from_millis(20);
/// How often ranks are asked to stop, until they have.
const ASK_EVERY: Duration = Duration::from_millis(500);
/// How often it asks whether a later launch has taken over.
const LOCK_POLL: Duration = Duration::from_secs(1);
/// How long ranks that have nothing to save may go on once they are asked to stop: most hear it
/// between two steps only, and to make or list a data set takes minutes.
const NOTHING_TO_SAVE_MAX: Duration = Duration::from_secs(5);
/// How long mpirun may go on after its ranks wrote the result.
const AFTER_RESULT_MAX: Duration = Duration::from_secs(10);

/// Runs it to its end. `show` gets every event, and warnings of the supervisor's own. Call it on
/// the main thread: mpirun ends with the thread that started it. `scarce`: limits that are too low
/// for the run, told again where it does not come forward.
pub fn supervise(
    job: &Job,
    lock: RunLock,
    before: &Before,
    scarce: &[String],
    mut stops: Stops,
    show: &mut dyn FnMut(&Event),
) -> Result<RunResult, LaunchError> {
    scaling::forget(&job.run);
    janitor::clear_stale(&job.run.id()).map_err(io_error("ending an earlier attempt"))?;
    job.run.say_if_orphaned(lock.unended_attempt());
    let mut stopped = false;
    let nodes = job.nodes.clone().map(|nodes| {
        let mut stop = || {
            stopped |= stops.look();
            stopped
        };
        ClusterNodes::assemble(nodes, job.mission(), &mut stop)
    });
    let nodes = nodes.transpose().map_err(io_error("starting agents on the nodes (srun)"))?;
    let mut supervisor = Supervisor {
        job,
        scarce,
        first_attempt: lock.attempt() + 1,
        lock,
        record: Record::of(job, show)?,
        stops,
        restarting: false,
        nodes,
        left_out: Vec::new(),
        mending: None,
        stopped,
        stopping: false,
        scaling: Scaling::of(job),
        spread: Spread::default(),
        strangers: false,
        awake: Awake::at(Instant::now()),
    };
    let ended = attempts::run(&mut supervisor);
    let ended = if supervisor.restarting { ended.map_err(LaunchError::in_midst) } else { ended };
    supervisor.clear_up();
    let refused = match &ended {
        Ok(result) => result.status == Status::DataError && before.had_completed(),
        Err(error) => matches!(error, LaunchError::Refused { .. }),
    };
    if let Err(error) = before.keep_configuration() {
        supervisor.record.warn(&format!("config.toml is not what the run began with: {error}"));
    }
    if refused {
        supervisor.put_back(before);
    } else if let Err(error) = before.keep_one_copy() {
        supervisor.record.warn(&format!("an older copy of this run stays: {error}"));
    }
    ended
}

/// A node was lost and is yet to be made up for.
struct Mending {
    since: Instant,
    /// The last one seen by then.
    step: u64,
    why: String,
}

struct Supervisor<'a> {
    job: &'a Job,
    scarce: &'a [String],
    lock: RunLock,
    record: Record<'a>,
    stops: Stops,
    /// An attempt of this launch has ended.
    restarting: bool,
    /// Of this launch.
    first_attempt: u32,
    /// The agents of several nodes.
    nodes: Option<ClusterNodes>,
    /// Nodes that the running attempt lost and survived.
    left_out: Vec<Loss>,
    /// The last of them, until further steps are committed.
    mending: Option<Mending>,
    /// Somebody asked for the end before there was an attempt to stop.
    stopped: bool,
    /// The ranks of an attempt were asked for it.
    stopping: bool,
    /// Another number of nodes, where somebody asks for it.
    scaling: Scaling,
    /// The same number of nodes, once more of them live.
    spread: Spread,
    /// Other users' files under this run's names were named.
    strangers: bool,
    /// By which silence and patience are measured.
    awake: Awake,
}

impl Attempts for Supervisor<'_> {
    type Error = LaunchError;

    fn run(&self) -> Run<'_> {
        let (config, folder) = (&self.job.config, &self.job.run);
        let scarce = self.scarce;
        Run { config, storage: folder.storage(), name: folder.name(), scarce }
    }

    fn history(&mut self) -> &mut History {
        &mut self.record.history
    }

    fn raise(&mut self) -> Result<u32, LaunchError> {
        self.record.begin(self.lock.raise()?);
        Ok(self.record.attempt)
    }

    fn attempt(&mut self) -> Result<Tried, LaunchError> {
        self.one_attempt()
    }

    fn decided(&mut self, next: &Next) {
        if !matches!(next, Next::Restart(_)) {
            supply::sweep_memory(&self.job.run.id());
        }
        match next {
            Next::Accept(result) => {
                let asked = result.reason.starts_with(ASKED_TO_STOP);
                if asked && !self.stopping && !self.stopped {
                    self.record
                        .warn("a rank was told to stop, not by this launch; by whom is not known");
                }
                if result.status == Status::Completed {
                    supply::sweep_copies(&self.job.config.staging, &self.job.run.id());
                    // Its ranks did so, unless they were killed between the two.
                    self.job.slots().clear();
                    self.clear_nodes();
                }
            }
            Next::Conclude(..) => {
                self.job.slots().clear_empty();
                self.record.quote_launcher();
                self.record.say_first_end();
            }
            Next::Restart(reason) => {
                self.record.quote_launcher();
                self.record.say_first_end();
                self.record.say_why_again(reason);
            }
        }
    }

    fn concluded(&mut self, result: &RunResult) -> Result<(), LaunchError> {
        self.record.end(result)
    }
}

impl Supervisor<'_> {
    /// One attempt, from start to the last of its processes.
    fn one_attempt(&mut self) -> Result<Tried, LaunchError> {
        let log = self.record.launcher_log();
        let mut plan = self.job.plan(self.record.attempt, self.record.origin);
        if self.restarting {
            // As many ranks as the run should have by now (`kintsugi scale`).
            plan.ranks = match self.job.run.target_ranks(self.first_attempt) {
                Ok(target) => target.unwrap_or(plan.ranks),
                Err(error) => {
                    let reason = format!("how many ranks the run is to have is not known: {error}");
                    return Ok(Tried::Not(Status::JobLost, reason));
                }
            };
            self.scaling.apply(self.nodes.as_mut(), &self.job.run);
            plan.ranks = self.scaling.take_ranks().unwrap_or(plan.ranks);
        }
        plan.say_ranks();
        if !self.restarting && plan.placement.is_some() {
            plan.rank_command.push("--measure-network".into());
        }
        self.record.spreading.attempt_begins();
        if let Some(nodes) = &mut self.nodes {
            match nodes.place(plan.ranks, &plan.job, &plan.folders) {
                Ok(placement) => plan.placement = Some(placement),
                Err(few) => {
                    self.tell_losses();
                    return Ok(Tried::Not(Status::JobLost, few));
                }
            }
            self.tell_losses();
            self.scaling.placed(self.nodes.as_mut(), &mut self.record, plan.ranks);
        }
        self.stopped |= self.stops.look();
        if self.stopped {
            let reason = "asked to stop before the ranks were started".to_owned();
            return Ok(Tried::Not(Status::Interrupted, reason));
        }
        self.restarting = true;
        self.mending = None;
        self.name_strangers();
        let mut attempt = Attempt::start(&plan, &self.job.program, self.job.run.path(), &log)?;
        let recorded = self.lock.record_mpirun(attempt.pid()).map_err(LaunchError::from);
        let ending = recorded.and_then(|()| self.watch(&mut attempt));
        if !matches!(ending, Ok(Ending::Exited(_))) {
            self.record.note_first_end();
        }
        let killed = ending.as_ref().ok().and_then(Ending::killed_for);
        let told = killed.map(|why| self.job.run.say_why_killed(self.record.attempt, why));
        // mpirun ends ranks in order: where none is left, nothing is waited for.
        let is_deserted = matches!(ending, Ok(Ending::Deserted(_)));
        let hurried = ending.is_err() || told.is_some() || is_deserted;
        let (stops, stopped) = (&mut self.stops, &mut self.stopped);
        attempt.close(&mut || {
            // Heard here, it is heard nowhere else.
            *stopped |= stops.look();
            hurried || *stopped
        })?;
        let ending = self.end_on_nodes(&plan.job, ending?);
        match ending {
            Ending::Exited(_) => self.record.note_first_end(),
            Ending::NodeLost(_) => self.record.forget_first_end(),
            _ => {}
        }
        self.record.follow();
        self.record.hear_ranks();
        spread::end_of_attempt(self.nodes.as_mut(), &mut self.record);
        Ok(Tried::Ended(ending))
    }

    /// Nothing of its attempts outlives this launch: janitors may have been killed with them.
    fn clear_up(&mut self) {
        if let Err(error) = janitor::clear_until(&self.job.run.id(), self.record.attempt) {
            self.record.warn(&format!("something of this run's attempts stays here: {error}"));
        }
    }

    /// The run is complete: no node needs to hold its state any more.
    fn clear_nodes(&mut self) {
        let (stops, Some(nodes)) = (&mut self.stops, &mut self.nodes) else { return };
        let left = nodes.clear_slots(&mut || stops.has_asked());
        if !left.is_empty() {
            let left = left.join(", ");
            self.record.warn(&format!(
                "what the run left in memory on {left} stays there; `kintsugi doctor --clear` on \
                 each clears it"
            ));
        }
    }

    /// The ranks have refused to begin: their run's folder is what it was before.
    fn put_back(&mut self, before: &Before) {
        // mpirun ends the other ranks when the first one leaves, perhaps before they remove theirs.
        self.job.slots().clear_empty();
        if let Err(error) = before.put_back() {
            let run = self.job.run.path().shown();
            self.record.warn(&format!("{run} is not all that it was before this start: {error}"));
        }
    }

    /// What others have put where this run's files would lie is left alone, and named once.
    fn name_strangers(&mut self) {
        if self.strangers {
            return;
        }
        let found = folders::strangers(&self.job.run.id(), self.job.slots().path());
        if let Some(first) = found.first() {
            self.strangers = true;
            self.record.warn(&format!(
                "{} (and {} more like it) belongs to another user of this machine: it is left \
                 alone, and files of this run lie under other names",
                first.shown(),
                found.len() - 1
            ));
        }
    }

    /// Nothing is left on the other nodes; one that is gone may be why mpirun ended.
    fn end_on_nodes(&mut self, job: &str, ending: Ending) -> Ending {
        let Some(nodes) = &mut self.nodes else { return ending };
        nodes.end(job);
        let lost = nodes.lost_in_use().map(|loss| format!("lost node {}: {}", loss.node, loss.why));
        let lost = lost.or(self.mending.take().map(|mending| mending.why));
        self.tell_losses();
        match (ending, lost) {
            (Ending::Exited(how), Some(lost)) => {
                Ending::NodeLost(format!("{lost}; mpirun ended ({how})"))
            }
            (ending, _) => ending,
        }
    }

    /// Nodes that were lost are part of the run's record. Between attempts the log is ours.
    fn tell_losses(&mut self) {
        let mut losses = self.nodes.as_mut().map(ClusterNodes::take_losses).unwrap_or_default();
        let survived = std::mem::take(&mut self.left_out);
        // A run that is over has had its last word; they were shown when they happened.
        if self.job.run.result().is_none() {
            losses.extend(survived);
        }
        for loss in losses {
            self.record.record(Kind::Warning { message: loss.left_out() });
        }
    }

    /// The time without the supervisor's own pauses.
    fn now(&mut self) -> Instant {
        self.awake.look(Instant::now())
    }

    /// Until mpirun ends, hangs, or somebody asks for the end.
    fn watch(&mut self, attempt: &mut Attempt) -> Result<Ending, LaunchError> {
        let begun = self.now();
        let mut sign_of_life = begun;
        let mut lock_checked = Instant::now();
        let mut result_seen: Option<Instant> = None;
        let mut start = Start::at(begun);
        let mut deserted = Deserted::at(begun);
        loop {
            let now = self.now();
            if self.record.follow() {
                sign_of_life = now;
            }
            if let Some(how) = attempt.poll()? {
                return Ok(Ending::Exited(how));
            }
            if self.stops.look() {
                return self.stop(attempt, begun);
            }
            if let Some(why) = self.lost_node(now) {
                return Ok(Ending::NodeLost(why));
            }
            if let Some(why) = start.fails(&mut self.record, now) {
                return Ok(Ending::Unstarted(why));
            }
            self.scaling.look(self.nodes.as_mut(), &mut self.record);
            if !self.scaling.is_under_way() {
                self.spread.look(self.nodes.as_ref(), &mut self.record);
            }
            let job = self.job.name(self.record.attempt);
            if let Some(first) = deserted.look(&mut self.record, &job, now) {
                return Ok(Ending::Deserted(first));
            }
            if let Some(why) = self.record.history.starves() {
                return Ok(Ending::Starved(why));
            }
            let silence = now.duration_since(sign_of_life);
            let awaited = self.record.history.awaited();
            if let Some(why) = verdict::hung(&self.job.config, awaited, silence) {
                return Ok(Ending::Hung(why));
            }
            if lock_checked.elapsed() >= LOCK_POLL {
                self.lock.check()?;
                lock_checked = Instant::now();
                self.record.hear_ranks();
                if self.record.commits_in_memory() {
                    sign_of_life = now;
                }
                if result_seen.is_none() && self.job.run.result().is_some() {
                    result_seen = Some(now);
                }
            }
            if result_seen.is_some_and(|seen| now.duration_since(seen) > AFTER_RESULT_MAX) {
                return Ok(Ending::Exited("it went on after the result was written".into()));
            }
            std::thread::sleep(POLL);
        }
    }

    /// A node without which the attempt cannot go on: any, but for the runtime that survives it.
    /// That one has half of `recovery.time_limit` to prove it by further steps.
    fn lost_node(&mut self, now: Instant) -> Option<String> {
        let nodes = self.nodes.as_mut()?;
        nodes.recall();
        let step = self.record.step();
        let Some(loss) = nodes.lost_in_use() else {
            // The first further step may have been on its way when the node died.
            self.mending.take_if(|mending| step > mending.step + 1);
            let Mending { since, why, .. } = self.mending.as_ref()?;
            let late = now.duration_since(*since) > self.job.config.recovery.time_limit.0 / 2;
            return late.then(|| format!("{why}; no step was committed since"));
        };
        let why = format!("lost node {}: {}", loss.node, loss.why);
        // A world that has not begun has no state in memory, and no launcher survives that.
        if self.job.runtime.is_none() || !self.record.history.committing() {
            return Some(why);
        }
        for loss in nodes.leave_out() {
            self.record.warn(&loss.left_out());
            self.left_out.push(loss);
        }
        self.scaling.show_nodes(self.nodes.as_mut(), &self.record, None);
        self.mending = Some(Mending { since: now, step, why });
        None
    }

    /// Whether nothing is lost with the attempt: it has committed nothing, and what those before it
    /// have is on disk.
    fn has_all_saved(&self) -> bool {
        !self.record.history.committing()
            && attempts::newest_step(self).is_some_and(|step| self.record.has_saved(step))
    }

    /// Asks the ranks for a checkpoint and their end, and waits for them; a second signal hurries.
    /// A start that hangs is waited for no longer than one that nobody asks to stop.
    fn stop(&mut self, attempt: &mut Attempt, begun: Instant) -> Result<Ending, LaunchError> {
        self.stopping = true;
        if self.stops.orphaned() {
            self.record.warn("the job's script has ended: so does this launch");
        }
        self.record.warn(match self.has_all_saved() {
            true => "stopping: this start has committed no step yet (once more to stop at once)",
            false => "stopping: the ranks write a checkpoint (once more to stop at once)",
        });
        let job = self.job.name(self.record.attempt);
        if let (Some(_), None) = (&self.nodes, &self.job.runtime) {
            attempt.signal(Signal::User1);
        }
        let asked_at = self.now();
        let mut asked = None;
        while attempt.poll()?.is_none() {
            let now = self.now();
            let starts = matches!(self.record.history.awaited(), Awaited::FirstStep);
            let late = now.duration_since(begun) > self.job.config.recovery.start_limit.0;
            let waited = now.duration_since(asked_at);
            if waited > self.job.config.recovery.time_limit.0 || (starts && late) {
                break;
            }
            if waited > NOTHING_TO_SAVE_MAX && self.has_all_saved() {
                return Ok(Ending::Forestalled);
            }
            // Again for ranks that could not hear it yet.
            if asked.is_none_or(|at: Instant| at.elapsed() >= ASK_EVERY) {
                match (&self.nodes, &self.job.runtime) {
                    (None, _) => janitor::ask_to_stop(&job),
                    // prterun of the newer runtime was seen not to hand the signal on.
                    (Some(nodes), Some(_)) => nodes.stop(&job),
                    (Some(_), None) => {}
                }
                asked = Some(Instant::now());
            }
            if self.stops.look() {
                break;
            }
            self.record.follow();
            std::thread::sleep(POLL);
        }
        Ok(Ending::Stopped)
    }
}
