//! MNIST and the sets that are stored like it (IDX): a file of images and one of labels, plain or
//! compressed with gzip, in one folder or in torchvision's layout.

use std::io::Read;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;

use crate::config::Shown;
use crate::data::store::Store;
use crate::data::{DataError, Split};

use super::packed::{
    Format, Packed, PackedFile, all, first_file, index, is_file, length, stamp, start, wrong,
};

/// Bytes before the images, and before the labels.
const IMAGES_HEADER: u64 = 16;
const LABELS_HEADER: u64 = 8;
/// Largest height and width.
const SIDE_MAX: u32 = 4096;
/// Most bytes that a compressed file may hold.
const UNPACKED_BYTES_MAX: u64 = 1 << 30;
/// Where the files lie below the folder that is given: there, or where torchvision puts them.
const FOLDERS: [&str; 5] = ["", "MNIST/raw", "raw", "FashionMNIST/raw", "KMNIST/raw"];

/// `path` is the folder that holds both files, or the images file, whose labels lie beside it.
pub fn open(store: &dyn Store, path: &Path, split: Split) -> Result<Packed, DataError> {
    let images = images(store, path, split)?;
    let beside = labels_of(store, &images)?;
    let listed = stamp(store, &images)?;
    let header = header(store, &images)?;
    let word = |i: usize| u32::from_be_bytes([0, 1, 2, 3].map(|byte| header[4 * i + byte]));
    let (count, height, width) = (u64::from(word(1)), word(2), word(3));
    if word(0) != 0x803 || !(1..=SIDE_MAX).contains(&height) || !(1..=SIDE_MAX).contains(&width) {
        return Err(wrong(&images, "not an IDX file of grey images"));
    }
    let pixels = u64::from(height) * u64::from(width);
    let expected = IMAGES_HEADER + count * pixels;
    let (held, size) = match is_compressed(&images) {
        true => {
            let body = unpacked(store, &images, expected)?;
            let size = body.len() as u64;
            (Some(body), size)
        }
        false => (None, length(store, &images)?),
    };
    if size != expected || count == 0 {
        let text = format!("{size} bytes for {count} images: {expected} are needed; cut short?");
        return Err(wrong(&images, text));
    }
    let labels = labels(store, &beside, count)?;
    let format = Format { height, width, channels: 1, record: pixels, pixels: 0 };
    let names = (0..classes(&images)).map(|i| i.to_string()).collect();
    let part = PackedFile { path: images, header: IMAGES_HEADER, labels, held, listed };
    Packed::new(format, vec![part], names, Vec::new())
}

/// Whether both splits of a path are the same images: one file.
pub fn is_one_set(store: &dyn Store, path: &Path) -> Result<bool, DataError> {
    is_file(store, path)
}

/// MNIST has the ten digits. EMNIST's splits, which are known by their names, have letters.
fn classes(images: &Path) -> usize {
    let name = images.file_name().unwrap_or_default().to_string_lossy();
    match name.strip_prefix("emnist-").and_then(|rest| rest.split('-').next()) {
        Some("balanced" | "bymerge") => 47,
        Some("byclass") => 62,
        // Counted from 1.
        Some("letters") => 27,
        _ => 10,
    }
}

fn is_compressed(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gz"))
}

/// What a compressed file holds, but not much more than `length` bytes.
fn unpacked(store: &dyn Store, path: &Path, length: u64) -> Result<Vec<u8>, DataError> {
    if length > UNPACKED_BYTES_MAX {
        let text = format!(
            "it says that it holds {length} bytes; compressed files up to {UNPACKED_BYTES_MAX} \
             are read: unpack it"
        );
        return Err(wrong(path, text));
    }
    let (packed, mut body) = (all(store, path)?, Vec::new());
    // One byte more shows that there are more.
    let read = GzDecoder::new(&packed[..]).take(length + 1).read_to_end(&mut body);
    read.map_err(|error| wrong(path, format_args!("not a whole gzip file: {error}")))?;
    Ok(body)
}

/// The first bytes of the images file.
fn header(store: &dyn Store, images: &Path) -> Result<Vec<u8>, DataError> {
    if !is_compressed(images) {
        return start(store, images, IMAGES_HEADER);
    }
    let mut bytes = unpacked(store, images, IMAGES_HEADER)?;
    if (bytes.len() as u64) < IMAGES_HEADER {
        return Err(wrong(images, "not an IDX file of grey images"));
    }
    bytes.truncate(IMAGES_HEADER as usize);
    Ok(bytes)
}

fn labels(store: &dyn Store, path: &Path, count: u64) -> Result<Vec<u8>, DataError> {
    let body = match is_compressed(path) {
        true => unpacked(store, path, LABELS_HEADER + count)?,
        false => index(store, path)?,
    };
    let (head, labels) = match body.split_at_checked(LABELS_HEADER as usize) {
        Some((head, labels)) if head[..4] == [0, 0, 8, 1] => (head, labels),
        _ => return Err(wrong(path, "not an IDX file of labels")),
    };
    let said = u32::from_be_bytes([head[4], head[5], head[6], head[7]]);
    if u64::from(said) != count || labels.len() as u64 != count {
        let text = format!(
            "{} labels ({said} by its header) for the {count} images beside it",
            labels.len()
        );
        return Err(wrong(path, text));
    }
    Ok(labels.to_vec())
}

/// The images file: `path` itself, or the one published under this split's name in it.
fn images(store: &dyn Store, path: &Path, split: Split) -> Result<PathBuf, DataError> {
    if is_file(store, path)? {
        return Ok(path.to_owned());
    }
    let stem = match split {
        Split::Train => "train",
        Split::Validation => "t10k",
    };
    let named = |folder: &&str| {
        let name = |sign: &str, end: &str| format!("{stem}-images{sign}idx3-ubyte{end}");
        let names = [name("-", ""), name(".", ""), name("-", ".gz"), name(".", ".gz")];
        names.map(|name| path.join(folder).join(name))
    };
    let mut found = None;
    for folder in &FOLDERS {
        match (first_file(store, named(folder).into_iter())?, &found) {
            (None, _) => {}
            (Some(file), None) => found = Some(file),
            // Whoever gives a folder that holds the files has said which.
            (Some(_), Some(first)) if first.parent() == Some(path) => {}
            (Some(other), Some(first)) => {
                let (first, key) = (first.shown(), split.key());
                let text = format!("{first} is there, too: name in {key} the one that is meant");
                return Err(wrong(&other, text));
            }
        }
    }
    found.ok_or_else(|| {
        let key = split.key();
        let text = format!(
            "no {stem}-images-idx3-ubyte there ({key}), nor with .gz, nor in MNIST/raw: give the \
             folder that holds the set's files"
        );
        wrong(path, text)
    })
}

/// The labels file that belongs to an images file, compressed or not.
fn labels_of(store: &dyn Store, images: &Path) -> Result<PathBuf, DataError> {
    let Some(name) = images.file_name().unwrap_or_default().to_str() else {
        return Err(wrong(images, "its name is not UTF-8; rename it and the labels beside it"));
    };
    let labels = name.replace("images", "labels").replace("idx3", "idx1");
    if *name == labels {
        let text = "the name must hold \"images\", and \"labels\" that of its pair";
        return Err(wrong(images, text));
    }
    let plain = labels.trim_end_matches(".gz");
    let beside = [labels.clone(), plain.to_owned(), format!("{plain}.gz")];
    let found = beside.iter().map(|name| images.with_file_name(name));
    first_file(store, found)?.ok_or_else(|| wrong(images, format_args!("no {plain} beside it")))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use crate::data::source::Source;
    use crate::data::source::packed::asked::{read, refusal};
    use crate::data::store::memory::MemoryStore;

    use super::*;

    fn idx(magic: u32, sizes: &[u32], body: &[u8]) -> Vec<u8> {
        let words = std::iter::once(&magic).chain(sizes).flat_map(|word| word.to_be_bytes());
        words.chain(body.iter().copied()).collect()
    }

    fn gz(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).and_then(|()| encoder.finish()).expect("in memory")
    }

    fn pictures() -> Vec<u8> {
        idx(0x803, &[2, 2, 3], &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12])
    }

    #[test]
    fn of_two_sets_below_a_folder_none_is_taken_unasked() {
        let (root, mut store) = (Path::new("set"), MemoryStore::default());
        let put = |store: &mut MemoryStore, folder: &str| {
            store.put(root.join(folder).join("train-images-idx3-ubyte"), pictures());
            let labels = idx(0x801, &[2], &[4, 8]);
            store.put(root.join(folder).join("train-labels-idx1-ubyte"), labels);
        };
        put(&mut store, "MNIST/raw");
        assert_eq!(is_one_set(&store, root).ok(), Some(false));
        put(&mut store, "FashionMNIST/raw");
        let said = refusal(open(&store, root, Split::Train));
        assert!(said.contains("MNIST/raw") && said.contains("name in data.train"), "{said}");
        assert!(open(&store, &root.join("FashionMNIST"), Split::Train).is_ok());
        put(&mut store, "");
        assert!(open(&store, root, Split::Train).is_ok(), "the folder itself");
    }

    #[test]
    fn mnist_files_are_read_plain_compressed_and_where_torchvision_puts_them() {
        let root = Path::new("set");
        let labels = idx(0x801, &[2], &[4, 8]);
        let plain = ["t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"];
        for (folder, end) in [("", ""), ("", ".gz"), ("MNIST/raw", ""), ("FashionMNIST/raw", ".gz")]
        {
            let mut store = MemoryStore::default();
            for (name, body) in plain.iter().zip([pictures(), labels.clone()]) {
                let body = if end.is_empty() { body } else { gz(&body) };
                store.put(root.join(folder).join(format!("{name}{end}")), body);
            }
            let test = open(&store, root, Split::Validation).expect("opens");
            assert_eq!((test.len(), test.channels(), test.label(1)), (2, 1, 8));
            assert_eq!(test.classes().len(), 10);
            let image = read(&test, &store, 1);
            let (size, pixels) = ((image.height, image.width), image.pixels);
            assert_eq!((size, &pixels[..]), ((2, 3), &[7, 8, 9, 10, 11, 12][..]));
            let text = refusal(open(&store, root, Split::Train));
            assert!(text.contains("train-images-idx3-ubyte"), "{text}");
        }
    }

    #[test]
    fn a_set_that_breaks_its_formats_word_is_refused() {
        let root = Path::new("set");
        let with = |images: Vec<u8>, labels: Vec<u8>, end: &str| {
            let mut store = MemoryStore::default();
            store.put(root.join(format!("train-images-idx3-ubyte{end}")), images);
            store.put(root.join(format!("train-labels-idx1-ubyte{end}")), labels);
            refusal(open(&store, root, Split::Train))
        };
        let labels = idx(0x801, &[2], &[4, 8]);
        for (images, labels, expected) in [
            (pictures(), idx(0x801, &[1], &[4]), "1 labels (1 by its header) for the 2 images"),
            (pictures(), idx(0x801, &[3], &[4, 8]), "2 labels (3 by its header)"),
            (pictures(), idx(0x801, &[2], &[4, 200]), "record 1 has label 200 of 10 (0 to 9)"),
            (pictures()[..27].to_vec(), labels.clone(), "27 bytes for 2 images: 28 are needed"),
            (idx(0x803, &[2, 2, 3], &[0; 900]), labels.clone(), "for 2 images: 28 are needed"),
            (idx(0x801, &[2, 2, 3], &[0; 12]), labels.clone(), "not an IDX file of grey images"),
        ] {
            let text = with(images.clone(), labels.clone(), "");
            assert!(text.contains(expected), "{text}");
            let text = with(gz(&images), gz(&labels), ".gz");
            assert!(text.contains(expected) || text.contains("29 bytes"), "{text}");
        }
        let packed = gz(&pictures());
        let text = with(packed[..packed.len() - 9].to_vec(), gz(&labels), ".gz");
        assert!(text.contains("not a whole gzip file"), "{text}");
        let huge = gz(&idx(0x803, &[u32::MAX, 4096, 4096], &[]));
        let text = with(huge, gz(&labels), ".gz");
        assert!(text.contains("compressed files up to 1073741824 are read"), "{text}");
    }

    #[test]
    fn emnist_has_letters() {
        for (name, classes) in [("emnist-letters-train-images-idx3-ubyte.gz", 27), ("x", 10)] {
            assert_eq!(super::classes(Path::new(name)), classes);
        }
    }
}
