//! What is done to a row's run from outside: other programs on the cores, another program file,
//! clocks that jump, names that change, networks that lose, delay and choke. What needs root says
//! so where there is none.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::disk::{Damage, with_damage};
use super::play::LIMIT;
use crate::support::{
    Ended, PRELOADED, compiled, kintsugi, launch, launch_by, project, run, start, wait_for_step,
};

/// What is done to a run from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outside {
    /// Nothing.
    Nothing,
    /// Other programs take the cores four times over.
    Load,
    /// Another build takes the place of the program's file.
    NewProgram,
    /// The program's file is deleted.
    NoProgram,
    /// The wall clock is set an hour on, then three hours back.
    Clock,
    /// The machine gets another name.
    HostName,
    /// The ranks are told to use a network interface that does not exist.
    WrongInterface,
    /// Ranks talk by TCP only, through this.
    Network(Network),
    /// Its newest checkpoint is damaged, then all ranks die.
    Disk(Damage),
    /// Some pictures of its training set are none.
    BadPictures,
}

/// Where a row's own pictures lie, below cargo's temporary folder.
pub const PICTURES: &str = "matrix-pictures";
/// What becomes of some pictures of the training set: an empty file, half of one, other bytes.
const BAD_PICTURES: [&str; 3] = ["empty", "half", "other"];

/// A bad network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    /// One way.
    pub delay_ms: u32,
    /// Of a thousand packets.
    pub loss_permille: u32,
    /// What the line carries.
    pub bytes_per_second: u32,
}

/// What came of it.
pub enum Done {
    /// The run ended.
    Ended(Ended),
    /// It cannot be done on this machine; why.
    Impossible(String),
    /// Something was wrong before its end.
    Wrong(String),
}

/// A day of the wall clock, from the run's point of view: seconds that are added at these steps.
const JUMPS: [(u64, i64); 2] = [(10, 3600), (150, -7200)];

/// Runs it, and does to it what is to be done from outside.
pub fn played(outside: Outside, folder: &Path, overrides: &[&str]) -> Done {
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    match outside {
        Outside::Nothing => Done::Ended(run(&mut launch(folder, overrides), LIMIT)),
        Outside::BadPictures => Done::Ended(run(&mut launch(folder, overrides), LIMIT)),
        Outside::Disk(damage) => on_disk(damage, folder, overrides),
        Outside::Load => Done::Ended(under_load(folder, overrides)),
        Outside::NewProgram | Outside::NoProgram => {
            Done::Ended(with_another_program(outside, place.path(), folder, overrides))
        }
        Outside::WrongInterface => {
            let mut command = launch(folder, overrides);
            command.env("OMPI_MCA_btl_tcp_if_include", "nosuch0");
            Done::Ended(run(&mut command, LIMIT))
        }
        Outside::Clock => match compiled("matrix/clock.c", &PRELOADED, place.path()) {
            Ok(library) => Done::Ended(while_clocks_jump(&library, folder, overrides)),
            Err(why) => Done::Impossible(why),
        },
        Outside::HostName => match namespaces_can_be_made() {
            Ok(()) => Done::Ended(while_the_name_changes(folder, overrides)),
            Err(why) => Done::Impossible(why),
        },
        Outside::Network(network) => {
            let relay = namespaces_can_be_made()
                .and_then(|()| compiled("matrix/relay.c", &[], place.path()));
            match relay {
                Ok(relay) => Done::Ended(through(network, &relay, folder, overrides)),
                Err(why) => Done::Impossible(why),
            }
        }
    }
}

/// What must be there before even the run without failures.
pub fn prepare(outside: Outside) {
    let whole = Path::new(env!("CARGO_TARGET_TMPDIR")).join(PICTURES);
    if outside != Outside::BadPictures || whole.exists() {
        return;
    }
    // Renamed when it is whole: who is killed before leaves nothing that is taken for it.
    let folder = whole.with_extension("unfinished");
    let _ = std::fs::remove_dir_all(&folder);
    let mut synth = kintsugi();
    synth.args(["data", "synth", "--train", "960", "--validation", "100", "--image-size", "16"]);
    let made = run(synth.arg(&folder), LIMIT);
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    for (bad, path) in BAD_PICTURES.iter().zip(pictures(&folder.join("train"))) {
        let body = std::fs::read(&path).unwrap();
        let body = match *bad {
            "empty" => &[][..],
            "half" => &body[..body.len() / 2],
            _ => b"<html>not found</html>",
        };
        std::fs::write(&path, body).unwrap();
    }
    std::fs::rename(&folder, &whole).unwrap();
}

/// One picture of each class, in the order of names.
pub fn pictures(folder: &Path) -> Vec<PathBuf> {
    let sorted = |folder: &Path| {
        let entries = std::fs::read_dir(folder).unwrap().flatten();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        paths.sort();
        paths
    };
    sorted(folder).iter().map(|class| sorted(class)[0].clone()).collect()
}

/// The pictures that `prepare` made bad.
pub fn bad_pictures() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(PICTURES).join("train");
    pictures(&folder).into_iter().take(BAD_PICTURES.len()).collect()
}

fn on_disk(damage: Damage, folder: &Path, overrides: &[&str]) -> Done {
    if damage == Damage::Full
        && let Err(why) = can_be_made("--mount", "mount -t tmpfs none /tmp")
    {
        return Done::Impossible(why);
    }
    with_damage(damage, folder, overrides).map_or_else(Done::Wrong, Done::Ended)
}

fn under_load(folder: &Path, overrides: &[&str]) -> Ended {
    let over = AtomicBool::new(false);
    let busy = || {
        while !over.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        (0..4 * cores).for_each(|_| drop(scope.spawn(busy)));
        let ended = run(&mut launch(folder, overrides), LIMIT);
        over.store(true, Ordering::Relaxed);
        ended
    })
}

fn with_another_program(
    outside: Outside,
    place: &Path,
    folder: &Path,
    overrides: &[&str],
) -> Ended {
    let program = place.join("kintsugi");
    std::fs::hard_link(env!("CARGO_BIN_EXE_kintsugi"), &program).unwrap();
    let mut command = launch_by(Command::new(&program), folder, overrides);
    let mut running = start(&mut command, Duration::from_secs(LIMIT));
    wait_for_step(folder, 10, &mut running);
    if outside == Outside::NewProgram {
        // A byte behind the end makes another build of it that runs as well.
        let mut body = std::fs::read(&program).unwrap();
        body.push(0);
        let aside = place.join("new");
        std::fs::write(&aside, body).unwrap();
        let mode = std::fs::metadata(&program).unwrap().permissions();
        std::fs::set_permissions(&aside, mode).unwrap();
        std::fs::rename(&aside, &program).unwrap();
    } else {
        std::fs::remove_file(&program).unwrap();
    }
    running.wait()
}

/// A preloaded library adds to the wall clock what a file says.
fn while_clocks_jump(library: &Path, folder: &Path, overrides: &[&str]) -> Ended {
    let path = library.with_extension("offset");
    std::fs::write(&path, 0_i64.to_ne_bytes()).unwrap();
    let offset = std::fs::File::options().write(true).open(&path).unwrap();
    let mut command = launch(folder, overrides);
    command.env("LD_PRELOAD", library).env("CLOCK_OFFSET_FILE", &path);
    let mut running = start(&mut command, Duration::from_secs(LIMIT));
    for (step, seconds) in JUMPS {
        wait_for_step(folder, step, &mut running);
        offset.write_all_at(&seconds.to_ne_bytes(), 0).unwrap();
    }
    running.wait()
}

fn while_the_name_changes(folder: &Path, overrides: &[&str]) -> Ended {
    let mut command = Command::new("unshare");
    command.arg("--uts").arg(kintsugi().get_program());
    let mut running = start(&mut launch_by(command, folder, overrides), Duration::from_secs(LIMIT));
    wait_for_step(folder, 10, &mut running);
    // `unshare` has become `launch`.
    let names = format!("--uts=/proc/{}/ns/uts", running.pid());
    let renamed = Command::new("nsenter").args([&names, "hostname", "renamed"]).status();
    assert!(renamed.is_ok_and(|status| status.success()), "the name of a namespace is changed");
    running.wait()
}

/// In a network namespace of its own, where the ranks' addresses lie behind a relay.
fn through(network: Network, relay: &Path, folder: &Path, overrides: &[&str]) -> Ended {
    let mut command = Command::new("unshare");
    command.args(["--net", "sh"]).arg(project("tests/processes/matrix/network.sh")).arg(relay);
    let Network { delay_ms, loss_permille, bytes_per_second } = network;
    command.args([delay_ms, loss_permille, bytes_per_second].map(|number| number.to_string()));
    command.arg(kintsugi().get_program());
    // Shared memory would be preferred otherwise.
    command.env("OMPI_MCA_btl_tcp_exclusivity", "100000");
    command.env("OMPI_MCA_btl_tcp_if_include", "impaired");
    run(&mut launch_by(command, folder, overrides), LIMIT)
}

fn namespaces_can_be_made() -> Result<(), String> {
    can_be_made(
        "--net",
        "ip tuntap add dev probe mode tun && ip rule add pref 10 iif lo lookup 100",
    )?;
    can_be_made("--uts", "true")
}

fn can_be_made(namespace: &str, tried: &str) -> Result<(), String> {
    match Command::new("unshare").args([namespace, "sh", "-c", tried]).output() {
        Ok(output) if output.status.success() => Ok(()),
        _ => Err(format!("it needs root, unshare {namespace}, ip and mount")),
    }
}
