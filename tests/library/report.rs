//! The report, the audit and the status command on run directories as a trainer leaves them.

use std::path::{Path, PathBuf};

use crate::fixture::{Answer, Story, write_run};
use crate::program::{kintsugi, printed};
use kintsugi::lab::report::best;
use kintsugi::lab::report::compare::Bits;
use kintsugi::lab::report::read::read_run;
use kintsugi::lab::report::summary::{RunSummary, summarise};
use kintsugi::lab::report::{Run, Study, html};
use kintsugi::observe::event::Kind;
use kintsugi::observe::result::Status;

/// A report of years to come needs no machine of today.
#[test]
fn a_run_says_what_it_was_made_on_and_with() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/mlp_synthetic.toml");
    let (run_text, config) = (run.to_str().unwrap(), config.to_str().unwrap());
    let train = ["train", config, "--run-dir", run_text, "-s", "train.steps=3"];
    assert_eq!(kintsugi(&train).status.code(), Some(0));
    let read = read_run(&run, None).unwrap();
    let setup = read.setup().unwrap();
    assert_eq!(setup.kintsugi, env!("CARGO_PKG_VERSION"));
    assert!(setup.mpi.starts_with("Open MPI") && setup.arithmetic.starts_with("oneDNN"));
    assert!(setup.classes > 1 && setup.input.iter().all(|size| *size > 0), "{setup:?}");
    assert_eq!(kintsugi(&["report", run_text]).status.code(), Some(0));
    let page = std::fs::read_to_string(run.join("report.html")).unwrap();
    assert!(page.contains(&setup.machine) && page.contains(&setup.arithmetic));
}

const ARMS: [(&str, Answer); 4] = [
    ("calm", Answer::Calm),
    ("detect/respawn", Answer::Respawn),
    ("detect/shrink", Answer::Shrink),
    ("checkpoint/restart", Answer::Restart),
];

fn study(out: &Path, seconds: f64, evaluations: u32, seeds: u64) -> Study {
    let mut runs = Vec::new();
    for (arm, answer) in ARMS {
        for seed in 1..=seeds {
            let step_seconds = 0.11;
            let story = Story { arm, answer, seed, seconds, evaluations, step_seconds };
            runs.push(read_run(&write_run(out, story), Some(arm)).unwrap());
        }
    }
    Study {
        title: "Detect/respawn, detect/shrink and checkpoint/restart".into(),
        description: format!(
            "Every run has {seconds:.0} s of wall time on 4 ranks; rank 2 is killed at 0.225 of it."
        ),
        command: "kintsugi experiment configs/experiment/demo.toml --out runs/demo".into(),
        experiment: None,
        machine: "2 cores".into(),
        runs,
    }
}

fn of<'a>(runs: &'a [RunSummary], arm: &str) -> &'a RunSummary {
    runs.iter().find(|run| run.arm == arm).unwrap()
}

#[test]
fn respawn_loses_nothing_and_restart_loses_what_its_ledger_says() {
    let out = tempfile::tempdir().unwrap();
    let runs = summarise(&study(out.path(), 45.0, 36, 1));
    let respawn = of(&runs, "detect/respawn");
    assert_eq!((respawn.lost_steps, respawn.lost_steps_ledger, respawn.largest_fall), (0, 0, 0));
    assert!(matches!(respawn.bits, Bits::SameLosses { steps } if steps > 300), "{respawn:?}");
    let restart = of(&runs, "checkpoint/restart");
    assert!(restart.lost_steps > 0);
    assert_eq!(restart.lost_steps, restart.lost_steps_ledger);
    assert_eq!(restart.lost_steps, restart.largest_fall);
    assert!(restart.redo_seconds() > 0.0);
    let shrink = of(&runs, "detect/shrink");
    assert!(matches!(shrink.bits, Bits::Differs { from_step, .. } if from_step > 1));
    assert!(respawn.recovery_seconds() < restart.recovery_seconds());
}

/// Several models in one study: each is compared with the first calm run of its own.
#[test]
fn runs_are_compared_with_a_calm_run_of_the_same_arithmetic() {
    let out = tempfile::tempdir().unwrap();
    let all = study(out.path(), 45.0, 36, 1);
    let renamed = |from: &str, arm: &str, arithmetic: u64| {
        let mut run = all.runs_of(from).next().unwrap().clone();
        (run.arm, run.arithmetic) = (arm.into(), Some(arithmetic));
        run
    };
    let runs = vec![
        renamed("calm", "small: calm", 1),
        renamed("detect/shrink", "large: alone", 2),
        renamed("detect/respawn", "small: respawn", 1),
        renamed("calm", "wide: calm", 3),
        renamed("detect/respawn", "wide: respawn", 3),
    ];
    let runs = summarise(&Study { runs, ..all });
    for arm in ["small: calm", "large: alone", "wide: calm"] {
        assert_eq!(of(&runs, arm).bits, Bits::Unknown, "{arm} has nothing to be compared with");
    }
    for arm in ["small: respawn", "wide: respawn"] {
        assert!(matches!(of(&runs, arm).bits, Bits::SameLosses { steps } if steps > 300), "{arm}");
    }
}

#[test]
fn the_page_holds_every_figure_and_nothing_from_elsewhere() {
    let out = tempfile::tempdir().unwrap();
    let page = html(&study(out.path(), 45.0, 36, 4));
    assert_eq!(page.matches("<figcaption>").count(), 5);
    for wanted in ["detect/respawn", "diamond", "failure", "95 % interval", "goodput", "$ kintsugi"]
    {
        assert!(page.contains(wanted), "`{wanted}` is missing");
    }
    let outside = page.replace("http://www.w3.org/2000/svg", "");
    for forbidden in ["http://", "https://", "<script", "src=", "@import"] {
        assert!(!outside.contains(forbidden), "`{forbidden}` is there");
    }
}

/// Nothing failed: what failures cost is not in the table, and errors are compared step by step.
#[test]
fn a_page_of_arms_without_failures_compares_errors() {
    let out = tempfile::tempdir().unwrap();
    let all = study(out.path(), 45.0, 36, 2);
    let mut runs: Vec<_> = all.runs_of("calm").cloned().collect();
    let other = |run: &Run| Run { arm: "again".into(), ..run.clone() };
    runs.extend(all.runs_of("calm").map(other));
    runs[0].result.as_mut().unwrap().data.misses = 600;
    runs[0].result.as_mut().unwrap().data.hits = 400;
    let page = html(&Study { runs, ..all });
    assert!(page.contains("60.00 %") && page.contains("Validation error against"));
    assert!(!page.contains("<th>recoveries</th>") && !page.contains("Minimum error at two times"));
}

#[test]
fn only_complete_runs_on_one_set_are_ranked() {
    let out = tempfile::tempdir().unwrap();
    let all = study(out.path(), 45.0, 36, 2);
    let calm: Vec<Run> = all.runs_of("calm").cloned().collect();
    let arm = |name: &str, more: f64, keys: &[(&str, &str, toml::Value)]| {
        let mut runs = calm.clone();
        for run in &mut runs {
            run.arm = name.into();
            let mut config: toml::Table = run.config.parse().unwrap();
            for (section, key, value) in keys {
                let section = config[*section].as_table_mut().unwrap();
                section.insert((*key).into(), value.clone());
            }
            run.config = config.to_string();
            run.events.iter_mut().for_each(|event| {
                if let Kind::Evaluation { error, .. } = &mut event.kind {
                    *error += more;
                }
            });
        }
        runs
    };
    let told = |runs: Vec<Run>| {
        let study = Study { runs, ..all.clone() };
        let words = best::words(&study, &summarise(&study)).unwrap();
        let page = html(&study);
        assert!(page.contains(&words.replace('\'', "&#39;")), "{words}");
        (words, page)
    };
    let (words, page) = told([arm("a", 0.0, &[]), arm("b", 0.01, &[])].concat());
    assert!(words.starts_with("Lowest validation error: a, ") && words.contains("next: b, "));
    assert!(!words.contains("differ in their length") && !page.contains("Not complete"));

    let longer = arm("b", 0.01, &[("train", "epochs", 90.into())]);
    let (words, _) = told([arm("a", 0.0, &[]), longer].concat());
    assert!(words.ends_with("They differ in their length, too (train.epochs)."), "{words}");

    let other = arm("b", 0.01, &[("data", "validation", "elsewhere".into())]);
    let (words, _) = told([arm("a", 0.0, &[]), other].concat());
    assert!(words.ends_with("evaluated on several sets (data.validation)."), "{words}");
    // What is trained on does not matter where all are evaluated on a set of its own.
    let own = |train: &str| [("data", "validation", "own".into()), ("data", "train", train.into())];
    let (words, _) = told([arm("a", 0.0, &own("x")), arm("b", 0.01, &own("y"))].concat());
    assert!(words.contains("next: b, "), "{words}");

    let mut runs = [arm("a", 0.0, &[]), arm("b", 0.01, &[]), arm("c", 0.02, &[])].concat();
    runs[0].result = None;
    runs[1].result.as_mut().unwrap().status = Status::JobLost;
    let (words, page) = told(runs);
    assert!(words.starts_with("Lowest validation error: b, "), "{words}");
    assert!(page.contains("Not complete: a, seed 1 (no result); a, seed 2 (job_lost). Their"));
}

/// Of two values Student's interval says nothing but how few they are.
#[test]
fn no_interval_stands_behind_fewer_than_four_seeds() {
    let out = tempfile::tempdir().unwrap();
    let all = study(out.path(), 45.0, 36, 4);
    let mut calm: Vec<_> = all.runs_of("calm").cloned().collect();
    // Of checkpoints there are many in each run.
    calm.iter_mut().for_each(|run| {
        run.events.retain(|event| !matches!(event.kind, Kind::Checkpoint { .. }));
    });
    let of = |n: usize| {
        let other = calm[..n].iter().cloned().map(|run| Run { arm: "again".into(), ..run });
        let runs = calm[..n].iter().cloned().chain(other).collect();
        html(&Study { runs, ..all.clone() })
    };
    for few in [2, 3] {
        let page = of(few);
        assert!(!page.contains('±') && !page.contains("class=\"band"), "{few} seeds");
        assert!(page.contains(&format!("{few} seeds an arm")) && page.contains("class=\"dots"));
    }
    let page = of(4);
    assert!(page.contains('±') && page.contains("class=\"band") && !page.contains("seeds an arm"));
}

/// What is shown first, and that every figure has its files.
#[test]
fn a_page_offers_every_axis_and_its_figures_as_files() {
    let out = tempfile::tempdir().unwrap();
    let failures = study(out.path(), 45.0, 36, 1);
    let page = html(&failures);
    for axis in ["epochs", "steps", "time"] {
        assert!(page.contains(&format!("id=\"axis-{axis}\"")), "{axis}");
        for kind in ["svg", "csv"] {
            assert!(page.contains(&format!("download=\"error-{axis}.{kind}\"")), "{axis}.{kind}");
        }
    }
    assert!(page.contains("id=\"axis-time\" checked"), "failures are compared by time");
    assert!(page.contains("One seed an arm") && page.contains("the machine's load decides"));
    let mut ended = failures.clone();
    ended.runs.iter_mut().for_each(|run| run.max_seconds = Some(600.0));
    assert!(!html(&ended).contains("the machine's load decides"), "steps ended them");
    let longer = study(&out.path().join("longer"), 30.0, 12, 1);
    let runs = [&failures, &longer].map(|study| study.runs_of("calm").next().unwrap().clone());
    let page = html(&Study { runs: runs.to_vec(), ..failures });
    assert!(page.contains("id=\"axis-epochs\" checked"), "lengths differ");
}

/// Nothing that a page of several runs needs: words for arms, a comparison with a calm run.
#[test]
fn the_page_of_one_run_says_what_it_was_and_what_it_lost() {
    let out = tempfile::tempdir().unwrap();
    let all = study(out.path(), 45.0, 36, 1);
    let of = |arm: &str| {
        html(&Study { runs: vec![all.runs_of(arm).next().unwrap().clone()], ..all.clone() })
    };
    let calm = of("calm");
    assert!(!calm.contains("reference_batch") && !calm.contains("soft labels"));
    let mut scaled = all.runs_of("calm").next().unwrap().clone();
    let mut config = scaled.settings().unwrap();
    (config.train.global_batch, config.schedule.reference_batch) = (192, Some(64));
    config.optimizer.learning_rate = 0.1;
    (config.train.label_smoothing, config.data.mixup_alpha) = (Some(0.1), Some(0.2));
    scaled.config = toml::to_string(&config).unwrap();
    let scaled = html(&Study { runs: vec![scaled], ..all.clone() });
    assert!(scaled.contains("soft labels (train.label_smoothing, data.mixup_alpha), the"));
    assert!(scaled.contains("; for 64 samples (schedule.reference_batch), so 0.3 for 192"));
    assert!(scaled.contains("times the batch over schedule.reference_batch in calm."));
    let page = of("checkpoint/restart");
    for wanted in ["23,700,000 parameters", "6,000 training", "96 samples a step", "Error against"]
    {
        assert!(page.contains(wanted), "`{wanted}` is missing");
    }
    assert!(page.contains("committed steps lost") && page.contains("UTC"));
    assert!(of("detect/respawn").contains("rank 2 (member 2) on node3: signal 9 (SIGKILL)"));
    assert!(of("calm").contains("No rank was lost, and no committed step."));
}

#[test]
#[ignore = "writes pages to look at: KINTSUGI_REPORT_OUT=DIR"]
fn write_pages_to_look_at() {
    let out = std::env::var("KINTSUGI_REPORT_OUT").unwrap();
    let out = Path::new(&out);
    for (name, seconds, evaluations, seeds) in [("demo", 45.0, 36, 1), ("paper", 720.0, 144, 3)] {
        let runs = out.join(name);
        let page = html(&study(&runs, seconds, evaluations, seeds));
        std::fs::write(out.join(format!("{name}.html")), page).unwrap();
    }
}

fn one_run(out: &Path, answer: Answer) -> PathBuf {
    let (seconds, evaluations, step_seconds) = (12.0, 12, 0.11);
    write_run(out, Story { arm: "quick", answer, seed: 3, seconds, evaluations, step_seconds })
}

/// Changes one line of a run's ledger.
fn edit_ledger(run: &Path, edit: impl FnOnce(&mut Vec<String>)) {
    let path = run.join("ledger.jsonl");
    let mut lines: Vec<String> =
        std::fs::read_to_string(&path).unwrap().lines().map(String::from).collect();
    edit(&mut lines);
    std::fs::write(&path, lines.join("\n") + "\n").unwrap();
}

#[test]
fn audit_passes_a_run_that_lost_a_rank_and_one_that_started_again() {
    for answer in [Answer::Calm, Answer::Respawn, Answer::Shrink, Answer::Restart] {
        let out = tempfile::tempdir().unwrap();
        let run = one_run(out.path(), answer);
        let output = kintsugi(&["audit", run.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(0), "{answer:?}: {}", printed(&output));
        assert!(printed(&output).contains("exactly once"));
    }
}

#[test]
fn audit_fails_a_planted_duplicate_and_a_planted_omission() {
    let out = tempfile::tempdir().unwrap();
    let run = one_run(out.path(), Answer::Respawn);
    let path = run.to_str().unwrap();
    let original = std::fs::read(run.join("ledger.jsonl")).unwrap();

    edit_ledger(&run, |lines| lines.insert(30, lines[30].clone()));
    let twice = kintsugi(&["audit", path]);
    assert_eq!(twice.status.code(), Some(1));
    assert!(printed(&twice).contains("step 31: committed again"), "{}", printed(&twice));

    std::fs::write(run.join("ledger.jsonl"), &original).unwrap();
    edit_ledger(&run, |lines| drop(lines.remove(30)));
    let omitted = kintsugi(&["audit", path]);
    assert_eq!(omitted.status.code(), Some(1));
    assert!(printed(&omitted).contains("31..31 are missing"), "{}", printed(&omitted));

    // One sample twice instead of another: only the mix tells.
    std::fs::write(run.join("ledger.jsonl"), &original).unwrap();
    edit_ledger(&run, |lines| {
        let (before, after) = lines[30].split_once("\"mix\":").unwrap();
        let end = after.find([',', '}']).unwrap();
        let mix = after[..end].parse::<u64>().unwrap() ^ 1;
        lines[30] = format!("{before}\"mix\":{mix}{}", &after[end..]);
    });
    let swapped = kintsugi(&["audit", "--json", path]);
    assert_eq!(swapped.status.code(), Some(1));
    let json: serde_json::Value = serde_json::from_slice(&swapped.stdout).unwrap();
    assert_eq!(json["passed"], false);
    assert_eq!(json["synchronous"]["findings"][0]["step"], 31);
}

/// A disk that was full for long, and a writer that died meanwhile.
#[test]
fn audit_names_the_steps_that_have_no_line_and_proves_the_others() {
    let out = tempfile::tempdir().unwrap();
    let run = one_run(out.path(), Answer::Respawn);
    edit_ledger(&run, |lines| {
        let last: serde_json::Value = serde_json::from_str(&lines[29]).unwrap();
        let cursor = &last["step"]["cursor"];
        let gap =
            format!("{{\"gap\":{{\"from\":21,\"to\":30,\"cursor\":{cursor},\"attempt\":1}}}}");
        lines.splice(20..30, [gap]);
    });
    let output = kintsugi(&["audit", run.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let told = printed(&output);
    assert!(
        told.contains("step 21: its line and all up to step 30 could not be written"),
        "{told}"
    );
    assert!(told.contains("FAILED: 10 of ") && told.contains("steps are not proved"), "{told}");
    assert!(told.ends_with("every sample of all others exactly once\n"), "{told}");
}

#[test]
fn audit_sees_a_result_that_contradicts_the_ledger() {
    let out = tempfile::tempdir().unwrap();
    let run = one_run(out.path(), Answer::Restart);
    edit_ledger(&run, |lines| drop(lines.pop()));
    let output = kintsugi(&["audit", run.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(printed(&output).contains("steps: result.json says"), "{}", printed(&output));
}

#[test]
fn status_says_where_a_run_stands() {
    let out = tempfile::tempdir().unwrap();
    let run = one_run(out.path(), Answer::Respawn);
    let output = kintsugi(&["status", "--json", run.to_str().unwrap()]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["state"], "completed");
    assert_eq!((&json["recoveries"], &json["lost_steps"]), (&1.into(), &0.into()));
    assert!(json["step"].as_u64().unwrap() > 50);
    std::fs::remove_file(run.join("result.json")).unwrap();
    let output = kintsugi(&["status", run.to_str().unwrap()]);
    assert!(printed(&output).contains(": silent"), "{}", printed(&output));
    let nothing = kintsugi(&["status", out.path().to_str().unwrap()]);
    assert_eq!(nothing.status.code(), Some(2));
}

/// Nobody is left to be asked, or to be struck: that is no result.
#[test]
fn a_run_that_has_ended_has_nobody_to_strike() {
    let out = tempfile::tempdir().unwrap();
    let run = one_run(out.path(), Answer::Calm);
    let storm = ["chaos", run.to_str().unwrap(), "--duration", "1s"];
    let output = kintsugi(&storm);
    assert_eq!(output.status.code(), Some(1), "{}", printed(&output));
    assert!(printed(&output).contains("this run has ended"), "{}", printed(&output));
    let dry = kintsugi(&[&storm[..], &["--dry-run"]].concat());
    assert_eq!(dry.status.code(), Some(0), "{}", printed(&dry));
}

#[test]
fn report_draws_single_runs_and_names_what_it_cannot_read() {
    let out = tempfile::tempdir().unwrap();
    let run = one_run(out.path(), Answer::Restart);
    let output = kintsugi(&["report", run.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", printed(&output));
    let page = std::fs::read_to_string(run.join("report.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("quick"));
    let missing = out.path().join("nothing");
    let output = kintsugi(&["report", missing.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(printed(&output).contains("nothing"), "{}", printed(&output));
}

/// Seeds of one configuration are averaged; another configuration, and a copy, are not.
#[test]
fn report_averages_seeds_and_nothing_else() {
    let out = tempfile::tempdir().unwrap();
    let run = |name: &str, seed: u64, rate: &str| {
        let story = Story {
            arm: "quick",
            answer: Answer::Calm,
            seed,
            seconds: 12.0,
            evaluations: 12,
            step_seconds: 0.11,
        };
        let folder = out.path().join(name);
        std::fs::rename(write_run(out.path(), story), &folder).unwrap();
        let config = format!(
            "[run]\nname = \"quick\"\nseed = {seed}\n[optimizer]\nlearning_rate = {rate}\n"
        );
        std::fs::write(folder.join("config.toml"), config).unwrap();
        folder.to_string_lossy().into_owned()
    };
    let runs =
        [run("a", 1, "0.1"), run("b", 2, "0.1"), run("c", 1, "0.5"), run("a.old-1", 1, "0.1")];
    let page = out.path().join("page.html").to_string_lossy().into_owned();
    let output = kintsugi(&["report", &runs[0], &runs[1], &runs[2], &runs[3], "--out", &page]);
    assert_eq!(output.status.code(), Some(0), "{}", printed(&output));
    assert!(printed(&output).contains("left out: ") && printed(&output).contains("a.old-1"));
    let drawn = std::fs::read_to_string(&page).unwrap();
    for rate in ["0.1", "0.5"] {
        let arm = format!("Configuration of quick: learning_rate {rate}<");
        assert!(drawn.contains(&arm), "{arm}");
    }
    assert_eq!(drawn.matches("Configuration of ").count(), 2);
    let (tables, differs) = (drawn.find("<table>"), drawn.find("<b>What differs</b>"));
    assert!(differs > tables && differs < drawn.find("<b>Arms.</b>"), "the first table");
    let output = kintsugi(&["report", &runs[0], &runs[3], "--out", &page]);
    assert_eq!(output.status.code(), Some(0), "{}", printed(&output));
    let drawn = std::fs::read_to_string(&page).unwrap();
    assert!(drawn.contains("quick, the same seed again (a.old-1)"));
}
