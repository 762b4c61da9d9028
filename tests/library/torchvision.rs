//! The loader's views against torchvision's own `RandomResizedCrop`, `Resize` with `CenterCrop`,
//! and `ColorJitter`: the same draws give the same boxes and changes, and the same files give the
//! same levels, within one. Where no python with torchvision is named this is skipped.

use std::path::{Path, PathBuf};
use std::process::Command;

use kintsugi::config::{BadImage, ColorJitter, CropKind, Data, DataFormat};
use kintsugi::data::jpeg::{Form, encode};
use kintsugi::data::loader::evaluation::Evaluation;
use kintsugi::data::loader::{Loader, LoaderOptions, Threads};
use kintsugi::data::painting::photograph;
use kintsugi::data::sampler::Order;
use kintsugi::data::set::open;
use kintsugi::data::{Batch, Normalization, Split};

const SEED: u64 = 11;
const PICTURES: u64 = 40;
/// Width and height of what a model sees, in pixels: one that shrinks nearly all crops, and one
/// that enlarges some.
const IMAGE_SIZES: [u32; 2] = [64, 224];

fn python() -> Option<PathBuf> {
    let python = std::env::var_os("KINTSUGI_TORCHVISION_PYTHON").map(PathBuf::from);
    if python.is_none() {
        println!("skipped: agreement with torchvision (set KINTSUGI_TORCHVISION_PYTHON)");
    }
    python
}

/// The file of a number, and its ending.
type Draw = dyn Fn(u64) -> (Vec<u8>, &'static str);

/// Pictures of all the forms that are decoded in parts.
fn jpeg(number: u64) -> (Vec<u8>, &'static str) {
    let size = [300 + 7 * number as u32, 500 - 9 * number as u32];
    (encode(&photograph::draw(number, size[0], size[1]), form(number)), "jpg")
}

fn form(number: u64) -> Form {
    let chroma = [[2, 2], [2, 1], [1, 1]][number as usize % 3];
    let restart = if number.is_multiple_of(4) { 9 } else { 0 };
    Form { quality: 75 + number as u32 % 20, chroma, restart }
}

/// Pictures whose levels are those of the file.
fn ppm(number: u64, side: u32) -> (Vec<u8>, &'static str) {
    let mut file = format!("P6 {side} {side} 255\n").into_bytes();
    file.extend_from_slice(&photograph::draw(number, side, side).pixels);
    (file, "ppm")
}

fn write(folder: &Path, draw: &Draw) {
    for number in 0..PICTURES {
        let class = folder.join(if number.is_multiple_of(2) { "even" } else { "odd" });
        std::fs::create_dir_all(&class).unwrap();
        let (file, ending) = draw(number);
        std::fs::write(class.join(format!("{number:03}.{ending}")), file).unwrap();
    }
}

fn options(data: &Data) -> LoaderOptions {
    LoaderOptions {
        threads: Threads::Fixed(0),
        prefetch: 0,
        steps: None,
        image_size: data.image_size,
        channels: 3,
        augment: true,
        look: data.look(),
        normalization: Normalization::of(data),
        seed: SEED,
        bad_image: BadImage::Fatal,
    }
}

/// The first epoch as one micro-batch, and the files of its samples in their order.
fn ours(data: &Data) -> (Batch, Vec<(u64, String)>) {
    let set = open::open(data, Split::Train, SEED).unwrap();
    let order = Order::new(PICTURES, 1, SEED, PICTURES).unwrap();
    let names = order.owner_samples(0, 0).into_iter().map(|id| (id, set.source.name(id))).collect();
    (Loader::new(set, order, options(data)).take(0, 0).unwrap(), names)
}

/// The levels (0..255) that became this normalised plane.
fn levels(plane: &[f32], channel: usize) -> Vec<u8> {
    let Normalization { mean, deviation } = Normalization::IMAGENET;
    let level = |value: f32| (value * deviation[channel] + mean[channel]) * 255.0;
    plane.iter().map(|&value| level(value).round() as u8).collect()
}

/// Largest and mean difference between ours and torchvision's levels, the share of those that
/// differ, and of those that differ by more than one.
#[derive(Debug)]
struct Apart {
    most: u8,
    mean: f64,
    share: f64,
    beyond_one: f64,
}

/// What torchvision makes of the same files: through Pillow, and with tensors.
fn compare(python: &Path, place: &Path, data: &Data, look: &str) -> [Apart; 2] {
    let (batch, names) = ours(data);
    let list: String = names.iter().map(|(id, name)| format!("{id} {name}\n")).collect();
    std::fs::write(place.join("list"), list).unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/library/torchvision.py");
    let output = Command::new(python)
        .arg(script)
        .arg(place)
        .args([SEED.to_string(), data.image_size.to_string()])
        .args(look.split(' '))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    ["pillow", "tensor"].map(|pipeline| {
        let theirs = std::fs::read(place.join(pipeline)).unwrap();
        assert_eq!(theirs.len(), batch.images.len());
        let side = (data.image_size * data.image_size) as usize;
        let planes = batch.images.chunks_exact(side).zip(theirs.chunks_exact(side));
        let differences = planes.enumerate().flat_map(|(index, (plane, theirs))| {
            let ours = levels(plane, index % 3);
            theirs.iter().zip(ours).map(|(&a, b)| a.abs_diff(b)).collect::<Vec<_>>()
        });
        let counts = differences.fold([0usize; 256], |mut counts, difference| {
            counts[usize::from(difference)] += 1;
            counts
        });
        let most = counts.iter().rposition(|&count| count > 0).unwrap() as u8;
        let share = |from: usize| counts[from..].iter().sum::<usize>() as f64 / theirs.len() as f64;
        let mean = (1..256).map(share).sum();
        let apart = Apart { most, mean, share: share(1), beyond_one: share(2) };
        println!("{look}, {pipeline}, {}: {apart:?}", data.image_size);
        apart
    })
}

fn data(folder: &Path, image_size: u32, crop: CropKind) -> Data {
    Data {
        format: DataFormat::ImageFolder,
        train: Some(folder.to_owned()),
        crop: Some(crop),
        image_size,
        ..Data::default()
    }
}

#[test]
fn random_crops_are_torchvisions() {
    let Some(python) = python() else { return };
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("pictures");
    write(&folder, &jpeg);
    for image_size in IMAGE_SIZES {
        let data = data(&folder, image_size, CropKind::Random);
        for apart in compare(&python, place.path(), &data, "random") {
            assert!(apart.most <= 1 && apart.share < 0.3, "{apart:?}");
        }
    }
}

#[test]
fn pictures_that_are_decoded_smaller_are_pillows_drafts() {
    let Some(python) = python() else { return };
    for (image_size, times) in [(101, 2), (75, 4), (33, 8)] {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("pictures");
        let side = image_size * times;
        write(&folder, &move |number| {
            let form = Form { quality: 60 + number as u32, ..form(number) };
            (encode(&photograph::draw(number, side, side), form), "jpg")
        });
        let scaled_decoding = Some(true);
        let data = Data { scaled_decoding, ..data(&folder, image_size, CropKind::Center) };
        for apart in compare(&python, place.path(), &data, "drafted") {
            assert_eq!(apart.most, 0, "{apart:?}");
        }
        let whole = Data { scaled_decoding: None, ..data.clone() };
        assert!(ours(&whole).0 != ours(&data).0, "it is another way");
    }
}

#[test]
fn random_crops_of_smaller_pictures_are_torchvisions_but_for_a_few_levels() {
    let Some(python) = python() else { return };
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("pictures");
    write(&folder, &jpeg);
    for image_size in [32, 64] {
        let scaled_decoding = Some(true);
        let data = Data { scaled_decoding, ..data(&folder, image_size, CropKind::Random) };
        for apart in compare(&python, place.path(), &data, "random") {
            assert!(apart.mean < 2.5 && apart.most < 40, "{apart:?}");
        }
    }
}

#[test]
fn resized_middles_are_torchvisions_and_those_of_evaluation() {
    let Some(python) = python() else { return };
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("pictures");
    write(&folder, &jpeg);
    for (image_size, resize) in [(64, 64), (64, 73), (224, 256)] {
        let data = Data { resize: Some(resize), ..data(&folder, image_size, CropKind::Center) };
        for apart in compare(&python, place.path(), &data, &format!("resized {resize}")) {
            // Two roundings of weights of different precision may add up.
            assert!(apart.most <= 2 && apart.beyond_one < 1e-6, "{apart:?}");
        }
        // Kept as bytes or not, an evaluation sees what training sees of those that are not turned.
        let plain = Data { flip: Some(0.0), ..data };
        let (trained, names) = ours(&plain);
        let of = |kept| {
            let set = open::open(&plain, Split::Train, SEED).unwrap();
            let evaluation = Evaluation::new(set, &options(&plain), kept);
            evaluation.batch(0, PICTURES).unwrap().images
        };
        let (kept, decoded) = (of(1 << 30), of(0));
        assert!(kept == decoded);
        let each = trained.images.len() / PICTURES as usize;
        for (place, (id, _)) in names.iter().enumerate() {
            let id = *id as usize;
            let seen = &decoded[id * each..(id + 1) * each];
            assert!(trained.images[place * each..(place + 1) * each] == *seen);
        }
    }
}

#[test]
fn changed_colours_are_pillows() {
    let Some(python) = python() else { return };
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("pictures");
    write(&folder, &|number| ppm(number, 64));
    for (ranges, of_tensors) in [
        ([0.4, 0.4, 0.4, 0.1], None),
        ([0.0, 0.0, 0.0, 0.5], None),
        ([0.4, 0.0, 0.0, 0.0], Some(1)),
        ([0.0, 0.4, 0.0, 0.0], Some(1)),
        ([0.0, 3.0, 0.0, 0.0], None),
        ([0.0, 0.0, 0.4, 0.0], Some(1)),
    ] {
        let [brightness, contrast, saturation, hue] = ranges;
        let jitter = ColorJitter { brightness, contrast, saturation, hue };
        let data = Data { color_jitter: Some(jitter), ..data(&folder, 64, CropKind::Center) };
        let look = format!("jittered {brightness} {contrast} {saturation} {hue}");
        let [pillow, tensor] = compare(&python, place.path(), &data, &look);
        assert_eq!(pillow.most, 0, "{look}: {pillow:?}");
        assert!(of_tensors.is_none_or(|most| tensor.most <= most), "{look}: {tensor:?}");
        let plain = Data { color_jitter: None, ..data };
        assert!(ours(&plain).0 != ours(&Data { color_jitter: Some(jitter), ..plain.clone() }).0);
    }
}
