//! Validation samples in their own order, without augmentation. Small pictures are kept in
//! memory after their first use, so that an evaluation costs no decoding from the second on.

use std::sync::OnceLock;

use crate::data::sampler::mix;
use crate::data::set::{DataSet, Length};
use crate::data::view::prepare::{Bench, View};
use crate::data::{Batch, DataError};

use super::LoaderOptions;
use super::decoder::{Became, Decoder, Thumbnail};

/// One cached sample.
type Kept = OnceLock<Thumbnail>;

/// The validation set, ready for the engine.
pub struct Evaluation {
    decoder: Decoder,
    /// The first samples of the set; the rest is decoded every time.
    kept: Vec<Kept>,
}

impl Evaluation {
    /// Keeps the first samples that fit into `cache_bytes`, 0 = none.
    pub fn new(set: DataSet, options: &LoaderOptions, cache_bytes: u64) -> Self {
        let source = &set.source;
        let recipe = options.recipe();
        let area = u64::from(options.image_size) * u64::from(options.image_size);
        let each = area * u64::from(source.channels()) + size_of::<Kept>() as u64;
        let fit = (cache_bytes / each).min(source.len());
        let kept = (0..fit).map(|_| OnceLock::new()).collect();
        Self { decoder: Decoder::new(set, recipe, options.bad_image), kept }
    }

    /// Samples of the set.
    pub fn len(&self) -> u64 {
        self.decoder.set.source.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Samples `first..first + count`, normalised; `mix` is that of epoch 0. May be called from
    /// several threads.
    pub fn batch(&self, first: u64, count: u64) -> Result<Batch, DataError> {
        if first.checked_add(count).is_none_or(|end| end > self.len()) {
            return Err(DataError::Set(format!(
                "evaluation asked for samples {first}..{first}+{count} of {}",
                self.len()
            )));
        }
        let each = self.decoder.recipe.values();
        let images = vec![0.0; count as usize * each];
        let mut batch = Batch { images, count, ..Batch::default() };
        let mut bench = Bench::default();
        for id in first..first + count {
            batch.mix = batch.mix.wrapping_add(mix(0, id));
            let start = batch.labels.len() * each;
            let values = &mut batch.images[start..start + each];
            let became = match self.kept.get(id as usize) {
                Some(place) => self.fill_kept(&mut bench, place, id, values)?,
                None => self.decoder.fill(&mut bench, id, View::Centre, values)?,
            };
            batch.contents = batch.contents.wrapping_add(became.fetched.contents);
            batch.altered += u64::from(became.fetched.length == Length::Otherwise);
            match became.label {
                Some(label) => batch.labels.push(label),
                None => batch.skipped += 1,
            }
        }
        batch.images.truncate(batch.labels.len() * each);
        Ok(batch)
    }

    fn fill_kept(
        &self,
        bench: &mut Bench,
        place: &Kept,
        id: u64,
        values: &mut [f32],
    ) -> Result<Became, DataError> {
        if place.get().is_none() {
            // Two threads may decode the same sample at once; both get the same bytes.
            let _ = place.set(self.decoder.thumbnail(bench, id)?);
        }
        let Thumbnail { pixels, fetched } = place.get().expect("set above");
        let label = pixels.as_ref().map(|pixels| {
            self.decoder.recipe.fill_from_thumbnail(pixels, values);
            self.decoder.set.source.label(id)
        });
        Ok(Became { label, fetched: *fetched })
    }

    /// Names of bad images found since the last call, each once.
    pub fn skipped(&self) -> Vec<String> {
        self.decoder.skipped()
    }
}
