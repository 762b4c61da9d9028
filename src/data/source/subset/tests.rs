//! A set that is split by names.

use std::collections::BTreeSet;
use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::data::source::image_folder::ImageFolder;
use crate::data::source::synthetic::Synthetic;
use crate::data::store::memory::MemoryStore;

fn share(text: &str) -> Splitting {
    Splitting::of(&text.parse().expect("fine")).expect("a share")
}

fn folder(root: &str, names: &BTreeSet<String>) -> Arc<dyn Source> {
    let mut store = MemoryStore::default();
    names.iter().for_each(|name| store.put(format!("{root}/{name}.jpg"), name.as_bytes()));
    Arc::new(ImageFolder::open(&store, Path::new(root), "data.train", None).expect("opens"))
}

/// Names below the root of the samples of one split.
fn split_of(whole: &Arc<dyn Source>, split: Split, share: &Splitting) -> BTreeSet<String> {
    let Ok(part) = Subset::of(Arc::clone(whole), split, share) else { return BTreeSet::new() };
    assert_eq!(part.classes(), whole.classes());
    let key = |id| {
        let mut key = Vec::new();
        assert!(part.key(id, &mut key));
        let key = String::from_utf8(key).expect("UTF-8");
        let class = &part.classes()[part.label(id) as usize];
        assert!(key.starts_with(&format!("{class}/")) && part.name(id).ends_with(&key));
        key
    };
    (0..part.len()).map(key).collect()
}

fn names(numbers: std::ops::Range<u32>) -> BTreeSet<String> {
    numbers.map(|number| format!("c{}/{number}", number % 5)).collect()
}

#[test]
fn a_tenth_is_about_a_tenth_and_each_sample_is_in_one_split() {
    let whole = folder("set", &names(0..10_000));
    let part = |split| split_of(&whole, split, &share("10%"));
    let (train, validation) = (part(Split::Train), part(Split::Validation));
    assert_eq!(train.len() + validation.len(), 10_000);
    assert!(train.is_disjoint(&validation));
    // Ten standard deviations of a draw of 10,000 are 300.
    assert!(validation.len().abs_diff(1000) < 300, "{}", validation.len());
    // A larger share holds the smaller one.
    assert!(validation.is_subset(&split_of(&whole, Split::Validation, &share("20%"))));
}

proptest! {
    /// What is there keeps its split, whatever comes or goes and wherever the set lies.
    #[test]
    fn files_that_come_move_no_other(
        before in prop::collection::btree_set("[ab]/[a-z0-9]{1,6}", 1..60),
        came in prop::collection::btree_set("[ab]/[a-z0-9]{1,6}", 0..30),
        percent in 1u32..=50,
    ) {
        let share = share(&format!("{percent}%"));
        let all: BTreeSet<String> = before.union(&came).cloned().collect();
        let (first, later) = (folder("set", &before), folder("elsewhere/it", &all));
        for split in [Split::Train, Split::Validation] {
            let (was, is) = (split_of(&first, split, &share), split_of(&later, split, &share));
            let kept: BTreeSet<String> = before.iter().map(|name| format!("{name}.jpg")).collect();
            prop_assert_eq!(is.intersection(&kept).cloned().collect::<BTreeSet<_>>(), was);
        }
    }
}

#[test]
fn what_cannot_be_split_says_so_and_a_class_without_a_sample_is_told() {
    let refusal = |whole: Arc<dyn Source>, split, text| {
        Subset::of(whole, split, &share(text)).err().expect("refused").to_string()
    };
    let one = folder("set", &["a/1".to_owned()].into());
    let text = refusal(one, Split::Validation, "0.0001%");
    assert_eq!(text, "data.validation = \"0.0001%\": of 1 samples none is left for validation");
    let drawn = Synthetic::new(10, 2, 8, Split::Train, 1).expect("fine");
    let text = refusal(Arc::new(drawn), Split::Train, "10%");
    assert!(text.contains("have no names to split by"), "{text}");
    let mut few = names(0..400);
    few.insert("rare/1".into());
    let whole = folder("set", &few);
    let remarks = |split| {
        let part = Subset::of(Arc::clone(&whole), split, &share("10%")).expect("fine");
        part.remarks().join("; ")
    };
    let both = [remarks(Split::Train), remarks(Split::Validation)];
    let said = both.iter().filter(|text| text.contains("1 of 6 classes have no ")).count();
    assert_eq!(said, 1, "it is in one of them: {both:?}");
}

#[test]
fn splits_and_shares_are_different_sets_to_a_run() {
    let whole = folder("set", &names(0..200));
    let print = |split, text| {
        Subset::of(Arc::clone(&whole), split, &share(text)).expect("fine").fingerprint()
    };
    let prints: BTreeSet<u64> = [
        whole.fingerprint(),
        print(Split::Train, "10%"),
        print(Split::Validation, "10%"),
        print(Split::Train, "20%"),
    ]
    .into();
    assert_eq!(prints.len(), 4);
    assert_eq!(print(Split::Train, "10%"), print(Split::Train, "10%"));
}

/// Names of pictures of films, a letter each, with their frames.
fn frames() -> BTreeSet<String> {
    let films = (0..60u32).flat_map(|film| (0..20).map(move |frame| (film, frame)));
    films.map(|(film, frame)| format!("c{}/film{film}_{frame:03}", film % 3)).collect()
}

fn grouped(group: &str) -> Splitting {
    let text = format!("validation = {{ share = \"20%\", group = '{group}' }}");
    let data: crate::config::Data = toml::from_str(&text).expect("fine");
    Splitting::of(&data.validation.expect("there")).expect("a share")
}

#[test]
fn a_group_is_in_one_split_whole() {
    let whole = folder("set", &frames());
    let part = |split, splitting: &Splitting| split_of(&whole, split, splitting);
    let film = |name: &String| name.split('_').next().unwrap_or_default().to_owned();
    let films = |names: &BTreeSet<String>| names.iter().map(film).collect::<BTreeSet<String>>();
    for group in ["^(.*)_", "film[0-9]+"] {
        let group = grouped(group);
        let (train, held) = (part(Split::Train, &group), part(Split::Validation, &group));
        assert_eq!(train.len() + held.len(), 1200);
        assert!(films(&train).is_disjoint(&films(&held)));
        // 12 of 60 films, and four standard deviations.
        assert!(films(&held).len().abs_diff(12) <= 12, "{}", films(&held).len());
    }
    let parted = part(Split::Validation, &share("20%"));
    assert!(!films(&parted).is_disjoint(&films(&part(Split::Train, &share("20%")))));
    let refused = Subset::of(Arc::clone(&whole), Split::Train, &grouped("movie")).err();
    let said = refused.expect("no name has it").to_string();
    assert!(said.contains("group = \"movie\" matches no sample's name, such as c2/film"), "{said}");
    let some = Subset::of(Arc::clone(&whole), Split::Train, &grouped("c[01]/film[0-9]+"));
    let said = some.expect("fine").remarks().join("; ");
    assert!(said.contains("all but 400 of 1200 samples: each of these is a group"), "{said}");
}
