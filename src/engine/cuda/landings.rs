//! Memory of the host in which outputs of micro-batches arrive: taken for one, used again for the
//! next, of whatever script.

use std::collections::BTreeMap;
use std::sync::Arc;

use kintsugi_ffi::cuda::{Context, Error, Landing};

/// Those that nobody has.
#[derive(Default)]
pub struct Landings {
    /// By their bytes.
    free: BTreeMap<usize, Vec<Landing>>,
}

impl Landings {
    /// One of so many bytes.
    ///
    /// # Errors
    /// As of `Landing::new`.
    pub fn take(&mut self, context: &Arc<Context>, bytes: usize) -> Result<Landing, Error> {
        match self.free.get_mut(&bytes).and_then(Vec::pop) {
            Some(landing) => Ok(landing),
            None => Landing::new(context, bytes),
        }
    }

    /// They were read.
    pub fn give_back(&mut self, landed: Vec<Landing>) {
        for landing in landed {
            self.free.entry(landing.bytes()).or_default().push(landing);
        }
    }
}
