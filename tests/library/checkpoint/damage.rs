//! Files that are not what was written, and files of something else.

use super::*;
use kintsugi::train::checkpoint::CheckpointError;
use kintsugi::train::checkpoint::manifest::{FileEntry, MODEL, Manifest};
use proptest::prelude::*;

fn refusal(storage: &dyn Storage, step: u64) -> CheckpointError {
    store::read_snapshot(storage, &folder_of(step), Some(&expectation())).unwrap_err()
}

fn damage(storage: &dyn Storage, step: u64, file: &str, body: &[u8]) {
    storage.write_whole(&folder_of(step).join(file), &[body]).unwrap();
}

fn body(storage: &dyn Storage, step: u64, file: &str) -> Vec<u8> {
    storage.read(&folder_of(step).join(file)).unwrap()
}

fn two_checkpoints() -> MemoryStorage {
    let storage = MemoryStorage::new();
    write(&storage, 1);
    write(&storage, 2);
    storage
}

#[test]
fn what_was_written_comes_back_bit_for_bit() {
    let storage = MemoryStorage::new();
    write(&storage, 3);
    let found = newest_verified(&storage, &expectation()).unwrap().unwrap();
    assert_eq!(found, snapshot(3));
    assert_eq!(found.state_sha256(), snapshot(3).state_sha256());
    assert_eq!(names(&storage), ["step-00000003"]);
}

/// Ten of them in a row end a run, whatever starts lie between.
#[test]
fn steps_that_changed_no_weight_are_marked_and_those_of_an_earlier_release_are_not() {
    let storage = MemoryStorage::new();
    let mut marked = snapshot(3);
    let line = |step, zero_update| Committed {
        step,
        epoch: 0,
        cursor: step,
        count: 1,
        skipped: 0,
        mix: 0,
        attempt: 1,
        zero_update,
    };
    marked.state.ledger_tail = vec![line(1, true), line(2, false), line(3, true)];
    let written = store::write(&storage, &marked, 9, &|| true, &RealClock::default());
    written.result.unwrap();
    let found = newest_verified(&storage, &expectation()).unwrap().unwrap();
    assert_eq!(found.state.ledger_tail, marked.state.ledger_tail);
    write(&storage, 4);
    let manifest = body(&storage, 4, MANIFEST);
    assert!(!String::from_utf8(manifest).unwrap().contains("zero_updates"), "as ever");
}

#[test]
fn s12_a_run_without_checkpoints_starts_from_nothing() {
    assert_eq!(newest_step(&MemoryStorage::new()), None);
}

#[test]
fn s1_a_file_torn_at_any_page_is_never_loaded_and_the_older_one_is() {
    for file in all_files() {
        let storage = two_checkpoints();
        let whole = body(&storage, 2, file);
        let pages = (0..whole.len()).step_by(4096);
        for cut in pages.chain([1, 8, whole.len() / 2, whole.len() - 1]) {
            damage(&storage, 2, file, &whole[..cut]);
            let error = refusal(&storage, 2);
            assert!(matches!(error, CheckpointError::Damaged { .. }), "{file} at {cut}: {error}");
            assert!(error.to_string().contains(file), "{file} at {cut}: {error}");
        }
        assert_eq!(newest_step(&storage), Some(1), "{file}");
        assert_eq!(names(&storage), ["step-00000001", "step-00000002.bad"]);
    }
}

#[test]
fn s1_a_file_that_grew_is_never_loaded() {
    for file in all_files() {
        let storage = two_checkpoints();
        let mut longer = body(&storage, 2, file);
        longer.push(b'\n');
        damage(&storage, 2, file, &longer);
        assert_eq!(newest_step(&storage), Some(1), "{file}");
    }
}

#[test]
fn s2_every_flipped_byte_of_the_manifest_and_the_state_is_found() {
    let storage = two_checkpoints();
    for file in [MANIFEST, "state.bin"] {
        let whole = body(&storage, 2, file);
        for at in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[at] ^= 1 << (at % 8);
            damage(&storage, 2, file, &flipped);
            let error = refusal(&storage, 2);
            assert!(matches!(error, CheckpointError::Damaged { .. }), "{file} byte {at}: {error}");
        }
        damage(&storage, 2, file, &whole);
    }
    assert_eq!(newest_step(&storage), Some(2), "all is as it was");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn s2_one_flipped_bit_in_any_file_means_the_older_one(
        file in 0usize..4, at in any::<prop::sample::Index>(), bit in 0u8..8
    ) {
        let storage = two_checkpoints();
        let file = all_files().nth(file).unwrap();
        let mut flipped = body(&storage, 2, file);
        let at = at.index(flipped.len());
        flipped[at] ^= 1 << bit;
        damage(&storage, 2, file, &flipped);
        prop_assert_eq!(newest_step(&storage), Some(1));
    }
}

#[test]
fn s3_a_missing_file_means_the_older_one() {
    for file in all_files() {
        let storage = two_checkpoints();
        storage.remove(&folder_of(2).join(file)).unwrap();
        assert_eq!(newest_step(&storage), Some(1), "{file}");
    }
}

#[test]
fn s4_when_all_are_bad_the_run_stops_and_says_what_to_do_every_time() {
    let storage = two_checkpoints();
    damage(&storage, 1, "state.bin", b"gone");
    damage(&storage, 2, "state.bin", b"gone");
    for _ in 0..2 {
        let error = newest_verified(&storage, &expectation()).unwrap_err();
        assert!(matches!(&error, CheckpointError::AllBad(names) if names.len() == 2), "{error}");
        assert!(error.to_string().contains("remove checkpoints/*.bad"), "{error}");
    }
    let why = storage.read(Path::new("checkpoints/step-00000002.bad/WHY.txt")).unwrap();
    assert!(String::from_utf8(why).unwrap().contains("state.bin has 4 bytes"));
}

#[test]
fn s7_weights_and_cursor_of_different_steps_never_meet() {
    let storage = two_checkpoints();
    let older = body(&storage, 1, "state.bin");
    damage(&storage, 2, "state.bin", &older);
    assert_eq!(newest_step(&storage), Some(1));
}

#[test]
fn s9_a_newer_format_is_refused_by_name_and_not_marked() {
    let storage = MemoryStorage::new();
    write(&storage, 1);
    let manifest = Manifest::from_text("x", &body(&storage, 1, MANIFEST)).unwrap();
    let newer = Manifest { format: 2, ..manifest }.to_text();
    damage(&storage, 1, MANIFEST, newer.as_bytes());
    let error = newest_verified(&storage, &expectation()).unwrap_err();
    assert!(matches!(error, CheckpointError::Newer { format: 2, known: 1, .. }), "{error}");
    assert_eq!(names(&storage), ["step-00000001"]);
}

#[test]
fn s11_a_checkpoint_from_which_training_fails_is_not_tried_again() {
    let storage = two_checkpoints();
    store::mark_bad(&storage, "step-00000002", "the loss of the first step was NaN");
    assert_eq!(newest_step(&storage), Some(1));
}

#[test]
fn s11_a_state_that_holds_no_number_is_not_written_and_the_older_one_stays() {
    for tensor in ["fc.bias", "the momentum of fc.bias", "bn1.running_var"] {
        let storage = MemoryStorage::new();
        write(&storage, 1);
        let mut poisoned = snapshot(2);
        let Snapshot { parameters, optimizer, statistics, .. } = &mut poisoned;
        let values = match tensor {
            "fc.bias" => parameters,
            "bn1.running_var" => statistics,
            _ => &mut optimizer[0].1,
        };
        *values.last_mut().unwrap() = f32::NEG_INFINITY;
        let report = store::write(&storage, &poisoned, 2, &|| true, &RealClock::default());
        let error = report.result.unwrap_err().to_string();
        assert!(error.contains(&format!("{tensor} holds")), "{error}");
        assert_eq!(names(&storage), ["step-00000001"]);
    }
}

#[test]
fn s11_a_weight_that_is_no_number_under_right_checksums_is_passed_over() {
    let storage = two_checkpoints();
    let mut model = body(&storage, 2, MODEL);
    let last = model.len() - 4;
    model[last..].copy_from_slice(&f32::NAN.to_le_bytes());
    damage(&storage, 2, MODEL, &model);
    let mut manifest = Manifest::from_text("x", &body(&storage, 2, MANIFEST)).unwrap();
    manifest.files[0] = FileEntry::of(MODEL, &[&model]);
    damage(&storage, 2, MANIFEST, manifest.to_text().as_bytes());
    let error = refusal(&storage, 2).to_string();
    assert!(error.contains("holds a value that is no finite number"), "{error}");
    assert_eq!(newest_step(&storage), Some(1));
    assert_eq!(names(&storage), ["step-00000001", "step-00000002.bad"]);
}

#[test]
fn a_folder_under_another_step_s_name_is_not_taken() {
    let storage = two_checkpoints();
    storage.rename(&folder_of(2), &folder_of(7)).unwrap();
    assert_eq!(newest_step(&storage), Some(1));
}

#[test]
fn a_checkpoint_of_something_else_is_an_error_that_names_both() {
    let storage = MemoryStorage::new();
    write(&storage, 1);
    let mut shorter = (*layout()).clone();
    shorter.tensors.pop();
    let ours = expectation;
    let cases = [
        (Expectation { model_name: "vgg16".into(), ..ours() }, "model tiny", "vgg16"),
        (Expectation { config_fingerprint: Some(1), ..ours() }, "0000000000c0ffee", "000000001"),
        (Expectation { data_fingerprint: Some(2), ..ours() }, "training set 0000", "000000002"),
        (Expectation { run_id: Some("big-1".into()), ..ours() }, "run tiny-0", "big-1"),
        (Expectation { layout: shorter.into(), ..ours() }, "fc.bias", "tiny"),
    ];
    for (expect, found, expected) in cases {
        let error = newest_verified(&storage, &expect).unwrap_err().to_string();
        assert!(error.contains(found) && error.contains(expected), "{error}");
    }
    assert_eq!(names(&storage), ["step-00000001"], "nothing is marked for being another's");
}
