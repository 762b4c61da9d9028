//! The storage of the rank that writes checkpoints: what is copied beside training gives way to it,
//! and faults planned for `in_persist` strike in it.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::cluster::faults::{Injector, Standing};
use crate::config::Point;
use crate::data::staging::pace::Urgent;
use crate::observe::storage::Storage;

/// The writer's storage, through which `in_persist` faults strike.
pub(in crate::train) struct Struck {
    pub inner: Arc<dyn Storage>,
    pub injector: Arc<Injector>,
    pub standing: Arc<Mutex<Standing>>,
    pub urgent: Arc<Urgent>,
}

impl Storage for Struck {
    fn append_line(&self, path: &Path, line: &str) -> io::Result<()> {
        self.inner.append_line(path, line)
    }
    fn write_whole(&self, path: &Path, body: &[&[u8]]) -> io::Result<()> {
        {
            let _first = self.urgent.begin_for_node();
            self.inner.write_whole(path, body)?;
        }
        let standing = *self.standing.lock().unwrap_or_else(PoisonError::into_inner);
        self.injector.at(Point::InPersist, &standing);
        Ok(())
    }
    fn create_new(&self, path: &Path, body: &[u8]) -> io::Result<()> {
        self.inner.create_new(path, body)
    }
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let _first = self.urgent.begin_for_node();
        self.inner.read(path)
    }
    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.inner.list(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.inner.remove(path)
    }
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.inner.create_dir(path)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// Knows whether a rank of its node gives way to what is written.
    struct Watched {
        neighbour: Urgent,
        gave_way: AtomicU32,
    }

    impl Watched {
        fn look(&self) {
            self.gave_way.fetch_add(self.neighbour.is_at_work().into(), Ordering::Relaxed);
        }
    }

    impl Storage for Watched {
        fn append_line(&self, _: &Path, _: &str) -> io::Result<()> {
            Ok(())
        }
        fn write_whole(&self, _: &Path, _: &[&[u8]]) -> io::Result<()> {
            self.look();
            Ok(())
        }
        fn create_new(&self, _: &Path, _: &[u8]) -> io::Result<()> {
            Ok(())
        }
        fn read(&self, _: &Path) -> io::Result<Vec<u8>> {
            self.look();
            Ok(Vec::new())
        }
        fn list(&self, _: &Path) -> io::Result<Vec<String>> {
            Ok(Vec::new())
        }
        fn rename(&self, _: &Path, _: &Path) -> io::Result<()> {
            Ok(())
        }
        fn remove(&self, _: &Path) -> io::Result<()> {
            Ok(())
        }
        fn create_dir(&self, _: &Path) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn every_rank_of_the_node_gives_way_while_a_checkpoint_is_written_and_read_back() {
        let place = tempfile::NamedTempFile::new().expect("temporary file");
        let of_node = || Urgent::of_node(Some(place.path().to_owned()));
        let inner = Arc::new(Watched { neighbour: of_node(), gave_way: AtomicU32::new(0) });
        let struck = Struck {
            inner: Arc::clone(&inner) as Arc<dyn Storage>,
            injector: Arc::new(Injector::none()),
            standing: Arc::default(),
            urgent: Arc::new(of_node()),
        };
        struck.write_whole(Path::new("model.safetensors"), &[b"weights"]).expect("written");
        struck.read(Path::new("model.safetensors")).expect("read");
        assert_eq!(inner.gave_way.load(Ordering::Relaxed), 2);
        assert!(!inner.neighbour.is_at_work() && !struck.urgent.is_at_work());
    }
}
