//! Shards as archivers write them, and what is wrong with some.

use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;

use super::*;
use crate::data::source::tar::sample::CLASSES_MAX;
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
    let found: Vec<(String, &[u8], u32)> = (listing.samples.iter())
        .map(|sample| {
            let picture = &bytes[sample.offset as usize..][..sample.length as usize];
            (sample.name.plain().shown(), picture, sample.label)
        })
        .collect();
    let expected: [(&str, &[u8], u32); 3] =
        [("0002.jpg", b"two", 5), ("0001.PNG", b"one", 0), (&long, b"long", CLASSES_MAX - 1)];
    assert_eq!(found, expected.map(|(name, bytes, label)| (name.to_owned(), bytes, label)));
    let remarks = listing.left.remarks("data.train").join("; ");
    for left in ["1 .json", "1 without an ending", "1 hidden names", "3.seg.png", ": 3.cls"] {
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
    assert_eq!((sample.name.shown(), sample.label), (long, 2));
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
        (&[b'P'; 600], "it is no tar archive"),
        (b"text", "it is no tar archive"),
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
            prop_assert_eq!(sample.name.shown(), format!("{number:06}.jpg"));
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

/// An archive with one more member of this kind behind those that are files.
fn with(members: &[(&str, &[u8])], more: &[(&[u8], tar::EntryType, &str)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, bytes) in members {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        builder.append_data(&mut header, name, *bytes).expect("appended");
    }
    for (name, kind, target) in more {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_size(0);
        builder.append_link(&mut header, Name::from(*name).path(), target).expect("appended");
    }
    builder.into_inner().expect("finished")
}

fn remarks(listing: &Listing) -> String {
    listing.left.remarks("data.train").join("; ")
}

/// `gnu_hardlink.tar` is what GNU tar writes of a folder in which `004.jpg` and `005.cls` are
/// second names of `000.jpg` and `000.cls`.
#[test]
fn a_hard_link_has_the_bytes_of_the_file_before_it() {
    let bytes = include_bytes!("gnu_hardlink.tar").to_vec();
    let listing = listed(bytes.clone()).expect("fine");
    let [first, .., fifth, sixth] = &listing.samples[..] else { panic!("{listing:?}") };
    assert_eq!((listing.samples.len(), remarks(&listing)), (6, String::new()));
    assert_eq!((fifth.offset, fifth.length), (first.offset, first.length));
    assert_eq!(fifth.name.shown(), "004.jpg");
    assert_ne!(sixth.offset, first.offset);
    assert_eq!(sixth.label, first.label);
    assert_eq!(&bytes[fifth.offset as usize..][..2], [0xFF, 0xD8]);

    let hard = tar::EntryType::Link;
    let listing = listed(with(
        &[("./1.jpg", b"one"), ("./1.cls", b"7")],
        &[
            (b"2.jpg", hard, "1.jpg"),
            (b"2.cls", hard, "./1.cls"),
            // The second name of a second name, and one of a file that never comes.
            (b"3.jpg", hard, "2.jpg"),
            (b"3.cls", hard, "2.cls"),
            (b"4.json", hard, "5.jpg"),
        ],
    ));
    let listing = listing.expect("fine");
    let found: Vec<(String, u64, u32)> = (listing.samples.iter())
        .map(|sample| (sample.name.plain().shown(), sample.length, sample.label))
        .collect();
    let expected = [("1.jpg", 3, 7), ("2.jpg", 3, 7), ("3.jpg", 3, 7)];
    assert_eq!(found, expected.map(|(name, length, label)| (name.to_owned(), length, label)));
    assert!(listing.samples.iter().all(|sample| sample.offset == listing.samples[0].offset));
    let told = "data.train: 1 hard links lead to no file before them and are not read: 4.json";
    assert_eq!(remarks(&listing), told);
}

#[test]
fn what_is_not_read_is_counted_and_its_first_is_named() {
    let (link, pipe) = (tar::EntryType::Symlink, tar::EntryType::Fifo);
    let listing = listed(with(
        &[
            ("1.jpg", b"x"),
            ("1.cls", b"0"),
            ("2.cls", b"0"),
            ("3.cls", b"1"),
            ("v1.5_7.jpg", b"x"),
            ("v1.5_7.cls", b"0"),
            ("8.left.png", b"x"),
        ],
        &[(b"4.jpg", link, "1.jpg"), (b"4.cls", link, "1.cls"), (b"5.jpg", pipe, "x")],
    ));
    let listing = listing.expect("fine");
    assert_eq!(listing.samples.len(), 1);
    let told = remarks(&listing);
    for expected in [
        "2 symbolic links are not followed: 4.jpg",
        "1 members are pipes, devices and the like and are not read: 5.jpg",
        "2 labels have no picture and are left out: 2.cls",
        "3 pictures and labels have another dot in their names and are not read, since a key ends \
         at its first dot (rename them): v1.5_7.jpg",
    ] {
        assert!(told.contains(expected), "{expected}: {told}");
    }
    let mut all = Left::default();
    all.add(listing.left, "a.tar");
    all.add(listed(with(&[("9.cls", b"0")], &[])).expect("fine").left, "b.tar");
    let told = all.remarks("data.train").join("; ");
    assert!(told.contains("3 labels have no picture and are left out: a.tar/2.cls"), "{told}");
}

/// `concatenated.tar` is what `cat a.tar b.tar` gave.
#[test]
fn archives_one_behind_the_other_are_read_on() {
    let listing = listed(include_bytes!("concatenated.tar").to_vec()).expect("fine");
    let names: Vec<String> = listing.samples.iter().map(|sample| sample.name.shown()).collect();
    assert_eq!(names, ["0000.jpg", "0001.jpg", "0002.jpg", "0003.jpg", "0004.jpg", "0005.jpg"]);
    assert_eq!(remarks(&listing), "");
    let one = archive(&[("1.jpg", b"x"), ("1.cls", b"4")]);
    let two = archive(&[("2.jpg", b"y"), ("2.cls", b"5")]);
    for gap in [0, 512, 10_240] {
        let all = [&one[..], &vec![0; gap], &two].concat();
        let listing = listed(all.clone()).expect("fine");
        let [first, second] = &listing.samples[..] else { panic!("{listing:?}") };
        assert_eq!((first.label, second.label), (4, 5));
        assert_eq!(all[second.offset as usize], b'y');
        // What lies there and is no archive.
        for (junk, count) in [(vec![b'J'; 700], 700), (vec![7], 1)] {
            let listing = listed([&one[..], &vec![0; gap], &junk].concat()).expect("fine");
            assert_eq!(listing.samples.len(), 1);
            let told = "bytes lie behind the end of the archive and are not read";
            assert_eq!(remarks(&listing), format!("data.train: {count} {told}: "));
        }
        // A second archive that is damaged or cut is no junk.
        let mut damaged = all.clone();
        damaged[one.len() + gap + 1024] ^= 1;
        let text = listed(damaged).expect_err("damaged");
        assert!(text.contains("after 2.jpg (byte "), "{text}");
        let text = listed(all[..all.len() - 1024].to_vec()).expect_err("cut");
        assert!(text.contains("it was cut: there is no end of the archive at byte"), "{text}");
    }
}

#[test]
fn names_that_are_no_text_are_kept_apart() {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, text) in [
        (&b"caf\xe9.jpg"[..], &b"x"[..]),
        (b"caf\xe9.cls", b"1"),
        (b"caf\xe8.jpg", b"y"),
        (b"caf\xe8.cls", b"2"),
    ] {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        builder.append_data(&mut header, Name::from(name).path(), text).expect("appended");
    }
    let listing = listed(builder.into_inner().expect("finished")).expect("fine");
    let [one, two] = &listing.samples[..] else { panic!("{listing:?}") };
    assert_eq!((one.name.bytes(), two.name.bytes()), (&b"caf\xe9.jpg"[..], &b"caf\xe8.jpg"[..]));
    assert_eq!((one.label, two.label), (1, 2));
}
