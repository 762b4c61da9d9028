//! `model show --budget`: what becomes of a micro-batch's values, in words, as JSON, and drawn.

use std::process::{Command, Output};

const MODEL: [&str; 9] =
    ["model", "show", "cnn11", "--image-size", "32", "--classes", "10", "--batch", "16"];

fn shown(more: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kintsugi")).args(MODEL).args(more).output().unwrap()
}

fn text(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn json(more: &[&str]) -> serde_json::Value {
    let output = shown(&[more, &["--json"]].concat());
    serde_json::from_str(&text(&output)).unwrap()
}

/// The least budget that does, as a refusal names it.
fn least_bytes() -> u64 {
    let refused = shown(&["--budget", "1KiB"]);
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!((refused.status.code(), &refused.stdout[..]), (Some(2), &[][..]), "{why}");
    assert!(why.starts_with("kintsugi: device.memory_budget: "), "{why}");
    let (_, rest) = why.split_once("16 samples takes ").unwrap();
    rest.split_once(" B ").unwrap().0.parse().unwrap()
}

#[test]
fn a_budget_is_kept_and_one_that_is_too_small_refused_with_the_least() {
    let least = least_bytes();
    let plan = &json(&["--budget", &format!("{least}B")])["memory"];
    assert_eq!((&plan["mode"], &plan["budget_bytes"]), (&"planned".into(), &least.into()));
    let of = |key: &str| plan[key].as_u64().unwrap();
    assert!(of("near_bytes") <= least && least < of("near_in_core_bytes"), "{plan}");
    assert_eq!(shown(&["--budget", &format!("{}B", least - 1)]).status.code(), Some(2));
    let layers = plan["layers"].as_array().unwrap();
    for fate in ["kept", "swapped", "computed_again"] {
        let bytes = |row: &serde_json::Value| row[format!("{fate}_bytes")].as_u64().unwrap();
        let all: u64 = layers.iter().map(bytes).sum();
        assert_eq!(plan[fate]["bytes"], all, "{fate}");
    }
    assert_eq!(of("copied_out_bytes"), plan["swapped"]["bytes"].as_u64().unwrap());
}

#[test]
fn each_mode_says_what_it_does_and_who_does_not_ask_hears_nothing() {
    assert_eq!(json(&[])["memory"], serde_json::Value::Null);
    assert!(!text(&shown(&[])).contains("memory.mode"));
    for mode in ["in_core", "swap_sync", "swap", "recompute", "planned"] {
        let (plan, text) =
            (&json(&["--memory", mode])["memory"], text(&shown(&["--memory", mode])));
        assert_eq!(plan["mode"], mode);
        let does = |fate: &str| plan[fate]["values"].as_u64().unwrap() > 0;
        assert_eq!(does("swapped"), mode.starts_with("swap"), "{plan}");
        assert_eq!(does("computed_again"), mode == "recompute", "{plan}");
        assert!(text.contains(&format!("memory.mode = \"{mode}\": near tier ")), "{text}");
        assert!(text.contains("by guessed prices (nothing was measured)"), "{text}");
        let is_head = |line: &str| line.starts_with("layer ") && line.ends_with("computed again");
        assert!(text.lines().any(is_head), "{text}");
    }
}

/// The names of a drawing's elements; each that begins ends, in order.
fn elements(svg: &str) -> Vec<&str> {
    let (mut open, mut all) = (Vec::new(), Vec::new());
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    for part in svg.split('<').skip(1) {
        let (tag, _) = part.split_once('>').unwrap();
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "{part}");
            continue;
        }
        assert!(tag.matches('"').count().is_multiple_of(2), "{tag}");
        let name = tag.split([' ', '/']).next().unwrap();
        all.push(name);
        if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert_eq!(open, [""; 0]);
    all
}

#[test]
fn a_timeline_has_its_lanes_and_is_one_whole_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.svg");
    let draw = |mode: &str| {
        text(&shown(&["--memory", mode, "--timeline", file.to_str().unwrap()]));
        std::fs::read_to_string(&file).unwrap()
    };
    let swapped = draw("swap_sync");
    assert!(elements(&swapped).iter().filter(|&&name| name == "rect").count() > 20);
    for words in
        ["computes", "copies out", "copies back", "waits for a copy", "bytes in the near tier"]
    {
        assert!(swapped.contains(&format!(">{words}</text>")), "{words}");
    }
    let again = draw("recompute");
    elements(&again);
    assert!(
        again.contains(">computed again</text>") && !again.contains(">waits for a copy</text>")
    );
    let names: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(names.len(), 1, "{names:?}");
    let nowhere = folder.path().join("none/plan.svg");
    let refused = shown(&["--timeline", nowhere.to_str().unwrap()]);
    assert_eq!((refused.status.code(), &refused.stdout[..]), (Some(1), &[][..]));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("none/plan.svg"));
}
