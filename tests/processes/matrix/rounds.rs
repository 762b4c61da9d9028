//! The rows of the asynchronous exchange (E): a rank dies while its workers run free. Its bits hang
//! on timing, so there is no calm run to compare with: each row's run must learn, and its audit
//! must say that every sample of every epoch was summed exactly once. (That all ranks hold the same
//! is `tests/processes/asynchronous.rs`.)

use super::play::{ASYNCHRONOUS, NO_RESIDENT, Planned, Repair};
use super::rows::{RESTART, Row, SHRINK, VICTIMS, elsewhere, kill, kill_who, planned, row};

/// Momentum tolerates little delay, and this network little momentum.
const MOMENTUM: &str = "optimizer.momentum=0.5";

fn free(repair: Repair, lost: usize, faults: Vec<String>) -> Planned {
    planned(repair, lost, faults).with(&[ASYNCHRONOUS, MOMENTUM])
}

/// Every row of the exchange.
pub fn rounds() -> Vec<Row> {
    [phases(), repairs()].concat()
}

/// A death in each phase of a round, for every victim.
fn phases() -> Vec<Row> {
    let phases = [
        ("E1", 20, "before_load", "asynchronous: at the beginning of a round"),
        ("E2", 20, "in_forward", "asynchronous: a worker, its micro-batch being loaded"),
        ("E3", 20, "in_backward", "asynchronous: a worker, behind the backward pass"),
        ("E4", 20, "in_all_reduce", "asynchronous: while a round is summed"),
        ("E5", 20, "before_vote", "asynchronous: before the vote"),
        ("E6", 20, "after_vote", "asynchronous: after the vote, before the update"),
        ("E7", 20, "in_update", "asynchronous: in the middle of the update"),
        ("E8", 20, "in_publish", "asynchronous: before the commit word"),
        ("E9", 21, "in_evaluation", "asynchronous: in an evaluation"),
    ];
    let mut rows = Vec::new();
    for (id, step, phase, what) in phases {
        for (who, ranks) in VICTIMS {
            let faults = ranks.iter().map(|&rank| kill(rank, step, phase)).collect();
            let struck = row(&format!("{id} {who}"), what, free(Repair::Live, ranks.len(), faults));
            rows.push(if (id, who) == ("E7", "W2") { struck.core() } else { struck });
        }
    }
    rows
}

/// A death within a repair, and the other rungs.
fn repairs() -> Vec<Row> {
    let first = || kill(2, 20, "in_all_reduce");
    let two = || vec![kill(0, 20, "in_all_reduce"), kill(2, 30, "in_backward")];
    let all: Vec<String> = (0..4).map(|rank| kill(rank, 20, "in_all_reduce")).collect();
    let all_but_one = (1..4).map(|rank| kill(rank, 20, "in_all_reduce")).collect();
    let source = vec![first(), kill_who("source", 20, "in_transfer")];
    let receiver = vec![first(), kill_who("newcomer", 20, "in_transfer")];
    let again = vec![first(), kill_who("newcomer", 20, "before_first_commit")];
    let spare = free(Repair::Live, 2, two()).with(&["recovery.spares=2"]);
    let shrunk = free(Repair::Shrunk, 2, two()).with(&[SHRINK]);
    let memory = free(Repair::Again, 0, vec![kill(0, 33, "in_all_reduce")]).with(&[RESTART]);
    let disk = free(Repair::Checkpoint, 0, vec![kill(0, 33, "in_all_reduce")]);
    let disk = disk.with(&[RESTART, NO_RESIDENT]);
    vec![
        row("E10 source", "asynchronous: the source of a state that it sends over MPI", {
            free(Repair::Live, 2, source).with(&[NO_RESIDENT])
        }),
        row("E10 receiver", "asynchronous: the receiver of a state that is sent", {
            free(Repair::Live, 1, receiver).with(&[NO_RESIDENT])
        }),
        row("E11", "asynchronous: the replacement before its commit", {
            free(Repair::Live, 1, again)
        }),
        row("E12", "asynchronous: two deaths one after the other", free(Repair::Live, 2, two())),
        row("E13", "asynchronous: all ranks but one", free(Repair::Live, 3, all_but_one)),
        row("E14", "asynchronous: two deaths, and spares", spare),
        row("E15", "asynchronous: two deaths, and nobody replaces them", shrunk).core(),
        row("E16", "asynchronous: rank 0, restart from memory", memory),
        row("E16 disk", "asynchronous: rank 0, restart from a checkpoint", disk),
        row("E17", "asynchronous: all ranks at once", free(Repair::Again, 0, all)),
        elsewhere(
            "E18",
            "asynchronous: everything, launch included; replicas are equal",
            "tests/processes/asynchronous.rs",
            "fn all_ranks_hold_the_same_bits",
        ),
    ]
}
