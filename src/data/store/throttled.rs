//! A store behind an emulated device: a rate that all readers of the machine share, and a latency
//! that each file pays. It makes contention where there is none, for measurements.

use std::ffi::OsStr;
use std::hash::Hasher;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use xxhash_rust::xxh3::Xxh3;

use crate::config::{Data, Throttle};

use super::bucket::Bucket;
use super::{Entry, FetchError, Kind, Location, Sight, Store};

/// The store that is held up, and its rate.
pub struct Throttled {
    inner: Arc<dyn Store>,
    bucket: Bucket,
    latency: Duration,
}

/// Which device: the one that this set lies on, with these limits.
fn name(data: &Data, throttle: &Throttle) -> u64 {
    let mut hasher = Xxh3::new();
    let set = data.train.as_deref().unwrap_or(Path::new(""));
    let set = std::path::absolute(set).unwrap_or_else(|_| set.to_owned());
    hasher.update(set.as_os_str().as_encoded_bytes());
    hasher.write_u64(throttle.rate.0);
    hasher.write_u128(throttle.latency.0.as_nanos());
    hasher.finish()
}

/// The device itself, for whoever else takes from it.
///
/// # Errors
/// There is no shared memory for it.
pub fn bucket(data: &Data, throttle: &Throttle) -> io::Result<Bucket> {
    Bucket::open(name(data, throttle), throttle.rate.0)
}

impl Throttled {
    /// Puts `inner` behind the device that `data.throttle` describes.
    ///
    /// # Errors
    /// There is no shared memory for it.
    pub fn new(inner: Arc<dyn Store>, data: &Data, throttle: &Throttle) -> io::Result<Self> {
        let bucket = bucket(data, throttle)?;
        Ok(Self { inner, bucket, latency: throttle.latency.0 })
    }
}

impl Store for Throttled {
    fn fetch(&self, location: &Location<'_>, into: &mut Vec<u8>) -> Result<(), FetchError> {
        std::thread::sleep(self.latency);
        self.inner.fetch(location, into)?;
        self.bucket.take(into.len() as u64);
        Ok(())
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<Entry>> {
        std::thread::sleep(self.latency);
        self.inner.list(folder)
    }

    fn visit(&self, folder: &Path, tell: &mut dyn FnMut(&OsStr, Kind)) -> io::Result<()> {
        std::thread::sleep(self.latency);
        self.inner.visit(folder, tell)
    }

    fn answers(&self, location: &Location<'_>, into: &mut Vec<u8>) -> bool {
        std::thread::sleep(self.latency);
        self.inner.answers(location, into)
    }

    fn sight(&self, file: &Path) -> Sight {
        std::thread::sleep(self.latency);
        self.inner.sight(file)
    }

    fn look(&self, path: &Path) -> io::Result<Kind> {
        std::thread::sleep(self.latency);
        self.inner.look(path)
    }

    fn changed_ns(&self, path: &Path) -> io::Result<Option<i64>> {
        std::thread::sleep(self.latency);
        self.inner.changed_ns(path)
    }

    fn is_still(&self, path: &Path, listed: (u64, i64)) -> Option<bool> {
        std::thread::sleep(self.latency);
        self.inner.is_still(path, listed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Rate, Span};
    use crate::data::store::memory::MemoryStore;

    #[test]
    fn what_comes_through_it_is_the_same_and_takes_its_time() {
        let mut memory = MemoryStore::default();
        memory.put("set/a", vec![7; 50_000]);
        let latency = Span(Duration::from_millis(2));
        let throttle = Throttle { rate: Rate(1_000_000), latency };
        let mut data = Data { train: Some("/set".into()), ..Data::default() };
        data.synthetic_samples = u64::from(std::process::id());
        let store = Throttled::new(Arc::new(memory), &data, &throttle).expect("opened");
        let (mut bytes, begun) = (Vec::new(), std::time::Instant::now());
        for _ in 0..3 {
            store.fetch(&Location::whole(Path::new("set/a"), 0), &mut bytes).expect("there");
            assert_eq!(bytes, vec![7; 50_000]);
        }
        // 150,000 bytes and three latencies, less what idleness makes up for. Only ever longer.
        assert!(begun.elapsed() >= Duration::from_millis(144), "{:?}", begun.elapsed());
    }
}
