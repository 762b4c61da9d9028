//! Another number of nodes, at the user's wish (`kintsugi scale --nodes`): the nodes are made ready
//! while the run goes on, then its ranks are asked to end at a step boundary, as in a renewal, and
//! the next attempt goes on from what they leave in memory. Nodes that are not needed any more are
//! given back once that attempt has committed a step.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::launch::nodes::ClusterNodes;
use crate::launch::nodes::fleet::ARRIVAL_MAX;
use crate::launch::nodes::scale::{PICTURE, Picture, REQUEST, Request};
use crate::launch::start::job::Job;
use crate::launch::start::run_dir::RunDir;
use crate::observe::event::{Kind, ResizeRecord};
use crate::observe::notice::act_on;
use crate::observe::refusal::{if_there, insist};
use crate::observe::storage::Storage;
use crate::run_folder::{RANKS_REQUEST, RENEW};

use super::record::Record;

/// How often a request is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// A change of nodes.
#[derive(Debug)]
pub(super) struct Scaling {
    looked: Instant,
    /// What was asked for, the ranks that it comes to, and since when its nodes are being made
    /// ready.
    under_way: Option<(Request, u32, Instant)>,
    /// Whether the ranks have been asked to end.
    asked: bool,
    /// Ranks that were asked for last.
    asked_ranks: Option<u32>,
    /// Ranks of the attempt that runs, or ran last.
    ranks: u32,
    /// Nodes wait to be given back.
    surplus: bool,
    /// What was shown last.
    shown: Option<Picture>,
}

/// What an earlier launch left unanswered is nobody's wish any more.
pub(super) fn forget(run: &RunDir) {
    for name in [REQUEST, PICTURE, RANKS_REQUEST] {
        let _ = run.storage().remove(Path::new(name));
    }
    // What could not be removed is told.
    withdraw(run);
}

/// Asks the ranks to end at a step boundary.
pub(super) fn ask_to_renew(run: &RunDir) -> std::io::Result<()> {
    let text = [RENEW.as_bytes(), b"\n"];
    run.storage().write_whole(Path::new(RANKS_REQUEST), &text)
}

/// The ranks are not to end, or have ended.
fn withdraw(run: &RunDir) {
    let path = Path::new(RANKS_REQUEST);
    let removed = if_there(insist(|| run.storage().read(path))).and_then(|text| match text {
        Some(text) if text.trim_ascii() == RENEW.as_bytes() => run.storage().remove(path),
        _ => Ok(()),
    });
    if let Err(error) = removed {
        act_on(&format!("{error}; ranks that are started now may end at once"));
    }
}

impl Scaling {
    /// Of a launch in which nobody has asked for anything yet.
    pub(super) fn of(job: &Job) -> Self {
        Self {
            looked: Instant::now(),
            under_way: None,
            asked: false,
            asked_ranks: None,
            ranks: job.config.run.ranks,
            surplus: false,
            shown: None,
        }
    }

    /// Whether nodes are being made ready.
    pub(super) fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Ranks that the next attempt is to have because somebody asked, once.
    pub(super) fn take_ranks(&mut self) -> Option<u32> {
        self.asked_ranks.take()
    }

    /// While an attempt runs: takes a request, makes its nodes ready, asks the ranks to end.
    pub(super) fn look(&mut self, cluster: Option<&mut ClusterNodes>, record: &mut Record<'_>) {
        let Some(cluster) = cluster else { return };
        if self.looked.elapsed() < LOOK_EVERY {
            return;
        }
        self.looked = Instant::now();
        if self.surplus && record.history.committing() {
            self.give_back(cluster, record);
        }
        if self.under_way.is_none() {
            self.take_request(cluster, record);
        }
        let Some((request, _, since)) = self.under_way else { return };
        let ready = cluster.living() >= request.nodes as usize;
        if self.asked || !(ready || since.elapsed() > ARRIVAL_MAX) {
            return;
        }
        if !ready {
            let (living, nodes) = (cluster.living(), request.nodes);
            self.under_way = None;
            self.refuse(
                cluster,
                record,
                format!("{nodes} nodes were asked for, but {living} answer"),
            );
            return;
        }
        // Before its first commit an attempt has nothing to be gone on from.
        if record.history.committing() {
            self.asked = true;
            if let Err(error) = ask_to_renew(&record.job.run) {
                self.under_way = None;
                self.refuse(cluster, record, format!("the ranks cannot be asked: {error}"));
            }
        }
    }

    fn take_request(&mut self, cluster: &mut ClusterNodes, record: &mut Record<'_>) {
        let storage = record.job.run.storage();
        // One that cannot be read is looked for again.
        let Ok(Some(request)) = Request::read(storage) else { return };
        if let Err(error) = storage.remove(Path::new(REQUEST)) {
            tracing::warn!("cannot remove {REQUEST}: {error}; it will be answered again");
        }
        let picture = self.picture(cluster, record);
        let owners = crate::config::resolve_owners(&record.job.config);
        if let Some(why) = request.refusal(&picture, owners) {
            return self.refuse(cluster, record, why);
        }
        if request.is_done(&picture) {
            return;
        }
        let (nodes, ranks) = (request.nodes, request.ranks(&picture));
        record
            .warn(&format!("asked for {nodes} nodes, {ranks} ranks: after one of the next steps"));
        cluster.call(nodes as usize);
        (self.under_way, self.asked) = (Some((request, ranks, Instant::now())), false);
    }

    fn refuse(&mut self, cluster: &mut ClusterNodes, record: &mut Record<'_>, why: String) {
        record.warn(&format!("the nodes stay: {why}"));
        self.show_nodes(Some(cluster), record, Some(why));
    }

    /// Between two attempts: the next one goes where somebody asked for.
    pub(super) fn apply(&mut self, cluster: Option<&mut ClusterNodes>, run: &RunDir) {
        withdraw(run);
        let Some((request, ranks, _)) = self.under_way.take() else { return };
        self.asked_ranks = Some(ranks);
        self.surplus = true;
        if let Some(cluster) = cluster {
            cluster.want(request.nodes as usize);
        }
    }

    /// Once its placement is known: the attempt's nodes, for people and for `scale`.
    pub(super) fn placed(
        &mut self,
        cluster: Option<&mut ClusterNodes>,
        record: &mut Record<'_>,
        ranks: u32,
    ) {
        let before = self.shown.take();
        self.ranks = ranks;
        self.show_nodes(cluster, record, None);
        let Some(before) = before.filter(|_| self.surplus || record.spreading.is_tried()) else {
            return;
        };
        let used = self.shown.as_ref().map(|after| after.used.clone()).unwrap_or_default();
        if before.used != used {
            let (from, to) = (before.used, used);
            record.record(Kind::Nodes { from, to });
        }
        if before.ranks != ranks {
            let last = record.last.as_ref();
            record.record(Kind::Resized(ResizeRecord {
                generation: last.map_or(0, |last| last.generation),
                step: last.map_or(0, |last| last.step),
                cause: "scale".into(),
                from: before.ranks,
                to: ranks,
                seconds: Default::default(),
            }));
        }
    }

    fn give_back(&mut self, cluster: &mut ClusterNodes, record: &mut Record<'_>) {
        self.surplus = false;
        let names = cluster.give_back();
        if !names.is_empty() {
            record.warn(&format!("given back: {}", names.join(", ")));
        }
        self.show_nodes(Some(cluster), record, None);
    }

    /// Writes which nodes are used and which are not, for people and for `scale`.
    pub(super) fn show_nodes(
        &mut self,
        cluster: Option<&mut ClusterNodes>,
        record: &Record<'_>,
        refused: Option<String>,
    ) {
        let Some(cluster) = cluster else { return };
        let picture = Picture { refused, ..self.picture(cluster, record) };
        if let Err(error) = picture.write(record.job.run.storage()) {
            tracing::warn!("{PICTURE}: {error}");
        }
        self.shown = Some(picture);
    }

    fn picture(&self, cluster: &mut ClusterNodes, record: &Record<'_>) -> Picture {
        Picture { ranks: self.ranks, ..cluster.picture(record.job.config.run.ranks) }
    }
}
