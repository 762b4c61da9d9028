//! Managed memory of a card, in units: what moves when units are touched, prefetched, advised,
//! discarded and freed, and when. Victims are taken as NVIDIA's open driver takes them: first what
//! is free, then chunks whose contents left (UNUSED), then discarded ones, then the used ones.
//! Pure: seconds are modelled.
//!
//! A unit is moved and evicted as a whole: whoever acts on a unit acts on all of its blocks, so
//! they stand together on every list.

use std::collections::VecDeque;
use std::fmt::{self, Display, Formatter};

use serde::Serialize;

use crate::config::MemoryPolicy;

/// What the driver serves a fault by.
const BLOCK_BYTES: u64 = 2 << 20;

/// A processor, and its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Place {
    Gpu,
    Cpu,
}

/// What `cudaMemAdvise` is told of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Advice {
    ReadMostly,
    PreferredLocation(Place),
    AccessedBy(Place),
}

impl Display for Place {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gpu => "GPU",
            Self::Cpu => "CPU",
        })
    }
}

impl Display for Advice {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::ReadMostly => write!(f, "SetReadMostly"),
            Self::PreferredLocation(place) => write!(f, "SetPreferredLocation({place})"),
            Self::AccessedBy(place) => write!(f, "SetAccessedBy({place})"),
        }
    }
}

/// What the card does with a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Access {
    Read,
    Write,
}

/// What is modelled of a machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    /// Of one direction; both can be busy at once.
    pub link_bytes_per_second: f64,
    /// Of a fault that brings a block of 2 MiB, beside its bytes' way over the link.
    pub fault_seconds: f64,
    /// Of a call.
    pub call_seconds: f64,
}

/// What happened to a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// A touch found nothing anywhere: memory of the card was given to it.
    Populated,
    /// A touch found it in the host's memory: it was brought.
    Faulted,
    /// A touch read or wrote it where it lies, in the host's memory.
    Remote,
    /// A call brought it, or gave it memory.
    Fetched,
    /// A call copied it to the host's memory.
    SentHome,
    /// Its memory was taken for another.
    Evicted,
}

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Event {
    /// What happened.
    pub what: What,
    /// To which unit.
    pub unit: usize,
    /// Over the link, towards the card.
    pub to_gpu_bytes: u64,
    /// And away from it.
    pub to_cpu_bytes: u64,
    /// When its last byte had moved.
    pub end_seconds: f64,
}

/// Where a unit's chunk stands; the first is taken first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum List {
    /// Its contents left it.
    Unused,
    /// Its contents are worth nothing.
    Discarded,
    /// It holds the contents.
    Used,
}

#[derive(Debug, Clone, Default)]
struct Unit {
    /// It has memory of the card, which stands on this list ...
    chunk: Option<List>,
    /// ... behind those with a lower number.
    position: u64,
    /// The host's memory holds the contents.
    at_home: bool,
    /// When what was asked for it last will be done.
    ready_seconds: f64,
    read_mostly: bool,
    preferred: Option<Place>,
    mapped_by_gpu: bool,
    /// When it is touched, by the number of the touch; of Belady.
    touches: VecDeque<u64>,
}

impl Unit {
    fn on_gpu(&self) -> bool {
        self.chunk == Some(List::Used)
    }
}

/// A card's memory, and the units beyond it.
#[derive(Debug, Clone)]
pub struct Pager {
    policy: MemoryPolicy,
    costs: Costs,
    unit_bytes: u64,
    /// Chunks of a unit's size.
    capacity: usize,
    /// None: freed.
    units: Vec<Option<Unit>>,
    /// Chunks of freed units to which a copy is still under way, and until when.
    leaving: Vec<f64>,
    positions: u64,
    now: f64,
    /// When each direction of the link is free again.
    to_gpu_free: f64,
    to_cpu_free: f64,
    /// All that happened.
    pub events: Vec<Event>,
}

impl Pager {
    /// An empty card with room for so many units.
    pub fn new(policy: MemoryPolicy, costs: Costs, unit_bytes: u64, capacity: usize) -> Self {
        Self {
            policy,
            costs,
            unit_bytes,
            capacity: capacity.max(1),
            units: Vec::new(),
            leaving: Vec::new(),
            positions: 0,
            now: 0.0,
            to_gpu_free: 0.0,
            to_cpu_free: 0.0,
            events: Vec::new(),
        }
    }

    /// The card's clock.
    pub fn seconds(&self) -> f64 {
        self.now
    }

    /// One unit more: addresses, no memory.
    pub fn allocate(&mut self) -> usize {
        self.units.push(Some(Unit::default()));
        self.units.len() - 1
    }

    /// Tells Belady the touches to come.
    pub fn foresee(&mut self, touches: impl IntoIterator<Item = usize>) {
        for unit in self.units.iter_mut().flatten() {
            unit.touches.clear();
        }
        for (number, unit) in touches.into_iter().enumerate() {
            if let Some(Some(unit)) = self.units.get_mut(unit) {
                unit.touches.push_back(number as u64);
            }
        }
    }

    /// Computes on a unit for so long, once it is there.
    pub fn touch(&mut self, id: usize, access: Access, seconds: f64) {
        let Some(unit) = self.units[id].as_mut() else { return };
        unit.touches.pop_front();
        self.now = self.now.max(unit.ready_seconds);
        let away = unit.preferred == Some(Place::Cpu) || unit.mapped_by_gpu;
        if unit.on_gpu() {
            if self.policy == MemoryPolicy::Lru {
                self.place_last(id);
            }
        } else if unit.chunk == Some(List::Discarded) {
            self.arrive(id, self.now);
        } else if unit.at_home && away {
            let direction = if access == Access::Read { Place::Gpu } else { Place::Cpu };
            self.now = self.copy(What::Remote, id, direction, self.now);
        } else {
            self.fault(id);
        }
        if let Some(unit) = self.units[id].as_mut() {
            // Copies at home are out of date, unless it is at home that the contents are.
            if access == Access::Write && unit.on_gpu() {
                unit.at_home = false;
            }
        }
        self.now += seconds;
    }

    fn fault(&mut self, id: usize) {
        let start = self.take_chunk(id, self.now);
        let at_home = self.units[id].as_ref().is_some_and(|unit| unit.at_home);
        self.now = match at_home {
            true => {
                let blocks = self.unit_bytes.div_ceil(BLOCK_BYTES) as f64;
                let end = self.copy(What::Faulted, id, Place::Gpu, start);
                end + blocks * self.costs.fault_seconds
            }
            false => self.record(What::Populated, id, start),
        };
        self.arrive(id, self.now);
    }

    /// `cudaMemPrefetchAsync`: nothing takes back what it asks for. Of a unit that is there
    /// already it moves nothing but its chunk, to the tail of the list.
    pub fn prefetch(&mut self, id: usize, to: Place) {
        self.now += self.costs.call_seconds;
        let Some(unit) = self.units[id].as_mut() else { return };
        let start = self.now.max(unit.ready_seconds);
        match to {
            Place::Gpu if unit.on_gpu() => self.place_last(id),
            Place::Gpu => {
                let at_home = unit.at_home;
                let start = self.take_chunk(id, start);
                let end = match at_home {
                    true => self.copy(What::Fetched, id, Place::Gpu, start),
                    false => self.record(What::Fetched, id, start),
                };
                self.arrive(id, end);
            }
            Place::Cpu if unit.on_gpu() => {
                let (at_home, stays) = (unit.at_home, unit.read_mostly);
                let end = match at_home {
                    true => start,
                    false => self.copy(What::SentHome, id, Place::Cpu, start),
                };
                if let Some(unit) = self.units[id].as_mut() {
                    unit.at_home = true;
                    unit.ready_seconds = end;
                    if !stays {
                        unit.chunk = Some(List::Unused);
                        self.place_last(id);
                    }
                }
            }
            Place::Cpu => {}
        }
    }

    /// `cudaMemAdvise`: no list is touched.
    pub fn advise(&mut self, id: usize, advice: Advice) {
        self.now += self.costs.call_seconds;
        let Some(unit) = self.units[id].as_mut() else { return };
        match advice {
            Advice::ReadMostly => unit.read_mostly = true,
            Advice::PreferredLocation(place) => unit.preferred = Some(place),
            Advice::AccessedBy(Place::Gpu) => unit.mapped_by_gpu = true,
            // Tells something to whom touches it from the host: nobody here.
            Advice::AccessedBy(Place::Cpu) => {}
        }
    }

    /// `cudaMemDiscardBatchAsync`: what the unit holds is worth nothing, until it is written.
    pub fn discard(&mut self, id: usize) {
        self.now += self.costs.call_seconds;
        let Some(unit) = self.units[id].as_mut() else { return };
        unit.at_home = false;
        if unit.chunk.is_some() {
            unit.chunk = Some(List::Discarded);
            self.place_last(id);
        }
    }

    /// `cudaFree`. A copy to or from it that is under way goes on, and its memory waits for it.
    pub fn free(&mut self, id: usize) {
        let Some(unit) = self.units[id].take() else { return };
        if unit.chunk.is_some() && unit.ready_seconds > self.now {
            self.leaving.push(unit.ready_seconds);
        }
    }

    /// Waits for all that was asked for.
    pub fn synchronize(&mut self) {
        self.now = self.now.max(self.to_gpu_free).max(self.to_cpu_free);
    }

    /// The chunk is at the tail of its list.
    fn place_last(&mut self, id: usize) {
        self.positions += 1;
        if let Some(unit) = self.units[id].as_mut() {
            unit.position = self.positions;
        }
    }

    /// The contents are on the card: at the tail of the used chunks.
    fn arrive(&mut self, id: usize, ready_seconds: f64) {
        if let Some(unit) = self.units[id].as_mut() {
            unit.chunk = Some(List::Used);
            unit.at_home &= unit.read_mostly;
            unit.ready_seconds = ready_seconds;
        }
        self.place_last(id);
    }

    /// When a unit without contents on the card has memory there: its own, free memory, or a
    /// victim's.
    fn take_chunk(&mut self, id: usize, start: f64) -> f64 {
        if self.units[id].as_ref().is_some_and(|unit| unit.chunk.is_some()) {
            return start;
        }
        self.leaving.retain(|&until| until > start);
        if self.chunks() + self.leaving.len() < self.capacity {
            return start;
        }
        if let Some(victim) = self.victim() {
            return self.evict(victim, start);
        }
        // All memory is of freed units: the first that its copy leaves.
        let first =
            (0..self.leaving.len()).min_by(|&a, &b| self.leaving[a].total_cmp(&self.leaving[b]));
        first.map_or(start, |first| self.leaving.swap_remove(first).max(start))
    }

    /// Chunks of units.
    fn chunks(&self) -> usize {
        self.units.iter().flatten().filter(|unit| unit.chunk.is_some()).count()
    }

    fn victim(&self) -> Option<usize> {
        let key = |unit: &Unit| {
            let next_use = match self.policy {
                MemoryPolicy::Belady => unit.touches.front().copied().unwrap_or(u64::MAX),
                MemoryPolicy::Driver | MemoryPolicy::Lru => 0,
            };
            (unit.chunk, std::cmp::Reverse(next_use), unit.position)
        };
        let units = self.units.iter().enumerate();
        let with_chunk = units.filter_map(|(id, unit)| Some((id, unit.as_ref()?)));
        with_chunk
            .filter(|(_, unit)| unit.chunk.is_some())
            .min_by_key(|(_, unit)| key(unit))
            .map(|(id, _)| id)
    }

    /// When the victim's memory is free.
    fn evict(&mut self, id: usize, start: f64) -> f64 {
        let Some(unit) = self.units[id].as_mut() else { return start };
        let start = start.max(unit.ready_seconds);
        let must_be_copied = unit.on_gpu() && !unit.at_home;
        unit.at_home |= unit.on_gpu();
        unit.chunk = None;
        let end = match must_be_copied {
            true => self.copy(What::Evicted, id, Place::Cpu, start),
            false => self.record(What::Evicted, id, start),
        };
        if let Some(unit) = self.units[id].as_mut() {
            unit.ready_seconds = end;
        }
        end
    }

    /// When the unit's bytes have moved.
    fn copy(&mut self, what: What, id: usize, to: Place, start: f64) -> f64 {
        let seconds = self.unit_bytes as f64 / self.costs.link_bytes_per_second;
        let (free, bytes) = match to {
            Place::Gpu => (&mut self.to_gpu_free, [self.unit_bytes, 0]),
            Place::Cpu => (&mut self.to_cpu_free, [0, self.unit_bytes]),
        };
        *free = free.max(start) + seconds;
        let end = *free;
        self.push(what, id, bytes, end)
    }

    /// Something for which nothing moves.
    fn record(&mut self, what: What, id: usize, at: f64) -> f64 {
        self.push(what, id, [0, 0], at)
    }

    fn push(&mut self, what: What, unit: usize, bytes: [u64; 2], end_seconds: f64) -> f64 {
        let [to_gpu_bytes, to_cpu_bytes] = bytes;
        self.events.push(Event { what, unit, to_gpu_bytes, to_cpu_bytes, end_seconds });
        end_seconds
    }
}

#[cfg(test)]
mod tests;
