//! Another number of nodes, at the user's wish (`kintsugi scale --nodes`): the nodes are made ready
//! while the run goes on, then its ranks are asked to end at a step boundary, as in a renewal, and
//! the next attempt goes on from what they leave in memory. Nodes that are not needed any more are
//! given back once that attempt has committed a step.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::launch::nodes::fleet::ARRIVAL_MAX;
use crate::launch::nodes::scale::{PICTURE, Picture, REQUEST, Request};
use crate::launch::run_dir::RunDir;
use crate::observe::event::{Kind, ResizeRecord};
use crate::observe::storage::Storage;
use crate::run_folder::{RANKS_REQUEST, RENEW};

use super::Supervisor;

/// How often a request is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// A change of nodes.
#[derive(Debug)]
pub(super) struct Scaling {
    looked: Instant,
    /// What was asked for, and since when its nodes are being made ready.
    under_way: Option<(Request, Instant)>,
    /// Whether the ranks have been asked to end.
    asked: bool,
    /// Ranks that were asked for last.
    pub(super) ranks: Option<u32>,
    /// Nodes wait to be given back.
    surplus: bool,
}

impl Default for Scaling {
    fn default() -> Self {
        let looked = Instant::now();
        Self { looked, under_way: None, asked: false, ranks: None, surplus: false }
    }
}

impl Scaling {
    pub(super) fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }
}

/// What an earlier launch left unanswered is nobody's wish any more.
pub(super) fn forget(run: &RunDir) {
    for name in [REQUEST, PICTURE] {
        let _ = run.storage().remove(Path::new(name));
    }
    withdraw(run);
}

/// The ranks are not to end, or have ended.
fn withdraw(run: &RunDir) {
    let path = Path::new(RANKS_REQUEST);
    let text = run.storage().read(path).unwrap_or_default();
    if text.trim_ascii() == RENEW.as_bytes() {
        let _ = run.storage().remove(path);
    }
}

impl Supervisor<'_> {
    /// While an attempt runs: takes a request, makes its nodes ready, asks the ranks to end.
    pub(super) fn look_at_scaling(&mut self) {
        if self.scaling.looked.elapsed() < LOOK_EVERY || self.crew.is_none() {
            return;
        }
        self.scaling.looked = Instant::now();
        if self.scaling.surplus && self.history.committing() {
            self.give_back();
        }
        if self.scaling.under_way.is_none() {
            self.take_request();
        }
        let Some((request, since)) = self.scaling.under_way else { return };
        let Some(crew) = &mut self.crew else { return };
        let ready = crew.living() >= request.nodes as usize;
        if self.scaling.asked || !(ready || since.elapsed() > ARRIVAL_MAX) {
            return;
        }
        if !ready {
            let (living, nodes) = (crew.living(), request.nodes);
            self.scaling.under_way = None;
            self.refuse(format!("{nodes} nodes were asked for, but {living} answer"));
            return;
        }
        // Before its first commit an attempt has nothing to be gone on from.
        if self.history.committing() {
            self.scaling.asked = true;
            if let Err(error) = self.ask_to_renew() {
                self.scaling.under_way = None;
                self.refuse(format!("the ranks cannot be asked: {error}"));
            }
        }
    }

    /// Asks the ranks to end at a step boundary.
    pub(super) fn ask_to_renew(&self) -> std::io::Result<()> {
        let text = [RENEW.as_bytes(), b"\n"];
        self.job.run.storage().write_whole(Path::new(RANKS_REQUEST), &text)
    }

    fn take_request(&mut self) {
        let storage = self.job.run.storage();
        let Some(request) = Request::read(storage) else { return };
        if let Err(error) = storage.remove(Path::new(REQUEST)) {
            tracing::warn!("cannot remove {REQUEST}: {error}; it will be answered again");
        }
        let Some(picture) = Picture::read(storage) else { return };
        let config = &self.job.config;
        let owners = crate::config::resolve_owners(config);
        if let Some(why) = request.refusal(&picture, owners) {
            return self.refuse(why);
        }
        if request.is_done(&picture) {
            return;
        }
        let (nodes, ranks) = (request.nodes, request.ranks(&picture));
        self.warn(&format!("asked for {nodes} nodes, {ranks} ranks: after one of the next steps"));
        if let Some(crew) = &mut self.crew {
            crew.call(nodes as usize);
        }
        (self.scaling.under_way, self.scaling.asked) = (Some((request, Instant::now())), false);
    }

    fn refuse(&mut self, why: String) {
        self.warn(&format!("the nodes stay: {why}"));
        self.show_nodes(Some(why));
    }

    /// Between two attempts: the next one goes where somebody asked for.
    pub(super) fn apply_scaling(&mut self) {
        withdraw(&self.job.run);
        let Some((request, _)) = self.scaling.under_way.take() else { return };
        let picture = Picture::read(self.job.run.storage()).unwrap_or_default();
        self.scaling.ranks = Some(request.ranks(&picture));
        self.scaling.surplus = true;
        if let Some(crew) = &mut self.crew {
            crew.want(request.nodes as usize);
        }
    }

    /// Once its placement is known: the attempt's nodes, for people and for `scale`.
    pub(super) fn placed(&mut self, ranks: u32) {
        let before = Picture::read(self.job.run.storage());
        self.ranks = ranks;
        self.show_nodes(None);
        let after = Picture::read(self.job.run.storage()).unwrap_or_default();
        let Some(before) = before.filter(|_| self.scaling.surplus || self.spreading.is_tried())
        else {
            return;
        };
        if before.used != after.used {
            let (from, to) = (before.used, after.used);
            self.record(Kind::Nodes { from, to });
        }
        if before.ranks != ranks {
            let last = self.last.as_ref();
            self.record(Kind::Resized(ResizeRecord {
                generation: last.map_or(0, |last| last.generation),
                step: last.map_or(0, |last| last.step),
                cause: "scale".into(),
                from: before.ranks,
                to: ranks,
                seconds: Default::default(),
            }));
        }
    }

    fn give_back(&mut self) {
        self.scaling.surplus = false;
        let Some(crew) = &mut self.crew else { return };
        let names = crew.give_back();
        if !names.is_empty() {
            self.warn(&format!("given back: {}", names.join(", ")));
        }
        self.show_nodes(None);
    }

    pub(super) fn show_nodes(&mut self, refused: Option<String>) {
        let Some(crew) = &mut self.crew else { return };
        let mut picture = crew.picture(self.job.config.run.ranks);
        (picture.ranks, picture.refused) = (self.ranks, refused);
        if let Err(error) = picture.write(self.job.run.storage()) {
            tracing::warn!("{PICTURE}: {error}");
        }
    }
}
