//! Tar shards with WebDataset's names: `000123.jpg` and `000123.cls`, which holds the label as a
//! number. Samples come in the order of the shards, in each in its own order. Each shard has an
//! index, so that a sample is read by its offset and a shard is listed only once.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3;

use crate::config::Shown;
use crate::data::index::Learned;
use crate::data::store::{FetchError, Location, Stamp, Store};
use crate::data::{Cut, DataError, Image};

use super::listed::ListedFile;
use super::{Source, Wanted, decode};

mod group;
mod index;
mod left;
mod name;
pub mod pattern;
mod sample;
mod shard;

use left::Left;
use name::Name;
use sample::Sample;

/// Classes without a sample that are named.
const EMPTY_NAMED_MAX: usize = 8;
/// So many classes may be named by any set.
const CLASSES_FREE: usize = 1 << 16;
/// With more, one in so many of them has a sample at least: a slip in one label would else make a
/// model of a million classes.
const CLASSES_A_FILLED_ONE_MAX: usize = 100;

/// One shard's samples.
struct Shard {
    path: PathBuf,
    /// The id of its first sample.
    first: u64,
    listed: ListedFile,
}

/// One sample in its shard.
struct Entry {
    offset: u64,
    length: u64,
    label: u32,
    /// Where its name ends in `names`; it begins where the one before it ends.
    name_end: usize,
}

/// A set of shards.
pub struct Tar {
    shards: Vec<Shard>,
    entries: Vec<Entry>,
    /// All names, one behind the other.
    names: Vec<u8>,
    classes: Vec<String>,
    fingerprint: u64,
    remarks: Vec<String>,
}

/// What is to be said of shards that are listed more than once.
fn twice(key: &str, shards: &[&Path]) -> Option<String> {
    let mut known = HashSet::new();
    let again = shards.iter().find(|shard| !known.insert(**shard))?.shown();
    Some(format!("{key}: {again} is named more than once, and its samples count as often"))
}

impl Tar {
    /// Lists the shards that `path` means; nothing is decoded. `key` is the configuration key that
    /// named it, `classes` how many there are, where that is known. An index that cannot lie
    /// beside its shard goes to `cache`.
    pub fn open(
        store: &dyn Store,
        path: &Path,
        key: &str,
        classes: Option<usize>,
        cache: Option<&Path>,
    ) -> Result<Self, DataError> {
        let refuse = |text: String| DataError::Set(format!("{key}: {text}"));
        let paths = pattern::shards(store, path).map_err(|error| error.about(key))?;
        let mut set = Self {
            shards: Vec::with_capacity(paths.len()),
            entries: Vec::new(),
            names: Vec::new(),
            classes: Vec::new(),
            fingerprint: 0,
            remarks: Vec::new(),
        };
        let (mut left, mut stale, mut unsaved) = (Left::default(), Vec::new(), None);
        for path in paths {
            let wrong = |error: FetchError| error.about(path.shown()).about(key);
            let listed = store.stamp(&path).map_err(FetchError::from).map_err(wrong)?;
            let listing = index::listing(store, &path, listed, cache);
            let (learned, was_stale) = listing.map_err(wrong)?;
            if was_stale {
                stale.push(path.clone());
            }
            if let Learned::Unsaved(_, reason) = &learned {
                unsaved.get_or_insert_with(|| format!("{}: {reason}", path.shown()));
            }
            let listing = learned.value();
            check_labels(&listing.samples, classes).map_err(|text| wrong(text.into()))?;
            left.add(listing.left, &path.file_name().unwrap_or_default().shown());
            set.take(path, listed, listing.samples);
        }
        set.remarks = left.remarks(key);
        if set.entries.is_empty() {
            let left =
                set.remarks.iter().map(|remark| remark.replacen(&format!("{key}: "), "; ", 1));
            let left: String = left.collect();
            return Err(refuse(format!("{} holds no sample{left}", path.shown())));
        }
        set.remarks.extend(remarks(key, &stale, unsaved.as_deref()));
        set.remarks.extend(twice(key, &set.files()));
        set.count_classes(key, classes).map_err(refuse)?;
        set.fingerprint = set.hash();
        Ok(set)
    }

    fn take(&mut self, path: PathBuf, listed: Stamp, samples: Vec<Sample>) {
        let (first, listed) = (self.entries.len() as u64, ListedFile::of(listed));
        self.shards.push(Shard { path, first, listed });
        for sample in samples {
            self.names.extend(sample.name.bytes());
            let Sample { offset, length, label, .. } = sample;
            self.entries.push(Entry { offset, length, label, name_end: self.names.len() });
        }
    }

    /// Classes are numbers: those up to the largest that has a sample, or as many as are known.
    fn count_classes(&mut self, key: &str, known: Option<usize>) -> Result<(), String> {
        let highest = (0..self.entries.len()).rev().max_by_key(|id| self.entries[*id].label);
        let label = highest.map_or(0, |id| self.entries[id].label as usize);
        let count = known.unwrap_or(label + 1);
        let mut samples = vec![0u64; count];
        self.entries.iter().for_each(|entry| samples[entry.label as usize] += 1);
        let empty: Vec<usize> = (0..count).filter(|class| samples[*class] == 0).collect();
        let member = highest.map(|id| self.name(id as u64)).unwrap_or_default();
        let filled = count - empty.len();
        if known.is_none() && count > CLASSES_FREE && count > CLASSES_A_FILLED_ONE_MAX * filled {
            return Err(format!(
                "{member} has label {label}: of {count} classes {filled} would have a sample; \
                 write labels from 0 on, without gaps"
            ));
        }
        if !empty.is_empty() {
            let first: Vec<String> =
                empty.iter().take(EMPTY_NAMED_MAX).map(ToString::to_string).collect();
            let more = if empty.len() > EMPTY_NAMED_MAX { ", ..." } else { "" };
            let (number, named) = (empty.len(), first.join(", "));
            let most = match known {
                None => format!("; the highest label, {label}, is that of {member}"),
                Some(_) => String::new(),
            };
            self.remarks.push(format!(
                "{key}: {number} of {count} classes have no sample: {named}{more}{most}"
            ));
        }
        self.classes = (0..count).map(|class| class.to_string()).collect();
        Ok(())
    }

    fn hash(&self) -> u64 {
        let mut hash = Xxh3::new();
        for id in 0..self.entries.len() {
            let Entry { offset, length, label, .. } = &self.entries[id];
            hash.update(self.member(id));
            hash.update(&offset.to_le_bytes());
            hash.update(&length.to_le_bytes());
            hash.update(&label.to_le_bytes());
        }
        hash.digest()
    }

    fn shard(&self, id: u64) -> &Shard {
        &self.shards[self.shards.partition_point(|shard| shard.first <= id) - 1]
    }

    fn member(&self, id: usize) -> &[u8] {
        let begin = id.checked_sub(1).map_or(0, |before| self.entries[before].name_end);
        &self.names[begin..self.entries[id].name_end]
    }
}

/// A label that the training set does not have is no class of the model.
fn check_labels(samples: &[Sample], classes: Option<usize>) -> Result<(), String> {
    let Some(count) = classes else { return Ok(()) };
    match samples.iter().find(|sample| sample.label as usize >= count) {
        None => Ok(()),
        Some(sample) => Err(format!(
            "{} has label {}, and data.train has {count} classes (0 to {})",
            sample.name.shown(),
            sample.label,
            count.saturating_sub(1)
        )),
    }
}

fn remarks(key: &str, stale: &[PathBuf], unsaved: Option<&str>) -> Vec<String> {
    let stale = stale.first().map(|first| {
        let (count, first) = (stale.len(), first.shown());
        format!("{key}: the index of {count} shards was old or damaged and is made anew: {first}")
    });
    let unsaved = unsaved.map(|reason| {
        format!("{key}: shards are listed anew at every start, their index is not saved: {reason}")
    });
    stale.into_iter().chain(unsaved).collect()
}

impl Source for Tar {
    fn listed(&self) -> Vec<(&Path, &ListedFile)> {
        self.shards.iter().map(|shard| (&*shard.path, &shard.listed)).collect()
    }

    fn len(&self) -> u64 {
        self.entries.len() as u64
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn channels(&self) -> u32 {
        3
    }

    fn label(&self, id: u64) -> u32 {
        self.entries[id as usize].label
    }

    fn location(&self, id: u64) -> Option<Location<'_>> {
        let Entry { offset, length, .. } = self.entries[id as usize];
        Some(Location::range(&*self.shard(id).path, offset, length))
    }

    fn is_rewritten(&self, id: u64, store: &dyn Store) -> bool {
        let shard = self.shard(id);
        shard.listed.is_rewritten(store, &shard.path)
    }

    fn decode(&self, _: u64, bytes: &[u8]) -> Result<Image, String> {
        decode::rgb(bytes)
    }

    fn decode_part(&self, _: u64, bytes: &[u8], wanted: Wanted<'_>) -> Result<Cut, String> {
        decode::rgb_part(bytes, wanted)
    }

    fn name(&self, id: u64) -> String {
        format!("{}/{}", self.shard(id).path.shown(), Name::from(self.member(id as usize)).shown())
    }

    fn key(&self, id: u64, into: &mut Vec<u8>) -> bool {
        let shard = self.shard(id).path.file_name().unwrap_or_default();
        into.extend(shard.as_encoded_bytes());
        into.push(b'/');
        into.extend(self.member(id as usize));
        true
    }

    fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    fn remarks(&self) -> &[String] {
        &self.remarks
    }
}

#[cfg(test)]
pub(in crate::data::source) mod tests;
