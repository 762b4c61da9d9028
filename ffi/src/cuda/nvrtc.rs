//! The compiler for kernels: source to the machine code of a device, with no device needed.

use std::ffi::{CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};

use super::library::{Library, Missing};
use super::result::{Error, SUCCESS, refused, text};
use super::sys::nvrtc as sys;

/// NVRTC, loaded.
#[derive(Clone)]
pub struct Nvrtc {
    sys: sys::Nvrtc,
    place: PathBuf,
    version: (i32, i32),
}

/// Machine code, and what the compiler said while it made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cubin {
    /// What `Module::load` takes.
    pub bytes: Vec<u8>,
    /// Warnings; with `--ptxas-options=-v` registers and spills of each kernel, too.
    pub log: String,
}

impl Nvrtc {
    /// Loads it. Its builtins are found if they lie in a folder that the loader knows, or were
    /// loaded before.
    ///
    /// # Errors
    /// Not there, or of another version than this program needs.
    pub fn open(file: &Path) -> Result<Self, Missing> {
        let library = Library::open(file)?;
        let (sys, place) = (sys::Nvrtc::load(&library)?, library.place("nvrtcVersion"));
        let mut this = Self { sys, place, version: (0, 0) };
        let (major, minor) = (&mut this.version.0, &mut this.version.1);
        // SAFETY: writes two ints.
        let status = unsafe { (sys.nvrtcVersion)(major, minor) };
        this.check("nvrtcVersion", status)?;
        Ok(this)
    }

    /// (major, minor).
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// Its file.
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// Compiles a source, which messages call `file`, for an architecture as `Device::architecture`
    /// says it. Takes 20 to 90 ms for a small kernel.
    ///
    /// # Errors
    /// `Source` with the compiler's messages, or another failure of NVRTC's.
    pub fn compile(
        &self,
        file: &str,
        source: &str,
        architecture: &str,
        options: &[&str],
    ) -> Result<Cubin, Error> {
        let program = Program::new(self, file, source)?;
        let target = format!("--gpu-architecture={architecture}");
        let options = [&[target.as_str()], options].concat();
        let options: Vec<CString> =
            options.into_iter().map(terminated).collect::<Result<_, _>>()?;
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: a live program, and as many terminated strings as is said.
        let status = unsafe {
            let count = pointers.len() as c_int;
            (self.sys.nvrtcCompileProgram)(program.raw, count, pointers.as_ptr())
        };
        let log = program.log()?;
        match self.check("nvrtcCompileProgram", status) {
            Ok(()) => Ok(Cubin { bytes: program.cubin()?, log }),
            Err(error) if log.trim().is_empty() => Err(error),
            Err(_) => Err(Error::Source { file: file.into(), log }),
        }
    }

    fn check(&self, call: &'static str, status: sys::status) -> Result<(), Error> {
        if status == SUCCESS {
            return Ok(());
        }
        // SAFETY: returns null or a static string, for any number.
        let name = unsafe { text((self.sys.nvrtcGetErrorString)(status)) };
        Err(Error::Call { call, code: status, name, text: String::new() })
    }
}

fn terminated(text: &str) -> Result<CString, Error> {
    CString::new(text).or_else(|_| refused("nvrtcCreateProgram", "a text with a zero in it"))
}

/// A source on its way.
struct Program<'a> {
    nvrtc: &'a Nvrtc,
    raw: *mut sys::program,
}

impl<'a> Program<'a> {
    fn new(nvrtc: &'a Nvrtc, file: &str, source: &str) -> Result<Self, Error> {
        let (file, source) = (terminated(file)?, terminated(source)?);
        let mut this = Self { nvrtc, raw: null_mut() };
        let (raw, source, file) = (&mut this.raw, source.as_ptr(), file.as_ptr());
        // SAFETY: terminated strings, which are copied; no headers; `raw` receives a handle,
        // destroyed once.
        let status =
            unsafe { (nvrtc.sys.nvrtcCreateProgram)(raw, source, file, 0, null(), null()) };
        nvrtc.check("nvrtcCreateProgram", status)?;
        Ok(this)
    }

    fn log(&self) -> Result<String, Error> {
        let (sys, mut bytes) = (&self.nvrtc.sys, 0);
        // SAFETY: a live program; writes a size.
        let status = unsafe { (sys.nvrtcGetProgramLogSize)(self.raw, &mut bytes) };
        self.nvrtc.check("nvrtcGetProgramLogSize", status)?;
        let mut log = vec![0_u8; bytes];
        // SAFETY: writes as many bytes as it said, the terminating zero among them.
        let status = unsafe { (sys.nvrtcGetProgramLog)(self.raw, log.as_mut_ptr().cast()) };
        self.nvrtc.check("nvrtcGetProgramLog", status)?;
        Ok(String::from_utf8_lossy(&log).trim_end_matches('\0').to_owned())
    }

    fn cubin(&self) -> Result<Vec<u8>, Error> {
        let (sys, mut bytes) = (&self.nvrtc.sys, 0);
        // SAFETY: a live program; writes a size.
        let status = unsafe { (sys.nvrtcGetCUBINSize)(self.raw, &mut bytes) };
        self.nvrtc.check("nvrtcGetCUBINSize", status)?;
        let mut cubin = vec![0_u8; bytes];
        // SAFETY: writes as many bytes as it said.
        let status = unsafe { (sys.nvrtcGetCUBIN)(self.raw, cubin.as_mut_ptr().cast()) };
        self.nvrtc.check("nvrtcGetCUBIN", status)?;
        match cubin.is_empty() {
            true => refused("nvrtcGetCUBIN", "it made none: the architecture is a virtual one"),
            false => Ok(cubin),
        }
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        if self.raw.is_null() {
            return;
        }
        // SAFETY: owned, destroyed once.
        unsafe { (self.nvrtc.sys.nvrtcDestroyProgram)(&mut self.raw) };
    }
}
