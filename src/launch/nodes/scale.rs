//! `kintsugi scale RUN --nodes N`: what the command asks for, what launch shows of its nodes, and
//! whether the one is possible with the other. Pure but for two small files in the run directory.

use std::io;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::observe::refusal::{if_there, insist};
use crate::observe::storage::Storage;

/// Where the command leaves its request.
pub const REQUEST: &str = "scale-nodes.json";

/// Where launch shows its nodes; there is none where a run has no allocation of several.
pub const PICTURE: &str = "nodes.json";

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Nodes that are to compute.
    pub nodes: u32,
    /// Ranks on all of them; unset: as many per node as the launch began with.
    pub ranks: Option<u32>,
}

/// A launch's nodes, by what they do.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Picture {
    /// SLURM's number of the job.
    pub job: String,
    /// All nodes of the job.
    pub allocation: Vec<String>,
    /// Those that compute.
    pub used: Vec<String>,
    /// Those that wait until another one dies, or until more are asked for.
    pub waiting: Vec<String>,
    /// Nothing of the run is on them until more are asked for.
    pub given_back: Vec<String>,
    /// Ranks on those that compute.
    pub ranks: u32,
    /// Ranks per node that the launch began with.
    pub ranks_per_node: u32,
    /// With fewer nodes the launch would end (`--min-nodes`).
    pub least: u32,
    /// Why launch did not do what was last asked for.
    pub refused: Option<String>,
}

/// Nonsense is nothing.
fn read<T: DeserializeOwned>(storage: &dyn Storage, name: &str) -> io::Result<Option<T>> {
    let text = if_there(insist(|| storage.read(Path::new(name))))?;
    Ok(text.and_then(|text| serde_json::from_slice(&text).ok()))
}

impl Picture {
    /// What launch wrote last.
    ///
    /// # Errors
    /// The disk's.
    pub fn read(storage: &dyn Storage) -> io::Result<Option<Self>> {
        read(storage, PICTURE)
    }

    /// For whoever looks.
    ///
    /// # Errors
    /// The disk's.
    pub fn write(&self, storage: &dyn Storage) -> io::Result<()> {
        let text = serde_json::to_vec_pretty(self).map_err(io::Error::other)?;
        storage.write_whole(Path::new(PICTURE), &[&text, b"\n"])
    }
}

impl Request {
    /// The one that waits to be answered; nonsense is none.
    ///
    /// # Errors
    /// The disk's.
    pub fn read(storage: &dyn Storage) -> io::Result<Option<Self>> {
        read(storage, REQUEST)
    }

    /// Leaves it for launch.
    ///
    /// # Errors
    /// The disk's.
    pub fn write(&self, storage: &dyn Storage) -> io::Result<()> {
        let text = serde_json::to_vec(self).map_err(io::Error::other)?;
        storage.write_whole(Path::new(REQUEST), &[&text, b"\n"])
    }

    /// Ranks that it comes to.
    pub fn ranks(&self, picture: &Picture) -> u32 {
        let per_node = picture.ranks_per_node.max(1);
        self.ranks.unwrap_or_else(|| self.nodes.saturating_mul(per_node))
    }

    /// Why it cannot be done; `owners` is the run's `train.owners`.
    pub fn refusal(&self, picture: &Picture, owners: u32) -> Option<String> {
        let (nodes, ranks) = (self.nodes, self.ranks(picture));
        let all = picture.allocation.len();
        if nodes as usize > all {
            return Some(format!(
                "{nodes} nodes were asked for, but job {} has {all} ({}), and an allocation does \
                 not grow: ask for {all} or fewer, or submit again with more",
                picture.job,
                picture.allocation.join(", ")
            ));
        }
        if nodes < picture.least.max(1) {
            return Some(format!(
                "{nodes} nodes were asked for, but this launch ends with fewer than {} \
                 (--min-nodes)",
                picture.least.max(1)
            ));
        }
        if ranks < nodes {
            return Some(format!(
                "{ranks} ranks cannot be on {nodes} nodes: each has at least one"
            ));
        }
        (ranks > owners).then(|| {
            format!(
                "{nodes} nodes would have {ranks} ranks, but train.owners = {owners}, fixed for \
                 the run: every rank needs an owner; ask for fewer nodes, or for fewer ranks \
                 (scale RUN RANKS --nodes {nodes})"
            )
        })
    }

    /// Whether the nodes are as it asks.
    pub fn is_done(&self, picture: &Picture) -> bool {
        picture.used.len() == self.nodes as usize && picture.ranks == self.ranks(picture)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::storage::MemoryStorage;

    fn picture() -> Picture {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Picture {
            job: "7".into(),
            allocation: names(&["n1", "n2", "n3", "n4"]),
            used: names(&["n1", "n2", "n3"]),
            waiting: names(&["n4"]),
            ranks: 6,
            ranks_per_node: 2,
            least: 1,
            ..Picture::default()
        }
    }

    fn nodes(nodes: u32) -> Request {
        Request { nodes, ranks: None }
    }

    #[test]
    fn ranks_follow_the_nodes_unless_they_are_named() {
        assert_eq!(nodes(4).ranks(&picture()), 8);
        assert_eq!(Request { nodes: 4, ranks: Some(5) }.ranks(&picture()), 5);
        assert!(nodes(3).is_done(&picture()) && !nodes(4).is_done(&picture()));
        assert!(!Request { nodes: 3, ranks: Some(5) }.is_done(&picture()));
    }

    #[test]
    fn what_cannot_be_done_is_refused_by_name() {
        assert_eq!(nodes(4).refusal(&picture(), 12), None);
        assert_eq!(nodes(1).refusal(&picture(), 12), None);
        let says = |request: Request, owners: u32, what: &str| {
            let why = request.refusal(&picture(), owners).unwrap_or_default();
            assert!(why.contains(what), "{request:?}: {why}");
        };
        says(nodes(5), 12, "job 7 has 4 (n1, n2, n3, n4)");
        says(nodes(0), 12, "fewer than 1 (--min-nodes)");
        says(nodes(4), 6, "8 ranks, but train.owners = 6");
        says(Request { nodes: 3, ranks: Some(2) }, 12, "each has at least one");
        let strict = Picture { least: 3, ..picture() };
        assert!(nodes(2).refusal(&strict, 12).unwrap().contains("fewer than 3"));
    }

    #[test]
    fn both_files_survive_the_disk_and_nonsense_is_nothing() {
        let storage = MemoryStorage::default();
        assert_eq!(Request::read(&storage).unwrap(), None);
        assert_eq!(Picture::read(&storage).unwrap(), None);
        nodes(2).write(&storage).unwrap();
        picture().write(&storage).unwrap();
        assert_eq!(Request::read(&storage).unwrap(), Some(nodes(2)));
        assert_eq!(Picture::read(&storage).unwrap(), Some(picture()));
        storage.write_whole(Path::new(REQUEST), &[b"{\"nodes\": -1}"]).unwrap();
        assert_eq!(Request::read(&storage).unwrap(), None);
    }
}
