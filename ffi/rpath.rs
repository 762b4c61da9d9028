//! Build script of the program: links it so that it runs from any directory with no variable set,
//! and so that libmpi finds the work-arounds in it (`-rdynamic`, ulfm-shim/ompi_workarounds.c).
//! Tells it the commit of its sources.

use std::process::Command;

/// What git says, without the end of the line; `None` outside of a repository and without git.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = output.status.success().then_some(output.stdout)?;
    Some(String::from_utf8(text).ok()?.trim().to_owned()).filter(|text| !text.is_empty())
}

/// The newest commit, and again after the next one.
fn tell_the_commit() {
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"]);
    let is_there = |path: &String| std::path::Path::new(path).exists();
    // A file that is missing would make this script run before every build.
    if let Some(log) = log.filter(is_there) {
        println!("cargo:rerun-if-changed={log}");
    }
    if let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) {
        println!("cargo:rustc-env=KINTSUGI_COMMIT={commit}");
    }
}

fn main() {
    tell_the_commit();
    println!("cargo:rerun-if-changed=ffi/rpath.rs");
    println!("cargo:rustc-link-arg=-rdynamic");
    // The ffi crate found the libraries; their folders come to us as DEP_KINTSUGI_FFI_RPATH.
    println!("cargo:rerun-if-env-changed=DEP_KINTSUGI_FFI_RPATH");
    for folder in std::env::var("DEP_KINTSUGI_FFI_RPATH").unwrap_or_default().split(':') {
        if !folder.is_empty() {
            println!("cargo:rustc-link-arg=-Wl,-rpath,{folder}");
        }
    }
}
