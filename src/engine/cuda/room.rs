//! Whether a card has room for what a process is going to compute there.

use std::time::{Duration, Instant};

use super::arranging::Written;
use super::card::{Card, Place};
use super::convolutions::{Plans, Precision};

use crate::engine::error::EngineError;
use crate::engine::memory::limits::Limits;
use crate::engine::plan::builder::Request;
use crate::engine::plan::operation::Direction;
use crate::model::{Graph, Layout};
use crate::observe::spans::amount;

/// Longest wait for room, and the time between two looks.
const WAIT_MAX: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(100);

/// What the workers of a process are going to compute.
#[derive(Debug, Clone, Copy)]
pub struct Work {
    /// How many of them there are.
    pub workers: u64,
    /// Samples at a time, in training.
    pub training: usize,
    /// The same, in evaluation.
    pub evaluation: usize,
    /// Whether others on the device begin now, too: what they will take is not taken yet.
    pub together: Together,
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
    (graph, layout, frozen): (&Graph, &Layout, &[bool]),
    work: Work,
    limits: &Limits,
) -> Result<(), EngineError> {
    let element = precision.element();
    let card = Card::own(element)?;
    let mut plans = Plans::new(&card, precision)?;
    let mut bytes = |samples: usize, direction: Direction| {
        let batch = samples.max(1);
        let request = Request { graph, layout, batch, direction, element, frozen };
        let written = Written::least(request, Some(&mut plans), limits)?;
        let besides = written.script.besides_bytes(layout);
        written.check((graph, limits), (batch, direction), besides)?;
        let Written { script, draft, .. } = written;
        // Where there is a choice it takes what it may have.
        let most = match limits.in_direction(direction).mode.fits_a_budget() {
            true => draft.place().arena_bytes + besides,
            false => script.arena_bytes + besides,
        };
        Ok::<_, EngineError>(most.min(limits.budget_bytes.unwrap_or(usize::MAX)) as u64)
    };
    let training = bytes(work.training, Direction::Training)?;
    let each = training.max(bytes(work.evaluation, Direction::Inference)?);
    let shares = match work.together {
        Together::WithOthers => Place::own()?.share as u64 + 1,
        Together::Alone => 1,
    };
    let needed = each.saturating_mul(work.workers).saturating_mul(shares);
    let context = &card.context;
    let until = Instant::now() + WAIT_MAX;
    loop {
        let (free, all) = context.memory_bytes()?;
        if needed <= free as u64 {
            return Ok(());
        }
        if needed > all as u64 || Instant::now() >= until {
            let (needed, free, all) = (amount(needed), amount(free as u64), amount(all as u64));
            let Work { workers, training, evaluation, .. } = work;
            return Err(EngineError::Refused(format!(
                "device.kind: \"cuda\": {needed} needed on the card ({shares} x {workers} workers, \
                 {training} samples at a time, {evaluation} in evaluation), and {free} of its \
                 {all} are free; lower data.image_size, train.global_batch or evaluation.batch, \
                 raise train.owners or train.accumulate, or set memory.mode = \"planned\" with \
                 device.memory_budget"
            )));
        }
        std::thread::sleep(PAUSE);
    }
}
