//! Work beside the training loop that does not outlive its owner: it reads the state, and the
//! file that holds it is another's as soon as the owner is gone.

use std::io;
use std::thread::{Builder, JoinHandle};

/// A thread that somebody waits for, whatever happens to him.
#[derive(Debug)]
pub struct Beside<T>(Option<JoinHandle<T>>);

impl<T: Send + 'static> Beside<T> {
    /// Starts it.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub fn start(name: &str, work: impl FnOnce() -> T + Send + 'static) -> io::Result<Self> {
        Ok(Self(Some(Builder::new().name(name.into()).spawn(work)?)))
    }
}

impl<T> Beside<T> {
    /// Waits for what it found; `None` after a panic.
    pub fn wait(mut self) -> Option<T> {
        self.0.take()?.join().ok()
    }
}

impl<T> Drop for Beside<T> {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            // Nobody asks for the result, nor for its panic.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;

    #[test]
    fn work_whose_owner_is_gone_is_over() {
        let over = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&over);
        let work = move || {
            std::thread::sleep(Duration::from_millis(30));
            done.store(true, Ordering::SeqCst);
        };
        drop(Beside::start("work", work).unwrap());
        assert!(over.load(Ordering::SeqCst));
    }

    #[test]
    fn a_panic_of_the_work_is_no_panic_of_the_owner() {
        let panics = || Beside::start("panics", || -> u32 { panic!("as a test") }).unwrap();
        assert_eq!(panics().wait(), None);
        drop(panics());
    }
}
