//! What is promised of the copies that a simulated run makes of its samples.

use crate::config::StagingMode;
use crate::lab::simulate::nodes::Copies;
use crate::lab::simulate::scenario::{Fault, Scenario};
use crate::lab::simulate::supervise::Played;
use crate::observe::result::RunResult;

/// Nothing is copied twice to a node, what a reader may take there is what the set holds, and who
/// may read copies does not read the shared store.
pub fn check(scenario: &Scenario, played: &Played, result: &RunResult) -> Result<(), String> {
    let mut all = 0;
    for node in &played.copies {
        let Copies { node: name, made, damages, wrong } = node;
        if let Some(file) = wrong.first() {
            return Err(format!("node {name}: the copy of {file} is none, and taken for one"));
        }
        let twice = made.iter().find(|(_, times)| **times > 1 + damages);
        if let Some((file, times)) = twice {
            return Err(format!(
                "node {name}: {file} was copied {times} times; copies were damaged {damages} times"
            ));
        }
        all += made.values().sum::<u64>();
    }
    let harmed = |fault: &Fault| {
        matches!(fault, Fault::Copies { .. } | Fault::NoRoom { .. } | Fault::Unread { .. })
    };
    let staged = scenario.config.staging.mode != StagingMode::None;
    let (opens, sound) = (result.data.opens, !scenario.faults.iter().any(harmed));
    // A rank that committed alone told what the others counted, who tell it again with their step.
    let told_twice = if played.deaths > 0 { all } else { 0 };
    match staged && sound && scenario.plane.is_some() && opens > all + told_twice {
        true => Err(format!("{opens} reads of the shared store for {all} copies")),
        false => Ok(()),
    }
}
