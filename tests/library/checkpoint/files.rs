//! Real files: a resumed run, the subcommand, and what things cost.

use super::*;
use std::time::{Duration, Instant};

use kintsugi::cluster::resident::Slots;
use kintsugi::config;
use kintsugi::data::Normalization;
use kintsugi::model::{catalogue, init, layout, onnx};
use kintsugi::observe::storage::FileSystem;
use kintsugi::train::checkpoint::weights::{Given, Imported};
use kintsugi::train::checkpoint::{Answers, Writer, weights};
use kintsugi::train::compute::gradients::Gradients;
use kintsugi::train::compute::moments::{Moments, Seen};
use kintsugi::train::update::optimizer::Optimizer;

fn train(slots: &mut Slots, from: u64, to: u64) {
    let optimizer = Optimizer::new(&config::Optimizer::default(), &layout(), &[]);
    for step in from..to {
        let gradient = |i: u64| ((i * 31 + step * 17) % 97) as f32 - 48.0;
        let gradients: Vec<f32> = (0..PARAMETERS as u64).map(gradient).collect();
        let sums = vec![step as f64; STATISTICS];
        let (current, mut next) = slots.begin();
        let gradients = Gradients::numbers_of_all(&gradients);
        let seen = Seen { samples: 96, alone: 0 };
        let scales = optimizer.scales(current.step + 1, 0.05, seen.samples, &gradients);
        let all = 0..PARAMETERS;
        let mut own = next.cut(&all, parts::is_over_parameters);
        assert!(optimizer.advance(&scales, all, &gradients, &current, &mut own));
        assert!(optimizer.follow(&current, &mut next, &sums, &Moments::default(), seen));
        slots.commit(step + 1, 0, &[]);
    }
}

fn digest(slots: &Slots) -> String {
    let seen = slots.committed();
    let parameters = seen.part(parts::PARAMETERS).to_vec();
    let optimizer = vec![(MOMENTUM.into(), seen.part(MOMENTUM).to_vec())];
    let statistics = seen.part(parts::STATISTICS).to_vec();
    Snapshot { parameters, optimizer, statistics, ..snapshot(seen.step) }.state_sha256()
}

#[test]
fn a_run_resumed_from_a_checkpoint_ends_with_the_same_bits() {
    let mut calm = Slots::new(SHAPE);
    train(&mut calm, 0, 10);

    let folder = tempfile::tempdir().unwrap();
    let storage = Arc::new(FileSystem::new(folder.path()));
    let mut first = Slots::new(SHAPE);
    train(&mut first, 0, 6);
    let writer = Writer::new(storage.clone(), 2, Box::new(|| true));
    let ticket = writer.try_begin().unwrap();
    writer.submit(ticket.fill(&about(), first.committed(), snapshot(6).state));
    assert!(writer.finish(Duration::from_secs(20)));
    drop(first);

    let found = newest_verified(&*storage, &expectation()).unwrap().unwrap();
    let mut second = Slots::new(SHAPE);
    second.replace(found.slot(SHAPE, b"").unwrap());
    train(&mut second, 6, 10);
    assert_eq!(digest(&second), digest(&calm));
}

#[test]
fn on_real_files_a_second_one_of_the_same_step_replaces_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let storage = FileSystem::new(folder.path());
    write(&storage, 1);
    write(&storage, 2);
    write(&storage, 2);
    store::mark_bad(&storage, "step-00000002", "as a test");
    write(&storage, 2);
    store::mark_bad(&storage, "step-00000002", "marked twice");
    assert_eq!(names(&storage), ["step-00000001", "step-00000002.bad"]);
    assert_eq!(newest_step(&storage), Some(1));
}

#[derive(clap::Parser)]
struct Line {
    #[command(subcommand)]
    args: kintsugi::cli::checkpoint::Args,
}

/// The exit code of `kintsugi checkpoint ...`.
fn checkpoint(words: &[&str]) -> String {
    let words = std::iter::once("checkpoint").chain(words.iter().copied());
    let line = <Line as clap::Parser>::try_parse_from(words).unwrap();
    format!("{:?}", kintsugi::cli::checkpoint::run(&line.args))
}

fn code(number: u8) -> String {
    format!("{:?}", std::process::ExitCode::from(number))
}

#[test]
fn verify_answers_with_its_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().to_str().unwrap();
    let storage = FileSystem::new(folder.path());
    assert_eq!(checkpoint(&["verify", run]), code(2), "not a run directory");
    write(&storage, 1);
    write(&storage, 2);
    let all = format!("{run}/checkpoints");
    let one = format!("{all}/step-00000002");
    for path in [run, &all, &one] {
        assert_eq!(checkpoint(&["verify", path]), code(0));
    }
    let file = folder_of(2).join("optimizer.safetensors");
    let mut body = storage.read(&file).unwrap();
    *body.last_mut().unwrap() ^= 1;
    storage.write_whole(&file, &[&body]).unwrap();
    for path in [run, &all, &one] {
        assert_eq!(checkpoint(&["verify", path, "--json"]), code(1));
    }
    assert_eq!(checkpoint(&["list", run]), code(0));
    assert_eq!(names(&storage), ["step-00000001", "step-00000002"], "looking marks nothing");
}

/// A state of a model that the catalogue has.
fn known(step: u64) -> Snapshot {
    known_of(step, ["cat", "dog, \"big\"", "e\u{1b}el"].map(String::from).into())
}

fn known_of(step: u64, classes: Vec<String>) -> Snapshot {
    let graph = catalogue::build("mlp", [1, 4, 4], classes.len(), 0.0625).unwrap();
    let layout = Arc::new(layout::of(&graph));
    let value = |i: usize| (i % 1000) as f32 - 500.5;
    let parameters: Vec<f32> = (0..layout.parameters).map(value).collect();
    Snapshot {
        model_name: "mlp".into(),
        classes,
        input: [1, 4, 4],
        optimizer: vec![(MOMENTUM.into(), parameters.clone())],
        parameters,
        statistics: Vec::new(),
        layout,
        ..snapshot(step)
    }
}

/// Archives number their classes; folders of the same names lie in another order from 10 on.
#[test]
fn classes_of_the_same_names_in_another_order_are_other_classes() {
    let folder = tempfile::tempdir().unwrap();
    let classes: Vec<String> = (0..11).map(|class| class.to_string()).collect();
    let sent = known_of(4, classes.clone());
    let run = FileSystem::new(folder.path());
    store::write(&run, &sent, 9, &|| true, &RealClock::default()).result.unwrap();
    let bytes = weights::bytes_of(folder.path()).unwrap().0;
    let graph = catalogue::build("mlp", sent.input, 11, 0.0625).unwrap();
    let got = |classes: &[String]| {
        let (run, answers) = (Path::new("run"), Answers { seed: 1, classes });
        weights::initial_weights(run, &bytes, &graph, &sent.layout, answers).unwrap()
    };
    assert_eq!(
        (got(&classes).parameters, got(&classes).remarks),
        (sent.parameters.clone(), vec![])
    );
    let mut sorted = classes;
    sorted.sort();
    let said = "its classes are 0, 1, 2, 3, 4, 5, 6, 7, ..., not 0, 1, 10, 2, ";
    let other = got(&sorted);
    assert!(other.remarks[0].starts_with(said), "{:?}", other.remarks);
    assert_ne!(other.parameters, sent.parameters, "its last layer begins anew");
}

#[test]
fn exported_weights_come_back_through_import() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let run = FileSystem::new(at("run"));
    store::write(&run, &known(4), 9, &|| true, &RealClock::default()).result.unwrap();
    assert_eq!(checkpoint(&["export", &at("run"), &at("w.safetensors")]), code(0));
    assert_eq!(checkpoint(&["import", &at("w.safetensors"), &at("new")]), code(0));
    let (back, sent) = (weights::load(Path::new(&at("new")), None).unwrap().snapshot, known(4));
    assert_eq!((&back.classes, back.input), (&sent.classes, sent.input));
    assert_eq!(back.model_name, sent.model_name);
    assert_eq!(back.state.step, 0);
    assert_eq!(back.optimizer, [(MOMENTUM.to_string(), vec![0.0; sent.parameters.len()])]);
    let answers = Answers { seed: 1, classes: &sent.classes };
    for path in ["run", "new", "w.safetensors", "run/checkpoints/step-00000004"] {
        let graph =
            catalogue::build(&sent.model_name, sent.input, sent.classes.len(), 1.0).unwrap();
        let bytes = weights::bytes_of(Path::new(&at(path))).unwrap().0;
        let name = Path::new(path);
        let got = weights::initial_weights(name, &bytes, &graph, &sent.layout, answers).unwrap();
        assert_eq!(got.parameters, sent.parameters, "{path}");
        assert_eq!((got.statistics, got.remarks), (sent.statistics.clone(), vec![]));
    }
    // A run that goes on writes newer ones: those that were named are found by their hash.
    let named = weights::bytes_of(Path::new(&at("run"))).unwrap().0;
    let newer = Snapshot { parameters: vec![0.5; sent.parameters.len()], ..known(8) };
    let trains = FileSystem::new(at("trains"));
    for snapshot in [&known(4), &newer] {
        store::write(&trains, snapshot, 9, &|| true, &RealClock::default()).result.unwrap();
    }
    let found = |hash: &str| weights::bytes_of_hash(Path::new(&at("trains")), hash).unwrap();
    assert_ne!(weights::bytes_of(Path::new(&at("trains"))).unwrap().0, named);
    assert_eq!(found(&weights::hash_of(&named)), Some(named));
    assert_eq!(found(&weights::hash_of(b"others")), None);
    // As many other classes: their layer is new, and that is said.
    let graph = catalogue::build("mlp", sent.input, 3, 0.0625).unwrap();
    let bytes = weights::bytes_of(Path::new(&at("run"))).unwrap().0;
    let classes = ["cup", "jar", "plate"].map(String::from);
    let others = Answers { seed: 1, classes: &classes };
    let run = Path::new("run");
    let got = weights::initial_weights(run, &bytes, &graph, &sent.layout, others);
    let (got, first) = (got.unwrap(), init::parameters(&graph, &sent.layout, 1));
    assert_eq!(
        got.remarks,
        ["its classes are cat, dog, \"big\", e\\u{1b}el, not cup, jar, plate: fc3.weight, \
             fc3.bias begin anew, with first weights of seed 1"]
    );
    let (body, head) = sent.layout.tensors.split_at(sent.layout.tensors.len() - 2);
    assert!(body.iter().all(|t| got.parameters[t.range()] == sent.parameters[t.range()]));
    assert!(head.iter().all(|t| got.parameters[t.range()] == first[t.range()]));
    // A set whose classes are numbers does not say that they are others.
    let numbers = ["0", "1", "2"].map(String::from);
    let numbered = Answers { seed: 1, classes: &numbers };
    let got = weights::initial_weights(run, &bytes, &graph, &sent.layout, numbered);
    assert_eq!(got.unwrap().parameters, sent.parameters);
    assert_eq!(checkpoint(&["import", &at("w.safetensors"), &at("run")]), code(2), "has some");
    assert_eq!(checkpoint(&["export", &at("nowhere"), &at("x")]), code(2));
}

/// Whoever names a file says what it is to be, and nothing else is written there.
#[test]
fn what_is_exported_is_what_the_file_is_called() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let run = FileSystem::new(at("run"));
    store::write(&run, &known(4), 9, &|| true, &RealClock::default()).result.unwrap();
    let config = "model = { name = \"mlp\", width = 0.0625 }\ntrain = { steps = 5 }\n";
    run.write_whole(Path::new("config.toml"), &[config.as_bytes()]).unwrap();
    let export = |name: &str, more: &[&str]| {
        checkpoint(&[&["export", &at("run"), &at(name)], more].concat())
    };
    assert_eq!(export("w.ONNX", &[]), code(0));
    let bytes = std::fs::read(at("w.ONNX")).unwrap();
    let taken = onnx::import::import("w", &bytes, None, &|_| Err("no file".into())).unwrap();
    assert_eq!(taken.parameters, known(4).parameters);
    for (name, more) in [("w", &[][..]), ("w.safetensors", &[])] {
        assert_eq!(export(name, more), code(0), "{name}");
        let bytes = std::fs::read(at(name)).unwrap();
        weights::import(Path::new(name), &bytes, Given::default()).unwrap();
    }
    for (name, more) in [
        ("v.pth", &[][..]),
        ("v.pt", &[]),
        ("v.bin", &[]),
        ("v.2", &[]),
        ("v.pth", &["--onnx"]),
        ("v.safetensors", &["--onnx"]),
    ] {
        assert_eq!(export(name, more), code(2), "{name} {more:?}");
        assert!(!Path::new(&at(name)).exists(), "{name}");
    }
}

#[test]
fn the_average_of_the_weights_is_exported_in_each_form() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let run = FileSystem::new(at("run"));
    let mut sent = known(4);
    store::write(&run, &sent, 9, &|| true, &RealClock::default()).result.unwrap();
    let average: Vec<f32> = sent.parameters.iter().map(|value| value + 0.25).collect();
    let export = |words: &[&str]| checkpoint(&[&["export", &at("run")], words].concat());
    assert_eq!(export(&[&at("w"), "--average"]), code(2), "it has none");
    assert!(!Path::new(&at("w")).exists());
    sent.optimizer.push((parts::AVERAGE.into(), average.clone()));
    sent.state.step = 5;
    store::write(&run, &sent, 9, &|| true, &RealClock::default()).result.unwrap();
    let config = "model = { name = \"mlp\", width = 0.0625 }\ntrain = { steps = 5 }\n";
    run.write_whole(Path::new("config.toml"), &[config.as_bytes()]).unwrap();
    for (words, wanted) in [(&[][..], &sent.parameters), (&["--average"], &average)] {
        assert_eq!(export(&[&[&*at("w.safetensors")], words].concat()), code(0));
        let bytes = std::fs::read(at("w.safetensors")).unwrap();
        let taken = weights::import(Path::new("w"), &bytes, Given::default()).unwrap();
        assert_eq!(&taken.snapshot.parameters, wanted, "{words:?}");
        assert_eq!(export(&[&[&*at("w.onnx"), "--onnx"], words].concat()), code(0));
        let bytes = std::fs::read(at("w.onnx")).unwrap();
        let taken = onnx::import::import("w", &bytes, None, &|_| Err("no file".into())).unwrap();
        assert_eq!(&taken.parameters, wanted, "{words:?}");
    }
}

/// A foreign file of these tensors, all zero but the first value.
fn foreign(tensors: &[(String, Vec<usize>)], first: f32) -> Vec<u8> {
    let (mut parts, mut end) = (Vec::new(), 0);
    for (name, shape) in tensors {
        let from = end;
        end += 4 * shape.iter().product::<usize>();
        parts.push(format!(
            "{name:?}:{{\"dtype\":\"F32\",\"shape\":{shape:?},\"data_offsets\":[{from},{end}]}}"
        ));
    }
    let header = format!("{{{}}}", parts.join(","));
    let mut body = (header.len() as u64).to_le_bytes().to_vec();
    body.extend(header.bytes());
    body.extend(first.to_le_bytes());
    body.resize(body.len() + end - 4, 0);
    body
}

fn tensors_of(model: &str, classes: usize, width: f64) -> Vec<(String, Vec<usize>)> {
    let graph = catalogue::build(model, [3, 32, 32], classes, width).unwrap();
    layout::of(&graph).tensors.into_iter().map(|tensor| (tensor.name, tensor.shape)).collect()
}

fn import_of(bytes: &[u8], model: &str, classes: u32) -> Result<Imported, String> {
    let given = Given {
        model: Some(model.into()),
        input: Some([3, 32, 32]),
        classes: Some((0..classes).map(|class| class.to_string()).collect()),
        width: None,
    };
    weights::import(Path::new("f.safetensors"), bytes, given).map_err(|error| error.to_string())
}

#[test]
fn import_takes_the_whole_model_and_nothing_else() {
    let whole = tensors_of("resnet20", 10, 1.0);
    assert_eq!(import_of(&foreign(&whole, 0.5), "resnet20", 10).unwrap().remarks, [""; 0]);
    let mut cut = whole.clone();
    cut.retain(|(name, _)| !name.starts_with("layer2."));
    let mut turned = whole.clone();
    let variance = turned.iter().position(|(name, _)| name == "bn1.running_var").unwrap();
    turned.rotate_left(variance);
    let other = tensors_of("mlp", 10, 1.0);
    let many = tensors_of("resnet20", 1000, 1.0);
    for (bytes, model, classes, expected) in [
        (foreign(&cut, 0.0), "resnet20", 10, "tensors are missing: layer2.0.conv1.weight, "),
        (foreign(&other, 0.0), "resnet20", 10, "6 tensors are of no layer of the model: fc1.bias"),
        (foreign(&whole, f32::NAN), "resnet20", 10, "conv1.weight holds a value that is no finite"),
        (foreign(&turned, -0.5), "resnet20", 10, "bn1.running_var holds a variance below 0"),
        (foreign(&turned, f32::INFINITY), "resnet20", 10, "bn1.running_var holds a value that is"),
        (foreign(&whole, 0.0), "resnet49", 10, "there is no model `resnet49`"),
    ] {
        let text = import_of(&bytes, model, classes).unwrap_err();
        assert!(text.contains(expected), "{text}");
    }
    let said = "it is for 1000 classes, this model for 4: fc.weight, fc.bias begin anew, with \
                first weights of seed 1";
    let imported = import_of(&foreign(&many, 0.5), "resnet20", 4).unwrap();
    assert_eq!((imported.remarks, imported.snapshot.classes.len()), (vec![said.to_owned()], 4));
    // The same reader serves `model.init`.
    let graph = catalogue::build("resnet20", [3, 32, 32], 4, 1.0).unwrap();
    let layout = layout::of(&graph);
    let (name, bytes) = (Path::new("w.safetensors"), foreign(&many, 0.5));
    let answers = Answers { seed: 1, classes: &[] };
    let fitted = weights::initial_weights(name, &bytes, &graph, &layout, answers).unwrap();
    assert_eq!(
        (fitted.parameters, fitted.remarks[0].as_str()),
        (imported.snapshot.parameters, said)
    );
    let text = weights::bytes_of(Path::new("/dev/zero")).unwrap_err();
    assert!(text.to_string().contains("it is a device; only files"), "{text}");
}

#[test]
fn torchvisions_googlenet_is_told_from_one_that_says_what_it_was_trained_with() {
    let half = Normalization { mean: [0.5; 3], deviation: [0.5; 3] };
    let said = |model: &str, texts: &[(&str, &str)], now| {
        let texts = texts.iter().map(|(key, text)| ((*key).into(), (*text).into())).collect();
        weights::other_pictures(model, &texts, now).unwrap_or_default()
    };
    let keys = "data.mean=[0.5,0.5,0.5] data.deviation=[0.5,0.5,0.5]";
    let usual = Normalization::IMAGENET;
    let published = format!("were trained with {keys}, which their file does not say");
    assert!(said("googlenet", &[("format", "pt")], Some(usual)).contains(&published));
    assert!(said("googlenet", &[], None).contains(&published), "an import knows of no run");
    assert_eq!(said("googlenet", &[], Some(half)), "");
    assert_eq!(said("resnet18", &[], Some(usual)), "");
    assert_eq!(said("googlenet", &[("model", "googlenet")], Some(usual)), "", "it is our own");
    let own = half.texts().map(|(key, text)| (key, text));
    let own = own.each_ref().map(|(key, text)| (*key, text.as_str()));
    assert_eq!(said("mlp", &own, Some(usual)), format!("it was trained with {keys}"));
    assert_eq!(said("mlp", &own, Some(half)), "");
}

#[test]
fn a_wrapped_models_prefix_is_taken_off_and_a_models_width_is_that_of_its_file() {
    let plain = tensors_of("cnn11", 10, 0.125);
    let wrapped: Vec<_> = plain.iter().map(|(n, s)| (format!("module.{n}"), s.clone())).collect();
    for (tensors, prefix) in [(&plain, ""), (&wrapped, "module.")] {
        let Imported { snapshot, remarks, .. } =
            import_of(&foreign(tensors, 0.5), "cnn11", 10).unwrap();
        let said = remarks.first().is_some_and(|remark| remark.contains(&format!("`{prefix}`")));
        assert_eq!((said, snapshot.parameters[0]), (!prefix.is_empty(), 0.5));
        let names: Vec<&str> = snapshot.layout.tensors.iter().map(|t| t.name.as_str()).collect();
        assert!(names.iter().copied().eq(plain.iter().map(|(name, _)| name.as_str())));
    }
}

#[test]
fn a_foreign_file_has_to_be_told_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let mut tensors = tensors_of("mlp", 2, 0.0625);
    tensors.push(("bn.num_batches_tracked".into(), vec![1]));
    std::fs::write(at("f.safetensors"), foreign(&tensors, 0.0)).unwrap();
    let (file, target) = (at("f.safetensors"), at("a"));
    let words = ["import", &file, &target];
    assert_eq!(checkpoint(&words), code(2));
    let told = ["--model", "cnn11", "--input", "3x32x32", "--classes", "2"];
    assert_eq!(checkpoint(&[&words[..], &told].concat()), code(2), "another model");
    assert!(!Path::new(&target).exists(), "nothing is left of a refused file");
    let told = ["--model", "mlp", "--input", "3x32x32", "--classes", "2", "--width", "0.0625"];
    assert_eq!(checkpoint(&[&words[..], &told].concat()), code(0));
    let back = weights::load(Path::new(&target), None).unwrap().snapshot;
    assert_eq!(back.classes, ["0", "1"]);
}

const MANY: usize = 24_000_000;
const MANY_SHAPE: Shape =
    Shape::of(&[(parts::PARAMETERS, MANY), (MOMENTUM, MANY), (parts::STATISTICS, 0)]);

/// Figures, not a claim: `cargo test --release --test library measure -- --ignored --nocapture`.
#[test]
#[ignore = "measures for half a minute"]
fn measure_a_checkpoint_of_24_million_parameters() {
    let mut slots = Slots::new(MANY_SHAPE);
    let (_, mut next) = slots.begin();
    next.part(parts::PARAMETERS).fill(1.0);
    next.part(MOMENTUM).fill(1.0);
    slots.commit(1, 0, &[]);
    let tensors = vec![tensor("w", &[MANY], 0, TensorKind::Weight)];
    let layout = Arc::new(Layout { tensors, parameters: MANY, statistics: 0 });
    let about = About { layout, ..about() };
    let folder = tempfile::tempdir().unwrap();
    let writer = Writer::new(Arc::new(FileSystem::new(folder.path())), 1, Box::new(|| true));
    for round in 1..5 {
        let begun = Instant::now();
        let ticket = writer.try_begin().unwrap();
        let copied = ticket.fill(&about, slots.committed(), snapshot(round).state);
        let stall = begun.elapsed().as_secs_f64();
        writer.submit(copied);
        assert!(writer.finish(Duration::from_secs(60)));
        for report in writer.poll() {
            let (write, verify) = (report.write_seconds, report.verify_seconds);
            println!(
                "{} B: stall {stall:.3} s, write {write:.3} s, verify {verify:.3} s",
                report.bytes
            );
        }
    }
}
