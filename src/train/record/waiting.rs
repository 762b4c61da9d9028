//! The line of a run that waits for its data set. Whoever waits writes it, from a worker thread:
//! the rank that writes other lines waits for that worker.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::observe::event::Kind;
use crate::observe::log::EventLog;
use crate::observe::storage::Storage;

use crate::train::compute::outage::{Tell, Wanted};
use crate::train::record::journal::{Journal, Stamp};
use crate::train::state::rank::{Moment, Rank};

/// What writes the line of an outage that this rank meets.
pub fn teller(rank: &Rank, journal: &Journal) -> Tell {
    let (storage, clock) = (Arc::clone(&rank.storage), Arc::clone(&rank.clock));
    let slots = Arc::clone(&rank.state.slots);
    let (place, origin, patience) = (rank.place(), journal.origin(), rank.plan.patience);
    Box::new(move |wanted: Wanted<'_>| {
        let slots = slots.read().unwrap_or_else(PoisonError::into_inner);
        let committed = slots.committed();
        let place = Moment { step: committed.step, generation: committed.generation, ..place };
        tell(&storage, Stamp::new(place, clock.unix_seconds(), origin), patience, wanted);
    })
}

/// Writes it.
pub fn tell(storage: &Arc<dyn Storage>, stamp: Stamp, patience: Duration, wanted: Wanted<'_>) {
    let kind = match wanted {
        Wanted::Copies(progress) => Kind::Staging(progress.over(0)),
        Wanted::Storage(reason) => {
            let (reason, patience_seconds) = (reason.to_owned(), patience.as_secs_f64());
            Kind::Waiting { reason, patience_seconds }
        }
    };
    if let Err(error) = EventLog::new(Arc::clone(storage)).append(&stamp.event(kind)) {
        tracing::warn!("cannot record that the run waits: {error}");
    }
}
