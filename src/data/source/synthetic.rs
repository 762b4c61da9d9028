//! The procedural pictures of `data synth`, drawn when they are read: no files, no decoding.

use crate::config::seed;
use crate::data::painting::{picture, shape};
use crate::data::store::Location;
use crate::data::{DataError, Image, Split};

use super::Source;

/// Pictures are drawn at most this large and enlarged by the loader: drawing must stay cheap
/// where a run asks for large images to load the arithmetic, not the decoder.
const SIDE_MAX: u32 = 48;

/// Pictures that exist only when they are read.
pub struct Synthetic {
    samples: u64,
    split: Split,
    seed: u64,
    side: u32,
    classes: Vec<String>,
}

impl Synthetic {
    /// Sample `id` has class `id mod classes`.
    pub fn new(
        samples: u64,
        classes: u32,
        image_size: u32,
        split: Split,
        seed: u64,
    ) -> Result<Self, DataError> {
        if classes < 2 || samples < u64::from(classes) {
            return Err(DataError::Set(format!(
                "data.synthetic_classes = {classes} and data.synthetic_samples = {samples}: \
                 write 2 or more classes, and samples for each of them"
            )));
        }
        let classes = (0..classes).map(shape::class_name).collect();
        Ok(Self { samples, split, seed, side: image_size.clamp(8, SIDE_MAX), classes })
    }
}

impl Source for Synthetic {
    fn len(&self) -> u64 {
        self.samples
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn channels(&self) -> u32 {
        3
    }

    fn label(&self, id: u64) -> u32 {
        (id % self.classes.len() as u64) as u32
    }

    fn location(&self, _: u64) -> Option<Location<'_>> {
        None
    }

    fn decode(&self, id: u64, _: &[u8]) -> Result<Image, String> {
        let key = [self.seed, self.split.number(), id];
        Ok(picture::draw(self.label(id), key, self.side, self.side))
    }

    fn name(&self, id: u64) -> String {
        format!("synthetic {} sample {id}", self.split.name())
    }

    fn fingerprint(&self) -> u64 {
        let classes = self.classes.len() as u64;
        seed::key(&[self.seed, self.split.number(), self.samples, classes, u64::from(self.side)])
    }
}
