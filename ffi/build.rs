//! Compiles the ULFM shim with the MPI compiler wrapper and what is preloaded into mpirun, links
//! oneDNN, and hands the folders of both to the program's build script (run paths).

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=MPICC");
    println!("cargo:rerun-if-env-changed=DNNL_ROOT");
    println!("cargo:rerun-if-changed=../ulfm-shim");
    let mpicc = std::env::var("MPICC").unwrap_or_else(|_| "mpicc".into());
    let mut shim = cc::Build::new();
    shim.compiler(&mpicc).warnings(true).extra_warnings(true).opt_level(2);
    // The work-arounds are found by their names in the program: keep them visible.
    shim.flag_if_supported("-fvisibility=default");
    for file in shim_sources(Path::new("../ulfm-shim")) {
        shim.file(file);
    }
    // Whole archive: libmpi calls the work-arounds, nothing in the program does.
    shim.link_lib_modifier("+whole-archive").compile("ulfm_shim");
    compile_preload();

    let dnnl = std::env::var("DNNL_ROOT").map(PathBuf::from).ok();
    let dnnl_library = dnnl.map(|root| {
        ["lib", "lib64", "lib/x86_64-linux-gnu"]
            .iter()
            .map(|folder| root.join(folder))
            .find(|folder| folder.join("libdnnl.so").exists())
            .unwrap_or_else(|| {
                panic!(
                    "no libdnnl.so below DNNL_ROOT={}: run cluster-scripts/setup.sh",
                    root.display()
                )
            })
    });
    if let Some(folder) = &dnnl_library {
        println!("cargo:rustc-link-search=native={}", folder.display());
    }
    println!("cargo:rustc-link-lib=dylib=dnnl");
    println!("cargo:rustc-link-lib=dylib=gomp");

    let mpi_folders = mpi_library_folders(&mpicc);
    for folder in &mpi_folders {
        println!("cargo:rustc-link-search=native={}", folder.display());
    }
    println!("cargo:rustc-link-lib=dylib=mpi");
    let run_paths: Vec<String> =
        mpi_folders.iter().chain(&dnnl_library).map(|f| f.display().to_string()).collect();
    println!("cargo:rpath={}", run_paths.join(":"));
    // This crate's own tests; the program's come through rpath.rs.
    println!("cargo:rustc-link-arg=-rdynamic");
    for folder in &run_paths {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{folder}");
    }
    println!("cargo:rustc-env=KINTSUGI_MPICC={mpicc}");
}

/// A library of its own, for a program that is not ours: `launcher.rs` holds its bytes.
fn compile_preload() {
    let out = std::env::var("OUT_DIR").map(PathBuf::from).unwrap_or_default();
    let mut compiler = cc::Build::new().opt_level(2).get_compiler().to_command();
    let library = out.join("libclosed_descriptors.so");
    compiler.args(["-shared", "-fPIC", "-Wall", "-Wextra", "-o"]).arg(library);
    compiler.args(["../ulfm-shim/launcher/closed_descriptors.c", "../ulfm-shim/loopback.c"]);
    compiler.args(["-ldl", "-pthread"]);
    let compiled = compiler.status().is_ok_and(|status| status.success());
    assert!(compiled, "{compiler:?} failed");
}

/// Every C file there but the program that tests them.
fn shim_sources(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = folder.read_dir() else { panic!("no folder {}", folder.display()) };
    let files = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let source = |file: &PathBuf| file.extension().is_some_and(|extension| extension == "c");
    let mut sources: Vec<PathBuf> =
        files.filter(|file| source(file) && !file.ends_with("selftest.c")).collect();
    sources.sort();
    sources
}

/// `-L` folders of the wrapper's link line.
fn mpi_library_folders(mpicc: &str) -> Vec<PathBuf> {
    let output = Command::new(mpicc).arg("--showme:libdirs").output();
    let Ok(output) = output else { panic!("cannot run {mpicc}: run cluster-scripts/setup.sh") };
    String::from_utf8_lossy(&output.stdout).split_whitespace().map(PathBuf::from).collect()
}
