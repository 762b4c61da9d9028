//! A set of shards, its index, and what it says when something is wrong with it.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::data::DataError;
use crate::data::store::Extent;
use crate::data::store::direct::Direct;

/// A shard of pictures with these labels; each picture's only pixel says its number.
pub(in crate::data::source) fn write(path: &Path, first: u8, labels: &[u32]) {
    let mut builder = ::tar::Builder::new(fs::File::create(path).expect("made"));
    let mut append = |name: String, bytes: &[u8]| {
        let mut header = ::tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, bytes).expect("appended");
    };
    for (number, label) in (first..).zip(labels) {
        let picture = [b"P6 1 1 255\n", &[number; 3][..]].concat();
        append(format!("{number:06}.ppm"), &picture);
        append(format!("{number:06}.cls"), label.to_string().as_bytes());
    }
    builder.finish().expect("finished");
}

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().expect("temporary folder"));
        write(&place.path("t-0.tar"), 0, &[2, 0, 1]);
        write(&place.path("t-1.tar"), 3, &[1, 3]);
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn open(&self, name: &str) -> Result<Tar, DataError> {
        let cache = self.path("cache");
        Tar::open(&Direct::default(), &self.path(name), "data.train", None, Some(&cache))
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.path()).expect("there").flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

fn refusal(opened: Result<Tar, DataError>) -> String {
    opened.err().expect("refused").to_string()
}

#[test]
fn samples_of_all_shards_come_in_order_by_their_offsets() {
    let place = Place::new();
    let set = place.open("t-{0..1}.tar").expect("opened");
    let labels: Vec<u32> = (0..set.len()).map(|id| set.label(id)).collect();
    assert_eq!(labels, [2, 0, 1, 1, 3]);
    assert_eq!(set.classes(), ["0", "1", "2", "3"]);
    let (store, mut bytes) = (Direct::default(), Vec::new());
    for id in 0..set.len() {
        let location = set.location(id).expect("in a shard");
        assert!(matches!(location.extent, Extent::Range { length: 14, .. }));
        store.fetch(&location, &mut bytes).expect("there");
        assert_eq!(set.decode(id, &bytes).expect("a picture").pixels, vec![id as u8; 3]);
    }
    assert!(set.name(3).ends_with("t-1.tar/000003.ppm"), "{}", set.name(3));
    assert!(set.remarks().is_empty(), "{:?}", set.remarks());
    assert_eq!(set.fingerprint(), place.open("").expect("the folder").fingerprint());
    assert_ne!(set.fingerprint(), place.open("t-{1,0}.tar").expect("turned").fingerprint());
}

#[test]
fn an_index_lies_beside_its_shard_and_is_trusted_while_the_shard_is_as_it_was() {
    let place = Place::new();
    let fingerprint = place.open("t-0.tar").expect("opened").fingerprint();
    assert_eq!(place.names(), ["t-0.tar", "t-0.tar.index", "t-1.tar"]);
    // It is believed: what it says is not in the shard.
    let index = place.path("t-0.tar.index");
    let text = fs::read_to_string(&index).expect("there").replace("000000.ppm", "renamed.ppm");
    let body = text.split_once('\n').expect("a line").1;
    let hash = xxhash_rust::xxh3::xxh3_64(body.as_bytes());
    fs::write(&index, format!("{hash:016x}\n{body}")).expect("written");
    let set = place.open("t-0.tar").expect("opened");
    assert!(set.name(0).ends_with("renamed.ppm") && set.remarks().is_empty());
    // A byte that is wrong, a cut, a sample beyond the shard's end: it is made anew, and said.
    let beyond = body.replacen("\"length\":14", "\"length\":1400000000", 1);
    assert_ne!(beyond, body);
    let hash = xxhash_rust::xxh3::xxh3_64(beyond.as_bytes());
    let beyond = format!("{hash:016x}\n{beyond}");
    for damaged in [text.clone(), text[..40].to_owned(), String::new(), beyond] {
        fs::write(&index, damaged).expect("written");
        let set = place.open("t-0.tar").expect("opened");
        assert_eq!(set.fingerprint(), fingerprint);
        let [remark] = set.remarks() else { panic!("{:?}", set.remarks()) };
        assert!(remark.contains("the index of 1 shards was old or damaged"), "{remark}");
        assert!(place.open("t-0.tar").expect("opened").remarks().is_empty());
    }
    // Another shard in its place.
    write(&place.path("t-0.tar"), 7, &[0, 0, 0, 1]);
    let set = place.open("t-0.tar").expect("opened");
    assert_eq!((set.len(), set.remarks().len()), (4, 1));
    assert_ne!(set.fingerprint(), fingerprint);
}

#[test]
fn where_nothing_can_lie_beside_a_shard_the_run_keeps_its_index() {
    let place = Place::new();
    fs::create_dir(place.path("t-0.tar.index.part")).expect("in the way");
    let fingerprint = place.open("t-0.tar").expect("opened").fingerprint();
    assert_eq!(fs::read_dir(place.path("cache")).expect("made").count(), 1);
    assert_eq!(place.open("t-0.tar").expect("opened").fingerprint(), fingerprint);
    // Nor there: it is listed at each start.
    fs::remove_dir_all(place.path("cache")).expect("removed");
    fs::write(place.path("cache"), "").expect("in the way");
    let set = place.open("t-0.tar").expect("opened");
    assert_eq!(set.fingerprint(), fingerprint);
    let [remark] = set.remarks() else { panic!("{:?}", set.remarks()) };
    assert!(remark.contains("listed anew at every start"), "{remark}");
}

#[test]
fn where_everybody_may_write_no_index_is_believed_or_made_beside_a_shard() {
    let place = Place::new();
    place.open("t-0.tar").expect("opened");
    let planted = fs::read_to_string(place.path("t-0.tar.index")).expect("there");
    let body = planted.split_once('\n').expect("a line").1.replace("000000.ppm", "renamed.ppm");
    let hash = xxhash_rust::xxh3::xxh3_64(body.as_bytes());
    let planted = format!("{hash:016x}\n{body}");
    fs::write(place.path("t-0.tar.index"), &planted).expect("written");
    fs::set_permissions(place.0.path(), fs::Permissions::from_mode(0o1777)).expect("ours");
    let set = place.open("t-{0..1}.tar").expect("opened");
    assert!(set.name(0).ends_with("000000.ppm"), "{}", set.name(0));
    assert!(!place.names().contains(&"t-1.tar.index".to_owned()), "{:?}", place.names());
    assert_eq!(fs::read_dir(place.path("cache")).expect("made").count(), 2);
}

#[test]
fn what_another_program_left_beside_a_shard_stays_as_it_is() {
    let place = Place::new();
    let theirs = place.path("t-0.tar.index");
    fs::write(&theirs, "000000.ppm 512 14\n").expect("written");
    fs::create_dir(place.path("t-1.tar.index")).expect("in the way");
    let set = place.open("t-{0..1}.tar").expect("opened");
    assert!(set.remarks().is_empty(), "{:?}", set.remarks());
    assert_eq!(fs::read_to_string(&theirs).expect("there"), "000000.ppm 512 14\n");
    assert_eq!(fs::read_dir(place.path("cache")).expect("made").count(), 2);
}

/// A shard that is written anew while it is read.
struct Growing<'a> {
    files: Direct,
    grows: &'a Path,
}

impl Store for Growing<'_> {
    fn fetch(&self, location: &Location<'_>, into: &mut Vec<u8>) -> Result<(), FetchError> {
        let grown = [fs::read(self.grows)?, vec![0; 512]].concat();
        fs::write(self.grows, grown)?;
        self.files.fetch(location, into)
    }
    fn list(&self, folder: &Path) -> std::io::Result<Vec<crate::data::store::Entry>> {
        self.files.list(folder)
    }
    fn look(&self, path: &Path) -> std::io::Result<crate::data::store::Kind> {
        self.files.look(path)
    }
    fn changed_ns(&self, path: &Path) -> std::io::Result<Option<i64>> {
        self.files.changed_ns(path)
    }
}

#[test]
fn a_shard_that_changes_while_it_is_listed_has_no_index() {
    let place = Place::new();
    let shard = place.path("t-0.tar");
    let store = Growing { files: Direct::default(), grows: &shard };
    let opened = Tar::open(&store, &shard, "data.train", None, Some(&place.path("cache")));
    let error = opened.err().expect("refused");
    assert!(matches!(error, DataError::Store(_)), "{error:?}");
    assert!(error.to_string().ends_with("it changes while it is listed"), "{error}");
    assert_eq!(place.names(), ["t-0.tar", "t-1.tar"]);
    assert_eq!(place.open("t-0.tar").expect("opened").len(), 3);
}

#[test]
fn a_shard_that_is_written_or_replaced_after_it_was_listed_is_told_for_all_its_samples() {
    let place = Place::new();
    let shard = place.path("t-0.tar");
    let written = |reads: bool, how: &dyn Fn()| {
        let (set, store) = (place.open("t-{0..1}.tar").expect("opened"), Direct::default());
        if reads {
            let location = set.location(0).expect("in a shard");
            store.fetch(&location, &mut Vec::new()).expect("read");
        }
        assert!((0..set.len()).all(|id| !set.is_rewritten(id, &store)));
        // Longer than a tick of the clock of files, then longer than between two looks.
        std::thread::sleep(std::time::Duration::from_millis(20));
        how();
        std::thread::sleep(std::time::Duration::from_millis(250));
        (0..set.len()).map(|id| set.is_rewritten(id, &store)).collect::<Vec<_>>()
    };
    let body = fs::read(&shard).expect("there");
    let only_first = [true, true, true, false, false];
    let write = || fs::write(&shard, &body).expect("written");
    let replace = || {
        fs::write(place.path("new"), &body).expect("written");
        fs::rename(place.path("new"), &shard).expect("replaced");
    };
    for reads in [true, false] {
        assert_eq!(written(reads, &write), only_first, "{reads}");
    }
    assert_eq!(written(false, &replace), only_first);
    assert_eq!(written(true, &replace), [false; 5], "the old one is open, and is read on");
    let remove = || fs::remove_file(&shard).expect("removed");
    assert_eq!(written(false, &remove), [false; 5], "it may be back");
}

#[test]
fn what_is_wrong_names_the_key_the_shard_and_the_member() {
    let place = Place::new();
    let text = refusal(place.open("x-{0..1}.tar"));
    assert!(text.starts_with("data.train: ") && text.contains("matches no file"), "{text}");
    let cut = fs::read(place.path("t-1.tar")).expect("there")[..1200].to_vec();
    fs::write(place.path("t-1.tar"), cut).expect("written");
    let text = refusal(place.open("t-{0..1}.tar"));
    assert!(text.contains("t-1.tar: it was cut:"), "{text}");
    assert!(!place.names().contains(&"t-1.tar.index".to_owned()), "{:?}", place.names());
    write(&place.path("t-1.tar"), 3, &[1, 3]);
    let (store, shards) = (Direct::default(), place.path("t-{0..1}.tar"));
    let known = Tar::open(&store, &shards, "data.validation", Some(3), None);
    let text = refusal(known);
    assert!(text.ends_with("000004.ppm has label 3, and data.train has 3 classes (0 to 2)"));
    write(&place.path("t-1.tar"), 3, &[]);
    assert!(refusal(place.open("t-1.tar")).contains("holds no sample"));
    write(&place.path("t-1.tar"), 3, &[5]);
    let set = place.open("t-{0..1}.tar").expect("opened");
    assert!(set.remarks().last().expect("one").contains("2 of 6 classes have no sample: 3, 4"));
}

#[test]
fn a_label_far_from_all_others_is_refused_and_a_high_one_is_named() {
    let place = Place::new();
    write(&place.path("t-1.tar"), 3, &[1, 1_000_000, 2]);
    let text = refusal(place.open("t-{0..1}.tar"));
    let expected = "t-1.tar/000004.ppm has label 1000000: of 1000001 classes 4 would have a sample";
    assert!(text.contains(expected), "{text}");
    // So many classes a set may have whose samples are few.
    write(&place.path("t-1.tar"), 3, &[1, 21_840]);
    let set = place.open("t-{0..1}.tar").expect("opened");
    assert_eq!(set.classes().len(), 21_841);
    let told = set.remarks().last().expect("one");
    assert!(told.contains("the highest label, 21840, is that of "), "{told}");
    assert!(told.ends_with("t-1.tar/000004.ppm"), "{told}");
}

#[test]
fn a_set_without_a_sample_says_what_was_left_out() {
    let place = Place::new();
    let mut builder = ::tar::Builder::new(fs::File::create(place.path("t-0.tar")).expect("made"));
    for name in ["v1.5_0.jpg", "v1.5_0.cls"] {
        let mut header = ::tar::Header::new_gnu();
        header.set_size(1);
        builder.append_data(&mut header, name, &b"0"[..]).expect("appended");
    }
    builder.finish().expect("finished");
    let text = refusal(place.open("t-0.tar"));
    assert!(text.contains("holds no sample; 2 pictures and labels have another dot"), "{text}");
    assert!(text.contains("a key ends at its first dot"), "{text}");
}
