//! The first lines of an attempt, from the rank that writes.

use crate::config::Shown;
use crate::config::identity;
use crate::engine;
use crate::observe::event::{Kind, Lost};
use crate::observe::ledger::counted_after;

use crate::train::TrainError;
use crate::train::plan::{Facts, Plan, TrainArguments};
use crate::train::record::outcome::RESULT;
use crate::train::start::prepare::From;
use crate::train::start::surroundings::Surroundings;
use crate::train::trainer::Trainer;

/// What an attempt begins with.
pub(in crate::train) struct Beginning {
    /// Where its state came from.
    pub from: From,
    /// The run's constants.
    pub facts: Facts,
    /// Training samples.
    pub train_samples: u64,
    /// What of the sets is not used.
    pub remarks: Vec<String>,
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
    let Beginning { from, facts, train_samples, remarks, plan, lost, inexact } = beginning;
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
    // Sets and device are the same as long as the run goes on: once is enough.
    let remarks = remarks.into_iter().chain(engine::remark(&arguments.config.device));
    for message in remarks.filter(|_| from == From::Scratch) {
        record.event(rank, Kind::Warning { message });
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
            train_samples,
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
