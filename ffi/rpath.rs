//! Build script of the program: links it so that it runs from any directory with no variable set,
//! and so that libmpi finds the work-arounds in it (`-rdynamic`, ulfm-shim/ompi_workarounds.c).

fn main() {
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
