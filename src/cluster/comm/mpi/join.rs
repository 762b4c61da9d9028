//! How replacements come in. Survivors: the leader alone spawns, over MPI_COMM_SELF, and waits a
//! bounded time for a hello; then all bridge, merge, reorder. Each step is followed by an
//! agreement, and whoever meets an error revokes *before* it agrees, else its peers stay blocked
//! in the broken collective. No wait is without a bound: an alarm ends a process that overstays.

use std::time::{Duration, Instant};

use kintsugi_ffi::life::Mark;
use kintsugi_ffi::mpi::{self, Comm, MpiError};
use kintsugi_ffi::os;

use super::arguments::JoinArguments;
use super::leader;
use super::pool::revoke;
use crate::cluster::comm::{CommError, SpawnError, SpawnRequest};
use crate::config::Point;
use crate::observe::build;

/// Of the hello: build, pid and pid space, three little-endian words.
const HELLO_TAG: u16 = 5;
const HELLO_BYTES: usize = 24;
/// Slots asked for beside the replacements' own: dead processes never give theirs back.
const SPARE_SLOTS: usize = 16;
/// Longest life of a process that has not become a member.
const JOIN_SECONDS_MAX: u32 = 15;

/// `MPI_Comm_spawn` on the leader, which dies after it: the runtime waits for ever for a child that
/// died before it called MPI_Init.
const SPAWN_SECONDS_MAX: u32 = 10;
/// From the return of spawn to every hello. The news of a death that comes before the runtime
/// introduced the process is lost, so silence is all there is.
const HELLO_MAX: Duration = Duration::from_millis(2500);
/// A whole attempt to bring replacements in, on every survivor.
const ATTEMPT_SECONDS_MAX: u32 = 30;

/// Where a replacement stands (fault injection).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JoinPoint {
    /// Before `MPI_Init`.
    Start,
    /// Initialised, has not said hello.
    Hello,
    /// Before `MPI_Intercomm_create`.
    Bridge,
    /// Before the merge with all survivors.
    Merge,
    /// Before the ranks are put in order.
    Reorder,
    /// Before the first agreement of the new world.
    Agree,
}

// ---- the replacement's side ----

/// Starts MPI in a replacement and makes it a member of the world.
pub(super) fn join(
    arguments: &JoinArguments,
    reached: &mut dyn FnMut(JoinPoint),
) -> Result<Comm, CommError> {
    os::die_after(
        JOIN_SECONDS_MAX,
        "kintsugi: this replacement did not become a member in time; the survivors try again\n",
    );
    let _leader = leader::Watched::begin(arguments.leader);
    reached(JoinPoint::Start);
    let siblings = mpi::initialise()?;
    let world = meet(&siblings, arguments, reached)?;
    os::alarm(0);
    Ok(world)
}

fn meet(
    siblings: &Comm,
    arguments: &JoinArguments,
    reached: &mut dyn FnMut(JoinPoint),
) -> Result<Comm, CommError> {
    let index = siblings.rank()?;
    let Some(&slot) = arguments.ranks.get(index) else {
        let text = format!("replacement {index} of {} started", arguments.ranks.len());
        return Err(CommError::Fatal { call: "join", class: 0, text });
    };
    let parent = mpi::parent()?;
    reached(JoinPoint::Hello);
    parent.send(&hello(), 0, HELLO_TAG)?;
    let leader = parent.merge_high()?;
    reached(JoinPoint::Bridge);
    let bridge = siblings.bridge(Some(&leader), 0).inspect_err(|_| revoke(siblings))?;
    reached(JoinPoint::Merge);
    let all = bridge.merge_high()?;
    reached(JoinPoint::Reorder);
    let world = all.reorder(slot)?;
    reached(JoinPoint::Agree);
    meet_all(&world, slot, arguments.world_ranks)?;
    Ok(world)
}

fn hello() -> [u8; HELLO_BYTES] {
    let mut body = [0; HELLO_BYTES];
    let words = [build::id(), u64::from(std::process::id()), os::pid_space()];
    for (into, word) in body.chunks_exact_mut(8).zip(words) {
        into.copy_from_slice(&word.to_le_bytes());
    }
    body
}

/// The last step on both sides: everybody is in and at its rank, or the new world is no good.
fn meet_all(world: &Comm, rank: usize, ranks: usize) -> Result<(), CommError> {
    let in_place = world.rank() == Ok(rank) && world.size() == Ok(ranks);
    let met = world.barrier();
    if met.is_err() {
        revoke(world);
    }
    let (flags, outcome) = world.agree(u32::from(met.is_ok() && in_place));
    outcome?;
    if flags & 1 == 1 { Ok(()) } else { Err(CommError::ProcFailed) }
}

// ---- the survivors' side ----

/// One process of those that bring others in.
#[derive(Debug)]
pub(super) struct Survivor<'a> {
    /// All of them.
    pub comm: &'a Comm,
    /// Its rank there.
    pub rank: usize,
    /// Which attempt of this world to bring somebody in, from 1.
    pub attempt_of_join: u32,
}

/// The old members and the new ones.
#[derive(Debug)]
pub(super) struct Merged {
    pub comm: Comm,
    /// What everybody's first meeting there came to.
    pub settled: Result<(), CommError>,
}

/// Disarms the alarm wherever the attempt ends.
struct Watchdog;

impl Watchdog {
    fn arm(seconds: u32) -> Self {
        os::die_after(
            seconds,
            "kintsugi: bringing in a replacement hung; this rank gives way to the others\n",
        );
        Self
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        os::alarm(0);
    }
}

/// What the leader holds of the processes it started.
#[derive(Debug)]
struct Newcomers {
    /// Leader and replacements.
    merged: Comm,
    /// Replacements on this machine, to be killed if the attempt is given up; else they would
    /// linger until their own alarm and delay the end of the job.
    pids: Vec<u32>,
}

impl Newcomers {
    fn give_up(&self) {
        revoke(&self.merged);
        kill_all(&self.pids);
    }
}

fn kill_all(pids: &[u32]) {
    for &pid in pids {
        // It may be dead already; that was the aim.
        let _ = os::kill(pid, os::Signal::Kill);
    }
}

/// `Membership::spawn_and_merge` over MPI.
pub(super) fn spawn_and_merge(
    survivor: &Survivor<'_>,
    request: &SpawnRequest,
    reached: &mut dyn FnMut(Point),
) -> Result<Merged, SpawnError> {
    let _watchdog = Watchdog::arm(ATTEMPT_SECONDS_MAX);
    let survivors = survivor.comm;
    let hosts = survivors.all_gather(&[host_number()]);
    if hosts.is_err() {
        revoke(survivors);
    }
    reached(Point::InSpawn);
    let spawned = if survivor.rank == 0 {
        hosts.map_err(Born::stillborn).and_then(|hosts| spawn(survivor, request, &hosts))
    } else {
        hosts.map(|_| None).map_err(Born::stillborn)
    };
    let newcomers = agree_on_spawn(survivors, spawned)?;
    reached(Point::InMerge);
    let world = connect(survivors, newcomers.as_ref(), request.my_rank);
    let comm = world.inspect_err(|_| {
        if let Some(newcomers) = &newcomers {
            newcomers.give_up();
        }
        revoke(survivors);
    })?;
    let settled = meet_all(&comm, request.my_rank, request.ranks);
    Ok(Merged { comm, settled })
}

/// Why there is nobody to merge with.
#[derive(Debug)]
struct Born {
    /// The runtime started processes (some died, or did not answer).
    started: bool,
    error: MpiError,
}

impl Born {
    fn stillborn(error: MpiError) -> Self {
        // Not the runtime's refusal: a survivor died, so trying again makes sense.
        Self { started: true, error }
    }
}

/// The leader's part: start them, hear from each, merge.
fn spawn(
    leader: &Survivor<'_>,
    request: &SpawnRequest,
    hosts: &[u64],
) -> Result<Option<Newcomers>, Born> {
    let count = request.lost.len();
    let join = JoinArguments {
        attempt_of_join: leader.attempt_of_join,
        ranks: request.lost.clone(),
        world_ranks: request.ranks,
        leader: Mark::own(),
    };
    let mut arguments = request.arguments.clone();
    arguments.extend(["--join".to_owned(), join.to_argument()]);
    let host = several(hosts).then(|| format!("{}:{}", os::hostname(), count + SPARE_SLOTS));
    let refused = |error| Born { started: false, error };
    let program = program().map_err(refused)?;
    os::die_after(
        SPAWN_SECONDS_MAX,
        "kintsugi: MPI_Comm_spawn did not return; this leader gives way to the next\n",
    );
    let inter = mpi::spawn(&program, &arguments, count, host.as_deref()).map_err(refused)?;
    os::alarm(ATTEMPT_SECONDS_MAX);
    let (pids, heard) = hear(&inter, count, HELLO_MAX);
    let merged = heard.and_then(|()| inter.merge_low().map_err(Born::stillborn));
    match merged {
        Ok(merged) => Ok(Some(Newcomers { merged, pids })),
        Err(born) => {
            kill_all(&pids);
            Err(born)
        }
    }
}

/// Replacements of another build could compute other bits.
fn another_build() -> Born {
    let text = "the program's file holds another build than the ranks run: put the old one back, \
                or start the run again with the new one";
    let error = MpiError::Other { call: "MPI_Comm_spawn", class: 0, text: text.into() };
    Born { started: false, error }
}

/// This program, also where its file was replaced by a new build since it started.
fn program() -> Result<String, MpiError> {
    let refuse = |text: String| MpiError::Other { call: "MPI_Comm_spawn", class: 0, text };
    let path = std::env::current_exe()
        .map_err(|error| refuse(format!("this program's own path is unknown: {error}")))?;
    let text = path.into_os_string().into_string();
    let text = text.map_err(|path| refuse(format!("{path:?} is not UTF-8: move the program")))?;
    Ok(text.strip_suffix(" (deleted)").unwrap_or(&text).to_owned())
}

/// Waits for every hello; gives the pids on this machine, also of those heard before an error.
fn hear(inter: &Comm, count: usize, limit: Duration) -> (Vec<u32>, Result<(), Born>) {
    let deadline = Instant::now() + limit;
    let (mut pids, own, mut foreign) = (Vec::new(), build::id(), false);
    for index in 0..count {
        let mut body = [0; HELLO_BYTES];
        let left = deadline.saturating_duration_since(Instant::now());
        if let Err(error) = inter.recv_within(&mut body, index, HELLO_TAG, left) {
            return (pids, Err(Born::stillborn(error)));
        }
        let words = [0, 8, 16]
            .map(|at| u64::from_le_bytes(body[at..at + 8].try_into().expect("eight bytes")));
        foreign |= words[0] != own;
        if words[2] == os::pid_space() {
            pids.extend(u32::try_from(words[1]).ok());
        }
    }
    (pids, if foreign { Err(another_build()) } else { Ok(()) })
}

/// FNV-1a of the node's name.
fn host_number() -> u64 {
    os::hostname().bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// Several nodes: a replacement has to go where a rank of this job lives, and ours does.
fn several(hosts: &[u64]) -> bool {
    hosts.windows(2).any(|pair| pair[0] != pair[1])
}

/// Bit 0 of the vote after spawn: no error here. Bit 1: the runtime started processes (true on all
/// who cannot know). From bit 8: the error class of a refusal, all ones on the others, so that
/// every survivor learns the leader's.
const FINE: u32 = 1;
const STARTED: u32 = 2;
const CLASS_SHIFT: u32 = 8;
const CLASS_MASK: u32 = 0xffff;

fn agree_on_spawn(
    survivors: &Comm,
    spawned: Result<Option<Newcomers>, Born>,
) -> Result<Option<Newcomers>, SpawnError> {
    let vote = match &spawned {
        Ok(_) => u32::MAX,
        Err(Born { started: true, .. }) => !FINE,
        Err(Born { started: false, error }) => {
            let class = error.class().cast_unsigned() & CLASS_MASK;
            (class << CLASS_SHIFT) | 0xff & !(FINE | STARTED)
        }
    };
    let (flags, outcome) = survivors.agree(vote);
    let verdict = match outcome {
        Err(error) => Err(SpawnError::Failed(error.to_string())),
        Ok(()) if flags & STARTED == 0 => {
            let class = ((flags >> CLASS_SHIFT) & CLASS_MASK).cast_signed();
            Err(SpawnError::Refused(refusal(class, spawned.as_ref().err())))
        }
        Ok(()) if flags & FINE == 0 => Err(SpawnError::Failed(match &spawned {
            Err(born) => born.error.to_string(),
            Ok(_) => "another rank met an error while the leader spawned".into(),
        })),
        Ok(()) => Ok(()),
    };
    match (verdict, spawned) {
        (Ok(()), Ok(newcomers)) => Ok(newcomers),
        (Ok(()), Err(born)) => Err(SpawnError::Failed(born.error.to_string())),
        (Err(error), spawned) => {
            if let Ok(Some(newcomers)) = &spawned {
                newcomers.give_up();
            }
            if matches!(error, SpawnError::Failed(_)) {
                revoke(survivors);
            }
            Err(error)
        }
    }
}

/// The same text everywhere, but for a leader that did not even get as far as MPI.
fn refusal(class: i32, leaders: Option<&Born>) -> String {
    const HINT: &str = "every replacement needs a free slot: start with --oversubscribe";
    match (class, leaders) {
        (0, Some(born)) => born.error.to_string(),
        (0, None) => {
            "MPI_Comm_spawn: the leader's program cannot be used (its log says why)".into()
        }
        _ => format!("MPI_Comm_spawn: {} (class {class}; {HINT})", mpi::error_text(class)),
    }
}

/// Bridge, merge, reorder; each agreed on before the next.
fn connect(
    survivors: &Comm,
    newcomers: Option<&Newcomers>,
    my_rank: usize,
) -> Result<Comm, SpawnError> {
    let bridge = survivors.bridge(newcomers.map(|newcomers| &newcomers.merged), 1);
    // On error the others sit in a broadcast on the survivors' communicator.
    let bridge = agree_on(survivors, bridge, survivors, "MPI_Intercomm_create")?;
    let all = bridge.merge_low();
    let all = agree_on(survivors, all, &bridge, "MPI_Intercomm_merge");
    let all = all.inspect_err(|_| revoke(&bridge))?;
    let world = all.reorder(my_rank);
    let world = agree_on(survivors, world, &all, "MPI_Comm_split");
    world.inspect_err(|_| {
        revoke(&all);
        revoke(&bridge);
    })
}

/// All got it, or nobody keeps it. `blocked` is where the others may be waiting.
fn agree_on(
    survivors: &Comm,
    mine: Result<Comm, MpiError>,
    blocked: &Comm,
    call: &'static str,
) -> Result<Comm, SpawnError> {
    if mine.is_err() {
        revoke(blocked);
    }
    let (flags, outcome) = survivors.agree(u32::from(mine.is_ok()));
    match (mine, outcome) {
        (Ok(made), Ok(())) if flags & 1 == 1 => Ok(made),
        (Ok(made), outcome) => {
            revoke(&made); // a newcomer may be waiting in it
            let reason = outcome.err().map(|error| error.to_string());
            let reason = reason.unwrap_or_else(|| "another rank met an error".into());
            Err(SpawnError::Failed(format!("{call}: {reason}")))
        }
        (Err(error), _) => Err(SpawnError::Failed(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_node_lets_the_runtime_choose() {
        assert!(!several(&[]));
        assert!(!several(&[7, 7, 7]));
        assert!(several(&[7, 8]));
    }
}
