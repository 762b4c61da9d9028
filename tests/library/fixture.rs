//! Writes run directories as a trainer would: a model that learns along a curve, a failure at
//! 0.225 T, repairs with phases, checkpoints, a ledger from the real order of samples.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kintsugi::config::Config;
use kintsugi::config::seed::Stream;
use kintsugi::data::sampler::Order;
use kintsugi::observe::event::{Event, Kind, Lost, RecoveryRecord, VERSION};
use kintsugi::observe::ledger::{Committed, Entry, Ledger};
use kintsugi::observe::log::EventLog;
use kintsugi::observe::result::{BadImages, Restart, RunResult, Status, Validation};
use kintsugi::observe::storage::{FileSystem, Storage};

/// What answers the failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Calm,
    Respawn,
    Shrink,
    Restart,
}

/// A run to make up.
#[derive(Debug, Clone, Copy)]
pub struct Story {
    pub arm: &'static str,
    pub answer: Answer,
    pub seed: u64,
    /// T.
    pub seconds: f64,
    /// Evaluations in T.
    pub evaluations: u32,
    pub step_seconds: f64,
}

pub const SAMPLES: u64 = 6000;
pub const OWNERS: u32 = 12;
pub const BATCH: u64 = 96;

/// Everything that one run does, as it goes on.
struct Telling {
    story: Story,
    order: Order,
    noise: Stream,
    events: Vec<Event>,
    ledger: Vec<Entry>,
    now: f64,
    step: u64,
    attempt: u32,
    generation: u32,
    ranks: u32,
    differs_from: u64,
    saved: u64,
    best: f64,
    recoveries: Vec<RecoveryRecord>,
    lost: u64,
}

/// Writes the run directory below `out` and returns it.
pub fn write_run(out: &Path, story: Story) -> PathBuf {
    let folder = out.join(format!("{}-{}", story.arm.replace('/', "-"), story.seed));
    let storage: Arc<dyn Storage> = Arc::new(FileSystem::new(&folder));
    storage.create_dir(Path::new("")).unwrap();
    let mut config = Config::default();
    config.run.name = story.arm.replace('/', "-");
    config.run.seed = story.seed;
    config.train.max_seconds = Some(story.seconds);
    config.train.owners = Some(OWNERS);
    let text = toml::to_string(&config).unwrap();
    storage.write_whole(Path::new("config.toml"), &[text.as_bytes()]).unwrap();
    let mut telling = Telling::new(story);
    telling.tell();
    let mut log = EventLog::new(storage.clone());
    for event in &telling.events {
        log.append(event).unwrap();
    }
    let mut ledger = Ledger::new(storage.clone());
    for entry in &telling.ledger {
        ledger.append(entry).unwrap();
    }
    let result = serde_json::to_vec_pretty(&telling.result()).unwrap();
    storage.write_whole(Path::new("result.json"), &[&result]).unwrap();
    folder
}

impl Telling {
    fn new(story: Story) -> Self {
        Self {
            story,
            order: Order::new(SAMPLES, OWNERS, story.seed, BATCH).unwrap(),
            noise: Stream::new(&[story.seed, story.answer as u64]),
            events: Vec::new(),
            ledger: Vec::new(),
            now: 0.4,
            step: 0,
            attempt: 1,
            generation: 0,
            ranks: 4,
            differs_from: u64::MAX,
            saved: 0,
            best: 1.0,
            recoveries: Vec::new(),
            lost: 0,
        }
    }

    fn say(&mut self, kind: Kind) {
        self.events.push(Event {
            v: VERSION,
            time: 1.79e9 + self.now,
            seconds: self.now,
            attempt: self.attempt,
            generation: self.generation,
            step: self.step,
            rank: 0,
            kind,
        });
    }

    fn start(&mut self, from: &str) {
        self.say(Kind::RunStart {
            run_id: format!("{}-{}", self.story.arm, self.story.seed),
            ranks: self.ranks,
            owners: OWNERS,
            parameters: 23_700_000,
            train_samples: SAMPLES,
            validation_samples: 1000,
            steps_total: None,
            epoch: 0,
            from: from.to_string(),
            weights: None,
        });
    }

    fn tell(&mut self) {
        let total = self.story.seconds;
        let mut failure = (self.story.answer != Answer::Calm).then_some(0.225 * total);
        let evaluate_every = total / f64::from(self.story.evaluations);
        let checkpoint_every = total / 12.0;
        let (mut evaluate_at, mut checkpoint_at) = (evaluate_every, checkpoint_every);
        self.start("scratch");
        while self.now < total {
            if failure.is_some_and(|at| self.now >= at) {
                failure = None;
                self.fail();
            }
            self.commit_step();
            if self.now >= evaluate_at {
                evaluate_at += evaluate_every;
                self.evaluate();
            }
            if self.now >= checkpoint_at {
                checkpoint_at += checkpoint_every;
                self.checkpoint();
            }
        }
        let reason = format!("train.max_seconds = {total} reached");
        let state_sha256 = Some(self.hash());
        self.say(Kind::RunEnd { status: "completed".into(), reason, state_sha256 });
    }

    /// The loss is a function of seed and step alone, as it is for a run that keeps its bits.
    fn loss(&self, step: u64) -> f64 {
        let branch = u64::from(step >= self.differs_from);
        let noise = Stream::new(&[self.story.seed, step, branch]).normal();
        2.3 * learning_curve(step, self.story.seconds / self.story.step_seconds) + 0.06 * noise
    }

    fn commit_step(&mut self) {
        let slow = 4.0 / f64::from(self.ranks);
        let seconds = self.story.step_seconds * slow * (1.0 + 0.05 * self.noise.unit());
        self.now += seconds;
        let span = self.order.locate(self.step);
        let (count, mix) = self.order.expected(self.step);
        self.step += 1;
        let cursor = self.order.cursor(self.step);
        self.ledger.push(Entry::Step(Committed {
            step: self.step,
            epoch: span.epoch,
            cursor,
            count,
            skipped: 0,
            mix,
            attempt: self.attempt,
            zero_update: false,
        }));
        let loss = self.loss(self.step);
        self.say(Kind::Step {
            epoch: span.epoch,
            loss,
            error: (loss / 2.6).min(1.0),
            samples: count,
            learning_rate: 0.05,
            seconds,
        });
    }

    fn evaluate(&mut self) {
        self.now += self.story.step_seconds * 0.8;
        let steps = self.story.seconds / self.story.step_seconds;
        let wobble = Stream::new(&[self.story.seed, self.step / 7, 9]).normal();
        let error = (learning_curve(self.step, steps) * 0.9 + 0.006 * wobble).clamp(0.0, 0.95);
        self.best = self.best.min(error);
        self.say(Kind::Evaluation {
            error,
            average_error: None,
            loss: error * 2.4,
            samples: 1000,
            seconds: 0.2,
        });
    }

    fn checkpoint(&mut self) {
        self.saved = self.step;
        let mut draw = |mean: f64| mean * (0.85 + 0.3 * self.noise.unit());
        let kind = Kind::Checkpoint {
            name: format!("step-{:08}", self.step),
            bytes: 189_700_000,
            stall_seconds: draw(0.021),
            snapshot_seconds: draw(0.034),
            write_seconds: draw(0.41),
            verify_seconds: draw(0.11),
        };
        self.say(kind);
    }

    fn fail(&mut self) {
        let injected = Kind::FaultInjected {
            kind: "kill".into(),
            phase: "in_forward".into(),
            target: 2,
            pid: 0,
        };
        self.say(injected);
        self.now += 0.004;
        let error = "rank 2 is gone".to_string();
        self.say(Kind::FailureDetected { phase: "in_all_reduce".into(), error });
        match self.story.answer {
            Answer::Calm => {}
            Answer::Respawn => {
                let phases = [
                    ("detect", 0.004),
                    ("revoke_shrink", 0.006),
                    ("spawn", 0.088),
                    ("merge", 0.031),
                    ("agree", 0.0008),
                    ("restore", 0.047),
                    ("first_step", 0.012),
                ];
                self.repair("respawn", &phases);
            }
            Answer::Shrink => {
                self.ranks = 3;
                self.differs_from = self.step + 1;
                let phases = [
                    ("detect", 0.004),
                    ("revoke_shrink", 0.007),
                    ("agree", 0.0007),
                    ("first_step", 0.02),
                ];
                self.repair("shrink", &phases);
            }
            Answer::Restart => self.restart(),
        }
    }

    fn repair(&mut self, rung: &str, phases: &[(&str, f64)]) {
        self.generation += 1;
        let mut draw = |seconds: f64| seconds * (0.9 + 0.3 * self.noise.unit());
        let seconds: std::collections::BTreeMap<String, f64> =
            phases.iter().map(|(name, mean)| ((*name).to_string(), draw(*mean))).collect();
        self.now += seconds.values().sum::<f64>();
        let cause = "signal 9 (SIGKILL)".to_string();
        let lost = vec![Lost { member: 2, rank: 2, host: "node3".into(), cause }];
        let (generation, step, ranks) = (self.generation, self.step + 1, self.ranks);
        let rung = rung.to_string();
        let lost_steps = 0;
        let record = RecoveryRecord { generation, step, lost, rung, lost_steps, ranks, seconds };
        self.recoveries.push(record.clone());
        self.say(Kind::Recovered(record));
    }

    fn restart(&mut self) {
        self.lost = self.step - self.saved;
        self.now += 1.9 + 0.3 * self.noise.unit();
        self.attempt = 2;
        self.step = 0;
        self.start("checkpoint");
        self.step = self.saved;
        self.now += 0.35 + 0.1 * self.noise.unit();
        self.ledger.push(Entry::Rollback { to: self.saved, attempt: 2 });
        self.say(Kind::Restarted {
            from: "checkpoint".into(),
            lost_steps: self.lost,
            lost: Vec::new(),
            weights: None,
        });
        self.now += 0.05;
    }

    fn hash(&self) -> String {
        format!("{:016x}", self.loss(self.step).to_bits()).repeat(4)
    }

    fn result(&self) -> RunResult {
        let (from, lost) = ("checkpoint".into(), Vec::new());
        let restart = Restart { attempt: 2, from, step: self.saved, lost };
        RunResult {
            run_id: format!("{}-{}", self.story.arm, self.story.seed),
            attempt: self.attempt,
            status: Status::Completed,
            reason: "train.max_seconds reached".into(),
            steps: self.step,
            epochs: self.order.locate(self.step).epoch,
            samples: self.order.cursor(self.step),
            seconds: self.now,
            validation: Some(Validation { error: self.best, best: self.best }),
            best: None,
            state_sha256: Some(self.hash()),
            exact: self.ranks == 4,
            recoveries: self.recoveries.clone(),
            restarts: if self.attempt > 1 { vec![restart] } else { Vec::new() },
            resizes: Vec::new(),
            bad_images: BadImages::default(),
            zero_updates: 0,
            data: kintsugi::observe::data_use::DataUse::default(),
            conclusive: false,
            lost_steps: self.lost,
            goodput: 0.97 - 0.0004 * self.lost as f64,
        }
    }
}

/// 1 at the beginning, falling ever more slowly; `steps` is the length of a calm run.
fn learning_curve(step: u64, steps: f64) -> f64 {
    let progress = step as f64 / steps;
    0.16 + 0.84 * (-3.4 * progress.powf(0.62)).exp()
}
