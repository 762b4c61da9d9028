//! What the board knows: processes, communicators, the calls in which processes are parked, and
//! whose turn it is. `settle` decides, `board` lends it to the threads.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar};

use crate::config::seed::{Stream, purpose};

use super::super::Call as Called;
use super::super::{Agreement, CommError, SpawnError, SpawnRequest};
use super::options::{SimOptions, Trace};

/// What travels in a collective.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Payload {
    Empty,
    F32(Vec<f32>),
    U64(Vec<u64>),
    I32(Vec<i32>),
    I64(Vec<i64>),
    Bytes(Vec<u8>),
}

impl Payload {
    /// Element type and number, which all ranks of a collective must share.
    pub(super) fn shape(&self) -> (&'static str, usize) {
        match self {
            Self::Empty => ("nothing", 0),
            Self::F32(v) => ("f32", v.len()),
            Self::U64(v) => ("u64", v.len()),
            Self::I32(v) => ("i32", v.len()),
            Self::I64(v) => ("i64", v.len()),
            Self::Bytes(v) => ("bytes", v.len()),
        }
    }
}

/// Which collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Sums.
    Reduce,
    /// The largest word.
    Meet,
    Gather,
    Broadcast {
        root: usize,
    },
    Warm,
}

/// What a process is parked in.
#[derive(Debug, Clone)]
pub(super) enum Call {
    Collective(Kind, Payload),
    Send {
        to: usize,
        tag: u32,
        data: Vec<u8>,
    },
    Recv {
        from: usize,
        tag: u32,
        bytes: usize,
    },
    Agree(u32),
    Shrink,
    Revoke,
    Spawn(SpawnRequest),
    Merge(usize),
    /// What each process of a gathering becomes.
    Seat(Vec<Option<usize>>),
    /// A spare waits.
    Await,
    Finalize,
}

impl Call {
    /// Calls are matched across ranks by their ordinal within a lane, as in MPI.
    pub(super) fn lane(&self) -> Option<Lane> {
        match self {
            Self::Collective(..) | Self::Spawn(_) | Self::Seat(_) => Some(Lane::Data),
            Self::Agree(_) => Some(Lane::Agree),
            Self::Shrink => Some(Lane::Shrink),
            _ => None,
        }
    }

    /// Its name in traces and messages.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Collective(Kind::Reduce, _) => "all_reduce",
            Self::Collective(Kind::Meet, _) => "meet",
            Self::Collective(Kind::Gather, _) => "all_gather",
            Self::Collective(Kind::Broadcast { .. }, _) => "broadcast",
            Self::Collective(Kind::Warm, _) => "warm",
            Self::Send { .. } => "send",
            Self::Recv { .. } => "recv",
            Self::Agree(_) => "agree",
            Self::Shrink => "shrink",
            Self::Revoke => "revoke",
            Self::Spawn(_) => "spawn",
            Self::Merge(_) => "merge",
            Self::Seat(_) => "seat",
            Self::Await => "wait",
            Self::Finalize => "finalize",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lane {
    Data,
    Agree,
    Shrink,
}

/// What a parked process is told.
#[derive(Debug, Clone)]
pub(super) enum Reply {
    Done,
    Data(Arc<Payload>),
    Agreed(Agreement),
    Moved(CommRank),
    /// The world, and the pool around it; of a spare the pool alone.
    Seated(CommRank, Option<usize>),
    Called(Called),
    Joining(usize),
    Error(CommError),
    NoSpawn(SpawnError),
    /// The program broke a rule of MPI; the text says which.
    Misuse(String),
    Die,
}

/// Where a process is: a communicator and its rank there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CommRank {
    pub comm: usize,
    pub rank: usize,
    pub size: usize,
}

/// One communicator.
#[derive(Debug, Default)]
pub(super) struct Group {
    /// Processes in rank order.
    pub processes: Vec<usize>,
    /// Of a pool: the processes that are ranks; the others wait.
    pub ranks: Vec<usize>,
    pub revoked: bool,
    /// Processes that were told of a failure here; ULFM owes the news to one of them only.
    pub informed: BTreeSet<usize>,
    /// Processes to which the revocation has come through.
    pub heard_revoke: BTreeSet<usize>,
}

/// One matched call of a communicator: what came in and what was decided.
#[derive(Debug, Default)]
pub(super) struct Instance {
    /// By rank.
    pub arrived: BTreeMap<usize, Call>,
    /// Ranks that still wait in it.
    pub waiting: BTreeSet<usize>,
    pub result: Option<Arc<Payload>>,
    /// Of agree, shrink and spawn: the same for everybody.
    pub verdict: Option<Outcome>,
}

#[derive(Debug, Clone)]
pub(super) enum Outcome {
    Agreed(Agreement),
    /// The new communicator.
    Shrunk(usize),
    ShrinkFailed,
    Joining(usize),
    NoSpawn(SpawnError),
    /// The new world, and the pool where somebody waits.
    Seated(usize, Option<usize>),
    NotSeated,
}

/// Replacements on their way into a world.
#[derive(Debug)]
pub(super) struct Joining {
    /// Processes of the full world in rank order.
    pub processes: Vec<usize>,
    /// Of them, those that are new.
    pub newcomers: BTreeSet<usize>,
    /// Those that came to the merge.
    pub arrived: BTreeSet<usize>,
    /// `Some(Err)` when it failed, else the new communicator.
    pub verdict: Option<Result<usize, String>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    Live,
    /// Released with a success of its own, dead for everybody else from its next call on.
    Doomed,
    Dead,
    /// Finalized or returned.
    Left,
}

/// A call in which a process waits.
#[derive(Debug)]
pub(super) struct Parked {
    pub call: Call,
    /// Its ordinal in its lane.
    pub seq: u64,
    /// Settles it has been held back by a draw.
    pub delayed: u32,
    /// Drawn once per call: whether it never hears of failures while somebody else knows; of a
    /// send, whether it waits for its receiver.
    pub lot: Option<bool>,
    /// Of a send: the message's number.
    pub message: u64,
}

/// One simulated process.
#[derive(Debug)]
pub(super) struct Process {
    pub status: Status,
    pub place: CommRank,
    /// Of a rank: the pool around its world, where spares wait.
    pub pool: Option<usize>,
    /// Calls made on the current communicator, by lane.
    pub calls: BTreeMap<Lane, u64>,
    pub parked: Option<Parked>,
    pub reply: Option<Reply>,
    pub ended: bool,
    pub turn: Arc<Condvar>,
    /// The joining it was born for.
    pub birth: Option<Birth>,
}

#[derive(Debug, Clone)]
pub(super) struct Birth {
    pub joining: usize,
    pub rank: usize,
    pub ranks: usize,
    pub arguments: Vec<String>,
}

/// Key of an instance: communicator, lane, ordinal.
pub(super) type Match = (usize, Lane, u64);

/// Key of a mailbox: communicator, sender's rank, receiver's rank, tag.
pub(super) type Mailbox = (usize, usize, usize, u32);

/// Everything the board knows.
#[derive(Debug)]
pub(super) struct BoardState {
    pub options: SimOptions,
    pub draws: Stream,
    pub processes: Vec<Process>,
    pub groups: Vec<Group>,
    pub instances: BTreeMap<Match, Instance>,
    pub mail: BTreeMap<Mailbox, VecDeque<(u64, Vec<u8>)>>,
    pub messages: u64,
    pub joinings: Vec<Joining>,
    pub runnable: VecDeque<usize>,
    pub current: Option<usize>,
    pub settles: u64,
    pub deaths: u32,
    pub last_death: Option<u64>,
    /// Somebody waits only because of a draw, so the next settle may help.
    pub held_back: bool,
    pub spawned: u32,
    pub halted: Option<String>,
    pub trace: Vec<String>,
    pub digest: u64,
    pub clock_nanos: Arc<AtomicU64>,
    /// `Some(process)` starts a thread, `None` says that all have ended.
    pub births: Sender<Option<usize>>,
}

impl BoardState {
    pub(super) fn new(
        seed: u64,
        ranks: usize,
        options: SimOptions,
        births: Sender<Option<usize>>,
    ) -> Self {
        let mut state = Self {
            options,
            draws: Stream::new(&[seed, purpose::SIMULATE]),
            processes: Vec::new(),
            groups: vec![Group { processes: (0..ranks).collect(), ..Group::default() }],
            instances: BTreeMap::new(),
            mail: BTreeMap::new(),
            messages: 0,
            joinings: Vec::new(),
            runnable: VecDeque::new(),
            current: None,
            settles: 0,
            deaths: 0,
            last_death: None,
            held_back: false,
            spawned: 0,
            halted: None,
            trace: Vec::new(),
            digest: 0,
            clock_nanos: Arc::default(),
            births,
        };
        let spares = state.options.spares;
        if spares > 0 {
            let (processes, ranks) = ((0..ranks + spares).collect(), (0..ranks).collect());
            state.groups.push(Group { processes, ranks, ..Group::default() });
        }
        for rank in 0..ranks {
            let process = state.give_birth(CommRank { comm: 0, rank, size: ranks }, None);
            state.processes[process].pool = (spares > 0).then_some(1);
        }
        for rank in ranks..ranks + spares {
            state.give_birth(CommRank { comm: 1, rank, size: ranks + spares }, None);
        }
        state
    }

    /// A new process, whose thread starts at once and runs when its turn comes.
    pub(super) fn give_birth(&mut self, place: CommRank, birth: Option<Birth>) -> usize {
        let process = self.processes.len();
        self.processes.push(Process {
            status: Status::Live,
            place,
            pool: None,
            calls: BTreeMap::new(),
            parked: None,
            reply: None,
            ended: false,
            turn: Arc::default(),
            birth,
        });
        self.runnable.push_back(process);
        self.births.send(Some(process)).ok();
        process
    }

    pub(super) fn alive(&self, process: usize) -> bool {
        matches!(self.processes[process].status, Status::Live | Status::Doomed)
    }

    pub(super) fn chance(&mut self, probability: f64) -> bool {
        self.draws.unit() < probability
    }

    /// Time passes with every decision.
    pub(super) fn advance_clock(&mut self) {
        let nanos = 20_000 + self.draws.below(200_000);
        self.clock_nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    /// One line of the trace: settle, process, communicator, rank, what.
    pub(super) fn record(&mut self, process: usize, what: &str) {
        if self.halted.is_some() {
            return;
        }
        let CommRank { comm, rank, .. } = self.processes[process].place;
        let line = format!("{:>6} p{process:<3} c{comm:<3} r{rank:<3} {what}", self.settles);
        let word = xxhash_rust::xxh3::xxh3_64(line.as_bytes());
        self.digest = crate::config::seed::key(&[self.digest, word]);
        if self.options.trace == Trace::Kept {
            self.trace.push(line);
        }
    }

    /// The process enters a call: its contribution is on the board from now on.
    pub(super) fn park(&mut self, process: usize, call: Call) {
        let place = self.processes[process].place;
        let mut parked = Parked { call, seq: 0, delayed: 0, lot: None, message: 0 };
        if let Some(lane) = parked.call.lane() {
            let calls = self.processes[process].calls.entry(lane).or_insert(0);
            parked.seq = *calls;
            *calls += 1;
            let instance = self.instances.entry((place.comm, lane, parked.seq)).or_default();
            instance.arrived.insert(place.rank, parked.call.clone());
            instance.waiting.insert(place.rank);
        }
        if let Call::Send { to, tag, data } = &parked.call {
            self.messages += 1;
            parked.message = self.messages;
            let key = (place.comm, place.rank, *to, *tag);
            self.mail.entry(key).or_default().push_back((self.messages, data.clone()));
        }
        if let Call::Merge(joining) = parked.call {
            self.joinings[joining].arrived.insert(process);
        }
        self.processes[process].parked = Some(parked);
    }

    /// Gives a parked process its answer and a turn.
    pub(super) fn release(&mut self, process: usize, reply: Reply) {
        let place = self.processes[process].place;
        let Some(parked) = self.processes[process].parked.take() else { return };
        self.record(process, &format!("{} -> {}", parked.call.name(), brief(&reply)));
        if let Some(lane) = parked.call.lane() {
            self.leave_instance((place.comm, lane, parked.seq), place.rank);
        }
        if let Reply::Moved(to) | Reply::Seated(to, _) = reply {
            self.processes[process].place = to;
            self.processes[process].calls.clear();
            self.forget_deserted(place.comm);
        }
        if let Reply::Seated(_, pool) = reply {
            self.processes[process].pool = pool;
        }
        self.processes[process].reply = Some(reply);
        self.runnable.push_back(process);
    }

    /// Frees an instance that nobody can need any more.
    fn leave_instance(&mut self, key: Match, rank: usize) {
        let Some(instance) = self.instances.get_mut(&key) else { return };
        instance.waiting.remove(&rank);
        let group = &self.groups[key.0].processes;
        let all_came = group.iter().enumerate().all(|(rank, &process)| {
            instance.arrived.contains_key(&rank)
                || !matches!(self.processes[process].status, Status::Live)
        });
        if instance.waiting.is_empty() && all_came {
            self.instances.remove(&key);
        }
    }

    /// Frees what a communicator held once no live process is on it.
    fn forget_deserted(&mut self, comm: usize) {
        let deserted = self.groups[comm]
            .processes
            .iter()
            .all(|&p| !self.alive(p) || self.processes[p].place.comm != comm);
        if deserted {
            self.instances.retain(|key, _| key.0 != comm);
            self.mail.retain(|key, _| key.0 != comm);
        }
    }

    /// Dead for everybody from now on. Its contributions stay unless they are withdrawn.
    pub(super) fn bury(&mut self, process: usize) {
        if !self.alive(process) {
            return;
        }
        self.processes[process].status = Status::Dead;
        self.last_death = Some(self.settles);
        let place = self.processes[process].place;
        if let Some(Parked { call, seq, .. }) = &self.processes[process].parked
            && let Some(lane) = call.lane()
            && let Some(instance) = self.instances.get_mut(&(place.comm, lane, *seq))
        {
            instance.waiting.remove(&place.rank);
        }
        self.record(process, "dies");
    }

    /// Ends the simulation early; every thread unwinds.
    pub(super) fn halt(&mut self, why: String) {
        self.halted.get_or_insert(why);
        for process in &self.processes {
            process.turn.notify_all();
        }
    }
}

/// An answer in a few words.
fn brief(reply: &Reply) -> String {
    match reply {
        Reply::Done => "ok".into(),
        Reply::Data(_) => "ok, data".into(),
        Reply::Agreed(agreement) => format!("{:#x} {:?}", agreement.flags, agreement.outcome),
        Reply::Seated(place, pool) => {
            format!("c{} r{} of {}, pool {pool:?}", place.comm, place.rank, place.size)
        }
        Reply::Called(call) => format!("{call:?}"),
        Reply::Moved(place) => format!("c{} r{} of {}", place.comm, place.rank, place.size),
        Reply::Joining(joining) => format!("joining {joining}"),
        Reply::Error(error) => format!("{error:?}"),
        Reply::NoSpawn(error) => error.to_string(),
        Reply::Misuse(text) => text.clone(),
        Reply::Die => "death".into(),
    }
}
