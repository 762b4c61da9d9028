//! How often touches miss in sweeps over X units on a card with room for C: played, and from
//! formulas. A step of training is a sweep forward and one backward over what the layers saved;
//! weights and the optimizer's values are swept one way each time.

use serde::Serialize;

use crate::config::MemoryPolicy;

use super::pager::{Access, Costs, Pager, What};

/// Room of the card, in units.
pub const CAPACITY: usize = 100;
/// X/C, in hundredths.
pub const LOADS: [usize; 7] = [50, 100, 105, 125, 150, 200, 400];
/// Passes until all is as it will be.
pub const WARM: usize = 4;
/// Passes that are counted.
pub const COUNTED: usize = 8;
/// What is played and what is computed may lie this far apart.
pub const AGREE: f64 = 0.01;

/// The way of a pass, two sweeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Sweep {
    /// Forward twice
    Cyclic,
    /// Forward, then backward
    ForwardBackward,
}

impl Sweep {
    /// The units of a pass, in order.
    pub fn pass(self, units: usize) -> impl Iterator<Item = usize> {
        (0..2 * units).map(move |at| match self {
            _ if at < units => at,
            Self::Cyclic => at - units,
            Self::ForwardBackward => 2 * units - 1 - at,
        })
    }

    /// Its misses over many units in the steady state; `load` is X/C.
    pub fn closed_form(self, policy: MemoryPolicy, load: f64) -> f64 {
        let least = (1.0 - 1.0 / load).max(0.0);
        match (self, policy) {
            _ if load <= 1.0 => 0.0,
            (_, MemoryPolicy::Belady) | (Self::ForwardBackward, MemoryPolicy::Lru) => least,
            // What comes next is always what was just evicted.
            (Self::Cyclic, MemoryPolicy::Driver | MemoryPolicy::Lru) => 1.0,
            (Self::ForwardBackward, MemoryPolicy::Driver) => least.max(0.5),
        }
    }
}

/// Misses of one policy at one load.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The way.
    pub sweep: Sweep,
    /// Who leaves first.
    pub policy: MemoryPolicy,
    /// X/C.
    pub load: f64,
    /// Share of touches that do not find their unit on the card.
    pub miss: f64,
    /// The same from a formula.
    pub closed_form: f64,
}

/// All sweeps, policies and loads.
pub fn play() -> Vec<Row> {
    let mut rows = Vec::new();
    for sweep in [Sweep::Cyclic, Sweep::ForwardBackward] {
        for policy in [MemoryPolicy::Driver, MemoryPolicy::Lru, MemoryPolicy::Belady] {
            rows.extend(LOADS.map(|hundredths| {
                let load = hundredths as f64 / 100.0;
                let miss = miss(sweep, policy, CAPACITY * hundredths / 100);
                Row { sweep, policy, load, miss, closed_form: sweep.closed_form(policy, load) }
            }));
        }
    }
    rows
}

/// Nothing is timed here.
const COSTS: Costs = Costs { link_bytes_per_second: 1.0, fault_seconds: 0.0, call_seconds: 0.0 };

fn miss(sweep: Sweep, policy: MemoryPolicy, units: usize) -> f64 {
    let mut pager = Pager::new(policy, COSTS, 1, CAPACITY);
    let ids: Vec<usize> = (0..units).map(|_| pager.allocate()).collect();
    let touches = || sweep.pass(units).map(|at| ids[at]);
    // Two passes more than are played: what Belady sees does not end where counting does.
    pager.foresee((0..WARM + COUNTED + 2).flat_map(|_| touches()));
    let mut warm = 0;
    for pass in 0..WARM + COUNTED {
        if pass == WARM {
            warm = pager.events.len();
        }
        touches().for_each(|unit| pager.touch(unit, Access::Read, 0.0));
    }
    misses(&pager, warm) as f64 / (COUNTED * 2 * units) as f64
}

/// Touches that did not find their unit, from an event on.
pub fn misses(pager: &Pager, from: usize) -> usize {
    let missed = |what| matches!(what, What::Faulted | What::Populated | What::Remote);
    pager.events[from..].iter().filter(|event| missed(event.what)).count()
}

#[cfg(test)]
mod tests;
