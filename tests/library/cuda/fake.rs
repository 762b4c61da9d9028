//! A machine with a card that is none: a driver whose kernels are twins of the device's, compiled
//! for this host from the same source, a compiler for kernels that compiles nothing, and a cuDNN
//! that computes here (`KINTSUGI_FAKE_CUDNN`: `cudnn.c`). All lie in one folder, under the names
//! that the real ones have.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The folder, whose libraries are compiled when it is first asked for.
pub fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kintsugi-fake-cuda");
        std::fs::create_dir_all(&folder).expect("a folder of our own");
        driver(&folder);
        compiler(&folder);
        cudnn(&folder);
        folder
    })
}

fn driver(folder: &Path) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let fake = root.join("ffi/tests/cuda");
    let mut compiler = Command::new("cc");
    // A multiply-add is an instruction and rounds as the device's: written out, and never made of
    // two steps.
    compiler.args(["-O2", "-march=native", "-ffp-contract=off", "-fno-trapping-math"]);
    compiler.arg("-I").arg(&fake).arg("-I").arg(root.join("src/engine/cuda/kernels"));
    compiler.arg(fake.join("driver.c")).arg(root.join("tests/library/cuda/twins.c"));
    library(compiler, folder, "libcuda.so.1");
}

fn compiler(folder: &Path) {
    let mut compiler = Command::new("cc");
    compiler.arg("-O1");
    compiler.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/library/cuda/nvrtc.c"));
    library(compiler, folder, "libnvrtc.so.13");
}

/// With a cuBLAS that has nothing in it: cuDNN is not loaded without one.
fn cudnn(folder: &Path) {
    let mut compiler = Command::new("cc");
    compiler.args(["-O3", "-march=native"]);
    compiler.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("ffi/tests/cuda/cudnn.c"));
    library(compiler, folder, "libcudnn.so.9");
    let mut compiler = Command::new("cc");
    compiler.args(["-x", "c", "/dev/null"]);
    library(compiler, folder, "libcublasLt.so.13");
}

/// Links what the compiler is given; whole at any time for whoever else tests here. Another test
/// program may have one loaded: it keeps its own.
fn library(mut compiler: Command, folder: &Path, name: &str) {
    let file = folder.join(format!("{name}.{}", std::process::id()));
    compiler.args(["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden"]);
    compiler.arg(format!("-Wl,-soname,{name}")).arg("-o").arg(&file);
    compiler.args(["-ldl", "-lm", "-pthread"]);
    let ended = compiler.output().expect("a C compiler");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    std::fs::rename(&file, folder.join(name)).expect("the same folder");
}
