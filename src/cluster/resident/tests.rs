//! Slots in memory and in files: what counts when, and what a successor finds.

use super::*;

const SHAPE: Shape = Shape::of(&[("weights", 37), ("velocity", 37), ("sums", 5)]);
const OURS: Identity =
    Identity { run: 1, config_fingerprint: 2, data_fingerprint: 3, member: 4, attempt: 5 };

fn key(step: u64) -> Key {
    Key { attempt: 5, generation: 0, step }
}

fn write(slots: &mut Slots, value: f32) {
    let (_, mut next) = slots.begin();
    next.part("weights").fill(value);
    next.part("velocity").fill(-value);
    next.part("sums").fill(value + 0.5);
}

fn committed(slots: &mut Slots, step: u64) {
    write(slots, step as f32);
    slots.commit(step, 0, format!("position {step}").as_bytes());
}

/// The free files, of which there is one at least. A child that another test is just starting holds
/// a copy of every lock until it runs its own program.
fn free(folder: &Folder) -> Vec<SlotFile> {
    let look = || folder.take_free().map(Result::unwrap).collect::<Vec<_>>();
    let looks = std::iter::repeat_with(look).take(1000);
    let mut found = looks.inspect(|found| {
        if found.is_empty() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    });
    found.find(|found| !found.is_empty()).unwrap_or_default()
}

/// A folder, and slots in a file of it that have committed steps 1 and 2.
fn in_file() -> (tempfile::TempDir, Folder, Slots) {
    let place = tempfile::tempdir().unwrap();
    let folder = Folder::new(place.path(), "0badcafe");
    let mut slots = Slots::vacant(SHAPE);
    slots.move_to(folder.create(slots.file_bytes(), "/runs/a").unwrap()).unwrap();
    slots.identify(OURS);
    committed(&mut slots, 1);
    committed(&mut slots, 2);
    (place, folder, slots)
}

#[test]
fn a_file_that_another_process_is_making_is_left_to_it() {
    let (place, run) = (tempfile::tempdir().unwrap(), "0badcafe");
    let folder = Folder::new(place.path(), run);
    let mut child = std::process::Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    let half_made = |pid: u32| {
        let path = place.path().join(format!("kintsugi-{run}-new-{pid}-0.slots"));
        std::fs::write(path, "").unwrap();
    };
    half_made(std::process::id());
    assert_eq!(folder.take_free().count(), 0, "its maker lives");
    half_made(child.id());
    assert_eq!(free(&folder).len(), 1, "its maker is gone");
}

#[test]
fn only_a_file_without_any_state_is_removed() {
    let (_place, folder, slots) = in_file();
    slots.leave_no_empty_file();
    assert_eq!(folder.files().unwrap().len(), 1, "two states are in it");
    drop(slots);
    let mut taken = free(&folder);
    let mut slots = Slots::vacant(SHAPE);
    slots.move_to(taken.pop().unwrap()).unwrap();
    slots.select(key(1));
    slots.leave_no_empty_file();
    folder.clear_empty();
    assert_eq!(folder.files().unwrap().len(), 1, "one state is in it");
    slots.refuse_all();
    slots.leave_no_empty_file();
    assert!(folder.files().unwrap().is_empty());
    Slots::new(SHAPE).leave_no_empty_file();
    // Of a rank that was killed before it could.
    drop(folder.create(slots.file_bytes(), "/run").unwrap());
    folder.clear_empty();
    assert!(folder.files().unwrap().is_empty());
}

#[test]
fn nothing_counts_before_the_commit_word() {
    let mut slots = Slots::new(SHAPE);
    assert!(!slots.holds_state());
    write(&mut slots, 1.0);
    assert!(!slots.holds_state());
    slots.commit(1, 0, &[7]);
    assert!(slots.holds_state());
    write(&mut slots, 2.0);
    let seen = slots.committed();
    assert_eq!((seen.step, seen.generation, seen.extra), (1, 0, &[7u8][..]));
    assert!(seen.part("weights").iter().all(|&x| x == 1.0));
}

#[test]
fn an_update_abandoned_halfway_can_be_done_again() {
    let mut slots = Slots::new(SHAPE);
    write(&mut slots, 1.0);
    slots.commit(1, 0, &[]);
    write(&mut slots, 99.0);
    write(&mut slots, 2.0);
    slots.commit(2, 3, &[]);
    let seen = slots.committed();
    assert_eq!((seen.step, seen.generation, seen.part("velocity")[36]), (2, 3, -2.0));
}

#[test]
fn a_received_state_replaces_both_slots() {
    let mut slots = Slots::new(SHAPE);
    write(&mut slots, 5.0);
    slots.commit(9, 1, &[1]);
    let zeros = [0.25f32; 37];
    let state = SlotView::new(SHAPE, 4, 2, &[&zeros, &zeros, &zeros[..5]], b"tail");
    slots.identify(OURS);
    slots.replace(state);
    assert_eq!(slots.committed(), state);
    let header = slots.header().unwrap();
    assert_eq!((header.identity, header.extra_bytes), (OURS, 4));
    assert_eq!(header.key, Key { attempt: 5, generation: 2, step: 4 });
    assert_eq!(slots.headers().iter().flatten().count(), 1);
}

#[test]
fn slots_begin_on_cache_lines_and_away_from_the_start_of_a_page() {
    let mut slots = Slots::new(SHAPE);
    let (view, mut next) = slots.begin();
    for (_, part) in view.parts() {
        assert_eq!(part.as_ptr() as usize % 4096, 2048);
    }
    for (_, part) in next.parts() {
        assert_eq!(part.as_ptr() as usize % 4096, 2048);
    }
}

#[test]
fn an_empty_shape_and_a_long_position_are_harmless() {
    let mut slots = Slots::new(Shape::default());
    slots.begin();
    slots.commit(1, 0, &vec![1; EXTRA_BYTES_MAX]);
    assert_eq!(slots.committed().extra.len(), EXTRA_BYTES_MAX);
    slots.begin();
    slots.commit(2, 0, &vec![1; EXTRA_BYTES_MAX + 1]);
    assert_eq!((slots.committed().step, slots.committed().extra), (2, &[][..]));
}

#[test]
fn a_successor_finds_both_steps_only_after_the_owner_is_gone() {
    let (_place, folder, slots) = in_file();
    assert_eq!(folder.take_free().count(), 0, "taken from under its owner");
    let path = folder.of_member(4);
    assert_eq!(slots.file().unwrap().path(), path);
    drop(slots);
    let file = free(&folder).pop().expect("its owner is gone");
    let mut successor = Slots::vacant(SHAPE);
    successor.move_to(file).unwrap();
    assert!(!successor.select(key(3)));
    assert!(successor.select(key(2)));
    assert_eq!(successor.committed().extra, b"position 2");
    assert!(successor.select(key(1)), "the step before is there too");
    assert_eq!(successor.committed().part("weights")[36], 1.0);
    assert!(!successor.select(key(2)), "a state later than the agreed one is given up");
    successor.identify(Identity { member: 9, ..OURS });
    assert!(!path.exists() && folder.of_member(9).exists());
}

#[test]
fn a_death_in_the_middle_of_an_update_leaves_the_step_before() {
    let (_place, folder, mut slots) = in_file();
    write(&mut slots, 99.0);
    drop(slots);
    let mut successor = Slots::vacant(SHAPE);
    successor.move_to(free(&folder).pop().unwrap()).unwrap();
    let [first, second] = successor.headers();
    let held: Vec<u64> = [first, second].iter().flatten().map(|header| header.key.step).collect();
    assert_eq!(held, [2]);
    assert!(successor.select(key(2)));
    assert_eq!(successor.committed().part("velocity")[0], -2.0);
}

#[test]
fn flipped_bytes_of_a_position_are_found() {
    use std::os::unix::fs::FileExt;
    let (_place, folder, slots) = in_file();
    drop(slots);
    let path = folder.of_member(4);
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    // Slot 0 was written second: its body begins behind three pages with the position.
    file.write_all_at(b"P", 3 * 4096).unwrap();
    let mut successor = Slots::vacant(SHAPE);
    successor.move_to(SlotFile::take(&path).unwrap().unwrap()).unwrap();
    let damaged = |header: &Result<Header, Refusal>| matches!(header, Err(Refusal::Damaged(_)));
    assert!(successor.headers().iter().any(damaged), "{:?}", successor.headers());
}

#[test]
fn a_neighbour_copies_a_living_members_state() {
    let (_place, folder, slots) = in_file();
    let look = Look::at(&folder.of_member(4)).unwrap();
    let mut other = Slots::new(SHAPE);
    assert!(!other.copy_from(&look, key(3)).unwrap());
    assert!(other.copy_from(&look, key(2)).unwrap());
    other.commit_as(key(2), b"sent");
    assert_eq!(other.hash(key(2)), slots.hash(key(2)));
    assert_ne!(other.hash(key(2)), slots.hash(key(1)));
    assert_eq!(other.committed().extra, b"sent");
}

#[test]
fn files_are_listed_with_their_run_and_cleared() {
    let (place, folder, slots) = in_file();
    let found = folder::inventory(place.path()).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].run_dir.as_str(), found[0].held), ("/runs/a", true));
    assert_eq!(found[0].newest.as_ref().unwrap().key, key(2));
    assert_eq!(folder::member_of(&found[0].path), Some(4));
    std::fs::write(place.path().join("kintsugi-0badcafe-x.slots"), "short").unwrap();
    assert_eq!(folder::inventory(place.path()).unwrap().len(), 2);
    folder.clear_free();
    assert_eq!(folder.files().unwrap(), [folder.of_member(4)], "a living member's file stays");
    folder.clear();
    assert_eq!(folder.files().unwrap(), Vec::<std::path::PathBuf>::new());
    assert_eq!(slots.committed().step, 2, "its owner goes on");
}

#[test]
fn a_folder_without_room_says_so_and_leaves_nothing() {
    let place = tempfile::tempdir().unwrap();
    let folder = Folder::new(place.path(), "0badcafe");
    assert!(folder.create(u64::MAX / 2, "").is_err());
    assert_eq!(folder.files().unwrap(), Vec::<std::path::PathBuf>::new());
    let absent = Folder::new(std::path::Path::new("/no/such/folder"), "0badcafe");
    assert!(absent.create(4096, "").is_err());
}

/// Writes `mark` where the owner's stands in member 4's file.
fn marked(folder: &Folder, mark: kintsugi_ffi::life::Mark) {
    use std::os::unix::fs::FileExt;
    let path = folder.of_member(4);
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(bytemuck::bytes_of(&mark.word()), 3 * 4096 - 8).unwrap();
}

#[test]
fn the_slots_of_a_process_that_ends_go_to_one_successor_before_their_lock_is_free() {
    use kintsugi_ffi::life::{Life, Mark};
    let (_place, folder, _slots) = in_file();
    let mut owner = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let mark = Mark::of(owner.id());
    marked(&folder, mark);
    assert_eq!(folder.inherit().count(), 0, "its owner lives");
    owner.kill().unwrap();
    let limit = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while mark.life() == Life::Lives && std::time::Instant::now() < limit {
        std::thread::yield_now();
    }
    assert_eq!(folder.take_free().count(), 0, "the lock is held");
    let inherited = || folder.inherit().next().unwrap().unwrap();
    let (first, second) = (inherited(), inherited());
    let mut successor = Slots::vacant(SHAPE);
    successor.move_to(first).unwrap();
    let error = Slots::vacant(SHAPE).move_to(second).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    assert!(successor.select(key(2)));
    owner.wait().unwrap();
}

#[test]
fn slots_that_a_living_process_took_are_not_free_although_their_lock_is() {
    use kintsugi_ffi::life::Mark;
    let (_place, folder, slots) = in_file();
    let mut owner = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    marked(&folder, Mark::of(owner.id()));
    drop(slots);
    assert_eq!(folder.take_free().count() + folder.inherit().count(), 0);
    assert!(folder::inventory(folder.path()).unwrap()[0].held);
    owner.kill().unwrap();
    owner.wait().unwrap();
    assert_eq!(free(&folder).len(), 1);
    assert!(!folder::inventory(folder.path()).unwrap()[0].held);
}

#[test]
fn where_a_run_lay_is_known_by_what_it_left_there() {
    let (place, folder, slots) = in_file();
    // A copy of the run lies where it lay, or its ranks live.
    let lay = |run, there: bool| folder::former_places(place.path(), run, |_| there);
    assert!(lay(1, false).is_empty(), "held");
    drop(slots);
    drop(free(&folder));
    assert!(lay(1, true).is_empty() && lay(2, false).is_empty());
    // A child that another test is just starting holds the lock until it runs its program.
    let places = (0..1000).map(|_| lay(1, false)).find(|places| !places.is_empty());
    assert_eq!(places.unwrap(), [std::path::PathBuf::from("/runs/a")]);
    assert_eq!(folder.files().unwrap().len(), 1);
}

#[test]
fn a_file_that_was_removed_before_it_had_its_name_is_told_by_its_path() {
    let place = tempfile::tempdir().unwrap();
    let folder = Folder::new(place.path(), "0badcafe");
    let mut file = folder.create(1 << 16, "/runs/a").unwrap();
    let path = file.path().to_owned();
    std::fs::remove_file(&path).unwrap();
    let error = file.name_after(0).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
}
