//! cuDNN's graph API: descriptors, whose attributes are set, and plans that are executed. Thin:
//! what a graph is made of is said by those who make it, in the numbers of `sys::cudnn`.

use std::ffi::{c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::Arc;

use super::context::Context;
use super::library::{Library, Missing};
use super::memory::Buffer;
use super::result::{Error, SUCCESS, refused, text};
use super::stream::Stream;
use super::sys::cudnn::{self as sys, attribute, kind, of};

/// Longest text of an error.
const WORDS_BYTES_MAX: usize = 2048;

const NO_WORDS: &str = "these values are no words of an enumeration";
/// Kinds of values that are ints: what else there is has another size.
macro_rules! words {
    () => {
        of::DATA_TYPE | 7..=14 | 16..=23 | 25 | 27..=29
    };
}

/// The first that makes plans from a device's properties (9.8.0).
const VERSION_MIN: usize = 90_800;

/// cuDNN, loaded. Copies are the same library.
#[derive(Clone)]
pub struct Cudnn {
    sys: sys::Cudnn,
    place: Arc<PathBuf>,
}

impl Cudnn {
    /// Loads it. What it loads itself must have been loaded before: without libcublasLt it ends
    /// the process in the middle of a call.
    ///
    /// # Errors
    /// Not there, or of another version than this program needs.
    pub(super) fn open(file: &Path) -> Result<Self, Missing> {
        let library = Library::open(file)?;
        let sys = sys::Cudnn::load(&library)?;
        let cudnn = Self { sys, place: Arc::new(library.place("cudnnGetVersion")) };
        match cudnn.version() {
            VERSION_MIN.. => Ok(cudnn),
            version => Err(Missing::Old { file: file.display().to_string(), version }),
        }
    }

    /// 91900 is 9.19.0.
    pub fn version(&self) -> usize {
        // SAFETY: takes nothing, returns a number.
        unsafe { (self.sys.cudnnGetVersion)() }
    }

    /// Its file.
    pub fn place(&self) -> &Path {
        &self.place
    }

    fn check(&self, call: &'static str, status: sys::status) -> Result<(), Error> {
        if status == SUCCESS {
            return Ok(());
        }
        let mut words = [0_u8; WORDS_BYTES_MAX];
        // SAFETY: returns null or a static string, for any number; then writes a terminated string
        // of at most so many bytes.
        let name = unsafe {
            let last = WORDS_BYTES_MAX - 1;
            (self.sys.cudnnGetLastErrorString)(words.as_mut_ptr().cast(), last);
            text((self.sys.cudnnGetErrorString)(status))
        };
        let end = words.iter().position(|byte| *byte == 0).unwrap_or_default();
        let text = String::from_utf8_lossy(&words[..end]).trim().to_owned();
        Err(Error::Call { call, code: status, name, text })
    }
}

/// Values of an attribute.
#[derive(Clone, Copy)]
pub enum Values<'a> {
    /// Sizes, strides, numbers of tensors.
    I64(&'a [i64]),
    /// Factors.
    F32(&'a [f32]),
    /// One yes or no.
    Flag(bool),
    /// Text.
    Text(&'a [u8]),
    /// Words of an enumeration: its number in `sys::of`, and the words' numbers.
    Words(i32, &'a [i32]),
    /// Other descriptors, finalized.
    Descriptors(&'a [&'a Descriptor]),
    /// Places in the device's memory: a buffer, and so many bytes behind its start.
    Places(&'a [(&'a Buffer, usize)]),
}

/// A description, at first of nothing: set its attributes, then finalize it.
pub struct Descriptor {
    owned: Arc<Owned>,
    /// What it refers to.
    parts: Vec<Arc<Owned>>,
}

struct Owned {
    cudnn: Cudnn,
    raw: sys::descriptor,
    /// `sys::kind`.
    what: i32,
}

// SAFETY: nothing in a descriptor belongs to a thread; who changes it has it alone.
unsafe impl Send for Owned {}
// SAFETY: shared ones are finalized, which is the end of changes.
unsafe impl Sync for Owned {}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: owned, destroyed once.
        unsafe { (self.cudnn.sys.cudnnBackendDestroyDescriptor)(self.raw) };
    }
}

impl Descriptor {
    /// Of a `sys::kind`.
    ///
    /// # Errors
    /// cuDNN's: it does not know that kind.
    pub fn new(cudnn: &Cudnn, what: i32) -> Result<Self, Error> {
        let mut raw = null_mut();
        // SAFETY: `raw` receives a handle, destroyed once.
        let status = unsafe { (cudnn.sys.cudnnBackendCreateDescriptor)(what, &mut raw) };
        cudnn.check("cudnnBackendCreateDescriptor", status)?;
        let owned = Arc::new(Owned { cudnn: cudnn.clone(), raw, what });
        Ok(Self { owned, parts: Vec::new() })
    }

    /// Sets an attribute of `sys::attribute`.
    ///
    /// # Errors
    /// cuDNN's: no such attribute here, or not with such values.
    pub fn set(mut self, name: i32, values: Values<'_>) -> Result<Self, Error> {
        match values {
            Values::I64(values) => self.put(name, of::INT64, values),
            Values::F32(values) => self.put(name, of::FLOAT, values),
            Values::Flag(value) => self.put(name, of::BOOLEAN, &[value]),
            Values::Text(bytes) => self.put(name, of::CHAR, bytes),
            Values::Words(kind @ words!(), words) => self.put(name, kind, words),
            Values::Words(..) => refused("cudnnBackendSetAttribute", NO_WORDS),
            Values::Descriptors(all) => {
                let raw: Vec<_> = all.iter().map(|one| one.owned.raw).collect();
                self.parts.extend(all.iter().flat_map(|one| one.all()));
                self.put(name, of::DESCRIPTOR, &raw)
            }
            Values::Places(all) => {
                let address = |(buffer, at): &(&Buffer, usize)| {
                    buffer.part("cudnnBackendSetAttribute", *at, 0)
                };
                let raw: Vec<u64> = all.iter().map(address).collect::<Result<_, _>>()?;
                self.put(name, of::VOID_PTR, &raw)
            }
        }?;
        Ok(self)
    }

    fn put<T>(&self, name: c_int, kind: c_int, values: &[T]) -> Result<(), Error> {
        let (sys, count) = (&self.cudnn().sys, values.len() as i64);
        // SAFETY: a live descriptor, and as many values as is said, each as large as its kind has
        // them (the callers' concern); they are copied. Descriptors among them live in `parts`.
        let status = unsafe {
            let values = values.as_ptr().cast();
            (sys.cudnnBackendSetAttribute)(self.owned.raw, name, kind, count, values)
        };
        self.cudnn().check("cudnnBackendSetAttribute", status)
    }

    /// Ends the description. A plan is built here: up to seconds.
    ///
    /// # Errors
    /// cuDNN's: an attribute is missing, or there is no support for it all.
    pub fn finalize(self) -> Result<Self, Error> {
        // SAFETY: a live descriptor.
        let status = unsafe { (self.cudnn().sys.cudnnBackendFinalize)(self.owned.raw) };
        self.cudnn().check("cudnnBackendFinalize", status)?;
        Ok(self)
    }

    /// An attribute's numbers, at most so many.
    ///
    /// # Errors
    /// cuDNN's: no such attribute here.
    pub fn numbers(&self, name: i32, most: usize) -> Result<Vec<i64>, Error> {
        self.read(name, of::INT64, most)
    }

    /// An attribute's words of an enumeration of `sys::of`, at most so many.
    ///
    /// # Errors
    /// cuDNN's: no such attribute here.
    pub fn words(&self, name: i32, kind: i32, most: usize) -> Result<Vec<i32>, Error> {
        match kind {
            words!() => self.read(name, kind, most),
            _ => refused("cudnnBackendGetAttribute", NO_WORDS),
        }
    }

    /// An attribute's text, without the zero behind it.
    ///
    /// # Errors
    /// cuDNN's: no such attribute here.
    pub fn text(&self, name: i32) -> Result<Vec<u8>, Error> {
        let bytes = self.count(name, of::CHAR)?;
        let mut text: Vec<u8> = self.read(name, of::CHAR, bytes)?;
        text.truncate(text.iter().position(|byte| *byte == 0).unwrap_or(text.len()));
        Ok(text)
    }

    /// An attribute's descriptors, all of one kind: what heuristics propose, for example.
    ///
    /// # Errors
    /// cuDNN's: no such attribute here.
    pub fn descriptors(&self, name: i32, what: i32) -> Result<Vec<Self>, Error> {
        let most = self.count(name, of::DESCRIPTOR)?;
        let mut all: Vec<Self> =
            (0..most).map(|_| Self::new(self.cudnn(), what)).collect::<Result<_, _>>()?;
        let mut raw: Vec<_> = all.iter().map(|one| one.owned.raw).collect();
        let count = self.fill(name, of::DESCRIPTOR, &mut raw)?;
        all.truncate(count);
        all.iter_mut().for_each(|one| one.parts.extend(self.all()));
        Ok(all)
    }

    fn count(&self, name: c_int, kind: c_int) -> Result<usize, Error> {
        self.fill::<u8>(name, kind, &mut [])
    }

    fn read<T: Default + Clone>(
        &self,
        name: c_int,
        kind: c_int,
        most: usize,
    ) -> Result<Vec<T>, Error> {
        let mut values = vec![T::default(); most];
        let count = self.fill(name, kind, &mut values)?;
        values.truncate(count);
        Ok(values)
    }

    /// Fills in as many values as there is room for, and says how many there are.
    fn fill<T>(&self, name: c_int, kind: c_int, room: &mut [T]) -> Result<usize, Error> {
        let (sys, most, mut count) = (&self.cudnn().sys, room.len() as i64, 0);
        let values = if room.is_empty() { null_mut() } else { room.as_mut_ptr().cast() };
        // SAFETY: a live descriptor, and room for as many values as is said, each as large as its
        // kind has them (the callers' concern).
        let status = unsafe {
            let raw = self.owned.raw;
            (sys.cudnnBackendGetAttribute)(raw, name, kind, most, &mut count, values)
        };
        self.cudnn().check("cudnnBackendGetAttribute", status)?;
        Ok(count.max(0) as usize)
    }

    fn all(&self) -> impl Iterator<Item = Arc<Owned>> {
        std::iter::once(&self.owned).chain(&self.parts).cloned()
    }

    fn cudnn(&self) -> &Cudnn {
        &self.owned.cudnn
    }
}

/// What plans are executed with, in one stream.
pub struct Handle {
    cudnn: Cudnn,
    stream: Stream,
    raw: *mut sys::handle,
}

// SAFETY: one thread at a time has it.
unsafe impl Send for Handle {}

impl Handle {
    /// For this stream, which it takes.
    ///
    /// # Errors
    /// cuDNN's: no device that it knows, or no memory.
    pub fn new(cudnn: &Cudnn, stream: Stream) -> Result<Self, Error> {
        stream.context().enter()?;
        let mut this = Self { cudnn: cudnn.clone(), stream, raw: null_mut() };
        // SAFETY: `raw` receives a handle, destroyed once; the calling thread has the context.
        cudnn.check("cudnnCreate", unsafe { (cudnn.sys.cudnnCreate)(&mut this.raw) })?;
        // SAFETY: both are live, and the stream as long as the handle.
        let status = unsafe { (cudnn.sys.cudnnSetStream)(this.raw, this.stream.raw()) };
        cudnn.check("cudnnSetStream", status)?;
        Ok(this)
    }

    /// The stream.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The context that plans are executed in.
    pub fn context(&self) -> &Arc<Context> {
        self.stream.context()
    }

    /// Puts a plan's execution on the tensors of a variant pack into the stream. A plan that is
    /// captured stays for as long as the process: graphs may launch its kernels at any time.
    ///
    /// # Errors
    /// cuDNN's: a tensor is missing, or a launch failed; `Refused`: these are other descriptors.
    pub fn execute(&self, plan: &Descriptor, pack: &Descriptor) -> Result<(), Error> {
        const CALL: &str = "cudnnBackendExecute";
        if (plan.owned.what, pack.owned.what) != (kind::EXECUTION_PLAN, kind::VARIANT_PACK) {
            return refused(CALL, "a plan and a variant pack are executed");
        }
        if self.stream.is_capturing()? {
            plan.all().for_each(std::mem::forget);
        }
        self.context().enter()?;
        let (plan, pack): (*mut c_void, _) = (plan.owned.raw, pack.owned.raw);
        // SAFETY: all three are live, and of the kinds that belong here.
        let status = unsafe { (self.cudnn.sys.cudnnBackendExecute)(self.raw, plan, pack) };
        self.cudnn.check(CALL, status)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.raw.is_null() || self.context().enter().is_err() {
            return;
        }
        // SAFETY: owned, destroyed once, before its stream.
        unsafe { (self.cudnn.sys.cudnnDestroy)(self.raw) };
    }
}

/// Bytes of device memory that a plan works in.
///
/// # Errors
/// cuDNN's: it is no plan.
pub fn workspace_bytes(plan: &Descriptor) -> Result<usize, Error> {
    let bytes = plan.numbers(attribute::PLAN_WORKSPACE_BYTES, 1)?;
    Ok(bytes.first().map_or(0, |bytes| (*bytes).max(0) as usize))
}
