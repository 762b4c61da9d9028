//! Worlds that grow in simulation: whoever dies, of the old ranks or the new ones, before or after
//! they joined, those who live end in one world, of one state, with every owner dealt once.

use std::time::Duration;

use crate::cluster::comm::sim::{self, End, JoinInfo, SimClock, SimComm, SimOptions, Trace};
use crate::cluster::comm::{CommError, Communicator, Membership as _};
use crate::cluster::recovery::{Hooks, Participant, Policy, Remark};
use crate::cluster::world::World;
use crate::config::Rung;
use crate::observe::clock::Clock;

use super::super::{join, recover};
use super::{Growth, grow};

const SEEDS: u64 = 400;
const BEFORE: usize = 3;
const AFTER: usize = 5;
const OWNERS: u32 = 12;
const STEP: u64 = 7;
/// More than any schedule has deaths.
const TRIES_MAX: u32 = 40;

struct Process {
    state: Option<u64>,
    received: Option<u64>,
    who: Participant,
    clock: SimClock,
}

impl Hooks for Process {
    fn now(&self) -> Duration {
        self.clock.now()
    }
    fn who(&self) -> &Participant {
        &self.who
    }
    fn committed_step(&self) -> Option<u64> {
        self.state
    }
    fn transfer(
        &mut self,
        comm: &mut dyn Communicator,
        source: usize,
        receivers: &[usize],
        _: u64,
    ) -> Result<(), CommError> {
        if comm.rank() == source {
            let state = self.state.expect("the source has a state").to_le_bytes();
            receivers.iter().try_for_each(|&to| comm.send(&state, to, 3))
        } else if receivers.contains(&comm.rank()) {
            let mut state = [0; 8];
            comm.recv(&mut state, source, 3)?;
            self.received = Some(u64::from_le_bytes(state));
            Ok(())
        } else {
            Ok(())
        }
    }
    fn adopt(&mut self, _: &World) {
        self.state = self.state.or(self.received.take());
    }
    fn tell(&mut self, _: Remark) {}
}

fn policy(ladder: &[Rung]) -> Policy {
    Policy::new(ladder.to_vec(), 3, Duration::from_secs(600))
}

fn first_world() -> World {
    let mut world = World::of_test(BEFORE as u32, OWNERS);
    world.target = AFTER as u32;
    world
}

/// More deaths than two could take all state before a newcomer has it.
const DEATHS_MAX: u32 = 2;

/// Grows the world, repairs it until an agreement succeeds, and tells what it is then.
fn program(mut comm: SimComm, born: Option<&JoinInfo>, ladder: &[Rung]) -> (World, Option<u64>) {
    let policy = policy(ladder);
    let state = born.is_none().then_some(STEP);
    let (number, clock) = (comm.process() as u32, comm.clock());
    let who = Participant { pid: number, host: "here".into(), arguments: Vec::new() };
    let mut process = Process { state, received: None, who, clock };
    let mut world = first_world();
    match born {
        Some(_) => world = join(&mut comm, &policy, &mut process).expect("the world lives").0,
        None => {
            let grown = grow(&mut comm, &mut world, AFTER, &policy, &mut process);
            if let Growth::Broken(..) = grown.expect("the world lives") {
                recover(&mut comm, &mut world, &policy, &mut process).expect("the world lives");
            }
        }
    }
    for _ in 0..TRIES_MAX {
        let met = comm.all_gather_u64(&[u64::from(number)]);
        if met.is_err() {
            comm.revoke();
        }
        if comm.agree(u32::from(met.is_ok())).committed() {
            comm.finalize();
            return (world, process.state);
        }
        recover(&mut comm, &mut world, &policy, &mut process).expect("the world lives");
    }
    panic!("{TRIES_MAX} repairs");
}

fn fault_of(outcome: &sim::SimOutcome<(World, Option<u64>)>) -> Option<String> {
    if let Some(why) = &outcome.stuck {
        return Some(format!("stuck: {why}"));
    }
    if let Some(End::Panicked(text)) = outcome.ends.iter().find(|e| matches!(e, End::Panicked(_))) {
        return Some(format!("panicked: {text}"));
    }
    let ends: Vec<_> = outcome.finished().collect();
    let Some((world, _)) = ends.first() else { return Some("nobody is left".into()) };
    if let Some(other) = ends.iter().find(|end| end.0 != *world || end.1 != Some(STEP)) {
        return Some(format!("two worlds: {world:?} and {other:?}"));
    }
    let owners: usize = (0..world.ranks()).map(|rank| world.owners_of(rank).len()).sum();
    let late = world.ranks().abs_diff(ends.len());
    if owners != OWNERS as usize || late > outcome.deaths as usize || world.target != AFTER as u32 {
        return Some(format!("{} finished in {world:?}", ends.len()));
    }
    None
}

fn hold(ladder: &[Rung], options: &SimOptions) -> Vec<usize> {
    let one = std::env::var("SIMULATE_SEED").ok().and_then(|seed| seed.parse().ok());
    let mut sizes = Vec::new();
    for seed in one.map_or(0..SEEDS, |seed: u64| seed..seed + 1) {
        let outcome = sim::run(seed, BEFORE, options.clone(), |comm, born| {
            program(comm, born.as_ref(), ladder)
        });
        if let Some(why) = fault_of(&outcome) {
            let trace = outcome.trace.join("\n");
            let test = std::thread::current().name().unwrap_or_default().to_owned();
            panic!("{trace}\n{why}\nreplay: SIMULATE_SEED={seed} cargo test --lib {test}");
        }
        sizes.extend(outcome.finished().next().map(|(world, _)| world.ranks()));
    }
    sizes
}

#[test]
fn a_calm_world_grows() {
    let sizes = hold(&[Rung::Shrink], &SimOptions::calm());
    assert!(sizes.iter().all(|ranks| *ranks == AFTER));
}

#[test]
fn whoever_dies_while_a_world_grows_the_living_go_on() {
    let storm = SimOptions { trace: Trace::Kept, ..SimOptions::stormy(DEATHS_MAX) };
    for ladder in
        [&[Rung::Spare, Rung::Respawn, Rung::Shrink][..], &[Rung::Shrink], &[Rung::Respawn]]
    {
        let sizes = hold(ladder, &storm);
        let grown = sizes.iter().filter(|ranks| **ranks == AFTER).count();
        assert!(grown > 0 && grown < sizes.len(), "{grown} of {} grew whole", sizes.len());
    }
}

#[test]
fn a_runtime_that_refuses_leaves_the_world_as_it_was() {
    let refusing = SimOptions { refusal_chance: 1.0, trace: Trace::Kept, ..SimOptions::calm() };
    let sizes = hold(&[Rung::Shrink], &refusing);
    assert!(sizes.iter().all(|ranks| *ranks == BEFORE));
}
