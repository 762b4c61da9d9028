//! The rows. P: when a rank dies. W: who. K: how. S: storage. R: repairs that go wrong themselves.
//! G: cards, on the tests' fake driver.

use std::path::Path;

use super::disk::{self, Damage};
use super::outside::{Network, Outside, PICTURES};
use super::play::{NO_RESIDENT, Planned, Repair};

/// What shows that a row holds.
#[derive(Debug, Clone)]
pub enum Proof {
    /// A real run, played here.
    Run(Planned),
    /// Another test.
    Test {
        /// From the project's folder.
        file: &'static str,
        /// Its name.
        function: &'static str,
    },
}

/// One row.
#[derive(Debug, Clone)]
pub struct Row {
    /// As in the field's matrix: family, number, victim.
    pub id: String,
    /// For a person.
    pub what: &'static str,
    /// How it is shown.
    pub proof: Proof,
    /// Played by `make test`.
    pub core: bool,
}

/// Several nodes under real SLURM daemons.
const NODES: &str = "cluster-scripts/one-machine/selftest-nodes";
pub const SHRINK: &str = r#"recovery.ladder=["shrink", "restart"]"#;
pub const RESTART: &str = r#"recovery.ladder=["restart"]"#;
/// Seconds, so that something can be done to it meanwhile.
const LONG: &str = "train.steps=400";
pub const NO_REGROW: &str = "recovery.regrow=never";

pub fn kill(rank: u32, step: u32, phase: &str) -> String {
    strike("kill", rank, step, phase)
}

fn strike(kind: &str, rank: u32, step: u32, phase: &str) -> String {
    format!(r#"{{kind="{kind}", rank={rank}, step={step}, phase="{phase}"}}"#)
}

pub fn kill_who(who: &str, step: u32, phase: &str) -> String {
    format!(r#"{{kind="kill", who="{who}", step={step}, phase="{phase}"}}"#)
}

pub fn planned(repair: Repair, lost: usize, faults: Vec<String>) -> Planned {
    let (keys, outside) = (Vec::new(), Outside::Nothing);
    Planned { faults, keys, repair, lost, marks: "SIGKILL", outside }
}

pub fn row(id: &str, what: &'static str, planned: Planned) -> Row {
    Row { id: id.into(), what, proof: Proof::Run(planned), core: false }
}

pub fn elsewhere(id: &str, what: &'static str, file: &'static str, function: &'static str) -> Row {
    Row { id: id.into(), what, proof: Proof::Test { file, function }, core: false }
}

impl Planned {
    pub fn with(mut self, keys: &[&str]) -> Self {
        self.keys.extend(keys.iter().map(|key| (*key).to_owned()));
        self
    }

    fn outside(mut self, outside: Outside) -> Self {
        self.outside = outside;
        self
    }

    fn marked(mut self, marks: &'static str) -> Self {
        self.marks = marks;
        self
    }
}

impl Row {
    pub fn core(mut self) -> Self {
        self.core = true;
        self
    }
}

/// Every row.
pub fn all() -> Vec<Row> {
    let struck = [
        steps(),
        beyond_the_near_tier(),
        boundaries(),
        repairs(),
        victims(),
        kinds(),
        networks(),
        rungs(),
    ];
    [struck.concat(), disks(), storage(), cards()].concat()
}

/// Whom W1, W2 and W5 name: the highest rank, rank 0, two at once.
pub const VICTIMS: [(&str, &[u32]); 3] = [("W1", &[3]), ("W2", &[0]), ("W5", &[1, 3])];

/// P2 to P6, each for every victim.
fn steps() -> Vec<Row> {
    let phases = [
        ("P2", "before_load", "while data is loaded"),
        ("P3a", "in_forward", "in the forward pass"),
        ("P3, P3b", "in_backward", "in the backward pass"),
        ("P4", "in_all_reduce", "inside the all-reduce"),
        ("P4b", "in_update", "in the middle of the update"),
        ("P5", "before_vote", "after the all-reduce, before the vote"),
        ("P6", "after_vote", "after the vote, before the commit"),
        ("P6b", "in_publish", "after the vote, before the commit word"),
    ];
    let mut rows = Vec::new();
    for (id, phase, what) in phases {
        for (who, ranks) in VICTIMS {
            let faults = ranks.iter().map(|&rank| kill(rank, 20, phase)).collect();
            rows.push(row(
                &format!("{id} {who}"),
                what,
                planned(Repair::Live, ranks.len(), faults),
            ));
        }
    }
    rows
}

/// P3c to P3e: whatever a step does beyond the near tier of memory, each for every victim.
fn beyond_the_near_tier() -> Vec<Row> {
    let phases = [
        ("P3c", "in_swap_out", "while a value is copied out", "memory.mode=swap"),
        ("P3d", "in_swap_in", "while a value comes back", "memory.mode=swap"),
        ("P3e", "in_recompute", "before a value is computed again", "memory.mode=recompute"),
    ];
    let mut rows = Vec::new();
    for (id, phase, what, mode) in phases {
        for (who, ranks) in VICTIMS {
            let faults = ranks.iter().map(|&rank| kill(rank, 20, phase)).collect();
            let planned = planned(Repair::Live, ranks.len(), faults);
            let planned = planned.with(&["model.name=resnet20", "model.width=1", mode]);
            rows.push(row(&format!("{id} {who}"), what, planned));
        }
    }
    rows
}

/// P1, P7 to P9, P14 and P15: phases that are not reached in every step.
fn boundaries() -> Vec<Row> {
    let mut rows = Vec::new();
    for (who, ranks) in VICTIMS {
        let each = |step, phase: &str| ranks.iter().map(|&rank| kill(rank, step, phase)).collect();
        // Nobody has a state yet: the world starts again.
        let start = planned(Repair::Any, 0, each(1, "in_init"));
        rows.push(row(&format!("P1 {who}"), "while MPI starts", start));
        // Only rank 0 writes, in W2 it dies at that. Others die beside it: in the load of the next
        // step its snapshot is taken, in the backward pass the checkpoint is being written.
        let beside = |phase: &str, meanwhile: &str| {
            let faults = ranks.iter().map(|&rank| match rank {
                0 => kill(0, 20, phase),
                rank => kill(rank, 21, meanwhile),
            });
            let mut faults: Vec<String> = faults.collect();
            if ranks.len() > 1 {
                faults[0] = kill(0, 20, phase);
            }
            planned(Repair::Live, 1, faults)
        };
        let snapshot = "while a checkpoint's snapshot is taken";
        rows.push(row(&format!("P7 {who}"), snapshot, beside("in_snapshot", "before_load")));
        let persist = "while a checkpoint is written behind training";
        rows.push(row(&format!("P8 {who}"), persist, beside("in_persist", "in_backward")));
        // Evaluation follows the commit of step 20, an epoch's end: it stands before step 21.
        let evaluation = planned(Repair::Live, ranks.len(), each(21, "in_evaluation"));
        let evaluation =
            row(&format!("P9 {who}"), "in an evaluation at an epoch's end", evaluation);
        rows.push(if who == "W1" { evaluation.core() } else { evaluation });
        let mut faults: Vec<String> = vec![kill(2, 20, "in_all_reduce")];
        faults.extend(ranks.iter().map(|&rank| kill(rank, 20, "before_first_commit")));
        let again = planned(Repair::Live, 1 + ranks.len(), faults);
        rows.push(row(&format!("P14 {who}"), "after a repair, before its first commit", again));
        let last = planned(Repair::Any, 0, each(60, "in_finalize"));
        rows.push(row(&format!("P15 {who}"), "after the last step, in finalize", last));
        let last = planned(Repair::Live, ranks.len(), each(60, "in_update"));
        rows.push(row(&format!("P15b {who}"), "in the last step", last));
    }
    rows
}

/// P10 to P13: a death inside the repair of rank 2's.
fn repairs() -> Vec<Row> {
    let phases = [
        ("P10a", "in_revoke", "a survivor in the revocation"),
        ("P10", "in_shrink", "a survivor in the shrink"),
        ("P11", "in_spawn", "a survivor in the spawn"),
        ("P12a", "in_merge", "a survivor in the merge"),
        ("P13a", "in_restore", "a survivor while the state is shipped"),
    ];
    let first = || kill(2, 20, "in_all_reduce");
    let mut rows = Vec::new();
    for (id, phase, what) in phases {
        for (who, ranks) in VICTIMS {
            let mut faults = vec![first()];
            faults.extend(ranks.iter().map(|&rank| kill(rank, 20, phase)));
            let lost = 1 + ranks.len();
            rows.push(row(&format!("{id} {who}"), what, planned(Repair::Live, lost, faults)));
        }
    }
    let others = [
        ("P12 newcomer", "newcomer", "in_merge", "the replacement before it merges"),
        ("P13 receiver", "newcomer", "in_restore", "the receiver of the state"),
        ("P13 source", "source", "in_restore", "the source of the state"),
        ("P14 newcomer", "newcomer", "before_first_commit", "the replacement before its commit"),
    ];
    for (id, who, phase, what) in others {
        let faults = vec![first(), kill_who(who, 20, phase)];
        // A replacement that never was in a world is nobody's loss.
        rows.push(row(id, what, planned(Repair::Live, 1, faults)));
    }
    // By MPI only: the source is dead when a part of the state has arrived, another takes over.
    let sent = [
        ("P13 transfer", "source", 2, "the source of a state that it is sending over MPI"),
        ("P13 transfer receiver", "newcomer", 1, "the receiver of a state that is being sent"),
    ];
    for (id, who, lost, what) in sent {
        let faults = vec![first(), kill_who(who, 20, "in_transfer")];
        rows.push(row(id, what, planned(Repair::Live, lost, faults).with(&[NO_RESIDENT])).core());
    }
    let early = vec![first(), r#"{kind="kill", who="newcomer", step=1, phase="in_init"}"#.into()];
    let early = planned(Repair::Any, 1, early);
    rows.push(row("P12 early", "the replacement before MPI_Init ends", early));
    rows
}

/// The other W rows.
fn victims() -> Vec<Row> {
    let in_step = |rank, step| kill(rank, step, "in_all_reduce");
    let cascade = (0..5).map(|at| in_step(at % 4, 20 + at)).collect();
    let all_but_one = (1..4).map(|rank| in_step(rank, 20)).collect();
    let all: Vec<String> = (0..4).map(|rank| kill(rank, 20, "in_forward")).collect();
    let again = vec![in_step(2, 15), in_step(2, 16), in_step(2, 25), in_step(2, 26)];
    let spare = kill_who("spare", 10, "before_load");
    let spares = planned(Repair::Live, 1, vec![spare, in_step(1, 30)]);
    let writer = planned(Repair::Live, 1, vec![kill_who("leader", 20, "in_persist")]);
    let few = planned(Repair::ShrunkThenAgain, 1, vec![in_step(2, 20), in_step(0, 30)]);
    let few = few.with(&[SHRINK, NO_REGROW, "recovery.min_ranks=3"]);
    vec![
        elsewhere(
            "W1, W2, W5",
            "highest rank, rank 0, two at once",
            "tests/processes/matrix/rows.rs",
            "VICTIMS",
        ),
        row("W3, W4", "the rank that writes checkpoints and events", writer).core(),
        row("W6", "five kills in five steps", planned(Repair::Live, 5, cascade)).core(),
        row("W7", "all ranks but one", planned(Repair::Live, 3, all_but_one)).core(),
        row("W8", "all ranks at once", planned(Repair::Again, 0, all)).core(),
        row("W9", "fewer ranks than recovery.min_ranks", few).core(),
        row("W10", "a spare, then a rank", spares.with(&["recovery.spares=2"])),
        row("W11, W12", "a replacement, again and again", planned(Repair::Live, 4, again)),
        elsewhere(
            "W13",
            "mpirun itself",
            "tests/processes/resident.rs",
            "fn everything_killed_at_once_goes",
        ),
        elsewhere("W14", "a whole node", NODES, "node_crashed()"),
        elsewhere("W15", "scancel of a job", "cluster-scripts/one-machine/selftest", "scancel"),
    ]
}

/// How a rank fails.
fn kinds() -> Vec<Row> {
    let one = |kind: &str| vec![strike(kind, 2, 20, "in_forward")];
    let live = |kind: &str, marks| planned(Repair::Live, 1, one(kind)).marked(marks);
    let hang = "recovery.step_timeout=2s";
    let calm = planned(Repair::Nothing, 0, Vec::new()).with(&[LONG]);
    // Nobody can be started: the survivors go on.
    let refused = |outside| {
        let ladder = r#"recovery.ladder=["respawn", "shrink", "restart"]"#;
        let planned = planned(Repair::Shrunk, 1, vec![kill(2, 250, "in_all_reduce")]);
        planned.with(&[ladder, NO_REGROW, LONG]).outside(outside)
    };
    let two = vec![kill(2, 100, "in_all_reduce"), kill(1, 250, "in_update")];
    let jumps = planned(Repair::Live, 2, two).with(&[LONG, "train.max_seconds=100"]);
    vec![
        row("K1", "SIGKILL", live("kill", "SIGKILL")),
        elsewhere(
            "K2",
            "SIGINT, SIGUSR1: checkpoint and stop",
            "tests/processes/runs.rs",
            "fn ctrl_c_leaves_a",
        ),
        row("K3", "SIGSEGV", live("segv", "SIGSEGV")),
        row("K3 panic", "a panic in a worker thread", live("panic", "panic")),
        row("K3 main", "a panic in the thread that communicates", {
            planned(Repair::Live, 1, vec![strike("panic", 2, 20, "before_vote")]).marked("panic")
        }),
        row("K4", "exit(0) by mistake", live("exit", "exit code 0")),
        row("K5", "SIGSTOP", live("stop", "killed by its guardian")).core(),
        row("K6", "a deadlocked thread", live("deadlock", "no progress").with(&[hang])),
        row("K6 loop", "an endless loop", live("loop", "no progress").with(&[hang])),
        elsewhere(
            "K7",
            "a slow rank",
            "tests/processes/guard.rs",
            "fn a_slow_rank_is_reported_and_replaced",
        ),
        row("K8", "out of memory", live("oom", "memory")),
        row("K9", "a device error", live("device_error", "device")).core(),
        elsewhere(
            "K10",
            "NaN gradients",
            "tests/processes/integrity.rs",
            "fn gradients_that_are_no_numbers",
        ),
        elsewhere(
            "K11",
            "a flipped bit",
            "tests/processes/integrity.rs",
            "fn a_rank_whose_weights_differ",
        ),
        elsewhere(
            "K12",
            "a node that is cut off, for good or for a while",
            NODES,
            "node_cut_off()",
        ),
        row("K15", "a refused spawn: the program is gone", refused(Outside::NoProgram)),
        row("K16", "a wall clock that is set on and back", jumps.outside(Outside::Clock)),
        row("K17", "a replacement of another build", refused(Outside::NewProgram)),
        row("R1", "nothing, while others take the cores", calm.outside(Outside::Load)),
    ]
}

/// K13 and K14. Below the limits that `launch` prints nobody is suspected; who dies is replaced.
fn networks() -> Vec<Row> {
    const FAST: u32 = 125_000_000;
    let through = |delay_ms, loss_permille, bytes_per_second| {
        let network = Network { delay_ms, loss_permille, bytes_per_second };
        let killed = planned(Repair::Live, 1, vec![kill(2, 10, "in_all_reduce")]);
        killed.with(&["train.steps=20"]).outside(Outside::Network(network))
    };
    let two = || vec![kill(2, 100, "in_all_reduce"), kill(1, 250, "in_update")];
    let renamed = planned(Repair::Live, 2, two()).with(&[LONG, "recovery.spares=1"]);
    // Who is started cannot be reached: the survivors go on.
    let wrong = planned(Repair::Shrunk, 1, vec![kill(2, 20, "in_all_reduce")]);
    let wrong = wrong.with(&[NO_REGROW]);
    vec![
        row("K13 loss", "5 % of packets lost, 5 ms each way", through(5, 50, FAST)),
        row("K13 delay", "200 ms of delay, there and back", through(100, 0, FAST)),
        row("K13 bandwidth", "1 % of a gigabit per second", through(1, 0, FAST / 100)),
        row("K14", "a machine that gets another name", renamed.outside(Outside::HostName)),
        row("K14 interface", "a wrong interface", wrong.outside(Outside::WrongInterface)),
    ]
}

/// The newest checkpoint is damaged, then everybody dies.
fn disks() -> Vec<Row> {
    let struck = |damage| {
        let restarted = planned(Repair::Checkpoint, 0, Vec::new());
        restarted.with(&disk::KEYS).outside(Outside::Disk(damage))
    };
    let (weights, momentum) = ("model.safetensors", "optimizer.safetensors");
    let (state, manifest) = ("state.bin", "MANIFEST.json");
    let pictures = pictures_of_its_own();
    let pictures: Vec<&str> = pictures.iter().map(String::as_str).collect();
    let skipped = planned(Repair::Live, 1, vec![kill(2, 30, "in_all_reduce")]);
    vec![
        row("S1 run", "half of the newest weights", struck(Damage::Torn(weights))),
        row("S2 run", "a bit of the newest momentum", struck(Damage::Flipped(momentum))).core(),
        row("S2 manifest", "a bit of the newest manifest", struck(Damage::Flipped(manifest))),
        row("S3 run", "the newest run's state is missing", struck(Damage::Missing(state))),
        row("S3 manifest", "the newest manifest is missing", struck(Damage::Missing(manifest))),
        row("S7 run", "the newest weights are those before", struck(Damage::Older(weights))),
        row("S4 run", "the weights of all checkpoints are missing", struck(Damage::All)),
        row("S5 run", "the disk is full, until everybody is dead", struck(Damage::Full)),
        row("S9 run", "the newest is of a later release", struck(Damage::Later)),
        row("S10 run", "pictures that are none, and a rank", {
            skipped.with(&pictures).outside(Outside::BadPictures)
        }),
        row("S11 run", "a newest weight that is no number", struck(Damage::Poisoned)),
        row("S12 run", "all ranks, before a checkpoint", struck(Damage::NoneYet)),
    ]
}

/// Keys of a run on the pictures that `outside::prepare` makes.
fn pictures_of_its_own() -> [String; 3] {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(PICTURES);
    let of = |split| format!("data.{split}={:?}", folder.join(split));
    ["data.format=image_folder".into(), of("train"), of("validation")]
}

/// Checkpoints and data.
fn storage() -> Vec<Row> {
    let damage = "tests/library/checkpoint/damage.rs";
    let trouble = "tests/library/checkpoint/trouble.rs";
    vec![
        elsewhere("S1", "a torn file", damage, "fn s1_a_file_torn_at_any_page"),
        elsewhere("S2", "a flipped bit", damage, "fn s2_every_flipped_byte"),
        elsewhere("S3", "a missing file", damage, "fn s3_a_missing_file"),
        elsewhere("S4", "all checkpoints bad", damage, "fn s4_when_all_are_bad"),
        elsewhere("S5", "disk full, EIO, a hanging disk", trouble, "fn s5_a_storage_that_fails"),
        elsewhere(
            "S6",
            "two jobs on one run",
            "tests/processes/launch.rs",
            "fn a_second_launch_takes",
        ),
        elsewhere("S7", "weights and cursor of two steps", damage, "fn s7_weights_and_cursor"),
        elsewhere(
            "S8",
            "another number of ranks",
            "tests/processes/reproducible.rs",
            "fn any_number_of_ranks",
        ),
        elsewhere("S9", "another format", damage, "fn s9_a_newer_format"),
        elsewhere("S10", "a bad sample", "tests/library/data.rs", "fn bad_images_are_named_once"),
        elsewhere("S11", "a poisoned checkpoint", damage, "fn s11_a_weight_that_is_no_number"),
        elsewhere("S12", "no checkpoint yet", damage, "fn s12_a_run_without_checkpoints"),
    ]
}

/// The other rungs.
fn rungs() -> Vec<Row> {
    let one = || vec![kill(2, 33, "in_all_reduce")];
    let two = vec![kill(2, 20, "in_all_reduce"), kill(0, 30, "in_update")];
    let shrunk = planned(Repair::Shrunk, 2, two).with(&[SHRINK, NO_REGROW]);
    let memory = planned(Repair::Again, 0, one()).with(&[RESTART]);
    let disk = planned(Repair::Checkpoint, 0, one()).with(&[RESTART, NO_RESIDENT]);
    vec![
        row("R2", "two ranks, and nobody replaces them", shrunk).core(),
        row("R3", "one rank, restart from memory", memory).core(),
        row("R3 disk", "one rank, restart from a checkpoint", disk),
    ]
}

/// Ranks whose workers compute on a card.
fn cards() -> Vec<Row> {
    let on_cards = "tests/processes/cuda.rs";
    let beyond = "tests/processes/cuda/beyond.rs";
    vec![
        elsewhere(
            "G1",
            "ranks on cards: replaced, by spares too, or not; in f32 and bf16",
            on_cards,
            "fn runs_on_cards_have_the_same_bits",
        ),
        elsewhere(
            "G2",
            "a card that is lost, full or never answers",
            on_cards,
            "fn a_card_that_is_lost_full_or_hung",
        ),
        elsewhere("G3", "no card, or one that cannot", on_cards, "fn what_no_card_can_do"),
        elsewhere("G4", "a rank with several cards", on_cards, "fn workers_of_a_rank_have"),
        elsewhere("G5", "beyond a card's memory", beyond, "fn a_card_of_just_the_budget"),
        elsewhere("G6", "asynchronous: on cards", on_cards, "fn the_asynchronous_exchange"),
    ]
}
