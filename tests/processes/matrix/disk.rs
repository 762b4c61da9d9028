//! Checkpoints that are damaged while their run goes on, and then everybody dies: the next start
//! passes over what is damaged and takes the one before it, or refuses and says what to do. (Every
//! page and byte of a file, and disks that fail, are played in tests/library/checkpoint, without
//! processes.)

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use kintsugi::observe::event::{Event, Kind};
use kintsugi::observe::log::read_events;
use kintsugi::train::checkpoint::manifest::{FileEntry, MANIFEST, MODEL, Manifest};

use super::play::LIMIT;
use crate::support::{
    Ended, Running, kill_all, kintsugi, launch, launch_by, run, start, wait_for_step,
};

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
    /// One of its weights is no number, and every checksum is right.
    Poisoned,
    /// All of them lost a file, until a person removes them.
    All,
    /// It is of a later release, until a person puts back what was there.
    Later,
    /// The disk is full: it was never written. A person makes room when everybody is dead.
    Full,
    /// There is no checkpoint yet.
    NoneYet,
}

/// Steps between two checkpoints: enough that none comes while the newest is damaged.
pub const EVERY: u64 = 300;
pub const KEYS: [&str; 4] = [
    "train.steps=1000",
    "checkpoint.every=300steps",
    // No other one lies between.
    "checkpoint.keep_best=0",
    "recovery.resident=off",
];
/// From then on steps take 50 ms and more: none is due while a slow disk still writes the newest.
const SLOW: &str = r#"faults.plan=[{kind="slow", who="rank", rank=0, step=610}]"#;
/// The second one is behind the loop by then, as a rule.
const STRIKE_AT: u64 = 2 * EVERY + 20;
const STRIKE_EARLY_AT: u64 = 100;
const WRITTEN_WITHIN: Duration = Duration::from_secs(30);
/// One checkpoint of this run has room here, a second one has not.
const FULL: &str = "size=1300k";
/// Room for all that the run keeps.
const ROOM: &str = "size=64m";
/// The exit code of a launch that a person has to do something for.
const REFUSED: Option<i32> = Some(2);

impl Damage {
    /// Where the run goes on from in the end, and the step.
    pub fn goes_on_from(self) -> (&'static str, u64) {
        match self {
            Self::NoneYet | Self::All => ("scratch", 0),
            Self::Later => ("checkpoint", 2 * EVERY),
            _ => ("checkpoint", EVERY),
        }
    }

    /// Committed steps that are lost with it, at least.
    pub fn costs(self) -> u64 {
        let struck_at = if self == Self::NoneYet { STRIKE_EARLY_AT } else { STRIKE_AT };
        struck_at - self.goes_on_from().1
    }

    /// What the run's own events must say of it.
    pub fn warns(self) -> &'static str {
        if self == Self::Full { "free some space, or lower checkpoint.keep" } else { "" }
    }

    /// What the next launch says when it refuses to go on.
    fn refusal(self) -> Option<&'static str> {
        match self {
            Self::All => Some("remove checkpoints/*.bad to start from the first step"),
            Self::Later => Some("use a newer kintsugi or another checkpoint"),
            _ => None,
        }
    }
}

/// Runs it, damages its newest checkpoint and kills every rank at once. Where the next start must
/// refuse, it is launched again when a person has done what the refusal says.
pub fn with_damage(damage: Damage, folder: &Path, overrides: &[&str]) -> Result<Ended, String> {
    let mut command = Command::new("unshare");
    command.arg("--mount").arg(kintsugi().get_program());
    let slowed = [overrides, &[SLOW]].concat();
    let overrides = if damage == Damage::NoneYet { overrides } else { slowed.as_slice() };
    let mut command = match damage {
        Damage::Full => launch_by(command, folder, overrides),
        _ => launch(folder, overrides),
    };
    let mut running = start(&mut command, Duration::from_secs(LIMIT));
    let mut kept = Vec::new();
    match damage {
        Damage::NoneYet => wait_for_step(folder, STRIKE_EARLY_AT, &mut running),
        Damage::Full => {
            wait_for_step(folder, 10, &mut running);
            mount_a_small_disk(folder, running.pid());
            wait_for_step(folder, STRIKE_AT, &mut running);
            wait_for_warning(damage.warns(), folder, &mut running);
        }
        _ => {
            wait_for_step(folder, STRIKE_AT, &mut running);
            let newest = written(folder, 2 * EVERY, &mut running);
            kept = std::fs::read(newest.join(MANIFEST)).unwrap();
            inflict(damage, &newest, &checkpoint(folder, EVERY));
        }
    }
    kill_all(folder, Some(running.pid()));
    if damage == Damage::Full {
        // A run that ends without its weights on disk is none that completed.
        mount(running.pid(), &["-o", &format!("remount,{ROOM}")], folder);
    }
    let ended = running.wait();
    let Some(refusal) = damage.refusal() else { return Ok(ended) };
    if ended.code != REFUSED || !ended.stderr.contains(refusal) {
        return Err(format!("exit code {:?}, it did not refuse: {}", ended.code, ended.stderr));
    }
    match damage {
        Damage::Later => {
            std::fs::write(checkpoint(folder, 2 * EVERY).join(MANIFEST), kept).unwrap()
        }
        _ => remove_bad(folder),
    }
    Ok(run(&mut launch(folder, overrides), LIMIT))
}

/// From now on the run's checkpoints lie on a disk of their own.
fn mount_a_small_disk(folder: &Path, launch: u32) {
    std::fs::create_dir_all(folder.join("checkpoints")).unwrap();
    mount(launch, &["-t", "tmpfs", "-o", FULL, "none"], folder);
}

/// Where this launch and its ranks see it, nobody else does: `unshare` has become `launch`.
fn mount(launch: u32, arguments: &[&str], folder: &Path) {
    let mut mount = Command::new("nsenter");
    mount.arg(format!("--mount=/proc/{launch}/ns/mnt")).arg("mount").args(arguments);
    let mounted = mount.arg(folder.join("checkpoints")).status();
    assert!(mounted.is_ok_and(|status| status.success()), "mount {arguments:?}");
}

/// Until the run itself has said so.
fn wait_for_warning(words: &str, folder: &Path, running: &mut Running) {
    let says = |event: &Event| match &event.kind {
        Kind::Warning { message } => message.contains(words),
        _ => false,
    };
    let begun = Instant::now();
    while !read_events(&folder.join("events.jsonl")).unwrap_or_default().iter().any(says) {
        assert!(begun.elapsed() < WRITTEN_WITHIN && !running.has_ended(), "no event says {words}");
        std::thread::sleep(Duration::from_millis(5));
    }
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
        Damage::Flipped(name) => change(&newest.join(name), |body| {
            let middle = body.len() / 2;
            body[middle] ^= 1;
        }),
        Damage::Missing(name) => std::fs::remove_file(newest.join(name)).unwrap(),
        Damage::Older(name) => {
            std::fs::copy(before.join(name), newest.join(name)).unwrap();
        }
        Damage::Poisoned => {
            // Tensors stand behind the header, to the file's end.
            change(&newest.join(MODEL), |body| {
                let last = body.len() - size_of::<f32>();
                body[last..].copy_from_slice(&f32::NAN.to_le_bytes());
            });
            let model = std::fs::read(newest.join(MODEL)).unwrap();
            rewrite(newest, |manifest| manifest.files[0] = FileEntry::of(MODEL, &[&model]));
        }
        Damage::All => {
            for folder in [newest, before] {
                std::fs::remove_file(folder.join(MODEL)).unwrap();
            }
        }
        Damage::Later => rewrite(newest, |manifest| manifest.format += 1),
        Damage::Full | Damage::NoneYet => {}
    }
}

fn change(path: &Path, change: impl Fn(&mut [u8])) {
    let mut body = std::fs::read(path).unwrap();
    change(&mut body);
    std::fs::write(path, body).unwrap();
}

/// Changes a manifest, with the checksum that belongs to it.
fn rewrite(checkpoint: &Path, change: impl Fn(&mut Manifest)) {
    let path = checkpoint.join(MANIFEST);
    let mut manifest = Manifest::from_text("", &std::fs::read(&path).unwrap()).unwrap();
    change(&mut manifest);
    std::fs::write(path, manifest.to_text()).unwrap();
}

/// As the refusal says.
fn remove_bad(folder: &Path) {
    for entry in std::fs::read_dir(folder.join("checkpoints")).unwrap().flatten() {
        if entry.file_name().to_string_lossy().ends_with(".bad") {
            std::fs::remove_dir_all(entry.path()).unwrap();
        }
    }
}
