//! Whether a share that is split off for validation parts samples that are nearly the same picture,
//! as frames of one film are: an error that is measured on such is too low.

use crate::config::{Data, Validation};
use crate::data::set::DataSet;
use crate::data::set::open::open;
use crate::data::source::subset::Splitting;
use crate::data::{DataError, Image, Split};
use crate::observe::console::print_line;

/// Pairs that are looked at, spread over the set.
const PAIRS_MAX: usize = 200;
/// A picture's side as it is compared, in boxes whose levels are averaged.
const SIDE: usize = 8;
/// Neighbours are nearly the same where they differ by this part of what other pictures do.
const NEAR: f32 = 0.25;
/// Part of the looked-at pairs from which on it is said.
const TOLD_FROM: f32 = 0.1;

/// What to say of the split; `None`: nothing.
///
/// # Errors
/// The set cannot be used.
pub fn parted(data: &Data, seed: u64) -> Result<Option<String>, DataError> {
    let splitting = data.validation.as_ref().and_then(Splitting::of);
    let Some((splitting, validation)) = splitting.zip(data.validation.as_ref()) else {
        return Ok(None);
    };
    let whole = open(&Data { validation: None, ..data.clone() }, Split::Train, seed)?;
    let pairs = pairs(&whole, &splitting);
    let mut looked = Vec::new();
    for at in 0..pairs.len().min(PAIRS_MAX) {
        let first = pairs[at * pairs.len() / pairs.len().min(PAIRS_MAX)];
        if let Some(both) = look(&whole, first).zip(look(&whole, first + 1)) {
            looked.push(both);
        }
    }
    let near = near(&looked);
    let told = near > 0 && near as f32 >= TOLD_FROM * looked.len() as f32;
    Ok(told.then(|| sentence(validation, near, looked.len())))
}

/// Says it.
///
/// # Errors
/// As `parted`.
pub fn print(data: &Data, seed: u64) -> Result<(), DataError> {
    if let Some(told) = parted(data, seed)? {
        print_line!("  warning: {told}");
    }
    Ok(())
}

/// Samples whose next one, of the same class, is in the other split.
fn pairs(whole: &DataSet, splitting: &Splitting) -> Vec<u64> {
    let source = &whole.source;
    let (mut name, mut before, mut pairs) = (Vec::new(), None, Vec::new());
    for id in 0..source.len() {
        name.clear();
        source.key(id, &mut name);
        let now = (source.label(id), splitting.is_split_off(&name));
        if before.is_some_and(|(label, side)| label == now.0 && side != now.1) {
            pairs.push(id - 1);
        }
        before = Some(now);
    }
    pairs
}

/// A picture's look; `None`: it cannot be read.
fn look(whole: &DataSet, id: u64) -> Option<[f32; SIDE * SIDE]> {
    whole.read(id, &mut Vec::new()).ok().map(|image| shrunk(&image))
}

/// Mean levels of its boxes.
fn shrunk(image: &Image) -> [f32; SIDE * SIDE] {
    let (width, height) = (image.width as usize, image.height as usize);
    let channels = image.channels as usize;
    let (mut sums, mut counts) = ([0.0; SIDE * SIDE], [0.0f32; SIDE * SIDE]);
    for (at, pixel) in image.pixels.chunks_exact(channels.max(1)).enumerate() {
        let (x, y) = (at % width.max(1), at / width.max(1));
        let place = y * SIDE / height.max(1) * SIDE + x * SIDE / width.max(1);
        sums[place] += pixel.iter().map(|level| f32::from(*level)).sum::<f32>();
        counts[place] += channels as f32;
    }
    std::array::from_fn(|place| sums[place] / counts[place].max(1.0))
}

/// How many of the pairs are nearly the same, beside how much other pictures differ.
fn near(pairs: &[([f32; SIDE * SIDE], [f32; SIDE * SIDE])]) -> usize {
    let apart = |a: &[f32; SIDE * SIDE], b: &[f32; SIDE * SIDE]| {
        a.iter().zip(b).map(|(a, b)| (a - b).abs()).sum::<f32>()
    };
    let other = |at: usize| &pairs[(at + pairs.len() / 2) % pairs.len()].0;
    let mut usual: Vec<f32> =
        pairs.iter().enumerate().map(|(at, (first, _))| apart(first, other(at))).collect();
    usual.sort_unstable_by(f32::total_cmp);
    let usual = usual.get(usual.len() / 2).copied().unwrap_or_default();
    pairs.iter().filter(|(first, second)| apart(first, second) < NEAR * usual).count()
}

fn sentence(validation: &Validation, near: usize, looked: usize) -> String {
    let share = validation.share().map(|share| share.to_string()).unwrap_or_default();
    format!(
        "of {looked} pairs of neighbours that data.validation parts {near} are nearly the same \
         picture, as frames of one film are: the validation error will be too low. Keep together \
         what belongs together: data.validation = {{ share = \"{share}\", group = \"REGEX\" }}, \
         whose match in a sample's name (class/file) says which film it is of"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A film's frame: a shape that no other film has, and a little noise.
    fn frame(film: u64, number: u64) -> Vec<u8> {
        let level = |at: u64, key: u64| crate::config::seed::key(&[at / 16, key]) % 200;
        let pixel = |at| (level(at, film) + level(at, 1000 + film * 50 + number) / 20) as u8;
        [b"P5 16 16 255\n".to_vec(), (0..256).map(pixel).collect()].concat()
    }

    fn films(folder: &std::path::Path) -> Data {
        for film in 0..12 {
            let class = folder.join(if film % 2 == 0 { "cat" } else { "dog" });
            std::fs::create_dir_all(&class).unwrap();
            for number in 0..20 {
                let name = class.join(format!("film{film:02}_{number:03}.pgm"));
                std::fs::write(name, frame(film, number)).unwrap();
            }
        }
        Data { train: Some(folder.into()), ..Data::default() }
    }

    fn said(data: &Data, validation: &str) -> Option<String> {
        let of = format!("validation = {validation}");
        let validation = toml::from_str::<Data>(&of).unwrap().validation;
        parted(&Data { validation, ..data.clone() }, 1).unwrap()
    }

    #[test]
    fn a_split_within_films_is_told_and_one_between_films_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let data = films(folder.path());
        let told = said(&data, "\"20%\"").expect("frames are on both sides");
        assert!(told.contains("are nearly the same picture"), "{told}");
        assert!(told.contains("{ share = \"20%\", group = \"REGEX\" }"), "{told}");
        assert_eq!(said(&data, "{ share = \"20%\", group = \"film[0-9]+\" }"), None);
        assert_eq!(said(&data, "\"elsewhere\""), None, "a set of its own");
    }
}
