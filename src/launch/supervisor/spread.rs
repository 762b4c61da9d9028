//! Asks ranks that losses have brought together on few nodes to end at a step boundary, as for a
//! renewal: the next attempt is on all nodes that live. When: `nodes/spreading.rs`.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::launch::ending::verdict;
use crate::launch::nodes::ClusterNodes;
use crate::launch::nodes::spreading::{LOOK_EVERY, Look};

use super::record::Record;
use super::scaling::ask_to_renew;

/// When the spread of the ranks was last looked at.
pub(super) struct Spread {
    looked: Instant,
}

impl Default for Spread {
    fn default() -> Self {
        Self { looked: Instant::now() }
    }
}

impl Spread {
    /// While an attempt runs whose nodes are not being changed.
    pub(super) fn look(&mut self, nodes: Option<&ClusterNodes>, record: &mut Record<'_>) {
        let (job, now) = (record.job, Instant::now());
        if now.saturating_duration_since(self.looked) < LOOK_EVERY
            || !record.spreading.watches()
            || !record.history.committing()
            || !verdict::may_restart(&job.config)
        {
            return;
        }
        let Some(nodes) = nodes else { return };
        self.looked = now;
        // No table, or another attempt's: a repair is under way, or the disk slow.
        let Ok(Some(hosts)) = job.run.hosts_of_ranks(record.attempt) else { return };
        let possible = nodes.better_spread(&hosts);
        let used = hosts.iter().collect::<BTreeSet<_>>().len();
        let step = record.step();
        if !record.spreading.look(Look { used, possible, step, at: now }) {
            return;
        }
        let (ranks, nodes) = (hosts.len(), possible.unwrap_or(used));
        record.warn(&format!(
            "{ranks} ranks are on {used} nodes and {nodes} can be used: started again on those \
             after one of the next steps"
        ));
        if let Err(error) = ask_to_renew(&job.run) {
            record.spreading.give_up();
            record.warn(&format!("the ranks stay where they are: they cannot be asked: {error}"));
        }
    }
}

/// Between two attempts: one that was to spread the ranks and came to nothing is not repeated.
pub(super) fn end_of_attempt(nodes: Option<&mut ClusterNodes>, record: &mut Record<'_>) {
    if record.history.committing() {
        return record.spreading.attempt_held();
    }
    let Some(before) = record.spreading.attempt_failed() else { return };
    if let Some(nodes) = nodes {
        nodes.want(before);
        record.warn(&format!("no step was committed on more nodes: {before} from now on"));
    }
}
