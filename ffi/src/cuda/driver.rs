//! The driver and the devices that it knows (CUDA driver API: Initialization, Version, Device
//! Management). Nothing here touches a device's memory.

use std::ffi::{c_char, c_int};
use std::path::{Path, PathBuf};
use std::ptr::null;
use std::sync::Arc;

use super::library::{Library, Missing};
use super::result::{Error, SUCCESS, text};
use super::sys::driver as sys;

/// Where the driver lies, in the order in which it is tried: the system's, WSL's.
const FILES: [&str; 2] = ["libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"];
/// Longest name of a device.
const NAME_BYTES_MAX: usize = 256;

/// A driver that was initialized. Copies are the same driver.
#[derive(Clone)]
pub struct Driver {
    inner: Arc<Inner>,
}

struct Inner {
    sys: sys::Driver,
    place: PathBuf,
    version: i32,
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Driver({}, {})", self.inner.version, self.inner.place.display())
    }
}

impl Driver {
    /// Loads and initializes the driver: the one at this path, or the system's. Only in a process
    /// that will not fork without exec: a child cannot use the parent's devices.
    ///
    /// # Errors
    /// No driver, one that is too old, or `cuInit`'s refusal, which is `NO_DEVICE` on a machine
    /// that has a driver but no card.
    pub fn open(given: Option<&Path>) -> Result<Self, Missing> {
        let library = match given {
            Some(file) => Library::open(file),
            None => Library::open(Path::new(FILES[0])).or_else(|first| match first {
                // The usual name is the one to be told of.
                Missing::Nowhere { .. } => Library::open(Path::new(FILES[1])).map_err(|_| first),
                other => Err(other),
            }),
        }?;
        let (sys, place) = (sys::Driver::load(&library)?, library.place("cuInit"));
        let mut inner = Inner { sys, place, version: 0 };
        // SAFETY: takes a plain number.
        inner.check("cuInit", unsafe { (sys.cuInit)(0) })?;
        // SAFETY: writes an int.
        let status = unsafe { (sys.cuDriverGetVersion)(&mut inner.version) };
        inner.check("cuDriverGetVersion", status)?;
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The newest CUDA that this driver runs: 13000 is 13.0.
    pub fn version(&self) -> i32 {
        self.inner.version
    }

    /// Its file.
    pub fn place(&self) -> &Path {
        &self.inner.place
    }

    /// Every device that this process may see (`CUDA_VISIBLE_DEVICES`).
    ///
    /// # Errors
    /// The driver's.
    pub fn devices(&self) -> Result<Vec<Device>, Error> {
        let mut count: c_int = 0;
        // SAFETY: writes an int.
        let status = unsafe { (self.sys().cuDeviceGetCount)(&mut count) };
        self.check("cuDeviceGetCount", status)?;
        (0..count).map(|ordinal| self.device(ordinal)).collect()
    }

    fn device(&self, ordinal: c_int) -> Result<Device, Error> {
        let mut raw: sys::device = 0;
        // SAFETY: writes an int.
        self.check("cuDeviceGet", unsafe { (self.sys().cuDeviceGet)(&mut raw, ordinal) })?;
        Ok(Device { driver: self.clone(), raw })
    }

    pub(super) fn sys(&self) -> &sys::Driver {
        &self.inner.sys
    }

    pub(super) fn check(&self, call: &'static str, status: sys::status) -> Result<(), Error> {
        self.inner.check(call, status)
    }
}

impl Inner {
    /// Turns a status into a result, with the driver's own words where it knows the status.
    fn check(&self, call: &'static str, status: sys::status) -> Result<(), Error> {
        if status == SUCCESS {
            return Ok(());
        }
        let (mut name, mut words): (*const c_char, *const c_char) = (null(), null());
        // SAFETY: both calls write null or a pointer to a static string, and nothing when they
        // fail: then it is null still.
        let (name, text) = unsafe {
            (self.sys.cuGetErrorName)(status, &mut name);
            (self.sys.cuGetErrorString)(status, &mut words);
            (text(name), text(words))
        };
        Err(Error::Call { call, code: status, name, text })
    }
}

/// A card.
#[derive(Debug, Clone)]
pub struct Device {
    driver: Driver,
    raw: sys::device,
}

impl Device {
    /// Its name, for example `NVIDIA H100 80GB HBM3`.
    ///
    /// # Errors
    /// The driver's.
    pub fn name(&self) -> Result<String, Error> {
        let mut name = [0_u8; NAME_BYTES_MAX];
        let room = NAME_BYTES_MAX as c_int - 1;
        // SAFETY: writes at most `room` bytes, and the last one stays the zero that ends them.
        let status = unsafe {
            (self.driver.sys().cuDeviceGetName)(name.as_mut_ptr().cast(), room, self.raw)
        };
        self.driver.check("cuDeviceGetName", status)?;
        let end = name.iter().position(|byte| *byte == 0).unwrap_or_default();
        Ok(String::from_utf8_lossy(&name[..end]).into_owned())
    }

    /// What no other device has, a part of one (MIG) neither, as hexadecimal digits.
    ///
    /// # Errors
    /// The driver's.
    pub fn uuid(&self) -> Result<String, Error> {
        let mut uuid = [0_u8; 16];
        // SAFETY: writes 16 bytes.
        let status = unsafe { (self.driver.sys().cuDeviceGetUuid_v2)(&mut uuid, self.raw) };
        self.driver.check("cuDeviceGetUuid", status)?;
        Ok(format!("{:032x}", u128::from_be_bytes(uuid)))
    }

    /// What NVRTC calls the machine code that it runs: `sm_90` for compute capability 9.0.
    ///
    /// # Errors
    /// The driver's.
    pub fn architecture(&self) -> Result<String, Error> {
        let major = self.attribute(sys::ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = self.attribute(sys::ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        Ok(format!("sm_{major}{minor}"))
    }

    /// Bytes of its memory.
    ///
    /// # Errors
    /// The driver's.
    pub fn memory_bytes(&self) -> Result<usize, Error> {
        let mut bytes = 0;
        // SAFETY: writes a size.
        let status = unsafe { (self.driver.sys().cuDeviceTotalMem_v2)(&mut bytes, self.raw) };
        self.driver.check("cuDeviceTotalMem", status).map(|()| bytes)
    }

    fn attribute(&self, which: c_int) -> Result<c_int, Error> {
        let mut value: c_int = 0;
        // SAFETY: writes an int.
        let status =
            unsafe { (self.driver.sys().cuDeviceGetAttribute)(&mut value, which, self.raw) };
        self.driver.check("cuDeviceGetAttribute", status).map(|()| value)
    }

    pub(super) fn driver(&self) -> &Driver {
        &self.driver
    }

    pub(super) fn raw(&self) -> sys::device {
        self.raw
    }
}
