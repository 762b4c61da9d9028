//! Which listing a process gets that comes later than the run began.

use std::fs;

use super::*;
use crate::data::source::Source;
use crate::data::source::image_folder::ImageFolder;
use crate::data::store::direct::Direct;

const KEY: &str = "data.train";

fn set() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let place = tempfile::tempdir().expect("temporary folder");
    let (root, cache) = (place.path().join("set"), place.path().join("cache"));
    for name in ["a/2.jpg", "a/deep/x.jpg", "b/3.jpg"] {
        put(&root, name);
    }
    fs::create_dir(&cache).expect("made");
    (place, root, cache)
}

fn put(root: &Path, name: &str) {
    fs::create_dir_all(root.join(name).parent().expect("below")).expect("made");
    fs::write(root.join(name), name).expect("written");
}

fn open(root: &Path, folder: &Path, occasion: Occasion) -> Result<ImageFolder, DataError> {
    ImageFolder::open(&Direct::default(), root, KEY, Some(Cache { folder, occasion }))
}

fn names(set: &ImageFolder) -> Vec<String> {
    (0..set.len()).map(|id| set.name(id)).collect()
}

#[test]
fn who_comes_later_has_the_order_that_the_run_began_with() {
    let (_kept, root, cache) = set();
    let began = open(&root, &cache, Occasion::Begins).expect("opens");
    began.keep(&cache).expect("kept");
    put(&root, "a/1.jpg");
    put(&root, "c/0.jpg");
    for (occasion, grown) in [(Occasion::Joins, None), (Occasion::GoesOn, Some("2 pictures"))] {
        let later = open(&root, &cache, occasion).expect("opens");
        assert_eq!((names(&later), later.fingerprint()), (names(&began), began.fingerprint()));
        assert_eq!(later.classes(), began.classes());
        let told = later.news().map(|text| text.contains(grown.unwrap_or("?")));
        assert_eq!(told, grown.map(|_| true), "{:?}", later.news());
    }
    let anew = open(&root, &cache, Occasion::Begins).expect("opens");
    assert_eq!((anew.len(), anew.classes().len()), (5, 3), "another run has what is there");
    anew.keep(&cache).expect("kept");
    assert_eq!(open(&root, &cache, Occasion::Joins).expect("opens").len(), 5);
}

#[test]
fn a_run_does_not_go_on_with_less_than_it_began_with() {
    for (name, other) in [("b/3.jpg", None), ("a/deep/x.jpg", Some("longer than it was"))] {
        let (_kept, root, cache) = set();
        open(&root, &cache, Occasion::Begins).expect("opens").keep(&cache).expect("kept");
        put(&root, "b/4.jpg");
        match other {
            None => fs::remove_file(root.join(name)).expect("there"),
            Some(text) => fs::write(root.join(name), text).expect("written"),
        }
        let refused = open(&root, &cache, Occasion::GoesOn).err().expect("refused").to_string();
        assert!(refused.contains(name) && refused.contains("--fresh"), "{refused}");
        assert_eq!(open(&root, &cache, Occasion::Joins).expect("opens").len(), 3);
    }
}

#[test]
fn without_a_kept_listing_the_set_is_what_it_is_now() {
    let (_kept, root, cache) = set();
    for occasion in [Occasion::Begins, Occasion::GoesOn, Occasion::Joins] {
        assert_eq!(open(&root, &cache, occasion).expect("opens").len(), 3);
    }
}
