//! Whether the cards of a process have room for what it is going to compute there.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::arranging::Written;
use super::card::{Card, Place};
use super::convolutions::Plans;
use crate::config::Precision;

use crate::engine::error::EngineError;
use crate::engine::memory::limits::Limits;
use crate::engine::plan::builder::Request;
use crate::engine::plan::operation::Direction;
use crate::model::{Graph, layout};
use crate::observe::spans::amount;

/// Longest wait for room, and the time between two looks.
const WAIT_MAX: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(100);

/// What the workers of a process are going to compute.
#[derive(Debug, Clone)]
pub struct Work {
    /// How many of them there are.
    pub workers: u64,
    /// Samples at a time, each number that comes up.
    pub batches: Vec<(usize, Direction)>,
    /// Whether others on the device begin now, too: what they will take is not taken yet.
    pub together: Together,
}

impl Work {
    /// The largest number of samples at a time; 0: there are none.
    fn most(&self, direction: Direction) -> usize {
        let own = self.batches.iter().filter(|(_, of)| *of == direction);
        own.map(|(samples, _)| *samples).max().unwrap_or(0)
    }
}

/// With whom a process begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Together {
    WithOthers,
    Alone,
}

/// Waits a moment for room on the device for this work: a process that has just died may still
/// have its memory.
///
/// # Errors
/// There is none, and what others hold there counts; or kernels do not compute so much at a time.
pub fn check(
    precision: Precision,
    graph: &Graph,
    frozen: &[bool],
    work: &Work,
    limits: &Limits,
) -> Result<(), EngineError> {
    let (element, layout) = (precision.element(), &layout::of(graph));
    let card = Card::of(0, element)?;
    let mut plans = Plans::new(&card, precision)?;
    let mut bytes = |&(batch, direction): &(usize, Direction)| {
        let request = Request { graph, layout, batch, direction, element, frozen };
        let written = Written::least(request, Some(&mut plans), limits)?;
        let besides = written.script.besides_bytes(layout);
        written.check(graph, limits, batch, direction, besides)?;
        let Written { script, draft, .. } = written;
        // Where there is a choice it takes what it may have.
        let most = match limits.in_direction(direction).mode.fits_a_budget() {
            true => draft.place().arena_bytes + besides,
            false => script.arena_bytes + besides,
        };
        Ok::<_, EngineError>(most.min(limits.budget_bytes.unwrap_or(usize::MAX)) as u64)
    };
    let mut each = 0;
    for batch in &work.batches {
        each = each.max(bytes(batch)?);
    }
    let until = Instant::now() + WAIT_MAX;
    for (worker, sharing) in cards(work)? {
        let context = &Card::of(worker, element)?.context;
        let needed = each.saturating_mul(sharing);
        loop {
            let (free, all) = context.memory_bytes()?;
            if needed <= free as u64 {
                break;
            }
            if needed > all as u64 || Instant::now() >= until {
                let (needed, free, all) = (amount(needed), amount(free as u64), amount(all as u64));
                let [training, evaluation] =
                    [Direction::Training, Direction::Inference].map(|way| work.most(way));
                return Err(EngineError::Refused(format!(
                    "device.kind: \"cuda\": {needed} needed on a card ({sharing} workers, \
                     {training} samples at a time, {evaluation} in evaluation), and {free} of its \
                     {all} are free; lower data.image_size, train.global_batch or \
                     evaluation.batch, raise train.owners or train.accumulate, set memory.mode = \
                     \"planned\" with device.memory_budget, or device.kind = \"cpu\""
                )));
            }
            std::thread::sleep(PAUSE);
        }
    }
    Ok(())
}

/// A worker on each of the process's cards, and how many there are that want room, those of other
/// processes included where they begin now, too.
fn cards(work: &Work) -> Result<Vec<(usize, u64)>, EngineError> {
    let mut cards: BTreeMap<String, (usize, u64)> = BTreeMap::new();
    for worker in 0..work.workers.max(1) as usize {
        let place = Place::of(worker)?;
        let (_, sharing) = cards.entry(place.uuid.clone()).or_insert((worker, 0));
        *sharing = match work.together {
            // Names are given out in order: so many have come before, this one included.
            Together::WithOthers => (*sharing).max(place.share as u64 + 1),
            Together::Alone => *sharing + 1,
        };
    }
    Ok(cards.into_values().collect())
}
