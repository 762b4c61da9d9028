//! Nodes that a run was on before, and is not with this launch: what it has there nobody else
//! removes.

use std::collections::BTreeSet;

use kintsugi_ffi::os;

use crate::cluster::world::World;
use crate::config::{Resident, Shown, StagingMode};
use crate::data::staging::place;

use super::job::Job;

/// What lies on nodes of the launch before this one, and what to do about it; `None`: nothing, or
/// nobody knows.
pub fn remark(job: &Job) -> Option<String> {
    let before = World::newest(job.run.path()).ok().flatten()?;
    let was = before.members.iter().map(|member| member.host.as_str());
    let here = [os::hostname()];
    let is = match &job.nodes {
        Some(nodes) => &nodes.allocation.nodes[..],
        None => &here,
    };
    let left = left(was, is);
    if left.is_empty() {
        return None;
    }
    let state = (job.config.recovery.resident == Resident::On)
        .then(|| "its state in memory (`kintsugi doctor --clear` on each)".to_owned());
    let staging = &job.config.staging;
    let copies = (staging.mode != StagingMode::None)
        .then(|| format!("copies of its set ({})", place::pattern(staging, &job.run.id()).shown()));
    let what: Vec<String> = state.into_iter().chain(copies).collect();
    (!what.is_empty()).then(|| {
        let (left, what) = (left.join(", "), what.join(" and "));
        format!("this run was on {left} before; nobody else removes what it has there: {what}")
    })
}

/// The hosts that are none of these nodes, whose names may be shorter or longer.
fn left<'a>(hosts: impl Iterator<Item = &'a str>, nodes: &[String]) -> Vec<String> {
    let short = |name: &'a str| name.split('.').next().unwrap_or_default();
    let known = |host: &str| nodes.iter().any(|node| node.split('.').next() == Some(host));
    let others: BTreeSet<&str> = hosts.map(short).filter(|host| !known(host)).collect();
    others.into_iter().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_are_left_are_named_once_and_names_may_have_a_domain() {
        let nodes = ["n1".to_owned(), "n2.cluster".to_owned()];
        let left = |hosts: &[&'static str]| left(hosts.iter().copied(), &nodes);
        assert_eq!(left(&["n1.cluster", "n2", "n4", "n3.cluster", "n4"]), ["n3", "n4"]);
        assert_eq!(left(&["n1", "n2"]), [""; 0]);
    }
}
