//! The processors of a rank under `launch`: it takes a place of its machine that is free, and binds
//! its threads there. A replacement finds its predecessor's; a spare takes none before it is
//! promoted. Ranks beyond those that launch counted (a node took over another's) stay unbound, and
//! those of a run whose places another run has.

use std::time::Duration;

use crate::cluster::processors::claim::{self, Claim};
use crate::cluster::processors::machine::Machine;
use crate::cluster::processors::places::{Places, Wish, places};
use crate::observe::notice::act_on;
use crate::run_folder::variables;
use crate::train::plan::TrainArguments;

/// The kernel frees a dead rank's place up to 100 ms late where processors are busy.
const TRY_EVERY: Duration = Duration::from_millis(50);
const TRIES_MAX: u32 = 100;

/// Takes a place. Threads that run already are bound too, and those that they will start.
pub(in crate::train) fn take(arguments: &TrainArguments) {
    let variable = |name| std::env::var(name).ok();
    let ranks = variable(variables::RANKS_HERE).and_then(|text| text.parse().ok());
    let Some((ranks, job)) = ranks.zip(variable(variables::JOB)) else { return };
    let places = places(&Machine::here(), Wish::of(&arguments.config, ranks));
    if !try_take(&job, &places) {
        take_when_free(job, places);
    }
}

/// A thread tries again: whoever recovers does not wait for it.
fn take_when_free(job: String, places: Places) {
    let again = move || {
        for _ in 0..TRIES_MAX {
            std::thread::sleep(TRY_EVERY);
            if try_take(&job, &places) {
                return;
            }
        }
    };
    // Without a thread it stays unbound, which is no harm.
    let _ = std::thread::Builder::new().name("place".into()).spawn(again);
}

/// Whether nothing is left to be tried.
fn try_take(job: &str, places: &Places) -> bool {
    match claim::bind((&kintsugi_ffi::os::hostname(), job), places) {
        Ok(claim) => claim == Claim::Held,
        Err(error) => {
            act_on(&format!("run.bind: this rank is not bound to processors: {error}"));
            true
        }
    }
}
