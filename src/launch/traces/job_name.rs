//! What an attempt of a run is called on a machine, `kintsugi-RUN-ATTEMPT`: its processes carry the
//! name, and its private folders begin with it. Pure.

use std::io;

/// Of every job.
pub(super) const PREFIX: &str = "kintsugi-";

/// The job of one attempt of one run directory.
pub fn job_name(run_id: &str, attempt: u32) -> String {
    format!("{PREFIX}{run_id}-{attempt}")
}

/// Which attempt a job is.
pub fn attempt_of(job: &str) -> Option<u32> {
    job.rsplit_once('-')?.1.parse().ok()
}

/// Whether a job is an attempt of this run.
pub fn is_job_of(job: &str, run_id: &str) -> bool {
    let rest = job.strip_prefix(PREFIX).and_then(|rest| rest.strip_prefix(run_id));
    rest.and_then(|rest| rest.strip_prefix('-')).is_some_and(|n| n.parse::<u32>().is_ok())
}

/// A name that could mean other folders or processes is refused.
pub(super) fn check_name(job: &str) -> io::Result<()> {
    let rest = job.strip_prefix(PREFIX).unwrap_or_default();
    let plain = rest.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    if rest.len() < 2 || !plain {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{job} is not a job")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_of_one_run_and_has_a_number() {
        let job = job_name("0badcafe", 12);
        assert!(is_job_of(&job, "0badcafe") && !is_job_of(&job, "0badcaf"));
        assert_eq!(attempt_of(&job), Some(12));
        assert!(!is_job_of("kintsugi-0badcafe-x", "0badcafe"));
        assert!(check_name(&job).is_ok() && check_name("kintsugi-../x").is_err());
    }
}
