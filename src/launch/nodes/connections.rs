//! Who is connected to launch: threads that admit agents, hear them and beat for launch, and the
//! table that they fill.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::message::{self, Beat, Order, Report};
use super::record::Record;
use crate::cluster::resident::Key;
use crate::observe::panics::vital;

/// How long a stranger may take to say who it is, and how many may do so at once.
const HELLO_MAX: Duration = Duration::from_secs(5);
const STRANGERS_MAX: usize = 64;
/// A pause after an error, so that no loop spins.
const PAUSE: Duration = Duration::from_millis(20);
/// A datagram's buffer; longer ones are none of ours.
const DATAGRAM_BYTES: usize = 512;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    /// Its agent was started.
    Expected {
        since: Instant,
        before: bool,
    },
    Living,
    Lost {
        at: Instant,
    },
    /// Given back: nothing of the run is there.
    Away,
}

#[derive(Debug)]
pub(super) struct Link {
    pub(super) stream: Arc<TcpStream>,
    /// Where its beats come from.
    pub(super) beats: Option<SocketAddr>,
    /// Of this connection: the end of an older one says nothing.
    pub(super) number: usize,
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) state: Presence,
    pub(super) link: Option<Link>,
    pub(super) heard: Instant,
    pub(super) answer: Option<Report>,
    pub(super) newest: Option<Key>,
    /// When it began to serve, if it ever did.
    pub(super) admitted: Instant,
    pub(super) record: Record,
}

/// A node that was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    /// Which.
    pub node: String,
    /// How it was noticed.
    pub why: String,
    /// Whether it may live: it was not heard of, but its connection was not closed either.
    pub silent: bool,
}

impl Loss {
    /// What a person is told of a run that goes on without it.
    pub fn left_out(&self) -> String {
        format!("node {} is left out: {}", self.node, self.why)
    }
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) key: String,
    pub(super) timeout: Duration,
    pub(super) nodes: Mutex<Vec<Node>>,
    pub(super) losses: Mutex<Vec<Loss>>,
    pub(super) changed: Condvar,
    pub(super) beats: UdpSocket,
    pub(super) over: AtomicBool,
    pub(super) connections: AtomicUsize,
    pub(super) strangers: AtomicUsize,
}

impl Shared {
    pub(super) fn new(names: &[String], timeout: Duration, beats: UdpSocket) -> io::Result<Self> {
        let now = Instant::now();
        let node = |name: &String| Node {
            name: name.clone(),
            state: Presence::Expected { since: now, before: false },
            link: None,
            heard: now,
            answer: None,
            newest: None,
            admitted: now,
            record: Record::default(),
        };
        Ok(Self {
            key: draw_key()?,
            timeout,
            nodes: Mutex::new(names.iter().map(node).collect()),
            losses: Mutex::default(),
            changed: Condvar::new(),
            beats,
            over: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
            strangers: AtomicUsize::new(0),
        })
    }

    /// Nothing that happens from now on is a loss.
    pub(super) fn close(&self) {
        self.over.store(true, Ordering::Release);
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<Node>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// A node is lost; `number`: the connection that says so.
    pub(super) fn lose(&self, name: &str, number: Option<usize>, why: &str) {
        if self.is_over() {
            return;
        }
        let mut nodes = self.lock();
        let Some(node) = nodes.iter_mut().find(|node| node.name == name) else { return };
        let current = node.link.as_ref().map(|link| link.number);
        if matches!(node.state, Presence::Lost { .. } | Presence::Away)
            || (number.is_some() && number != current)
        {
            return;
        }
        let served = (node.state == Presence::Living).then(|| node.admitted.elapsed());
        node.record.lost(served);
        node.state = Presence::Lost { at: Instant::now() };
        node.newest = None;
        if let Some(link) = node.link.take() {
            let _ = link.stream.shutdown(Shutdown::Both);
        }
        drop(nodes);
        let silent = number.is_none();
        let loss = Loss { node: name.to_owned(), why: why.to_owned(), silent };
        self.losses.lock().unwrap_or_else(PoisonError::into_inner).push(loss);
        self.changed.notify_all();
    }

    /// The first line of a connection; the node it speaks for.
    fn admit(&self, stream: &Arc<TcpStream>, number: usize, hello: Report) -> Option<String> {
        let Report::Hello { key, node, newest } = hello else { return None };
        let mut nodes = self.lock();
        let known = nodes.iter_mut().find(|known| known.name == node)?;
        if key != self.key || !matches!(known.state, Presence::Expected { .. }) {
            return None;
        }
        known.state = Presence::Living;
        (known.admitted, known.heard) = (Instant::now(), Instant::now());
        known.newest = newest.and_then(message::from_words);
        known.link = Some(Link { stream: Arc::clone(stream), beats: None, number });
        Some(node)
    }

    fn on_report(&self, name: &str, number: usize, report: Report) {
        let mut nodes = self.lock();
        let Some(node) = nodes.iter_mut().find(|node| node.name == name) else { return };
        if node.link.as_ref().is_none_or(|link| link.number != number) {
            return;
        }
        node.heard = Instant::now();
        if !matches!(report, Report::Beat) {
            node.answer = Some(report);
            drop(nodes);
            self.changed.notify_all();
        }
    }
}

fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    for stream in listener.incoming() {
        if shared.is_over() {
            return;
        }
        let Ok(stream) = stream else {
            std::thread::sleep(PAUSE);
            continue;
        };
        if shared.strangers.fetch_add(1, Ordering::AcqRel) >= STRANGERS_MAX {
            shared.strangers.fetch_sub(1, Ordering::AcqRel);
            continue;
        }
        let shared = Arc::clone(shared);
        let serve = move || follow(&shared, stream);
        if let Err(error) = std::thread::Builder::new().name("agent".into()).spawn(serve) {
            tracing::warn!("an agent was not heard: {error}");
        }
    }
}

/// One connection, from its first line to its end.
fn follow(shared: &Shared, stream: TcpStream) {
    let number = shared.connections.fetch_add(1, Ordering::AcqRel);
    let stream = Arc::new(stream);
    let opened = || -> io::Result<(BufReader<TcpStream>, Report)> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(HELLO_MAX))?;
        let mut reader = BufReader::new(stream.try_clone()?);
        let hello = message::receive(&mut reader)?;
        stream.set_read_timeout(None)?;
        Ok((reader, hello))
    };
    let opened = opened().ok();
    let admitted =
        opened.and_then(|(reader, hello)| Some((reader, shared.admit(&stream, number, hello)?)));
    shared.strangers.fetch_sub(1, Ordering::AcqRel);
    let Some((mut reader, name)) = admitted else { return };
    shared.changed.notify_all();
    loop {
        match message::receive(&mut reader) {
            Ok(report) => shared.on_report(&name, number, report),
            Err(error) => return shared.lose(&name, Some(number), &error.to_string()),
        }
    }
}

/// Datagrams of the agents.
fn hear(shared: &Shared) {
    let mut buffer = [0; DATAGRAM_BYTES];
    while !shared.is_over() {
        let Ok((count, from)) = shared.beats.recv_from(&mut buffer) else { continue };
        let Ok(beat) = serde_json::from_slice::<Beat>(&buffer[..count]) else { continue };
        if beat.key != shared.key {
            continue;
        }
        let mut nodes = shared.lock();
        let living = |node: &&mut Node| node.name == beat.node && node.state == Presence::Living;
        if let Some(node) = nodes.iter_mut().find(living) {
            node.heard = Instant::now();
            if let Some(link) = &mut node.link {
                link.beats = Some(from);
            }
        }
    }
}

/// Launch's own beats.
fn beat(shared: &Shared) {
    let every = message::beat_every(shared.timeout);
    while !shared.is_over() {
        let mut links = Vec::new();
        for node in shared.lock().iter().filter(|node| node.state == Presence::Living) {
            let link = node.link.as_ref();
            links.extend(link.map(|l| (node.name.clone(), Arc::clone(&l.stream), l.beats)));
        }
        for (node, stream, beats) in links {
            let beat = Beat { key: shared.key.clone(), node };
            if let (Some(to), Ok(datagram)) = (beats, serde_json::to_vec(&beat)) {
                let _ = shared.beats.send_to(&datagram, to);
            }
            let _ = message::send(&stream, &Order::Beat);
        }
        std::thread::sleep(every);
    }
}

/// Starts the threads; they end after `close`.
pub(super) fn start(shared: &Arc<Shared>, listener: TcpListener) -> io::Result<()> {
    for (name, work) in [("agents-beats", hear as fn(&Shared)), ("agents-heart", beat)] {
        let shared = Arc::clone(shared);
        std::thread::Builder::new().name(name.into()).spawn(move || vital(|| work(&shared)))?;
    }
    let shared = Arc::clone(shared);
    let work = move || vital(|| accept(&shared, &listener));
    std::thread::Builder::new().name("agents".into()).spawn(work).map(drop)
}

/// A word that nobody else knows.
fn draw_key() -> io::Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}
