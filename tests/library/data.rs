//! The data room from outside: real files through readers, loader and evaluation.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use image::{ExtendedColorType, ImageEncoder};
use kintsugi::config::{BadImage, Data, DataFormat, Look};
use kintsugi::data::loader::evaluation::Evaluation;
use kintsugi::data::loader::{Loader, LoaderOptions, Threads};
use kintsugi::data::painting::synth::{self, SynthOptions};
use kintsugi::data::sampler::Order;
use kintsugi::data::set::DataSet;
use kintsugi::data::set::open::open;
use kintsugi::data::source::Source;
use kintsugi::data::store::Location;
use kintsugi::data::store::memory::MemoryStore;
use kintsugi::data::{Batch, DataError, Image, Normalization, Split};

mod altered;
mod folders;
mod looks;
mod stores;

fn options(threads: usize, prefetch: usize) -> LoaderOptions {
    LoaderOptions {
        threads: Threads::Fixed(threads),
        prefetch,
        steps: None,
        image_size: 16,
        channels: 3,
        augment: true,
        look: Look::default(),
        normalization: Normalization::IMAGENET,
        seed: 5,
        bad_image: BadImage::Skip,
    }
}

fn synthetic(samples: u64) -> DataSet {
    let data = Data {
        format: DataFormat::Synthetic,
        synthetic_samples: samples,
        image_size: 16,
        ..Data::default()
    };
    open(&data, Split::Train, 1).expect("needs no files")
}

fn jpeg(width: u32, height: u32, grey: bool) -> Vec<u8> {
    let (color, channels) = match grey {
        true => (ExtendedColorType::L8, 1),
        false => (ExtendedColorType::Rgb8, 3),
    };
    let pixels: Vec<u8> = (0..width * height * channels).map(|i| (i * 37 % 251) as u8).collect();
    let mut bytes = Vec::new();
    image::codecs::jpeg::JpegEncoder::new(&mut bytes)
        .write_image(&pixels, width, height, color)
        .expect("encodes");
    bytes
}

fn png(color: ExtendedColorType, bytes_per_pixel: u32) -> Vec<u8> {
    let pixels: Vec<u8> = (0..20 * 18 * bytes_per_pixel).map(|i| (i % 255) as u8).collect();
    let mut bytes = Vec::new();
    image::codecs::png::PngEncoder::new(&mut bytes)
        .write_image(&pixels, 20, 18, color)
        .expect("encodes");
    bytes
}

/// Writes files into `root/class/`.
fn fill(root: &Path, class: &str, files: &[(&str, &[u8])]) {
    for (name, body) in files {
        let path = root.join(class).join(name);
        fs::create_dir_all(path.parent().expect("below the root")).expect("created");
        fs::write(path, body).expect("written");
    }
}

fn folder(root: &Path) -> Data {
    Data { train: Some(root.to_owned()), ..Data::default() }
}

fn refusal(data: &Data, split: Split) -> String {
    match open(data, split, 1) {
        Ok(_) => panic!("opened"),
        Err(error) => error.to_string(),
    }
}

fn read(set: &DataSet, id: u64) -> Result<Image, DataError> {
    set.read(id, &mut Vec::new())
}

/// Takes every micro-batch of `steps`, owner by owner.
fn take_all(loader: &Loader, steps: std::ops::Range<u64>, owners: u32) -> Vec<Batch> {
    steps
        .flat_map(|step| (0..owners).map(move |owner| (step, owner)))
        .map(|(step, owner)| loader.take(step, owner).expect("taken"))
        .collect()
}

#[test]
fn batches_do_not_depend_on_threads_prefetch_or_plan() {
    let set = synthetic(250);
    let order = Order::new(250, 3, 9, 64).expect("valid");
    let plain = take_all(&Loader::new(set.clone(), order.clone(), options(0, 0)), 0..8, 3);
    for (threads, prefetch) in [(1, 1), (2, 4), (3, 2), (2, 0), (0, 3)] {
        let loader = Loader::new(set.clone(), order.clone(), options(threads, prefetch));
        loader.plan(0, &[0, 1, 2]);
        assert!(take_all(&loader, 0..8, 3) == plain, "{threads} threads, {prefetch} steps ahead");
    }
    // Plans that change on the way, as repairs do.
    let loader = Loader::new(set, order, options(2, 3));
    loader.plan(0, &[0, 1]);
    for step in 0..8u64 {
        loader.plan(step, if step % 3 == 1 { &[2] } else { &[0, 2] });
        for owner in [2, 0, 1] {
            let expected = &plain[step as usize * 3 + owner as usize];
            assert!(loader.take(step, owner).expect("taken") == *expected, "{step} {owner}");
        }
    }
}

#[test]
fn what_is_taken_balances_with_the_order_in_every_step() {
    let set = synthetic(110);
    let order = Order::new(110, 4, 2, 32).expect("valid");
    let loader = Loader::new(set.clone(), order.clone(), options(2, 2));
    loader.plan(0, &[0, 1, 2, 3]);
    for step in 0..9 {
        let batches = take_all(&loader, step..step + 1, 4);
        let count = batches.iter().map(|batch| batch.count).sum::<u64>();
        let mix = batches.iter().fold(0u64, |sum, batch| sum.wrapping_add(batch.mix));
        assert_eq!((count, mix), order.expected(step), "step {step}");
        for (owner, batch) in (0..).zip(&batches) {
            let ids = order.owner_samples(step, owner);
            let labels: Vec<u32> = ids.iter().map(|&id| set.source.label(id)).collect();
            assert_eq!(batch.labels, labels);
            assert_eq!(batch.images.len(), ids.len() * 3 * 16 * 16);
        }
    }
}

#[test]
fn several_workers_take_at_once() {
    let set = synthetic(300);
    let order = Order::new(300, 4, 2, 100).expect("valid");
    let plain = take_all(&Loader::new(set.clone(), order.clone(), options(0, 0)), 0..6, 4);
    let loader = Loader::new(set, order, options(1, 2));
    loader.plan(0, &[0, 1, 2, 3]);
    std::thread::scope(|scope| {
        for owner in 0..4 {
            let (loader, plain) = (&loader, &plain);
            scope.spawn(move || {
                for step in 0..6 {
                    let batch = loader.take(step, owner).expect("taken");
                    assert!(batch == plain[step as usize * 4 + owner as usize]);
                }
            });
        }
        // Two for the same one: both get it.
        for _ in 0..2 {
            scope.spawn(|| assert!(loader.take(5, 1).expect("taken") == plain[21]));
        }
    });
}

#[test]
fn epochs_are_augmented_differently_and_without_augmentation_alike() {
    let order = Order::new(40, 1, 3, 40).expect("valid");
    for augment in [true, false] {
        let options = LoaderOptions { augment, ..options(1, 1) };
        let loader = Loader::new(synthetic(40), order.clone(), options);
        let find = |epoch: u64, id: u64| {
            let at = order.owner_samples(epoch, 0).iter().position(|&other| other == id);
            let batch = loader.take(epoch, 0).expect("taken");
            let at = at.expect("every epoch has every sample") * 768;
            batch.images[at..at + 768].to_vec()
        };
        let same = (0..40).filter(|&id| find(0, id) == find(1, id)).count();
        assert!(if augment { same < 10 } else { same == 40 }, "{same} with {augment}");
    }
}

#[test]
fn an_image_folder_reads_jpeg_and_png_of_any_kind() {
    let root = tempfile::tempdir().expect("temporary folder");
    fill(root.path(), "b cat", &[("1.JPG", &jpeg(20, 18, false)), ("0.jpeg", &jpeg(20, 18, true))]);
    fill(root.path(), "b cat", &[("below/2.png", &png(ExtendedColorType::Rgba8, 4))]);
    // The first bytes decide: a PNG under a JPEG's name, as one in ImageNet.
    fill(root.path(), "a dog", &[("x.jpg", &png(ExtendedColorType::L16, 2)), ("note.txt", b"no")]);
    let set = open(&folder(root.path()), Split::Train, 1).expect("opens");
    assert_eq!(set.source.classes(), ["a dog", "b cat"]);
    let labels: Vec<u32> = (0..set.source.len()).map(|id| set.source.label(id)).collect();
    assert_eq!(labels, [0, 1, 1, 1]);
    assert!(
        set.source.name(1).ends_with("b cat/0.jpeg") && set.source.name(3).ends_with("below/2.png")
    );
    for id in 0..set.source.len() {
        let image = read(&set, id).expect("decodes");
        assert_eq!((image.width, image.height, image.channels), (20, 18, 3));
        assert_eq!(image.pixels.len(), 20 * 18 * 3);
    }
    let before = set.source.fingerprint();
    fill(root.path(), "a dog", &[("y.jpg", &jpeg(9, 9, false))]);
    let changed = open(&folder(root.path()), Split::Train, 1).expect("opens");
    assert_ne!(before, changed.source.fingerprint());
}

#[test]
fn a_folder_that_cannot_be_used_is_refused_by_name() {
    let root = tempfile::tempdir().expect("temporary folder");
    let (train, validation) = (root.path().join("train"), root.path().join("validation"));
    let data = Data { validation: Some(validation.clone().into()), ..folder(&train) };
    let has = |text: String, parts: &[&str]| {
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    };
    has(refusal(&folder(&train), Split::Train), &["data.train", "/train", "does not exist"]);
    fs::create_dir_all(&train).expect("created");
    has(refusal(&folder(&train), Split::Train), &["data.train", "no class folders"]);
    fs::create_dir_all(train.join("cat")).expect("created");
    has(refusal(&folder(&train), Split::Train), &["train/cat", "no picture"]);
    fill(&train, "cat", &[("0.jpg", &jpeg(9, 9, false))]);
    has(refusal(&data, Split::Train), &["data.validation", "does not exist"]);
    has(refusal(&folder(&train), Split::Validation), &["data.validation is not set", "\"10%\""]);
    fill(&validation, "dog", &[("0.jpg", &jpeg(9, 9, false))]);
    for split in [Split::Train, Split::Validation] {
        has(refusal(&data, split), &["different class folders", "cat", "dog"]);
    }
    has(refusal(&folder(root.path()), Split::Train), &["holds train, validation"]);
    let only = Data { train: None, ..data };
    has(refusal(&only, Split::Train), &["data.train is not"]);
}

/// A folder of 20 images of which four are bad, each in its own way.
fn damaged(root: &Path) -> [&'static str; 4] {
    let whole = jpeg(40, 40, false);
    for i in 0..8 {
        fill(root, "a", &[(&format!("{i}.jpg"), &whole)]);
        fill(root, "b", &[(&format!("{i}.jpg"), &whole)]);
    }
    let cut = &whole[..whole.len() / 2];
    let png = png(ExtendedColorType::Rgb8, 3);
    fill(root, "b", &[("cut.jpg", cut), ("cut.png", &png[..png.len() / 2])]);
    fill(root, "a", &[("empty.jpg", b""), ("text.jpg", b"<html>not found</html>")]);
    ["a/empty.jpg", "a/text.jpg", "b/cut.jpg", "b/cut.png"]
}

#[test]
fn bad_images_are_named_once_skipped_and_counted() {
    let root = tempfile::tempdir().expect("temporary folder");
    let bad = damaged(root.path());
    let set = open(&folder(root.path()), Split::Train, 1).expect("opens");
    let order = Order::new(20, 2, 1, 10).expect("valid");
    let loader = Loader::new(set.clone(), order.clone(), options(2, 2));
    loader.plan(0, &[0, 1]);
    let mut skipped = 0;
    for step in 0..4 {
        let batches = take_all(&loader, step..step + 1, 2);
        let mix = batches.iter().fold(0u64, |sum, batch| sum.wrapping_add(batch.mix));
        let count = batches.iter().map(|batch| batch.count).sum::<u64>();
        assert_eq!((count, mix), order.expected(step), "the audit still balances");
        for batch in &batches {
            assert_eq!(batch.labels.len() as u64 + batch.skipped, batch.count);
            assert_eq!(batch.images.len(), batch.labels.len() * 768);
            skipped += batch.skipped;
        }
    }
    assert_eq!(skipped, 8, "four bad images in each of two epochs");
    let mut names = loader.skipped();
    names.sort_unstable();
    assert_eq!(names.len(), 4);
    assert!(names.iter().zip(bad).all(|(name, bad)| name.ends_with(bad)), "{names:?}");
    assert!(loader.skipped().is_empty(), "each once");

    let evaluation = Evaluation::new(set, &options(0, 0), 1 << 20);
    for _ in 0..2 {
        let batch = evaluation.batch(0, 20).expect("skips");
        assert_eq!((batch.count, batch.skipped, batch.labels.len()), (20, 4, 16));
    }
    assert_eq!(evaluation.skipped().len(), 4);
}

#[test]
fn a_fatal_bad_image_ends_the_take_that_needs_it_and_names_the_file() {
    let root = tempfile::tempdir().expect("temporary folder");
    let bad = damaged(root.path());
    let set = open(&folder(root.path()), Split::Train, 1).expect("opens");
    let order = Order::new(20, 1, 1, 20).expect("valid");
    let fatal = LoaderOptions { bad_image: BadImage::Fatal, ..options(1, 1) };
    let loader = Loader::new(set.clone(), order, fatal.clone());
    loader.plan(0, &[0]);
    let text = loader.take(0, 0).expect_err("fatal").to_string();
    assert!(bad.iter().any(|bad| text.contains(bad)), "{text}");
    let evaluation = Evaluation::new(set, &fatal, 1 << 20);
    let text = evaluation.batch(0, 20).expect_err("fatal").to_string();
    assert!(text.contains("a/empty.jpg") && text.contains("empty"), "{text}");
}

/// A source that is slow, counts its reads, and panics on one sample.
struct Difficult {
    reads: AtomicU64,
    pause: Duration,
    classes: Vec<String>,
}

impl Source for Difficult {
    fn len(&self) -> u64 {
        400
    }
    fn classes(&self) -> &[String] {
        &self.classes
    }
    fn channels(&self) -> u32 {
        1
    }
    fn label(&self, _: u64) -> u32 {
        0
    }
    fn location(&self, _: u64) -> Option<Location<'_>> {
        None
    }
    fn decode(&self, id: u64, _: &[u8]) -> Result<Image, String> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(self.pause);
        assert_ne!(id, 3, "planted");
        Ok(Image { height: 2, width: 2, channels: 1, pixels: vec![id as u8; 4] })
    }
    fn name(&self, id: u64) -> String {
        format!("difficult {id}")
    }
    fn fingerprint(&self) -> u64 {
        0
    }
}

fn difficult(pause: Duration) -> (Arc<Difficult>, DataSet) {
    let classes = vec!["one".into()];
    let source = Arc::new(Difficult { reads: AtomicU64::new(0), pause, classes });
    let set = DataSet { source: source.clone(), store: Arc::new(MemoryStore::default()) };
    (source, set)
}

#[test]
fn a_dropped_loader_ends_its_threads() {
    let (source, set) = difficult(Duration::from_millis(50));
    let order = Order::new(400, 2, 1, 200).expect("valid");
    let loader = Loader::new(set.clone(), order, options(2, 2));
    loader.plan(0, &[0, 1]);
    let until = Instant::now() + Duration::from_secs(20);
    while source.reads.load(Ordering::Relaxed) == 0 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(loader);
    let reads = source.reads.load(Ordering::Relaxed);
    assert!((1..200).contains(&reads), "{reads} reads: the rest was not waited for");
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(source.reads.load(Ordering::Relaxed), reads, "nobody reads on");
}

#[test]
fn prefetch_bounds_what_is_decoded_ahead() {
    let (source, set) = difficult(Duration::ZERO);
    let order = Order::new(400, 4, 1, 40).expect("valid");
    let loader = Loader::new(set.clone(), order, options(2, 3));
    let settled = |reads: u64| {
        let until = Instant::now() + Duration::from_secs(20);
        while source.reads.load(Ordering::Relaxed) < reads && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(source.reads.load(Ordering::Relaxed), reads);
    };
    loader.plan(0, &[1, 2]);
    settled(3 * 20);
    loader.take(0, 1).expect("taken");
    settled(3 * 20 + 10);
    loader.plan(1, &[1, 2]);
    settled(3 * 20 + 20);
}

#[test]
fn a_panicking_decoder_is_a_bad_image() {
    let (_, set) = difficult(Duration::ZERO);
    let order = Order::new(400, 1, 1, 400).expect("valid");
    let loader = Loader::new(set, order, options(2, 1));
    loader.plan(0, &[0]);
    let batch = loader.take(0, 0).expect("skips");
    assert_eq!((batch.count, batch.skipped), (400, 1));
    assert_eq!(loader.skipped(), ["difficult 3"]);
}

fn small(folder: PathBuf) -> SynthOptions {
    SynthOptions {
        folder,
        classes: 10,
        train_samples: 60,
        validation_samples: 20,
        image_size: 32,
        seed: 4,
    }
}

#[test]
fn a_synthesised_folder_is_a_whole_image_folder() {
    let root = tempfile::tempdir().expect("temporary folder");
    let options = small(root.path().join("set"));
    fs::create_dir_all(root.path().join("set.partial/train/left behind")).expect("created");
    let calls = AtomicU64::new(0);
    let written = synth::write(&options, &|done, total| {
        assert!(done <= total && total == 80);
        calls.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!(written.expect("written").images, 80);
    assert_eq!(calls.into_inner(), 80);
    assert!(!root.path().join("set.partial").exists());
    let text = synth::write(&options, &|_, _| {}).expect_err("exists").to_string();
    assert!(text.contains("exists"), "{text}");

    let data = Data {
        validation: Some(options.folder.join("validation").into()),
        ..folder(&options.folder.join("train"))
    };
    for (split, samples) in [(Split::Train, 60), (Split::Validation, 20)] {
        let set = open(&data, split, 1).expect("opens");
        assert_eq!((set.source.len(), set.source.classes().len()), (samples, 10));
        for id in 0..samples {
            let image = read(&set, id).expect("decodes");
            assert!((40..=56).contains(&image.width) && (40..=56).contains(&image.height));
        }
    }
    let again = SynthOptions { folder: root.path().join("again"), ..options.clone() };
    synth::write(&again, &|_, _| {}).expect("written");
    let file = "train/star/000003.jpg";
    let read = |folder: &Path| fs::read(folder.join(file)).expect("there");
    assert!(read(&options.folder) == read(&again.folder), "the same seed, the same bytes");
}

#[test]
fn a_set_that_cannot_be_drawn_is_refused() {
    let root = tempfile::tempdir().expect("temporary folder");
    let good = small(root.path().join("set"));
    for options in [
        SynthOptions { classes: 1, ..good.clone() },
        SynthOptions { validation_samples: 9, ..good.clone() },
        SynthOptions { image_size: 4, ..good.clone() },
    ] {
        assert!(synth::write(&options, &|_, _| {}).is_err(), "{options:?}");
    }
    assert_eq!(fs::read_dir(root.path()).expect("there").count(), 0, "nothing is left");
}

/// The body of each process of the next test.
#[test]
fn process_that_opens_a_synthesised_set() {
    if std::env::var_os("KINTSUGI_DATA_DIR").is_some() {
        let data = Data { synthetic_samples: 240, ..Data::default() };
        for split in [Split::Train, Split::Validation] {
            let set = open(&data, split, 1).expect("made or found");
            let samples = if split == Split::Train { 240 } else { 40 };
            assert_eq!((set.source.len(), set.source.classes().len()), (samples, 10));
            assert!((0..samples).all(|id| read(&set, id).is_ok()), "whole from the start");
        }
    }
}

#[test]
fn of_processes_that_start_at_once_exactly_one_writes_the_set() {
    let root = tempfile::tempdir().expect("temporary folder");
    let start = || {
        Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "data::process_that_opens_a_synthesised_set", "--nocapture"])
            .env("KINTSUGI_DATA_DIR", root.path())
            .stderr(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("started")
    };
    let processes: Vec<_> = (0..4).map(|_| start()).collect();
    let mut lines = 0;
    for process in processes {
        let output = process.wait_with_output().expect("ended");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
        lines += text.matches("made 280 JPEG images").count();
    }
    assert_eq!(lines, 1, "one line in all");
    let left: Vec<_> = fs::read_dir(root.path()).expect("there").flatten().collect();
    assert_eq!(left.len(), 2, "the set and the lock: {left:?}");
}
