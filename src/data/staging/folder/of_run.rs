//! Which copies a run has used: a file that it then finds written anew, with other bytes, is one of
//! which a run without failures would have read something else. Times are of this node's clock
//! alone: storage has one of its own.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

use crate::config::Shown;
use crate::data::Occasion;
use crate::data::index::now_ns;
use crate::data::staging::key::Key;

use super::copied::Copied;

/// In the folder: when the run began to use it, in nanoseconds since 1970.
const BEGAN: &str = "BEGAN";

/// For whom copies are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Maker {
    /// For a run that may begin later.
    Ahead,
    /// For the run that uses them.
    Run,
}

/// Who else used a folder as it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Company {
    /// Nobody.
    None,
    /// Other processes.
    Others,
}

/// What a process knows of it.
#[derive(Debug)]
pub(super) struct OfRun {
    began: PathBuf,
    company: Company,
    maker: Maker,
    /// Copies that were not to be used any more, until there are others.
    former: RwLock<HashMap<Key, Copied>>,
    /// Files of which the run had another copy, with other bytes.
    rewritten: RwLock<HashSet<Key>>,
}

impl OfRun {
    /// Of nobody's run yet.
    pub fn ahead(root: &Path, company: Company) -> Self {
        let (former, rewritten) = (RwLock::default(), RwLock::default());
        Self { began: root.join(BEGAN), company, maker: Maker::Ahead, former, rewritten }
    }

    /// Of a process that is a run's from now on.
    pub fn joins(&mut self) {
        self.maker = Maker::Run;
    }

    /// Likewise, on this occasion. A run that begins may find copies that were made ahead of it, of
    /// files that were written before it did.
    pub fn enters(&mut self, occasion: Occasion) {
        let begins = occasion == Occasion::Begins;
        // The first of its processes here says when. Where a run goes on and nobody did, it has
        // used whatever is here.
        let began_ns = match fs::exists(&self.began) {
            Ok(true) if !begins || self.company == Company::Others => None,
            _ if begins => Some(now_ns()),
            _ => Some(0),
        };
        if let Some(began_ns) = began_ns
            && let Err(error) = fs::write(&self.began, began_ns.to_string())
        {
            tracing::warn!("{}: {error}", self.began.shown());
        }
        if begins {
            self.rewritten.write().unwrap_or_else(PoisonError::into_inner).clear();
        }
        self.joins();
    }

    /// When a copy is made now, as its line is to say.
    pub fn now(&self) -> Option<i64> {
        (self.maker == Maker::Run).then(now_ns)
    }

    /// Whether a copy that is used is not known to be: whoever comes later is to be told.
    pub fn is_news(&self, used: Copied) -> bool {
        self.maker == Maker::Run && !self.has_used(used)
    }

    /// Whether the run has made this copy, or taken it for the file. When it began is asked of the
    /// folder: its processes begin one after the other.
    fn has_used(&self, copied: Copied) -> bool {
        let began = fs::read_to_string(&self.began).unwrap_or_default();
        let began_ns = began.parse::<i64>().unwrap_or(0);
        copied.made_ns.is_some_and(|made_ns| made_ns >= began_ns)
    }

    /// This copy is not used any more.
    pub fn gives_up(&self, key: Key, copied: Copied) {
        self.former.write().unwrap_or_else(PoisonError::into_inner).insert(key, copied);
    }

    /// This copy is there now.
    pub fn gets(&self, key: Key, copied: Copied) {
        let former = self.former.write().unwrap_or_else(PoisonError::into_inner).remove(&key);
        former.into_iter().for_each(|before| self.replaces(key, before, copied));
    }

    /// There is another copy of a file than before.
    pub fn replaces(&self, key: Key, before: Copied, now: Copied) {
        if !before.has_bytes_of(&now) && self.has_used(before) {
            self.rewritten.write().unwrap_or_else(PoisonError::into_inner).insert(key);
        }
    }

    /// Whether a file's bytes became others while the run that copied it went on.
    pub fn is_rewritten(&self, file: &Path) -> bool {
        let rewritten = self.rewritten.read().unwrap_or_else(PoisonError::into_inner);
        !rewritten.is_empty() && rewritten.contains(&Key::of(file))
    }
}
