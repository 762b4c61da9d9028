//! A run to be launched: its configuration, where it lives, and what starts it.

use std::path::{Path, PathBuf};

use crate::cluster::comm::mpi::loopback;
use crate::cluster::resident::Folder;
use crate::config::{Config, Rung};
use crate::launch::attempt;
use crate::launch::attempt::mpirun::{Plan, TUNABLES_VARIABLE};
use crate::launch::attempt::runtime::Runtime;
use crate::launch::nodes::cluster_nodes::{Mission, Nodes};
use crate::launch::traces::folders::Folders;
use crate::launch::traces::job_name::job_name;

use super::run_dir::RunDir;

/// A run to be launched.
#[derive(Debug)]
pub struct Job {
    /// Everything.
    pub config: Config,
    /// Where it lives.
    pub run: RunDir,
    /// The launcher.
    pub mpirun: PathBuf,
    /// This program: what ranks and janitors run.
    pub program: PathBuf,
    /// Below it ranks make pictures, where the configuration names none: they are not where launch
    /// was started.
    pub pictures: Option<PathBuf>,
    /// What ranks run instead, in tests of the supervisor.
    pub rank_program: Option<PathBuf>,
    /// Several nodes, where there are.
    pub nodes: Option<Nodes>,
    /// What takes mpirun's place there.
    pub runtime: Option<Runtime>,
}

impl Job {
    /// The resident state of the run on this node.
    pub fn slots(&self) -> Folder {
        Folder::new(&self.config.recovery.resident_dir, &self.run.id())
    }

    /// Ranks and spares of a node, at most.
    pub fn processes_here(&self) -> (u64, u64) {
        let nodes = self.nodes.as_ref().map_or(1, |nodes| nodes.allocation.nodes.len().max(1));
        let spares = self.config.recovery.spares.unwrap_or(0);
        (u64::from(self.config.run.ranks).div_ceil(nodes as u64), u64::from(spares))
    }

    /// The mpirun line of an attempt; `origin` is the unix time at which the run's seconds were 0.
    pub fn plan(&self, attempt: u32, origin: f64) -> Plan {
        let job = self.name(attempt);
        let program = self.rank_program.as_ref().unwrap_or(&self.program);
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let train = &self.config.train;
        Plan {
            mpirun: self.mpirun.clone(),
            ranks: self.config.run.ranks,
            spares: self.config.recovery.spares.unwrap_or(0),
            threads_per_rank: train.workers.saturating_mul(train.threads),
            cores: attempt::cores(),
            rank_command: vec![
                text(program),
                "train".into(),
                text(&self.run.join("config.toml")),
                "--run-dir".into(),
                text(self.run.path()),
                "--attempt".into(),
                attempt.to_string(),
                "--origin".into(),
                format!("{origin:.6}"),
                "--launched".into(),
            ],
            folders: Folders::draw(&job),
            pictures: self.pictures.clone(),
            job,
            placement: self.nodes.as_ref().map(|nodes| nodes.place_all(self.config.run.ranks)),
            runtime: self.runtime.clone(),
            respawns: self.config.recovery.rungs().contains(&Rung::Respawn),
            loopback: loopback::settings(&self.mpirun),
            home: kintsugi_ffi::os::hostname(),
            tunables: std::env::var(TUNABLES_VARIABLE).ok(),
            slurm: self.nodes.as_ref().map_or(Vec::new(), |nodes| {
                nodes.allocation.unsaid(&|name| std::env::var(name).ok())
            }),
        }
    }

    /// What the processes of an attempt are known by.
    pub fn name(&self, attempt: u32) -> String {
        job_name(&self.run.id(), attempt)
    }

    /// What agents on its nodes need to know.
    pub fn mission(&self) -> Mission {
        Mission {
            program: self.program.clone(),
            run: self.run.id(),
            logs: self.run.join("logs"),
            slots: self.slots(),
            timeout: self.config.recovery.node_timeout.0,
        }
    }
}
