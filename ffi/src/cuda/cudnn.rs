//! cuDNN's graph API: descriptors, whose attributes are set, and plans that are executed. Thin:
//! what a graph is made of is said by those who make it, in the numbers of `sys::cudnn`.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, OnceLock};

use super::context::Context;
use super::library::{Library, Missing};
use super::memory::Buffer;
use super::result::{Error, SUCCESS, refused, text};
use super::stream::Stream;
use super::sys::cudnn::{self as sys, attribute, kind, of, value};

/// Longest text of an error.
const WORDS_BYTES_MAX: usize = 2048;

const NO_WORDS: &str = "these values are no words of an enumeration";
/// Kinds of values that are ints: what else there is has another size.
macro_rules! words {
    () => {
        of::DATA_TYPE | 7..=14 | 16..=23 | 25 | 27..=29
    };
}

/// What tensors are aligned to: a plan may not be made for more.
pub const ALIGN_BYTES: usize = 16;
/// What workspaces are aligned to, as memory that was allocated for one is.
pub const WORKSPACE_ALIGN_BYTES: usize = 256;

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
    /// Text.
    Text(&'a [u8]),
    /// Words of an enumeration: its number in `sys::of`, and the words' numbers.
    Words(i32, &'a [i32]),
    /// Other descriptors, finalized.
    Descriptors(&'a [&'a Descriptor]),
    /// Places in the device's memory: a buffer, and so many bytes behind its start.
    Places(&'a [(&'a Buffer, usize)]),
    /// The card that it is for, by what plans are executed with there.
    Handle(&'a Handle),
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
    /// Whose context it may have kernels in; none, where it is for no card at hand.
    opened: OnceLock<Arc<Opened>>,
}

// SAFETY: nothing in a descriptor belongs to a thread; who changes it has it alone.
unsafe impl Send for Owned {}
// SAFETY: shared ones are finalized, which is the end of changes.
unsafe impl Sync for Owned {}

impl Drop for Owned {
    /// In a context that cannot be entered nothing is given back any more.
    fn drop(&mut self) {
        if self.opened.get().is_some_and(|opened| opened.context.enter().is_err()) {
            return;
        }
        // SAFETY: owned, destroyed once, before the handle that it is for.
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
        let opened = OnceLock::new();
        let owned = Arc::new(Owned { cudnn: cudnn.clone(), raw, what, opened });
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
            Values::Handle(handle) => {
                let opened = self.owned.opened.get_or_init(|| Arc::clone(&handle.opened));
                match Arc::ptr_eq(opened, &handle.opened) {
                    true => self.put(name, of::HANDLE, &[opened.raw]),
                    false => refused("cudnnBackendSetAttribute", "it has another handle"),
                }
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
        if let Some(opened) = self.all().find_map(|one| one.opened.get().cloned()) {
            opened.context.enter()?;
        }
        // SAFETY: a live descriptor; where it is for a card, the calling thread has its context.
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

/// What plans are made for and executed with on a card, by one thread at a time.
pub struct Handle {
    opened: Arc<Opened>,
    alone: PhantomData<Cell<()>>,
}

/// What a handle shares with the plans that are made for it.
struct Opened {
    cudnn: Cudnn,
    context: Arc<Context>,
    raw: *mut sys::handle,
}

// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Opened {}
// SAFETY: it is used through `Handle`, which one thread at a time has.
unsafe impl Sync for Opened {}

impl Handle {
    /// In this context.
    ///
    /// # Errors
    /// cuDNN's: no device that it knows, or no memory.
    pub fn new(cudnn: &Cudnn, context: &Arc<Context>) -> Result<Self, Error> {
        // The first one loads the library's parts: workers wait for each other.
        static OPENING: Mutex<()> = Mutex::new(());
        let _one = OPENING.lock();
        context.enter()?;
        let mut raw = null_mut();
        // SAFETY: `raw` receives a handle, destroyed once; the calling thread has the context.
        cudnn.check("cudnnCreate", unsafe { (cudnn.sys.cudnnCreate)(&mut raw) })?;
        let opened = Opened { cudnn: cudnn.clone(), context: Arc::clone(context), raw };
        Ok(Self { opened: Arc::new(opened), alone: PhantomData })
    }

    /// The library.
    pub fn cudnn(&self) -> &Cudnn {
        &self.opened.cudnn
    }

    /// Puts a plan's execution into a stream, on tensors by their ids: each lies so many bytes
    /// behind a buffer's start, as does the workspace.
    ///
    /// # Errors
    /// cuDNN's: a launch failed. `Refused`: a plan of another handle, a stream of another context,
    /// a tensor that is missing or lies beyond its buffer's end.
    pub fn execute(
        &self,
        plan: &Plan,
        stream: &Stream,
        tensors: &[(i64, &Buffer, usize)],
        workspace: Option<(&Buffer, usize)>,
    ) -> Result<(), Error> {
        const CALL: &str = "cudnnBackendExecute";
        let Opened { cudnn, context, raw } = &*self.opened;
        if !plan.opened().is_some_and(|opened| Arc::ptr_eq(opened, &self.opened)) {
            return refused(CALL, "a plan of another handle");
        }
        if !Arc::ptr_eq(stream.context(), context) {
            return refused(CALL, "a stream of another context");
        }
        let pack = plan.pack(tensors, workspace)?;
        context.enter()?;
        // SAFETY: both are live. Every execution names its stream, and the end of the handle none.
        let status = unsafe { (cudnn.sys.cudnnSetStream)(*raw, stream.raw()) };
        cudnn.check("cudnnSetStream", status)?;
        let (plan, pack): (*mut c_void, _) = (plan.plan.owned.raw, pack.owned.raw);
        // SAFETY: all three are live and of the kinds that belong here; every tensor of the plan
        // lies within its buffer, as does the workspace (`pack`).
        let status = unsafe { (cudnn.sys.cudnnBackendExecute)(*raw, plan, pack) };
        cudnn.check(CALL, status)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if self.context.enter().is_err() {
            return;
        }
        // SAFETY: owned, destroyed once, before its context; the last stream may be gone.
        unsafe {
            (self.cudnn.sys.cudnnSetStream)(self.raw, null_mut());
            (self.cudnn.sys.cudnnDestroy)(self.raw);
        }
    }
}

/// A plan with what it is executed on. cuDNN does not promise that two threads may execute one at
/// a time: one has it.
pub struct Plan {
    plan: Descriptor,
    tensors: Vec<Wanted>,
    workspace_bytes: usize,
    alone: PhantomData<Cell<()>>,
}

/// A tensor that is to be named.
struct Wanted {
    id: i64,
    bytes: usize,
}

impl Plan {
    /// A plan that is finalized. The graph that it is for says which tensors it works on.
    ///
    /// # Errors
    /// `Refused`: these are other descriptors. cuDNN's.
    pub fn new(plan: Descriptor, graph: &Descriptor) -> Result<Self, Error> {
        if (plan.owned.what, graph.owned.what) != (kind::EXECUTION_PLAN, kind::OPERATION_GRAPH) {
            return refused("cudnnBackendFinalize", "a plan is made of a graph");
        }
        let tensors = graph.parts.iter().filter(|part| part.what == kind::TENSOR);
        let tensors = tensors.map(Wanted::of).collect::<Result<_, _>>()?;
        let workspace_bytes = plan.numbers(attribute::PLAN_WORKSPACE_BYTES, 1)?;
        let workspace_bytes = workspace_bytes.first().map_or(0, |bytes| (*bytes).max(0) as usize);
        Ok(Self { plan, tensors, workspace_bytes, alone: PhantomData })
    }

    /// Bytes of device memory that it works in.
    pub fn workspace_bytes(&self) -> usize {
        self.workspace_bytes
    }

    /// cuDNN's own words for it, of which the same version makes the same plan again.
    ///
    /// # Errors
    /// cuDNN's: a plan that cannot be kept.
    pub fn json(&self) -> Result<Vec<u8>, Error> {
        self.plan.text(attribute::PLAN_JSON)
    }

    fn opened(&self) -> Option<&Arc<Opened>> {
        self.plan.owned.opened.get()
    }

    /// Where everything lies for one execution.
    fn pack(
        &self,
        tensors: &[(i64, &Buffer, usize)],
        workspace: Option<(&Buffer, usize)>,
    ) -> Result<Descriptor, Error> {
        const CALL: &str = "cudnnBackendExecute";
        let mut places = Vec::with_capacity(tensors.len());
        for Wanted { id, bytes } in &self.tensors {
            let Some((_, buffer, at)) = tensors.iter().find(|(other, ..)| other == id) else {
                return refused(CALL, format!("tensor {id} is missing"));
            };
            aligned(buffer.part(CALL, *at, *bytes)?, ALIGN_BYTES)?;
            places.push((*buffer, *at));
        }
        let ids: Vec<i64> = self.tensors.iter().map(|wanted| wanted.id).collect();
        let pack = Descriptor::new(self.plan.cudnn(), kind::VARIANT_PACK)?
            .set(attribute::PACK_IDS, Values::I64(&ids))?
            .set(attribute::PACK_POINTERS, Values::Places(&places))?;
        let pack = match workspace {
            Some((buffer, at)) => {
                aligned(buffer.part(CALL, at, self.workspace_bytes)?, WORKSPACE_ALIGN_BYTES)?;
                pack.set(attribute::PACK_WORKSPACE, Values::Places(&[(buffer, at)]))?
            }
            None if self.workspace_bytes == 0 => pack,
            None => return refused(CALL, "this plan needs a workspace"),
        };
        pack.finalize()
    }
}

impl Wanted {
    /// As the descriptor itself says it.
    fn of(tensor: &Arc<Owned>) -> Result<Self, Error> {
        /// More dimensions no tensor has.
        const DIMENSIONS_MAX: usize = 12;
        let tensor = Descriptor { owned: Arc::clone(tensor), parts: Vec::new() };
        let sizes = tensor.numbers(attribute::TENSOR_DIMENSIONS, DIMENSIONS_MAX)?;
        let strides = tensor.numbers(attribute::TENSOR_STRIDES, DIMENSIONS_MAX)?;
        let id = tensor.numbers(attribute::TENSOR_ID, 1)?.first().copied().unwrap_or_default();
        let element = tensor.words(attribute::TENSOR_DATA_TYPE, of::DATA_TYPE, 1)?;
        let element_bytes = match element[..] {
            [value::F32] => 4,
            [value::BF16] => 2,
            _ => return refused("cudnnBackendGetAttribute", "a tensor of other elements"),
        };
        let last: i64 = sizes.iter().zip(&strides).map(|(size, stride)| (size - 1) * stride).sum();
        let bytes = usize::try_from((last + 1) * element_bytes).unwrap_or(usize::MAX);
        Ok(Self { id, bytes })
    }
}

fn aligned(address: u64, to: usize) -> Result<(), Error> {
    match address.is_multiple_of(to as u64) {
        true => Ok(()),
        false => refused("cudnnBackendExecute", format!("{address:#x} is not aligned to {to}")),
    }
}
