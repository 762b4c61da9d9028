//! Launch's side: starts an agent on every node but its own, hears whether they live, and gives
//! them orders. A connection that closes is a node that died, at once; silence is one after
//! `recovery.node_timeout`.

use std::collections::BTreeSet;
use std::io;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use kintsugi_ffi::os;

use super::connections::{self, Loss, Node, Presence, Shared};
use super::message::{self, Order, Report};
use super::placement::Standing;
use crate::config::Shown;
use crate::launch::ending::quote;

/// How long agents may take to report after srun was started.
pub const ARRIVAL_MAX: Duration = Duration::from_secs(20);
/// How long nodes may take to make or clear folders and to end processes (a janitor is waited for
/// for 10 s, and who does its work then kills for 5 s).
const ANSWER_MAX: Duration = Duration::from_secs(18);
/// How long agents may take to end in order.
const LEAVE_MAX: Duration = Duration::from_secs(5);
/// The last lines of srun's that tell why it ended: the cause, and what became of the task.
const WORDS_OF_SRUN: usize = 2;
/// How often a wait looks again.
const POLL: Duration = Duration::from_millis(20);

/// What agents are started with.
#[derive(Debug, Clone)]
pub struct Muster {
    /// The nodes to have agents, as SLURM calls them.
    pub nodes: Vec<String>,
    /// This program.
    pub program: PathBuf,
    /// This machine, as the nodes know it.
    pub host: String,
    /// The run directory's short name.
    pub run: String,
    /// Where slots lie on every node.
    pub resident_dir: PathBuf,
    /// `RUN/logs`.
    pub logs: PathBuf,
    /// Silence after which a node counts as dead.
    pub timeout: Duration,
}

/// The agents of a launch.
#[derive(Debug)]
pub struct Fleet {
    muster: Muster,
    shared: Arc<Shared>,
    port: u16,
    steps: Vec<(String, Child)>,
    looked: Instant,
}

impl Fleet {
    /// Starts the agents; [`Fleet::await_all`] waits for them.
    ///
    /// # Errors
    /// No port, no thread, no srun.
    pub fn start(muster: Muster) -> io::Result<Self> {
        let mut fleet = Self::listen(muster)?;
        for name in fleet.muster.nodes.clone() {
            fleet.start_agent(&name)?;
        }
        Ok(fleet)
    }

    /// Without any agents yet.
    pub(super) fn listen(muster: Muster) -> io::Result<Self> {
        let listener = TcpListener::bind(("0.0.0.0", 0))?;
        let port = listener.local_addr()?.port();
        let beats = UdpSocket::bind(("0.0.0.0", 0))?;
        beats.set_read_timeout(Some(message::beat_every(muster.timeout)))?;
        let shared = Arc::new(Shared::new(&muster.nodes, muster.timeout, beats)?);
        connections::start(&shared, listener)?;
        let looked = Instant::now();
        Ok(Self { muster, shared, port, steps: Vec::new(), looked })
    }

    /// Where agents find it: the ports of connections and of beats, and the word to say.
    pub(super) fn address(&self) -> io::Result<(u16, u16, String)> {
        let beats = self.shared.beats.local_addr()?.port();
        Ok((self.port, beats, self.shared.key.clone()))
    }

    fn log_of(&self, name: &str) -> PathBuf {
        self.muster.logs.join(format!("agent-{name}.log"))
    }

    /// One step per node: SLURM ends a step that has lost a node.
    fn start_agent(&mut self, name: &str) -> io::Result<()> {
        let (port, beats, key) = self.address()?;
        let path = self.log_of(name);
        let log = std::fs::File::options().create(true).append(true).open(&path)?;
        let mut command = Command::new("srun");
        command
            .args(["--overlap", "--quiet", "--mpi=none", "--nodes=1", "--ntasks=1"])
            .args(["--nodelist", name, "--chdir=/", "--export=ALL"])
            .arg(&self.muster.program)
            .args(["agent", "--launch", &self.muster.host, "--port", &port.to_string()])
            .args(["--beats", &beats.to_string(), "--node", name])
            .args(["--run", &self.muster.run, "--resident-dir"])
            .arg(&self.muster.resident_dir)
            .args(["--timeout", &format!("{}ms", self.muster.timeout.as_millis())])
            .arg("--log")
            .arg(&path)
            .env(message::KEY_VARIABLE, key);
        for name in super::srun::SRUN_UNSET {
            command.env_remove(name);
        }
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        // Of its own session, and not ended with launch: the agents clear up when launch is gone.
        os::detach(&mut command);
        let step = command.spawn()?;
        self.steps.push((name.to_owned(), step));
        Ok(())
    }

    /// Until every agent has reported or is given up, or `stop` says so.
    pub fn await_all(&mut self, stop: &mut dyn FnMut() -> bool) {
        let end = Instant::now() + ARRIVAL_MAX;
        loop {
            self.look();
            let steps = &mut self.steps;
            let expected = |node: &Node| {
                let expected = matches!(node.state, Presence::Expected { .. });
                expected && end_of(steps, &node.name).is_none()
            };
            if !self.shared.lock().iter().any(expected) || Instant::now() >= end || stop() {
                return;
            }
            std::thread::sleep(POLL);
        }
    }

    /// Judges silence. To be called often; a pause of launch itself is nobody's silence.
    pub fn look(&mut self) {
        let paused = self.looked.elapsed() > self.shared.timeout / 2;
        self.looked = Instant::now();
        let (mut silent, mut ended) = (Vec::new(), Vec::new());
        for node in self.shared.lock().iter_mut() {
            if paused {
                node.heard = Instant::now();
            }
            match node.state {
                Presence::Living if node.heard.elapsed() > self.shared.timeout => {
                    let seconds = node.heard.elapsed().as_secs_f64();
                    let why = format!("nothing was heard of it for {seconds:.1} s");
                    silent.push((node.name.clone(), why));
                }
                Presence::Expected { since, before } => {
                    // Of one that was lost already nobody waits for a word.
                    let how = end_of(&mut self.steps, &node.name).filter(|_| !before);
                    if how.is_none() && since.elapsed() <= ARRIVAL_MAX {
                        continue;
                    }
                    if before {
                        // It was lost already, and nobody counts on it.
                        node.state = Presence::Lost { at: Instant::now() };
                        continue;
                    }
                    let seconds = ARRIVAL_MAX.as_secs();
                    let why = format!("its agent did not report within {seconds} s");
                    match how {
                        Some(how) => ended.push((node.name.clone(), how)),
                        None => silent.push((node.name.clone(), why)),
                    }
                }
                _ => {}
            }
        }
        for (name, how) in ended {
            let log = self.log_of(&name);
            let mut words = quote::of_log(&log);
            let words = words.split_off(words.len().saturating_sub(WORDS_OF_SRUN)).join("; ");
            let why = format!("srun ended before its agent reported ({how}: {words})");
            silent.push((name, format!("{why}; see {}", log.shown())));
        }
        for (name, why) in silent {
            self.shared.lose(&name, None, &why);
        }
    }

    /// What was lost since the last call.
    pub fn losses(&self) -> Vec<Loss> {
        let mut losses = self.shared.losses.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *losses)
    }

    /// Every node, for placement; `used`: those of the last attempt.
    pub fn standings(&self, used: &[String]) -> Vec<Standing> {
        let standing = |node: &Node| Standing {
            name: node.name.clone(),
            lives: node.state == Presence::Living,
            newest: node.newest,
            used: used.contains(&node.name),
        };
        self.shared.lock().iter().map(standing).collect()
    }

    /// Gives the order to those of `nodes` that live and waits for their answers; who gives none,
    /// or a bad one, is lost.
    pub fn order(&mut self, nodes: &[String], order: &Order) {
        let mut asked = Vec::new();
        for node in self.shared.lock().iter_mut() {
            if node.state == Presence::Living && nodes.contains(&node.name) {
                node.answer = None;
                asked.extend(node.link.as_ref().map(|link| Arc::clone(&link.stream)));
            }
        }
        for stream in asked {
            // Whoever does not get it does not answer.
            let _ = message::send(&stream, order);
        }
        let end = Instant::now() + ANSWER_MAX;
        loop {
            self.look();
            let waiting = |node: &&mut Node| {
                node.state == Presence::Living
                    && nodes.contains(&node.name)
                    && node.answer.is_none()
            };
            let mut all = self.shared.lock();
            let late: Vec<String> =
                all.iter_mut().filter(waiting).map(|node| node.name.clone()).collect();
            if late.is_empty() {
                break;
            }
            if Instant::now() >= end {
                drop(all);
                let why = format!("it did not answer within {} s", ANSWER_MAX.as_secs());
                late.iter().for_each(|name| self.shared.lose(name, None, &why));
                break;
            }
            let waited = self.shared.changed.wait_timeout(all, POLL);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
        }
        self.take_answers(nodes);
    }

    /// Gives an order that has no answer.
    pub fn tell(&self, nodes: &[String], order: &Order) {
        for node in self.shared.lock().iter().filter(|node| nodes.contains(&node.name)) {
            if let Some(link) = &node.link {
                // Whoever does not get it is lost, which shows elsewhere.
                let _ = message::send(&link.stream, order);
            }
        }
    }

    fn take_answers(&mut self, nodes: &[String]) {
        let mut failed = Vec::new();
        for node in self.shared.lock().iter_mut().filter(|node| nodes.contains(&node.name)) {
            let error = match node.answer.take() {
                Some(Report::Ended { error, newest }) => {
                    node.newest = newest.and_then(message::from_words);
                    error
                }
                Some(Report::Done { error }) => error,
                _ => None,
            };
            failed.extend(error.map(|error| (node.name.clone(), error)));
        }
        for (name, why) in failed {
            self.shared.lose(&name, None, &why);
        }
    }

    /// Asks nodes that were lost whether they are back, once they have cooled down. They are used
    /// when they have answered.
    pub fn recall(&mut self) {
        let cooled = |node: &Node| match node.state {
            Presence::Lost { at } => {
                node.record.cool_down().is_some_and(|wait| at.elapsed() > wait)
            }
            _ => false,
        };
        let mut names = Vec::new();
        for node in self.shared.lock().iter_mut().filter(|node| cooled(node)) {
            node.state = Presence::Expected { since: Instant::now(), before: true };
            node.record.asked();
            names.push(node.name.clone());
        }
        self.start_again(&names);
    }

    /// Asks those of these nodes that are lost at once, and waits for them until `stop` says so.
    pub fn recall_now(&mut self, names: &BTreeSet<String>, stop: &mut dyn FnMut() -> bool) {
        let mut lost = Vec::new();
        for node in self.shared.lock().iter_mut().filter(|node| names.contains(&node.name)) {
            if matches!(node.state, Presence::Lost { .. }) {
                node.state = Presence::Expected { since: Instant::now(), before: true };
                lost.push(node.name.clone());
            }
        }
        if !lost.is_empty() {
            self.start_again(&lost);
            self.await_all(stop);
        }
    }

    fn start_again(&mut self, names: &[String]) {
        for name in names {
            self.end_step(name);
            if let Err(error) = self.start_agent(name) {
                tracing::warn!("node {name}: srun: {error}");
            }
        }
    }

    /// The srun of an agent that is gone.
    fn end_step(&mut self, name: &str) {
        for (_, step) in self.steps.iter_mut().filter(|(node, _)| node == name) {
            let _ = step.kill();
            let _ = step.wait();
        }
        self.steps.retain(|(node, _)| node != name);
    }

    /// Ends the agents of these nodes: nothing of ours is left there. What they hold is cleared.
    pub fn release(&mut self, names: &[String]) {
        self.order(names, &Order::ClearSlots);
        for node in self.shared.lock().iter_mut().filter(|node| names.contains(&node.name)) {
            if let (Presence::Living, Some(link)) = (node.state, node.link.take()) {
                let _ = message::send(&link.stream, &Order::Leave);
                (node.state, node.newest) = (Presence::Away, None);
            }
        }
        self.await_steps(names);
        names.iter().for_each(|name| self.end_step(name));
    }

    /// Nodes that were given back are wanted again.
    pub fn call_back(&mut self, names: &[String]) {
        let mut called = Vec::new();
        for node in self.shared.lock().iter_mut().filter(|node| names.contains(&node.name)) {
            if node.state == Presence::Away {
                node.state = Presence::Expected { since: Instant::now(), before: false };
                called.push(node.name.clone());
            }
        }
        for name in called {
            if let Err(error) = self.start_agent(&name) {
                self.shared.lose(&name, None, &format!("srun: {error}"));
            }
        }
    }

    /// Those that were given back.
    pub fn away(&self) -> Vec<String> {
        let all = self.shared.lock();
        let away = all.iter().filter(|node| node.state == Presence::Away);
        away.map(|node| node.name.clone()).collect()
    }

    /// For a bounded time, until the agents of these nodes have ended.
    fn await_steps(&mut self, names: &[String]) {
        let end = Instant::now() + LEAVE_MAX;
        let running = |steps: &mut Vec<(String, Child)>| {
            let ended = |child: &mut Child| !matches!(child.try_wait(), Ok(None));
            steps.iter_mut().any(|(name, child)| names.contains(name) && !ended(child))
        };
        while running(&mut self.steps) && Instant::now() < end {
            std::thread::sleep(POLL);
        }
    }

    /// As a broken cable would.
    #[cfg(test)]
    pub(super) fn cut(&self, name: &str) {
        self.shared.lose(name, None, "cut");
    }

    /// As if srun had been started so.
    #[cfg(test)]
    pub(super) fn started(&mut self, name: &str, srun: &mut Command) {
        let log = std::fs::File::create(self.log_of(name)).expect("a log");
        let step = srun.stderr(log).spawn().expect("a program");
        self.steps.push((name.to_owned(), step));
    }

    /// As if it had happened so much earlier.
    #[cfg(test)]
    pub(super) fn backdate(&self, name: &str, by: Duration) {
        for node in self.shared.lock().iter_mut().filter(|node| node.name == name) {
            node.admitted -= by;
            if let Presence::Lost { at } = &mut node.state {
                *at -= by;
            }
        }
    }

    /// Ends the agents in order, and those that do not end.
    pub fn dismiss(&mut self) {
        let mut living = Vec::new();
        for node in self.shared.lock().iter().filter(|node| node.state == Presence::Living) {
            living.push(node.name.clone());
            if let Some(link) = &node.link {
                let _ = message::send(&link.stream, &Order::Leave);
            }
        }
        self.shared.close();
        self.await_steps(&living);
        let names: Vec<String> = self.steps.iter().map(|(name, _)| name.clone()).collect();
        names.iter().for_each(|name| self.end_step(name));
        // Wakes the thread that accepts.
        drop(TcpStream::connect(("127.0.0.1", self.port)));
    }
}

/// How the srun of a node's agent has ended, if it has.
fn end_of(steps: &mut [(String, Child)], name: &str) -> Option<os::Ended> {
    let (_, step) = steps.iter_mut().find(|(node, _)| node == name)?;
    step.try_wait().ok().flatten().map(os::ended)
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if !self.shared.is_over() {
            self.dismiss();
        }
    }
}
