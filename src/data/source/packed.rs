//! Sets whose samples have one size and lie one behind the other in a few files: CIFAR-10 and
//! CIFAR-100 (binary version) and MNIST (IDX). Pixels stay in the files, where the page cache
//! is shared by all ranks of a node; labels are read once.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3;

use crate::data::{DataError, Image, Normalization, Source};

use super::Split;

/// How one format lies in its files.
#[derive(Debug, Clone, Copy)]
struct Format {
    height: u32,
    width: u32,
    channels: u32,
    /// Bytes before the first sample's record.
    header: u64,
    /// Bytes of one record.
    record: u64,
    /// Bytes of a record before its pixels.
    pixels: u64,
    normalization: Normalization,
}

struct Part {
    path: PathBuf,
    file: File,
    /// Id of its first sample.
    first: u64,
}

/// Samples of one size in a few files.
pub struct Packed {
    format: Format,
    parts: Vec<Part>,
    labels: Vec<u8>,
    classes: Vec<String>,
    fingerprint: u64,
}

fn wrong(path: &Path, text: impl std::fmt::Display) -> DataError {
    DataError::Set(format!("{}: {text}", path.display()))
}

/// The *.bin files of this split in `path`: by the names that the sets are published under, else
/// all of them; or `path` itself where it is a file.
fn cifar_files(path: &Path, split: Split, key: &str) -> Result<Vec<PathBuf>, DataError> {
    if path.is_file() {
        return Ok(vec![path.to_owned()]);
    }
    let entries =
        fs::read_dir(path).map_err(|error| wrong(path, format_args!("{error} ({key})")))?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "bin"))
        .collect();
    files.sort_unstable();
    let of = |split: Split| {
        let named = |path: &&PathBuf| {
            let stem = path.file_stem().unwrap_or_default().to_string_lossy();
            match split {
                Split::Train => stem.starts_with("data_batch") || stem == "train",
                Split::Validation => stem.starts_with("test_batch") || stem == "test",
            }
        };
        files.iter().filter(named).cloned().collect::<Vec<_>>()
    };
    let named = [of(Split::Train), of(Split::Validation)];
    let found = match named {
        [train, test] if train.is_empty() && test.is_empty() => files,
        [train, _] if split == Split::Train => train,
        [_, test] => test,
    };
    if found.is_empty() {
        return Err(wrong(
            path,
            format_args!("no *.bin files of the {} set ({key})", split.name()),
        ));
    }
    Ok(found)
}

/// The class names that lie beside the files, else numbers.
fn cifar_names(files: &[PathBuf], list: &str, count: usize) -> Vec<String> {
    let beside = files[0].parent().map(|folder| folder.join(list));
    let names: Vec<String> = beside
        .and_then(|path| fs::read_to_string(path).ok())
        .map(|text| text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect())
        .unwrap_or_default();
    if names.len() == count { names } else { (0..count).map(|i| i.to_string()).collect() }
}

/// Which of the two CIFAR sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cifar {
    /// Records of label, 3 x 32 x 32 levels.
    Ten,
    /// Records of coarse label, fine label, 3 x 32 x 32 levels; the fine one is used.
    Hundred,
}

impl Packed {
    /// CIFAR's binary version: `path` is the folder or one file.
    pub fn cifar(path: &Path, split: Split, kind: Cifar, key: &str) -> Result<Self, DataError> {
        let (bytes, classes, list, normalization) = match kind {
            Cifar::Ten => (1, 10, "batches.meta.txt", Normalization::CIFAR10),
            Cifar::Hundred => (2, 100, "fine_label_names.txt", Normalization::CIFAR100),
        };
        let format = Format {
            height: 32,
            width: 32,
            channels: 3,
            header: 0,
            record: bytes + 3072,
            pixels: bytes,
            normalization,
        };
        let files = cifar_files(path, split, key)?;
        let (mut parts, mut labels) = (Vec::new(), Vec::new());
        for path in &files {
            let body = fs::read(path).map_err(|error| wrong(path, error))?;
            if body.is_empty() || !(body.len() as u64).is_multiple_of(format.record) {
                return Err(wrong(
                    path,
                    format_args!(
                        "{} bytes are no whole number of records of {} bytes: not the binary \
                         version of CIFAR-{classes}, or cut short",
                        body.len(),
                        format.record
                    ),
                ));
            }
            let file = File::open(path).map_err(|error| wrong(path, error))?;
            parts.push(Part { path: path.clone(), file, first: labels.len() as u64 });
            labels.extend(body.chunks(format.record as usize).map(|r| r[bytes as usize - 1]));
        }
        let classes = cifar_names(&files, list, classes);
        Self::checked(format, parts, labels, classes)
    }

    /// MNIST's IDX pair: `path` is the folder that holds both files, or the images file, whose
    /// labels lie beside it.
    pub fn mnist(path: &Path, split: Split, key: &str) -> Result<Self, DataError> {
        let images = mnist_images(path, split, key)?;
        let labels_path = mnist_labels(&images)?;
        let file = File::open(&images).map_err(|error| wrong(&images, error))?;
        let mut header = [0u8; 16];
        file.read_exact_at(&mut header, 0).map_err(|error| wrong(&images, error))?;
        let word = |i: usize| u32::from_be_bytes([0, 1, 2, 3].map(|byte| header[4 * i + byte]));
        let (count, height, width) = (u64::from(word(1)), word(2), word(3));
        if word(0) != 0x803 || !(1..=4096).contains(&height) || !(1..=4096).contains(&width) {
            return Err(wrong(&images, "not an IDX file of grey images (unpack it if it is .gz)"));
        }
        let pixels = u64::from(height) * u64::from(width);
        let size = file.metadata().map_err(|error| wrong(&images, error))?.len();
        if size != 16 + count * pixels || count == 0 {
            return Err(wrong(
                &images,
                format_args!("{size} bytes for {count} images: cut short?"),
            ));
        }
        let body = fs::read(&labels_path).map_err(|error| wrong(&labels_path, error))?;
        let labels = match body.split_at_checked(8) {
            Some((head, labels)) if head[..4] == [0, 0, 8, 1] => labels.to_vec(),
            _ => return Err(wrong(&labels_path, "not an IDX file of labels")),
        };
        if labels.len() as u64 != count {
            let text = format!("{} labels for the {count} images beside it", labels.len());
            return Err(wrong(&labels_path, text));
        }
        let format = Format {
            height,
            width,
            channels: 1,
            header: 16,
            record: pixels,
            pixels: 0,
            normalization: Normalization::MNIST,
        };
        let classes = usize::from(*labels.iter().max().unwrap_or(&0)).max(9) + 1;
        let names = (0..classes).map(|i| i.to_string()).collect();
        Self::checked(format, vec![Part { path: images, file, first: 0 }], labels, names)
    }

    fn checked(
        format: Format,
        parts: Vec<Part>,
        labels: Vec<u8>,
        classes: Vec<String>,
    ) -> Result<Self, DataError> {
        if let Some(id) = labels.iter().position(|&label| usize::from(label) >= classes.len()) {
            return Err(wrong(
                &parts[0].path,
                format_args!("sample {id} has label {} of {}", labels[id], classes.len()),
            ));
        }
        let mut hash = Xxh3::new();
        hash.update(&labels);
        hash.update(&format.record.to_le_bytes());
        let fingerprint = hash.digest();
        Ok(Self { format, parts, labels, classes, fingerprint })
    }

    fn part(&self, id: u64) -> &Part {
        &self.parts[self.parts.partition_point(|part| part.first <= id) - 1]
    }
}

/// The images file: `path` itself, or the one published under this split's name in it.
fn mnist_images(path: &Path, split: Split, key: &str) -> Result<PathBuf, DataError> {
    if path.is_file() {
        return Ok(path.to_owned());
    }
    let stem = match split {
        Split::Train => "train",
        Split::Validation => "t10k",
    };
    let names = [format!("{stem}-images-idx3-ubyte"), format!("{stem}-images.idx3-ubyte")];
    let found = names.iter().map(|name| path.join(name)).find(|path| path.is_file());
    found.ok_or_else(|| {
        let text = format!("no {} there ({key}); files must not be compressed", names[0]);
        wrong(path, text)
    })
}

/// The labels file that belongs to an images file.
fn mnist_labels(images: &Path) -> Result<PathBuf, DataError> {
    let name = images.file_name().unwrap_or_default().to_string_lossy();
    let labels = name.replace("images", "labels").replace("idx3", "idx1");
    if *name == labels {
        return Err(wrong(
            images,
            "the name must hold \"images\", and \"labels\" that of its pair",
        ));
    }
    Ok(images.with_file_name(labels))
}

impl Source for Packed {
    fn len(&self) -> u64 {
        self.labels.len() as u64
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn channels(&self) -> u32 {
        self.format.channels
    }

    fn label(&self, id: u64) -> u32 {
        u32::from(self.labels[id as usize])
    }

    fn read(&self, id: u64) -> Result<Image, DataError> {
        let Format { height, width, channels, header, record, pixels, .. } = self.format;
        let part = self.part(id);
        let mut planes = vec![0u8; (height * width * channels) as usize];
        part.file
            .read_exact_at(&mut planes, header + (id - part.first) * record + pixels)
            .map_err(|error| DataError::Sample {
                name: self.name(id),
                reason: error.to_string(),
            })?;
        // The files hold one plane per channel; an image is interleaved.
        let area = (height * width) as usize;
        let pixels = match channels {
            1 => planes,
            _ => (0..area)
                .flat_map(|i| [planes[i], planes[area + i], planes[2 * area + i]])
                .collect(),
        };
        Ok(Image { height, width, channels, pixels })
    }

    fn name(&self, id: u64) -> String {
        let part = self.part(id);
        format!("{}[{}]", part.path.display(), id - part.first)
    }

    fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    fn normalization(&self) -> Normalization {
        self.format.normalization
    }
}
