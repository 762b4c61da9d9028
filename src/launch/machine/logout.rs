//! Whether systemd empties `/dev/shm` when a user's last session ends (logind.conf(5), RemoveIPC):
//! a run that was left to itself would lose the state that outlives its ranks. Where it does, and
//! nobody chose `recovery.resident_dir`, that state lies elsewhere.

use std::io;
use std::path::{Path, PathBuf};

use kintsugi_ffi::process;

use crate::cluster::resident::Folder;
use crate::cluster::resident::folder::inventory;
use crate::config::{Recovery, Resident, Shown};
use crate::launch::traces::folders::shared_by;

/// What logind spares: system users.
const SYSTEM_USER_MAX: u32 = 999;
/// What logind empties.
const EMPTIED: &str = "/dev/shm";
/// Where resident state lies instead.
const KEPT: &str = "/tmp";
/// Where settings may stand, the strongest last.
const SETTINGS: [&str; 4] =
    ["usr/lib/systemd", "usr/local/lib/systemd", "run/systemd", "etc/systemd"];

/// What becomes of a user's shared memory at the end of his last session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtLogout {
    /// It stays.
    Kept,
    /// It is removed.
    Emptied,
}

/// On this machine, for this user.
pub fn at_logout() -> AtLogout {
    at_logout_of(process::user_id(), Path::new("/"))
}

fn at_logout_of(user: u32, root: &Path) -> AtLogout {
    let logind = root.join("run/systemd/users").is_dir();
    let spared = user <= SYSTEM_USER_MAX || lingers(user, root) || !removes_ipc(root);
    if logind && !spared { AtLogout::Emptied } else { AtLogout::Kept }
}

/// Whether the user's manager stays without a session (`loginctl enable-linger`).
fn lingers(user: u32, root: &Path) -> bool {
    let users = std::fs::read_to_string(root.join("etc/passwd")).unwrap_or_default();
    let number = user.to_string();
    let named = users.lines().filter(|line| line.split(':').nth(2) == Some(&number));
    let mut names: Vec<String> =
        named.filter_map(|line| line.split(':').next().map(str::to_owned)).collect();
    // Users of a directory service are in no file.
    names.extend(["LOGNAME", "USER"].iter().filter_map(|name| std::env::var(name).ok()));
    let folder = root.join("var/lib/systemd/linger");
    names.iter().any(|name| !name.is_empty() && !name.contains('/') && folder.join(name).exists())
}

/// logind's setting: what somebody says, else what it was built with. That stands in its file as a
/// comment (`#RemoveIPC=no` where the distribution is of Red Hat's family); systemd's own is on.
fn removes_ipc(root: &Path) -> bool {
    let mut texts: Vec<String> = Vec::new();
    let mut extra: Vec<PathBuf> = Vec::new();
    for folder in SETTINGS.map(|folder| root.join(folder)) {
        texts.extend(std::fs::read_to_string(folder.join("logind.conf")));
        let entries = std::fs::read_dir(folder.join("logind.conf.d")).into_iter().flatten();
        let files = entries.flatten().map(|entry| entry.path());
        extra.extend(files.filter(|path| path.extension().is_some_and(|end| end == "conf")));
    }
    let lines = texts.iter().flat_map(|text| text.lines());
    let comments: Vec<bool> =
        lines.filter_map(|line| setting(line.trim().strip_prefix('#')?)).collect();
    // A person may have left a comment beside it: state is lost only if "no" is taken wrongly.
    let built_with = comments.is_empty() || comments.contains(&true);
    // Of all folders together they are read in the order of their names.
    extra.sort_by(|one, other| one.file_name().cmp(&other.file_name()));
    texts.extend(extra.iter().filter_map(|path| std::fs::read_to_string(path).ok()));
    let mut said = texts.iter().flat_map(|text| text.lines()).filter_map(setting);
    said.next_back().unwrap_or(built_with)
}

/// What a line of logind's files says of shared memory.
fn setting(line: &str) -> Option<bool> {
    let value = line.trim().strip_prefix("RemoveIPC")?.trim_start().strip_prefix('=')?;
    match value.trim().to_ascii_lowercase().as_str() {
        "no" | "false" | "off" | "0" | "n" | "f" => Some(false),
        "yes" | "true" | "on" | "1" | "y" | "t" => Some(true),
        _ => None,
    }
}

/// Whether somebody chose where resident state lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chosen {
    /// It lies there.
    ByUser,
    /// It is the default.
    ByNobody,
}

/// The machine, as far as it decides where state outlives a user's sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    /// What becomes of its shared memory.
    pub at_logout: AtLogout,
    /// The network file system that `/tmp` is on: machines would meet there, and a state that is
    /// mapped would cross the network at every step.
    pub tmp_shared_by: Option<&'static str>,
}

impl Machine {
    /// This one.
    pub fn here() -> Self {
        Self { at_logout: at_logout(), tmp_shared_by: shared_by(Path::new(KEPT)) }
    }
}

/// Puts resident state where it outlives the user's sessions; what to tell him where that is not
/// the default. A run goes on from the newest state that it has, wherever that lies.
///
/// # Errors
/// Nobody knows where that is: a file or folder cannot be read now.
pub fn suit_resident_dir(
    recovery: &mut Recovery,
    chosen: Chosen,
    run_id: &str,
    machine: Machine,
) -> io::Result<Option<String>> {
    let emptied = recovery.resident_dir == Path::new(EMPTIED);
    if chosen == Chosen::ByUser || !emptied || recovery.resident == Resident::Off {
        return Ok(None);
    }
    let [there, elsewhere] = [EMPTIED, KEPT].map(|folder| Folder::new(Path::new(folder), run_id));
    let suits = machine.at_logout == AtLogout::Emptied && machine.tmp_shared_by.is_none();
    // What lies in one of them alone is there, whether it can be read now or not.
    let moves = match [&there, &elsewhere].map(holds_some) {
        [Ok(true), Ok(false)] => suits && matches!(there.newest(), Ok(None)),
        [Ok(false), Ok(true)] => true,
        [Ok(false), Ok(false)] => suits,
        _ => {
            let newest = there.newest()?;
            elsewhere.newest()? > newest || (suits && newest.is_none())
        }
    };
    if moves {
        recovery.resident_dir = KEPT.into();
    }
    let told = (machine.at_logout == AtLogout::Emptied).then(|| {
        let place = recovery.resident_dir.shown();
        let network = machine.tmp_shared_by.map(|name| {
            format!(
                " ({KEPT} is on a network file system, {name}; recovery.resident_dir names another)"
            )
        });
        format!(
            "systemd empties {EMPTIED} when your last session on this machine ends: resident state \
             lies in {place}{}; `loginctl enable-linger` keeps {EMPTIED}",
            network.unwrap_or_default()
        )
    });
    Ok(told)
}

/// Whether files of a run lie in a folder.
fn holds_some(folder: &Folder) -> io::Result<bool> {
    Ok(!folder.files()?.is_empty())
}

/// Where resident state may lie that is looked for in `folder`: what nobody placed may lie in the
/// other place too.
pub fn places(folder: &Path) -> Vec<PathBuf> {
    let holds_some = |place: &&Path| !inventory(place).is_ok_and(|found| found.is_empty());
    let elsewhere = Some(Path::new(KEPT)).filter(|_| folder == Path::new(EMPTIED));
    let elsewhere = elsewhere.filter(holds_some);
    [folder].into_iter().chain(elsewhere).map(Path::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::resident::{Shape, Slots};

    fn machine() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for folder in ["run/systemd/users", "etc/systemd/logind.conf.d", "var/lib/systemd/linger"] {
            std::fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        let users = "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\n";
        std::fs::write(root.path().join("etc/passwd"), users).unwrap();
        root
    }

    #[test]
    fn logind_empties_the_memory_of_people_who_do_not_linger() {
        let machine = machine();
        let root = machine.path();
        assert_eq!(at_logout_of(1000, root), AtLogout::Emptied);
        assert_eq!(at_logout_of(0, root), AtLogout::Kept, "a system user");
        std::fs::write(root.join("var/lib/systemd/linger/ann"), "").unwrap();
        assert_eq!(at_logout_of(1000, root), AtLogout::Kept, "lingers");
        assert_eq!(at_logout_of(1001, root), AtLogout::Emptied, "another one");
        std::fs::remove_dir(root.join("run/systemd/users")).unwrap();
        assert_eq!(at_logout_of(1001, root), AtLogout::Kept, "no logind");
    }

    #[test]
    fn the_last_word_on_remove_ipc_counts() {
        let machine = machine();
        let root = machine.path();
        let say = |file: &str, text: &str| {
            std::fs::write(root.join("etc/systemd").join(file), text).unwrap();
        };
        say("logind.conf", "[Login]\n#RemoveIPC=yes\n");
        assert_eq!(at_logout_of(1000, root), AtLogout::Emptied, "systemd's own default");
        say("logind.conf", "[Login]\nRemoveIPC = no\n#RemoveIPC=yes\n");
        assert_eq!(at_logout_of(1000, root), AtLogout::Kept);
        say("logind.conf.d/9.conf", "[Login]\nRemoveIPC=yes\n");
        assert_eq!(at_logout_of(1000, root), AtLogout::Emptied);
    }

    #[test]
    fn the_comment_in_logind_s_own_file_is_what_it_was_built_with() {
        let machine = machine();
        let root = machine.path();
        let say = |file: &str, text: &str| {
            let path = root.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        say("usr/lib/systemd/logind.conf", "[Login]\n#RemoveIPC=no\n");
        assert_eq!(at_logout_of(1000, root), AtLogout::Kept);
        say("etc/systemd/logind.conf.d/9.conf", "[Login]\n#RemoveIPC=yes\n");
        assert_eq!(at_logout_of(1000, root), AtLogout::Kept, "a comment of somebody else");
        say("etc/systemd/logind.conf", "[Login]\nRemoveIPC=yes\n");
        assert_eq!(at_logout_of(1000, root), AtLogout::Emptied);
    }

    /// A run that no other test has, with a state of this step in a folder; gone with the value.
    struct State(Folder);

    impl State {
        fn of_step(folder: &str, run: &str, step: u64) -> Self {
            let folder = Folder::new(Path::new(folder), run);
            let mut slots = Slots::vacant(Shape::of(&[("weights", 9)]));
            slots.move_to(folder.create(slots.file_bytes(), "/runs/a").unwrap()).unwrap();
            slots.begin();
            slots.commit(step, 0, b"");
            Self(folder)
        }
    }

    impl Drop for State {
        fn drop(&mut self) {
            self.0.clear();
        }
    }

    #[test]
    fn state_lies_where_it_stays_unless_the_user_chose_or_the_run_has_some_already() {
        let run = format!("{:08x}", std::process::id() ^ 0x7117_0117);
        let place_with = |chosen, machine| {
            let mut recovery = Recovery::default();
            let told = suit_resident_dir(&mut recovery, chosen, &run, machine).unwrap().is_some();
            (recovery.resident_dir.to_string_lossy().into_owned(), told)
        };
        let place =
            |chosen, at_logout| place_with(chosen, Machine { at_logout, tmp_shared_by: None });
        let shared = Machine { at_logout: AtLogout::Emptied, tmp_shared_by: Some("nfs") };
        let at = |path: &str, told| (path.to_owned(), told);
        assert_eq!(place(Chosen::ByNobody, AtLogout::Kept), at("/dev/shm", false));
        assert_eq!(place(Chosen::ByNobody, AtLogout::Emptied), at("/tmp", true));
        assert_eq!(place(Chosen::ByUser, AtLogout::Emptied), at("/dev/shm", false));
        assert_eq!(place_with(Chosen::ByNobody, shared), at("/dev/shm", true));
        let _old = State::of_step("/dev/shm", &run, 5);
        assert_eq!(place(Chosen::ByNobody, AtLogout::Emptied), at("/dev/shm", true));
        assert_eq!(places(Path::new("/var/state")), [Path::new("/var/state")]);
        let _new = State::of_step("/tmp", &run, 6);
        assert_eq!(places(Path::new("/dev/shm")), [Path::new("/dev/shm"), Path::new("/tmp")]);
        assert_eq!(place(Chosen::ByNobody, AtLogout::Emptied), at("/tmp", true));
        assert_eq!(place(Chosen::ByNobody, AtLogout::Kept), at("/tmp", false));
    }
}
