//! Real files: a resumed run, the subcommand, and what things cost.

use super::*;
use std::time::{Duration, Instant};

use kintsugi::cluster::resident::Slots;
use kintsugi::config;
use kintsugi::observe::storage::FileSystem;
use kintsugi::train::checkpoint::{Writer, weights};
use kintsugi::train::update::optimizer::Optimizer;
use kintsugi_ffi::stream::{self, SgdStep};

fn train(slots: &mut Slots, from: u64, to: u64) {
    let optimizer = Optimizer::new(&config::Optimizer::default(), &layout(), &[]);
    for step in from..to {
        let gradient = |i: u64| ((i * 31 + step * 17) % 97) as f32 - 48.0;
        let gradients: Vec<f32> = (0..PARAMETERS as u64).map(gradient).collect();
        let sums = vec![step as f32; STATISTICS];
        let (current, next) = slots.begin();
        optimizer.apply(current, next, &gradients, 96, 0.05, &sums, &[0.1, 0.1]);
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
    #[command(flatten)]
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

#[test]
fn exported_weights_come_back_through_import() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    write(&FileSystem::new(at("run")), 4);
    assert_eq!(checkpoint(&["export", &at("run"), &at("w.safetensors")]), code(0));
    assert_eq!(checkpoint(&["import", &at("w.safetensors"), &at("new")]), code(0));
    let (back, sent) = (weights::load(Path::new(&at("new")), None).unwrap(), snapshot(4));
    assert_eq!((&back.classes, back.input), (&sent.classes, sent.input));
    assert_eq!(back.model_name, sent.model_name);
    assert_eq!(back.state.step, 0);
    assert_eq!(back.optimizer, [(MOMENTUM.to_string(), vec![0.0; PARAMETERS])]);
    for path in ["run", "new", "w.safetensors", "run/checkpoints/step-00000004"] {
        let got = weights::initial_weights(Path::new(&at(path)), &layout()).unwrap();
        assert_eq!(got, (sent.parameters.clone(), sent.statistics.clone()), "{path}");
    }
    assert_eq!(checkpoint(&["import", &at("w.safetensors"), &at("run")]), code(2), "has some");
    assert_eq!(checkpoint(&["export", &at("nowhere"), &at("x")]), code(2));
}

#[test]
fn a_foreign_file_has_to_be_told_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let header = concat!(
        r#"{"fc.weight":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"#,
        r#""bn.num_batches_tracked":{"dtype":"I64","shape":[],"data_offsets":[8,16]}}"#
    );
    let mut body = (header.len() as u64).to_le_bytes().to_vec();
    body.extend(header.bytes().chain([0; 16]));
    std::fs::write(at("f.safetensors"), body).unwrap();
    let (file, target) = (at("f.safetensors"), at("a"));
    let words = ["import", &file, &target];
    assert_eq!(checkpoint(&words), code(2));
    let told = ["--model", "mlp", "--input", "1x1x1", "--classes", "2"];
    assert_eq!(checkpoint(&[&words[..], &told].concat()), code(0));
    let back = weights::load(Path::new(&target), None).unwrap();
    assert_eq!((back.classes, back.parameters), (vec!["0".into(), "1".into()], vec![0.0; 2]));
}

const MANY: usize = 24_000_000;
const MANY_SHAPE: Shape =
    Shape::of(&[(parts::PARAMETERS, MANY), (MOMENTUM, MANY), (parts::STATISTICS, 0)]);

/// Figures, not a claim: `cargo test --release --test library measure -- --ignored --nocapture`.
#[test]
#[ignore = "measures for half a minute"]
fn measure_streaming_against_ordinary_stores() {
    let step =
        SgdStep { learning_rate: 0.05, momentum: 0.9, weight_decay: 1e-4, scale: 1.0 / 96.0 };
    let mut slots = Slots::new(MANY_SHAPE);
    let gradients = vec![0.5f32; MANY];
    let ways = [stream::Path::Scalar, stream::Path::Sse2, stream::Path::Avx];
    let mut times = [const { Vec::new() }; 3];
    for round in 0..12u64 {
        for (way, times) in ways.into_iter().zip(&mut times) {
            let (now, next) = slots.begin();
            let [w, v] = next.take([parts::PARAMETERS, MOMENTUM]);
            let begun = Instant::now();
            stream::sgd_by(
                way,
                step,
                now.part(parts::PARAMETERS),
                now.part(MOMENTUM),
                &gradients,
                w,
                v,
            );
            times.push(begun.elapsed().as_secs_f64() * 1e3);
            slots.commit(round + 1, 0, &[]);
        }
    }
    for (way, mut times) in ways.iter().zip(times) {
        times.sort_by(f64::total_cmp);
        println!("{way:?}: median {:.1} ms, min {:.1} ms", times[times.len() / 2], times[0]);
    }
}

/// Figures, not a claim.
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
    writer.prepare(MANY_SHAPE);
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
