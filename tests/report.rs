//! The report, the audit and the status command on run directories as a trainer leaves them.

#[path = "report/fixture.rs"]
mod fixture;

use std::path::Path;

use fixture::{Answer, Story, write_run};
use kintsugi::observe::report::compare::Bits;
use kintsugi::observe::report::read::read_run;
use kintsugi::observe::report::summary::{RunSummary, summarise};
use kintsugi::observe::report::{Study, html};

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
    assert!(matches!(shrink.bits, Bits::Differs { from_step } if from_step > 1));
    assert!(respawn.recovery_seconds() < restart.recovery_seconds());
}

#[test]
fn the_page_holds_every_figure_and_nothing_from_elsewhere() {
    let out = tempfile::tempdir().unwrap();
    let page = html(&study(out.path(), 45.0, 36, 2));
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
