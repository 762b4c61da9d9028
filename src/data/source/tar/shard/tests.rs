//! Shards as archivers write them, and what is wrong with some.

use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;

use super::*;
use crate::data::store::Entry;
use crate::data::store::direct::Direct;
use crate::data::store::memory::MemoryStore;
use crate::observe::refusal::Meaning;

/// An archive of these members.
fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, bytes) in members {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        // Names that do not fit get a long name of GNU's.
        builder.append_data(&mut header, name, *bytes).expect("appended");
    }
    builder.into_inner().expect("finished")
}

fn listed(bytes: Vec<u8>) -> Result<Listing, String> {
    let mut store = MemoryStore::default();
    store.put("a.tar", bytes);
    list(&store, Path::new("a.tar")).map_err(|error| {
        assert_eq!(error.meaning, Meaning::Damaged);
        error.reason
    })
}

fn refusal(members: &[(&str, &[u8])]) -> String {
    listed(archive(members)).expect_err("refused")
}

#[test]
fn samples_are_what_shares_a_key_in_the_order_of_the_shard() {
    let long = format!("{}/7.jpg", "d".repeat(150));
    let long_label = format!("{}/7.cls", "d".repeat(150));
    let bytes = archive(&[
        ("./0002.jpg", b"two"),
        ("./0002.cls", b"5\n"),
        ("0001.cls", b" 0 "),
        ("0001.json", b"{}"),
        ("0001.PNG", b"one"),
        ("._0001.jpg", b"x"),
        (&long, b"long"),
        (&long_label, b"1048575"),
        ("notes", b"x"),
        ("3.seg.png", b"x"),
        ("3.cls", b"3"),
    ]);
    let listing = listed(bytes.clone()).expect("fine");
    let found: Vec<(&str, &[u8], u32)> = (listing.samples.iter())
        .map(|sample| {
            let picture = &bytes[sample.offset as usize..][..sample.length as usize];
            (sample.name.as_str(), picture, sample.label)
        })
        .collect();
    let expected: [(&str, &[u8], u32); 3] =
        [("0002.jpg", b"two", 5), ("0001.PNG", b"one", 0), (&long, b"long", CLASSES_MAX - 1)];
    let names = |name: &str| name.trim_start_matches("./").to_owned();
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!((names(found.0), found.1, found.2), (names(expected.0), expected.1, expected.2));
    }
    let remarks = listing.left.remarks("data.train").join("; ");
    for left in ["1 .json", "1 .png", "1 without an ending", "1 hidden names"] {
        assert!(remarks.contains(left), "{left}: {remarks}");
    }
}

#[test]
fn long_names_of_pax_are_read() {
    let (long, mut bytes) = (format!("{}/8.jpg", "p".repeat(120)), Vec::new());
    {
        let mut builder = tar::Builder::new(&mut bytes);
        for (name, text) in [(long.clone(), &b"pax"[..]), (long.replace(".jpg", ".cls"), b"2")] {
            builder.append_pax_extensions([("path", name.as_bytes())]).expect("appended");
            let mut header = tar::Header::new_ustar();
            header.set_path("short").expect("fits");
            header.set_size(text.len() as u64);
            header.set_cksum();
            builder.append(&header, text).expect("appended");
        }
        builder.finish().expect("finished");
    }
    let listing = listed(bytes.clone()).expect("fine");
    let [sample] = &listing.samples[..] else { panic!("{:?}", listing.samples) };
    assert_eq!((sample.name.as_str(), sample.label), (long.as_str(), 2));
    assert_eq!(&bytes[sample.offset as usize..][..3], b"pax");
}

#[test]
fn what_is_wrong_is_said_with_the_member() {
    let text = refusal(&[("a/1.jpg", b"x"), ("2.jpg", b"y"), ("2.cls", b"0")]);
    assert_eq!(text, "a/1.jpg has no label: a/1.cls is not beside it");
    for (label, says) in [
        (&b"cat"[..], "1.cls: \"cat\" is no label; it must hold one number below 1048576"),
        (b"-1", "\"-1\" is no label"),
        (b"1048576", "\"1048576\" is no label"),
        (b"", "\"\" is no label"),
        (&[b' '; 65], "65 bytes are no label"),
        (b"\xff", "valid UTF-8"),
    ] {
        let text = refusal(&[("1.jpg", b"x"), ("1.cls", label)]);
        assert!(text.contains(says), "{text}");
    }
    let text = refusal(&[("1.jpg", b"x"), ("1.cls", b"0"), ("2.cls", b"0"), ("1.png", b"x")]);
    assert_eq!(text, "the key 1 comes twice: 1.png again");
    let text = refusal(&[("1.jpg", b"x"), ("1.png", b"x")]);
    assert_eq!(text, "the key 1 has two pictures, 1.jpg and 1.png");
    let text = refusal(&[("1.cls", b"1"), ("1.cls", b"1")]);
    assert_eq!(text, "the key 1 has two labels: 1.cls");
}

#[test]
fn what_is_no_whole_archive_is_refused() {
    let whole =
        archive(&[("1.jpg", &[7; 3000]), ("1.cls", b"4"), ("2.jpg", b"x"), ("2.cls", b"0")]);
    let end = whole.len() - 1024;
    assert_eq!(listed(whole[..end + 512].to_vec()).expect("one block of zeros").samples.len(), 2);
    for (bytes, says) in [
        (&whole[..2000], "it was cut: 1.jpg ends at byte 3512, and it has 2000 bytes"),
        (&whole[..end], "it was cut: there is no end of the archive at byte"),
        (&whole[..3584 + 100], "it was cut: after 1.jpg there is no whole header at byte 3584"),
        (&[], "it was cut: there is no end of the archive at byte 0"),
        (&[b'P'; 600], "after its beginning (byte 0)"),
        (b"\x1f\x8b\x08", "it is compressed"),
    ] {
        let text = listed(bytes.to_vec()).expect_err("refused");
        assert!(text.contains(says), "{says}: {text}");
    }
    let long = archive(&[("1.jpg", b"x"), ("1.cls", b"4"), (&"n".repeat(200), b"x")]);
    // Its long name is there, and the member is not.
    let text = listed(long[..long.len() - 2048].to_vec()).expect_err("refused");
    assert!(text.contains("it was cut: after 1.cls"), "{text}");
    let mut damaged = whole;
    damaged[3584 + 10] ^= 1;
    let text = listed(damaged).expect_err("refused");
    assert!(text.contains("after 1.jpg (byte 3584): archive header checksum mismatch"), "{text}");
    let error = list(&Direct::default(), Path::new("/nowhere.tar")).expect_err("refused");
    assert!(error.reason.contains("No such file"), "{error}");
    assert_eq!(error.meaning, Meaning::Absent);
}

/// Fails one of what it is asked.
struct Once {
    files: MemoryStore,
    left: AtomicUsize,
}

impl Once {
    fn strike(&self) -> io::Result<()> {
        match self.left.fetch_sub(1, Ordering::Relaxed) {
            0 => Err(io::Error::from_raw_os_error(libc::EIO)),
            _ => Ok(()),
        }
    }
}

impl Store for Once {
    fn fetch(&self, location: &Location<'_>, into: &mut Vec<u8>) -> Result<(), FetchError> {
        // What a buffer held before, as zeros, is what ends an archive.
        into.resize(location.extent.length() as usize, 0);
        into.fill(0);
        self.strike()?;
        self.files.fetch(location, into)
    }
    fn list(&self, folder: &Path) -> io::Result<Vec<Entry>> {
        self.files.list(folder)
    }
    fn look(&self, path: &Path) -> io::Result<Kind> {
        self.strike()?;
        self.files.look(path)
    }
    fn changed_ns(&self, _: &Path) -> io::Result<Option<i64>> {
        Ok(None)
    }
}

#[test]
fn a_read_that_fails_is_no_end_of_the_archive() {
    let large = vec![7; 200_000];
    let mut files = MemoryStore::default();
    let members: [(&str, &[u8]); 6] = [
        ("1.jpg", &large),
        ("1.cls", b"4"),
        ("2.jpg", &large),
        ("2.cls", b"0"),
        ("3.cls", b"1"),
        ("3.jpg", &large),
    ];
    files.put("a.tar", archive(&members));
    let mut failed = 0;
    for number in 0.. {
        let store = Once { files: files.clone(), left: AtomicUsize::new(number) };
        match list(&store, Path::new("a.tar")) {
            Ok(listing) => {
                assert_eq!(listing.samples.len(), 3);
                break;
            }
            Err(error) => assert_eq!(error.meaning, Meaning::NotNow, "call {number}: {error}"),
        }
        failed += 1;
    }
    assert!(failed > 4, "a look, and a piece for each large member: {failed}");
}

proptest! {
    /// The listing is what was written, and every byte is where it says.
    #[test]
    fn every_member_is_found_where_it_lies(
        lengths in prop::collection::vec((0usize..70_000, 0u32..50), 0..12),
    ) {
        let pictures: Vec<Vec<u8>> = (lengths.iter().enumerate())
            .map(|(number, (length, _))| (0..*length).map(|at| (at ^ number) as u8).collect())
            .collect();
        let named: Vec<(String, &[u8])> = (pictures.iter().zip(&lengths).enumerate())
            .flat_map(|(number, (picture, (_, label)))| {
                let label: &'static str = Box::leak(label.to_string().into_boxed_str());
                [
                    (format!("{number:06}.jpg"), picture.as_slice()),
                    (format!("{number:06}.cls"), label.as_bytes()),
                ]
            })
            .collect();
        let members: Vec<(&str, &[u8])> = named.iter().map(|(n, b)| (n.as_str(), *b)).collect();
        let bytes = archive(&members);
        let listing = listed(bytes.clone()).expect("fine");
        prop_assert_eq!(listing.samples.len(), lengths.len());
        for (number, sample) in listing.samples.iter().enumerate() {
            prop_assert_eq!(&sample.name, &format!("{number:06}.jpg"));
            prop_assert_eq!(sample.label, lengths[number].1);
            let lies = &bytes[sample.offset as usize..][..sample.length as usize];
            prop_assert_eq!(lies, pictures[number].as_slice());
        }
    }

    /// Whatever bytes a shard has, it is listed or refused.
    #[test]
    fn no_bytes_are_a_panic(
        at in prop::collection::vec((0usize..4096, any::<u8>()), 1..6), length in 0usize..4096,
    ) {
        let mut bytes = archive(&[("1.jpg", &[9; 700]), ("1.cls", b"4"), ("2.jpg", b"x")]);
        at.iter().for_each(|(at, byte)| bytes[*at] = *byte);
        bytes.truncate(length);
        let _ = listed(bytes);
    }
}
