//! The private folders of an attempt, one in `/tmp` and one in `/dev/shm`: their names, which
//! nobody can foresee, how they are made, and how those of attempts that are over are found and
//! removed. Everybody makes names in these places, so what is not this user's is left alone.

use std::io;
use std::path::{Path, PathBuf};

use kintsugi_ffi::{os, private};

use crate::config::Shown;

use super::job_name::{PREFIX, check_name, is_job_of};

/// Where private folders lie: the same path on every node, since mpirun hands its environment on,
/// and short, for the name of a socket has at most 107 bytes. So it is not the user's `TMPDIR`.
const TEMPORARY: &str = "/tmp";
const MEMORY: &str = "/dev/shm";

/// What to do where they cannot be made.
pub const NEEDED: &str = "a run needs a /tmp and a /dev/shm that it can write on each node; a \
                          container may lack them: --tmpfs /tmp, --shm-size";

/// Between a job and the word that nobody can foresee.
const MARK: char = '.';

/// The private folders of one attempt; they have the same name on all its nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folders {
    /// Sockets and session files. Daemons of several nodes must not meet in one folder: they name
    /// theirs after process ids, which repeat between nodes, and mpirun then hangs.
    pub temporary: PathBuf,
    /// The ranks' shared memory segments.
    pub shared_memory: PathBuf,
}

impl Folders {
    /// Names for an attempt. Nothing is made.
    pub fn draw(job: &str) -> Self {
        let name = format!("{job}{MARK}{}", private::word());
        let root = temporary_root(shared_by(Path::new(TEMPORARY)));
        Self { temporary: Path::new(root).join(&name), shared_memory: Path::new(MEMORY).join(name) }
    }

    /// Makes both, for this user alone. None that exists is taken.
    ///
    /// # Errors
    /// The kernel's, with the folder.
    pub fn make(&self) -> io::Result<()> {
        let mut all = vec![&self.temporary, &self.shared_memory];
        all.dedup();
        for folder in all {
            private::make_folder(folder).map_err(|error| {
                io::Error::new(error.kind(), format!("creating {}: {error}", folder.shown()))
            })?;
        }
        Ok(())
    }

    /// Whether these are names that `draw` gives an attempt: an order that says others is refused.
    pub fn are_of(&self, job: &str) -> bool {
        [&self.temporary, &self.shared_memory].iter().all(|folder| {
            let root = folder.parent().and_then(Path::to_str);
            let name = folder.file_name().and_then(|name| name.to_str());
            let known = root.is_some_and(|root| [TEMPORARY, MEMORY].contains(&root));
            let named = name.and_then(|name| name.strip_prefix(job)?.strip_prefix(MARK));
            known && named.is_some_and(|word| word.chars().all(|c| c.is_ascii_hexdigit()))
        })
    }
}

fn temporary_root(shared_by: Option<&str>) -> &'static str {
    if shared_by.is_some() { MEMORY } else { TEMPORARY }
}

/// The network file system that a folder lies on; where the kernel does not say, it is taken for a
/// local one.
pub fn shared_by(folder: &Path) -> Option<&'static str> {
    os::network_file_system(folder).unwrap_or_default()
}

/// What people should know of that; nothing where `/tmp` is this machine's own.
pub fn detour() -> Option<String> {
    detour_around(shared_by(Path::new(TEMPORARY)))
}

fn detour_around(shared_by: Option<&str>) -> Option<String> {
    shared_by.map(|name| {
        format!(
            "{TEMPORARY} is on a network file system ({name}), where daemons of several nodes \
             would meet: private folders of attempts lie in {MEMORY} instead (TMPDIR is not \
             looked at, since all nodes need the same short path)"
        )
    })
}

/// The job that a folder is named after, with a word that `draw` adds or without.
fn job_in(name: &str) -> Option<&str> {
    let job = name.split(MARK).next()?;
    let attempt = job.rsplit_once('-').map(|(_, attempt)| attempt.parse::<u32>());
    let whole = name.strip_prefix(job)?.chars().skip(1).all(|c| c.is_ascii_hexdigit());
    (whole && check_name(job).is_ok() && attempt.is_some_and(|a| a.is_ok())).then_some(job)
}

/// Every folder of this user's attempts: its job and where it lies.
pub(super) fn all() -> Vec<(String, PathBuf)> {
    let entries = [TEMPORARY, MEMORY].iter().flat_map(|root| std::fs::read_dir(root).ok());
    let entries = entries.flatten().flatten().filter_map(|entry| {
        let name = entry.file_name();
        let job = job_in(name.to_str()?)?;
        let facts = entry.metadata().ok()?;
        (facts.is_dir() && private::is_ours(&facts)).then(|| (job.to_owned(), entry.path()))
    });
    entries.collect()
}

/// Those of one run's attempts.
pub fn of_run(run_id: &str) -> Vec<PathBuf> {
    let ours = |job: &str| is_job_of(job, run_id);
    all().into_iter().filter(|(job, _)| ours(job)).map(|(_, path)| path).collect()
}

/// Removes those of jobs; others' are none of ours.
///
/// # Errors
/// The first that stays; the rest is removed all the same.
pub(super) fn remove(matches: &dyn Fn(&str) -> bool) -> io::Result<()> {
    let mut ended = Ok(());
    for (_, path) in all().into_iter().filter(|(job, _)| matches(job)) {
        ended = ended.and(private::remove_folder(&path).map(drop));
    }
    ended
}

/// What others have put where files of this run would lie, in these places and in `also`.
pub fn strangers(run_id: &str, also: &Path) -> Vec<PathBuf> {
    let prefix = format!("{PREFIX}{run_id}-");
    let mut roots = vec![Path::new(TEMPORARY), Path::new(MEMORY), also];
    roots.sort_unstable();
    roots.dedup();
    let entries = roots.into_iter().flat_map(|root| std::fs::read_dir(root).ok());
    let strange = entries.flatten().flatten().filter(|entry| {
        let ours = || entry.metadata().is_ok_and(|facts| private::is_ours(&facts));
        entry.file_name().to_str().is_some_and(|name| name.starts_with(&prefix)) && !ours()
    });
    strange.map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_folder_is_made_where_other_machines_see_it() {
        assert_eq!((temporary_root(None), detour_around(None)), ("/tmp", None));
        assert_eq!(temporary_root(Some("nfs")), "/dev/shm");
        let told = detour_around(Some("nfs")).unwrap();
        assert!(told.contains("/tmp") && told.contains("(nfs)") && told.contains("/dev/shm"));
    }

    #[test]
    fn names_cannot_be_foreseen_and_still_name_their_job() {
        let job = "kintsugi-0badcafe-3";
        let (first, second) = (Folders::draw(job), Folders::draw(job));
        assert_ne!(first, second);
        let name = first.temporary.file_name().unwrap().to_str().unwrap();
        assert_eq!(job_in(name), Some(job));
        assert_eq!(job_in(job), Some(job), "a folder that an earlier release left");
        for other in ["kintsugi-0badcafe-x", "kintsugi-0badcafe-1.slots", "kintsugi-0badcafe-3.x"] {
            assert_eq!(job_in(other), None, "{other}");
        }
    }

    #[test]
    fn an_order_names_folders_of_its_job_or_is_refused() {
        let job = "kintsugi-0badcafe-3";
        let drawn = Folders::draw(job);
        assert!(drawn.are_of(job) && !drawn.are_of("kintsugi-0badcafe-4"));
        let others = ["/home/user/kintsugi-0badcafe-3.1a", "/tmp/../etc", "/tmp", "x"];
        for other in others {
            let wrong = Folders { temporary: other.into(), ..drawn.clone() };
            assert!(!wrong.are_of(job), "{other}");
        }
    }

    #[test]
    fn folders_are_for_this_user_alone_and_never_taken() {
        use std::os::unix::fs::PermissionsExt;
        let job = format!("kintsugi-{:08x}-7", std::process::id());
        let drawn = Folders::draw(&job);
        drawn.make().unwrap();
        for folder in [&drawn.temporary, &drawn.shared_memory] {
            let mode = std::fs::metadata(folder).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o700, "{}", folder.shown());
        }
        assert_eq!(drawn.make().unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        let run = format!("{:08x}", std::process::id());
        assert!(of_run(&run).contains(&drawn.temporary));
        remove(&|other| other == job).unwrap();
        assert!(!drawn.temporary.exists() && !drawn.shared_memory.exists());
    }
}
