//! `kintsugi experiment` on a file of measures: what is told is what the engine says.

use std::path::Path;
use std::process::{Command, Output};

use kintsugi::lab::memory::file::Study;
use serde_json::Value;

use crate::program::stderr;

const FILE: &str = r#"
title = "Small"

[[measure]]
kind = "largest_batch"
title = "By placement"
budget = "8MB"
models = ["resnet20"]
image_sizes = [32]
confirm = "step"
case = [
    { name = "in core" },
    { name = "swap", memory.mode = "swap", paper = { "resnet20 32" = 3.0 } },
    { name = "swap at once", memory.mode = "swap_sync" },
]

[[measure]]
kind = "far_tier"
title = "What leaves"
models = ["resnet20"]
image_size = 32
batch = 2
paper = { resnet20 = "1GB" }
case = [{ name = "swap", memory.mode = "swap" }]

[[measure]]
kind = "step_time"
title = "Steps"
models = ["resnet20", "mlp"]
image_size = 16
batches = [2, 8]
budget_batch = 2
steps = 1
link = [{ name = "slow", times = 1.0 }, { name = "fast", times = 8.0 }]
case = [
    { name = "in core" },
    { name = "swap", memory.mode = "swap_sync", link_share = 0.5, paper = { resnet20 = 2.0 } },
    { name = "unified", memory.mode = "unified" },
]

[[measure]]
kind = "managed_memory"
title = "Played"

[[measure]]
kind = "pinned_or_cached"
title = "Shared"
model = "resnet20"
image_size = 16
batch = 4
budget_batch = 3
host_memory = "1MB"
data_set = "10MB"
sample = "10kB"
storage = "1MB/s"
"#;

fn experiment(folder: &Path, text: &str, more: &[&str]) -> Output {
    let file = folder.join("small.toml");
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_kintsugi"));
    command.arg("experiment").arg(&file).arg("--out").arg(folder.join("out")).args(more);
    command.output().unwrap()
}

/// Rows of a measure by their cases.
fn rows(results: &Value, measure: usize) -> Vec<&Value> {
    results["measures"][measure]["rows"].as_array().unwrap().iter().collect()
}

#[test]
fn each_measure_becomes_a_part_that_says_how_its_figures_came_about() {
    let folder = tempfile::tempdir().unwrap();
    let output = experiment(folder.path(), FILE, &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    let out = folder.path().join("out");
    let results = std::fs::read(out.join("results.json")).unwrap();
    let results: Value = serde_json::from_slice(&results).unwrap();
    let sources: Vec<&str> =
        (0..5).map(|at| results["measures"][at]["source"].as_str().unwrap()).collect();
    assert_eq!(sources, ["confirmed", "placement", "measured", "simulated", "computed"]);

    let fits = rows(&results, 0);
    let largest: Vec<u64> = fits.iter().map(|row| row["largest"].as_u64().unwrap()).collect();
    assert!(largest[0] < largest[1] && largest[1] <= largest[2], "{largest:?}");
    for row in &fits {
        let bytes = |key: &str| row[key].as_u64().unwrap();
        assert!(bytes("near_bytes") <= 8_000_000 && bytes("wanted_bytes") > 8_000_000, "{row}");
        assert_eq!(row["step"], "ran; one sample more was refused", "{row}");
    }
    assert_eq!(fits[1]["paper_times"], 3.0);
    let left = rows(&results, 1)[0];
    assert_eq!(left["moved_bytes"][0], left["moved_bytes"][1]);
    assert!(left["far_bytes"].as_u64().unwrap() >= left["moved_bytes"][0].as_u64().unwrap());

    let steps = rows(&results, 2);
    assert_eq!(steps.len(), 2 * 2 * 2 * 3);
    for row in &steps {
        let is_computed = row["seconds"].as_array().unwrap().len() == 1;
        assert_eq!(is_computed, row["refused"].is_null(), "{row}");
        let is_beyond = row["load"].as_f64().unwrap() > 1.0;
        // Of the other model copies of weights are most, which no mode moves.
        if row["case"] == "in core" || row["model"] == "resnet20" {
            assert_eq!(is_computed, row["case"] != "in core" || !is_beyond, "{row}");
        }
    }
    let refused = steps.iter().find_map(|row| row["refused"].as_str()).unwrap();
    assert!(refused.contains("memory.mode = \"in_core\" ("), "{refused}");
    let shared = rows(&results, 4);
    let of = |row: &Value, key: &str| row[key].as_f64().unwrap();
    assert!(shared.windows(2).all(|pair| {
        of(pair[0], "pinned_bytes") < of(pair[1], "pinned_bytes")
            && of(pair[0], "computing_seconds") > of(pair[1], "computing_seconds")
            && of(pair[0], "reading_seconds") <= of(pair[1], "reading_seconds")
    }));

    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    for words in ["By placement alone: exact", "an emulated card", "no card is measured", "guessed"]
    {
        assert!(page.contains(words), "{words}");
    }
    assert!(page.matches("<svg viewBox").count() >= 6, "curves and bars are drawn");
}

#[test]
fn what_does_nothing_is_refused_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |text: &str, more: &[&str], reason: &str| {
        let output = experiment(folder.path(), text, more);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains(reason), "{reason}: {}", stderr(&output));
        assert!(!folder.path().join("out").exists(), "nothing was begun");
    };
    refused(FILE, &["--seeds", "2"], "--set, --seeds, --seconds");
    let with = |from: &str, to: &str| FILE.replacen(from, to, 1);
    refused(&with("resnet20 32", "resnet20 33"), &[], "paper.\"resnet20 33\"");
    refused(&with("memory.mode = \"swap\"", "memory.link = \"1MB/s\""), &[], "[[measure.link]]");
    refused(&with("batches = [2, 8]", "batches = [0]"), &[], "write 1 or more");
    refused(&with("times = 8.0", "times = 0.0"), &[], "link.times");
    refused(&with("memory.mode = \"swap\"", "memory.mode = \"unified\""), &[], "it has no least");
    refused(&with("link_share = 0.5", "link_share = 2.0"), &[], "link_share");
    refused(&with("budget = \"8MB\"", "budgets = \"8MB\""), &[], "budgets");
    refused(&with("\"far_tier\"", "\"far_teer\""), &[], "far_teer");
    // Of the last measure: the others would take their time first.
    let last = FILE.replace("model = \"resnet20\"", "model = \"resnet21\"");
    refused(&last, &[], "Shared: there is no model `resnet21`");
    refused(&last, &["--check"], "Shared: there is no model `resnet21`");
}

#[test]
fn the_repositorys_files_of_measures_are_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/experiment");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let toml = files.filter(|path| path.extension().is_some_and(|ending| ending == "toml"));
    let read = toml.filter_map(|path| Study::load(&path).unwrap_or_else(|error| panic!("{error}")));
    let studies: Vec<(Study, String)> = read.collect();
    assert!(studies.len() >= 4);
    assert!(studies.iter().all(|(_, text)| text.starts_with("# Why: ")));
    for (study, _) in studies {
        assert!(study.build_models().is_ok(), "{}: {:?}", study.title, study.build_models());
    }
}
