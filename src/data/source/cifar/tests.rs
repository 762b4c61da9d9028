//! Both versions of both sets, whole and broken.

use super::*;
use crate::data::source::Source;
use crate::data::source::packed::asked::{read, refusal};
use crate::data::store::memory::MemoryStore;

fn planes(level: u8) -> impl Iterator<Item = u8> {
    (0..3072u32).map(move |i| level + (i / 1024) as u8)
}

fn record(prefix: &[u8], level: u8) -> Vec<u8> {
    prefix.iter().copied().chain(planes(level)).collect()
}

/// The five files of a training set; the first is `first`.
fn five(store: &mut MemoryStore, folder: &str, ending: &str, first: &[u8], rest: &[u8]) {
    for number in 1..=5 {
        let body = if number == 1 { first } else { rest };
        store.put(format!("{folder}/data_batch_{number}{ending}"), body);
    }
}

fn text(text: &str) -> Vec<u8> {
    [&[b'U', text.len() as u8], text.as_bytes()].concat()
}

/// A file of the Python version as Python 2 wrote the published ones: (label, level) a picture.
fn pickle(entries: &[&str], pictures: &[(u8, u8)]) -> Vec<u8> {
    let count = pictures.len() as u8;
    let mut body = b"\x80\x02}q\x01(".to_vec();
    for entry in entries {
        body.extend([text(entry), b"](".to_vec()].concat());
        body.extend(pictures.iter().flat_map(|(label, _)| [b'K', *label]));
        body.push(b'e');
    }
    body.extend(text("data"));
    body.extend(
        b"cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85U\x01b",
    );
    body.extend(b"\x87Rq\x09(K\x01K");
    body.push(count);
    body.extend(b"M\x00\x0c\x86cnumpy\ndtype\nq\nU\x02u1K\x00K\x01\x87Rq\x0b");
    body.extend(b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T");
    body.extend((u32::from(count) * 3072).to_le_bytes());
    pictures.iter().for_each(|(_, level)| body.extend(planes(*level)));
    body.extend(b"tbu.");
    body
}

#[test]
fn files_that_serve_both_splits_are_known() {
    let (root, mut store) = (Path::new("set"), MemoryStore::default());
    store.put("set/mine.bin", record(&[3], 10));
    let one = |store: &MemoryStore, path: &Path| is_one_set(store, path, Cifar::Ten).ok();
    assert_eq!(one(&store, root), Some(true));
    assert_eq!(one(&store, &root.join("mine.bin")), Some(true));
    store.put("set/test_batch_mine.bin", record(&[3], 10));
    store.put("set/data_batch_mine.bin", record(&[3], 10));
    assert_eq!(one(&store, root), Some(false));
}

#[test]
fn files_beside_the_published_ones_are_told() {
    let (root, mut store) = (Path::new("set"), MemoryStore::default());
    five(&mut store, "set", ".bin", &record(&[3], 10), &record(&[1], 30));
    store.put("set/test_batch.bin", record(&[7], 40));
    let told = |store: &MemoryStore, split| {
        open(store, root, split, Cifar::Ten).expect("opens").remarks().to_vec()
    };
    assert_eq!(told(&store, Split::Train), [""; 0]);
    store.put("set/data_batch_6.bin", record(&[3], 10));
    store.put("set/batches.meta.txt", "a b c d e f g h i j".replace(' ', "\n"));
    assert_eq!(told(&store, Split::Validation), [""; 0]);
    let remarks = told(&store, Split::Train);
    let [remark] = &remarks[..] else { panic!("{remarks:?}") };
    assert!(remark.contains("1 files in set are not") && remark.contains("data_batch_6.bin"));
}

#[test]
fn the_binary_version_is_read() {
    let (root, mut store) = (Path::new("set"), MemoryStore::default());
    five(
        &mut store,
        "set",
        ".bin",
        &[record(&[3], 10), record(&[9], 20)].concat(),
        &record(&[1], 30),
    );
    store.put("set/test_batch.bin", record(&[7], 40));
    let train = open(&store, root, Split::Train, Cifar::Ten).expect("opens");
    assert_eq!((train.len(), train.classes().len()), (6, 10));
    assert_eq!([0, 1, 2].map(|id| train.label(id)), [3, 9, 1]);
    let image = read(&train, &store, 2);
    assert_eq!((image.height, image.width, &image.pixels[..3]), (32, 32, &[30, 31, 32][..]));
    assert_eq!(
        train.remarks(),
        ["data.train: the files hold 2, 1, 1, 1, 1 pictures: is one cut short?"]
    );
    let test = open(&store, root, Split::Validation, Cifar::Ten).expect("opens");
    assert_eq!((test.len(), test.label(0)), (1, 7));
    let alone = open(&store, Path::new("set/data_batch_2.bin"), Split::Train, Cifar::Ten);
    assert_eq!(alone.expect("one file is enough where it is named").len(), 1);

    let fine = Path::new("hundred");
    store.put(fine.join("train.bin"), record(&[5, 99], 1));
    let train = open(&store, fine, Split::Train, Cifar::Hundred).expect("opens");
    assert_eq!((train.classes().len(), train.label(0)), (100, 99));
}

#[test]
fn what_the_binary_version_promises_is_checked() {
    let fine = Path::new("hundred");
    for (body, expected) in [
        (record(&[5, 100], 1), "hundred/train.bin: record 0 has label 100 of 100 (0 to 99)"),
        (record(&[20, 3], 1), "record 0 has coarse label 20 of 20"),
        (vec![0; 3000], "cut short"),
    ] {
        let mut store = MemoryStore::default();
        store.put(fine.join("train.bin"), body);
        let text = refusal(open(&store, fine, Split::Train, Cifar::Hundred));
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn a_missing_batch_is_named() {
    for (ending, body) in [(".bin", record(&[1], 3)), ("", pickle(&["labels"], &[(1, 3)]))] {
        let mut store = MemoryStore::default();
        for number in [1, 2, 4, 5] {
            store.put(format!("set/data_batch_{number}{ending}"), body.clone());
        }
        let text = refusal(open(&store, Path::new("set"), Split::Train, Cifar::Ten));
        let missing =
            format!("1 of the 5 files of the train set are missing: data_batch_3{ending} (");
        assert!(text.contains(&missing), "{text}");
        let text = refusal(open(&store, Path::new("set"), Split::Validation, Cifar::Ten));
        assert!(text.contains(&format!("missing: test_batch{ending} (data.validation)")), "{text}");
    }
    let mut store = MemoryStore::default();
    store.put("set/cifar-10-python.tar.gz", "packed");
    let text = refusal(open(&store, Path::new("set"), Split::Train, Cifar::Ten));
    assert!(text.contains("cifar-10-batches-py; unpack the archive"), "{text}");
}

#[test]
fn the_python_version_is_read_where_its_archive_unpacks_it() {
    let mut store = MemoryStore::default();
    let folder = "set/cifar-10-batches-py";
    let (first, rest) = (pickle(&["labels"], &[(3, 10), (9, 20)]), pickle(&["labels"], &[(1, 30)]));
    five(&mut store, folder, "", &first, &rest);
    let names: Vec<u8> = ('a'..='j').flat_map(|c| text(&c.to_string())).collect();
    let meta = [b"\x80\x02}(", &text("label_names")[..], b"](", &names, b"eu."].concat();
    store.put(format!("{folder}/batches.meta"), meta);
    let train = open(&store, Path::new("set"), Split::Train, Cifar::Ten).expect("opens");
    assert_eq!([0, 1, 2].map(|id| train.label(id)), [3, 9, 1]);
    assert_eq!((train.classes()[9].as_str(), train.remarks().len()), ("j", 1));
    for (id, level) in [(0, 10), (1, 20), (5, 30)] {
        assert_eq!(read(&train, &store, id).pixels[..3], [level, level + 1, level + 2], "{id}");
    }
    assert!(train.location(1).is_some(), "pixels stay in the file");

    store.put("fine/train", pickle(&["fine_labels", "coarse_labels"], &[(19, 1)]));
    store.put("fine/meta", "no pickle");
    let fine = open(&store, Path::new("fine"), Split::Train, Cifar::Hundred).expect("opens");
    assert_eq!((fine.label(0), fine.classes()[19].as_str()), (19, "19"));
    assert_eq!(fine.remarks(), ["fine/meta does not hold 100 class names: classes are numbered"]);
}

#[test]
fn what_the_python_version_promises_is_checked() {
    let two = [(3, 10), (9, 20)];
    let fine = ["fine_labels", "coarse_labels"];
    for (kind, name, body, expected) in [
        (Cifar::Ten, "test_batch", pickle(&["labels"], &[(10, 1)]), "label 10 of 10 (0 to 9)"),
        (Cifar::Ten, "test_batch", pickle(&["fine_labels"], &two), "no \"labels\" in it"),
        (Cifar::Ten, "test_batch", b"\x80\x02}(U\x04data]u.".to_vec(), "no numpy array"),
        (Cifar::Ten, "test_batch", pickle(&["labels"], &two)[..4000].to_vec(), "too early"),
        (Cifar::Hundred, "test", pickle(&fine, &[(20, 1)]), "coarse_labels: record 0 has label 20"),
    ] {
        let mut store = MemoryStore::default();
        store.put(format!("set/{name}"), body);
        let text = refusal(open(&store, Path::new("set"), Split::Validation, kind));
        assert!(text.contains(expected), "{text}");
    }
    let mut store = MemoryStore::default();
    five(&mut store, "set", "", &pickle(&["labels"], &two), &record(&[1], 3));
    let text = refusal(open(&store, Path::new("set"), Split::Train, Cifar::Ten));
    assert!(text.contains("some files are of the Python version, some are not"), "{text}");
}
