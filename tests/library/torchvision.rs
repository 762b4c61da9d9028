//! Random crops against torchvision's own `RandomResizedCrop`: the same draws give the same boxes,
//! and the same files give the same levels, within one. Where no python with torchvision is named
//! this is skipped.

use std::path::{Path, PathBuf};
use std::process::Command;

use kintsugi::config::{BadImage, Crop, CropKind, Data, DataFormat};
use kintsugi::data::jpeg::{Form, encode};
use kintsugi::data::loader::{Loader, LoaderOptions};
use kintsugi::data::sampler::Order;
use kintsugi::data::{Batch, Normalization, Split, open, photograph};

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

/// Pictures of all the forms that are decoded in parts.
fn write(folder: &Path) {
    for number in 0..PICTURES {
        let size = [300 + 7 * number as u32, 500 - 9 * number as u32];
        let chroma = [[2, 2], [2, 1], [1, 1]][number as usize % 3];
        let restart = if number.is_multiple_of(4) { 9 } else { 0 };
        let form = Form { quality: 75 + number as u32 % 20, chroma, restart };
        let class = folder.join(if number.is_multiple_of(2) { "even" } else { "odd" });
        std::fs::create_dir_all(&class).unwrap();
        let file = encode(&photograph::draw(number, size[0], size[1]), form);
        std::fs::write(class.join(format!("{number:03}.jpg")), file).unwrap();
    }
}

/// The first epoch as one micro-batch, and the files of its samples in their order.
fn ours(folder: &Path, image_size: u32) -> (Batch, Vec<(u64, String)>) {
    let data = Data {
        format: DataFormat::ImageFolder,
        train: Some(folder.to_owned()),
        crop: Some(CropKind::Random),
        ..Data::default()
    };
    let set = open::open(&data, Split::Train, SEED).unwrap();
    let order = Order::new(PICTURES, 1, SEED, PICTURES).unwrap();
    let names = order.owner_samples(0, 0).into_iter().map(|id| (id, set.source.name(id))).collect();
    let options = LoaderOptions {
        threads: 0,
        prefetch: 0,
        image_size,
        channels: 3,
        augment: true,
        crop: data.crop(),
        seed: SEED,
        bad_image: BadImage::Fatal,
    };
    assert!(matches!(options.crop, Crop::Random { .. }));
    (Loader::new(set, order, options).take(0, 0).unwrap(), names)
}

/// The levels (0..255) that became this normalised plane.
fn levels(plane: &[f32], channel: usize) -> Vec<u8> {
    let Normalization { mean, deviation } = Normalization::IMAGENET;
    let level = |value: f32| (value * deviation[channel] + mean[channel]) * 255.0;
    plane.iter().map(|&value| level(value).round() as u8).collect()
}

#[test]
fn random_crops_are_torchvisions() {
    let Some(python) = python() else { return };
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("pictures");
    write(&folder);
    for image_size in IMAGE_SIZES {
        let (batch, names) = ours(&folder, image_size);
        let list: String = names.iter().map(|(id, name)| format!("{id} {name}\n")).collect();
        std::fs::write(place.path().join("list"), list).unwrap();
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/library/torchvision.py");
        let output = Command::new(&python)
            .arg(script)
            .arg(place.path())
            .args([SEED.to_string(), image_size.to_string()])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        for pipeline in ["pillow", "tensor"] {
            let theirs = std::fs::read(place.path().join(pipeline)).unwrap();
            assert_eq!(theirs.len(), batch.images.len());
            let side = (image_size * image_size) as usize;
            let planes = batch.images.chunks_exact(side).zip(theirs.chunks_exact(side));
            let (mut worst, mut off) = (0, 0);
            for (index, (plane, theirs)) in planes.enumerate() {
                let ours = levels(plane, index % 3);
                let differences = ours.iter().zip(theirs).map(|(&a, &b)| a.abs_diff(b));
                let most = differences.clone().max().unwrap();
                assert!(most <= 1, "{pipeline}, {image_size}: {most} in {:?}", names[index / 3]);
                worst = worst.max(most);
                off += differences.filter(|&difference| difference > 0).count();
            }
            let share = off as f64 / theirs.len() as f64;
            println!("{pipeline}, {image_size}: {worst} at most, {:.2} % differ", 100.0 * share);
        }
    }
}
