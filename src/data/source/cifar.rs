//! CIFAR-10 and CIFAR-100 as they are published: the binary version, and the Python version, whose
//! pickles are read as data.

use std::path::{Path, PathBuf};

use crate::config::Shown;
use crate::data::pickle::Pickle;
use crate::data::store::{FILE_BYTES_MAX, FetchError, Store};
use crate::data::{DataError, Split};

use super::array::{Elements, array};
use super::packed::{Format, Packed, PackedFile, all, first_file, index, is_file, stamp, wrong};

/// Bytes of a picture: three planes of 32 x 32.
const PICTURE_BYTES: u64 = 3072;
/// What a pickle of protocol 2 or later begins with; no label is as large.
const PICKLE_START: u8 = 0x80;
/// Coarse classes of CIFAR-100.
const COARSE_CLASSES: u8 = 20;

/// Which of the two CIFAR sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cifar {
    /// Records of label, 3 x 32 x 32 levels.
    Ten,
    /// Records of coarse label, fine label, 3 x 32 x 32 levels; the fine one is used.
    Hundred,
}

impl Cifar {
    fn classes(self) -> usize {
        match self {
            Cifar::Ten => 10,
            Cifar::Hundred => 100,
        }
    }

    /// Bytes of a binary record before its pixels.
    fn label_bytes(self) -> u64 {
        match self {
            Cifar::Ten => 1,
            Cifar::Hundred => 2,
        }
    }

    /// The folders that the published archives unpack to: binary, Python.
    fn folders(self) -> [&'static str; 2] {
        match self {
            Cifar::Ten => ["cifar-10-batches-bin", "cifar-10-batches-py"],
            Cifar::Hundred => ["cifar-100-binary", "cifar-100-python"],
        }
    }

    /// The published names of a split's files, without an ending.
    fn stems(self, split: Split) -> &'static [&'static str] {
        match (self, split) {
            (Cifar::Ten, Split::Train) => {
                &["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5"]
            }
            (Cifar::Ten, Split::Validation) => &["test_batch"],
            (Cifar::Hundred, Split::Train) => &["train"],
            (Cifar::Hundred, Split::Validation) => &["test"],
        }
    }

    /// Files of class names: of the binary version; of the Python version, and the entry in it.
    fn names(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Cifar::Ten => ("batches.meta.txt", "batches.meta", "label_names"),
            Cifar::Hundred => ("fine_label_names.txt", "meta", "fine_label_names"),
        }
    }

    /// The entries of a Python file that hold labels: those of the classes first.
    fn label_entries(self) -> &'static [&'static str] {
        match self {
            Cifar::Ten => &["labels"],
            Cifar::Hundred => &["fine_labels", "coarse_labels"],
        }
    }
}

/// As which files are published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    /// Records of bytes.
    Binary,
    /// Pickles.
    Python,
}

/// `path` is the folder, or one file, of either version.
pub fn open(
    store: &dyn Store,
    path: &Path,
    split: Split,
    kind: Cifar,
) -> Result<Packed, DataError> {
    let files = files(store, path, split, kind)?;
    let (mut parts, mut python) = (Vec::new(), Vec::new());
    for path in &files {
        let (listed, body) = (stamp(store, path)?, all(store, path)?);
        let is_pickle = body.first() == Some(&PICKLE_START);
        python.push(is_pickle);
        let part = match is_pickle {
            true => python_part(path, &body, kind)?,
            false => binary_part(path, &body, kind)?,
        };
        parts.push(PackedFile { listed, ..part });
    }
    let version = match (python.contains(&true), python.contains(&false)) {
        (true, true) => {
            return Err(wrong(path, "some files are of the Python version, some are not"));
        }
        (true, false) => Version::Python,
        (false, _) => Version::Binary,
    };
    let pixels = if version == Version::Python { 0 } else { kind.label_bytes() };
    let record = pixels + PICTURE_BYTES;
    let format = Format { height: 32, width: 32, channels: 3, record, pixels };
    let (names, doubt) = class_names(store, &files[0], version, kind)?;
    let spare = left_out(store, path, split, kind)?;
    let remarks = uneven(&parts, split).into_iter().chain(spare).chain(doubt).collect();
    Packed::new(format, parts, names, remarks)
}

/// Whether both splits of a path are the same files: one file, or files of names of their own.
pub fn is_one_set(store: &dyn Store, path: &Path, kind: Cifar) -> Result<bool, DataError> {
    let of = |split| files(store, path, split, kind);
    // What is wrong with the other split is told where that is opened.
    Ok(of(Split::Train).ok() == Some(of(Split::Validation)?))
}

/// The split's files: by the names that the set is published under, and then all of them; else
/// every *.bin file; or `path` itself where it is a file.
fn files(
    store: &dyn Store,
    path: &Path,
    split: Split,
    kind: Cifar,
) -> Result<Vec<PathBuf>, DataError> {
    if is_file(store, path)? {
        return Ok(vec![path.to_owned()]);
    }
    let key = split.key();
    store.list(path).map_err(|error| unlisted(path, key, error))?;
    for folder in std::iter::once("").chain(kind.folders()).map(|name| path.join(name)) {
        for ending in [".bin", ""] {
            let file = |stem: &&str| folder.join(format!("{stem}{ending}"));
            let wanted: Vec<PathBuf> = kind.stems(split).iter().map(file).collect();
            let mut missing = Vec::new();
            for path in &wanted {
                if !is_file(store, path)? {
                    missing.push(path);
                }
            }
            if missing.is_empty() {
                return Ok(wanted);
            }
            let mut any = missing.len() < wanted.len();
            for split in [Split::Train, Split::Validation] {
                any |= first_file(store, kind.stems(split).iter().map(file))?.is_some();
            }
            if any {
                return Err(incomplete(&folder, &missing, wanted.len(), split));
            }
        }
    }
    unnamed(store, path, split, kind)
}

fn unlisted(path: &Path, key: &str, error: std::io::Error) -> DataError {
    FetchError::from(error).about(path.shown()).about(key).into()
}

fn incomplete(folder: &Path, missing: &[&PathBuf], all: usize, split: Split) -> DataError {
    let name = |path: &&PathBuf| path.file_name().unwrap_or_default().shown();
    let names = missing.iter().map(name).collect::<Vec<_>>().join(", ");
    let text = format!(
        "{} of the {all} files of the {} set are missing: {names} ({}); put them there, or name \
         one file to use it alone",
        missing.len(),
        split.name(),
        split.key(),
    );
    wrong(folder, text)
}

/// Files of other names: all that end in .bin, split as far as their names say so.
fn unnamed(
    store: &dyn Store,
    path: &Path,
    split: Split,
    kind: Cifar,
) -> Result<Vec<PathBuf>, DataError> {
    let entries = store.list(path).map_err(|error| unlisted(path, split.key(), error))?;
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
        let ([binary, python], stem) = (kind.folders(), kind.stems(split)[0]);
        let text = format!(
            "no file of the {} set ({}): neither {stem}.bin (binary version) nor {stem} (Python \
             version), there or in {binary} or {python}; unpack the archive",
            split.name(),
            split.key(),
        );
        return Err(wrong(path, text));
    }
    Ok(found)
}

fn binary_part(path: &Path, body: &[u8], kind: Cifar) -> Result<PackedFile, DataError> {
    let label_bytes = kind.label_bytes();
    let record = label_bytes + PICTURE_BYTES;
    if body.is_empty() || !(body.len() as u64).is_multiple_of(record) {
        let text = format!(
            "{} bytes are no whole number of records of {record} bytes: not the binary version of \
             CIFAR-{}, or cut short",
            body.len(),
            kind.classes(),
        );
        return Err(wrong(path, text));
    }
    let records = || body.chunks(record as usize);
    if kind == Cifar::Hundred
        && let Some(at) = records().position(|record| record[0] >= COARSE_CLASSES)
    {
        let label = body[at * record as usize];
        let text = format!("record {at} has coarse label {label} of {COARSE_CLASSES}");
        return Err(wrong(path, format_args!("{text}: not the binary version of CIFAR-100")));
    }
    let labels = records().map(|record| record[label_bytes as usize - 1]).collect();
    Ok(PackedFile { path: path.to_owned(), header: 0, labels, held: None, listed: None })
}

fn python_part(path: &Path, body: &[u8], kind: Cifar) -> Result<PackedFile, DataError> {
    let refuse = |text: String| wrong(path, text);
    if body.len() as u64 > FILE_BYTES_MAX {
        return Err(refuse(format!("pickles up to {FILE_BYTES_MAX} bytes are read")));
    }
    let pickle = Pickle::read(body).map_err(refuse)?;
    let entry = |key: &str| {
        let found = pickle.entry(pickle.root(), key);
        found.ok_or_else(|| {
            refuse(format!(
                "no \"{key}\" in it: not a file of the Python version of CIFAR-{}",
                kind.classes()
            ))
        })
    };
    let found = array(&pickle, entry("data")?);
    let array = found.map_err(|text| refuse(format!("\"data\": {text}")))?;
    if array.columns as u64 != PICTURE_BYTES || array.rows == 0 {
        let (rows, columns) = (array.rows, array.columns);
        return Err(refuse(format!(
            "\"data\" is {rows} x {columns}; pictures have {PICTURE_BYTES} bytes"
        )));
    }
    let mut labels = Vec::new();
    for (key, classes) in
        kind.label_entries().iter().zip([kind.classes(), usize::from(COARSE_CLASSES)])
    {
        let numbers = pickle.integers(entry(key)?);
        let numbers = numbers.ok_or_else(|| refuse(format!("\"{key}\" is no list of numbers")))?;
        if numbers.len() != array.rows {
            let (count, rows) = (numbers.len(), array.rows);
            return Err(refuse(format!("{count} {key} for {rows} pictures")));
        }
        let known = |label: &i64| (0..classes as i64).contains(label);
        if let Some(at) = numbers.iter().position(|label| !known(label)) {
            let label = numbers[at];
            let last = classes - 1;
            return Err(refuse(format!(
                "{key}: record {at} has label {label} of {classes} (0 to {last})"
            )));
        }
        labels.push(numbers.into_iter().map(|label| label as u8).collect());
    }
    let (header, held) = match array.elements {
        Elements::At(range) => (range.start as u64, None),
        Elements::Held(bytes) => (0, Some(bytes)),
    };
    Ok(PackedFile {
        path: path.to_owned(),
        header,
        labels: labels.swap_remove(0),
        held,
        listed: None,
    })
}

/// Published batches are equally long: one that is not may have lost its end.
fn uneven(parts: &[PackedFile], split: Split) -> Option<String> {
    let lengths: Vec<usize> = parts.iter().map(|part| part.labels.len()).collect();
    let differ = lengths.windows(2).any(|two| two[0] != two[1]);
    differ.then(|| {
        let list: Vec<String> = lengths.iter().map(ToString::to_string).collect();
        format!("{}: the files hold {} pictures: is one cut short?", split.key(), list.join(", "))
    })
}

/// Files beside those of both splits that look as if they held pictures, too. Both splits' files
/// lie in one folder: the training set's remark tells it.
fn left_out(
    store: &dyn Store,
    path: &Path,
    split: Split,
    kind: Cifar,
) -> Result<Option<String>, DataError> {
    if split != Split::Train || is_file(store, path)? {
        return Ok(None);
    }
    let used = files(store, path, split, kind)?;
    // Without that split none of its files is used, and its own opening says what is wrong.
    let others = files(store, path, Split::Validation, kind).unwrap_or_default();
    let Some(folder) = used[0].parent() else { return Ok(None) };
    // What cannot be listed can hold the files that are wanted all the same.
    let Ok(entries) = store.list(folder) else { return Ok(None) };
    let mut names = Vec::new();
    for entry in entries {
        let file = folder.join(&entry.name);
        let name = entry.name.shown().to_string();
        let looks_so = name.ends_with(".bin") || name.starts_with("data_batch");
        if looks_so && !used.contains(&file) && !others.contains(&file) && is_file(store, &file)? {
            names.push(name);
        }
    }
    names.sort_unstable();
    let (count, first) = (names.len(), names.first());
    Ok(first.map(|first| {
        format!(
            "{}: {count} files in {} are not among the published names and are left out, {first} \
             the first; rename one or name it alone to use it",
            split.key(),
            folder.shown(),
        )
    }))
}

/// The class names that lie beside the files, else numbers; and what is wrong with those names.
fn class_names(
    store: &dyn Store,
    file: &Path,
    version: Version,
    kind: Cifar,
) -> Result<(Vec<String>, Option<String>), DataError> {
    let (binary, python, key) = kind.names();
    let beside = file.with_file_name(match version {
        Version::Python => python,
        Version::Binary => binary,
    });
    let numbers = || (0..kind.classes()).map(|i| i.to_string()).collect();
    if !is_file(store, &beside)? {
        return Ok((numbers(), None));
    }
    let bytes = index(store, &beside)?;
    let names = match version {
        Version::Python => Pickle::read(&bytes).ok().and_then(|pickle| {
            let names = pickle.entry(pickle.root(), key)?;
            pickle.texts(names)
        }),
        Version::Binary => String::from_utf8(bytes).ok().map(|text| {
            text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect::<Vec<_>>()
        }),
    };
    Ok(match names {
        Some(names) if names.len() == kind.classes() => (names, None),
        _ => {
            let text = format!(
                "{} does not hold {} class names: classes are numbered",
                beside.shown(),
                kind.classes()
            );
            (numbers(), Some(text))
        }
    })
}

#[cfg(test)]
mod tests;
