//! The launcher's sign of life towards its ranks: the newest repair of an attempt that it has heard
//! of while nobody asked it to end.

use std::io;
use std::path::Path;

/// The file's name in `RUN`. It is there before the ranks are, and is never replaced: over NFS a
/// file that is opened again is read afresh, one that was missing is not.
pub const HEARD: &str = "heard";

/// A repair: the attempt, and the generation of the world that came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub struct Heard {
    pub attempt: u32,
    pub generation: u32,
}

impl Heard {
    /// The answer that lies in a run's folder; `None` where there is none, or half of one.
    pub fn read(run_dir: &Path) -> Option<Self> {
        Self::parse(&std::fs::read_to_string(run_dir.join(HEARD)).ok()?)
    }

    /// Answers.
    ///
    /// # Errors
    /// The folder cannot be written to.
    pub fn write(self, run_dir: &Path) -> io::Result<()> {
        let Self { attempt, generation } = self;
        std::fs::write(run_dir.join(HEARD), format!("{attempt} {generation}\n"))
    }

    /// A line that is not whole is no answer.
    fn parse(text: &str) -> Option<Self> {
        let (attempt, generation) = text.strip_suffix('\n')?.split_once(' ')?;
        Some(Self { attempt: attempt.parse().ok()?, generation: generation.parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_an_answer_is_none() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Heard::read(folder.path()), None);
        let heard = Heard { attempt: 3, generation: 12 };
        heard.write(folder.path()).unwrap();
        assert_eq!(Heard::read(folder.path()), Some(heard));
        for torn in ["", "3", "3 ", "3 1", "3 12"] {
            assert_eq!(Heard::parse(torn), None, "{torn:?}");
        }
    }
}
