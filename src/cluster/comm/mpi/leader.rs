//! A replacement waits for those that started it, and a world that dies whole leaves nobody to wait
//! for: MPI does not tell it so before it is a member. So it looks whether its leader lives.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kintsugi_ffi::life::Mark;
use kintsugi_ffi::os;

use crate::cluster::guard::report;
use crate::observe::notice::act_on;
use crate::observe::panics::vital;
use crate::observe::threads::explained;

/// How often it looks.
const LOOK: Duration = Duration::from_millis(50);
/// Looks in a row that see no leader: MPI may tell it in the meantime, and it ends in order.
const LOOKS: u32 = 4;

/// Ends this process when its leader is gone, until it is dropped: by a signal, which costs the
/// others nothing; the launcher would end them all for an exit code.
pub(super) struct Watched {
    over: Arc<AtomicBool>,
}

impl Watched {
    /// `leader` started this process. One of another machine or container is not seen, and waited
    /// for as long as joining may last.
    pub(super) fn begin(leader: Mark) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let joined = Arc::clone(&over);
        let watch = move || vital(|| watch(leader, &joined));
        let started = std::thread::Builder::new().name("leader-watch".into()).spawn(watch);
        if let Err(error) = started {
            let error = explained(error);
            act_on(&format!("no watch over the leader of this replacement: {error}"));
        }
        Self { over }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
    }
}

fn watch(leader: Mark, over: &AtomicBool) {
    let mut gone = 0;
    while !over.load(Ordering::Acquire) {
        gone = if leader.is_over() { gone + 1 } else { 0 };
        if gone >= LOOKS {
            let why = "the process that started this replacement is gone, and it was no member yet";
            report::last_words(why);
            tracing::error!("{why}");
            os::kill_self_now();
        }
        std::thread::sleep(LOOK);
    }
}
