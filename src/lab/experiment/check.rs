//! What can be refused of runs before the first of them starts: all that `launch` looks at, and
//! the model, which its ranks make.

use std::path::{Path, PathBuf};

use super::plan::PlannedRun;
use super::room::Room;
use crate::config::Config;
use crate::config::parse::{self, Loaded};
use crate::launch::LaunchError;
use crate::launch::machine::logout::Chosen;
use crate::launch::nodes::Allocation;
use crate::launch::start::beginning::{self, Wish};
use crate::launch::start::claim::{Past, there_is_data};
use crate::launch::start::opening;
use crate::model::spec::ModelError;
use crate::train::start::fixed::fix;

/// A run that would be started.
#[derive(Debug)]
pub struct Accepted {
    /// What it is.
    pub config: Config,
    /// What there is to say of it.
    pub remarks: Vec<String>,
}

/// Runs that would not be, alike in what is said and how `launch` would end.
#[derive(Debug, PartialEq)]
pub struct Refused {
    /// Their arms.
    pub arms: Vec<String>,
    /// Why.
    pub reason: String,
    /// What `launch` would end with.
    pub code: u8,
}

impl Refused {
    /// In words; `of`: how many arms were looked at.
    pub fn words(&self, of: usize) -> String {
        match self.arms.as_slice() {
            [only] => format!("arm {only}: {}", self.reason),
            all if all.len() == of => format!("all {of} arms: {}", self.reason),
            some => format!("arms {}: {}", some.join("; "), self.reason),
        }
    }
}

/// Looks at runs of the configuration, which would live below `out`.
///
/// # Errors
/// All that is refused, in the order of the arms.
pub fn check(
    config: &Path,
    runs: &[&PlannedRun],
    out: &Path,
) -> Result<Vec<Accepted>, Vec<Refused>> {
    let (mut accepted, mut refused) = (Vec::new(), Vec::<Refused>::new());
    for run in runs {
        let (reason, code) = match look(config, run, out.join(&run.folder)) {
            Ok(one) => {
                accepted.push(one);
                continue;
            }
            Err(error) => (error.to_string(), error.exit_code()),
        };
        match refused.iter_mut().find(|known| known.reason == reason) {
            Some(known) => known.arms.push(run.arm.clone()),
            None => refused.push(Refused { arms: vec![run.arm.clone()], reason, code }),
        }
    }
    if let Some((run, bytes)) = runs.iter().find_map(|run| Some((run, run.page_cache?)))
        && let Err(reason) = Room::make(bytes.0).and_then(Room::give_up)
    {
        refused.push(Refused { arms: vec![run.arm.clone()], reason, code: 2 });
    }
    if refused.is_empty() { Ok(accepted) } else { Err(refused) }
}

fn look(config: &Path, run: &PlannedRun, folder: PathBuf) -> Result<Accepted, LaunchError> {
    let overrides = run.overrides();
    let Loaded { config: loaded, mut remarks } = parse::loaded(config, &overrides)?;
    let resident_dir = match parse::names(config, &overrides, "recovery", "resident_dir")? {
        true => Chosen::ByUser,
        false => Chosen::ByNobody,
    };
    let run_dir = Some(folder);
    let past = Past::GoesOn;
    let wish = Wish { run_dir, resident_dir, spare_nodes: 0, min_nodes: 1, past };
    let mut begun = beginning::begin(loaded.clone(), wish)?;
    remarks.append(&mut begun.remarks);
    beginning::check_machine(&begun.job)?;
    // On other nodes their ranks look.
    if Allocation::find()?.is_none() {
        there_is_data(&loaded)?;
        let refused = |reason: String| LaunchError::Refused { reason };
        no_model(&loaded).map_or(Ok(()), |reason| Err(refused(reason)))?;
        fix(&mut begun.job.config.model).map_err(refused)?;
    }
    Ok(Accepted { config: loaded, remarks })
}

/// Why no rank can make the model. How many classes a set has is known once it is opened: what
/// depends on that is left to the ranks.
fn no_model(config: &Config) -> Option<String> {
    let error = opening::graph_of(config).err()?;
    let known = match &error {
        ModelError::Unknown { .. } | ModelError::Unsuitable { .. } => true,
        ModelError::File(_) => !Path::new(&config.model.found_name()).exists(),
        ModelError::Layer { .. } => false,
    };
    known.then(|| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_wrong_is_said_once_with_launch_s_codes() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("c.toml");
        std::fs::write(&config, "[train]\nsteps = 3\n").unwrap();
        let run = |arm: &str, pairs: &[&str]| PlannedRun {
            arm: arm.into(),
            seed: 1,
            folder: arm.into(),
            arguments: pairs.iter().flat_map(|pair| ["-s".to_string(), pair.to_string()]).collect(),
            page_cache: None,
        };
        let runs = [
            run("good", &["data.format=synthetic"]),
            run("typo", &["optimizer.learning_rat=1"]),
            run("nowhere", &["data.train=/nowhere/a", "data.validation=/nowhere/b"]),
            run("again", &["optimizer.learning_rat=1"]),
            run("model", &["data.format=synthetic", "model.name=resnet99"]),
        ];
        let refused = check(&config, &runs.iter().collect::<Vec<_>>(), folder.path()).unwrap_err();
        let told: Vec<_> = refused.iter().map(|one| (one.arms.join(" "), one.code)).collect();
        let wanted = [("typo again", 2), ("nowhere", 3), ("model", 2)];
        assert_eq!(told, wanted.map(|(arms, code)| (arms.to_string(), code)));
        assert!(refused[2].reason.contains("did you mean `resnet18`"), "{:?}", refused[2]);
        assert!(refused[0].words(5).starts_with("arms typo; again: "), "{:?}", refused[0]);
        assert!(refused[1].reason.contains("/nowhere/a"), "{:?}", refused[1]);
        assert_eq!(check(&config, &[&runs[0]], folder.path()).unwrap().len(), 1);
    }
}
