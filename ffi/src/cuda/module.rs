//! Kernels: machine code that is loaded into a context, and its launches (CUDA driver API: Module
//! Management, Execution Control).

use std::ffi::{CString, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use super::context::Context;
use super::memory::Buffer;
use super::result::{Error, NO_SUCH_PARAMETER, refused};
use super::stream::Stream;
use super::sys::driver as sys;

/// Most parameters of a kernel: 32,764 bytes of them (since CUDA 12.1), of one byte each.
const PARAMETERS_MAX: usize = 32_764;

/// Kernels that are loaded. They end with the context, as the last launch does.
pub struct Module {
    context: Arc<Context>,
    raw: *mut sys::module,
}

// SAFETY: the driver's calls may come from any thread.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// Loads a cubin, as NVRTC makes it. It must be whole: whoever keeps one in a file compares its
    /// hash first.
    ///
    /// # Errors
    /// The driver's: machine code of another kind of device, for example. `Refused`: no cubin.
    pub fn load(context: &Arc<Context>, cubin: &[u8]) -> Result<Self, Error> {
        // Text would be read up to its terminating zero, which a slice need not have; of a cubin
        // the driver reads what its own headers say.
        if !cubin.starts_with(b"\x7fELF") {
            return refused("cuModuleLoadData", "this is no cubin");
        }
        let (sys, mut raw) = (context.enter()?, null_mut());
        // SAFETY: a whole cubin, read during the call; `raw` receives a handle.
        let status = unsafe { (sys.cuModuleLoadData)(&mut raw, cubin.as_ptr().cast()) };
        context.check("cuModuleLoadData", status)?;
        Ok(Self { context: Arc::clone(context), raw })
    }

    /// A kernel of it, by the name it has as `extern "C"`.
    ///
    /// # Errors
    /// The driver's: no such kernel.
    pub fn function(&self, name: &str) -> Result<Function, Error> {
        let Ok(terminated) = CString::new(name) else {
            return refused("cuModuleGetFunction", "a name with a zero in it");
        };
        let (context, mut raw) = (&self.context, null_mut());
        let sys = context.enter()?;
        // SAFETY: a live module and a terminated string; `raw` receives a handle of the module's.
        let status = unsafe { (sys.cuModuleGetFunction)(&mut raw, self.raw, terminated.as_ptr()) };
        context.check("cuModuleGetFunction", status)?;
        let mut sizes = Vec::new();
        loop {
            if sizes.len() > PARAMETERS_MAX {
                return refused("cuFuncGetParamInfo", "parameters without end");
            }
            let (mut offset, mut size) = (0, 0);
            // SAFETY: a live function; writes two sizes.
            let status =
                unsafe { (sys.cuFuncGetParamInfo)(raw, sizes.len(), &mut offset, &mut size) };
            if status == NO_SUCH_PARAMETER {
                break;
            }
            context.check("cuFuncGetParamInfo", status)?;
            sizes.push(size);
        }
        Ok(Function { context: Arc::clone(context), raw, name: name.into(), sizes })
    }
}

/// What a kernel is given. Kernels are trusted as much as this program's own code: what one does
/// wrong can reach the host's pinned pages, and on some systems all of its memory.
#[derive(Clone, Copy)]
pub enum Argument<'a> {
    /// A pointer to the device's memory, so many bytes behind a buffer's start.
    Memory(&'a Buffer, usize),
    /// `int`.
    I32(i32),
    /// `unsigned long long`.
    U64(u64),
    /// `float`.
    F32(f32),
}

impl Argument<'_> {
    /// Its size and its bytes, the lowest first.
    fn encoded(self) -> Result<(usize, u64), Error> {
        Ok(match self {
            Self::Memory(buffer, at) => (8, buffer.part("cuLaunchKernel", at, 0)?),
            Self::I32(value) => (4, u64::from(value.cast_unsigned())),
            Self::U64(value) => (8, value),
            Self::F32(value) => (4, u64::from(value.to_bits())),
        })
    }
}

/// How many blocks and threads a launch has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Blocks, by dimension.
    pub blocks: [u32; 3],
    /// Threads of a block, by dimension; 1024 in all at most.
    pub threads: [u32; 3],
    /// Bytes of shared memory beyond those that the kernel declares itself.
    pub shared_bytes: u32,
}

impl Shape {
    /// So many blocks of so many threads, in one dimension.
    pub fn line(blocks: u32, threads: u32) -> Self {
        Self { blocks: [blocks, 1, 1], threads: [threads, 1, 1], shared_bytes: 0 }
    }
}

/// A kernel.
pub struct Function {
    context: Arc<Context>,
    raw: *mut sys::function,
    name: String,
    /// Bytes of each parameter, as the machine code has it.
    sizes: Vec<usize>,
}

// SAFETY: the driver's calls may come from any thread.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Function {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Puts a launch into a stream.
    ///
    /// # Errors
    /// The driver's, those of earlier work among them; `Refused` where the arguments are not as
    /// many and as large as the kernel's parameters.
    pub fn launch(
        &self,
        stream: &Stream,
        shape: Shape,
        arguments: &[Argument<'_>],
    ) -> Result<(), Error> {
        const CALL: &str = "cuLaunchKernel";
        let encoded: Vec<_> = arguments.iter().map(|a| a.encoded()).collect::<Result<_, _>>()?;
        let (sizes, mut values): (Vec<usize>, Vec<u64>) = encoded.into_iter().unzip();
        if sizes != self.sizes {
            let (name, wanted) = (&self.name, &self.sizes);
            return refused(CALL, format!("{name} takes bytes {wanted:?}, given are {sizes:?}"));
        }
        let mut pointers: Vec<*mut c_void> =
            values.iter_mut().map(|value| std::ptr::from_mut(value).cast()).collect();
        let (sys, [x, y, z], [a, b, c]) = (self.context.enter()?, shape.blocks, shape.threads);
        // SAFETY: live handles; as many values as the kernel has parameters, each as large (checked
        // above), and copied during the call.
        let status = unsafe {
            (sys.cuLaunchKernel)(
                self.raw,
                x,
                y,
                z,
                a,
                b,
                c,
                shape.shared_bytes,
                stream.raw(),
                pointers.as_mut_ptr(),
                null_mut(),
            )
        };
        self.context.check(CALL, status)
    }
}
