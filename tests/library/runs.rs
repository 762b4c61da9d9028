//! `kintsugi runs`: the runs of a folder, two side by side, and which may be removed.

use std::fs::File;
use std::path::{Path, PathBuf};

use kintsugi_ffi::os::{self, Lock};

use crate::fixture::{Answer, Story, write_run};
use crate::program::{kintsugi, printed};

/// A run of 12 s whose configuration has another rate than the default, where one is given.
fn made(out: &Path, arm: &'static str, seed: u64, rate: Option<&str>) -> PathBuf {
    let (seconds, evaluations, step_seconds) = (12.0, 12, 0.11);
    let answer = Answer::Calm;
    let run = write_run(out, Story { arm, answer, seed, seconds, evaluations, step_seconds });
    if let Some(rate) = rate {
        let config = run.join("config.toml");
        let text = std::fs::read_to_string(&config).unwrap();
        let text = text.replace("learning_rate = 0.05", &format!("learning_rate = {rate}"));
        std::fs::write(config, text).unwrap();
    }
    run
}

#[test]
fn a_list_says_what_tells_each_run_from_the_others() {
    let out = tempfile::tempdir().unwrap();
    let runs = [made(out.path(), "a", 1, None), made(out.path(), "b", 1, None)];
    made(out.path(), "c", 2, Some("0.5"));
    std::fs::rename(made(out.path(), "d", 1, None), out.path().join("a-1.old-1")).unwrap();
    std::fs::create_dir(out.path().join("no run")).unwrap();
    let output = kintsugi(&["runs", "--json", out.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", printed(&output));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let listed = json["runs"].as_array().unwrap();
    let names: Vec<&str> = listed.iter().map(|run| run["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["a-1", "b-1", "c-2"]);
    assert_eq!(listed[0]["differs"], serde_json::json!({}));
    assert_eq!(listed[2]["differs"], serde_json::json!({ "optimizer.learning_rate": 0.5 }));
    assert_eq!(listed[0]["status"], "completed");
    assert!(listed[0]["epochs"].as_f64().unwrap() > 1.0, "{json}");
    assert!(listed[0]["bytes"].as_u64().unwrap() > 1000 && listed[0]["best_error"].is_number());
    let table = kintsugi(&["runs", out.path().to_str().unwrap()]);
    assert!(printed(&table).contains("seed 2, optimizer.learning_rate 0.5"), "{}", printed(&table));
    let page = kintsugi(&["report", out.path().to_str().unwrap()]);
    assert_eq!(page.status.code(), Some(0), "{}", printed(&page));
    let page = std::fs::read_to_string(out.path().join("report.html")).unwrap();
    assert!(page.contains("the same seed again (b-1)") && !page.contains("old-1"));
    drop(runs);
}

/// What a start leaves that failed before its first step: a result without events.
fn failed(out: &Path, name: &str) -> PathBuf {
    let run = out.join(name);
    std::fs::rename(made(out, "failed", 1, None), &run).unwrap();
    for file in ["events.jsonl", "ledger.jsonl"] {
        std::fs::remove_file(run.join(file)).unwrap();
    }
    let path = run.join("result.json");
    let mut result: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    result["steps"] = 0.into();
    result["status"] = "job_lost".into();
    result["reason"] = "no rank began".into();
    result["validation"] = serde_json::Value::Null;
    std::fs::write(path, result.to_string()).unwrap();
    run
}

#[test]
fn a_run_that_failed_before_its_first_step_hides_no_other() {
    let out = tempfile::tempdir().unwrap();
    let (all, run) = (out.path().to_str().unwrap(), made(out.path(), "a", 1, None));
    let failed = failed(out.path(), "f");
    let (run, failed) = (run.to_str().unwrap(), failed.to_str().unwrap());
    std::fs::create_dir(out.path().join("new")).unwrap();
    std::fs::write(out.path().join("new/lock"), "").unwrap();
    let page = kintsugi(&["report", all]);
    assert_eq!(page.status.code(), Some(0), "{}", printed(&page));
    assert!(printed(&page).contains("new has not begun"), "{}", printed(&page));
    let text = std::fs::read_to_string(out.path().join("report.html")).unwrap();
    assert!(text.contains("job_lost") && text.contains("<svg"));
    let list = kintsugi(&["runs", all]);
    assert_eq!(list.status.code(), Some(0), "{}", printed(&list));
    assert!(printed(&list).contains("job_lost"), "{}", printed(&list));
    let pair = kintsugi(&["runs", "compare", run, failed]);
    assert_eq!(pair.status.code(), Some(0), "{}", printed(&pair));
    for command in ["report", "audit"] {
        let alone = kintsugi(&[command, failed]);
        assert_eq!(alone.status.code(), Some(2), "{}", printed(&alone));
        let told = printed(&alone);
        assert!(told.contains("ended before its first step"), "{told}");
        assert!(told.contains("no rank began"), "{told}");
    }
    // Events that are lost are no failure before the first step.
    std::fs::remove_file(Path::new(run).join("events.jsonl")).unwrap();
    for command in ["report", "audit"] {
        let lost = kintsugi(&[command, run]);
        assert_eq!(lost.status.code(), Some(1), "{}", printed(&lost));
        assert!(printed(&lost).contains("events.jsonl is gone"), "{}", printed(&lost));
    }
}

#[test]
fn a_run_that_cannot_be_read_is_named_and_the_others_are_shown() {
    let out = tempfile::tempdir().unwrap();
    let all = out.path().to_str().unwrap();
    let [_, torn] = [made(out.path(), "a", 1, None), made(out.path(), "b", 1, None)];
    let result = torn.join("result.json");
    let whole = std::fs::read(&result).unwrap();
    std::fs::write(&result, &whole[..whole.len() / 2]).unwrap();
    let file = result.to_str().unwrap();
    let list = kintsugi(&["runs", "--json", all]);
    assert_eq!(list.status.code(), Some(1), "{}", printed(&list));
    let json: serde_json::Value = serde_json::from_slice(&list.stdout).unwrap();
    assert_eq!(json["runs"].as_array().map(Vec::len), Some(1), "{json}");
    assert!(String::from_utf8_lossy(&list.stderr).contains(file), "{}", printed(&list));
    let table = kintsugi(&["runs", all]);
    assert_eq!(table.status.code(), Some(1), "{}", printed(&table));
    assert!(String::from_utf8_lossy(&table.stdout).contains("a-1"), "{}", printed(&table));
    let page = kintsugi(&["report", all]);
    assert_eq!(page.status.code(), Some(1), "{}", printed(&page));
    assert!(String::from_utf8_lossy(&page.stderr).contains(file), "{}", printed(&page));
    assert!(out.path().join("report.html").exists());
    let alone = kintsugi(&["report", torn.to_str().unwrap()]);
    assert_eq!(alone.status.code(), Some(1), "{}", printed(&alone));
}

#[test]
fn two_runs_side_by_side_show_keys_results_and_whether_bits_are_the_same() {
    let out = tempfile::tempdir().unwrap();
    let [a, b] = [made(out.path(), "a", 1, None), made(out.path(), "b", 1, Some("0.5"))];
    let both = [a.to_str().unwrap(), b.to_str().unwrap()];
    let output = kintsugi(&["runs", "compare", both[0], both[1]]);
    assert_eq!(output.status.code(), Some(0), "{}", printed(&output));
    let told = printed(&output);
    let rate = told.lines().find(|line| line.starts_with("optimizer.learning_rate")).unwrap();
    assert!(rate.contains("0.05") && rate.ends_with("0.5"), "{told}");
    assert!(
        told.contains("best error") && told.contains("the same bits? same state hash"),
        "{told}"
    );
    let output = kintsugi(&["runs", "compare", "--json", both[0], both[1]]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["keys"]["optimizer.learning_rate"], serde_json::json!([0.05, 0.5]));
    assert_eq!(json["results"][0]["status"], "completed");
}

#[test]
fn a_run_is_removed_only_where_nobody_misses_it() {
    let out = tempfile::tempdir().unwrap();
    let [done, cut] = [made(out.path(), "done", 1, None), made(out.path(), "cut", 1, None)];
    std::fs::remove_file(cut.join("result.json")).unwrap();
    let (done_text, cut_text) = (done.to_str().unwrap(), cut.to_str().unwrap());
    let refused = |arguments: &[&str], why: &str| {
        let output = kintsugi(&[&["runs", "remove"], arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{}", printed(&output));
        assert!(printed(&output).contains(why), "{}", printed(&output));
        assert!(done.exists() && cut.exists(), "all or none");
    };
    refused(&[done_text], "--yes");
    refused(&[done_text, cut_text, "--yes"], "was never completed (silent): --unfinished");
    let lock = File::create(done.join("lock")).unwrap();
    assert_eq!(os::lock_file(&lock).unwrap(), Lock::Taken);
    refused(&[done_text, "--yes", "--unfinished"], "is running");
    // Another test's child may hold a copy of it for a moment.
    lock.unlock().unwrap();
    let link = out.path().join("link");
    std::os::unix::fs::symlink(&done, &link).unwrap();
    refused(&[link.to_str().unwrap(), "--yes"], "is a link");
    let strange = out.path().join("strange");
    std::fs::create_dir(&strange).unwrap();
    std::fs::write(strange.join("config.toml"), "[site]\ntitle = \"no run\"\n").unwrap();
    refused(&[strange.to_str().unwrap(), "--yes", "--unfinished"], "no configuration of a run");
    std::fs::remove_dir_all(strange).unwrap();
    let output = kintsugi(&["runs", "remove", done_text, cut_text, "--yes", "--unfinished"]);
    assert_eq!(output.status.code(), Some(0), "{}", printed(&output));
    std::fs::remove_file(link).unwrap();
    assert_eq!(std::fs::read_dir(out.path()).unwrap().count(), 0);
}
