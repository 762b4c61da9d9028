//! A toy synchronous trainer for simulation: a vector for a model, everything else real. It uses
//! the production recovery driver, world, fault injector and commit rule, and its
//! ledger sums what was summed, not what was planned.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kintsugi::cluster::comm::sim::{self, JoinInfo, SimClock, SimComm, SimOptions, SimOutcome};
use kintsugi::cluster::comm::{Call, CommError, Communicator, Elements, Membership};
use kintsugi::cluster::faults::Standing;
use kintsugi::cluster::faults::inject::{Injector, STRUCK};
use kintsugi::cluster::recovery::{Called, Hooks, Participant, Policy, Remark, Repaired, driver};
use kintsugi::cluster::world::{Member, Role, World};
use kintsugi::config::{Faults, Point, Rung};
use kintsugi::observe::clock::Clock;
use kintsugi::observe::storage::Storage;

mod claims;
mod model;

use claims::Claims;
pub use model::expected_line;
use model::{Part, State, compute};

pub const RANKS: usize = 4;
pub const OWNERS: u32 = 8;
pub const STEPS: u64 = 8;
const SAMPLES_PER_OWNER: u64 = 3;
const WIDTH: usize = 6;
const STATE_TAG: u32 = 71;
/// Repairs of one run before a rank gives up: more than any schedule has deaths.
const REPAIRS_MAX: u32 = 40;

/// How a step is committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// ARCHITECTURE.md, "The commit rule".
    Vote,
    /// The bug that this rule forbids: apply when my own all-reduce succeeded.
    LocalSuccess,
    /// Votes, but does not revoke before.
    VoteWithoutRevoke,
}

/// One kind of training run.
#[derive(Debug, Clone)]
pub struct Toy {
    pub rule: Rule,
    pub ladder: Vec<Rung>,
    pub spares: u32,
    pub faults: Faults,
}

/// One line of the ledger: what a committed step summed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line {
    pub step: u64,
    pub count: u64,
    pub mix: u64,
}

/// How a rank that finished saw the run.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// Of weights, momentum, step and ledger.
    pub digest: u64,
    pub ledger: Vec<Line>,
    pub world: World,
    pub repairs: Vec<Repaired>,
    /// Whether it was started as a replacement.
    pub replacement: bool,
    /// Whether it waited first.
    pub promoted: bool,
}

/// A commit as it happened, by whichever process, whether it lived on or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    pub process: usize,
    pub step: u64,
    pub digest: u64,
}

/// A simulated run, whole.
pub struct Run {
    /// `None` from a spare that was never needed.
    pub outcome: SimOutcome<Result<Option<Summary>, String>>,
    pub commits: Vec<Commit>,
    /// Claims of faults in the run directory.
    pub claims: Vec<PathBuf>,
}

/// Trains once.
pub fn train(toy: &Toy, seed: u64, options: SimOptions) -> Run {
    let commits = Mutex::new(Vec::new());
    let storage = Arc::new(Claims::default());
    let options = SimOptions { spares: toy.spares as usize, ..options };
    let outcome = sim::run(seed, RANKS, options, |comm, join| {
        Trainer::new(toy, comm, join.as_ref(), &commits, &storage).run(join.as_ref())
    });
    let commits = commits.into_inner().unwrap_or_else(PoisonError::into_inner);
    let claims = storage.files().into_iter().filter(|path| !path.ends_with(STRUCK)).collect();
    Run { outcome, commits, claims }
}

/// The process that recovery repairs.
struct Process {
    state: Option<State>,
    scratch: Option<State>,
    standing: Standing,
    injector: Injector,
    clock: SimClock,
    who: Participant,
}

impl Process {
    fn reach(&self, point: Point) {
        let performed = self.injector.at(point, &self.standing);
        assert!(performed.is_none(), "the toy only dies: {performed:?}");
    }
}

impl Hooks for Process {
    fn now(&self) -> Duration {
        self.clock.now()
    }

    fn who(&self) -> &Participant {
        &self.who
    }

    fn committed_step(&self) -> Option<u64> {
        self.state.as_ref().map(|state| state.step)
    }

    fn transfer(
        &mut self,
        comm: &mut dyn Communicator,
        source: usize,
        receivers: &[usize],
        step: u64,
    ) -> Result<(), CommError> {
        if comm.rank() == source {
            let words = self.state.as_ref().expect("the source has state").words();
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            for &to in receivers {
                comm.send(&(bytes.len() as u64).to_le_bytes(), to, STATE_TAG)?;
                comm.send(&bytes, to, STATE_TAG)?;
            }
        } else if receivers.contains(&comm.rank()) {
            let mut length = [0; 8];
            comm.recv(&mut length, source, STATE_TAG)?;
            let mut bytes = vec![0; u64::from_le_bytes(length) as usize];
            comm.recv(&mut bytes, source, STATE_TAG)?;
            let word = |chunk: &[u8]| u64::from_le_bytes(chunk.try_into().expect("8 bytes"));
            let words: Vec<u64> = bytes.chunks_exact(8).map(word).collect();
            let state = State::from_words(&words);
            assert_eq!(state.step, step, "the state that was agreed on");
            self.scratch = Some(state);
        }
        Ok(())
    }

    fn adopt(&mut self, _world: &World) {
        if let Some(scratch) = self.scratch.take()
            && self.state.is_none()
        {
            self.state = Some(scratch);
        }
        self.standing.spare = false;
    }

    fn tell(&mut self, remark: Remark) {
        match remark {
            Remark::Reached(point) => self.reach(point),
            Remark::Counted(step) => self.standing.step = step,
            Remark::Promoted(_) => self.standing.newcomer = true,
            Remark::Restoring { rank, source, step } => {
                let (rank, source) = (rank as u32, rank == source);
                self.standing = Standing { rank, source, step, ..self.standing };
            }
        }
    }
}

struct Trainer<'a> {
    toy: &'a Toy,
    comm: SimComm,
    world: World,
    process: Process,
    /// Parts of the step in flight, by owner: kept until the step commits.
    parts: BTreeMap<u32, Part>,
    commits: &'a Mutex<Vec<Commit>>,
    repairs: Vec<Repaired>,
}

impl<'a> Trainer<'a> {
    fn new(
        toy: &'a Toy,
        comm: SimComm,
        join: Option<&JoinInfo>,
        commits: &'a Mutex<Vec<Commit>>,
        storage: &Arc<Claims>,
    ) -> Self {
        let clock = comm.clock();
        let injector = Injector::new(
            &toy.faults,
            Arc::clone(storage) as Arc<dyn Storage>,
            Arc::new(clock.clone()),
            clock.unix_seconds() - clock.now().as_secs_f64(),
            Arc::new(comm.strike()),
        );
        let standing = Standing {
            rank: comm.rank() as u32,
            ranks: comm.size() as u32,
            newcomer: join.is_some(),
            spare: comm.waits(),
            ..Standing::default()
        };
        let process = Process {
            state: (join.is_none() && !comm.waits()).then(State::initial),
            scratch: None,
            standing,
            injector,
            clock,
            who: Participant {
                pid: comm.process() as u32,
                host: "sim".into(),
                arguments: vec!["train".into()],
            },
        };
        let member = |rank: u32| Member {
            member: rank,
            rank,
            role: Role::Active,
            pid: rank,
            host: "sim".into(),
            node: 0,
        };
        let mut world = World::initial(1, (0..RANKS as u32).map(member).collect(), OWNERS);
        let spares: Vec<_> = (RANKS as u32..RANKS as u32 + toy.spares)
            .map(|number| (Some(number), member(number)))
            .collect();
        world.set_spares(&spares);
        let (parts, repairs) = (BTreeMap::new(), Vec::new());
        Self { toy, comm, world, process, parts, commits, repairs }
    }

    fn policy(&self) -> Policy {
        let limit = Duration::from_secs(60);
        Policy::new(self.toy.ladder.clone(), 10, limit)
    }

    /// A spare's life before it is a rank. Whether it became one.
    fn wait(&mut self) -> Result<bool, String> {
        let policy = self.policy();
        loop {
            match self.comm.await_call(&[], &mut || {}) {
                Call::Gather => {}
                Call::Dismissed => return Ok(false),
                Call::Abandoned => return Err("all state was lost: every rank is gone".into()),
            }
            let called = driver::answer_call(&mut self.comm, &policy, &mut self.process);
            if let Called::Seated(world, repaired) = called.map_err(|error| error.to_string())? {
                self.world = world;
                self.repairs.push(repaired);
                return Ok(true);
            }
        }
    }

    fn run(mut self, join: Option<&JoinInfo>) -> Result<Option<Summary>, String> {
        let spare = self.comm.waits();
        if spare && !self.wait()? {
            return Ok(None);
        }
        if join.is_some() {
            let policy = self.policy();
            let joined = driver::join(&mut self.comm, &policy, &mut self.process);
            let (world, repaired) = joined.map_err(|gave_up| gave_up.to_string())?;
            self.world = world;
            self.repairs.push(repaired);
        }
        self.stand();
        while self.process.standing.step < STEPS {
            if self.process.standing.newcomer {
                self.process.reach(Point::BeforeFirstCommit);
            }
            if !self.step()? {
                self.repair()?;
            }
        }
        self.process.reach(Point::InFinalize);
        self.comm.finalize();
        let state = self.process.state.expect("a rank that trained has state");
        Ok(Some(Summary {
            digest: state.digest(),
            ledger: state.ledger,
            world: self.world,
            repairs: self.repairs,
            replacement: join.is_some(),
            promoted: spare,
        }))
    }

    fn stand(&mut self) {
        let standing = &mut self.process.standing;
        standing.rank = self.comm.rank() as u32;
        standing.ranks = self.comm.size() as u32;
        standing.step = self.process.state.as_ref().map_or(0, |state| state.step);
        standing.source = false;
    }

    fn repair(&mut self) -> Result<(), String> {
        if self.repairs.len() as u32 >= REPAIRS_MAX {
            return Err(format!("{REPAIRS_MAX} repairs did not bring the run forward"));
        }
        let policy = self.policy();
        let repaired = driver::recover(&mut self.comm, &mut self.world, &policy, &mut self.process);
        self.repairs.push(repaired.map_err(|gave_up| gave_up.to_string())?);
        self.stand();
        Ok(())
    }

    /// One step. Whether it committed.
    fn step(&mut self) -> Result<bool, String> {
        let step = self.process.standing.step + 1;
        self.process.reach(Point::BeforeLoad);
        let state = self.process.state.as_ref().expect("a rank that trains has state");
        for owner in self.world.owners_of(self.comm.rank()) {
            self.process.reach(Point::InForward);
            self.parts.entry(owner).or_insert_with(|| compute(&state.weights, step, owner));
            self.process.reach(Point::InBackward);
        }
        let reduced = self.reduce(step);
        if let Err(error) = &reduced
            && !error.starts_recovery()
        {
            return Err(error.to_string());
        }
        if reduced.is_err() && self.toy.rule != Rule::VoteWithoutRevoke {
            self.comm.revoke();
        }
        if reduced.is_ok() {
            self.process.reach(Point::InUpdate);
        }
        self.process.reach(Point::BeforeVote);
        if self.toy.rule != Rule::LocalSuccess {
            let agreement = self.comm.agree(u32::from(reduced.is_ok()));
            self.process.reach(Point::AfterVote);
            if !agreement.committed() {
                return Ok(false);
            }
        }
        let Ok((gradient, line)) = reduced else { return Ok(false) };
        self.commit(&gradient, line);
        Ok(true)
    }

    fn commit(&mut self, gradient: &[f32], line: Line) {
        self.process.reach(Point::InPublish);
        let state = self.process.state.as_mut().expect("a rank that trains has state");
        state.apply(gradient, line);
        let commit =
            Commit { process: self.comm.process(), step: state.step, digest: state.digest() };
        lock(self.commits).push(commit);
        self.parts.clear();
        self.process.standing.newcomer = false;
        self.stand();
    }

    /// The sum over all owners, and what entered it.
    fn reduce(&mut self, step: u64) -> Result<(Vec<f32>, Line), CommError> {
        let mine: Vec<Part> = self
            .world
            .owners_of(self.comm.rank())
            .iter()
            .map(|owner| self.parts[owner].clone())
            .collect();
        self.process.reach(Point::InAllReduce);
        let gradient = self.sum(&mine)?;
        let count = mine.iter().map(|part| part.count).sum();
        let mix = mine.iter().fold(0u64, |sum, part| sum.wrapping_add(part.mix));
        let mut summed = [0; 2];
        self.comm.all_reduce(Elements::U64(&[count, mix], &mut summed))?;
        Ok((gradient, Line { step, count: summed[0], mix: summed[1] }))
    }

    /// In fixed point: the bits do not depend on the grouping.
    fn sum(&mut self, mine: &[Part]) -> Result<Vec<f32>, CommError> {
        const SCALE: f64 = (1u64 << 40) as f64;
        let mut sum = vec![0i64; WIDTH];
        for part in mine {
            for (sum, gradient) in sum.iter_mut().zip(&part.gradient) {
                *sum = sum.wrapping_add((f64::from(*gradient) * SCALE).round() as i64);
            }
        }
        let mut whole = vec![0; WIDTH];
        self.comm.all_reduce(Elements::I64(&sum, &mut whole))?;
        Ok(whole.iter().map(|&fixed| (fixed as f64 / SCALE) as f32).collect())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
