//! What is promised of a simulated run that is asynchronous. Its bits hang on timing, so nothing is
//! compared with a calm run's: each owner's micro-batches count once, one after the other, and what
//! a rank has computed is lost only with that rank.

use std::collections::BTreeMap;

use crate::cluster::comm::sim::End;
use crate::data::sampler::Order;
use crate::lab::simulate::rank::Left;
use crate::lab::simulate::scenario::{SAMPLES, STEPS};
use crate::lab::simulate::supervise::{Ended, Played};
use crate::observe::ledger::{self, AuditReport, Entry, Whole};
use crate::observe::result::RunResult;

/// Its ledger, where it completed.
pub fn audited(
    order: &Order,
    entries: &[Entry],
    result: &RunResult,
) -> Result<AuditReport, String> {
    let (count, mix) = order.expected_of(STEPS);
    let report = ledger::audit_rounds(entries, SAMPLES, Some(Whole { count, mix }));
    if (report.lost, report.repeated) != (0, 0) {
        let (lost, repeated) = (report.lost, report.repeated);
        return Err(format!("audit: {lost} samples lost, {repeated} repeated"));
    }
    if (result.steps, result.samples) != (report.ledger.steps, count) {
        let (rounds, samples) = (result.steps, result.samples);
        let counted = report.ledger.steps;
        return Err(format!(
            "result.json has {rounds} rounds and {samples} samples, the ledger {counted}, the \
             epochs {count}"
        ));
    }
    match result.exact {
        true => Err("it says that its bits are those of every such run".into()),
        false => Ok(report.ledger),
    }
}

/// A process computes no micro-batch twice, whatever happens to the round that it was sent in; and
/// nobody computes one again of a process that lives.
pub fn check_computed(played: &Played) -> Result<(), String> {
    let mut computed: BTreeMap<(u32, u64, u64), Vec<usize>> = BTreeMap::new();
    for seen in &played.sightings {
        let of = (seen.attempt, seen.owner, seen.batch);
        let before = computed.entry(of).or_default();
        let (attempt, process, owner, batch) = (seen.attempt, seen.process, seen.owner, seen.batch);
        let what = format!("attempt {attempt}: micro-batch {batch} of owner {owner}");
        if before.contains(&process) {
            return Err(format!("{what} is computed twice by process {process}"));
        }
        let ended = played.attempts.iter().find(|ended| ended.number == attempt);
        if let Some(other) = before.iter().find(|other| ended.is_some_and(|e| lives(e, **other))) {
            return Err(format!("{what} is computed by process {process}, and {other} lives"));
        }
        before.push(process);
    }
    Ok(())
}

/// Whether it came to an end that it agreed on with others.
fn lives(ended: &Ended, process: usize) -> bool {
    matches!(ended.ends.get(process), Some(End::Finished(Left { status: Ok(_), .. })))
}
