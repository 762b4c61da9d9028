//! A node's side (`kintsugi agent`): says that the node lives and what state its memory holds,
//! makes room for an attempt and clears up after it. When launch is gone, or has been silent for as
//! long as makes a node dead, nobody waits for this node's ranks any more: it ends them and itself.

use std::collections::BTreeMap;
use std::io::{self, BufReader};
use std::net::{TcpStream, ToSocketAddrs, UdpSocket};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::cluster::resident::{Folder, Key};
use crate::config::Shown;
use crate::launch::traces::folders::{self, Folders};
use crate::launch::traces::janitor::{self, Janitor};
use crate::launch::traces::job_name::{attempt_of, is_job_of};
use crate::observe::panics::vital;

use super::message::{self, Beat, Order, Report};

/// How long launch is tried to be reached.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// One try, and the pause after it.
const CONNECT_TRY: Duration = Duration::from_secs(2);
const CONNECT_PAUSE: Duration = Duration::from_millis(100);
/// Orders and beats that may wait.
const QUEUE: usize = 64;
/// A datagram's buffer; longer ones are none of ours.
const DATAGRAM_BYTES: usize = 512;

/// What an agent is told.
#[derive(Debug, Clone)]
pub struct Duties {
    /// Where launch is: names and addresses, tried in turn.
    pub hosts: Vec<String>,
    /// Its port for connections.
    pub port: u16,
    /// Its port for beats.
    pub beats: u16,
    /// By which launch knows its agents.
    pub key: String,
    /// This node, as SLURM calls it.
    pub node: String,
    /// The run directory's short name.
    pub run: String,
    /// Where the run keeps its slots.
    pub resident_dir: PathBuf,
    /// Silence after which launch counts as dead.
    pub timeout: Duration,
}

/// Why an agent ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parting {
    /// It was told to.
    Dismissed,
    /// Launch is gone.
    Orphaned(String),
}

enum Heard {
    Order(Order),
    Beat,
    Closed(String),
}

/// Serves until launch ends; leaves nothing of the run's attempts on this node.
///
/// # Errors
/// Launch was never reached, or something would not end.
pub fn serve(duties: &Duties, program: PathBuf) -> io::Result<Parting> {
    janitor::clear_stale(&duties.run)?;
    let stream = connect(duties)?;
    let beats = UdpSocket::bind(("0.0.0.0", 0))?;
    beats.connect((stream.peer_addr()?.ip(), duties.beats))?;
    let (sender, heard) = mpsc::sync_channel(QUEUE);
    let reader = BufReader::new(stream.try_clone()?);
    let link = Arc::new(Mutex::new(stream));
    let mut agent =
        Agent { duties, program, link: Arc::clone(&link), janitors: BTreeMap::new(), begun: None };
    let hello = Report::Hello {
        key: duties.key.clone(),
        node: duties.node.clone(),
        newest: agent.newest(),
    };
    agent.report(&hello);
    let orders = sender.clone();
    spawn("orders", move || read_orders(reader, &orders))?;
    let (hearing, key) = (beats.try_clone()?, duties.key.clone());
    spawn("beats", move || hear_beats(&hearing, &key, &sender))?;
    let beat = Beat { key: duties.key.clone(), node: duties.node.clone() };
    let every = message::beat_every(duties.timeout);
    spawn("heart", move || beat_for_ever(&link, &beats, &beat, every))?;
    let parting = agent.follow(&heard);
    agent.clear_up().map(|()| parting)
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.into()).spawn(move || vital(work)).map(drop)
}

fn connect(duties: &Duties) -> io::Result<TcpStream> {
    let end = Instant::now() + CONNECT_MAX;
    loop {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "launch's host has no address");
        for host in &duties.hosts {
            let found = (host.as_str(), duties.port).to_socket_addrs();
            for address in found.into_iter().flatten() {
                match TcpStream::connect_timeout(&address, CONNECT_TRY) {
                    Ok(stream) => {
                        stream.set_nodelay(true)?;
                        return Ok(stream);
                    }
                    Err(error) => last = error,
                }
            }
        }
        if Instant::now() >= end {
            let (hosts, port) = (duties.hosts.join(", "), duties.port);
            return Err(io::Error::new(last.kind(), format!("launch at {hosts}:{port}: {last}")));
        }
        std::thread::sleep(CONNECT_PAUSE);
    }
}

fn read_orders(mut reader: BufReader<TcpStream>, sender: &SyncSender<Heard>) {
    loop {
        match message::receive(&mut reader) {
            Ok(order) => {
                if sender.send(Heard::Order(order)).is_err() {
                    return;
                }
            }
            Err(error) => {
                let _ = sender.send(Heard::Closed(error.to_string()));
                return;
            }
        }
    }
}

fn hear_beats(socket: &UdpSocket, key: &str, sender: &SyncSender<Heard>) {
    let mut buffer = [0; DATAGRAM_BYTES];
    loop {
        // An error is an answer of the other side's kernel; silence is judged elsewhere.
        let Ok(count) = socket.recv(&mut buffer) else {
            std::thread::sleep(CONNECT_PAUSE);
            continue;
        };
        let beat = serde_json::from_slice::<Beat>(&buffer[..count]);
        if beat.is_ok_and(|beat| beat.key == key) && sender.send(Heard::Beat).is_err() {
            return;
        }
    }
}

/// Beside whatever the agent does: its work may take seconds.
fn beat_for_ever(link: &Mutex<TcpStream>, beats: &UdpSocket, beat: &Beat, every: Duration) {
    let datagram = serde_json::to_vec(beat).unwrap_or_default();
    loop {
        // Whoever cannot be reached is noticed by his silence.
        let _ = beats.send(&datagram);
        let stream = link.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = message::send(&stream, &Report::Beat);
        drop(stream);
        std::thread::sleep(every);
    }
}

struct Agent<'a> {
    duties: &'a Duties,
    program: PathBuf,
    link: Arc<Mutex<TcpStream>>,
    /// Of the attempts that run here, by job.
    janitors: BTreeMap<String, Janitor>,
    /// The last of them.
    begun: Option<u32>,
}

/// The newest state that a node's memory holds. A node of which that cannot be told now comes
/// behind those that hold some.
pub(super) fn newest_of(slots: &Folder) -> Option<Key> {
    slots.newest().unwrap_or_else(|error| {
        tracing::warn!("resident state cannot be read now: {error}");
        None
    })
}

impl Agent<'_> {
    fn slots(&self) -> Folder {
        Folder::new(&self.duties.resident_dir, &self.duties.run)
    }

    fn newest(&self) -> Option<[u64; 3]> {
        newest_of(&self.slots()).map(message::to_words)
    }

    fn report(&self, report: &Report) {
        let stream = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        // A connection that is gone shows in the reader.
        let _ = message::send(&stream, report);
    }

    /// Until launch says goodbye or is gone.
    fn follow(&mut self, heard: &Receiver<Heard>) -> Parting {
        let (timeout, look) = (self.duties.timeout, message::beat_every(self.duties.timeout));
        let (mut alive, mut looked) = (Instant::now(), Instant::now());
        loop {
            match heard.recv_timeout(look) {
                Ok(Heard::Order(Order::Leave)) => return Parting::Dismissed,
                Ok(Heard::Order(order)) => {
                    self.obey(order);
                    looked = Instant::now();
                    alive = looked;
                }
                Ok(Heard::Beat) => alive = Instant::now(),
                Ok(Heard::Closed(why)) => return Parting::Orphaned(why),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Parting::Orphaned("its threads ended".into());
                }
            }
            if looked.elapsed() > timeout / 2 {
                // This node itself stood still: what launch sent meanwhile is yet to be read.
                alive = Instant::now();
            }
            looked = Instant::now();
            if alive.elapsed() > timeout {
                let seconds = alive.elapsed().as_secs_f64();
                return Parting::Orphaned(format!("nothing was heard of it for {seconds:.1} s"));
            }
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Beat | Order::Leave => {}
            Order::Begin { job, temporary, shared_memory } => {
                let folders = Folders { temporary, shared_memory };
                let error = self.begin(&job, &folders).err().map(|error| error.to_string());
                self.report(&Report::Done { error });
            }
            Order::Stop { job } => janitor::ask_to_stop(&job),
            Order::End { job } => {
                let ended = self.janitors.remove(&job).map_or(Ok(()), Janitor::finish);
                let error = ended.err().map(|error| error.to_string());
                self.report(&Report::Ended { error, newest: self.newest() });
            }
            Order::ClearSlots => {
                self.slots().clear();
                self.report(&Report::Done { error: None });
            }
        }
    }

    /// The folders have the same names on all nodes: mpirun hands its environment on.
    fn begin(&mut self, job: &str, wanted: &Folders) -> io::Result<()> {
        let attempt = attempt_of(job);
        if !(is_job_of(job, &self.duties.run) && wanted.are_of(job)) {
            return Err(io::Error::other(format!("{job} is no attempt of this run")));
        }
        if self.janitors.contains_key(job) {
            // Another node was lost meanwhile, and all are told again.
            return Ok(());
        }
        let root = wanted.temporary.parent().unwrap_or(&wanted.temporary);
        if let Some(name) = folders::shared_by(root) {
            let root = root.shown();
            return Err(io::Error::other(format!(
                "{root} is on a network file system ({name}) here, and not where launch runs: \
                 leave this node out (sbatch --exclude)"
            )));
        }
        self.begun = self.begun.max(attempt);
        let janitor = Janitor::spawn(&self.program, job)?;
        self.janitors.insert(job.to_owned(), janitor);
        wanted.make()
    }

    fn clear_up(&mut self) -> io::Result<()> {
        let mut all = Ok(());
        for janitor in std::mem::take(&mut self.janitors).into_values() {
            all = all.and(janitor.finish());
        }
        // A janitor may have been killed with its attempt.
        match self.begun {
            Some(last) => all.and(janitor::clear_until(&self.duties.run, last)),
            None => all,
        }
    }
}
