//! Where a rank is: in its start, a step, an evaluation, a repair, the end of a run. One type says
//! it to all who ask: the fault plan, the guardian, and whoever tells of a failure.

use serde::{Deserialize, Serialize};

/// A point that a process comes to. Those with a name in configuration files (rows P1-P15 of the
/// failure matrix) are where a planned fault can strike; the others have none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Point {
    InInit,
    /// This rank's part of a step is computed: a death is heard of beside it.
    #[serde(skip)]
    InStep,
    BeforeLoad,
    InForward,
    InBackward,
    /// A value is on its way to the far tier, or back.
    InSwapOut,
    InSwapIn,
    /// A step of the forward pass is about to be computed once more.
    InRecompute,
    /// A bucket's gradients are summed over all ranks, or a step's totals.
    #[serde(skip)]
    InBucket,
    /// In one of those sums, the same in every step.
    InAllReduce,
    /// The next state is being written, into the slot that does not count.
    InUpdate,
    BeforeVote,
    AfterVote,
    /// All have agreed, and the commit word is not stored yet.
    InPublish,
    InSnapshot,
    InPersist,
    InEvaluation,
    /// All replicas are compared.
    #[serde(skip)]
    InComparison,
    /// The world gets another number of ranks, on purpose.
    #[serde(skip)]
    InResize,
    /// The world is repaired; the points from here to `InTransfer` lie in it.
    #[serde(skip)]
    InRepair,
    InRevoke,
    InShrink,
    InSpawn,
    InMerge,
    InRestore,
    /// The state is sent over MPI: its first part has arrived, or has left, and more follows.
    InTransfer,
    BeforeFirstCommit,
    InFinalize,
    /// The run is over for this process.
    #[serde(skip)]
    Over,
}

impl Point {
    /// Those that a rank passes in every step, in this order.
    pub const OF_A_STEP: [Self; 8] = [
        Self::BeforeLoad,
        Self::InForward,
        Self::InBackward,
        Self::InAllReduce,
        Self::InUpdate,
        Self::BeforeVote,
        Self::AfterVote,
        Self::InPublish,
    ];

    /// Whether a planned fault can strike here.
    pub fn is_fault_point(self) -> bool {
        !matches!(
            self,
            Self::InStep
                | Self::InBucket
                | Self::InComparison
                | Self::InResize
                | Self::InRepair
                | Self::Over
        )
    }

    /// What a failure is said to have been met in, by the event `failure_detected`, from this point
    /// on. `None`: what the point before said. Every call of the communicator between two repairs
    /// belongs to one of them; a checkpoint is none, for its writer asks nobody.
    pub fn met_in(self) -> Option<&'static str> {
        Some(match self {
            Self::InStep
            | Self::BeforeFirstCommit
            | Self::BeforeLoad
            | Self::InForward
            | Self::InBackward
            | Self::InSwapOut
            | Self::InSwapIn
            | Self::InRecompute => "step",
            Self::InBucket | Self::InAllReduce => "all_reduce",
            // With it a newcomer's state is compared.
            Self::BeforeVote => "vote",
            Self::InEvaluation => "evaluation",
            Self::InComparison => "comparison",
            Self::InResize => "resize",
            Self::InFinalize => "finish",
            // Every task ends in a vote, and a failure in a repair belongs to what it repairs.
            Self::AfterVote
            | Self::InUpdate
            | Self::InPublish
            | Self::InSnapshot
            | Self::InPersist
            | Self::InRepair
            | Self::InRevoke
            | Self::InShrink
            | Self::InSpawn
            | Self::InMerge
            | Self::InRestore
            | Self::InTransfer
            | Self::InInit
            | Self::Over => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAULT_POINTS: [&str; 23] = [
        "in_init",
        "before_load",
        "in_forward",
        "in_backward",
        "in_swap_out",
        "in_swap_in",
        "in_recompute",
        "in_all_reduce",
        "in_update",
        "before_vote",
        "after_vote",
        "in_publish",
        "in_snapshot",
        "in_persist",
        "in_evaluation",
        "in_revoke",
        "in_shrink",
        "in_spawn",
        "in_merge",
        "in_restore",
        "in_transfer",
        "before_first_commit",
        "in_finalize",
    ];
    const OTHERS: [Point; 6] = [
        Point::InStep,
        Point::InBucket,
        Point::InComparison,
        Point::InResize,
        Point::InRepair,
        Point::Over,
    ];

    #[test]
    fn a_point_has_a_name_for_a_plan_if_and_only_if_a_fault_can_strike_there() {
        for name in FAULT_POINTS {
            let point: Point = serde_json::from_str(&format!("{name:?}")).unwrap();
            assert!(point.is_fault_point(), "{name}");
            assert_eq!(serde_json::to_string(&point).unwrap(), format!("{name:?}"));
        }
        for point in OTHERS {
            assert!(!point.is_fault_point() && serde_json::to_string(&point).is_err(), "{point:?}");
        }
        let refused = serde_json::from_str::<Point>("\"in_repair\"").unwrap_err().to_string();
        let listed = FAULT_POINTS.iter().all(|name| refused.contains(&format!("`{name}`")));
        assert!(listed && !refused.contains("in_bucket"), "{refused}");
    }

    #[test]
    fn a_repair_leaves_it_where_its_failure_was_met() {
        for name in ["in_revoke", "in_shrink", "in_spawn", "in_merge", "in_restore", "in_transfer"]
        {
            let point: Point = serde_json::from_str(&format!("{name:?}")).unwrap();
            assert_eq!(point.met_in(), None, "{name}");
        }
        assert_eq!(Point::InRepair.met_in(), None);
        assert_eq!(Point::AfterVote.met_in(), None, "an evaluation ends in a vote too");
    }
}
