//! What each rank of the probe does: steps of a reduction and a vote. Its repairs are those of
//! training (`cluster::recovery`); here is only what they move and who dies on the way.

use std::cell::Cell;
use std::time::{Duration, Instant};

use kintsugi_ffi::{mpi, os};

use crate::cluster::comm::mpi::{JoinArguments, JoinPoint, MpiComm, start_orphan_watch};
use crate::cluster::comm::{CommError, Communicator, Elements, Membership as _};
use crate::cluster::recovery::{self, Hooks, Note, Participant, Policy, Remark, Repaired};
use crate::cluster::world::{Member, Role, World};
use crate::config::{Point, Rung};
use crate::observe::console::{print_line, say};

use super::{
    Kill, KillPoint, REPORT, Repair, Report, STATE_WORDS, contribution, fingerprint,
    rank_arguments, update,
};

/// Attempts to bring replacements in, of one repair, before a rank gives up.
const ATTEMPTS_MAX: u32 = 20;
/// Repairs of one run before a rank gives up.
const REPAIRS_MAX: u32 = 1000;
/// Longest repair: the launcher of the probe gives up before.
const REPAIR_LIMIT: Duration = Duration::from_secs(3600);
/// Exit code of a rank that gave up.
const GAVE_UP: i32 = 75;

/// What a rank is told on its command line.
#[derive(Debug, Clone)]
pub struct RankPlan {
    /// Steps to commit.
    pub steps: u64,
    /// Who dies where.
    pub kills: Vec<Kill>,
    /// For a replacement.
    pub join: Option<JoinArguments>,
}

fn say(report: &Report) {
    // One write, so that lines of several ranks do not mix. A launcher that is gone reads nothing:
    // no reason to fail.
    if let Ok(text) = serde_json::to_string(report) {
        print_line!("{REPORT}{text}");
    }
}

/// Dies here if the plan says so.
#[derive(Debug, Clone)]
struct Fate {
    kills: Vec<Kill>,
    life: u32,
    /// A death is under way that strikes later.
    sealed: Cell<bool>,
}

impl Fate {
    fn meet(&self, point: KillPoint, number: u64, rank: usize) {
        let planned = self.kills.iter().find(|kill| {
            let Kill { point: p, number: n, rank: r, life, .. } = **kill;
            (p, n, r, life) == (point, number, rank, self.life)
        });
        let Some(kill) = planned else { return };
        say(&Report::Killed { kill: kill.to_string(), pid: std::process::id() });
        if kill.delay_us == 0 {
            os::kill_self_now();
        }
        self.sealed.set(true);
        let delay = Duration::from_micros(kill.delay_us);
        std::thread::spawn(move || {
            std::thread::sleep(delay);
            os::kill_self_now();
        });
    }

    /// Before the last agreement: a death that is under way strikes here at the latest, or on a
    /// busy machine it would come when nobody is left to repair it.
    fn await_death(&self) {
        while self.sealed.get() {
            std::thread::park();
        }
    }
}

/// Steps, votes and repairs until the plan's steps are committed; the process's exit code.
pub fn run_rank(plan: &RankPlan) -> i32 {
    start_orphan_watch();
    let life = plan.join.as_ref().map_or(0, |join| join.attempt_of_join);
    let fate = Fate { kills: plan.kills.clone(), life, sealed: Cell::new(false) };
    let Some((mut comm, newcomer)) = enter(plan, &fate) else { return 0 };
    let arguments = rank_arguments(plan.steps, &plan.kills);
    let who = Participant { pid: std::process::id(), host: os::hostname(), arguments };
    let replica = Replica {
        fate,
        plan: plan.clone(),
        rank: comm.rank(),
        state: vec![0; STATE_WORDS],
        step: (!newcomer).then_some(0),
        incoming: None,
        joins: life,
        who,
        born: Instant::now(),
    };
    match run(&mut comm, replica) {
        Ok(state) => {
            say(&Report::Done {
                rank: comm.rank(),
                ranks: comm.size(),
                state: fingerprint(&state),
                workarounds: format!("{:?}", mpi::workarounds()),
            });
            comm.finalize();
            0
        }
        Err(reason) => {
            say(&Report::GaveUp { rank: comm.rank(), reason });
            os::exit_now(GAVE_UP)
        }
    }
}

/// Starts MPI; `None` for a replacement that did not become a member (it goes quietly).
fn enter(plan: &RankPlan, fate: &Fate) -> Option<(MpiComm, bool)> {
    let mut reached = |at: JoinPoint| {
        let point = match at {
            JoinPoint::Start => KillPoint::JoinStart,
            JoinPoint::Hello => KillPoint::JoinHello,
            JoinPoint::Bridge => KillPoint::JoinBridge,
            JoinPoint::Merge => KillPoint::JoinMerge,
            JoinPoint::Reorder => KillPoint::JoinReorder,
            JoinPoint::Agree => KillPoint::JoinAgree,
        };
        if let Some(join) = &plan.join {
            // Which replacement this is, MPI says; before MPI_Init its launcher does.
            let index = std::env::var("PMIX_RANK").ok().and_then(|text| text.parse().ok());
            let slot = join.ranks.get(index.unwrap_or(0_usize)).copied().unwrap_or(0);
            fate.meet(point, u64::from(join.attempt_of_join), slot);
        }
    };
    match MpiComm::initialise_observed(plan.join.as_ref(), &mut reached) {
        Ok(comm) => Some((comm, plan.join.is_some())),
        Err(_) if plan.join.is_some() => os::exit_now(0),
        Err(error) => {
            say!("MPI did not start: {error}");
            os::exit_now(GAVE_UP)
        }
    }
}

fn policy() -> Policy {
    Policy::new(vec![Rung::Respawn], ATTEMPTS_MAX, REPAIR_LIMIT)
}

/// The world of the first-born. Nobody asks for their processes, and they count as one node: the
/// probe is about ranks.
fn first_world(ranks: usize) -> World {
    let host = os::hostname();
    let member = |rank: u32| {
        let host = host.clone();
        Member { member: rank, rank, role: Role::Active, pid: 0, host, node: 0 }
    };
    let ranks = u32::try_from(ranks).unwrap_or(u32::MAX);
    World::initial(1, (0..ranks).map(member).collect(), ranks)
}

/// Until every step is committed and everybody knows it; the state then.
fn run(comm: &mut MpiComm, mut replica: Replica) -> Result<Vec<u64>, String> {
    let policy = policy();
    let mut world = match replica.step {
        Some(_) => first_world(comm.size()),
        None => {
            let joined = recovery::join(comm, &policy, &mut replica);
            joined.map_err(|error| error.to_string())?.0
        }
    };
    let mut last_commit = Instant::now();
    for _ in 0..=REPAIRS_MAX {
        while replica.step.unwrap_or(0) < replica.plan.steps && try_step(comm, &mut replica) {
            last_commit = Instant::now();
        }
        if replica.step.unwrap_or(0) == replica.plan.steps {
            replica.fate.await_death();
            if comm.agree(1).committed() {
                return Ok(replica.state);
            }
        }
        let (detect, before) = (last_commit.elapsed(), replica.joins);
        let repaired = recovery::recover(comm, &mut world, &policy, &mut replica);
        let repaired = repaired.map_err(|error| error.to_string())?;
        if leads(&repaired, comm) {
            for note in &repaired.notes {
                let (Note::Retry { reason, .. } | Note::RungDown { reason, .. }) = note;
                say(&Report::Retry { reason: reason.clone() });
            }
            let (attempts, total) = (replica.joins - before, last_commit.elapsed());
            say(&Report::Repaired(timed(&repaired, attempts, detect, total)));
        }
        last_commit = Instant::now();
    }
    Err(format!("more than {REPAIRS_MAX} repairs"))
}

/// Whether this is the lowest rank that lived through the repair.
fn leads(repaired: &Repaired, comm: &MpiComm) -> bool {
    let lost = |rank: &usize| repaired.lost.iter().any(|member| member.rank as usize == *rank);
    (0..comm.size()).find(|rank| !lost(rank)) == Some(comm.rank())
}

fn timed(repaired: &Repaired, attempts: u32, detect: Duration, total: Duration) -> Repair {
    let seconds = |phase: &str| repaired.seconds.get(phase).copied().unwrap_or(0.0);
    Repair {
        step: repaired.step,
        lost: repaired.lost.iter().map(|member| member.rank as usize).collect(),
        attempts,
        detect: detect.as_secs_f64(),
        revoke_shrink: seconds("revoke_shrink"),
        spawn: seconds("spawn"),
        merge: seconds("merge"),
        warm: seconds("agree"),
        restore: seconds("restore"),
        total: total.as_secs_f64(),
    }
}

/// One reduction and one vote; whether it was committed. Any error: revoke first, then vote 0.
fn try_step(comm: &mut MpiComm, replica: &mut Replica) -> bool {
    let (rank, step) = (comm.rank(), replica.step.unwrap_or(0));
    replica.fate.meet(KillPoint::Step, step, rank);
    let mine: Vec<u64> = (0..STATE_WORDS).map(|index| contribution(step, rank, index)).collect();
    let mut sum = vec![0; STATE_WORDS];
    let reduced = comm.all_reduce(Elements::U64(&mine, &mut sum));
    if reduced.is_err() {
        comm.revoke();
    }
    let committed = comm.agree(u32::from(reduced.is_ok())).committed();
    if committed {
        update(&mut replica.state, &sum);
        replica.step = Some(step + 1);
    }
    committed
}

/// What a repair asks of a rank of the probe: its state is words, and it dies where it is told to.
struct Replica {
    fate: Fate,
    plan: RankPlan,
    /// Its rank: the ladder keeps everybody's.
    rank: usize,
    state: Vec<u64>,
    /// Steps committed; `None` while a newcomer has no state.
    step: Option<u64>,
    /// What the source sent, with its step.
    incoming: Option<(Vec<u64>, u64)>,
    /// Attempts to bring replacements in, of this run.
    joins: u32,
    who: Participant,
    born: Instant,
}

impl Hooks for Replica {
    fn now(&self) -> Duration {
        self.born.elapsed()
    }

    fn who(&self) -> &Participant {
        &self.who
    }

    fn committed_step(&self) -> Option<u64> {
        self.step
    }

    /// Everybody gets the source's state; who has one compares.
    fn transfer(
        &mut self,
        comm: &mut dyn Communicator,
        source: usize,
        _receivers: &[usize],
        step: u64,
    ) -> Result<(), CommError> {
        let mut bytes: Vec<u8> = self.state.iter().flat_map(|word| word.to_le_bytes()).collect();
        comm.broadcast(&mut bytes, source)?;
        let words = bytes.chunks_exact(8);
        let words = words.map(|word| u64::from_le_bytes(word.try_into().expect("chunks of 8")));
        let sent: Vec<u64> = words.collect();
        if self.step.is_some() && self.state != sent {
            let text = format!("state differs from rank {source}'s at step {step}");
            return Err(CommError::Fatal { call: "restore", class: 0, text });
        }
        self.incoming = self.step.is_none().then_some((sent, step));
        Ok(())
    }

    fn adopt(&mut self, _world: &World) {
        if let Some((state, step)) = self.incoming.take() {
            (self.state, self.step) = (state, Some(step));
        }
    }

    fn tell(&mut self, remark: Remark) {
        let point = match remark {
            Remark::Reached(Point::InSpawn) => {
                self.joins += 1;
                KillPoint::Spawn
            }
            Remark::Reached(Point::InMerge) => KillPoint::Merge,
            Remark::Reached(Point::InRestore) => KillPoint::Restore,
            _ => return,
        };
        self.fate.meet(point, u64::from(self.joins), self.rank);
    }
}
