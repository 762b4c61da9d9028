//! A card that is none: our fake driver, whose kernels are the program's own, compiled for the
//! host. Every engine of this process that asks for `device.kind = "cuda"` gets it, a real card or
//! not.

mod fake;

use std::io::Write;
use std::sync::OnceLock;

use kintsugi::engine::cuda::kernels;
use kintsugi_ffi::cuda::library::Library;
use kintsugi_ffi::cuda::{Found, Nvrtc, Places};

/// The kinds of device that every case is computed on.
pub fn kinds() -> [&'static str; 2] {
    static LOADED: OnceLock<()> = OnceLock::new();
    LOADED.get_or_init(|| {
        for file in ["libcuda.so.1", "libnvrtc.so.13"] {
            // By this name whoever looks for one finds it from here on.
            Library::open(&fake::folder().join(file)).expect("it loads");
        }
    });
    ["cpu", "cuda"]
}

/// The real compiler, if it is here: `.deps/cuda`, a folder that is named, or a python's.
fn compiler() -> Option<Nvrtc> {
    let missing = match Found::look(&Places::usual(None)).nvrtc {
        Ok((_, nvrtc)) if nvrtc.place() != fake::folder().join("libnvrtc.so.13") => {
            return Some(nvrtc);
        }
        Ok(_) => "no libnvrtc.so".into(),
        Err(missing) => missing.to_string(),
    };
    // Past the capture of tests' output, since it passes.
    let line = format!("skipped: machine code of the engine's kernels ({missing})\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
    None
}

#[test]
fn every_kernel_becomes_machine_code_without_spills() {
    let Some(nvrtc) = compiler() else { return };
    // Older ones do not know the newest kind of card.
    let known = if nvrtc.version() < (12, 8) { 2 } else { 3 };
    for architecture in ["sm_80", "sm_90", "sm_100"].into_iter().take(known) {
        let cubin = kernels::compile(&nvrtc, architecture, &["--ptxas-options=-v"]);
        let log = cubin.unwrap_or_else(|error| panic!("{architecture}: {error}")).log;
        let compiled = log.matches("Compiling entry function").count();
        let clean = log.matches("0 bytes spill stores, 0 bytes spill loads").count();
        assert!(compiled > 40 && clean == compiled, "{architecture}: {log}");
        assert!(!log.contains("warning"), "{architecture}: {log}");
    }
}
