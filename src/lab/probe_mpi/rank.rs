//! What each rank of the probe does: steps of a reduction and a vote, repairs over `MpiComm`.

use std::io::Write as _;
use std::time::{Duration, Instant};

use kintsugi_ffi::{mpi, os};

use crate::cluster::comm::mpi::{JoinArguments, JoinPoint, MpiComm, start_orphan_watch};
use crate::cluster::comm::{
    CommError, Communicator as _, Elements, Membership as _, ReduceOp, SpawnError, SpawnRequest,
};
use crate::config::Phase;

use super::{
    Kill, Point, REPORT, Repair, Report, STATE_WORDS, contribution, fingerprint, rank_arguments,
    update,
};

/// Repairs of one failure before a rank gives up.
const ATTEMPTS_MAX: u32 = 20;
/// Repairs of one run before a rank gives up.
const REPAIRS_MAX: u32 = 1000;
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
        let _ = std::io::stdout().write_all(format!("{REPORT}{text}\n").as_bytes());
    }
}

/// Dies here if the plan says so.
#[derive(Debug, Clone)]
struct Fate {
    kills: Vec<Kill>,
    life: u32,
}

impl Fate {
    fn meet(&self, point: Point, number: u64, rank: usize) {
        let planned = self.kills.iter().find(|kill| {
            let Kill { point: p, number: n, rank: r, life, .. } = **kill;
            (p, n, r, life) == (point, number, rank, self.life)
        });
        let Some(kill) = planned else { return };
        say(&Report::Killed { kill: kill.to_string(), pid: std::process::id() });
        if kill.delay_us == 0 {
            os::kill_self_now();
        }
        let delay = Duration::from_micros(kill.delay_us);
        std::thread::spawn(move || {
            std::thread::sleep(delay);
            os::kill_self_now();
        });
    }
}

/// Steps, votes and repairs until the plan's steps are committed; the process's exit code.
pub fn run_rank(plan: &RankPlan) -> i32 {
    start_orphan_watch();
    let life = plan.join.as_ref().map_or(0, |join| join.attempt_of_join);
    let fate = Fate { kills: plan.kills.clone(), life };
    let Some((comm, newcomer)) = enter(plan, &fate) else { return 0 };
    let mut rank = Rank {
        comm,
        fate,
        plan: plan.clone(),
        state: vec![0; STATE_WORDS],
        step: (!newcomer).then_some(0),
        attempts: life,
        last_commit: Instant::now(),
    };
    match rank.run(newcomer) {
        Ok(()) => {
            say(&Report::Done {
                rank: rank.comm.rank(),
                ranks: rank.comm.size(),
                state: fingerprint(&rank.state),
                workarounds: format!("{:?}", mpi::workarounds()),
            });
            rank.comm.finalize();
            0
        }
        Err(reason) => {
            say(&Report::GaveUp { rank: rank.comm.rank(), reason });
            os::exit_now(GAVE_UP)
        }
    }
}

/// Starts MPI; `None` for a replacement that did not become a member (it goes quietly).
fn enter(plan: &RankPlan, fate: &Fate) -> Option<(MpiComm, bool)> {
    let mut reached = |at: JoinPoint| {
        let point = match at {
            JoinPoint::Start => Point::JoinStart,
            JoinPoint::Hello => Point::JoinHello,
            JoinPoint::Bridge => Point::JoinBridge,
            JoinPoint::Merge => Point::JoinMerge,
            JoinPoint::Reorder => Point::JoinReorder,
            JoinPoint::Agree => Point::JoinAgree,
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
            eprintln!("MPI did not start: {error}");
            os::exit_now(GAVE_UP)
        }
    }
}

struct Rank {
    comm: MpiComm,
    fate: Fate,
    plan: RankPlan,
    state: Vec<u64>,
    /// Steps committed; `None` while a newcomer has no state.
    step: Option<u64>,
    attempts: u32,
    last_commit: Instant,
}

impl Rank {
    fn run(&mut self, newcomer: bool) -> Result<(), String> {
        if newcomer {
            self.warm_and_restore(&mut None)?;
        }
        loop {
            let step = self.step.unwrap_or(0);
            if step < self.plan.steps {
                self.fate.meet(Point::Step, step, self.comm.rank());
                if self.try_step(step) {
                    continue;
                }
            } else if self.comm.agree(1).committed() {
                return Ok(());
            }
            self.recover()?;
        }
    }

    /// One reduction and one vote; whether it was committed.
    fn try_step(&mut self, step: u64) -> bool {
        let rank = self.comm.rank();
        let mine: Vec<u64> =
            (0..STATE_WORDS).map(|index| contribution(step, rank, index)).collect();
        let mut sum = vec![0; STATE_WORDS];
        let reduced = self.comm.all_reduce(Elements::U64(&mine, &mut sum), ReduceOp::Sum);
        let committed = self.commits(reduced.is_ok());
        if committed {
            update(&mut self.state, &sum);
            self.step = Some(step + 1);
            self.last_commit = Instant::now();
        }
        committed
    }

    /// Any error: revoke first, then vote 0.
    fn commits(&mut self, fine: bool) -> bool {
        if !fine {
            self.comm.revoke();
        }
        self.comm.agree(u32::from(fine)).committed()
    }

    fn recover(&mut self) -> Result<(), String> {
        let mut times = Times::begin(self.last_commit);
        self.warm_and_restore(&mut Some(&mut times))
    }

    /// Until everybody is there and has the newest state. A newcomer begins with a whole world
    /// (no times); a survivor with one that has to be repaired.
    fn warm_and_restore(&mut self, times: &mut Option<&mut Times>) -> Result<(), String> {
        let mut whole = times.is_none();
        let mut fallback = Times::begin(Instant::now());
        let times: &mut Times = times.as_mut().map_or(&mut fallback, |times| times);
        let mut speaks = false;
        for _ in 0..REPAIRS_MAX {
            if !whole {
                speaks = self.repair(times)?;
            }
            let start = Instant::now();
            let warmed = self.comm.warm().is_ok();
            times.repair.warm = start.elapsed().as_secs_f64();
            let start = Instant::now();
            if self.commits(warmed) && self.restore()? {
                times.repair.restore = start.elapsed().as_secs_f64();
                times.repair.step = self.step.unwrap_or(0);
                times.repair.total = times.begun.elapsed().as_secs_f64();
                self.last_commit = Instant::now();
                if speaks {
                    say(&Report::Repaired(times.repair.clone()));
                }
                return Ok(());
            }
            whole = false;
        }
        Err(format!("{REPAIRS_MAX} repairs in a row failed"))
    }

    /// Revoke, shrink, replace, until the world is full; whether this rank led the last attempt.
    fn repair(&mut self, times: &mut Times) -> Result<bool, String> {
        self.comm.revoke();
        // Ranks of the world that is repaired, before shrinking renumbers.
        let (my_rank, ranks) = (self.comm.rank(), self.comm.size());
        for _ in 0..ATTEMPTS_MAX {
            let start = Instant::now();
            self.comm.shrink().map_err(|error| error.to_string())?;
            let leads = self.comm.rank() == 0;
            let alive = self.comm.all_gather_u64(&[my_rank as u64]);
            let fine = self.commits(alive.is_ok());
            times.repair.revoke_shrink += start.elapsed().as_secs_f64();
            let (true, Ok(alive)) = (fine, alive) else {
                self.comm.revoke();
                continue;
            };
            let lost: Vec<usize> =
                (0..ranks).filter(|rank| !alive.contains(&(*rank as u64))).collect();
            if lost.is_empty() {
                return Ok(leads);
            }
            times.repair.lost.clone_from(&lost);
            times.repair.attempts += 1;
            match self.spawn(lost, my_rank, ranks, times) {
                Ok(()) => return Ok(leads),
                Err(SpawnError::Refused(reason)) => return Err(reason),
                Err(SpawnError::Failed(reason)) => {
                    if leads {
                        say(&Report::Retry { reason });
                    }
                }
            }
        }
        Err(format!("{ATTEMPTS_MAX} attempts to bring in a replacement failed"))
    }

    fn spawn(
        &mut self,
        lost: Vec<usize>,
        my_rank: usize,
        ranks: usize,
        times: &mut Times,
    ) -> Result<(), SpawnError> {
        self.attempts += 1;
        let number = u64::from(self.attempts);
        let arguments = rank_arguments(self.plan.steps, &self.plan.kills);
        let request = SpawnRequest { my_rank, lost, ranks, arguments };
        let start = Instant::now();
        let mut spawned = None;
        let fate = self.fate.clone();
        let result = self.comm.spawn_and_merge(&request, &mut |phase| match phase {
            Phase::InSpawn => fate.meet(Point::Spawn, number, my_rank),
            Phase::InMerge => {
                spawned = Some(start.elapsed().as_secs_f64());
                fate.meet(Point::Merge, number, my_rank);
            }
            _ => {}
        });
        let whole = start.elapsed().as_secs_f64();
        times.repair.spawn += spawned.unwrap_or(whole);
        times.repair.merge += whole - spawned.unwrap_or(whole);
        result
    }

    /// The newest state to everybody, into scratch first; whether it was agreed on.
    fn restore(&mut self) -> Result<bool, String> {
        let mine = [self.step.map_or(0, |step| step + 1), u64::from(self.attempts)];
        let known = self.comm.all_gather_u64(&mine);
        let fine = self.commits(known.is_ok());
        let (true, Ok(known)) = (fine, known) else { return Ok(false) };
        let steps: Vec<u64> = known.chunks_exact(2).map(|pair| pair[0]).collect();
        self.attempts = known.chunks_exact(2).map(|pair| pair[1]).max().unwrap_or(0) as u32;
        let newest = steps.iter().copied().max().unwrap_or(0);
        let source = steps.iter().position(|step| *step == newest).unwrap_or(0);
        if newest == 0 {
            return Err("the last rank that had the state died".into());
        }
        self.fate.meet(Point::Restore, u64::from(self.attempts), self.comm.rank());
        let sent = self.ship(source);
        let Some(scratch) = self.commits(sent.is_ok()).then_some(sent).and_then(Result::ok) else {
            return Ok(false);
        };
        if self.comm.rank() != source {
            if self.step == Some(newest - 1) && self.state != scratch {
                return Err(format!("state differs from rank {source}'s at step {}", newest - 1));
            }
            self.state = scratch;
        }
        self.step = Some(newest - 1);
        Ok(true)
    }

    fn ship(&mut self, source: usize) -> Result<Vec<u64>, CommError> {
        let mut bytes: Vec<u8> = self.state.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.comm.broadcast(&mut bytes, source)?;
        let words = bytes.chunks_exact(8);
        Ok(words.map(|word| u64::from_le_bytes(word.try_into().expect("chunks of 8"))).collect())
    }
}

/// The clock of one repair.
struct Times {
    begun: Instant,
    repair: Repair,
}

impl Times {
    fn begin(last_commit: Instant) -> Self {
        let repair = Repair {
            step: 0,
            lost: Vec::new(),
            attempts: 0,
            detect: last_commit.elapsed().as_secs_f64(),
            revoke_shrink: 0.0,
            spawn: 0.0,
            merge: 0.0,
            warm: 0.0,
            restore: 0.0,
            total: 0.0,
        };
        Self { begun: last_commit, repair }
    }
}
