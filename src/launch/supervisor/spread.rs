//! Asks ranks that losses have brought together on few nodes to end at a step boundary, as for a
//! renewal: the next attempt is on all nodes that live. When: `nodes/spreading.rs`.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::launch::nodes::spreading::{LOOK_EVERY, Look};
use crate::launch::verdict;

use super::Supervisor;

impl Supervisor<'_> {
    /// While an attempt runs.
    pub(super) fn look_at_spread(&mut self) {
        let (job, now) = (self.job, Instant::now());
        if now.saturating_duration_since(self.spread_looked) < LOOK_EVERY
            || !self.spreading.watches()
            || !self.history.committing()
            || self.scaling.is_under_way()
            || !verdict::may_restart(&job.config)
        {
            return;
        }
        let Some(crew) = &self.crew else { return };
        self.spread_looked = now;
        // No table, or another attempt's: a repair is under way, or the disk slow.
        let Some(hosts) = job.run.hosts_of_ranks(self.attempt) else { return };
        let possible = crew.better_spread(&hosts);
        let used = hosts.iter().collect::<BTreeSet<_>>().len();
        let step = self.last.as_ref().map_or(0, |last| last.step);
        if !self.spreading.look(Look { used, possible, step, at: now }) {
            return;
        }
        let (ranks, nodes) = (hosts.len(), possible.unwrap_or(used));
        self.warn(&format!(
            "{ranks} ranks are on {used} nodes and {nodes} can be used: started again on those \
             after one of the next steps"
        ));
        if let Err(error) = self.ask_to_renew() {
            self.spreading.give_up();
            self.warn(&format!("the ranks stay where they are: they cannot be asked: {error}"));
        }
    }

    /// Between two attempts: one that was to spread the ranks and came to nothing is not repeated.
    pub(super) fn end_of_spread(&mut self) {
        let Some(before) = self.spreading.attempt_ends(self.history.committing()) else { return };
        if let Some(crew) = &mut self.crew {
            crew.want(before);
            self.warn(&format!("no step was committed on more nodes: {before} from now on"));
        }
    }
}
