//! What the supervisor needs of several nodes: where the next attempt goes, that its nodes are
//! ready, which of them died, and that nothing of it is left on those that live.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::cluster::resident::Folder;
use crate::launch::traces::folders::Folders;
use crate::launch::traces::janitor;

use super::agent::newest_of;
use super::allocation::Allocation;
use super::connections::Loss;
use super::fleet::{Fleet, Muster};
use super::message::Order;
use super::placement::{Placement, Standing, choose, cut_off, spread, surplus};
use super::scale::Picture;

/// The nodes of a launch, and how many of them it wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nodes {
    /// SLURM's.
    pub allocation: Allocation,
    /// Kept back until another one dies.
    pub spare: u32,
    /// With fewer the job is given back to the queue.
    pub least: u32,
    /// Waiting processes on each.
    pub spares_per_node: u32,
}

impl Nodes {
    /// Nodes that an attempt runs on while enough live.
    fn wanted(&self) -> usize {
        self.allocation.nodes.len().saturating_sub(self.spare as usize).max(1)
    }

    /// Where an attempt goes while all nodes live and none holds any state.
    pub fn place_all(&self, ranks: u32) -> Placement {
        let fresh =
            |name: &String| Standing { name: name.clone(), lives: true, newest: None, used: false };
        let all: Vec<Standing> = self.allocation.nodes.iter().map(fresh).collect();
        let hosts = choose(&all, ranks, self.wanted());
        Placement { hosts, spares_per_host: self.spares_per_node }
    }
}

/// What the agents of a launch need to know.
#[derive(Debug, Clone)]
pub struct Mission {
    /// This program.
    pub program: PathBuf,
    /// The run directory's short name.
    pub run: String,
    /// `RUN/logs`.
    pub logs: PathBuf,
    /// The run's slots on each node.
    pub slots: Folder,
    /// Silence after which a node counts as dead.
    pub timeout: Duration,
}

/// The nodes of a launch, with an agent on each but its own.
#[derive(Debug)]
pub struct ClusterNodes {
    nodes: Nodes,
    fleet: Fleet,
    slots: Folder,
    /// Those of the attempt that runs, or of the last one.
    used: Vec<String>,
    /// Lost since an attempt began.
    lost: Vec<Loss>,
    /// Nodes of the last attempt that was begun.
    world: Vec<String>,
    /// Nodes of any attempt of this launch.
    computed: BTreeSet<String>,
    /// Of which nothing was heard any more since then.
    silent: BTreeSet<String>,
    /// Nodes that an attempt runs on while enough live.
    wanted: usize,
}

impl ClusterNodes {
    /// Starts the agents and waits for them; `stop` ends the wait.
    ///
    /// # Errors
    /// No port, no thread, no srun.
    pub fn assemble(
        nodes: Nodes,
        mission: Mission,
        stop: &mut dyn FnMut() -> bool,
    ) -> io::Result<Self> {
        let (own, wanted) = (nodes.allocation.own, nodes.wanted());
        let others = nodes.allocation.nodes.iter().enumerate();
        let others = others.filter(|(at, _)| Some(*at) != own).map(|(_, name)| name.clone());
        let host = own.map(|own| nodes.allocation.nodes[own].clone());
        let muster = Muster {
            nodes: others.collect(),
            program: mission.program,
            host: host.unwrap_or_else(kintsugi_ffi::os::hostname),
            run: mission.run,
            resident_dir: mission.slots.path().to_owned(),
            logs: mission.logs,
            timeout: mission.timeout,
        };
        let mut fleet = Fleet::start(muster)?;
        fleet.await_all(stop);
        let slots = mission.slots;
        Ok(Self {
            nodes,
            fleet,
            slots,
            used: Vec::new(),
            lost: Vec::new(),
            world: Vec::new(),
            computed: BTreeSet::new(),
            silent: BTreeSet::new(),
            wanted,
        })
    }

    /// Every node of the allocation.
    fn standings(&self) -> Vec<Standing> {
        let others = self.fleet.standings(&self.used);
        let own = self.nodes.allocation.own.map(|own| &self.nodes.allocation.nodes[own]);
        let standing = |name: &String| match others.iter().find(|other| other.name == *name) {
            Some(other) => other.clone(),
            None => Standing {
                name: name.clone(),
                lives: Some(name) == own,
                newest: newest_of(&self.slots),
                used: self.used.contains(name),
            },
        };
        self.nodes.allocation.nodes.iter().map(standing).collect()
    }

    /// Where the next attempt of so many ranks goes, and makes its nodes ready.
    ///
    /// # Errors
    /// Too few nodes live.
    pub fn place(&mut self, ranks: u32, job: &str, folders: &Folders) -> Result<Placement, String> {
        // Each turn but the last loses a node.
        for _ in 0..=self.nodes.allocation.nodes.len() {
            let standings = self.standings();
            let living = standings.iter().filter(|node| node.lives).count();
            let least = self.nodes.least.max(1) as usize;
            if living < least {
                let all = standings.len();
                return Err(format!("{living} of {all} nodes live, and {least} are needed"));
            }
            self.hear_of_losses();
            let home =
                self.nodes.allocation.own.map(|own| self.nodes.allocation.nodes[own].as_str());
            if let Some(reason) = cut_off(&self.world, &standings, &self.silent, home) {
                return Err(reason);
            }
            let hosts = choose(&standings, ranks, self.wanted);
            let Folders { temporary, shared_memory } = folders.clone();
            let job = job.to_owned();
            self.fleet.order(&hosts, &Order::Begin { job, temporary, shared_memory });
            let now = self.standings();
            let lives = |host: &String| now.iter().any(|node| node.name == *host && node.lives);
            if hosts.iter().all(lives) {
                self.used.clone_from(&hosts);
                self.world.clone_from(&hosts);
                self.computed.extend(hosts.iter().cloned());
                self.silent.clear();
                return Ok(Placement { hosts, spares_per_host: self.nodes.spares_per_node });
            }
        }
        Err("every node died while an attempt was being made ready".into())
    }

    fn hear_of_losses(&mut self) {
        let losses = self.fleet.losses();
        let silent = losses.iter().filter(|loss| loss.silent).map(|loss| loss.node.clone());
        self.silent.extend(silent);
        self.lost.extend(losses);
    }

    /// A node of the running attempt that is lost. To be called often.
    pub fn lost_in_use(&mut self) -> Option<&Loss> {
        self.fleet.look();
        self.hear_of_losses();
        self.lost.iter().find(|loss| self.used.contains(&loss.node))
    }

    /// The attempt goes on without the nodes that it lost; says which they are.
    pub fn leave_out(&mut self) -> Vec<Loss> {
        let used = std::mem::take(&mut self.used);
        let lost = std::mem::take(&mut self.lost);
        let (left, others) = lost.into_iter().partition(|loss| used.contains(&loss.node));
        self.lost = others;
        let gone = |node: &String| left.iter().any(|loss: &Loss| loss.node == *node);
        self.used = used.into_iter().filter(|node| !gone(node)).collect();
        left
    }

    /// Asks nodes that were lost long ago whether they are back, for the attempts to come.
    pub fn recall(&mut self) {
        self.fleet.recall();
    }

    /// Asks the attempt's ranks for a checkpoint and their end.
    pub fn stop(&self, job: &str) {
        janitor::ask_to_stop(job);
        self.fleet.tell(&self.used, &Order::Stop { job: job.to_owned() });
    }

    /// Ends what the attempt left on its living nodes, and learns what they hold.
    pub fn end(&mut self, job: &str) {
        let used = self.used.clone();
        self.fleet.order(&used, &Order::End { job: job.to_owned() });
    }

    /// What was lost since the last call, for people.
    pub fn take_losses(&mut self) -> Vec<Loss> {
        self.hear_of_losses();
        std::mem::take(&mut self.lost)
    }

    /// From the next attempt on, so many nodes compute.
    pub fn want(&mut self, nodes: usize) {
        self.wanted = nodes.max(1);
    }

    /// Nodes that were given back are asked to come, where too few of the others live.
    pub fn call(&mut self, nodes: usize) {
        let missing = nodes.saturating_sub(self.living());
        let names: Vec<String> = self.fleet.away().into_iter().take(missing).collect();
        self.fleet.call_back(&names);
    }

    /// Nodes that can be used.
    pub fn living(&self) -> usize {
        self.standings().iter().filter(|node| node.lives).count()
    }

    /// On how many nodes ranks that are on these hosts would be after another start, where that
    /// spreads them.
    pub fn better_spread(&self, hosts: &[String]) -> Option<usize> {
        spread(hosts, self.living(), self.wanted)
    }

    /// Nothing of the run stays on living nodes that neither compute nor are kept as spare nodes;
    /// their names.
    pub fn give_back(&mut self) -> Vec<String> {
        let own = self.nodes.allocation.own.map(|own| self.nodes.allocation.nodes[own].clone());
        let names = surplus(&self.standings(), own.as_deref(), self.nodes.spare as usize);
        self.fleet.release(&names);
        names
    }

    /// For people, and for `kintsugi scale`; `ranks` is what the launch began with.
    pub fn picture(&mut self, ranks: u32) -> Picture {
        let (standings, away) = (self.standings(), self.fleet.away());
        let waits = |node: &&Standing| node.lives && !node.used;
        let began_with = u32::try_from(self.nodes.wanted()).unwrap_or(u32::MAX);
        Picture {
            job: self.nodes.allocation.job.clone(),
            allocation: self.nodes.allocation.nodes.clone(),
            used: self.used.clone(),
            waiting: standings.iter().filter(waits).map(|node| node.name.clone()).collect(),
            given_back: away,
            ranks,
            ranks_per_node: ranks.div_ceil(began_with),
            least: self.nodes.least,
            refused: None,
        }
    }

    /// The run is complete: its state is needed nowhere. Nodes that computed and were lost are
    /// asked once more; those that do not answer, where it stays. `stop` ends the wait for them.
    pub fn clear_slots(&mut self, stop: &mut dyn FnMut() -> bool) -> Vec<String> {
        let all = self.nodes.allocation.nodes.clone();
        self.fleet.recall_now(&self.computed, stop);
        self.fleet.order(&all, &Order::ClearSlots);
        let away = self.fleet.away();
        let left = self.standings().into_iter().filter(|node| !node.lives);
        let left = left.filter(|node| self.computed.contains(&node.name));
        left.map(|node| node.name).filter(|name| !away.contains(name)).collect()
    }
}
