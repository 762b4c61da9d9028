//! Reads one sample whatever happens to it: a file that cannot be decoded, or a decoder that
//! panics on it, is a bad image, which is named once and then skipped or fatal as configured.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard};

use crate::config::BadImage;
use crate::data::set::{DataSet, Fetched, Length};
use crate::data::source::Wanted;
use crate::data::view::prepare::{Bench, Recipe, View};
use crate::data::{Cut, DataError};

/// Bad images that are named; later ones are counted only.
const NAMED_MAX: usize = 1024;

/// A data set, what its samples go through, and what is done with the bad ones.
pub(super) struct Decoder {
    pub(super) set: DataSet,
    pub(super) recipe: Recipe,
    bad_image: BadImage,
    bad: Mutex<Bad>,
}

#[derive(Default)]
struct Bad {
    seen: HashSet<u64>,
    /// Names not yet handed to `skipped`.
    names: Vec<String>,
    /// Of samples whose files were written since the set was listed.
    rewritten: HashSet<u64>,
}

/// What became of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Became {
    /// `None`: it is bad and skipped.
    pub(super) label: Option<u32>,
    /// Its bytes, whether or not they can be decoded; where it is lost none, of another length.
    pub(super) fetched: Fetched,
}

/// A sample that is kept decoded.
pub(super) struct Thumbnail {
    /// As the recipe resizes it. `None`: it is bad and skipped.
    pub(super) pixels: Option<Box<[u8]>>,
    /// As of [`Became`].
    pub(super) fetched: Fetched,
}

/// Of a sample whose bytes could not be had, as when it was listed.
const NOTHING: Fetched = Fetched { contents: 0, length: Length::AsListed };

/// A lock whose holder panicked still guards plain data that is whole.
pub(super) fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poison| poison.into_inner())
}

impl Decoder {
    pub(super) fn new(set: DataSet, recipe: Recipe, bad_image: BadImage) -> Self {
        Self { set, recipe, bad_image, bad: Mutex::default() }
    }

    /// Writes one sample's values; nothing where it is bad and skipped.
    pub(super) fn fill(
        &self,
        bench: &mut Bench,
        id: u64,
        view: View,
        values: &mut [f32],
    ) -> Result<Became, DataError> {
        let mut fetched = NOTHING;
        let done = self.guarded(id, || {
            let cut = self.read_part(bench, id, view, &mut fetched)?;
            let filled = self.recipe.fill(bench, &cut, view, values);
            bench.scratch.reuse(cut.image.pixels);
            filled.map_err(|reason| self.sample_error(id, reason))
        });
        let filled = self.judged(id, done, fetched)?;
        Ok(Became { label: filled.map(|()| self.set.source.label(id)), fetched })
    }

    /// What was made of a sample; `None`: it is bad and skipped. Whatever ends the run, or makes it
    /// wait, is returned.
    fn judged<T>(
        &self,
        id: u64,
        done: Result<T, DataError>,
        fetched: Fetched,
    ) -> Result<Option<T>, DataError> {
        match done {
            Ok(done) => {
                if fetched.length == Length::Otherwise {
                    self.name_rewritten(id);
                }
                Ok(Some(done))
            }
            Err(error) => self.judge(id, error).map(|()| None),
        }
    }

    /// Once, and of so many.
    fn name_rewritten(&self, id: u64) {
        let mut bad = hold(&self.bad);
        if bad.rewritten.len() < NAMED_MAX && bad.rewritten.insert(id) {
            let name = self.set.source.name(id);
            tracing::warn!(
                "{name} has another length than when the set was listed, or lies in a file that \
                 was written or touched since"
            );
        }
    }

    /// The sample as evaluation keeps it.
    pub(super) fn thumbnail(&self, bench: &mut Bench, id: u64) -> Result<Thumbnail, DataError> {
        let mut fetched = NOTHING;
        let done = self.guarded(id, || {
            let cut = self.read_part(bench, id, View::Centre, &mut fetched)?;
            let pixels = self.recipe.thumbnail(bench, &cut);
            bench.scratch.reuse(cut.image.pixels);
            pixels.map_err(|reason| self.sample_error(id, reason))
        });
        let pixels = self.judged(id, done, fetched)?;
        Ok(Thumbnail { pixels, fetched })
    }

    /// What a view shows of a sample, or more. `fetched` says what its bytes were, also of those
    /// that cannot be decoded.
    fn read_part(
        &self,
        bench: &mut Bench,
        id: u64,
        view: View,
        fetched: &mut Fetched,
    ) -> Result<Cut, DataError> {
        *fetched = self.set.fetch(id, &mut bench.bytes).inspect_err(|error| {
            if matches!(error, DataError::Lost { .. }) {
                fetched.length = Length::Otherwise;
            }
        })?;
        let area = |size| self.recipe.area(view, size);
        let wanted = Wanted { area: &area, scratch: &mut bench.scratch };
        let cut = self.set.cut(id, &bench.bytes, wanted);
        bench.trim();
        cut
    }

    fn sample_error(&self, id: u64, reason: String) -> DataError {
        DataError::Sample { name: self.set.source.name(id), reason }
    }

    /// A panic of a decoder is the image's fault, not the run's.
    fn guarded<T>(
        &self,
        id: u64,
        read: impl FnOnce() -> Result<T, DataError>,
    ) -> Result<T, DataError> {
        catch_unwind(AssertUnwindSafe(read))
            .unwrap_or_else(|_| Err(self.sample_error(id, "its decoder panicked".into())))
    }

    /// Skips or not.
    fn judge(&self, id: u64, error: DataError) -> Result<(), DataError> {
        let ends = matches!(error, DataError::Set(_) | DataError::Store(_));
        if ends || self.bad_image == BadImage::Fatal {
            return Err(error);
        }
        let mut bad = hold(&self.bad);
        if bad.seen.len() < NAMED_MAX && bad.seen.insert(id) {
            bad.names.push(self.set.source.name(id));
            let last = if bad.seen.len() == NAMED_MAX { " (no more are named)" } else { "" };
            tracing::warn!("skipped a bad image: {error}{last}");
        }
        Ok(())
    }

    /// Names of bad images found since the last call, each once.
    pub(super) fn skipped(&self) -> Vec<String> {
        std::mem::take(&mut hold(&self.bad).names)
    }
}
