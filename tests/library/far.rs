//! Files of the far tier on a file system that has no room, may not be written, or holds its user
//! to a limit, and what is left of them after a SIGKILL: nothing.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use kintsugi::engine::memory::copies::{Copies, Way};
use kintsugi::engine::memory::far::{Far, Place};
use kintsugi_ffi::arena::{Arena, Span};
use kintsugi_ffi::{os, process};

const MIB: usize = 1 << 20;
/// The folder of a process that does as a test says.
const FOLDER: &str = "KINTSUGI_TEST_FAR";
const SPILLED: &str = "spilled";

fn refusal(folder: &Path, bytes: usize) -> (ErrorKind, String) {
    let error = Far::new(&Place::File(folder.to_owned()), bytes).expect_err("no room");
    (error.kind(), error.to_string())
}

fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).unwrap().next().is_none()
}

/// Spills, says so, and waits to be killed. Does nothing unless it is the victim's process.
#[test]
fn victim() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    os::alarm(60);
    let far = Far::new(&Place::File(folder.into()), 8 * MIB).unwrap();
    let mut copies = Copies::new(far, [None; 2]).unwrap();
    let near = Arc::new(Arena::zeroed(8 * MIB));
    let ticket = copies.begin(Way::Out, &near, Span { offset: 0, bytes: 8 * MIB }, 0);
    copies.finish(ticket).unwrap();
    std::io::stdout().write_all(format!("\n{SPILLED}\n").as_bytes()).unwrap();
    std::thread::park();
}

#[test]
fn nothing_is_left_of_what_a_killed_process_had_spilled() {
    let folder = tempfile::tempdir().unwrap();
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "far::victim", "--nocapture"])
        .env(FOLDER, folder.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(victim.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line == SPILLED));
    // It has no name while it is used, nor afterwards.
    assert!(is_empty(folder.path()));
    victim.kill().unwrap();
    victim.wait().unwrap();
    assert!(is_empty(folder.path()));
}

/// Asks for more than it may have. Does nothing unless it is a process of its own.
#[test]
fn limited() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let (kind, text) = refusal(Path::new(&folder), MIB);
    assert_eq!(kind, ErrorKind::FileTooLarge);
    assert!(text.contains("may have 1.0 MB: the limit on files (ulimit -f) is"), "{text}");
}

#[test]
fn a_limit_on_files_is_an_error_and_not_a_signal() {
    let folder = tempfile::tempdir().unwrap();
    let line = r#"ulimit -f 100; exec "$0" --exact far::limited --nocapture"#;
    let mut limited = Command::new("sh");
    limited.args(["-c", line]).arg(std::env::current_exe().unwrap()).env(FOLDER, folder.path());
    let ended = limited.output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert!(is_empty(folder.path()));
}

#[test]
fn a_folder_that_is_not_there_or_is_none_is_refused_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("far");
    let (kind, text) = refusal(&path, MIB);
    assert_eq!(kind, ErrorKind::NotFound);
    assert!(text.contains("memory.far: there is no folder") && text.contains("/far: make it"));
    std::fs::write(&path, "somebody's").unwrap();
    let (kind, text) = refusal(&path, MIB);
    assert_eq!(kind, ErrorKind::NotADirectory, "{text}");
    assert_eq!(std::fs::read(&path).unwrap(), b"somebody's");
}

#[test]
fn a_folder_that_may_not_be_written_is_refused_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o500)).unwrap();
    // Root may write wherever the kernel itself does not forbid it.
    let forbidden = match process::user_id() {
        0 => Path::new("/sys/kernel"),
        _ => folder.path(),
    };
    let (kind, text) = refusal(forbidden, MIB);
    let kinds = [ErrorKind::PermissionDenied, ErrorKind::ReadOnlyFilesystem];
    assert!(kinds.contains(&kind), "{kind}: {text}");
    assert!(text.contains("memory.far: this user may make no file in"), "{text}");
}

/// Mounted while it lives.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// `None`, with a line, where this process may not mount.
    fn new() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=4m", "tmpfs"]).arg(folder.path());
        let can = process::user_id() == 0 && mount.output().is_ok_and(|end| end.status.success());
        if !can {
            let line = b"skipped: a full file system (needs root that may mount)\n";
            std::io::stdout().write_all(line).unwrap();
        }
        can.then_some(Self(folder))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).output();
    }
}

#[test]
fn what_does_not_fit_a_file_system_is_refused_at_once_and_leaves_nothing() {
    let Some(disk) = SmallDisk::new() else { return };
    let folder = disk.0.path();
    let (kind, text) = refusal(folder, 5 * MIB);
    assert_eq!(kind, ErrorKind::StorageFull, "{text}");
    assert!(text.contains("has no room for 5.2 MB (4.2 MB are free"), "{text}");
    let place = Place::File(folder.to_owned());
    let far = Far::new(&place, 3 * MIB).unwrap();
    // All of it is reserved: others find it full, and it can still be written.
    assert!(std::fs::write(folder.join("other"), vec![1; 2 * MIB]).is_err());
    let mut copies = Copies::new(far, [None; 2]).unwrap();
    let near = Arc::new(Arena::zeroed(3 * MIB));
    let ticket = copies.begin(Way::Out, &near, Span { offset: 0, bytes: 3 * MIB }, 0);
    copies.finish(ticket).unwrap();
    assert_ne!(copies.rates(&near), [1e9; 2], "it is measured within the room that there is");
}

/// For people: what this machine copies, alone and both ways at once.
#[test]
#[ignore = "measures"]
fn speeds() {
    const BYTES: usize = 256 * MIB;
    let folder = tempfile::tempdir().unwrap();
    for place in [Place::Ram, Place::File(folder.path().to_owned())] {
        let mut copies = Copies::new(Far::new(&place, BYTES).unwrap(), [None; 2]).unwrap();
        let near = Arc::new(Arena::zeroed(BYTES));
        let mut alone = |way| {
            let ticket = copies.begin(way, &near, Span { offset: 0, bytes: BYTES }, 0);
            copies.finish(ticket).unwrap();
            let traffic = copies.take_traffic();
            let flow = [traffic.out, traffic.back][way as usize];
            flow.bytes as f64 / flow.busy.as_secs_f64()
        };
        let alone = [Way::Out, Way::In, Way::Out, Way::In].map(&mut alone);
        let both = [0; 3].map(|_| copies.rates(&near));
        let text = format!("{place:?}, bytes/s: out, in {alone:.0?}; at once {both:.0?}\n");
        std::io::stdout().write_all(text.as_bytes()).unwrap();
    }
}
