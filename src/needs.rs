//! What a run needs of memory, shared memory, disk and files, part by part: one account for whoever
//! starts a run, for each of its ranks, and for whoever asks before.
//!
//! Exact: slots, checkpoints' values, gradient sums. Estimated: what a worker holds while it
//! computes, unless its engine has planned that (`planned`). Left out: libraries, and validation
//! pictures that a rank keeps (256 MiB at most).

use std::fmt;

use kintsugi_ffi::cgroup;
use serde::Serialize;

use crate::cluster::resident::Slots;
use crate::config::{
    CacheSize, Config, Device, DeviceKind, Every, ExchangeKind, Interval, MemoryMode, Resident,
    resolve_owners,
};
use crate::engine::memory::far::{self, Place};
use crate::engine::memory::limits::Limits;
use crate::engine::{self, Footprint};
use crate::model::parts::{PARAMETERS, STATISTICS, shape};
use crate::model::spec::elements;
use crate::model::{Graph, Layout, cost, layout};
use crate::observe::spans::amount;

/// Bytes of one value.
const F32: u64 = size_of::<f32>() as u64;
/// A tensor's name, shape and place in a safetensors file, at most but for unusual names.
const TENSOR_HEAD_BYTES: u64 = 256;
/// The shared memory of an Open MPI rank is a file of so many bytes, whatever the world's size: a
/// rank that cannot make it talks TCP to its neighbours. PMIx's files have a few percent of that.
const RANK_SEGMENT_BYTES: u64 = 16 << 20;
/// Where shared memory lies.
const SHARED: &str = "/dev/shm";

/// What may be too little.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// Memory of the machine, or of its control group.
    Memory,
    /// What one rank may map.
    Process,
    /// Room in `/dev/shm`.
    SharedMemory,
    /// Size of a file.
    File,
    /// Room in the run's folder.
    Disk,
}

const PRIVATE: &[Limit] = &[Limit::Memory, Limit::Process];
const MAPPED: &[Limit] = &[Limit::Memory, Limit::Process, Limit::File];
const SHARED_AND_MAPPED: &[Limit] =
    &[Limit::Memory, Limit::Process, Limit::File, Limit::SharedMemory];
const OF_NODE: &[Limit] = &[Limit::Memory, Limit::SharedMemory];
/// Of a folder of its own.
const IN_A_FILE: &[Limit] = &[Limit::File];
const ON_DISK: &[Limit] = &[Limit::Disk, Limit::File];

/// Who has a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Holder {
    /// Every rank.
    Rank,
    /// The rank that writes checkpoints.
    Writer,
    /// The machine.
    Node,
    /// The run.
    Run,
}

/// One thing that takes room.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Demand {
    /// What it is.
    pub name: &'static str,
    /// Of one.
    pub bytes: u64,
    /// How many of it a holder has.
    pub number: u64,
    /// Who has it.
    pub holder: Holder,
    /// What it counts against.
    pub limits: &'static [Limit],
    /// What to change for less of it.
    #[serde(skip)]
    advice: &'static str,
}

impl Demand {
    /// With one holder.
    pub fn held_bytes(&self) -> u64 {
        self.bytes.saturating_mul(self.number)
    }
}

impl fmt::Display for Demand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number {
            1 => write!(f, "{} {}", self.name, amount(self.bytes)),
            number => write!(f, "{} {number} x {}", self.name, amount(self.bytes)),
        }
    }
}

/// What decides a run's needs besides its configuration and model.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Ranks of this machine that hold a model: warm spares among them.
    pub ranks: u64,
    /// Of the training set; as many as the batch wants where nobody knows yet.
    pub samples: u64,
    /// What a worker's engine holds, where it has been planned.
    pub planned: Option<Footprint>,
}

/// All parts of a run, as far as this machine has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Needs {
    /// None is empty.
    pub parts: Vec<Demand>,
    ranks: u64,
}

/// Of a run of this model.
pub fn needs(config: &Config, graph: &Graph, load: Load) -> Needs {
    let layout = &layout::of(graph);
    let mut parts = of_state(config, layout);
    parts.extend(of_computing(config, graph, layout, load));
    parts.retain(|part| part.held_bytes() > 0);
    Needs { parts, ranks: load.ranks }
}

/// Values of one tensor: no library of ours counts more.
const VALUES_MAX: u64 = i32::MAX as u64;

/// What a worker's engine would hold, as it plans it for processors. `None` where it cannot (the
/// ranks say why), or where not even the least of it has room: a batch may be far larger than its
/// set, which is not known yet.
pub fn planned(config: &Config, graph: &Graph, samples: u64) -> Option<Footprint> {
    let pictures = at_a_time(config, samples);
    let shapes = graph.nodes.iter().map(|node| node.shape).chain([graph.input]);
    let largest = shapes.map(|shape| elements(shape) as u64).max()?.saturating_mul(pictures);
    let least = estimated(config, graph, &layout::of(graph), pictures).activations_bytes;
    let has_room = cgroup::total_memory_bytes().is_none_or(|memory| least <= memory);
    if config.device.kind != DeviceKind::Cpu || largest > VALUES_MAX || !has_room {
        return None;
    }
    let batch = usize::try_from(pictures).ok()?;
    let (train, owners) = (&config.train, u64::from(resolve_owners(config).max(1)));
    let workers = u64::from(train.workers).min(owners).max(1);
    let limits = |config: &Config| Limits::of(config, workers as usize);
    let plan = |device: &Device, limits: &Limits| {
        let plan = engine::memory_plan(graph, device, batch, train.threads as usize, limits);
        plan.ok().map(|plan| plan.footprint())
    };
    match config.memory.mode {
        // Which values leave is found in seconds. How many there are shows without a budget.
        MemoryMode::Recompute | MemoryMode::Planned => {
            let mut in_core = config.clone();
            (in_core.memory.mode, in_core.device.memory_budget) = (MemoryMode::InCore, None);
            let whole = plan(&in_core.device, &limits(&in_core))?;
            Some(within_budget(config, whole, workers))
        }
        _ => plan(&config.device, &limits(config)),
    }
}

/// Samples of an owner in a step.
fn micro_batch(config: &Config, samples: u64) -> u64 {
    let owners = u64::from(resolve_owners(config).max(1));
    config.train.global_batch.min(samples).div_ceil(owners)
}

/// Those that are computed together.
fn at_a_time(config: &Config, samples: u64) -> u64 {
    micro_batch(config, samples).div_ceil(u64::from(config.train.pieces()))
}

/// Slots, copies of the state, checkpoints, and what processes of a machine share.
fn of_state(config: &Config, layout: &Layout) -> Vec<Demand> {
    let shape = shape(layout, config);
    let elements = |of_model: bool| {
        let is_of_model = |name: &str| name == PARAMETERS || name == STATISTICS;
        let parts = shape.parts().iter().filter(|part| is_of_model(part.name) == of_model);
        parts.map(|part| part.elements as u64).sum::<u64>()
    };
    let (model, optimizer) = (F32 * elements(true), F32 * elements(false));
    let tensors = layout.tensors.len() as u64 * TENSOR_HEAD_BYTES;
    // Each of the optimizer's parts has a tensor for every one of the model's.
    let optimizer_tensors = tensors * (shape.parts().len() as u64 - 2);
    let slots = match config.recovery.resident {
        Resident::Off => PRIVATE,
        Resident::On if config.recovery.resident_dir.starts_with(SHARED) => SHARED_AND_MAPPED,
        Resident::On => MAPPED,
    };
    let synchronous = config.train.exchange == ExchangeKind::Synchronous;
    let compared = synchronous && config.recovery.integrity_every != Interval::Off;
    let cache = match config.data.cache {
        CacheSize::Off => 0,
        CacheSize::Bytes(bytes) => bytes.0,
    };
    // One more than is kept is there while it is verified.
    let keeps_best = config.evaluation.every != Every::Never && config.checkpoint.keep_best > 0;
    let kept = u64::from(config.checkpoint.keep) + u64::from(keeps_best) + 1;
    let part = |name, bytes, (holder, number), limits, advice| Demand {
        name,
        bytes,
        number,
        holder,
        limits,
        advice,
    };
    let smaller = "choose a smaller model, or an optimizer that keeps less";
    let fewer = "lower checkpoint.keep, or set checkpoint.keep_best = 0";
    let slot_bytes = Slots::vacant(shape).file_bytes();
    vec![
        part("both slots of the state", slot_bytes, (Holder::Rank, 1), slots, smaller),
        part(
            "the state that ranks last found equal",
            model + optimizer,
            (Holder::Rank, u64::from(compared)),
            PRIVATE,
            "set recovery.integrity_every = \"off\"",
        ),
        part("the copy for a checkpoint", model + optimizer, (Holder::Writer, 1), PRIVATE, smaller),
        part(
            "MPI's segment",
            RANK_SEGMENT_BYTES,
            (Holder::Rank, 1),
            SHARED_AND_MAPPED,
            "start fewer ranks (-n)",
        ),
        part("data.cache", cache, (Holder::Node, 1), OF_NODE, "lower data.cache"),
        part("model.safetensors", model + tensors, (Holder::Run, kept), ON_DISK, fewer),
        part(
            "optimizer.safetensors",
            optimizer + optimizer_tensors,
            (Holder::Run, kept),
            ON_DISK,
            fewer,
        ),
    ]
}

/// Pictures, workers and sums of gradients.
fn of_computing(config: &Config, graph: &Graph, layout: &Layout, load: Load) -> [Demand; 7] {
    let train = &config.train;
    let owners = u64::from(resolve_owners(config).max(1));
    let micro_batch = micro_batch(config, load.samples);
    let at_a_time = at_a_time(config, load.samples);
    let own = owners.div_ceil(u64::from(config.run.ranks.max(1)));
    let workers = u64::from(train.workers).min(own);
    let ahead = own.saturating_mul(u64::from(config.data.prefetch));
    let picture = F32 * elements(graph.input) as u64;
    let weights = F32 * layout.parameters as u64;
    let (activations, engine) = match load.planned {
        _ if config.device.kind == DeviceKind::Cuda => {
            let pinned = pinned(config, graph, layout, at_a_time, workers);
            ("pinned memory of copies", pinned)
        }
        Some(planned) => ("activations", planned),
        None => {
            let estimated = estimated(config, graph, layout, at_a_time);
            ("estimated activations", within_budget(config, estimated, workers))
        }
    };
    let sums = match train.exchange {
        // This rank's and all ranks'.
        ExchangeKind::Synchronous => 2,
        // What is collected, sent and received.
        ExchangeKind::Asynchronous => 3,
    };
    let of = |name, bytes, number, limits, advice| Demand {
        name,
        bytes,
        number,
        holder: Holder::Rank,
        limits,
        advice,
    };
    let part = |name, bytes, number, advice| of(name, bytes, number, PRIVATE, advice);
    let fewer = "lower train.workers or choose a smaller model";
    [
        part("sums of gradients", weights, sums, "choose a smaller model"),
        part("a worker's gradients", weights, workers, fewer),
        part("a worker's copies of weights", engine.weights_bytes, workers, fewer),
        part(
            activations,
            engine.activations_bytes,
            workers,
            "lower data.image_size or train.global_batch, or raise train.owners or \
             train.accumulate",
        ),
        part("memory on the way to a disk", far::held_bytes(&far_tier(config)), workers, fewer),
        of(
            "values of the far tier",
            engine.far_bytes,
            workers,
            if far_tier(config) == Place::Ram { PRIVATE } else { IN_A_FILE },
            if config.device.kind == DeviceKind::Cuda {
                "raise device.memory_budget"
            } else {
                "name a folder with room as memory.far, or raise device.memory_budget"
            },
        ),
        part(
            "an owner's decoded pictures",
            micro_batch.saturating_mul(picture),
            workers.saturating_add(ahead),
            "lower data.image_size, train.global_batch or data.prefetch",
        ),
    ]
}

/// What the host holds of a worker that computes so many pictures at a time on a card. What leaves
/// the card is estimated.
fn pinned(
    config: &Config,
    graph: &Graph,
    layout: &Layout,
    pictures: u64,
    workers: u64,
) -> Footprint {
    let picture = F32 * elements(graph.input) as u64;
    let weights = F32 * layout.parameters as u64;
    // Pictures go there, and those of the next micro-batch; gradients and what comes with them come
    // back.
    let sent = pictures.saturating_mul(picture).saturating_mul(2);
    let whole = estimated(config, graph, layout, pictures);
    Footprint {
        activations_bytes: sent.saturating_add(weights),
        weights_bytes: weights + F32 * layout.statistics as u64,
        far_bytes: match config.memory.mode {
            MemoryMode::Unified => 0,
            _ => within_budget(config, whole, workers).far_bytes,
        },
    }
}

/// What an engine holds at the least for so many pictures.
fn estimated(config: &Config, graph: &Graph, layout: &Layout, pictures: u64) -> Footprint {
    let costs = cost::of(graph, engine::value_bytes(config.device.precision));
    let saved: u64 = costs.iter().map(|cost| cost.saved_bytes).sum();
    Footprint {
        // Half of it: values that are computed within another layer are not kept.
        activations_bytes: pictures.saturating_mul(saved / 2),
        weights_bytes: F32 * layout.parameters as u64,
        far_bytes: 0,
    }
}

/// Where values lie that do not stay.
fn far_tier(config: &Config) -> Place {
    Limits::of(config, 1).far
}

/// What of it stays within the budget of the near tier, and what leaves.
fn within_budget(config: &Config, whole: Footprint, workers: u64) -> Footprint {
    let mode = config.memory.mode;
    let budget = config.device.memory_budget.map_or(u64::MAX, |budget| budget.0 / workers.max(1));
    // Copies of weights go, too, where there is no room for them.
    let weights_bytes = whole.weights_bytes.min(budget);
    let near = whole.activations_bytes.min(budget - weights_bytes);
    let far_bytes = match mode {
        MemoryMode::InCore | MemoryMode::Recompute => 0,
        MemoryMode::SwapSync | MemoryMode::Swap | MemoryMode::Unified => whole.activations_bytes,
        MemoryMode::Planned => whole.activations_bytes - near,
    };
    let activations_bytes = if mode == MemoryMode::InCore { whole.activations_bytes } else { near };
    Footprint { activations_bytes, weights_bytes, far_bytes }
}

impl Needs {
    fn against(&self, limit: Limit) -> impl Iterator<Item = &Demand> {
        self.parts.iter().filter(move |part| part.limits.contains(&limit))
    }

    /// What a part takes of a limit.
    fn taken(&self, part: &Demand, limit: Limit) -> u64 {
        match (limit, part.holder) {
            (Limit::File, _) => part.bytes,
            (Limit::Process, _) => part.held_bytes(),
            (_, Holder::Rank) => part.held_bytes().saturating_mul(self.ranks),
            _ => part.held_bytes(),
        }
    }

    /// What is needed of a limit: of this machine by all, of a process by a rank that writes
    /// checkpoints, of a file by the largest.
    pub fn bytes(&self, limit: Limit) -> u64 {
        let taken = self.against(limit).map(|part| self.taken(part, limit));
        match limit {
            Limit::File => taken.max().unwrap_or(0),
            _ => taken.fold(0, u64::saturating_add),
        }
    }

    /// What takes most of a limit, and what to change for less of it.
    pub fn largest(&self, limit: Limit) -> Option<(&Demand, &'static str)> {
        let largest = self.against(limit).max_by_key(|part| self.taken(part, limit))?;
        Some((largest, largest.advice))
    }

    /// Why no rank of this run fits into `memory_bytes`; `None`: as far as can be told it does.
    pub fn refusal(&self, memory_bytes: u64) -> Option<String> {
        let need = self.bytes(Limit::Process);
        let (largest, advice) = self.largest(Limit::Process)?;
        (need > memory_bytes).then(|| {
            format!(
                "a rank of this run needs {} of memory at the least, and this machine or its \
                 control group has {}; its largest part: {largest}; {advice}",
                amount(need),
                amount(memory_bytes)
            )
        })
    }

    /// What a person should know of it, in a line.
    pub fn line(&self) -> String {
        let of_rank: Vec<String> = self.against(Limit::Process).map(Demand::to_string).collect();
        format!(
            "about {} of memory here beside libraries, {} of it shared, and {} of disk; a rank \
             that writes checkpoints: {}",
            amount(self.bytes(Limit::Memory)),
            amount(self.bytes(Limit::SharedMemory)),
            amount(self.bytes(Limit::Disk)),
            of_rank.join(", ")
        )
    }
}

#[cfg(test)]
mod tests;
