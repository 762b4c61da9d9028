//! A part of a set: what is split off for validation, or what is left for training. Which part a
//! sample belongs to follows from its name alone, or from the part of it that names its group:
//! files that come later move none of the others.

use std::io;
use std::path::Path;
use std::sync::Arc;

use regex::bytes::Regex;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::config::{Share, Shown, Validation};
use crate::data::store::{Location, Store};
use crate::data::{Cut, DataError, Image, Split};

use super::listed::ListedFile;
use super::{Source, Wanted};

/// Classes without a sample that are named.
const NAMED_MAX: usize = 8;
/// Samples of a set that is split, at most: 32 bits number them.
const SAMPLES_MAX: u64 = u32::MAX as u64;

/// The chosen samples of another set.
pub struct Subset {
    whole: Arc<dyn Source>,
    /// The whole set's number of each sample.
    ids: Vec<u32>,
    fingerprint: u64,
    remarks: Vec<String>,
}

/// How a set is split.
pub struct Splitting {
    share: Share,
    /// What of a name is the group's.
    group: Option<Regex>,
}

impl Splitting {
    /// The one that the key asks for, if it does.
    pub fn of(validation: &Validation) -> Option<Self> {
        let share = validation.share()?;
        Some(Self { share, group: validation.group().map(|group| group.regex()) })
    }

    /// What a sample of that name goes with; `None`: it is none of any group.
    fn group_of<'n>(&self, name: &'n [u8]) -> Option<&'n [u8]> {
        let found = self.group.as_ref()?.captures(name)?;
        found.get(1).or_else(|| found.get(0)).map(|found| found.as_bytes())
    }

    /// Whether a sample of that name is for validation.
    pub fn is_split_off(&self, name: &[u8]) -> bool {
        let name = self.group_of(name).unwrap_or(name);
        // The upper half of the product is below the share's number as often as the share says.
        (u128::from(xxh3_64(name)) * 1_000_000) >> 64 < u128::from(self.share.millionths())
    }
}

impl Subset {
    /// One split of a set whose samples have names.
    ///
    /// # Errors
    /// It has no sample, or the set is too large or has no names.
    pub fn of(
        whole: Arc<dyn Source>,
        split: Split,
        splitting: &Splitting,
    ) -> Result<Self, DataError> {
        let share = splitting.share;
        let refuse =
            |text: String| DataError::Set(format!("data.validation = \"{share}\": {text}"));
        if whole.len() > SAMPLES_MAX {
            return Err(refuse(format!("sets of up to {SAMPLES_MAX} samples are split")));
        }
        let (mut ids, mut name, mut hash) = (Vec::new(), Vec::new(), Xxh3::new());
        let mut alone = 0;
        for id in 0..whole.len() {
            name.clear();
            if !whole.key(id, &mut name) {
                return Err(refuse("the samples of this format have no names to split by".into()));
            }
            alone += u64::from(splitting.group_of(&name).is_none());
            if splitting.is_split_off(&name) == (split == Split::Validation) {
                ids.push(id as u32);
                hash.update(&(id as u32).to_le_bytes());
            }
        }
        ids.shrink_to_fit();
        let group = splitting.group.as_ref();
        if let Some(group) = group.filter(|_| alone == whole.len()) {
            return Err(refuse(format!(
                "group = {:?} matches no sample's name, such as {}",
                group.as_str(),
                String::from_utf8_lossy(&name).shown()
            )));
        }
        if ids.is_empty() {
            let (count, split) = (whole.len(), split.name());
            return Err(refuse(format!("of {count} samples none is left for {split}")));
        }
        hash.update(&whole.fingerprint().to_le_bytes());
        let mut part = Self { whole, ids, fingerprint: hash.digest(), remarks: Vec::new() };
        // What the whole set says is said once, with the training set.
        part.remarks = match split {
            Split::Train => part.whole.remarks().to_vec(),
            Split::Validation => Vec::new(),
        };
        let lone = group.filter(|_| alone > 0 && split == Split::Train).map(|group| {
            let (all, group) = (part.whole.len(), group.as_str());
            format!(
                "data.validation: group = {group:?} matches the names of all but {alone} of {all} \
                 samples: each of these is a group of its own"
            )
        });
        part.remarks.extend(lone);
        let empty = part.classes_without(share, split);
        part.remarks.extend(empty);
        Ok(part)
    }

    fn classes_without(&self, share: Share, split: Split) -> Option<String> {
        let mut samples = vec![0u64; self.classes().len()];
        (0..self.len()).for_each(|id| samples[self.label(id) as usize] += 1);
        let empty: Vec<String> = (self.classes().iter().zip(samples))
            .filter(|(_, samples)| *samples == 0)
            .map(|(name, _)| name.shown())
            .collect();
        let more = if empty.len() > NAMED_MAX { ", ..." } else { "" };
        let named = empty[..empty.len().min(NAMED_MAX)].join(", ");
        let (count, of, split) = (empty.len(), self.classes().len(), split.name());
        (count > 0).then(|| {
            format!(
                "data.validation = \"{share}\": {count} of {of} classes have no {split} sample: \
                 {named}{more}"
            )
        })
    }

    fn id(&self, id: u64) -> u64 {
        self.ids[id as usize].into()
    }
}

impl Source for Subset {
    fn len(&self) -> u64 {
        self.ids.len() as u64
    }

    fn classes(&self) -> &[String] {
        self.whole.classes()
    }

    fn channels(&self) -> u32 {
        self.whole.channels()
    }

    fn label(&self, id: u64) -> u32 {
        self.whole.label(self.id(id))
    }

    fn location(&self, id: u64) -> Option<Location<'_>> {
        self.whole.location(self.id(id))
    }

    fn decode(&self, id: u64, bytes: &[u8]) -> Result<Image, String> {
        self.whole.decode(self.id(id), bytes)
    }

    fn decode_part(&self, id: u64, bytes: &[u8], wanted: Wanted<'_>) -> Result<Cut, String> {
        self.whole.decode_part(self.id(id), bytes, wanted)
    }

    fn held(&self, id: u64) -> u64 {
        self.whole.held(self.id(id))
    }

    fn is_rewritten(&self, id: u64, store: &dyn Store) -> bool {
        self.whole.is_rewritten(self.id(id), store)
    }

    fn listed(&self) -> Vec<(&Path, &ListedFile)> {
        self.whole.listed()
    }

    /// The other split's samples lie in them, too.
    fn files(&self) -> Vec<&Path> {
        Vec::new()
    }

    fn name(&self, id: u64) -> String {
        self.whole.name(self.id(id))
    }

    fn key(&self, id: u64, into: &mut Vec<u8>) -> bool {
        self.whole.key(self.id(id), into)
    }

    fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    fn remarks(&self) -> &[String] {
        &self.remarks
    }

    fn news(&self) -> Option<&str> {
        self.whole.news()
    }

    fn keep(&self, folder: &Path) -> io::Result<()> {
        self.whole.keep(folder)
    }
}

#[cfg(test)]
mod tests;
