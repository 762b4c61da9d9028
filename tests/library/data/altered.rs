//! Samples that are others than those that were listed, and sets that are one.

use kintsugi::config::Validation;
use kintsugi::data::set;

use super::*;

#[test]
fn a_validation_set_that_is_the_training_set_is_remarked_wherever_it_lies() {
    let root = tempfile::tempdir().expect("temporary folder");
    let [train, copy, other] = ["train", "copy", "other"].map(|name| root.path().join(name));
    for folder in [&train, &copy, &other] {
        let edge = if folder == &other { 40 } else { 20 };
        fill(folder, "cat", &[("0.jpg", &jpeg(edge, 20, false))]);
        fill(folder, "dog", &[("0.jpg", &jpeg(20, edge, false))]);
    }
    let listed = |data: &Data| {
        let [train, measured] =
            [Split::Train, Split::Validation].map(|split| open(data, split, 1).expect("opens"));
        set::remark(&*train.source, Some(&*measured.source))
    };
    let beside = |validation: &Path| Data {
        validation: Some(validation.to_owned().into()),
        ..folder(&train)
    };
    for same in [&train, &copy] {
        let said = listed(&beside(same)).expect("a remark");
        assert!(said.contains("has the samples of data.train (2)"), "{said}");
    }
    assert_eq!(listed(&beside(&other)), None);
    let made = Data { format: DataFormat::Synthetic, synthetic_samples: 4, ..Data::default() };
    let made = Data { synthetic_classes: 4, ..made };
    assert_eq!(listed(&made), None, "four samples of each");
    let alone = open(&folder(&train), Split::Train, 1).expect("opens");
    assert_eq!(set::remark(&*alone.source, None), None);
}

#[test]
fn a_picture_that_was_cut_since_it_was_listed_is_bad_and_another_one() {
    let root = tempfile::tempdir().expect("temporary folder");
    let cut = damaged(root.path())[2];
    for name in ["0.jpg", "1.jpg"] {
        fs::write(root.path().join("a").join(name), jpeg(30, 30, false)).expect("written");
    }
    let set = open(&folder(root.path()), Split::Train, 1).expect("opens");
    let whole = fs::read(root.path().join("a/0.jpg")).expect("read");
    fs::write(root.path().join("a/0.jpg"), &whole[..whole.len() / 2]).expect("written");
    let loader = Loader::new(set.clone(), Order::new(20, 1, 1, 20).expect("valid"), options(1, 1));
    loader.plan(0, &[0]);
    let batch = loader.take(0, 0).expect("skips");
    let found = |batch: &Batch| (batch.count, batch.skipped, batch.altered);
    assert_eq!(
        found(&batch),
        (20, 5, 1),
        "those that were bad when listed, {cut} too, are as listed"
    );
    let sums = [0, 1 << 20].map(|cache_bytes| {
        let evaluation = Evaluation::new(set.clone(), &options(0, 0), cache_bytes);
        [(); 2].map(|()| {
            let batch = evaluation.batch(0, 20).expect("skips");
            assert_eq!(found(&batch), (20, 5, 1), "decoded each time and kept: {cache_bytes}");
            batch.contents
        })
    });
    assert_eq!(sums, [[batch.contents; 2]; 2], "whoever reads them");
    fs::write(root.path().join("b").join("cut.jpg"), b"other").expect("written");
    let other = Evaluation::new(set, &options(0, 0), 0).batch(0, 20).expect("skips");
    assert_eq!(found(&other), (20, 5, 2));
    assert_ne!(other.contents, batch.contents, "bad ones count with their bytes");
}

#[test]
fn what_is_measured_and_trained_on_is_said_of_files_that_two_sets_share() {
    let root = tempfile::tempdir().expect("a folder");
    // Two pictures of CIFAR-10 in one file, another in the other: a label and 3 x 32 x 32 levels.
    let picture = |label: u8| [&[label][..], &[label; 3 * 32 * 32]].concat();
    fs::write(root.path().join("a.bin"), [picture(0), picture(1)].concat()).expect("written");
    fs::write(root.path().join("b.bin"), picture(2)).expect("written");
    std::os::unix::fs::symlink("b.bin", root.path().join("c.bin")).expect("a link");
    let said = |train: &str, validation: &str| {
        let place = |name: &str| root.path().join(name);
        let data = Data {
            format: DataFormat::Cifar10,
            train: Some(place(train)),
            validation: Some(Validation::Place(place(validation))),
            ..Data::default()
        };
        let [train, validation] =
            [Split::Train, Split::Validation].map(|split| open(&data, split, 1).expect("opens"));
        set::remark(&*train.source, Some(&*validation.source))
    };
    assert_eq!(said("a.bin", "b.bin"), None);
    for (train, validation) in [("", "b.bin"), ("", "c.bin")] {
        let said = said(train, validation).expect("all files are trained on");
        assert!(said.starts_with("data.validation has 1 of the files of data.train ("), "{said}");
    }
    let said = said("a.bin", "a.bin").expect("they are one");
    assert!(said.starts_with("data.validation has the samples of data.train (2)"), "{said}");
}
