//! ONNX files, both ways. What torch wrote in each of its three ways computes here what torch
//! computes; where `KINTSUGI_TORCHVISION_PYTHON` names a python that has onnx and onnxruntime (else
//! skipped), models that nobody here wrote are imported, trained and exported, and ONNX Runtime's
//! answers are ours. `onnx/models.py` made the files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use kintsugi::config::Device;
use kintsugi::config::seed::Stream;
use kintsugi::engine::{self, Flat};
use kintsugi::model::file::from_toml;
use kintsugi::model::onnx::import::{Imported, import};
use kintsugi::model::written::to_toml;

use super::numbers::Place;

const SIDE: usize = 16;
const BATCH: usize = 2;
/// Of the logarithm of a probability; torch's were stored with six digits after the point.
const NEAR: f64 = 1e-4;

fn cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/library/onnx")
}

fn imported(file: &Path) -> Imported {
    let bytes = std::fs::read(file).unwrap();
    let beside = |part: kintsugi::model::onnx::stored::FilePart<'_>| {
        let whole = std::fs::read(cases().join(part.file)).map_err(|error| error.to_string())?;
        let start = part.offset as usize;
        Ok(whole[start..start + part.bytes as usize].to_vec())
    };
    import("case", &bytes, None, &beside).unwrap_or_else(|error| panic!("{file:?}: {error}"))
}

/// Logarithms of probabilities of the pictures that the script computes too.
fn answers(model: &Imported) -> Vec<f32> {
    let pixel = |at: usize| (at * 7919 % 1000) as f32 / 500.0 - 1.0;
    let images: Vec<f32> = (0..BATCH * 3 * SIDE * SIDE).map(pixel).collect();
    let Imported { graph, parameters, statistics, .. } = model;
    let mut engine = engine::open(&Device::default(), graph, 1).unwrap();
    let mut answers = Vec::new();
    let weights = Flat { parameters, statistics };
    engine.infer(&images, &[0; BATCH], &weights, Some(&mut answers)).unwrap();
    answers
}

#[test]
fn what_torch_writes_in_each_way_computes_what_torch_computes() {
    for (name, norms, tensor) in [
        ("plain", 2, "features.4.weight"),
        ("residual", 8, "layer1.1.bn2.running_var"),
        ("squeeze", 1, "fc2.bias"),
        ("attentive", 1, "scores.bias"),
        ("padded", 1, "bn1.running_var"),
        ("shuffled", 1, "conv3.weight"),
    ] {
        for (way, folded) in [("classic", 0), ("unoptimised", 0), ("default", norms)] {
            let text = std::fs::read(cases().join(format!("{name}-{way}.json"))).unwrap();
            let expected: Vec<f64> = serde_json::from_slice(&text).unwrap();
            let case = imported(&cases().join(format!("{name}-{way}.onnx")));
            assert_eq!((case.folded, case.copied), (folded, 0), "{name} {way}");
            assert_eq!(case.graph.classes, 5, "{name} {way}");
            for (ours, theirs) in answers(&case).iter().zip(&expected) {
                let apart = (f64::from(*ours) - theirs).abs();
                assert!(apart < NEAR, "{name} {way}: {ours} and {theirs}");
            }
            // Torch's names, but for norms that are gone.
            let has = case.layout.tensors.iter().any(|found| found.name == tensor);
            assert_eq!(has, folded == 0 || !tensor.contains("bn"), "{name} {way}: {tensor}");
            let read = from_toml(&to_toml(&case.graph), case.graph.input, 5).unwrap();
            assert_eq!(read.nodes, case.graph.nodes, "{name} {way}");
        }
    }
}

/// Whoever wrote `noshape.onnx` left the input's shape out: it is the one that is given.
#[test]
fn an_input_without_a_shape_has_the_shape_that_is_given() {
    let file = std::fs::read(cases().join("noshape.onnx")).unwrap();
    let of = |given| import("case", &file, given, &|_| Err("no file".into()));
    let said = of(None).unwrap_err().to_string();
    assert!(said.ends_with("i is of any size: give --input 3x224x224"), "{said}");
    let graph = of(Some([3, 8, 8])).unwrap().graph;
    assert_eq!((graph.input, graph.classes), ([3, 8, 8], 3));
}

fn kintsugi(words: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_kintsugi")).args(words).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

fn judge() -> Option<PathBuf> {
    let python = std::env::var_os("KINTSUGI_TORCHVISION_PYTHON").map(PathBuf::from)?;
    let has = Command::new(&python).args(["-c", "import onnx, onnxruntime"]).output().unwrap();
    has.status.success().then_some(python)
}

fn script(python: &Path, words: &[&str]) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/library/onnx/models.py");
    let output = Command::new(python).arg(script).args(words).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A picture of 5 x 5 coloured tiles.
fn tiles(stream: &mut Stream, side: usize) -> Vec<u8> {
    let colours: Vec<u8> = (0..75).map(|_| (stream.unit() * 256.0) as u8).collect();
    let mut file = format!("P6 {side} {side} 255\n").into_bytes();
    let tile = side / 5 + 1;
    for at in 0..side * side {
        let colour = 3 * (at / side / tile * 5 + at % side / tile);
        file.extend_from_slice(&colours[colour..colour + 3]);
    }
    file
}

/// Weights that went through a file of ours are held against a set as those that did not.
#[test]
fn a_file_of_our_own_says_classes_and_constants_to_whoever_trains_on() {
    let place = Place::new();
    let path = |name: &str| place.path(name).to_str().unwrap().to_owned();
    let ended = place.train("run", &[]).output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    kintsugi(&["checkpoint", "export", "--onnx", &path("run"), &path("trained.onnx")]);
    kintsugi(&["model", "import", &path("trained.onnx"), "--output", &path("net.toml")]);
    let keys = [
        format!("model.name={}", path("net.toml")),
        format!("model.init={}", path("net.safetensors")),
    ];
    let others = ["model.width=1.0", "data.mean=[0.5, 0.5, 0.5]", "data.deviation=[0.5, 0.5, 0.5]"];
    let keys: Vec<&str> = keys.iter().map(String::as_str).chain(others).collect();
    let ended = place.train("on", &keys).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.success() && said.contains("was trained with data.mean"), "{said}");
    let weights = std::fs::read(path("net.safetensors")).unwrap();
    let header = String::from_utf8_lossy(&weights[8..1024.min(weights.len())]).into_owned();
    assert!(header.contains(r#""classes":"[\""#), "{header}");
}

/// Imports, trains some steps, exports, and asks both for pictures that neither has seen.
fn goes_through(python: &Path, file: &str, side: usize) {
    const PICTURES: usize = 40;
    let place = Place::new();
    let path = |name: &str| place.path(name).to_str().unwrap().to_owned();
    kintsugi(&["model", "import", file, "--output", &path("net.toml")]);
    let keys = [
        format!("model.name={}", path("net.toml")),
        format!("model.init={}", path("net.safetensors")),
        format!("data.image_size={side}"),
    ];
    let mut keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    keys.extend(["model.width=1.0", "train.steps=8", "optimizer.learning_rate=0.0001"]);
    let trained = place.train("run", &keys).output().unwrap();
    assert!(trained.status.success(), "{file}: {}", String::from_utf8_lossy(&trained.stderr));
    kintsugi(&["checkpoint", "export", "--onnx", &path("run"), &path("trained.onnx")]);

    let mut pictures = Vec::new();
    let mut stream = Stream::new(&[7]);
    for number in 0..PICTURES {
        std::fs::write(place.path(&format!("{number}.ppm")), tiles(&mut stream, side)).unwrap();
        pictures.push(path(&format!("{number}.ppm")));
    }
    std::fs::write(place.path("list"), pictures.join("\n")).unwrap();
    script(python, &["run", &path("trained.onnx"), &path("list"), &path("theirs")]);
    let run = path("run");
    let words = ["predict", &run, "--json", "--top", "4"].into_iter();
    let ours = kintsugi(&words.chain(pictures.iter().map(String::as_str)).collect::<Vec<_>>());
    let (ours, theirs) =
        (String::from_utf8(ours.stdout).unwrap(), std::fs::read_to_string(path("theirs")).unwrap());
    let (mut compared, mut classes) = (0, BTreeSet::new());
    for (ours, theirs) in ours.lines().zip(theirs.lines()) {
        let ours: serde_json::Value = serde_json::from_str(ours).unwrap();
        let theirs: Vec<f64> = serde_json::from_str(theirs).unwrap();
        let most = theirs.iter().copied().fold(0.0, f64::max);
        let first = ours["top"][0]["class"].as_u64().unwrap() as usize;
        assert_eq!(theirs[first], most, "{file}: {ours} and {theirs:?}");
        for guess in ours["top"].as_array().unwrap() {
            let theirs = theirs[guess["class"].as_u64().unwrap() as usize];
            let ours = guess["probability"].as_f64().unwrap();
            assert!((ours - theirs).abs() < NEAR, "{file}: {ours} and {theirs}");
        }
        compared += 1;
        classes.insert(first);
    }
    assert_eq!(compared, PICTURES);
    assert!(classes.len() > 1, "{file}: one answer to all pictures shows nothing");
}

#[test]
fn imported_models_train_and_run_elsewhere_with_the_same_answers() {
    let Some(python) = judge() else {
        println!("skipped: ONNX Runtime (set KINTSUGI_TORCHVISION_PYTHON)");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    for (name, side) in [
        ("plain", 32),
        ("attentive", 32),
        ("shuffled", 32),
        ("resnet18", 32),
        ("mobilenet_v3_small", 64),
    ] {
        let file = folder.path().join(name).with_extension("onnx");
        let file = file.to_str().unwrap();
        script(&python, &["make", name, &side.to_string(), "4", file]);
        goes_through(&python, file, side);
    }
}
