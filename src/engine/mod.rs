//! Forward and backward on a device. Everybody outside opens an engine and holds a `Compute`.
//!
//! `plan` is pure: steps over values, while and where each lives, what backward reads. `cpu` and
//! `cuda` have the kernels that realise a plan, and run it; `executor` keeps what they made.

mod compute;
mod cpu;
pub mod cuda;
mod error;
mod executor;
mod logarithms;
pub mod memory;
mod micro_batch;
pub mod plan;
mod seat;
mod source;
mod subject;
mod targets;

pub use compute::{Compute, Passing, Watch};
pub use cuda::room::{Together, Work};
pub use error::EngineError;
pub use memory::limits::Footprint;
pub use seat::Seat;
pub use source::{Flat, WeightSource};
pub use targets::{Outcome, Targets};

use std::collections::BTreeMap;

use crate::config::{Device, DeviceKind, Precision};
use crate::model::Graph;
use cpu::bf16;
use cpu::team::Team;
use executor::{Executor, Machine as _};
use memory::arrange::Choice;
use memory::far::Place;
use memory::limits::Limits;
use memory::shown::MemoryPlan;
use plan::tensor::ElementType;
use subject::Subject;

/// An engine for the calling thread on a device, the process's only worker. Weights and gradients
/// lie as `model::layout::of` has them. A device or precision that this version lacks is refused as
/// the configuration refuses it.
pub fn open(
    device: &Device,
    graph: &Graph,
    threads: usize,
) -> Result<Box<dyn Compute>, EngineError> {
    open_within(device, graph, &[], Seat::only(threads), &Limits::none())
}

/// The same, which computes no gradients of the tensors of the layout, by their number, that are
/// `frozen`; those beyond its end are trained. The others' have the bits that they have without it.
pub fn open_frozen(
    device: &Device,
    graph: &Graph,
    frozen: &[bool],
    threads: usize,
) -> Result<Box<dyn Compute>, EngineError> {
    open_within(device, graph, frozen, Seat::only(threads), &Limits::none())
}

/// The same, which holds no more of the near tier of memory than `limits` say.
pub fn open_within(
    device: &Device,
    graph: &Graph,
    frozen: &[bool],
    seat: Seat,
    limits: &Limits,
) -> Result<Box<dyn Compute>, EngineError> {
    Ok(machine(device, graph, frozen, seat, limits)?.engine())
}

/// An engine of which tests want to see what it reads: before every micro-batch its memory of
/// activations is filled with NaN.
pub fn open_soiled(
    device: &Device,
    graph: &Graph,
    threads: usize,
    limits: &Limits,
) -> Result<Box<dyn Compute>, EngineError> {
    let mut machine = machine(device, graph, &[], Seat::only(threads), limits)?;
    match &mut machine {
        Machine::Cpu(machine) => machine.subject_mut().soiled = true,
        Machine::Cuda(machine) => machine.subject_mut().soiled = true,
    }
    Ok(machine.engine())
}

/// What computes, on one of the devices that there are.
enum Machine {
    Cpu(Box<cpu::machine::Machine>),
    Cuda(Box<cuda::machine::Machine>),
}

/// For the calling thread.
fn machine(
    device: &Device,
    graph: &Graph,
    frozen: &[bool],
    seat: Seat,
    limits: &Limits,
) -> Result<Machine, EngineError> {
    Ok(match asked(device)? {
        Kind::Cpu(element) => {
            let subject = Subject::new(graph, element, frozen, limits);
            Machine::Cpu(cpu::machine::Machine::new(subject, seat.threads)?.into())
        }
        Kind::Cuda(precision) => {
            let subject = Subject::new(graph, precision.element(), frozen, limits);
            Machine::Cuda(cuda::machine::Machine::new(subject, precision, seat)?.into())
        }
    })
}

impl Machine {
    fn engine(self) -> Box<dyn Compute> {
        match self {
            Self::Cpu(machine) => Box::new(Executor::new(*machine)),
            Self::Cuda(machine) => Box::new(Executor::new(*machine)),
        }
    }
}

/// Threads that an OpenMP team of this process has at most.
pub fn team_max() -> usize {
    Team::most()
}

/// Whether this process sees a card that can compute, with all that so many workers need.
///
/// # Errors
/// It sees one that cannot, and why.
pub fn has_card(workers: usize) -> Result<bool, String> {
    cuda::card::is_there(workers)
}

/// How many cards this process sees, where they are to compute.
///
/// # Errors
/// They cannot be asked.
pub fn cards(device: &Device) -> Result<Option<usize>, EngineError> {
    is_card(device).then(cuda::card::count).transpose()
}

/// Whether a card computes, and the host only serves it.
pub fn is_card(device: &Device) -> bool {
    device.kind == DeviceKind::Cuda
}

/// The devices that there are.
enum Kind {
    Cpu(ElementType),
    Cuda(Precision),
}

/// What a configuration asks for.
fn asked(device: &Device) -> Result<Kind, EngineError> {
    device.check().map_err(|refusal| EngineError::Refused(refusal.to_string()))?;
    Ok(match device.kind {
        DeviceKind::Cuda => Kind::Cuda(device.precision),
        DeviceKind::Cpu | DeviceKind::Auto => Kind::Cpu(device.precision.element()),
    })
}

/// What decides the last bits of what such a device computes here, apart from the program, for
/// example `oneDNN 3.2.0 avx512_core_amx`. Devices of one kind agree, others need not.
///
/// # Errors
/// This machine has no such device, or it does not compute in this precision; or those of so many
/// workers of a process do not agree.
pub fn arithmetic(device: &Device, workers: usize) -> Result<String, EngineError> {
    match asked(device)? {
        Kind::Cpu(element) => {
            bf16::check(element, &cpu::arithmetic::isa())?;
            Ok(cpu::arithmetic::arithmetic())
        }
        Kind::Cuda(precision) => cuda::card::arithmetic(workers, precision.element()),
    }
}

/// Why this machine's processor cannot compute what is asked for, before anything is started;
/// `None`: it can, or a card is to, of which whoever opens it knows.
pub fn refusal(device: &Device) -> Option<String> {
    let checked = asked(device).and_then(|kind| match kind {
        Kind::Cpu(element) => bf16::check(element, &cpu::arithmetic::isa()),
        Kind::Cuda(_) => Ok(()),
    });
    checked.err().map(|error| error.to_string())
}

/// Waits a moment for room on the device for this work of `threads` OpenMP threads a worker: a
/// process that has just died may still have its memory. A spill file's is looked for, too.
///
/// # Errors
/// There is none, and what others hold there counts; kernels do not compute so much at a time; a
/// worker's limits are too low; or its team would be smaller.
pub fn check_room(
    device: &Device,
    graph: &Graph,
    frozen: &[bool],
    work: &Work,
    threads: usize,
    limits: &Limits,
) -> Result<(), EngineError> {
    match asked(device)? {
        Kind::Cpu(_) if limits.budget_bytes.is_none() && limits.far == Place::Ram => {
            Team::check(threads)
        }
        Kind::Cpu(element) => {
            let subject = Subject::new(graph, element, frozen, limits);
            cpu::machine::Machine::new(subject, threads)?.check(&work.batches, work.workers)
        }
        Kind::Cuda(precision) => cuda::room::check(precision, graph, frozen, work, limits),
    }
}

/// Milliseconds and calls of a micro-batch of training, by kind of call: on a card alone. What a
/// call waited for the host is in them; the weights are there.
///
/// # Errors
/// Another device, or what it says.
pub fn times(
    device: &Device,
    graph: &Graph,
    samples: usize,
    threads: usize,
) -> Result<[BTreeMap<String, cuda::clock::Took>; 2], EngineError> {
    match asked(device)? {
        Kind::Cpu(_) => Err(EngineError::Refused("only a card's calls can be timed".into())),
        Kind::Cuda(precision) => cuda::times::times(precision, Seat::only(threads), graph, samples),
    }
}

/// What to do so that processes that compute with these have equal bits.
pub fn cure(kinds: &[String]) -> String {
    match kinds.iter().any(|kind| kind.starts_with(cuda::card::KIND)) {
        true => "for equal bits start all ranks on cards of one kind, with one NVRTC and one cuDNN"
            .into(),
        false => cpu::arithmetic::cure(kinds),
    }
}

/// What to say of a run on this device, once: how slow its precision is here. `None`: nothing.
pub fn remark(device: &Device) -> Option<String> {
    match asked(device).ok()? {
        Kind::Cpu(element) => bf16::remark(element, &cpu::arithmetic::isa()),
        Kind::Cuda(_) => None,
    }
}

/// Bytes of a value between layers in this precision.
pub fn value_bytes(precision: Precision) -> u64 {
    precision.element().bytes() as u64
}

/// What an engine of `threads` OpenMP threads on a device holds for `batch` samples (at least one)
/// within limits: what becomes of each value, when, and what waits for it. Plans them with the
/// kernels that would compute; of memory it takes a card's copy of the state alone. What it picks
/// by price it picks by guessed ones.
///
/// # Errors
/// The limits are too low, with the least that would do; or nothing can be planned.
pub fn memory_plan(
    graph: &Graph,
    device: &Device,
    batch: usize,
    threads: usize,
    limits: &Limits,
) -> Result<MemoryPlan, EngineError> {
    match machine(device, graph, &[], Seat::only(threads), limits)? {
        Machine::Cpu(machine) => machine.memory_plan(batch.max(1)),
        Machine::Cuda(mut machine) => machine.memory_plan(batch.max(1)),
    }
}

/// All that the planner could do with a micro-batch within the budget of these limits, by guessed
/// prices: with fewer bytes of the far tier it takes longer. Allocates nothing.
///
/// # Errors
/// The budget is too low, or nothing can be planned.
pub fn memory_choices(
    graph: &Graph,
    precision: Precision,
    batch: usize,
    threads: usize,
    limits: &Limits,
) -> Result<Vec<Choice>, EngineError> {
    let subject = Subject::new(graph, precision.element(), &[], limits);
    cpu::machine::Machine::new(subject, threads)?.choices(batch.max(1))
}

/// Bytes of the near tier, copies of weights included, without which a micro-batch of training
/// cannot be computed within limits whatever their budget.
///
/// # Errors
/// Nothing can be planned.
pub fn smallest_budget(
    graph: &Graph,
    device: &Device,
    batch: usize,
    threads: usize,
    limits: &Limits,
) -> Result<u64, EngineError> {
    let least_bytes = match machine(device, graph, &[], Seat::only(threads), limits)? {
        Machine::Cpu(machine) => machine.smallest_budget(batch.max(1)),
        Machine::Cuda(mut machine) => machine.smallest_budget(batch.max(1)),
    };
    Ok(least_bytes? as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::catalogue;

    #[test]
    fn a_device_that_does_not_compute_in_a_precision_is_refused_as_the_configuration_refuses_it() {
        let graph = catalogue::build("mlp", [3, 8, 8], 10, 0.1).expect("in the catalogue");
        let of = |kind, precision| {
            let device = Device { kind, precision, ..Device::default() };
            open(&device, &graph, 1).map(drop).map_err(|error| error.to_string())
        };
        assert_eq!(of(DeviceKind::Auto, Precision::F32), Ok(()));
        let here = bf16::computed_here().count() == 2;
        assert_eq!(of(DeviceKind::Cpu, Precision::Bf16).is_ok(), here);
        let refusal = of(DeviceKind::Cpu, Precision::Tf32).expect_err("a card's");
        assert!(refusal.starts_with("`device.precision = \"tf32\"`"), "{refusal}");
    }
}
