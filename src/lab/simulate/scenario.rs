//! What a simulated run is and what goes wrong in it: drawn whole from one seed before it starts,
//! as a list, so that a failing schedule can be tried again with fewer faults.

use std::time::Duration;

use crate::cluster::comm::sim::{Death, When};
use crate::config::seed::{Stream, purpose};
use crate::config::{
    Bytes, CacheSize, Config, Every, ExchangeKind, FaultKind, Interval, Optimizer, OptimizerKind,
    PlannedFault, Point, Rung, ScheduleKind, Span, Who,
};
use crate::data::sampler::Bundling;
use crate::data::view::mixing::Mixing;

use super::change::Changed;
use super::plane::Plane;

/// Names the run in its files.
pub const RUN_ID: &str = "simulated";
/// Steps of every simulated run: three epochs.
pub const STEPS: u64 = 9;
/// Training samples: three steps an epoch, the last one short.
pub const SAMPLES: u64 = 20;
/// Samples of a step.
pub const BATCH: u64 = 8;
/// Validation samples.
pub const VALIDATION: u64 = 6;
/// Height and width of the pictures.
pub const SIDE: u32 = 4;

/// Faults of one schedule, at most; a repair in the middle of a repair needs three.
const FAULTS_MAX: u64 = 4;
/// Decisions of the board in which a fault may fall: a run without failures takes about so many.
const SETTLES: u64 = 130;
/// Changes of the disk in which a fault may fall.
const WRITES: u64 = 90;
/// Milliseconds in which a request to stop may fall.
const STOP_WITHIN: u64 = 1500;
/// Runs in which state outlives the processes: files cost more than all the rest.
const IN_FILE_ONE_IN: u64 = 3;
/// Runs over copies or caches, or in bundles.
const PLANE_ONE_IN: u64 = 3;

/// Runs whose set or instructions change under them.
const CHANGED_ONE_IN: u64 = 5;
/// Asynchronous runs.
const ASYNCHRONOUS_ONE_IN: u64 = 3;

/// When a process dies in a change of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// Nothing has happened.
    Before,
    /// Whatever can be half done is.
    Middle,
    /// It is done.
    After,
}

/// One thing that goes wrong.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Fault {
    /// A process dies at whatever call it is in, in this start of the world (1 = the first).
    Death { attempt: u32, death: Death },
    /// A process dies at a point of its step or repair.
    Point(PlannedFault),
    /// The process that makes this change of the disk (the first is 0) dies there.
    Write { change: u64, moment: Moment, draw: u64 },
    /// So many changes of the disk from this one on find it full.
    Full { change: u64, changes: u64, draw: u64 },
    /// Everything dies at once, at this decision of this attempt.
    Crash { attempt: u32, settle: u64 },
    /// The same, and whoever started the run has to start it again.
    Power { attempt: u32, settle: u64 },
    /// The newest checkpoint is damaged before this attempt.
    Damage { attempt: u32, draw: u64 },
    /// Resident state that one rank left is damaged before this attempt, or exchanged for an older.
    Rot { attempt: u32, draw: u64 },
    /// The runtime has so few slots for replacements, in every attempt.
    Slots { spawns: u32 },
    /// The runtime refuses every third request for replacements.
    Refusals,
    /// Somebody asks the run to stop.
    Stop { after: Duration },
    /// A repair may take next to no time.
    Hurry,
    /// Copies on a node are damaged before this attempt, or gone.
    Copies { attempt: u32, draw: u64 },
    /// A node has no room for some copies from this attempt on.
    NoRoom { attempt: u32, draw: u64 },
    /// A file of the training set cannot be copied.
    Unread { draw: u64 },
    /// Something is not as the run began for some of its processes.
    Changed(Changed),
}

/// One simulated run.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// Draws the messages' timing too.
    pub seed: u64,
    /// As a user would write it.
    pub config: Config,
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// Whether there is room for state that outlives the processes.
    pub in_file: bool,
    /// How samples come, where not from one file.
    pub plane: Option<Plane>,
}

/// What decides the bits and the validation errors of a run that nothing happens to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Variant {
    /// Ranks at the start.
    pub ranks: u32,
    /// Virtual owners.
    pub owners: u32,
    /// `run.seed`.
    pub seed: u64,
    /// `evaluation.every` as text, and whether there are checkpoints, of which the best is kept.
    pub evaluation: (String, bool),
    /// The order of samples, as text.
    pub bundles: String,
    /// The update, as text.
    pub update: String,
    /// Whether it is asynchronous.
    pub free: bool,
}

const LADDERS: [&[Rung]; 8] = [
    &[Rung::Respawn, Rung::Restart],
    &[Rung::Respawn, Rung::Restart],
    &[Rung::Respawn, Rung::Shrink, Rung::Restart],
    &[Rung::Shrink, Rung::Restart],
    &[Rung::Restart],
    &[Rung::Spare, Rung::Respawn],
    &[Rung::Spare, Rung::Respawn, Rung::Restart],
    // The world is renewed when its spares are used up.
    &[Rung::Spare, Rung::Shrink, Rung::Restart],
];

/// Rows P1-P15 of the failure matrix.
const POINTS: [Point; 22] = [
    Point::InInit,
    Point::BeforeLoad,
    Point::InForward,
    Point::InBackward,
    Point::InSwapOut,
    Point::InSwapIn,
    Point::InRecompute,
    Point::InAllReduce,
    Point::InUpdate,
    Point::BeforeVote,
    Point::AfterVote,
    Point::InPublish,
    Point::InSnapshot,
    Point::InPersist,
    Point::InEvaluation,
    Point::InRevoke,
    Point::InShrink,
    Point::InSpawn,
    Point::InMerge,
    Point::InRestore,
    Point::BeforeFirstCommit,
    Point::InFinalize,
];

fn one_of<T: Copy>(draws: &mut Stream, choices: &[T]) -> T {
    choices[draws.below(choices.len() as u64) as usize]
}

impl Scenario {
    /// The schedule of a seed.
    pub fn of(seed: u64) -> Self {
        // Drawn apart: a synchronous schedule is what it was before there were others.
        match Stream::new(&[seed, purpose::SIMULATE, 11]).below(ASYNCHRONOUS_ONE_IN) {
            0 => Self::asynchronous(seed),
            _ => Self::synchronous(seed),
        }
    }

    /// The schedule of a seed under the synchronous exchange.
    pub fn synchronous(seed: u64) -> Self {
        let draws = &mut Stream::new(&[seed, purpose::SIMULATE, 1]);
        let mut config = config(draws);
        let number = 1 + draws.below(FAULTS_MAX);
        let mut faults: Vec<Fault> = (0..number).map(|_| fault(draws, &config)).collect();
        // Drawn apart: the seeds of before keep the rest of their schedules.
        let apart = &mut Stream::new(&[seed, purpose::SIMULATE, 2]);
        let in_file = apart.below(IN_FILE_ONE_IN) == 0;
        if in_file {
            faults.extend(deaths_of_everything(apart));
        }
        let apart = &mut Stream::new(&[seed, purpose::SIMULATE, 5]);
        let plane =
            (apart.below(PLANE_ONE_IN) == 0).then(|| Plane::draw(apart, SAMPLES, &mut config));
        if plane.is_some() {
            faults.extend(harm_to_copies(apart));
        }
        let apart = &mut Stream::new(&[seed, purpose::SIMULATE, 10]);
        if apart.below(CHANGED_ONE_IN) == 0 {
            faults.push(Fault::Changed(Changed::draw(apart, config.run.ranks)));
        }
        draw_update(&mut Stream::new(&[seed, purpose::SIMULATE, 8]), &mut config);
        draw_mixing(&mut Stream::new(&[seed, purpose::SIMULATE, 9]), &mut config);
        let apart = &mut Stream::new(&[seed, purpose::SIMULATE, 4]);
        faults.iter_mut().for_each(|fault| later_in_a_restore(fault, apart));
        faults.sort_by_key(order);
        let is = |fault: &Fault, kind| matches!(fault, Fault::Point(p) if p.kind == kind);
        // Twice at one place it would strike two tries of a step, as what stays so does.
        let mut nans = Vec::new();
        faults.retain(|fault| {
            let known = nans.contains(fault);
            nans.extend(Some(fault.clone()).filter(|fault| is(fault, FaultKind::Nan)));
            !known
        });
        if faults.iter().any(|fault| is(fault, FaultKind::BitFlip)) {
            config.recovery.integrity_every = Interval::Steps(2 + draws.below(2));
        }
        if faults.contains(&Fault::Hurry) {
            config.recovery.time_limit = Span(Duration::from_millis(2));
        }
        Self { seed, config, faults, in_file, plane }
    }

    /// The same under the asynchronous exchange, which has an update of its own and nobody who
    /// looks for flipped bits or what is no number.
    pub fn asynchronous(seed: u64) -> Self {
        let mut scenario = Self::synchronous(seed);
        let draws = &mut Stream::new(&[seed, purpose::SIMULATE, 12]);
        let Config { train, optimizer, schedule, recovery, .. } = &mut scenario.config;
        (train.exchange, train.accumulate) = (ExchangeKind::Asynchronous, None);
        *optimizer = Optimizer { learning_rate: 0.05, ..Optimizer::default() };
        optimizer.momentum = one_of(draws, &[0.0, 0.5, 0.9]);
        optimizer.weight_decay = one_of(draws, &[0.0, 0.01]);
        schedule.kind = ScheduleKind::Constant;
        recovery.integrity_every = Interval::Off;
        let corrupts = |kind| matches!(kind, FaultKind::BitFlip | FaultKind::Nan);
        let kept = |fault: &Fault| !matches!(fault, Fault::Point(point) if corrupts(point.kind));
        scenario.faults.retain(kept);
        scenario
    }

    /// Whether it is asynchronous.
    pub fn is_free(&self) -> bool {
        self.config.train.exchange == ExchangeKind::Asynchronous
    }

    /// Whether its disk is full for a while.
    pub fn has_full_disk(&self) -> bool {
        self.faults.iter().any(|fault| matches!(fault, Fault::Full { .. }))
    }

    /// The same run without these of its faults.
    pub fn without(&self, spared: &[usize]) -> Self {
        let kept = self.faults.iter().enumerate().filter(|(index, _)| !spared.contains(index));
        Self { faults: kept.map(|(_, fault)| fault.clone()).collect(), ..self.clone() }
    }

    /// What its bits depend on.
    pub fn variant(&self) -> Variant {
        let (every, kept) = (self.config.evaluation.every, self.config.checkpoint.every);
        Variant {
            ranks: self.config.run.ranks,
            owners: self.config.train.owners.unwrap_or(self.config.run.ranks),
            seed: self.config.run.seed,
            evaluation: (every.to_string(), kept != Every::Never),
            bundles: format!("{:?}", Bundling::of(&self.config.data)),
            update: format!(
                "{:?} {:?} {} {:?} {:?}",
                self.config.optimizer,
                self.config.schedule,
                self.config.train.pieces(),
                self.config.train.label_smoothing,
                Mixing::of(&self.config)
            ),
            free: self.is_free(),
        }
    }

    /// The same run when nothing goes wrong.
    pub fn calm(&self) -> Self {
        let mut config = self.config.clone();
        config.recovery = crate::config::Recovery::default();
        config.recovery.ladder = Some(vec![Rung::Respawn]);
        config.staging = crate::config::Staging::default();
        config.data.cache = CacheSize::Off;
        Self { seed: 0, config, faults: Vec::new(), in_file: false, plane: None }
    }

    /// What is not as the run began.
    pub fn changes(&self) -> impl Iterator<Item = &Changed> {
        self.faults.iter().filter_map(|fault| match fault {
            Fault::Changed(changed) => Some(changed),
            _ => None,
        })
    }

    /// Deaths of an attempt, in the order in which they are looked at.
    pub fn deaths(&self, attempt: u32) -> Vec<Death> {
        let of = |fault: &Fault| match fault {
            Fault::Death { attempt: at, death } if *at == attempt => Some(*death),
            _ => None,
        };
        self.faults.iter().filter_map(of).collect()
    }
}

/// Deaths in the order of their times, those that follow another one last.
fn order(fault: &Fault) -> (u8, u64) {
    match fault {
        Fault::Death { death: Death { when: When::At(settle), .. }, .. } => (0, *settle),
        Fault::Death { .. } => (1, 0),
        _ => (2, 0),
    }
}

fn config(draws: &mut Stream) -> Config {
    let mut config = Config::default();
    let ranks = 2 + draws.below(3) as u32;
    config.run.name = "simulated".into();
    config.run.ranks = ranks;
    config.run.seed = 1 + draws.below(2);
    config.model.name = "stand-in".into();
    config.data.image_size = SIDE;
    config.data.augment = false;
    config.train.steps = Some(STEPS);
    config.train.global_batch = BATCH;
    config.train.owners = Some(ranks * (1 + draws.below(2) as u32));
    config.train.bucket = Bytes(128);
    config.optimizer.learning_rate = 0.05;
    config.optimizer.momentum = 0.9;
    config.evaluation.every = one_of(draws, &[Every::Epoch, Every::Steps(4), Every::Never]);
    config.evaluation.batch = 2;
    config.checkpoint.every = match draws.below(5) {
        0 => Every::Never,
        1 => Every::Epoch,
        2 => Every::Steps(1),
        steps => Every::Steps(steps - 1),
    };
    config.checkpoint.keep = 1 + draws.below(2) as u32;
    config.recovery.ladder = Some(one_of(draws, &LADDERS).to_vec());
    if config.recovery.rungs().contains(&Rung::Spare) {
        config.recovery.spares = Some(draws.below(3) as u32);
    }
    config.recovery.integrity_every = one_of(draws, &[Interval::Off, Interval::Steps(2)]);
    config
}

/// Half of all runs are plain SGD at one rate; the others' updates are drawn.
fn draw_update(draws: &mut Stream, config: &mut Config) {
    let optimizer = &mut config.optimizer;
    match draws.below(8) {
        0 => optimizer.nesterov = true,
        1 => optimizer.name = OptimizerKind::Lars,
        2 | 3 => optimizer.name = OptimizerKind::AdamW,
        _ => return,
    }
    optimizer.clip_norm = (draws.below(2) == 0).then_some(0.5);
    optimizer.ema_decay = (draws.below(2) == 0).then_some(0.9);
    config.train.accumulate = (draws.below(2) == 0).then_some(2);
    let kinds = [ScheduleKind::Constant, ScheduleKind::OneCycle, ScheduleKind::Polynomial];
    config.schedule.kind = one_of(draws, &kinds);
}

/// A quarter of all runs mix pictures, half of those smooth labels.
fn draw_mixing(draws: &mut Stream, config: &mut Config) {
    if draws.below(4) > 0 {
        return;
    }
    let (mixup, cutmix) = one_of(draws, &[(true, false), (false, true), (true, true)]);
    config.data.mixup_alpha = mixup.then_some(0.4);
    config.data.cutmix_alpha = cutmix.then_some(1.0);
    config.train.label_smoothing = (draws.below(2) == 0).then_some(0.1);
}

fn fault(draws: &mut Stream, config: &Config) -> Fault {
    let attempt = 1 + u32::from(draws.below(4) == 0);
    match draws.below(22) {
        0..7 => {
            let when = match draws.below(2) {
                0 => When::At(draws.below(SETTLES)),
                _ => When::After(draws.below(30)),
            };
            Fault::Death { attempt, death: Death { when, draw: draws.next_u64() } }
        }
        7..12 => Fault::Point(point(draws, config)),
        12..15 => {
            let moment = one_of(draws, &[Moment::Before, Moment::Middle, Moment::After]);
            Fault::Write { change: draws.below(WRITES), moment, draw: draws.next_u64() }
        }
        15 => {
            let (change, changes) = (draws.below(WRITES), 1 + draws.below(12));
            Fault::Full { change, changes, draw: draws.next_u64() }
        }
        16 => Fault::Crash { attempt, settle: draws.below(SETTLES) },
        17 => Fault::Damage { attempt: 2, draw: draws.next_u64() },
        18 => match draws.below(3) {
            0 => Fault::Refusals,
            1 => Fault::Hurry,
            spawns => Fault::Slots { spawns: spawns as u32 - 2 },
        },
        20 => Fault::Point(corruption(draws, config, FaultKind::BitFlip, Point::InPublish)),
        21 => Fault::Point(corruption(draws, config, FaultKind::Nan, Point::InForward)),
        _ => Fault::Stop { after: Duration::from_millis(draws.below(STOP_WITHIN)) },
    }
}

/// What a run whose state outlives its processes is for: all of them die at once, perhaps again
/// while they start, and something may happen to what they left.
fn deaths_of_everything(draws: &mut Stream) -> Vec<Fault> {
    let mut faults = Vec::new();
    for attempt in 1..=2 {
        let settle = draws.below(SETTLES);
        match draws.below(4 * u64::from(attempt)) {
            0 | 1 => faults.push(Fault::Crash { attempt, settle }),
            2 => faults.push(Fault::Power { attempt, settle }),
            _ => {}
        }
    }
    for attempt in 2..=3 {
        let draw = draws.next_u64();
        if draws.below(4) == 0 {
            faults.push(Fault::Rot { attempt, draw });
        }
    }
    faults
}

/// What goes wrong with copies.
fn harm_to_copies(draws: &mut Stream) -> Vec<Fault> {
    let mut faults = Vec::new();
    for attempt in 1..=3 {
        let draw = draws.next_u64();
        match draws.below(6) {
            0 if attempt > 1 => faults.push(Fault::Copies { attempt, draw }),
            1 => faults.push(Fault::NoRoom { attempt, draw }),
            _ => {}
        }
    }
    if draws.below(4) == 0 {
        faults.push(Fault::Unread { draw: draws.next_u64() });
    }
    faults
}

fn point(draws: &mut Stream, config: &Config) -> PlannedFault {
    let whom =
        [Who::Rank, Who::Rank, Who::Rank, Who::Leader, Who::Newcomer, Who::Source, Who::Spare];
    let who = one_of(draws, &whom);
    let rank = draws.below(u64::from(config.run.ranks)) as u32;
    let step = (draws.below(3) > 0).then(|| 1 + draws.below(STEPS));
    let phase = Some(one_of(draws, &POINTS));
    PlannedFault { kind: FaultKind::Kill, who, rank, step, seconds: None, phase, pause: None }
}

/// Half of the deaths in a restore fall into the middle of a state that is being sent.
fn later_in_a_restore(fault: &mut Fault, draws: &mut Stream) {
    if let Fault::Point(point) = fault
        && point.phase == Some(Point::InRestore)
        && draws.below(2) == 0
    {
        point.phase = Some(Point::InTransfer);
    }
}

fn corruption(draws: &mut Stream, config: &Config, kind: FaultKind, point: Point) -> PlannedFault {
    let rank = draws.below(u64::from(config.run.ranks)) as u32;
    let step = Some(1 + draws.below(STEPS));
    let (who, phase) = (Who::Rank, Some(point));
    PlannedFault { kind, who, rank, step, seconds: None, phase, pause: None }
}

#[cfg(test)]
#[path = "scenario_tests.rs"]
mod tests;
