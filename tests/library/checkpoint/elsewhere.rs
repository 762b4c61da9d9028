//! Files of weights as people have them, in `elsewhere/`: torch and safetensors wrote them for one
//! small model. What is read is what torch reads; a judge compares all of it, where
//! `KINTSUGI_TORCHVISION_PYTHON` names a python with torch (else skipped).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use kintsugi::train::checkpoint::Snapshot;
use kintsugi::train::checkpoint::weights::{self, Given, Imported};

/// The model that all of the files are of.
const LAYERS: [&str; 7] = [
    r#"name = "conv1", kind = "conv", channels = 6, kernel = 3, padding = 1"#,
    r#"name = "bn1", kind = "batch_norm""#,
    r#"kind = "relu""#,
    r#"name = "conv2", kind = "conv", channels = 8, kernel = 3, stride = 2, bias = false"#,
    r#"name = "bn2", kind = "batch_norm""#,
    r#"kind = "global_avg_pool""#,
    r#"name = "fc", kind = "linear", features = "classes""#,
];

/// What torch reads as the first element of these tensors.
const FIRST: [&str; 4] = ["conv1.weight", "bn1.running_var", "bn2.bias", "fc.bias"];

/// A file, what is said of it, and these elements.
type Case = (&'static str, &'static [&'static str], [f32; 4]);

const CASES: [Case; 6] = [
    ("neg.pth", &[], [0.12562172, 0.7580173, 0.0607256, 0.01742647]),
    // pytorch/examples keeps `best_acc1`, a tensor, beside the weights.
    (
        "imagenet_example.pth.tar",
        &["every name begins with `module.`: taken off"],
        [0.12562172, 0.7580173, 0.0607256, 0.01742647],
    ),
    // torch.optim.swa_utils.AveragedModel.
    (
        "averaged_model.pth",
        &["13 names begin with `module.`: taken off", "n_averaged beside the model: passed over"],
        [0.12562172, 0.7580173, 0.0607256, 0.01742647],
    ),
    // DataParallel around a part of the model.
    (
        "partly_parallel.pth",
        &["11 names begin with `features.module.`: taken off"],
        [0.09916245, 1.2617342, 0.199_434_7, 0.4898524],
    ),
    // An argparse.Namespace beside the weights: data, and passed over.
    ("args_ns.pth", &[], [0.12562172, 0.7580173, 0.0607256, 0.01742647]),
    // safetensors.torch.save_model names tied tensors in the texts about the file.
    (
        "alias.safetensors",
        &["bn2.bias is bn2.weight in it: both begin with its values, and each is trained alone"],
        [0.12562172, 0.7580173, 1.1125157, 0.01742647],
    ),
];

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/library/checkpoint/elsewhere").join(name)
}

fn imported(name: &str) -> Imported {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("net.toml");
    let layers = LAYERS.map(|layer| format!("{{ {layer} }}")).join(", ");
    std::fs::write(&model, format!("name = \"net\"\nlayer = [{layers}]\n")).unwrap();
    let given = Given {
        model: Some(model.to_str().unwrap().into()),
        input: Some([3, 8, 8]),
        classes: Some(["a", "b", "c"].map(str::to_owned).to_vec()),
        width: None,
    };
    let bytes = std::fs::read(file(name)).unwrap();
    weights::import(Path::new(name), &bytes, given).unwrap()
}

/// Tensors by name.
fn values(snapshot: &Snapshot) -> BTreeMap<String, Vec<f32>> {
    let Snapshot { layout, parameters, statistics, .. } = snapshot;
    let tensors = layout.tensors.iter().map(|tensor| {
        let flat = match tensor.name.contains("running_") {
            true => statistics,
            false => parameters,
        };
        (tensor.name.clone(), flat[tensor.range()].to_vec())
    });
    tensors.collect()
}

#[test]
fn layouts_that_people_have_are_read_as_torch_reads_them() {
    for (name, remarks, expected) in CASES {
        let Imported { snapshot, remarks: said, .. } = imported(name);
        assert_eq!(said, remarks, "{name}");
        let found = values(&snapshot);
        assert_eq!(FIRST.map(|tensor| found[tensor][0]), expected, "{name}");
    }
}

#[test]
fn torch_reads_the_same_in_files_of_every_layout() {
    let Some(python) = std::env::var_os("KINTSUGI_TORCHVISION_PYTHON") else {
        println!("skipped: what torch reads (set KINTSUGI_TORCHVISION_PYTHON)");
        return;
    };
    let files = CASES.map(|(name, ..)| file(name));
    let mut command = Command::new(python);
    command.arg(file("").with_extension("py")).args(&files);
    let ended = command.output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let lines = String::from_utf8(ended.stdout).unwrap();
    assert_eq!(lines.lines().count(), CASES.len(), "a line for each");
    for ((name, ..), line) in CASES.iter().zip(lines.lines()) {
        let theirs: BTreeMap<String, Vec<f32>> = serde_json::from_str(line).unwrap();
        assert_eq!(values(&imported(name).snapshot), theirs, "{name}");
    }
}
