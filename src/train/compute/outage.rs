//! Storage that does not answer: whoever needs a sample of it waits here, and everybody else for
//! him. Nothing is computed without what could not be read, so nothing is committed meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::cluster::guard::report;
use crate::config::Span;
use crate::data::DataError;
use crate::data::staging::progress::Progress;

use crate::train::TrainError;

/// How often the storage is tried again.
const RETRY_EVERY: Duration = Duration::from_millis(500);
/// How often a wait looks whether it should end: a signal wakes nobody.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How often people, and whoever watches the run, are told that it stands by for files.
const STAND_TOLD_EVERY: Duration = Duration::from_secs(5);

/// How often an outage that lasts is told again: a step that was under way may be told of behind
/// the first time, and whoever watches the run would wait for the next one.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// Told of each outage when it begins and while it lasts, with its reason.
pub type Tell = Box<dyn Fn(Wanted<'_>) + Send + Sync>;

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Wanted<'a> {
    /// Storage that does not answer, and what it said.
    Storage(&'a str),
    /// Files that are being staged.
    Copies(Progress),
}

/// What all workers of a rank know of their storage.
pub struct Outage {
    patience: Duration,
    tell_every: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Workers that wait.
    waiting: usize,
    /// The run ends: nobody waits any longer.
    closed: bool,
    /// Set by signals.
    stop: Arc<AtomicBool>,
    tell: Option<Tell>,
    /// When that was done last.
    told: Option<Instant>,
}

impl State {
    fn tell(&mut self, reason: &str) {
        self.told = Some(Instant::now());
        if let Some(tell) = &self.tell {
            tell(Wanted::Storage(reason));
        }
    }
}

impl Outage {
    /// Waits end after `patience`.
    pub fn new(patience: Duration) -> Self {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Self { patience, tell_every: TELL_EVERY, state, changed }
    }

    /// Who asks for the end, and who is told.
    pub fn watch(&self, stop: Arc<AtomicBool>, tell: Tell) {
        let mut state = self.lock();
        (state.stop, state.tell) = (stop, Some(tell));
    }

    /// Whether somebody waits.
    pub fn lasts(&self) -> bool {
        self.lock().waiting > 0
    }

    /// Ends every wait.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Stands by until `ready`, which may block for as long as it is given, says so: copying ends
    /// by itself. `nearer` says how far it is, if that is farther than when it was asked last.
    ///
    /// # Errors
    /// Somebody asks for the end.
    pub fn stand_by(
        &self,
        ready: impl Fn(Duration) -> bool,
        mut nearer: impl FnMut() -> Option<Progress>,
    ) -> Result<(), TrainError> {
        let mut told = Instant::now();
        while !ready(LOOK_EVERY) {
            report::progress();
            let state = self.lock();
            if state.closed {
                return Err(TrainError::Closed);
            }
            if state.stop.load(Ordering::Relaxed) {
                let text = "asked to stop while the run waited for files to be staged";
                return Err(TrainError::Interrupted(text.into()));
            }
            if told.elapsed() >= STAND_TOLD_EVERY {
                told = Instant::now();
                if let (Some(tell), Some(progress)) = (&state.tell, nearer()) {
                    tell(Wanted::Copies(progress));
                }
            }
        }
        Ok(())
    }

    /// Reads until the storage answers.
    ///
    /// # Errors
    /// What `read` says otherwise; patience is over; somebody asks for the end.
    pub fn patiently<T>(
        &self,
        mut read: impl FnMut() -> Result<T, DataError>,
    ) -> Result<T, TrainError> {
        match read() {
            // What was read ahead may have met an outage that is over.
            Err(DataError::Store(_)) => {}
            other => return Ok(other?),
        }
        match read() {
            Err(DataError::Store(reason)) => self.wait(&reason, &mut read),
            other => Ok(other?),
        }
    }

    fn wait<T>(
        &self,
        reason: &str,
        read: &mut impl FnMut() -> Result<T, DataError>,
    ) -> Result<T, TrainError> {
        if self.lock().closed {
            return Err(TrainError::Closed);
        }
        let begun = Instant::now();
        self.begin(reason);
        let found = loop {
            if let Err(end) = self.pause(reason, begun) {
                break Err(end);
            }
            match read() {
                Err(DataError::Store(_)) => {}
                other => break other.map_err(TrainError::from),
            }
        };
        self.lock().waiting -= 1;
        if found.is_ok() {
            let seconds = begun.elapsed().as_secs_f64();
            tracing::warn!("the storage of the data set answers again after {seconds:.1} s");
        }
        found
    }

    fn begin(&self, reason: &str) {
        let mut state = self.lock();
        state.waiting += 1;
        if state.waiting > 1 {
            return;
        }
        let patience = Span(self.patience);
        tracing::warn!("waiting up to {patience} (data.patience) for the data set: {reason}");
        state.tell(reason);
    }

    /// Until the next try.
    fn pause(&self, reason: &str, begun: Instant) -> Result<(), TrainError> {
        let next = Instant::now() + RETRY_EVERY;
        let mut state = self.lock();
        while Instant::now() < next {
            if state.closed {
                return Err(TrainError::Closed);
            }
            if state.stop.load(Ordering::Relaxed) {
                let text = format!("asked to stop while the run waited for its data set: {reason}");
                return Err(TrainError::Interrupted(text));
            }
            if begun.elapsed() >= self.patience {
                let patience = Span(self.patience);
                return Err(TrainError::StorageLost(format!(
                    "the storage of the data set did not answer for {patience} (data.patience): \
                     {reason}; the same command goes on when it is back"
                )));
            }
            let waited = self.changed.wait_timeout(state, LOOK_EVERY);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            // A wait for storage is no hang.
            report::progress();
            if state.told.is_none_or(|told| told.elapsed() >= self.tell_every) {
                state.tell(reason);
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    fn gone<T>() -> Result<T, DataError> {
        Err(DataError::Store("share/a.jpg: gone".into()))
    }

    fn watched(patience: Duration) -> (Arc<Outage>, Arc<AtomicBool>, Arc<AtomicUsize>) {
        let (outage, stop) = (Arc::new(Outage::new(patience)), Arc::new(AtomicBool::new(false)));
        let told = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&told);
        let tell = move |wanted: Wanted<'_>| {
            assert_eq!(wanted, Wanted::Storage("share/a.jpg: gone"));
            count.fetch_add(1, Ordering::Relaxed);
        };
        outage.watch(Arc::clone(&stop), Box::new(tell));
        (outage, stop, told)
    }

    #[test]
    fn a_run_goes_on_when_its_storage_is_back_and_says_once_that_it_waited() {
        let (outage, _, told) = watched(LONG);
        let mut tries = 0;
        let read = outage.patiently(|| {
            tries += 1;
            if tries < 4 { gone() } else { Ok(tries) }
        });
        assert_eq!((read, told.load(Ordering::Relaxed)), (Ok(4), 1));
        assert!(!outage.lasts());
    }

    /// A step that was under way may be told of in between.
    #[test]
    fn an_outage_that_lasts_is_told_again() {
        let mut outage = Outage::new(LONG);
        outage.tell_every = Duration::ZERO;
        let told = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&told);
        let tell = move |_: Wanted<'_>| {
            count.fetch_add(1, Ordering::Relaxed);
        };
        outage.watch(Arc::default(), Box::new(tell));
        let mut tries = 0;
        let read = outage.patiently(|| {
            tries += 1;
            if tries < 4 { gone() } else { Ok(()) }
        });
        assert_eq!(read, Ok(()));
        assert!(told.load(Ordering::Relaxed) > 1, "once when it began");
        assert!(TELL_EVERY < crate::config::Recovery::default().time_limit.0 / 2);
    }

    #[test]
    fn what_an_outage_left_behind_is_read_again_without_a_word() {
        let (outage, _, told) = watched(LONG);
        let mut stale = true;
        let read = outage.patiently(|| if std::mem::take(&mut stale) { gone() } else { Ok(7) });
        assert_eq!((read, told.load(Ordering::Relaxed)), (Ok(7), 0));
    }

    #[test]
    fn patience_ends_and_says_what_was_waited_for() {
        let (outage, ..) = watched(Duration::ZERO);
        match outage.patiently(gone::<()>) {
            Err(TrainError::StorageLost(text)) => assert!(text.contains("share/a.jpg"), "{text}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_signal_and_the_end_of_the_run_end_a_wait() {
        let (outage, stop, _) = watched(LONG);
        let waits = Arc::clone(&outage);
        let worker = std::thread::spawn(move || waits.patiently(gone::<()>));
        while !outage.lasts() {
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
        let ended = worker.join().unwrap();
        assert!(matches!(ended, Err(TrainError::Interrupted(_))), "{ended:?}");
        stop.store(false, Ordering::Relaxed);
        outage.close();
        assert_eq!(outage.patiently(gone::<()>), Err(TrainError::Closed));
    }

    #[test]
    fn a_picture_that_is_bad_is_not_waited_for() {
        let (outage, ..) = watched(LONG);
        let bad = || Err::<(), _>(DataError::Set("fatal".into()));
        assert_eq!(outage.patiently(bad), Err(TrainError::Data("fatal".into())));
    }
}
