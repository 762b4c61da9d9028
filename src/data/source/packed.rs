//! Sets whose samples have one size and lie one behind the other in a few files: CIFAR-10 and
//! CIFAR-100 (binary version) and MNIST (IDX). Pixels stay in the files, where the page cache
//! is shared by all ranks of a node; labels are read once.

use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3;

use crate::data::store::{Kind, Location, Store};
use crate::data::{DataError, Image, Normalization, Split};

use super::Source;

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

struct BatchFile {
    path: PathBuf,
    /// Id of its first sample.
    first: u64,
}

/// Samples of one size in a few files.
pub struct Packed {
    format: Format,
    parts: Vec<BatchFile>,
    labels: Vec<u8>,
    classes: Vec<String>,
    fingerprint: u64,
}

fn wrong(path: &Path, text: impl std::fmt::Display) -> DataError {
    DataError::Set(format!("{}: {text}", path.display()))
}

fn is_file(store: &dyn Store, path: &Path) -> bool {
    matches!(store.look(path), Ok(Kind::File { .. }))
}

/// A whole index file.
fn index(store: &dyn Store, path: &Path) -> Result<Vec<u8>, DataError> {
    let mut bytes = Vec::new();
    let fetched = store.fetch(&Location::whole(path, 0), &mut bytes);
    fetched.map_err(|error| wrong(path, error))?;
    Ok(bytes)
}

/// The first `length` bytes of a file of samples.
fn start(store: &dyn Store, path: &Path, length: u64) -> Result<Vec<u8>, DataError> {
    let mut bytes = Vec::new();
    let fetched = store.fetch(&Location::range(path, 0, length), &mut bytes);
    fetched.map_err(|error| wrong(path, error))?;
    Ok(bytes)
}

/// A file of samples, which lie in it by ranges: every byte.
fn all(store: &dyn Store, path: &Path) -> Result<Vec<u8>, DataError> {
    match store.look(path) {
        Ok(Kind::File { bytes }) => start(store, path, bytes),
        // What is wrong with it, reading it says.
        _ => index(store, path),
    }
}

/// The *.bin files of this split in `path`: by the names that the sets are published under, else
/// all of them; or `path` itself where it is a file.
fn cifar_files(store: &dyn Store, path: &Path, split: Split) -> Result<Vec<PathBuf>, DataError> {
    if is_file(store, path) {
        return Ok(vec![path.to_owned()]);
    }
    let key = split.key();
    let entries = store.list(path).map_err(|error| wrong(path, format_args!("{error} ({key})")))?;
    let mut files: Vec<PathBuf> = entries
        .iter()
        .map(|entry| path.join(&entry.name))
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
fn cifar_names(store: &dyn Store, files: &[PathBuf], list: &str, count: usize) -> Vec<String> {
    let beside = files[0].parent().map(|folder| folder.join(list));
    let names: Vec<String> = beside
        .and_then(|path| index(store, &path).ok())
        .and_then(|bytes| String::from_utf8(bytes).ok())
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
    pub fn cifar(
        store: &dyn Store,
        path: &Path,
        split: Split,
        kind: Cifar,
    ) -> Result<Self, DataError> {
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
        let files = cifar_files(store, path, split)?;
        let (mut parts, mut labels) = (Vec::new(), Vec::new());
        for path in &files {
            let body = all(store, path)?;
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
            parts.push(BatchFile { path: path.clone(), first: labels.len() as u64 });
            labels.extend(body.chunks(format.record as usize).map(|r| r[bytes as usize - 1]));
        }
        let classes = cifar_names(store, &files, list, classes);
        Self::checked(format, parts, labels, classes)
    }

    /// MNIST's IDX pair: `path` is the folder that holds both files, or the images file, whose
    /// labels lie beside it.
    pub fn mnist(store: &dyn Store, path: &Path, split: Split) -> Result<Self, DataError> {
        let images = mnist_images(store, path, split)?;
        let labels_path = mnist_labels(&images)?;
        let header = start(store, &images, 16)?;
        let word = |i: usize| u32::from_be_bytes([0, 1, 2, 3].map(|byte| header[4 * i + byte]));
        let (count, height, width) = (u64::from(word(1)), word(2), word(3));
        if word(0) != 0x803 || !(1..=4096).contains(&height) || !(1..=4096).contains(&width) {
            return Err(wrong(&images, "not an IDX file of grey images (unpack it if it is .gz)"));
        }
        let pixels = u64::from(height) * u64::from(width);
        let size = match store.look(&images).map_err(|error| wrong(&images, error))? {
            Kind::File { bytes } => bytes,
            _ => 0,
        };
        if size != 16 + count * pixels || count == 0 {
            return Err(wrong(
                &images,
                format_args!("{size} bytes for {count} images: cut short?"),
            ));
        }
        let body = index(store, &labels_path)?;
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
        Self::checked(format, vec![BatchFile { path: images, first: 0 }], labels, names)
    }

    fn checked(
        format: Format,
        parts: Vec<BatchFile>,
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

    fn part(&self, id: u64) -> &BatchFile {
        &self.parts[self.parts.partition_point(|part| part.first <= id) - 1]
    }
}

/// The images file: `path` itself, or the one published under this split's name in it.
fn mnist_images(store: &dyn Store, path: &Path, split: Split) -> Result<PathBuf, DataError> {
    if is_file(store, path) {
        return Ok(path.to_owned());
    }
    let stem = match split {
        Split::Train => "train",
        Split::Validation => "t10k",
    };
    let names = [format!("{stem}-images-idx3-ubyte"), format!("{stem}-images.idx3-ubyte")];
    let found = names.iter().map(|name| path.join(name)).find(|path| is_file(store, path));
    found.ok_or_else(|| {
        let key = split.key();
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

    fn location(&self, id: u64) -> Option<Location<'_>> {
        let Format { header, record, pixels, .. } = self.format;
        let part = self.part(id);
        let offset = header + (id - part.first) * record + pixels;
        Some(Location::range(&*part.path, offset, record - pixels))
    }

    fn decode(&self, _: u64, planes: &[u8]) -> Result<Image, String> {
        let Format { height, width, channels, .. } = self.format;
        // The files hold one plane per channel; an image is interleaved.
        let area = (height * width) as usize;
        let pixels = match channels {
            1 => planes.to_vec(),
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

#[cfg(test)]
mod tests {
    use crate::data::store::memory::MemoryStore;

    use super::*;

    /// The picture of a sample, as its bytes lie in the store.
    fn read(packed: &Packed, store: &MemoryStore, id: u64) -> Image {
        let mut bytes = Vec::new();
        let location = packed.location(id).expect("it lies somewhere");
        store.fetch(&location, &mut bytes).expect("there");
        packed.decode(id, &bytes).expect("decodes")
    }

    fn refusal(result: Result<Packed, DataError>) -> String {
        match result {
            Ok(_) => panic!("opened"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn cifar_files_are_read() {
        let (root, mut store) = (Path::new("set"), MemoryStore::default());
        let record = |prefix: &[u8], level: u8| {
            let planes = (0..3072u32).map(move |i| level + (i / 1024) as u8);
            prefix.iter().copied().chain(planes).collect::<Vec<u8>>()
        };
        store.put("set/data_batch_1.bin", [record(&[3], 10), record(&[9], 20)].concat());
        store.put("set/data_batch_2.bin", record(&[1], 30));
        store.put("set/test_batch.bin", record(&[7], 40));
        let train = Packed::cifar(&store, root, Split::Train, Cifar::Ten).expect("opens");
        assert_eq!((train.len(), train.classes().len()), (3, 10));
        assert_eq!([0, 1, 2].map(|id| train.label(id)), [3, 9, 1]);
        let image = read(&train, &store, 2);
        assert_eq!((image.height, image.width, &image.pixels[..3]), (32, 32, &[30, 31, 32][..]));
        let test = Packed::cifar(&store, root, Split::Validation, Cifar::Ten).expect("opens");
        assert_eq!((test.len(), test.label(0)), (1, 7));

        let fine = Path::new("hundred");
        store.put(fine.join("train.bin"), record(&[5, 99], 1));
        let train = Packed::cifar(&store, fine, Split::Train, Cifar::Hundred).expect("opens");
        assert_eq!((train.classes().len(), train.label(0)), (100, 99));
        store.put(fine.join("train.bin"), record(&[5, 100], 1));
        assert!(
            refusal(Packed::cifar(&store, fine, Split::Train, Cifar::Hundred))
                .contains("label 100 of 100")
        );
        store.put(fine.join("train.bin"), [0; 3000]);
        assert!(
            refusal(Packed::cifar(&store, fine, Split::Train, Cifar::Hundred))
                .contains("cut short")
        );
    }

    #[test]
    fn mnist_files_are_read() {
        let (root, mut store) = (Path::new("set"), MemoryStore::default());
        let idx = |magic: u32, sizes: &[u32], body: &[u8]| {
            let words = std::iter::once(&magic).chain(sizes).flat_map(|word| word.to_be_bytes());
            words.chain(body.iter().copied()).collect::<Vec<u8>>()
        };
        store.put(
            "set/t10k-images-idx3-ubyte",
            idx(0x803, &[2, 2, 3], &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]),
        );
        store.put("set/t10k-labels-idx1-ubyte", idx(0x801, &[2], &[4, 8]));
        let test = Packed::mnist(&store, root, Split::Validation).expect("opens");
        assert_eq!((test.len(), test.channels(), test.label(1)), (2, 1, 8));
        let image = read(&test, &store, 1);
        assert_eq!((image.height, image.width, image.pixels), (2, 3, vec![7, 8, 9, 10, 11, 12]));
        assert!(
            refusal(Packed::mnist(&store, root, Split::Train)).contains("train-images-idx3-ubyte")
        );
        store.put("set/t10k-labels-idx1-ubyte", idx(0x801, &[1], &[4]));
        assert!(
            refusal(Packed::mnist(&store, root, Split::Validation))
                .contains("1 labels for the 2 images")
        );
    }
}
