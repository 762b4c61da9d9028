//! The driver over a scripted communicator: one survivor of a world of two, whose n-th call fails.
//! Worlds of many ranks, with failures seen differently by each: `lab/simulate`.

use std::time::Duration;

use crate::cluster::comm::{
    Agreement, Call, CommError, Communicator, Elements, Membership, SpawnError, SpawnRequest,
    Waiting,
};
use crate::cluster::world::{Member, World};
use crate::config::{Point, Rung};

use super::*;
use crate::cluster::recovery::rollcall::Resident;
use crate::cluster::recovery::set::SetIdentity;
use crate::cluster::recovery::{Note, Participant, Policy};

/// Rank 0 of a world of two; rank 1 is dead. A replacement, when asked for, is an echo of rank 0
/// without state.
struct Script {
    size: usize,
    calls: Vec<&'static str>,
    /// Index of the call that fails, and how.
    fails: Option<(usize, CommError)>,
    revoked: bool,
    spawn: Result<(), SpawnError>,
    /// The replacement has listed another data set.
    strange: bool,
}

impl Script {
    fn new(fails: Option<(usize, CommError)>) -> Self {
        let (calls, spawn) = (Vec::new(), Ok(()));
        Self { size: 2, calls, fails, revoked: false, spawn, strange: false }
    }

    fn call(&mut self, name: &'static str) -> Result<(), CommError> {
        let index = self.calls.len();
        self.calls.push(name);
        match &self.fails {
            Some((at, error)) if *at == index => Err(error.clone()),
            _ if self.revoked => Err(CommError::Revoked),
            _ => Ok(()),
        }
    }
}

impl Communicator for Script {
    fn rank(&self) -> usize {
        0
    }
    fn size(&self) -> usize {
        self.size
    }
    fn all_reduce(&mut self, _: Elements<'_>) -> Result<(), CommError> {
        self.call("all_reduce")
    }
    fn all_gather_u64(&mut self, send: &[u64]) -> Result<Vec<u64>, CommError> {
        self.call("all_gather")?;
        let mut words = send.to_vec();
        if self.size == 2 {
            let mut other = send.to_vec();
            other[0] = 1;
            other[1] = 0;
            other[5] ^= u64::from(self.strange);
            words.extend(other);
        }
        Ok(words)
    }
    fn broadcast(&mut self, _: &mut [u8], _: usize) -> Result<(), CommError> {
        self.call("broadcast")
    }
    fn send(&mut self, _: &[u8], _: usize, _: u32) -> Result<(), CommError> {
        self.call("send")
    }
    fn recv(&mut self, _: &mut [u8], _: usize, _: u32) -> Result<(), CommError> {
        self.call("recv")
    }
    fn agree(&mut self, flags: u32) -> Agreement {
        self.revoked_is_no_matter();
        let outcome = self.call("agree");
        Agreement { flags, outcome }
    }
    fn revoke(&mut self) {
        self.calls.push("revoke");
        self.revoked = true;
    }
    fn shrink(&mut self) -> Result<(), CommError> {
        self.revoked_is_no_matter();
        self.call("shrink")?;
        self.size = 1;
        Ok(())
    }
    fn warm(&mut self) -> Result<(), CommError> {
        self.call("warm")
    }
    fn meet(&mut self, word: u64) -> Result<u64, CommError> {
        self.call("meet").map(|()| word)
    }
    fn is_broken(&mut self) -> bool {
        self.revoked
    }
    fn wait_by(&mut self, _: Waiting) {}
}

impl Membership for Script {
    fn spawn_and_merge(
        &mut self,
        request: &SpawnRequest,
        reached: &mut dyn FnMut(Point),
    ) -> Result<(), SpawnError> {
        assert_eq!((request.my_rank, request.ranks), (0, 2));
        assert_eq!(request.lost, [1]);
        reached(Point::InSpawn);
        self.call("spawn").map_err(|error| SpawnError::Failed(error.to_string()))?;
        self.spawn.clone()?;
        reached(Point::InMerge);
        self.size = 2;
        Ok(())
    }
    fn finalize(&mut self) {
        self.calls.push("finalize");
    }
    fn ranks(&self) -> usize {
        2
    }
    fn waits(&self) -> bool {
        false
    }
    fn born(&self) -> u32 {
        0
    }
    fn introduce(&mut self, words: &[u64]) -> Result<Vec<u64>, CommError> {
        self.all_gather_u64(words)
    }
    fn seat(&mut self, _: &[Option<usize>]) -> Result<(), CommError> {
        self.call("seat")
    }
    fn watch(&mut self, _: &[u32]) {}
    fn lived_through_repair(&mut self) {}
    fn await_call(&mut self, _: &[u32], _: &mut dyn FnMut()) -> Call {
        Call::Abandoned
    }
    fn failed_spares(&mut self) -> Vec<usize> {
        Vec::new()
    }
}

impl Script {
    /// Agree and shrink work on a revoked communicator; what follows is a new one.
    fn revoked_is_no_matter(&mut self) {
        self.revoked = false;
    }
}

#[derive(Default)]
struct Process {
    who: Participant,
    step: Option<u64>,
    reached: Vec<Point>,
    adopted: Vec<World>,
    transfers: Vec<(usize, Vec<usize>, u64)>,
    /// How far the clock jumps with every look, in ms.
    tick_ms: u64,
    now_ms: std::cell::Cell<u64>,
}

impl Hooks for Process {
    fn now(&self) -> Duration {
        self.now_ms.set(self.now_ms.get() + self.tick_ms);
        Duration::from_millis(self.now_ms.get())
    }
    fn who(&self) -> &Participant {
        &self.who
    }
    fn committed_step(&self) -> Option<u64> {
        self.step
    }
    fn transfer(
        &mut self,
        comm: &mut dyn Communicator,
        source: usize,
        receivers: &[usize],
        step: u64,
    ) -> Result<(), CommError> {
        comm.send(&[1], receivers[0], 0)?;
        self.transfers.push((source, receivers.to_vec(), step));
        Ok(())
    }
    fn adopt(&mut self, world: &World) {
        self.adopted.push(world.clone());
    }
    fn tell(&mut self, remark: Remark) {
        if let Remark::Reached(point) = remark {
            self.reached.push(point);
        }
    }
}

fn two() -> World {
    World::of_test(2, 4)
}

fn policy(ladder: &[Rung]) -> Policy {
    Policy::new(ladder.to_vec(), 2, Duration::from_secs(10))
}

fn process() -> Process {
    let who = Participant { pid: 42, host: "here".into(), arguments: vec!["train".into()] };
    Process { who, step: Some(7), tick_ms: 1, ..Process::default() }
}

#[test]
fn a_calm_respawn_makes_exactly_these_calls() {
    let (mut comm, mut world, mut process) = (Script::new(None), two(), process());
    let repaired = recover(&mut comm, &mut world, &policy(&[Rung::Respawn]), &mut process).unwrap();
    assert_eq!(
        comm.calls,
        [
            "revoke",
            "shrink",
            "all_gather",
            "agree",
            "spawn",
            "warm",
            "all_gather",
            "agree",
            "broadcast",
            "broadcast",
            "send",
            "agree"
        ]
    );
    use Point::{InMerge, InRestore, InRevoke, InShrink, InSpawn};
    assert_eq!(process.reached, [InRevoke, InShrink, InSpawn, InMerge, InRestore]);
    assert_eq!(process.transfers, [(0, vec![1], 7)]);
    assert_eq!(process.adopted, [world.clone()]);
    assert_eq!((repaired.rung, repaired.step), (Rung::Respawn, 7));
    assert_eq!(repaired.lost, [two().members[1].clone()]);
    assert_eq!((world.generation, world.members[1].member), (1, 2));
    assert_eq!(world.owners, two().owners);
    assert!(repaired.seconds.values().all(|s| *s > 0.0), "{:?}", repaired.seconds);
    let phases: Vec<&str> = repaired.seconds.keys().map(String::as_str).collect();
    assert_eq!(phases, ["agree", "merge", "restore", "revoke_shrink", "spawn"]);
}

#[test]
fn a_shrink_renumbers_and_ships_nothing() {
    let (mut comm, mut world, mut process) = (Script::new(None), two(), process());
    let ladder = [Rung::Spare, Rung::Shrink];
    let repaired = recover(&mut comm, &mut world, &policy(&ladder), &mut process).unwrap();
    assert_eq!(repaired.rung, Rung::Shrink);
    assert_eq!((world.ranks(), world.generation), (1, 1));
    assert_eq!(world.owners_of(0), [0, 1, 2, 3]);
    assert!(process.transfers.is_empty());
    assert!(matches!(&repaired.notes[..], [Note::RungDown { from: Rung::Spare, .. }]));
}

#[test]
fn a_newcomer_with_another_data_set_is_refused_by_name() {
    let (mut comm, mut world, mut process) = (Script::new(None), two(), process());
    comm.strange = true;
    let ladder = [Rung::Respawn, Rung::Shrink];
    let repaired = recover(&mut comm, &mut world, &policy(&ladder), &mut process).unwrap();
    assert_eq!((repaired.rung, world.ranks()), (Rung::Shrink, 1));
    assert_eq!(comm.calls.iter().filter(|call| **call == "spawn").count(), 1, "one try");
    let [Note::RungDown { from: Rung::Respawn, reason, .. }] = &repaired.notes[..] else {
        panic!("{:?}", repaired.notes);
    };
    assert!(reason.contains("newcomer for rank 1 (on here) has listed"), "{reason}");
    assert!(process.transfers.is_empty(), "nothing was shipped");
}

#[test]
fn a_shrink_that_would_leave_too_few_is_not_made() {
    let policy = |ladder: &[Rung]| Policy { ranks_min: 2, ..policy(ladder) };
    for (ladder, says) in [
        (&[Rung::Shrink, Rung::Restart][..], "restart is next"),
        (&[Rung::Shrink][..], "no rung is left"),
    ] {
        let (mut comm, mut world, mut process) = (Script::new(None), two(), process());
        let given_up = recover(&mut comm, &mut world, &policy(ladder), &mut process);
        let reason = given_up.unwrap_err().to_string();
        assert!(reason.contains(says) && reason.contains("recovery.min_ranks = 2"), "{reason}");
        assert!(process.adopted.is_empty() && world == two(), "nothing was touched");
    }
}

/// The world of two, its second rank elsewhere.
fn apart() -> World {
    let mut world = two();
    world.members[1].host = "there".into();
    world
}

#[test]
fn half_of_the_nodes_without_the_supervisors_repairs_nothing_and_adopts_nothing() {
    let (mut comm, mut world, mut process) = (Script::new(None), apart(), process());
    let ladder = policy(&[Rung::Respawn, Rung::Shrink]);
    let gave_up = recover(&mut comm, &mut world, &ladder, &mut process).unwrap_err();
    assert_eq!(gave_up.leaves, Leaves::Outvoted);
    assert!(gave_up.reason.contains("1 of 2 nodes (here)"), "{gave_up}");
    assert_eq!(comm.calls, ["revoke", "shrink", "all_gather", "agree", "revoke"]);
    assert!(process.adopted.is_empty() && world == apart());
}

#[test]
fn a_rank_that_leaves_on_purpose_takes_no_vote_with_it() {
    let (mut comm, mut world, mut process) = (Script::new(None), apart(), process());
    let policy = Policy { leave_from: Some(1), ..policy(&[Rung::Shrink]) };
    let repaired = recover(&mut comm, &mut world, &policy, &mut process).unwrap();
    assert_eq!((repaired.rung, world.ranks()), (Rung::Shrink, 1));
}

/// The rule that keeps others from waiting for ever (ARCHITECTURE.md, "The commit rule").
fn assert_errors_revoke_before_agree(comm: &Script, failed: usize) {
    if ["all_gather", "warm", "broadcast", "send"].contains(&comm.calls[failed]) {
        assert_eq!(comm.calls[failed + 1], "revoke", "{failed}: {:?}", comm.calls);
    }
}

#[test]
fn whichever_call_fails_the_next_try_succeeds_and_errors_revoke_before_agree() {
    for ladder in [[Rung::Respawn], [Rung::Shrink]] {
        let mut calm = Script::new(None);
        recover(&mut calm, &mut two(), &policy(&ladder), &mut process()).unwrap();
        for failed in 0..calm.calls.len() {
            for error in [CommError::ProcFailed, CommError::Revoked, CommError::Pending] {
                let (mut comm, mut world) = (Script::new(Some((failed, error))), two());
                let mut process = process();
                recover(&mut comm, &mut world, &policy(&ladder), &mut process).unwrap();
                assert_errors_revoke_before_agree(&comm, failed);
                assert_eq!(world.generation, 1, "one repair, however often it was tried");
                assert_eq!(process.adopted.len(), 1, "adopted once, after the agreement");
            }
        }
    }
}

#[test]
fn a_fatal_error_ends_the_run_and_says_which_call() {
    let fatal = CommError::Fatal { call: "MPI_Allgather", class: 16, text: "other".into() };
    let (mut comm, mut world) = (Script::new(Some((2, fatal))), two());
    let gave_up = recover(&mut comm, &mut world, &policy(&[Rung::Shrink]), &mut process());
    let text = gave_up.unwrap_err().to_string();
    assert!(text.contains("MPI_Allgather") && text.contains("class 16"), "{text}");
    assert_eq!(world, two(), "a world that could not be repaired is left as it was");
}

#[test]
fn a_refused_spawn_takes_the_next_rung_from_a_fresh_shrink() {
    let (mut comm, mut world, mut process) = (Script::new(None), two(), process());
    comm.spawn = Err(SpawnError::Refused("no slot".into()));
    let ladder = [Rung::Respawn, Rung::Shrink];
    let repaired = recover(&mut comm, &mut world, &policy(&ladder), &mut process).unwrap();
    assert_eq!(repaired.rung, Rung::Shrink);
    assert_eq!(comm.calls.iter().filter(|c| **c == "shrink").count(), 2);
    let note = Note::RungDown { from: Rung::Respawn, to: Rung::Shrink, reason: "no slot".into() };
    assert_eq!(repaired.notes, [note]);
}

#[test]
fn joining_that_keeps_failing_is_tried_as_often_as_allowed() {
    let (mut comm, mut world, mut process) = (Script::new(None), two(), process());
    comm.spawn = Err(SpawnError::Failed("no hello".into()));
    let ladder = [Rung::Respawn, Rung::Restart];
    let gave_up = recover(&mut comm, &mut world, &policy(&ladder), &mut process).unwrap_err();
    assert_eq!(comm.calls.iter().filter(|c| **c == "spawn").count(), 2);
    let text = "recovery gave up: restart is next: no hello; lost rank 1 (member 1, here)";
    assert_eq!((gave_up.leaves, gave_up.reason.as_str()), (Leaves::WithAll, text));
    assert_eq!(comm.calls.last(), Some(&"revoke"), "nobody is left waiting for this rank");
}

#[test]
fn a_repair_that_takes_too_long_gives_up() {
    let (mut comm, mut world) = (Script::new(None), two());
    let mut process = Process { tick_ms: 20_000, ..process() };
    let gave_up = recover(&mut comm, &mut world, &policy(&[Rung::Shrink]), &mut process);
    assert!(gave_up.unwrap_err().to_string().contains("time limit"));
}

#[test]
fn without_state_anywhere_recovery_ends() {
    let (mut comm, mut process) = (Script::new(None), Process::default());
    let gave_up = join(&mut comm, &policy(&[Rung::Respawn]), &mut process).unwrap_err();
    assert!(gave_up.to_string().contains("all state was lost"), "{gave_up}");
}

#[test]
fn a_newcomer_on_a_new_host_gets_a_node_of_its_own() {
    let resident = |slot: usize, step: Option<u64>, host: &str| Resident {
        slot,
        step,
        generation: 0,
        set: SetIdentity::default(),
        pid: 9,
        host: host.into(),
    };
    let holdings = Holdings {
        residents: vec![resident(0, Some(3), "here"), resident(1, None, "there")],
        source: 0,
        receivers: vec![1],
        step: 3,
    };
    let (world, lost) = next_world(&two(), &holdings, &[]);
    assert_eq!((world.members[1].node, world.members[1].pid), (1, 9));
    assert_eq!(lost.len(), 1);
}

#[test]
fn a_rank_that_went_back_and_has_no_copy_is_still_who_it_was() {
    let old = two();
    let resident = |slot: usize, step: Option<u64>| Resident {
        slot,
        step,
        generation: 0,
        set: SetIdentity::default(),
        pid: old.members[slot].pid,
        host: old.members[slot].host.clone(),
    };
    let holdings = Holdings {
        residents: vec![resident(0, Some(3)), resident(1, None)],
        source: 0,
        receivers: vec![1],
        step: 3,
    };
    let (world, lost) = next_world(&old, &holdings, &[]);
    let seats =
        |world: &World| world.members.iter().map(|m| (m.rank, m.member, m.pid)).collect::<Vec<_>>();
    assert_eq!((seats(&world), lost), (seats(&old), Vec::new()));
}

#[test]
fn slots_beyond_the_old_ranks_make_the_world_larger() {
    let resident = |slot: usize, step: Option<u64>| Resident {
        slot,
        step,
        generation: 0,
        set: SetIdentity::default(),
        pid: 9,
        host: "here".into(),
    };
    let holdings = Holdings {
        residents: vec![resident(0, Some(3)), resident(2, None), resident(3, None)],
        source: 0,
        receivers: vec![1, 2],
        step: 3,
    };
    let (world, lost) = next_world(&two(), &holdings, &[]);
    let seats: Vec<(u32, u32)> = world.members.iter().map(|m| (m.rank, m.member)).collect();
    assert_eq!(seats, [(0, 0), (1, 2), (2, 3)], "rank 1 died while two were coming");
    assert_eq!(lost.iter().map(|m| m.member).collect::<Vec<_>>(), [1]);
    assert_eq!((world.generation, world.target), (1, 2));
}

#[test]
fn one_repair_can_replace_one_rank_and_drop_another() {
    let mut members = two().members;
    members.push(Member { member: 2, rank: 2, pid: 2, ..members[0].clone() });
    let old = World::initial(1, members, 6);
    let resident = |slot: usize, step: Option<u64>| Resident {
        slot,
        step,
        generation: 0,
        set: SetIdentity::default(),
        pid: 9,
        host: "here".into(),
    };
    let holdings = Holdings {
        residents: vec![resident(0, None), resident(2, Some(3))],
        source: 1,
        receivers: vec![0],
        step: 3,
    };
    let (world, lost) = next_world(&old, &holdings, &[]);
    assert_eq!(world.generation, 1);
    let seats: Vec<(u32, u32)> = world.members.iter().map(|m| (m.rank, m.member)).collect();
    assert_eq!(seats, [(0, 3), (1, 2)]);
    assert_eq!(lost.iter().map(|m| m.member).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(world.owners, [0, 0, 0, 1, 1, 1]);
}
