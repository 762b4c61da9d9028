//! The ten actions of Negishi et al.: a card is filled with units, an action is done, one unit more
//! is asked for, and the first three units are touched. Who is gone tells what the action did.

use std::fmt::{self, Display, Formatter};

use serde::Serialize;

use crate::config::units::Bytes;

use crate::config::MemoryPolicy;

use super::pager::{Access, Advice, Costs, Pager, Place, What};

/// Actions name unit 3.
const UNITS_MIN: i64 = 4;
const UNITS_MAX: i64 = 4096;
/// Largest unit.
const UNIT_BYTES_MAX: u64 = 1 << 40;
/// The units that are touched in the end.
pub const TOUCHED: [usize; 3] = [0, 1, 2];
const GIB: f64 = (1u64 << 30) as f64;
/// A link of 25 GB/s each way. A unit of 1 GB takes hundreds of milliseconds where it is on the
/// card and tens of seconds where it is not (the paper, 3.4 and 3.7): 40 ms a block of 2 MiB.
const COSTS: Costs =
    Costs { link_bytes_per_second: 25e9, fault_seconds: 0.04, call_seconds: 10e-6 };
/// A GiB, touched on the card.
const TOUCH_SECONDS: f64 = 0.2;

/// What an action is made of; units by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Call {
    Touch(usize),
    Prefetch(usize, Place),
    Free(usize),
    Advise(usize, Advice),
}

impl Display for Call {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Touch(unit) => write!(f, "touch x[{unit}]"),
            Self::Prefetch(unit, to) => write!(f, "prefetch x[{unit}] to {to}"),
            Self::Free(unit) => write!(f, "free x[{unit}]"),
            Self::Advise(unit, advice) => write!(f, "advise {advice} on x[{unit}]"),
        }
    }
}

/// One action, and whom the paper saw gone.
#[derive(Debug, Clone, Copy)]
pub struct Action {
    /// Its number in the paper.
    pub number: u8,
    /// What it does, in order.
    pub calls: &'static [Call],
    paper: &'static [usize],
    note: &'static str,
}

impl Display for Action {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let calls: Vec<String> = self.calls.iter().map(Call::to_string).collect();
        write!(f, "{}{}", calls.join(", "), self.note)
    }
}

/// The last stands here twice: of its device the paper's text and its code say different things.
pub const ACTIONS: [Action; 11] = {
    use Advice::{AccessedBy, PreferredLocation};
    use Call::{Advise, Free, Prefetch, Touch};
    use Place::{Cpu, Gpu};
    const fn action(number: u8, calls: &'static [Call], paper: &'static [usize]) -> Action {
        Action { number, calls, paper, note: "" }
    }
    const fn noted(calls: &'static [Call], note: &'static str) -> Action {
        Action { number: 10, calls, paper: &[0], note }
    }
    [
        action(1, &[Touch(0)], &[0]),
        action(2, &[Prefetch(0, Gpu)], &[1]),
        action(3, &[Prefetch(0, Gpu), Prefetch(1, Gpu)], &[2]),
        action(4, &[Free(3)], &[]),
        action(5, &[Prefetch(1, Cpu)], &[1]),
        action(6, &[Free(3), Prefetch(0, Cpu)], &[]),
        action(7, &[Advise(0, AccessedBy(Gpu))], &[0]),
        action(8, &[Advise(0, PreferredLocation(Gpu))], &[0]),
        action(9, &[Advise(1, AccessedBy(Cpu))], &[0]),
        noted(&[Advise(1, PreferredLocation(Gpu))], " (text)"),
        noted(&[Advise(1, PreferredLocation(Cpu))], " (code)"),
    ]
};

/// Advice on every unit, as the paper's `--hint`; for the card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Hint {
    ReadMostly,
    PreferredLocation,
    AccessedBy,
}

impl Hint {
    /// The call's.
    pub fn advice(self) -> Advice {
        match self {
            Self::ReadMostly => Advice::ReadMostly,
            Self::PreferredLocation => Advice::PreferredLocation(Place::Gpu),
            Self::AccessedBy => Advice::AccessedBy(Place::Gpu),
        }
    }
}

/// What the actions are done on.
// Its comments are what `--help` says.
#[derive(Debug, Clone, Copy, PartialEq, clap::Args)]
pub struct Setting {
    /// Units that fill the card
    #[arg(long, value_name = "N", default_value_t = 14,
        value_parser = clap::value_parser!(u16).range(UNITS_MIN..=UNITS_MAX))]
    pub units: u16,
    /// Size of a unit
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = unit_size)]
    pub unit_size: Bytes,
    /// Advice on every unit
    #[arg(long, value_name = "ADVICE", value_enum)]
    pub hint: Option<Hint>,
}

/// The paper's.
impl Default for Setting {
    fn default() -> Self {
        Self { units: 14, unit_size: Bytes(1 << 30), hint: None }
    }
}

fn unit_size(text: &str) -> Result<Bytes, String> {
    let size = text.parse::<Bytes>().ok().filter(|size| (1..=UNIT_BYTES_MAX).contains(&size.0));
    size.ok_or_else(|| format!("write a size such as \"1GiB\", up to {}", Bytes(UNIT_BYTES_MAX)))
}

/// Of each phase.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct Seconds {
    pub prepare: f64,
    pub act: f64,
    pub overcommit: f64,
    /// Of units 0, 1 and 2, each in a run of its own: touching one that is gone makes another go.
    pub touch: [f64; 3],
}

/// What became of one action.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Its number in the paper.
    pub action: u8,
    /// What is done.
    pub calls: String,
    /// Whose memory was taken for the unit too many.
    pub evicted: Vec<usize>,
    /// The same, as the paper saw it.
    pub paper: &'static [usize],
    /// Modelled.
    pub seconds: Seconds,
    /// Over the link towards the card, before the touches.
    pub to_gpu_bytes: u64,
    /// And away from it.
    pub to_cpu_bytes: u64,
}

/// Units as a person reads them.
pub fn units(numbers: &[usize]) -> String {
    if numbers.is_empty() {
        return "none".into();
    }
    let names: Vec<String> = numbers.iter().map(|number| format!("x[{number}]")).collect();
    names.join(", ")
}

impl Row {
    /// Whether the same units are gone as in the paper.
    pub fn as_in_paper(&self) -> bool {
        self.evicted == self.paper
    }
}

impl Setting {
    /// All actions, each on a card of its own, which the units fill.
    pub fn play(&self, policy: MemoryPolicy) -> Vec<Row> {
        ACTIONS.iter().map(|action| self.play_one(policy, action)).collect()
    }

    fn play_one(&self, policy: MemoryPolicy, action: &Action) -> Row {
        let capacity = usize::from(self.units);
        let mut pager = Pager::new(policy, COSTS, self.unit_size.0, capacity);
        for _ in 0..self.units {
            self.fill_one(&mut pager);
        }
        let prepared = pager.seconds();
        for &call in action.calls {
            self.call(&mut pager, call);
        }
        let acted = pager.seconds();
        pager.foresee(TOUCHED);
        self.fill_one(&mut pager);
        pager.synchronize();
        let overcommitted = pager.seconds();
        let touch = TOUCHED.map(|unit| {
            let mut pager = pager.clone();
            self.call(&mut pager, Call::Touch(unit));
            pager.seconds() - overcommitted
        });
        let gone = pager.events.iter().filter(|event| event.what == What::Evicted);
        let mut evicted: Vec<usize> = gone.map(|event| event.unit).collect();
        evicted.sort_unstable();
        Row {
            action: action.number,
            calls: action.to_string(),
            evicted,
            paper: action.paper,
            seconds: Seconds {
                prepare: prepared,
                act: acted - prepared,
                overcommit: overcommitted - acted,
                touch,
            },
            to_gpu_bytes: pager.events.iter().map(|event| event.to_gpu_bytes).sum(),
            to_cpu_bytes: pager.events.iter().map(|event| event.to_cpu_bytes).sum(),
        }
    }

    /// A unit of zeros. What filling takes is left out: the paper does not say it.
    fn fill_one(&self, pager: &mut Pager) {
        let unit = pager.allocate();
        pager.touch(unit, Access::Write, 0.0);
        if let Some(hint) = self.hint {
            pager.advise(unit, hint.advice());
        }
    }

    fn call(&self, pager: &mut Pager, call: Call) {
        match call {
            Call::Touch(unit) => {
                let seconds = self.unit_size.0 as f64 / GIB * TOUCH_SECONDS;
                pager.touch(unit, Access::Read, seconds);
            }
            Call::Prefetch(unit, to) => pager.prefetch(unit, to),
            Call::Free(unit) => pager.free(unit),
            Call::Advise(unit, advice) => pager.advise(unit, advice),
        }
    }
}

#[cfg(test)]
mod tests;
