//! A run's folder as a launch finds it: what begins, goes on, is complete, and is refused.

use super::*;
use crate::config::ScheduleKind;
use crate::observe::account::from_nothing;
use crate::observe::event::samples;
use crate::observe::ledger::{Committed, Entry, LEDGER_FILE};

fn config() -> Config {
    let mut config = Config::default();
    config.train.steps = Some(10);
    config.train.owners = Some(4);
    config.train.global_batch = 8;
    config
}

fn started() -> (tempfile::TempDir, RunDir) {
    let folder = tempfile::tempdir().unwrap();
    let mut run = RunDir::at(&folder.path().join("run")).unwrap();
    run.create().unwrap();
    run.write_config(&config()).unwrap();
    (folder, run)
}

fn completed() -> RunResult {
    from_nothing("run", 1, Status::Completed, "all steps committed")
}

#[test]
fn a_run_begins_goes_on_and_is_complete() {
    let folder = tempfile::tempdir().unwrap();
    let mut run = RunDir::at(&folder.path().join("run")).unwrap();
    assert_eq!(run.inspect(&mut config(), Owners::Unasked).unwrap(), Found::Nothing);
    run.create().unwrap();
    assert_eq!(run.inspect(&mut config(), Owners::Unasked).unwrap(), Found::Nothing);
    run.write_config(&config()).unwrap();
    assert_eq!(run.inspect(&mut config(), Owners::Unasked).unwrap(), Found::Unfinished);
    EndingFiles::of(run.storage()).write_result(&completed()).unwrap();
    let found = run.inspect(&mut config(), Owners::Unasked).unwrap();
    assert_eq!(found, Found::Completed(Box::new(completed())));
}

#[test]
fn a_run_that_another_launch_begins_meanwhile_is_no_stranger_s_folder() {
    for _ in 0..50 {
        let folder = tempfile::tempdir().unwrap();
        let mut run = RunDir::at(&folder.path().join("run")).unwrap();
        let other = run.clone();
        run.create().unwrap();
        std::fs::write(run.join(".partial-config.toml-7"), "").unwrap();
        let begins = std::thread::spawn(move || run.write_config(&config()).unwrap());
        let look = || other.inspect(&mut config(), Owners::Unasked).unwrap();
        while look() == Found::Nothing {}
        begins.join().unwrap();
        assert_eq!(look(), Found::Unfinished);
    }
}

#[test]
fn a_folder_that_can_be_made_is_not_made_and_one_that_cannot_is_refused() {
    let above = tempfile::tempdir().unwrap();
    std::fs::write(above.path().join("file"), "").unwrap();
    let held = || std::fs::read_dir(above.path()).unwrap().count();
    for (path, can) in [("a/b/run", true), ("", true), ("file/run", false)] {
        let mut run = RunDir::at(&above.path().join(path)).unwrap();
        assert_eq!(run.check_makeable().is_ok(), can, "{path}");
        assert_eq!(held(), 1, "{path}");
        if !can {
            let code = |error: LaunchError| error.exit_code();
            assert_eq!(run.check_makeable().map_err(code), run.create().map_err(code));
        }
    }
}

#[test]
fn a_run_is_refused_a_length_that_it_is_beyond() {
    let (_folder, run) = started();
    let line = |step: u64| {
        let (epoch, cursor) = ((step - 1) / 4, step * 8);
        let (count, skipped, mix, attempt, zero_update) = (8, 0, 0, 1, false);
        let line = Committed { step, epoch, cursor, count, skipped, mix, attempt, zero_update };
        serde_json::to_string(&Entry::Step(line)).unwrap() + "\n"
    };
    std::fs::write(run.join(LEDGER_FILE), (1..=8).map(line).collect::<String>()).unwrap();
    let asked = |steps, epochs, exchange| {
        let mut config = config();
        (config.train.steps, config.train.epochs) = (steps, epochs);
        config.train.exchange = exchange;
        let samples = run.samples(&config).unwrap();
        run.refuse_to_be_shorter(&config.train, samples).map_err(|error| error.to_string())
    };
    let synchronous = |steps, epochs| asked(steps, epochs, ExchangeKind::Synchronous);
    assert_eq!((synchronous(Some(8), None), synchronous(None, Some(2))), (Ok(()), Ok(())));
    let said = synchronous(Some(7), Some(9)).unwrap_err();
    assert!(
        said.contains("train.steps = 7: ") && said.contains("is at step 8, in epoch 1"),
        "{said}"
    );
    assert!(synchronous(None, Some(1)).unwrap_err().contains("train.epochs = 1: "));
    let asynchronous = |steps, epochs| asked(steps, epochs, ExchangeKind::Asynchronous);
    assert_eq!(asynchronous(Some(7), None), Ok(()), "nobody knows how large its set is");
    say_set_has(&run, 27);
    // Steps of 8 samples, and of 3 at an epoch's end: 64 samples are 2 epochs and 10 samples.
    assert_eq!(asynchronous(None, Some(3)), Ok(()));
    assert_eq!(asynchronous(Some(10), None), Ok(()), "70 samples");
    let said = asynchronous(Some(9), None).unwrap_err();
    assert!(said.contains("that are 62 samples: ") && said.contains("with 64 samples"), "{said}");
    assert!(asynchronous(None, Some(2)).is_err());
    let mut config = config();
    (config.train.steps, config.train.exchange) = (Some(9), ExchangeKind::Asynchronous);
    let has = |samples| {
        let result = RunResult { samples, steps: 99, epochs: 99, ..completed() };
        is_long_enough(&result, &config.train, run.samples(&config).unwrap())
    };
    assert_eq!((has(61), has(62)), (false, true));
}

/// The first event of a run with so many training samples.
fn say_set_has(run: &RunDir, train_samples: u64) {
    let event = samples::event(0, 0.0, samples::run_start(train_samples));
    std::fs::write(run.join(EVENTS_FILE), serde_json::to_string(&event).unwrap() + "\n").unwrap();
}

#[test]
fn a_run_keeps_its_owners_and_is_refused_more_ranks_than_they_are() {
    let (_folder, run) = started();
    let asked = |ranks: u32| {
        let mut config = config();
        (config.run.ranks, config.train.owners) = (ranks, None);
        run.inspect(&mut config, Owners::Unasked)
    };
    assert_eq!(asked(4).unwrap(), Found::Unfinished);
    let error = asked(5).unwrap_err();
    assert!(error.to_string().contains("was begun with 4 owners and keeps them"), "{error}");
    assert_eq!(error.exit_code(), 2);
}

#[test]
fn a_run_of_another_version_is_refused_with_what_to_do() {
    let (_folder, run) = started();
    let file = run.join("config.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    for other in ["cache = \"none\"", "cache = \"off\"\nblocks = 3"] {
        let text = text.replace("cache = \"off\"", other);
        std::fs::write(&file, text).unwrap();
        let error = run.inspect(&mut config(), Owners::Unasked).unwrap_err();
        let said = error.to_string();
        assert!(said.contains("begun by another version") && said.contains("--fresh"), "{said}");
        assert_eq!(error.exit_code(), 2);
    }
}

#[test]
fn a_completed_run_that_is_asked_for_more_goes_on() {
    let (_folder, run) = started();
    EndingFiles::of(run.storage()).write_result(&completed()).unwrap();
    let mut longer = config();
    longer.train.steps = Some(20);
    assert_eq!(run.inspect(&mut longer, Owners::Unasked).unwrap(), Found::Unfinished);
}

#[test]
fn one_that_is_asked_for_less_than_it_has_is_complete() {
    let (_folder, run) = started();
    let result = RunResult { steps: 10, epochs: 2, seconds: 5.0, ..completed() };
    EndingFiles::of(run.storage()).write_result(&result).unwrap();
    let asked = |change: fn(&mut Train)| {
        let mut config = config();
        change(&mut config.train);
        matches!(run.inspect(&mut config, Owners::Unasked), Ok(Found::Completed(_)))
    };
    assert!(asked(|train| train.steps = Some(7)));
    assert!(asked(|train| (train.steps, train.epochs) = (Some(99), Some(2))));
    assert!(asked(|train| (train.steps, train.max_seconds) = (None, Some(4.0))));
    assert!(!asked(|train| (train.steps, train.epochs) = (Some(11), Some(3))));
    assert!(!asked(|train| (train.steps, train.max_seconds) = (None, Some(6.0))));
}

#[test]
fn another_length_is_refused_where_the_schedule_follows_it_with_what_to_do() {
    let (_folder, run) = started();
    let mut cosine = config();
    cosine.schedule.kind = ScheduleKind::Cosine;
    run.write_config(&cosine).unwrap();
    cosine.train.steps = Some(20);
    let error = run.inspect(&mut cosine, Owners::Unasked).unwrap_err();
    let (told, code) = (error.to_string(), error.exit_code());
    assert_eq!(code, 2);
    for part in ["train.steps: 10 -> 20", "follows its length", "--extend "] {
        assert!(told.contains(part), "{part}: {told}");
    }
    cosine.run.seed = 9;
    let told = run.inspect(&mut cosine, Owners::Unasked).unwrap_err().to_string();
    assert!(!told.contains("--extend"), "{told}");
}

#[test]
fn changed_keys_are_refused_by_name_with_both_values() {
    let (_folder, run) = started();
    let mut other = config();
    other.run.seed = 7;
    let error = run.inspect(&mut other, Owners::Unasked).unwrap_err().to_string();
    assert!(error.contains("run.seed: 1 -> 7"), "{error}");
}

#[test]
fn a_run_of_plain_sums_is_refused_with_what_to_do_unless_it_is_asynchronous() {
    let (_folder, run) = started();
    let text = identity::resolved_text(&config());
    let plain = ["reproducible = false\n", ""];
    for old in plain.map(|line| text.replace("reproducible = true\n", line)) {
        std::fs::write(run.join("config.toml"), &old).unwrap();
        let error = run.inspect(&mut config(), Owners::Unasked).unwrap_err();
        let said = error.to_string();
        assert!(said.contains("begun with plain sums") && said.contains("--fresh"), "{said}");
        assert_eq!(error.exit_code(), 2);
        EndingFiles::of(run.storage()).write_result(&completed()).unwrap();
        let found = run.inspect(&mut config(), Owners::Unasked).unwrap();
        assert!(matches!(found, Found::Completed(_)), "what is done stays so");
        run.storage().remove(Path::new("result.json")).unwrap();
        let old = old.replace("\"synchronous\"", "\"asynchronous\"");
        std::fs::write(run.join("config.toml"), old).unwrap();
        let mut goes_on = config();
        goes_on.train.exchange = ExchangeKind::Asynchronous;
        assert_eq!(run.inspect(&mut goes_on, Owners::Unasked).unwrap(), Found::Unfinished);
    }
}

#[test]
fn fewer_ranks_keep_the_owners_of_the_start() {
    let (_folder, run) = started();
    let mut fewer = config();
    (fewer.run.ranks, fewer.train.owners) = (2, Some(2));
    assert_eq!(run.inspect(&mut fewer, Owners::Unasked).unwrap(), Found::Unfinished);
    assert_eq!(fewer.train.owners, Some(4));
    fewer.train.owners = Some(2);
    assert!(run.inspect(&mut fewer, Owners::Asked).is_err());
}

#[test]
fn a_folder_of_somebody_else_is_not_a_run() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("thesis.tex"), "").unwrap();
    let run = RunDir::at(folder.path()).unwrap();
    let error = run.inspect(&mut config(), Owners::Unasked).unwrap_err();
    assert!(matches!(error, LaunchError::NotARun { .. }));
}

#[test]
fn old_runs_and_results_are_moved_not_lost() {
    let (folder, mut run) = started();
    EndingFiles::of(run.storage()).write_result(&completed()).unwrap();
    EndingFiles::of(run.storage()).put_result_aside(2).unwrap();
    assert_eq!(run.result(), None);
    assert!(run.join("logs/result-before-2.json").exists());
    assert_eq!(run.move_aside().unwrap(), folder.path().join("run.old-1"));
    run.create().unwrap();
    assert_eq!(run.move_aside().unwrap(), folder.path().join("run.old-2"));
}

#[test]
fn an_attempt_without_an_end_of_its_own_is_one_whose_launch_was_killed() {
    let (_folder, run) = started();
    std::fs::create_dir_all(run.join("logs")).unwrap();
    let told = |attempt: u32| {
        run.say_if_orphaned(attempt);
        run.join(&format!("logs/{}", last_words::world_name(attempt))).exists()
    };
    let ended = |attempt: u32, reason: &str| {
        let result = from_nothing("run", attempt, Status::JobLost, reason);
        EndingFiles::of(run.storage()).write_result(&result).unwrap();
    };
    assert!(!told(0), "none was begun");
    assert!(told(1));
    ended(2, "recovery gave up");
    assert!(!told(2) && told(3));
    ended(4, "the launcher is gone; a checkpoint is written");
    assert!(told(4), "its ranks wrote that");
}

#[test]
fn a_launch_has_the_ranks_of_its_own_attempts_and_what_was_asked_of_them_once() {
    let (_folder, run) = started();
    let world = World { attempt: 3, target: 4, ..World::of_test(4, 6) };
    std::fs::write(run.join("world.json"), serde_json::to_vec(&world).unwrap()).unwrap();
    let target = |since| run.target_ranks(since).unwrap();
    assert_eq!((target(4), target(3)), (None, Some(4)), "of an earlier launch; of this one");
    let ask = |text: &str| run.storage().write_whole(Path::new(RANKS_REQUEST), &[text.as_bytes()]);
    ask("6\n").unwrap();
    assert_eq!((target(3), target(3)), (Some(6), Some(4)), "not twice");
    ask("7\n").unwrap();
    assert_eq!(target(3), Some(4), "more than owners");
}
