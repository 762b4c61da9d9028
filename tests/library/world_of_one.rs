//! `kintsugi train` alone, in poor surroundings: nobody who listens, an environment that says
//! nothing or that is another program's, names and numbers that no machine can do with.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Whatever takes longer hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// `train`, a world of one, in a folder of its own.
fn train(folder: &Path, config: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kintsugi"));
    command.arg("train").arg(config).arg("--run-dir").arg(folder.join("run"));
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// Its exit code, and what it wrote to a stderr that was readable.
fn ended(mut command: Command) -> (Option<i32>, String) {
    let mut child = command.spawn().unwrap();
    let until = Instant::now() + LIMIT;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > until {
            child.kill().unwrap();
            panic!("still running after {LIMIT:?}: {:?}", child.wait().unwrap());
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let text = child.stderr.map(|stream| std::io::read_to_string(stream).unwrap());
    (status.code(), text.unwrap_or_default())
}

fn result(folder: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(folder.join("run/result.json")).unwrap()).unwrap()
}

fn synthetic() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/mlp_synthetic.toml")
}

/// 200 pictures in two classes; one is text.
fn one_bad_picture(folder: &Path) -> PathBuf {
    for index in 0..200_u8 {
        let class = folder.join(if index % 2 == 0 { "even" } else { "odd" });
        std::fs::create_dir_all(&class).unwrap();
        let picture = image::RgbImage::from_pixel(8, 8, image::Rgb([index, 0, 255 - index]));
        picture.save(class.join(format!("{index}.png"))).unwrap();
    }
    std::fs::write(folder.join("odd/101.png"), "no picture\n").unwrap();
    let config = folder.with_extension("toml");
    let text = format!(
        r#"
        model = {{ name = "mlp", width = 0.1 }}
        data = {{ train = {folder:?}, validation = {folder:?}, image_size = 8 }}
        train = {{ epochs = 2, global_batch = 20 }}
        evaluation = {{ every = "never" }}
        "#
    );
    std::fs::write(&config, text).unwrap();
    config
}

#[test]
fn a_bad_picture_that_nobody_can_be_told_of_holds_nothing_up() {
    let folder = tempfile::tempdir().unwrap();
    let config = one_bad_picture(&folder.path().join("pictures"));
    let full = File::options().write(true).open("/dev/full").unwrap();
    let closed = std::io::pipe().unwrap().1;
    for stderr in [Stdio::from(full), closed.into()] {
        let run = tempfile::tempdir().unwrap();
        let mut command = train(run.path(), &config);
        command.stderr(stderr);
        assert_eq!(ended(command).0, Some(0));
        assert_eq!(result(run.path())["status"], "completed");
    }
}

#[test]
fn what_a_launcher_left_behind_changes_nothing() {
    let leftovers = [
        ("PMIX_RANK", "3"),
        ("PMIX_NAMESPACE", "prterun-gone-1@1"),
        // Port 1: nobody listens there.
        ("PMIX_SERVER_URI2", "prterun-gone-1@0.0;tcp4://127.0.0.1:1"),
        ("OMPI_COMM_WORLD_RANK", "3"),
        ("OMPI_COMM_WORLD_SIZE", "4"),
    ];
    let hashes: Vec<serde_json::Value> = [&leftovers[..0], &leftovers[..2], &leftovers[..]]
        .into_iter()
        .map(|variables| {
            let folder = tempfile::tempdir().unwrap();
            let mut command = train(folder.path(), &synthetic());
            command.args(["-s", "train.steps=3", "-s", "train.owners=2"]);
            command.envs(variables.iter().copied()).stderr(Stdio::piped());
            let (code, text) = ended(command);
            assert_eq!(code, Some(0), "{variables:?}: {text}");
            result(folder.path())["state_sha256"].clone()
        })
        .collect();
    assert!(hashes[0].is_string());
    assert!(hashes.iter().all(|hash| *hash == hashes[0]), "{hashes:?}");
}

#[test]
fn an_environment_that_says_nothing_is_enough() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = train(folder.path(), &synthetic());
    command.args(["-s", "train.steps=2"]).env_clear().stderr(Stdio::piped());
    let (code, text) = ended(command);
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn a_run_directory_whose_name_is_no_text_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for program in ["train", "launch"] {
        let run = folder.path().join(OsStr::from_bytes(b"run-\xff"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_kintsugi"));
        command.arg(program).arg(synthetic()).arg("--run-dir").arg(&run).stderr(Stdio::piped());
        let (code, text) = ended(command);
        assert_eq!(code, Some(2), "{program}: {text}");
        assert!(text.contains(r"run-\xFF") && text.contains("UTF-8"), "{program}: {text}");
        assert!(!run.exists());
    }
}

#[test]
fn a_run_that_no_memory_holds_is_refused_before_it_is_tried() {
    let folder = tempfile::tempdir().unwrap();
    let config = one_bad_picture(&folder.path().join("pictures"));
    for (key, told) in [
        ("data.image_size=100000", "write 16384 or less"),
        ("data.image_size=16384", "lower data.image_size"),
        ("train.workers=4000000000", "write 4096 or less"),
        ("train.owners=4000000000", "write 1048576 or less"),
        ("data.prefetch=4000000000", "write 1024 or less"),
        ("train.global_batch=9000000000000000000", "write 16777216 or less"),
    ] {
        let mut command = train(folder.path(), &config);
        command.args(["-s", "train.global_batch=200", "-s", key]).stderr(Stdio::piped());
        let (code, text) = ended(command);
        assert_eq!(code, Some(2), "{key}: {text}");
        assert!(text.contains(told), "{key}: {text}");
    }
}

#[test]
fn it_goes_on_with_no_other_weights_than_it_began_with() {
    let first = tempfile::tempdir().unwrap();
    let few = |folder: &Path, more: &[&str]| {
        let mut command = train(folder, &synthetic());
        command.args(["-s", "train.steps=2", "-s", "evaluation.every=never"]).args(more);
        command.stderr(Stdio::piped());
        ended(command)
    };
    assert_eq!(few(first.path(), &[]).0, Some(0));
    let file = first.path().join("weights.safetensors");
    let mut export = Command::new(env!("CARGO_BIN_EXE_kintsugi"));
    export.args(["checkpoint", "export"]).arg(first.path().join("run")).arg(&file);
    assert!(export.output().unwrap().status.success());
    let init = format!("model.init={}", file.display());
    let begun = tempfile::tempdir().unwrap();
    let tuned = || few(begun.path(), &["-s", &init]);
    assert_eq!(tuned().0, Some(0));
    let run = begun.path().join("run");
    let config = || std::fs::read_to_string(run.join("config.toml")).unwrap();
    let named = config();
    assert!(named.contains("init_hash = \""), "{named}");
    assert_eq!(tuned().0, Some(0), "it is the same run");
    assert_eq!(config(), named);
    // Nothing is left of it but its configuration: it would begin again, and not with these.
    std::fs::remove_dir_all(run.join("checkpoints")).unwrap();
    for gone in ["result.json", "events.jsonl", "ledger.jsonl"] {
        std::fs::remove_file(run.join(gone)).unwrap();
    }
    let mut bytes = std::fs::read(&file).unwrap();
    let last = bytes.len() - 4;
    bytes[last..].copy_from_slice(&0.25f32.to_le_bytes());
    std::fs::write(&file, &bytes).unwrap();
    let (code, text) = tuned();
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("these are not the weights of this run"), "{text}");
}
