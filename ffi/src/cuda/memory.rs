//! Memory of a device, and memory of the host that both sides work on (CUDA driver API: Memory
//! Management). The device's is bytes: what they mean is known to those who compute with them.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use super::context::Context;
use super::crew::{Crew, Turn};
use super::result::{Error, refused};
use super::sys::driver as sys;
use crate::mapping::{Memory, Presence};

/// Memory of the device; freed when dropped. Aligned to 256 bytes at least. What is in it at first
/// is whatever was.
pub struct Buffer {
    context: Arc<Context>,
    start: sys::address,
    bytes: usize,
}

impl Buffer {
    /// So many bytes, in one piece.
    ///
    /// # Errors
    /// The driver's; `is_out_of_memory` where there are not so many.
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, Error> {
        if bytes == 0 {
            return refused("cuMemAlloc", "no bytes");
        }
        let (sys, mut start) = (context.enter()?, 0);
        // SAFETY: `start` receives an address, freed once.
        context.check("cuMemAlloc", unsafe { (sys.cuMemAlloc_v2)(&mut start, bytes) })?;
        Ok(Self { context: Arc::clone(context), start, bytes })
    }

    /// The same of managed memory, which the driver moves between the device and the host as either
    /// touches it (CUDA driver API: Unified Addressing).
    ///
    /// # Errors
    /// As of `new`.
    pub fn managed(context: &Arc<Context>, bytes: usize) -> Result<Self, Error> {
        if bytes == 0 {
            return refused("cuMemAllocManaged", "no bytes");
        }
        let (sys, mut start) = (context.enter()?, 0);
        // SAFETY: as in `new`.
        let status = unsafe { (sys.cuMemAllocManaged)(&mut start, bytes, sys::MEM_ATTACH_GLOBAL) };
        context.check("cuMemAllocManaged", status)?;
        Ok(Self { context: Arc::clone(context), start, bytes })
    }

    /// How many.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The address of a part.
    ///
    /// # Errors
    /// `Refused` where it does not lie within.
    pub(super) fn part(
        &self,
        call: &'static str,
        at: usize,
        bytes: usize,
    ) -> Result<sys::address, Error> {
        match at.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(self.start + at as u64),
            _ => refused(call, format!("{bytes} bytes from {at} on, of {}", self.bytes)),
        }
    }
}

impl Buffer {
    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let Ok(sys) = self.context.enter() else { return };
        // SAFETY: allocated by `new`, freed once. Work that is still under way fails on the device.
        unsafe { (sys.cuMemFree_v2)(self.start) };
    }
}

/// Memory of the host, zeros at first, through which copies go that nobody waits for: it is pinned
/// (locked in memory), so that the device reads and writes it without a detour.
///
/// The host never has a reference into it, since the device may write at any time: bytes are copied
/// in and out, and whoever does so while a copy is under way gets some old and some new ones.
pub struct Staging {
    context: Arc<Context>,
    pages: Presence,
    bytes: usize,
}

impl Staging {
    /// So many bytes.
    ///
    /// # Errors
    /// No memory, or the driver's: a limit of locked memory.
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, Error> {
        let memory = match Memory::anonymous(bytes) {
            Ok(memory) => memory,
            Err(error) => return refused("mmap", error.to_string()),
        };
        let (sys, pages) = (context.enter()?, memory.presence());
        let (start, whole) = pages.span();
        // SAFETY: the pages are mapped until they are unregistered in `drop`, or for ever.
        let status = unsafe {
            (sys.cuMemHostRegister_v2)(start.as_ptr().cast(), whole, sys::HOST_REGISTER_PORTABLE)
        };
        context.check("cuMemHostRegister", status)?;
        Ok(Self { context: Arc::clone(context), pages, bytes })
    }

    /// How many.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies bytes in, from `at` on.
    ///
    /// # Errors
    /// `Refused` where they do not fit.
    pub fn put(&mut self, at: usize, from: &[u8]) -> Result<(), Error> {
        let to = self.part("Staging::put", at..at.saturating_add(from.len()))?;
        // SAFETY: the part lies within pages that are mapped while this lives; nobody has a
        // reference into them, so `from` lies elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr(), from.len()) };
        Ok(())
    }

    /// The same by a crew.
    ///
    /// # Errors
    /// As of `put`.
    pub fn put_by(&mut self, crew: &Crew, turn: Turn, at: usize, from: &[u8]) -> Result<(), Error> {
        let to = self.part("Staging::put", at..at.saturating_add(from.len()))?;
        // SAFETY: as in `put`.
        unsafe { crew.copy(from.as_ptr(), to.as_ptr(), from.len(), turn) };
        Ok(())
    }

    /// Copies bytes out, from `at` on.
    ///
    /// # Errors
    /// `Refused` where there are not so many.
    pub fn get(&self, at: usize, to: &mut [u8]) -> Result<(), Error> {
        let from = self.part("Staging::get", at..at.saturating_add(to.len()))?;
        // SAFETY: as in `put`.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    /// The address of a part.
    pub(super) fn part(
        &self,
        call: &'static str,
        part: Range<usize>,
    ) -> Result<NonNull<u8>, Error> {
        if part.start > part.end || part.end > self.bytes {
            let reason = format!("bytes {part:?} of {} of staging memory", self.bytes);
            return refused(call, reason);
        }
        // SAFETY: the part lies within.
        Ok(unsafe { self.pages.span().0.add(part.start) })
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for Staging {
    /// Waits for the device, which may still write into the pages. If it cannot, or does not let go
    /// of them, these stay mapped: such a process ends anyway.
    fn drop(&mut self) {
        if self.context.synchronize().is_err() {
            return std::mem::forget(self.pages.clone());
        }
        let start = self.pages.span().0.as_ptr().cast();
        // SAFETY: registered by `new`, and the device works on nothing any more.
        let status = unsafe { (self.context.driver().sys().cuMemHostUnregister)(start) };
        if self.context.check("cuMemHostUnregister", status).is_err() {
            std::mem::forget(self.pages.clone());
        }
    }
}
