//! The first lines of an attempt, from the rank that writes.

use std::sync::Arc;

use crate::cluster::recovery::set::SetIdentity;
use crate::config::Shown;
use crate::config::identity;
use crate::data::source::Source;
use crate::engine;
use crate::observe::event::{Kind, Lost};
use crate::observe::ledger::counted_after;
use crate::observe::notice::act_on;
use crate::run_folder;

use crate::train::TrainError;
use crate::train::plan::{Facts, Plan, TrainArguments};
use crate::train::record::began_with;
use crate::train::record::outcome::RESULT;
use crate::train::start::prepare::From;
use crate::train::start::surroundings::Surroundings;
use crate::train::trainer::Trainer;
use crate::train::update::freeze;

/// What an attempt begins with.
pub(in crate::train) struct Beginning {
    /// Where its state came from.
    pub from: From,
    /// The run's constants.
    pub facts: Facts,
    /// Its data sets, and what was done to make first weights fit.
    pub of: (Vec<Arc<dyn Source>>, Vec<String>),
    /// What it is to do.
    pub plan: Plan,
    /// Who was lost with the attempt before.
    pub lost: Vec<Lost>,
    /// Why its bits are not those of a run without failures, where it is so.
    pub inexact: Option<Kind>,
}

/// Writes them.
pub(in crate::train) fn announce(
    arguments: &TrainArguments,
    around: &Surroundings,
    trainer: &mut Trainer,
    beginning: Beginning,
) -> Result<(), TrainError> {
    if !arguments.launched {
        let text = identity::resolved_text(&arguments.config);
        let written = around.storage.write_whole("config.toml".as_ref(), &[text.as_bytes()]);
        written.map_err(|e| TrainError::Configuration(format!("cannot write config.toml: {e}")))?;
        let _ = around.storage.remove(RESULT.as_ref());
    }
    let Beginning { from, facts, of: (sets, of_weights), plan, lost, inexact } = beginning;
    let Trainer { rank, record, .. } = trainer;
    record.journal.world(&rank.world);
    let (attempt, step) = (rank.world.attempt, rank.replica.position.step);
    let from_name = from.name();
    let init = arguments.config.model.init.as_deref().filter(|_| from == From::Scratch);
    let weights = init.map(|path| path.to_string_lossy().into_owned());
    let lost_steps = counted_after(around.storage.as_ref(), step).len() as u64;
    record.take_over(rank);
    if attempt > 1 {
        let (from, weights) = (from_name.into(), weights.clone());
        record.event(rank, Kind::Restarted { from, lost_steps, lost, weights });
    }
    if rank.replica.unhoused > 0 {
        let (ranks, place) = (rank.replica.unhoused, &arguments.config.recovery.resident_dir);
        let message = format!(
            "resident state is off on {ranks} ranks: no room for their slots in {} (their logs say \
             more); a restart will read a checkpoint",
            place.shown()
        );
        record.event(rank, Kind::Warning { message });
    }
    let layout = &facts.about.layout;
    let of_frozen = freeze::remark(layout, &freeze::frozen_in(&arguments.config, layout));
    let of_weights = of_weights.into_iter().chain(of_frozen);
    let of_weights = of_weights.chain(engine::remark(&arguments.config.device));
    let news = keep_sets(arguments, around, (facts.set, &sets));
    // Sets and device are the same as long as the run goes on: once is enough.
    let remarks = sets.iter().flat_map(|set| set.remarks()).cloned().chain(of_weights);
    let remarks = remarks.filter(|_| from == From::Scratch);
    for kind in remarks.map(|message| Kind::Warning { message }).chain(news) {
        record.event(rank, kind);
    }
    let parameters = facts.about.layout.parameters as u64;
    let validation_samples = plan.validation_samples;
    record.event(
        rank,
        Kind::RunStart {
            run_id: facts.run_id.clone(),
            ranks: rank.comm.size() as u32,
            owners: around.owners,
            parameters,
            train_samples: facts.order.samples,
            validation_samples,
            steps_total: plan.steps_max,
            from: from_name.into(),
            weights,
        },
    );
    if let Some(inexact) = inexact {
        record.event(rank, inexact);
    }
    Ok(())
}

/// Who comes later is to have the order that the ranks have agreed on. Without room for that it
/// lists the sets as they are then, and is not taken where they have changed. What there is to say
/// of sets that have changed already.
fn keep_sets(
    arguments: &TrainArguments,
    around: &Surroundings,
    (listed, sets): (SetIdentity, &[Arc<dyn Source>]),
) -> Vec<Kind> {
    let folder = arguments.run_dir.join(run_folder::CACHE);
    for set in sets {
        if let Err(error) = set.keep(&folder) {
            let place = folder.shown();
            act_on(&format!("the run's listing of its data cannot be kept in {place}: {error}"));
        }
    }
    let other = began_with::note(around.storage.as_ref(), listed).unwrap_or_else(|error| {
        act_on(&format!("the run's data cannot be written down: {error}"));
        None
    });
    let news = sets.iter().filter_map(|set| set.news());
    let news = news.map(|news| Kind::Warning { message: news.to_owned() });
    news.chain(other).collect()
}
