//! What this process has on a device (CUDA driver API: Primary Context Management, Context
//! Management).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use super::driver::{Device, Driver};
use super::result::Error;
use super::sys::driver as sys;

/// The device's primary context, which cuDNN uses too. Any thread may use what is made in it: each
/// call first makes it the calling thread's own.
pub struct Context {
    device: Device,
    raw: *mut sys::context,
    /// The first error after which nothing can be done here any more.
    lost: OnceLock<Error>,
}

// SAFETY: the driver's calls may come from any thread.
unsafe impl Send for Context {}
// SAFETY: as above; it locks what it changes, as we do.
unsafe impl Sync for Context {}

impl Context {
    /// The device's, made when nobody in this process has it yet: hundreds of milliseconds. All
    /// have the same one: what ends it for one ends it for all.
    ///
    /// # Errors
    /// The driver's: the device is taken, broken or full.
    pub fn of(device: &Device) -> Result<Arc<Self>, Error> {
        static ALL: Mutex<BTreeMap<(PathBuf, sys::device), Weak<Context>>> =
            Mutex::new(BTreeMap::new());
        let key = (device.driver().place().to_owned(), device.raw());
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.entry(key).or_default();
        if let Some(context) = known.upgrade() {
            return Ok(context);
        }
        let context = Self::retain(device)?;
        *known = Arc::downgrade(&context);
        Ok(context)
    }

    fn retain(device: &Device) -> Result<Arc<Self>, Error> {
        let driver = device.driver();
        let mut raw = null_mut();
        // SAFETY: a device of this driver; `raw` receives a handle that is released once.
        let status = unsafe { (driver.sys().cuDevicePrimaryCtxRetain)(&mut raw, device.raw()) };
        driver.check("cuDevicePrimaryCtxRetain", status)?;
        Ok(Arc::new(Self { device: device.clone(), raw, lost: OnceLock::new() }))
    }

    /// Whose it is.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Waits for all that was begun on the device.
    ///
    /// # Errors
    /// The driver's, those of earlier work among them.
    pub fn synchronize(&self) -> Result<(), Error> {
        let sys = self.enter()?;
        // SAFETY: takes nothing.
        self.check("cuCtxSynchronize", unsafe { (sys.cuCtxSynchronize)() })
    }

    /// Bytes of the device's memory that are free, and all: other processes' use counts.
    ///
    /// # Errors
    /// The driver's.
    pub fn memory_bytes(&self) -> Result<(usize, usize), Error> {
        let (sys, mut free, mut total) = (self.enter()?, 0, 0);
        // SAFETY: writes two sizes.
        self.check("cuMemGetInfo", unsafe { (sys.cuMemGetInfo_v2)(&mut free, &mut total) })?;
        Ok((free, total))
    }

    /// Makes it the calling thread's own, and gives the calls that then mean it. After an error
    /// that ends the process none is made any more: cuDNN, which knows nothing of that error, would
    /// free what the device has lost.
    pub(super) fn enter(&self) -> Result<&sys::Driver, Error> {
        if let Some(error) = self.lost.get() {
            return Err(error.clone());
        }
        let sys = self.driver().sys();
        // SAFETY: a live context.
        self.check("cuCtxSetCurrent", unsafe { (sys.cuCtxSetCurrent)(self.raw) })?;
        Ok(sys)
    }

    pub(super) fn check(&self, call: &'static str, status: sys::status) -> Result<(), Error> {
        self.driver().check(call, status).inspect_err(|error| {
            if error.ends_the_process() {
                // Whoever was first has told.
                let _ = self.lost.set(error.clone());
            }
        })
    }

    pub(super) fn driver(&self) -> &Driver {
        self.device.driver()
    }
}

impl Drop for Context {
    /// One that is lost stays: what cuDNN had made in it was not taken down.
    fn drop(&mut self) {
        if self.lost.get().is_some() {
            return;
        }
        // SAFETY: retained once, and all that was made in it is gone: each part holds the context.
        unsafe { (self.driver().sys().cuDevicePrimaryCtxRelease_v2)(self.device.raw()) };
    }
}
