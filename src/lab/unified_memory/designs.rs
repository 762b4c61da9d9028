//! The three designs of Negishi et al. for a trainer over managed memory, on a card with room for
//! C of the X units that a step's layers save. Forward writes each unit, backward reads it, and
//! then it is worth nothing. Units keep their addresses from step to step, as in an arena.

use serde::Serialize;

use crate::config::MemoryPolicy;

use super::pager::{Access, Costs, Pager, Place};
use super::sweeps::{CAPACITY, COUNTED, LOADS, Sweep, WARM, misses};

/// What one layer saves.
const UNIT_BYTES: u64 = 64 << 20;
/// The paper's link. A fault takes what makes full dependence about ten times slower than training
/// in core where one touch in two misses: the paper names a tenth, of an earlier machine.
const COSTS: Costs =
    Costs { link_bytes_per_second: 25e9, fault_seconds: 1.5e-3, call_seconds: 10e-6 };
/// Of the card's room, what direct instruction keeps for what is under way.
const UNDER_WAY: usize = 2;

/// Who orders transfers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Design {
    /// The trainer knows C and orders all of them, ahead of use; it discards, too.
    Direct,
    /// The trainer says at each turn in what order it will need the units, and the driver moves
    /// them: it prefetches all, the next one last.
    Division,
    /// It prefetches each unit after use, while it is there: nothing moves but its rank.
    DivisionInPlace,
    /// And discards after backward what is worth nothing.
    DivisionWithDiscard,
    /// The driver alone.
    Full,
}

impl Design {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Direct,
        Self::Division,
        Self::DivisionInPlace,
        Self::DivisionWithDiscard,
        Self::Full,
    ];
}

/// One design at one load, in the steady state.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Who orders transfers.
    pub design: Design,
    /// Who leaves first.
    pub policy: MemoryPolicy,
    /// X/C.
    pub load: f64,
    /// Share of touches that do not find their unit on the card.
    pub miss: f64,
    /// What crosses the link towards the card in a step, as a share of X.
    pub to_gpu: f64,
    /// And away from it.
    pub to_cpu: f64,
    /// Modelled, of a step, as a multiple of a step in core.
    pub time: f64,
}

/// All designs at all loads under a policy; then, to compare with, full dependence under others.
pub fn play(policy: MemoryPolicy) -> Vec<Row> {
    let own = Design::ALL.map(|design| (design, policy));
    let others = [MemoryPolicy::Driver, MemoryPolicy::Lru, MemoryPolicy::Belady]
        .map(|other| (Design::Full, other));
    let others = others.into_iter().filter(|(_, other)| *other != policy);
    let rows_of = |(design, policy)| LOADS.map(|load| step(design, policy, load));
    own.into_iter().chain(others).flat_map(rows_of).collect()
}

/// A trainer's memory.
struct Trainer {
    design: Design,
    pager: Pager,
    units: usize,
    compute_seconds: f64,
}

fn step(design: Design, policy: MemoryPolicy, hundredths: usize) -> Row {
    step_with(COSTS, design, policy, hundredths)
}

fn step_with(costs: Costs, design: Design, policy: MemoryPolicy, hundredths: usize) -> Row {
    let mut trainer = Trainer::new(costs, design, policy, hundredths);
    (0..WARM).for_each(|_| trainer.step());
    let (warm, begun) = (trainer.pager.events.len(), trainer.pager.seconds());
    (0..COUNTED).for_each(|_| trainer.step());
    let events = &trainer.pager.events[warm..];
    let layers = (COUNTED * trainer.units) as f64;
    let of_all = |bytes: u64| bytes as f64 / UNIT_BYTES as f64 / layers;
    Row {
        design,
        policy,
        load: hundredths as f64 / 100.0,
        miss: misses(&trainer.pager, warm) as f64 / (2.0 * layers),
        to_gpu: of_all(events.iter().map(|event| event.to_gpu_bytes).sum()),
        to_cpu: of_all(events.iter().map(|event| event.to_cpu_bytes).sum()),
        time: (trainer.pager.seconds() - begun) / (2.0 * layers * trainer.compute_seconds),
    }
}

impl Trainer {
    fn new(costs: Costs, design: Design, policy: MemoryPolicy, hundredths: usize) -> Self {
        let units = CAPACITY * hundredths / 100;
        let mut pager = Pager::new(policy, costs, UNIT_BYTES, CAPACITY);
        for _ in 0..units {
            pager.allocate();
        }
        // Beyond what is played, so that what Belady sees does not end there.
        let passes = WARM + COUNTED + 2;
        pager.foresee((0..passes).flat_map(|_| Sweep::ForwardBackward.pass(units)));
        // A layer computes, each way, for as long as what it saves takes over the link.
        let compute_seconds = UNIT_BYTES as f64 / costs.link_bytes_per_second;
        Self { design, pager, units, compute_seconds }
    }

    fn step(&mut self) {
        if self.design == Design::Division {
            self.state_order(Sweep::ForwardBackward.pass(self.units).skip(self.units));
        }
        for unit in 0..self.units {
            self.before_forward(unit);
            self.pager.touch(unit, Access::Write, self.compute_seconds);
            self.after_forward(unit);
        }
        if self.design == Design::Division {
            self.state_order(0..self.units);
        }
        for next in (self.swapped().saturating_sub(UNDER_WAY)..self.swapped()).rev() {
            self.pager.prefetch(next, Place::Gpu);
        }
        for unit in (0..self.units).rev() {
            self.pager.touch(unit, Access::Read, self.compute_seconds);
            self.after_backward(unit);
        }
    }

    /// Of direct instruction: the first units, which leave after forward and come back for
    /// backward. None where all fit.
    fn swapped(&self) -> usize {
        match self.design {
            Design::Direct if self.units > CAPACITY => self.units + UNDER_WAY - CAPACITY,
            _ => 0,
        }
    }

    /// Last those that are needed first.
    fn state_order(&mut self, units: impl Iterator<Item = usize>) {
        units.for_each(|unit| self.pager.prefetch(unit, Place::Gpu));
    }

    fn before_forward(&mut self, unit: usize) {
        if self.swapped() > 0 && unit + 1 < self.units {
            self.pager.prefetch(unit + 1, Place::Gpu);
        }
    }

    fn after_forward(&mut self, unit: usize) {
        match self.design {
            Design::Direct if unit < self.swapped() => self.pager.prefetch(unit, Place::Cpu),
            Design::DivisionInPlace | Design::DivisionWithDiscard => {
                self.pager.prefetch(unit, Place::Gpu);
            }
            Design::Direct | Design::Division | Design::Full => {}
        }
    }

    fn after_backward(&mut self, unit: usize) {
        match self.design {
            Design::Direct if self.swapped() > 0 => {
                self.pager.discard(unit);
                // Its memory is for the next of those that are away.
                let fetched = self.units - unit + UNDER_WAY;
                if let Some(next) = self.swapped().checked_sub(fetched) {
                    self.pager.prefetch(next, Place::Gpu);
                }
            }
            Design::DivisionInPlace => self.pager.prefetch(unit, Place::Gpu),
            Design::DivisionWithDiscard => self.pager.discard(unit),
            Design::Direct | Design::Division | Design::Full => {}
        }
    }
}

#[cfg(test)]
mod tests;
