//! What this process has on a device (CUDA driver API: Primary Context Management, Context
//! Management), and the host memory that the device reads and writes itself.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::driver::{Device, Driver};
use super::result::Error;
use super::sys::driver as sys;
use crate::mapping::Presence;

/// The device's primary context, which cuDNN uses too. Any thread may use what is made in it: each
/// call first makes it the calling thread's own.
pub struct Context {
    device: Device,
    raw: *mut sys::context,
    /// Pages that the device reads and writes, until its last work is done, which the end of the
    /// context waits for.
    pinned: Mutex<Vec<Presence>>,
    /// The first error after which nothing can be done here any more.
    lost: OnceLock<Error>,
}

// SAFETY: the driver's calls may come from any thread.
unsafe impl Send for Context {}
// SAFETY: as above; it locks what it changes, as we do.
unsafe impl Sync for Context {}

impl Context {
    /// The device's, made when nobody in this process has it yet: hundreds of milliseconds.
    ///
    /// # Errors
    /// The driver's: the device is taken, broken or full.
    pub fn of(device: &Device) -> Result<Arc<Self>, Error> {
        let driver = device.driver();
        let mut raw = null_mut();
        // SAFETY: a device of this driver; `raw` receives a handle that is released once.
        let status = unsafe { (driver.sys().cuDevicePrimaryCtxRetain)(&mut raw, device.raw()) };
        driver.check("cuDevicePrimaryCtxRetain", status)?;
        Ok(Arc::new(Self {
            device: device.clone(),
            raw,
            pinned: Mutex::default(),
            lost: OnceLock::new(),
        }))
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

    /// Locks these pages in memory, so that the device copies them without a detour. They stay
    /// mapped until the context ends.
    ///
    /// # Errors
    /// The driver's: a limit of locked memory, or pages that are pinned already (712). Copies work
    /// without, slower.
    pub fn pin(&self, pages: Presence) -> Result<(), Error> {
        let sys = self.enter()?;
        let (start, bytes) = pages.span();
        // SAFETY: the pages are mapped until they are unregistered in `drop`, or for ever.
        let status = unsafe {
            (sys.cuMemHostRegister_v2)(start.as_ptr().cast(), bytes, sys::HOST_REGISTER_PORTABLE)
        };
        self.check("cuMemHostRegister", status)?;
        self.pinned.lock().unwrap_or_else(PoisonError::into_inner).push(pages);
        Ok(())
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

    fn driver(&self) -> &Driver {
        self.device.driver()
    }
}

impl Drop for Context {
    /// Waits for the device where it may still write into pinned pages. If it cannot, these stay
    /// mapped: such a process ends anyway.
    fn drop(&mut self) {
        let pinned = self.pinned.get_mut().unwrap_or_else(PoisonError::into_inner);
        let pinned = std::mem::take(pinned);
        if !pinned.is_empty() && self.synchronize().is_err() {
            std::mem::forget(pinned);
            return;
        }
        let sys = self.driver().sys();
        for pages in &pinned {
            let start = pages.span().0.as_ptr().cast::<c_void>();
            // SAFETY: registered by `pin`, and the device works on nothing any more.
            unsafe { (sys.cuMemHostUnregister)(start) };
        }
        // SAFETY: retained once, and all that was made in it is gone: each part holds the context.
        unsafe { (sys.cuDevicePrimaryCtxRelease_v2)(self.device.raw()) };
    }
}
