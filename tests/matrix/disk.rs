//! Checkpoints that are damaged while their run goes on, and then everybody dies: the next start
//! passes over what is damaged and takes the one before it. (Every page and byte of a file, and
//! disks that fail, are played in tests/checkpoint, without processes.)

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::play::LIMIT;
use crate::support::{Ended, Running, kill_all, launch, start, wait_for_step};

/// What happens to the newest checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    /// Half of a file is missing.
    Torn(&'static str),
    /// A bit of it is another.
    Flipped(&'static str),
    /// It is gone.
    Missing(&'static str),
    /// It is that of the checkpoint before.
    Older(&'static str),
    /// There is no checkpoint yet.
    NoneYet,
}

/// Steps between two checkpoints: enough that none comes while the newest is damaged.
pub const EVERY: u64 = 300;
pub const KEYS: [&str; 3] =
    ["train.steps=1000", "checkpoint.every=300steps", "recovery.resident=off"];
/// The second one is behind the loop by then, as a rule.
const STRIKE_AT: u64 = 2 * EVERY + 20;
const STRIKE_EARLY_AT: u64 = 100;
const WRITTEN_WITHIN: Duration = Duration::from_secs(30);

impl Damage {
    /// Committed steps that are lost with it, at least.
    pub fn costs(self) -> u64 {
        if self == Self::NoneYet { STRIKE_EARLY_AT } else { EVERY }
    }
}

/// Runs it, damages its newest checkpoint and kills every rank at once.
pub fn with_damage(damage: Damage, folder: &Path, overrides: &[&str]) -> Ended {
    let mut running = start(&mut launch(folder, overrides), Duration::from_secs(LIMIT));
    if damage == Damage::NoneYet {
        wait_for_step(folder, STRIKE_EARLY_AT, &mut running);
    } else {
        wait_for_step(folder, STRIKE_AT, &mut running);
        inflict(damage, &written(folder, 2 * EVERY, &mut running), &checkpoint(folder, EVERY));
    }
    kill_all(folder, Some(running.pid()));
    running.wait()
}

fn checkpoint(folder: &Path, step: u64) -> PathBuf {
    folder.join(format!("checkpoints/step-{step:08}"))
}

/// The checkpoint of this step, once it has its name.
fn written(folder: &Path, step: u64, running: &mut Running) -> PathBuf {
    let (path, begun) = (checkpoint(folder, step), Instant::now());
    while !path.exists() {
        assert!(begun.elapsed() < WRITTEN_WITHIN && !running.has_ended(), "no {}", path.display());
        std::thread::sleep(Duration::from_millis(1));
    }
    path
}

fn inflict(damage: Damage, newest: &Path, before: &Path) {
    match damage {
        Damage::Torn(name) => {
            let file = std::fs::File::options().write(true).open(newest.join(name)).unwrap();
            file.set_len(file.metadata().unwrap().len() / 2).unwrap();
        }
        Damage::Flipped(name) => {
            let path = newest.join(name);
            let mut body = std::fs::read(&path).unwrap();
            let middle = body.len() / 2;
            body[middle] ^= 1;
            std::fs::write(path, body).unwrap();
        }
        Damage::Missing(name) => std::fs::remove_file(newest.join(name)).unwrap(),
        Damage::Older(name) => {
            std::fs::copy(before.join(name), newest.join(name)).unwrap();
        }
        Damage::NoneYet => {}
    }
}
