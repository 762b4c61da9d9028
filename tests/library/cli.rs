//! The command line from outside: usage errors, exit codes, what goes to stdout.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::program::{kintsugi, stderr, stdout};

fn project(path: &str) -> String {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    path.display().to_string()
}

#[test]
fn usage_errors_exit_2_and_say_what_exists() {
    for arguments in [&[][..], &["tarin"], &["launch"], &["launch", "--no-such-flag"]] {
        let output = kintsugi(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains("Usage"), "{arguments:?}: {}", stderr(&output));
    }
}

/// How a command ends whose stdout or stderr is this.
fn ended(arguments: &[&str], stdout: impl Into<Stdio>, stderr: impl Into<Stdio>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kintsugi"));
    command.args(arguments).stdout(stdout).stderr(stderr).output().unwrap()
}

/// A pipe that nobody reads any more.
fn closed_pipe() -> std::io::PipeWriter {
    std::io::pipe().unwrap().1
}

fn full_disk() -> File {
    File::options().write(true).open("/dev/full").unwrap()
}

/// Commands whose result is what they print.
const PRINTING: [&[&str]; 7] = [
    &["model", "show", "resnet18"],
    &["model", "list", "--json"],
    &["simulate", "cluster", "--seeds", "1", "--trace"],
    &["simulate", "cluster", "--seeds", "1", "--json"],
    &["--help"],
    &["--version"],
    &["launch", "--help"],
];

#[test]
fn a_reader_that_has_read_enough_is_no_failure() {
    for arguments in PRINTING {
        let output = ended(arguments, closed_pipe(), Stdio::piped());
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
        assert_eq!(stderr(&output), "", "{arguments:?}");
    }
}

#[test]
fn a_result_that_is_lost_is_a_failure_that_is_told() {
    for arguments in PRINTING {
        let output = ended(arguments, full_disk(), Stdio::piped());
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", stderr(&output));
        let text = stderr(&output);
        assert!(text.starts_with("error: stdout: No space left"), "{arguments:?}: {text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}

#[test]
fn a_limit_of_file_sizes_is_an_error_as_a_full_disk_is() {
    let folder = tempfile::tempdir().unwrap();
    let line = r#"ulimit -f 0; exec "$0" model show resnet18 > file"#;
    let mut command = Command::new("bash");
    command.args(["-c", line, env!("CARGO_BIN_EXE_kintsugi")]).current_dir(folder.path());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("File too large"), "{}", stderr(&output));
}

#[test]
fn what_went_wrong_is_said_by_the_exit_code_where_nobody_can_be_told() {
    let cases: [(&[&str], i32); 5] = [
        (&["audit", "/no/such/run"], 2),
        (&["status", "/no/such/run"], 2),
        (&["model", "show", "no-such-model"], 2),
        (&["launch", "/no/such.toml"], 2),
        (&["tarin"], 2),
    ];
    for (arguments, code) in cases {
        for unheard in [Stdio::from(closed_pipe()), full_disk().into()] {
            let output = ended(arguments, Stdio::null(), unheard);
            assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        }
    }
}

#[test]
fn a_run_that_has_not_begun_is_none_yet() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("lock"), "").unwrap();
    let run = folder.path().display().to_string();
    for command in [&["status", &run][..], &["status", "--live", &run]] {
        assert!(stderr(&kintsugi(command)).contains("holds no run"));
    }
    for command in ["status", "report", "audit"] {
        assert_eq!(kintsugi(&[command, &run]).status.code(), Some(2), "{command}");
    }
}

#[test]
fn a_missing_run_is_a_usage_error_of_every_command_that_needs_one() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    std::fs::create_dir(at("empty")).unwrap();
    std::fs::write(at("file"), "").unwrap();
    let weights = at("weights.safetensors");
    for (name, why) in
        [("nowhere", "does not exist"), ("empty", "holds no run"), ("file", "is no folder")]
    {
        let run = at(name);
        for arguments in [
            &["status", &run][..],
            &["status", "--json", &run],
            &["status", "--live", &run],
            &["report", &run],
            &["audit", &run],
            &["audit", "--json", &run],
            &["scale", &run, "2"],
        ] {
            let output = kintsugi(arguments);
            assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
            assert!(stderr(&output).contains(why), "{arguments:?}: {}", stderr(&output));
        }
        for arguments in [
            &["evaluate", &run][..],
            &["checkpoint", "list", &run],
            &["checkpoint", "verify", &run],
            &["checkpoint", "export", &run, &weights],
        ] {
            let output = kintsugi(arguments);
            assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
            assert!(stderr(&output).contains(&run), "{arguments:?}: {}", stderr(&output));
        }
    }
}

#[test]
fn help_and_version_go_to_stdout_and_succeed() {
    for arguments in [&["--help"][..], &["--version"], &["launch", "--help"], &["train", "--help"]]
    {
        let output = kintsugi(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert!(!output.stdout.is_empty());
    }
    let help = stdout(&kintsugi(&["--help"]));
    assert!(help.contains("launch") && !help.contains("sweep"), "{help}");
}

#[test]
fn configuration_errors_exit_2_and_start_nothing() {
    let run = std::env::temp_dir().join(format!("kintsugi-cli-{}", std::process::id()));
    let run_text = run.display().to_string();
    let config = project("configs/mlp_synthetic.toml");
    for command in ["train", "launch"] {
        for (set, expected) in [
            ("train.epoch=3", "did you mean `train.epochs`?"),
            ("train.global_batch=many", "whole number"),
            ("device.kind=npu", "expected one of `auto`, `cpu`, `cuda`"),
            ("train.owners=0", "more ranks than owners"),
        ] {
            let output = kintsugi(&[command, &config, "-s", set, "--run-dir", &run_text]);
            assert_eq!(output.status.code(), Some(2), "{command} {set}: {}", stderr(&output));
            assert!(stderr(&output).contains(expected), "{command} {set}: {}", stderr(&output));
        }
    }
    let output = kintsugi(&["launch", "/no/such.toml", "--run-dir", &run_text]);
    assert_eq!(output.status.code(), Some(2));
    let pictures = project("configs/quick.toml");
    for command in ["train", "launch"] {
        for (set, code, expected) in [
            ("model.name=nope", 2, "there is no model `nope`"),
            ("data.train=/no/such/folder", 3, "data.train = /no/such/folder: there is no such"),
        ] {
            let never = "evaluation.every=never";
            let words = [command, &pictures, "-s", set, "-s", never, "--run-dir", &run_text];
            let output = kintsugi(&words);
            assert_eq!(output.status.code(), Some(code), "{command} {set}: {}", stderr(&output));
            assert!(stderr(&output).contains(expected), "{command} {set}: {}", stderr(&output));
            assert!(!run.exists(), "{command} {set} left {}", run.display());
        }
    }
    assert!(!run.exists(), "a refused run left {}", run.display());
}

#[test]
fn a_dry_run_prints_one_line_that_a_shell_can_run_and_creates_nothing() {
    let run = std::env::temp_dir().join(format!("kintsugi-dry-{}", std::process::id()));
    let run_text = run.display().to_string();
    let config = project("configs/mlp_synthetic.toml");
    let output = kintsugi(&["launch", "-n", "3", "--dry-run", &config, "--run-dir", &run_text]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let line = stdout(&output);
    assert_eq!(line.lines().count(), 1, "{line}");
    for part in
        ["--with-ft ulfm", "--bind-to none", "-n 3 ", " train ", "--attempt 1", "--launched"]
    {
        assert!(line.contains(part), "`{part}` is not in {line}");
    }
    assert!(!run.exists());
}

#[test]
fn ranks_are_kept_to_the_loopback_unless_a_parameter_file_names_interfaces() {
    let home = tempfile::tempdir().unwrap();
    let run = home.path().join("run").display().to_string();
    let line = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kintsugi"));
        command.args(["launch", "--dry-run", &project("configs/mlp_synthetic.toml")]);
        command.args(["--run-dir", &run]).env("HOME", home.path());
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        stdout(&output)
    };
    assert!(line().contains("OMPI_MCA_btl_tcp_if_include=lo"), "{}", line());
    std::fs::create_dir(home.path().join(".openmpi")).unwrap();
    let file = home.path().join(".openmpi/mca-params.conf");
    std::fs::write(file, "# ours\nbtl_tcp_if_exclude = docker0\n").unwrap();
    assert!(!line().contains("if_include") && !line().contains("LOOPBACK"), "{}", line());
}

#[test]
fn places_that_cannot_be_used_are_usage_errors_that_say_what_to_change() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), "").unwrap();
    let below_a_file = folder.path().join("file/run").display().to_string();
    let too_long = folder.path().join("x".repeat(300)).display().to_string();
    let config = project("configs/mlp_synthetic.toml");
    // Nobody makes folders in /sys.
    for (run, remedy) in [
        (&below_a_file[..], "a file is in the place of a folder"),
        (&too_long, "choose a shorter one"),
        ("/sys/kintsugi", "name another place"),
    ] {
        for command in [&["launch"][..], &["launch", "--check"], &["train"]] {
            let output = kintsugi(&[command, &[&config, "--run-dir", run]].concat());
            let said = stderr(&output);
            assert_eq!(output.status.code(), Some(2), "{command:?} {run}: {said}");
            let named = said.contains(remedy) || said.contains("read-only");
            assert!(named, "{command:?} {run}: {said}");
        }
    }
    let run = folder.path().join("run").display().to_string();
    // Pictures of a run that names none: ./data, or where the variable says.
    for command in ["launch", "train"] {
        let mut line = Command::new(env!("CARGO_BIN_EXE_kintsugi"));
        line.args([command, &config, "-s", "data.format=image_folder", "--run-dir", &run]);
        let output = line.env("KINTSUGI_DATA_DIR", folder.path().join("file")).output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{command}: {said}");
        assert!(said.contains("or set KINTSUGI_DATA_DIR to a folder that can"), "{said}");
    }
    // Half an installation: without srun SLURM's variables would be taken for another machine's.
    std::fs::write(folder.path().join("srun"), "").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_kintsugi"))
        .args(["launch", &config, "--run-dir", &run])
        .env("PATH", folder.path())
        .envs([("SLURM_JOB_ID", "7"), ("SLURM_NNODES", "2"), ("SLURM_NODELIST", "n[1-2]")])
        .output()
        .unwrap();
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("scontrol show hostnames") && said.contains("install"), "{said}");
}

#[test]
fn a_missing_mpirun_is_named_with_what_to_do() {
    let output = Command::new(env!("CARGO_BIN_EXE_kintsugi"))
        .args(["launch", "--dry-run", &project("configs/mlp_synthetic.toml")])
        .env("KINTSUGI_MPIRUN", "/no/such/mpirun")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = stderr(&output);
    assert!(text.contains("/no/such/mpirun") && text.contains("setup.sh"), "{text}");
}
