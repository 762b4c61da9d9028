//! The fake driver, compiled once and copied for each test that wants one: a copy has a device, a
//! memory and planned failures of its own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use kintsugi_ffi::cuda::library::Library;
use kintsugi_ffi::cuda::{Context, Driver, Missing};

use std::ffi::{CString, c_char, c_int};
use std::sync::Arc;

/// A fake driver that nothing was asked yet.
pub struct Fake {
    file: PathBuf,
}

impl Fake {
    /// For the test of this name.
    pub fn new(test: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
        std::fs::create_dir_all(&folder).expect("a folder of our own");
        let file = folder.join("libcuda.so.1");
        // Another test program may have one loaded: it keeps its own.
        let _ = std::fs::remove_file(&file);
        std::fs::copy(compiled(), &file).expect("a copy");
        Self { file }
    }

    /// Its file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The driver.
    pub fn open(&self) -> Result<Driver, Missing> {
        Driver::open(Some(&self.file))
    }

    /// A context on its only device.
    pub fn context(&self) -> Arc<Context> {
        let devices = self.open().expect("it opens").devices().expect("it has devices");
        Context::of(&devices[0]).expect("it is free")
    }

    /// Plans failures, as `driver.c` says.
    pub fn fail(&self, plan: &str) {
        let plan = CString::new(plan).expect("no zeros");
        let address = self.symbol("fake_inject");
        // SAFETY: `driver.c` has this function with this type; the text lives for the call.
        unsafe {
            let inject: unsafe extern "C" fn(*const c_char) -> c_int = std::mem::transmute(address);
            inject(plan.as_ptr());
        }
    }

    /// How many things were made in it and are still there.
    pub fn live(&self) -> i32 {
        let address = self.symbol("fake_live");
        // SAFETY: `driver.c` has this function with this type.
        unsafe {
            let live: unsafe extern "C" fn() -> c_int = std::mem::transmute(address);
            live()
        }
    }

    fn symbol(&self, name: &'static str) -> *mut std::ffi::c_void {
        let library = Library::open(&self.file).expect("it loads");
        library.symbol(name).expect("it is there").as_ptr()
    }
}

fn compiled() -> &'static Path {
    static COMPILED: OnceLock<PathBuf> = OnceLock::new();
    COMPILED.get_or_init(|| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cuda");
        let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let file = target.join(format!("libfake-cuda-{}.so", std::process::id()));
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]);
        // Rounding as the device does it; no name of one copy is bound to another's.
        compiler.args(["-ffp-contract=off", "-fvisibility=hidden", "-Wl,-soname,libcuda.so.1"]);
        compiler.arg("-o").arg(&file).arg(folder.join("driver.c"));
        compiler.args(["-x", "c"]).arg(folder.join("kernels.cu"));
        compiler.args(["-ldl", "-lm", "-pthread"]);
        let ended = compiler.output().expect("a C compiler");
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        // Whole at any time for whoever else tests here.
        let whole = target.join("libfake-cuda.so");
        std::fs::rename(&file, &whole).expect("the same folder");
        whole
    })
}
