//! Pictures that belong to no set, as evaluation shows them to a model.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::data::source::Wanted;
use crate::data::source::decode::rgb_part;
use crate::data::view::prepare::{Bench, Recipe, View};

use super::LoaderOptions;

/// Makes of a picture what a model takes.
pub struct Viewer {
    recipe: Recipe,
    bench: Bench,
}

impl Viewer {
    /// Pictures as evaluation looks at them.
    pub fn new(options: &LoaderOptions) -> Self {
        Self { recipe: options.recipe(), bench: Bench::default() }
    }

    /// Appends the normalised `[channels, size, size]` values of a picture, from the bytes of its
    /// file.
    ///
    /// # Errors
    /// What is wrong with it. Nothing was appended then.
    pub fn append(&mut self, bytes: &[u8], into: &mut Vec<f32>) -> Result<(), String> {
        let start = into.len();
        let Self { recipe, bench } = self;
        let look = || {
            let area = |size| recipe.area(View::Centre, size);
            let cut = rgb_part(bytes, Wanted { area: &area, scratch: &mut bench.scratch })?;
            into.resize(start + recipe.values(), 0.0);
            recipe.fill(bench, &cut, View::Centre, &mut into[start..])
        };
        // A panic of a decoder is the picture's fault.
        let seen = catch_unwind(AssertUnwindSafe(look));
        let seen = seen.unwrap_or_else(|_| Err("its decoder panicked".into()));
        if seen.is_err() {
            into.truncate(start);
        }
        seen
    }
}
