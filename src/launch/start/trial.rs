//! A run's folder, made to see that it can be, and taken away again: what `launch --check` leaves
//! is what was there before.

use std::path::PathBuf;

use crate::config::Shown;
use crate::launch::LaunchError;
use crate::observe::console::say;
use crate::run_folder::before::Before;

use super::run_dir::RunDir;

/// The folder is there while this lives.
#[derive(Debug)]
pub struct Trial {
    before: Before,
    /// Folders above it that were made for it, the lowest first.
    above: Vec<PathBuf>,
}

impl Trial {
    /// Makes it.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn of(run: &mut RunDir) -> Result<Self, LaunchError> {
        let before = run.before(None)?;
        let above = run.path().ancestors().skip(1).take_while(|folder| !folder.exists());
        let above = above.map(PathBuf::from).collect();
        let trial = Self { before, above };
        run.create()?;
        Ok(trial)
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        if let Err(error) = self.before.put_back() {
            say!("warning: what was made for the look stays: {error}");
        }
        for folder in &self.above {
            // Who has put something there keeps it.
            if let Err(error) = std::fs::remove_dir(folder) {
                tracing::debug!("{} stays: {error}", folder.shown());
            }
        }
    }
}
