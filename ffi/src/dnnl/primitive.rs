//! Primitives: an implementation with its arguments, run on leases of an arena or on slices.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::rc::Rc;

use super::codes;
use super::memory::{MemoryDesc, extent};
use super::result::{Error, check};
use super::sys;
use crate::arena::Loan;
use crate::operation::{Access, Role};

/// A CPU engine and its stream, shared by everything made with it. Stays on its thread.
#[derive(Clone)]
pub struct Context {
    inner: Rc<Handles>,
}

struct Handles {
    engine: *mut sys::engine,
    stream: *mut sys::stream,
}

impl Drop for Handles {
    fn drop(&mut self) {
        // SAFETY: owned, destroyed once, the stream first; null handles were never created.
        unsafe {
            if !self.stream.is_null() {
                sys::dnnl_stream_destroy(self.stream);
            }
            if !self.engine.is_null() {
                sys::dnnl_engine_destroy(self.engine);
            }
        }
    }
}

impl Context {
    /// The CPU.
    pub fn cpu() -> Result<Self, Error> {
        let mut handles = Handles { engine: null_mut(), stream: null_mut() };
        // SAFETY: the out parameters receive new handles, owned by `handles`.
        unsafe {
            let status = sys::dnnl_engine_create(&mut handles.engine, sys::CPU, 0);
            check("engine_create", status)?;
            let (stream, engine) = (&mut handles.stream, handles.engine);
            check("stream_create", sys::dnnl_stream_create(stream, engine, sys::IN_ORDER))?;
        }
        Ok(Self { inner: Rc::new(handles) })
    }

    pub(super) fn engine(&self) -> *mut sys::engine {
        self.inner.engine
    }
}

/// A chosen implementation: what layouts it wants.
pub struct PrimitiveDesc {
    context: Context,
    raw: *mut sys::primitive_desc,
    /// What the operation reads and writes.
    roles: Vec<(Role, Access)>,
}

impl PrimitiveDesc {
    /// # Safety
    /// `raw` is live and owned by the caller, who gives it away.
    pub(super) unsafe fn from_raw(
        context: Context,
        raw: *mut sys::primitive_desc,
        roles: Vec<(Role, Access)>,
    ) -> Self {
        Self { context, raw, roles }
    }

    pub(super) fn raw(&self) -> *const sys::primitive_desc {
        self.raw
    }

    /// The arguments without which an execution would read or write nothing known.
    fn demanded(&self) -> impl Iterator<Item = Role> {
        let needed = |role: &Role| {
            let raw = self.arg_raw(*role);
            // SAFETY: not null, so a live descriptor within the primitive descriptor.
            !raw.is_null() && unsafe { extent(raw) } > 0
        };
        self.roles.iter().map(|(role, _)| *role).chain([Role::Scratchpad]).filter(needed)
    }

    fn arg_raw(&self, role: Role) -> *const sys::memory_desc {
        let (what, role) = (sys::QUERY_EXEC_ARG_MD, codes::arg(role));
        // SAFETY: a live handle; the result points into it.
        unsafe { sys::dnnl_primitive_desc_query_md(self.raw, what, role) }
    }

    /// The layout of an argument; `None` if the operation has no such argument.
    pub fn desc(&self, role: Role) -> Result<Option<MemoryDesc>, Error> {
        let raw = self.arg_raw(role);
        if raw.is_null() {
            return Ok(None);
        }
        // SAFETY: not null, points into the live primitive descriptor.
        let desc = unsafe { MemoryDesc::borrowed(raw) }?;
        Ok((desc.bytes() > 0).then_some(desc))
    }

    fn access(&self, role: Role) -> Access {
        let own = self.roles.iter().find(|(other, _)| *other == role);
        own.map_or(Access::Write, |(_, access)| *access)
    }

    /// Bytes of scratch memory that every execution needs.
    pub fn scratchpad_bytes(&self) -> usize {
        let raw = self.arg_raw(Role::Scratchpad);
        if raw.is_null() {
            return 0;
        }
        // SAFETY: not null, points into the live primitive descriptor.
        unsafe { extent(raw) }
    }

    /// The implementation's name, for example `jit:avx512_core`.
    pub fn implementation(&self) -> String {
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: the query writes a pointer to a static string.
        let status = unsafe {
            sys::dnnl_primitive_desc_query(
                self.raw,
                sys::QUERY_IMPL_INFO_STR,
                0,
                (&raw mut text).cast(),
            )
        };
        if status != sys::SUCCESS || text.is_null() {
            return "unknown".into();
        }
        // SAFETY: not null: a terminated string that lives as long as the library.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

impl Drop for PrimitiveDesc {
    fn drop(&mut self) {
        // SAFETY: owned, destroyed once.
        unsafe { sys::dnnl_primitive_desc_destroy(self.raw) };
    }
}

/// What one argument of an execution is.
pub enum Data<'a> {
    /// A span of an arena.
    Lent(Loan<'a>),
    /// Something that is only read.
    Read(&'a [f32]),
    /// Something that is written.
    Write(&'a mut [f32]),
}

/// One argument, bound: its role and its memory object, whose address each execution sets.
struct Bound {
    role: Role,
    memory: *mut sys::memory,
    bytes: usize,
    access: Access,
}

/// An operation that can run.
pub struct Primitive {
    raw: *mut sys::primitive,
    context: Context,
    bound: Vec<Bound>,
}

impl Primitive {
    /// Compiles `desc` for arguments in this order. All that the operation needs must be there.
    pub fn new(desc: &PrimitiveDesc, roles: &[Role]) -> Result<Self, Error> {
        if let Some(role) = desc.demanded().find(|role| !roles.contains(role)) {
            return Err(Error::Refused {
                call: "primitive_create",
                reason: format!("{role:?} is missing"),
            });
        }
        let mut this = Self { raw: null_mut(), context: desc.context.clone(), bound: Vec::new() };
        // SAFETY: a live descriptor; `raw` receives a new handle, owned by `this`.
        check("primitive_create", unsafe {
            sys::dnnl_primitive_create(&mut this.raw, desc.raw())
        })?;
        for &role in roles {
            let md = desc.arg_raw(role);
            let mut memory = null_mut();
            if md.is_null() {
                return Err(Error::Refused {
                    call: "primitive_create",
                    reason: format!("this operation has no {role:?}"),
                });
            }
            // SAFETY: `md` is live; a null handle means that the address is set later.
            check("memory_create", unsafe {
                sys::dnnl_memory_create(&mut memory, md, this.context.engine(), null_mut())
            })?;
            // SAFETY: `md` is live.
            let bytes = unsafe { extent(md) };
            let access = desc.access(role);
            this.bound.push(Bound { role, memory, bytes, access });
        }
        Ok(this)
    }

    /// What an execution does with each argument, in the order given to `new`.
    pub fn accesses(&self) -> impl Iterator<Item = Access> {
        self.bound.iter().map(|bound| bound.access)
    }

    /// Runs on the calling thread's team and waits. `args` are in the order given to `new`.
    pub fn execute(&mut self, args: &mut [Data<'_>]) -> Result<(), Error> {
        if args.len() != self.bound.len() {
            let reason = format!("{} arguments for {}", args.len(), self.bound.len());
            return Err(Error::Refused { call: "execute", reason });
        }
        let mut raw = Vec::with_capacity(args.len());
        for (bound, data) in self.bound.iter().zip(args) {
            let address = bound.address(data)?;
            // SAFETY: a live memory object; the address holds at least the bytes it describes
            // (checked by `address`) until the execution below has ended.
            check("set_data_handle", unsafe {
                sys::dnnl_memory_set_data_handle(bound.memory, address)
            })?;
            raw.push(sys::exec_arg { arg: codes::arg(bound.role), memory: bound.memory });
        }
        let stream = self.context.inner.stream;
        // SAFETY: all arguments the operation needs are bound (checked in `new`) to live memory:
        // leases and written slices are borrowed mutably for this call, read slices shared.
        unsafe {
            check(
                "execute",
                sys::dnnl_primitive_execute(self.raw, stream, raw.len() as c_int, raw.as_ptr()),
            )?;
            check("stream_wait", sys::dnnl_stream_wait(stream))
        }
    }
}

impl Bound {
    fn address(&self, data: &mut Data<'_>) -> Result<*mut c_void, Error> {
        let refuse = |what: &str| Error::Refused {
            call: "execute",
            reason: format!("{:?} {what} ({} bytes needed)", self.role, self.bytes),
        };
        match data {
            Data::Read(_) | Data::Lent(Loan { access: Access::Read, .. })
                if self.access == Access::Write =>
            {
                Err(refuse("is written, and may not be shared"))
            }
            Data::Lent(lent) if lent.bytes < self.bytes => Err(refuse("is too short")),
            Data::Lent(lent) => Ok(lent.start),
            Data::Read(slice) if size_of_val(*slice) < self.bytes => Err(refuse("is too short")),
            Data::Read(slice) => Ok(slice.as_ptr().cast_mut().cast()),
            Data::Write(slice) if size_of_val(*slice) < self.bytes => Err(refuse("is too short")),
            Data::Write(slice) => Ok(slice.as_mut_ptr().cast()),
        }
    }
}

impl Drop for Primitive {
    fn drop(&mut self) {
        // SAFETY: owned, each destroyed once; null handles were never created.
        unsafe {
            for bound in &self.bound {
                sys::dnnl_memory_destroy(bound.memory);
            }
            if !self.raw.is_null() {
                sys::dnnl_primitive_destroy(self.raw);
            }
        }
    }
}
