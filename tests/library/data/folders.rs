//! Image folders as people have them: every format, links, names, and what an archive leaves.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::Cursor;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;

use image::codecs::gif::GifEncoder;
use image::{Delay, DynamicImage, Frame, ImageFormat, RgbImage};
use kintsugi::config::{Data, Validation};
use kintsugi::data::Split;
use kintsugi::data::set::DataSet;
use kintsugi::data::set::open::open;

use super::{fill, folder, jpeg, read, refusal};

/// A picture of few colours, so that a palette holds them all.
fn picture(shift: u8) -> RgbImage {
    RgbImage::from_fn(6, 4, |x, y| image::Rgb([x as u8 * 40 + shift, y as u8 * 60, 7]))
}

fn encoded(picture: &DynamicImage, format: ImageFormat) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    picture.write_to(&mut bytes, format).expect("encodes");
    bytes.into_inner()
}

fn animation(frames: &[RgbImage]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = GifEncoder::new(&mut bytes);
    for frame in frames {
        let frame = DynamicImage::ImageRgb8(frame.clone()).into_rgba8();
        let frame = Frame::from_parts(frame, 0, 0, Delay::from_numer_denom_ms(100, 1));
        encoder.encode_frame(frame).expect("encodes");
    }
    drop(encoder);
    bytes
}

#[test]
fn every_format_of_an_image_folder_gives_its_pixels() {
    let root = tempfile::tempdir().expect("temporary folder");
    let colour = DynamicImage::ImageRgb8(picture(0));
    let grey = DynamicImage::ImageLuma8(colour.to_luma8());
    let files = [
        ("1.png", encoded(&colour, ImageFormat::Png), &colour),
        ("2.WEBP", encoded(&colour, ImageFormat::WebP), &colour),
        ("3.bmp", encoded(&colour, ImageFormat::Bmp), &colour),
        ("4.tif", encoded(&colour, ImageFormat::Tiff), &colour),
        ("5.tiff", encoded(&grey, ImageFormat::Tiff), &grey),
        ("6.ppm", [b"P6\n6 4\n255\n", colour.as_bytes()].concat(), &colour),
        ("7.pgm", [b"P5 6 4 255\n", grey.as_bytes()].concat(), &grey),
        ("8.gif", animation(&[picture(0), picture(30)]), &colour),
        // As people name them: the first bytes decide.
        ("9.jpg", encoded(&colour, ImageFormat::WebP), &colour),
    ];
    for (name, bytes, _) in &files {
        fill(root.path(), "a", &[(name, bytes)]);
    }
    let set = open(&folder(root.path()), Split::Train, 1).expect("opens");
    assert_eq!(set.source.len(), files.len() as u64);
    assert!(set.source.remarks().is_empty(), "{:?}", set.source.remarks());
    for (id, (name, bytes, expected)) in (0..).zip(&files) {
        assert!(set.source.name(id).ends_with(name));
        let image = read(&set, id).expect(name);
        assert_eq!((image.width, image.height, image.channels), (6, 4, 3), "{name}");
        assert!(image.pixels == expected.to_rgb8().into_raw(), "{name}");
        // Cut anywhere it is a bad picture or a whole one, and never ends the program.
        for length in 0..bytes.len() {
            fs::write(root.path().join("a").join(name), &bytes[..length]).expect("written");
            let _ = read(&set, id);
        }
        let half = &bytes[..bytes.len() / 2];
        fs::write(root.path().join("a").join(name), half).expect("written");
        assert!(read(&set, id).is_err() || name.ends_with("gif"), "{name}");
    }
}

#[test]
fn what_is_not_read_is_counted_by_ending() {
    let root = tempfile::tempdir().expect("temporary folder");
    let whole = jpeg(9, 9, false);
    fill(root.path(), "a", &[("0.jpg", &whole), ("1.heic", b"x"), ("2.HEIC", b"x")]);
    fill(root.path(), "b", &[("0.jpg", &whole), ("sub/notes.txt", b"x"), ("README", b"x")]);
    fs::write(root.path().join("beside.jpg"), &whole).expect("written");
    let set = open(&folder(root.path()), Split::Train, 1).expect("opens");
    assert_eq!(set.source.len(), 2);
    let [unread, beside] = set.source.remarks() else { panic!("{:?}", set.source.remarks()) };
    let expected = "data.train: 4 files are not read: 2 .heic, 1 .txt, 1 without an ending (read";
    assert!(unread.starts_with(expected), "{unread}");
    assert!(beside.contains("1 pictures lie beside the class folders"), "{beside}");
    fill(root.path(), "c", &[("0.avif", b"x")]);
    let text = refusal(&folder(root.path()), Split::Train);
    assert!(text.contains("/c holds no picture (read are .jpg"), "{text}");
    // Of that class alone.
    assert!(text.contains(" not 1 .avif)"), "{text}");
    fs::remove_file(root.path().join("c/0.avif")).expect("removed");
    let text = refusal(&folder(root.path()), Split::Train);
    assert!(text.contains("/c holds no picture") && !text.contains(".heic"), "{text}");
}

#[test]
fn what_macos_puts_into_archives_is_left_out_and_counted() {
    let root = tempfile::tempdir().expect("temporary folder");
    let whole = jpeg(9, 9, false);
    fill(root.path(), "a", &[("0.jpg", &whole), ("._0.jpg", b"x"), (".DS_Store", b"x")]);
    fill(root.path(), "b", &[("0.jpg", &whole), ("__MACOSX/x.jpg", b"x")]);
    fill(root.path(), "__MACOSX", &[("._0.jpg", b"x"), ("1.jpg", &whole)]);
    let set = open(&folder(root.path()), Split::Train, 1).expect("opens");
    assert_eq!((set.source.classes(), set.source.len()), (&["a".into(), "b".into()][..], 2));
    assert_eq!(
        set.source.remarks(),
        [
            "data.train: 2 hidden names (they begin with a dot) are left out",
            "data.train: 2 folders __MACOSX of an archive are left out",
        ]
    );
}

#[test]
fn a_folder_is_read_once_whatever_links_lead_to_it() {
    let root = tempfile::tempdir().expect("temporary folder");
    let (set, aside) = (root.path().join("set"), root.path().join("aside"));
    let whole = jpeg(9, 9, false);
    for class in ["a", "b"] {
        fill(&set, class, &[("0.jpg", &whole), ("1.jpg", &whole), ("deep/2.jpg", &whole)]);
    }
    fill(root.path(), "aside", &[("3.jpg", &whole)]);
    fill(root.path(), "more", &[("4.jpg", &whole)]);
    for (target, link) in [
        ("..", "a/loop"),
        ("../..", "a/up"),
        ("../b", "a/neighbour"),
        ("deep", "a/twice"),
        ("../../aside", "b/elsewhere"),
        ("../../more", "b/again"),
        ("../../more", "b/again too"),
        ("..", "up"),
        ("nowhere", "b/unmounted"),
    ] {
        symlink(target, set.join(link)).expect("linked");
    }
    let opened = open(&folder(&set), Split::Train, 1).expect("opens");
    assert_eq!(opened.source.len(), 8, "six, and two in folders that only a link leads to");
    assert_eq!(opened.source.classes(), ["a", "b"]);
    let [again, broken] = opened.source.remarks() else { panic!("{:?}", opened.source.remarks()) };
    assert!(again.contains("6 links lead to folders that are read elsewhere"), "{again}");
    assert!(broken.contains("1 links lead to nothing"), "{broken}");
    // What leads to nothing beside the classes may be one that is away.
    symlink("nowhere", set.join("c")).expect("linked");
    let text = refusal(&folder(&set), Split::Train);
    assert!(text.contains("set/c is a link to nothing: mount or restore"), "{text}");
    // A set that is made of links is one.
    let linked = root.path().join("linked");
    fs::create_dir(&linked).expect("created");
    symlink("../aside", linked.join("a")).expect("linked");
    symlink(&aside, linked.join("b")).expect("linked");
    let text = refusal(&folder(&linked), Split::Train);
    assert!(text.contains("a picture has one class"), "{text}");
    fs::remove_file(linked.join("b")).expect("removed");
    symlink("../more", linked.join("b")).expect("linked");
    assert_eq!(open(&folder(&linked), Split::Train, 1).expect("opens").source.len(), 2);
}

#[test]
fn one_folder_is_split_into_two_sets() {
    let root = tempfile::tempdir().expect("temporary folder");
    let picture = encoded(&picture(0).into(), ImageFormat::Png);
    for number in 0..60 {
        let class = root.path().join(if number % 2 == 0 { "a" } else { "b" });
        fs::create_dir_all(&class).expect("made");
        fs::write(class.join(format!("{number}.png")), &picture).expect("written");
    }
    let share: Validation = "25%".parse().expect("a share");
    let data = Data { validation: Some(share), ..folder(root.path()) };
    let splits = [Split::Train, Split::Validation];
    let [train, validation] = splits.map(|split| open(&data, split, 1).expect("opens"));
    let names = |set: &DataSet| -> BTreeSet<String> {
        (0..set.source.len())
            .map(|id| {
                assert_eq!(read(set, id).expect("decodes").width, 6);
                set.source.name(id)
            })
            .collect()
    };
    let (learned, measured) = (names(&train), names(&validation));
    assert!(learned.is_disjoint(&measured) && learned.len() + measured.len() == 60);
    assert!((5..=25).contains(&measured.len()), "{}", measured.len());
    assert_eq!(train.source.classes(), validation.source.classes());
}

#[test]
fn names_may_hold_any_bytes_and_are_shown_escaped() {
    let root = tempfile::tempdir().expect("temporary folder");
    let whole = jpeg(9, 9, false);
    let class = root.path().join(OsStr::from_bytes(b"caf\xe9"));
    fs::create_dir(&class).expect("created");
    let names: [&[u8]; 3] = [b"e\x1b[31mRED\nnl.jpg", b"n\xff\xfe.jpg", b"plain.jpg"];
    for name in names {
        fs::write(class.join(OsStr::from_bytes(name)), &whole).expect("written");
    }
    fs::write(class.join("bad\u{1b}[31m\nname.jpg"), "no picture").expect("written");
    fill(root.path(), "b", &[("0.jpg", &whole)]);
    let set = open(&folder(root.path()), Split::Train, 1).expect("opens");
    assert_eq!(set.source.classes(), ["b", "caf\\xe9"]);
    assert_eq!(set.source.len(), 5);
    let mut bad = Vec::new();
    for id in 0..5 {
        let name = set.source.name(id);
        assert!(!name.chars().any(char::is_control), "{name:?}");
        bad.extend(read(&set, id).err().map(|error| error.to_string()));
    }
    let [bad] = &bad[..] else { panic!("{bad:?}") };
    assert!(bad.contains("caf\\xe9/bad\\u{1b}[31m\\nname.jpg: not a JPEG"), "{bad}");
    let missing = Path::new("/nowhere\n\u{1b}[2J");
    let text = refusal(&folder(missing), Split::Train);
    assert!(text.contains("/nowhere\\n\\u{1b}[2J does not exist"), "{text}");
}
