//! Executing cuDNN's plans without a card: a library of our own (`cuda/cudnn.c`) takes what it is
//! given and counts, over the fake driver.

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use kintsugi_ffi::cuda::cudnn::{Descriptor, Handle, Plan, Values};
use kintsugi_ffi::cuda::library::Library;
use kintsugi_ffi::cuda::sys::cudnn::{attribute, kind, of, value};
use kintsugi_ffi::cuda::{Buffer, Context, Cudnn, Error, Found, Graph, Places, Stream};

use crate::fake::Fake;

/// What the fake library counts, by number.
const DESCRIPTORS: i32 = 0;
const HANDLES: i32 = 1;
const EXECUTED: i32 = 2;
const LATE: i32 = 3;

/// It counts for the process: one test at a time.
static TURN: Mutex<()> = Mutex::new(());

struct Fakes {
    cudnn: Cudnn,
    library: Library,
    context: Arc<Context>,
    stream: Stream,
    buffer: Buffer,
}

impl Fakes {
    fn new(test: &str) -> Self {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
        std::fs::create_dir_all(&root).expect("a folder of our own");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cuda/cudnn.c");
        // cuBLAS has to be there and is asked for nothing.
        for name in ["libcudnn.so.9", "libcublasLt.so.13"] {
            let mut compiler = Command::new("cc");
            compiler.args(["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]);
            compiler.args(["-fvisibility=hidden", "-o"]).arg(root.join(name)).arg(&source);
            assert!(compiler.status().expect("a C compiler").success());
        }
        let found = Found::look(&Places::of(Some(&root), None, &[])).cudnn;
        let (_, cudnn) = found.map_err(|missing| missing.to_string()).expect("it loads");
        let library = Library::open(&root.join("libcudnn.so.9")).expect("it is loaded");
        let context = Fake::new(test).context();
        let stream = Stream::new(&context).expect("a stream");
        let buffer = Buffer::new(&context, 4096).expect("a buffer");
        Self { cudnn, library, context, stream, buffer }
    }

    fn handle(&self) -> Handle {
        Handle::new(&self.cudnn, &self.context).expect("a handle")
    }

    fn state(&self, which: i32) -> i32 {
        let address = self.library.symbol("fake_state").expect("it is there").as_ptr();
        // SAFETY: `cudnn.c` has this function with this type.
        unsafe {
            let state: unsafe extern "C" fn(i32) -> i32 = std::mem::transmute(address);
            state(which)
        }
    }

    /// Eight channels of 4 x 4 for two samples in bf16: 512 bytes.
    fn tensor(&self, id: i64) -> Result<Descriptor, Error> {
        Descriptor::new(&self.cudnn, kind::TENSOR)?
            .set(attribute::TENSOR_DATA_TYPE, Values::Words(of::DATA_TYPE, &[value::BF16]))?
            .set(attribute::TENSOR_DIMENSIONS, Values::I64(&[2, 8, 4, 4]))?
            .set(attribute::TENSOR_STRIDES, Values::I64(&[128, 1, 32, 8]))?
            .set(attribute::TENSOR_ID, Values::I64(&[id]))?
            .finalize()
    }

    /// A plan of one operation on tensors 1 and 2.
    fn plan(&self, handle: &Handle) -> Result<Plan, Error> {
        let (x, y) = (self.tensor(1)?, self.tensor(2)?);
        let operation = Descriptor::new(&self.cudnn, kind::CONVOLUTION_FORWARD)?
            .set(attribute::FORWARD_X, Values::Descriptors(&[&x]))?
            .set(attribute::FORWARD_Y, Values::Descriptors(&[&y]))?
            .finalize()?;
        let graph = Descriptor::new(&self.cudnn, kind::OPERATION_GRAPH)?
            .set(attribute::GRAPH_OPERATIONS, Values::Descriptors(&[&operation]))?
            .set(attribute::GRAPH_HANDLE, Values::Handle(handle))?
            .finalize()?;
        let config = Descriptor::new(&self.cudnn, kind::ENGINE_CONFIG)?
            .set(attribute::HEURISTIC_MODE, Values::Descriptors(&[&graph]))?
            .finalize()?;
        let plan = Descriptor::new(&self.cudnn, kind::EXECUTION_PLAN)?
            .set(attribute::PLAN_HANDLE, Values::Handle(handle))?
            .set(attribute::PLAN_CONFIG, Values::Descriptors(&[&config]))?
            .finalize()?;
        Plan::new(plan, &graph)
    }
}

#[test]
fn a_plan_is_executed_only_on_what_has_room_for_its_tensors() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let fakes = Fakes::new("cudnn-room");
    let (handle, other, buffer) = (fakes.handle(), fakes.handle(), &fakes.buffer);
    let plan = fakes.plan(&handle).expect("a plan");
    assert_eq!(plan.workspace_bytes(), 1024);
    let both = [(1, buffer, 0), (2, buffer, 512)];
    let workspace = Some((buffer, 1024));
    let execute = |handle: &Handle, tensors: &[(i64, &Buffer, usize)], workspace| {
        let done = handle.execute(&plan, &fakes.stream, tensors, workspace);
        done.map_err(|error| error.to_string())
    };
    assert_eq!(execute(&handle, &both, workspace), Ok(()));
    // As far back as it fits.
    assert_eq!(execute(&handle, &[(1, buffer, 3584), (2, buffer, 0)], workspace), Ok(()));
    for (refused, says) in [
        (execute(&other, &both, workspace), "a plan of another handle"),
        (execute(&handle, &both, None), "needs a workspace"),
        (execute(&handle, &both, Some((buffer, 3328))), "1024 bytes from 3328 on, of 4096"),
        (execute(&handle, &both, Some((buffer, 16))), "not aligned to 256"),
        (execute(&handle, &both[..1], workspace), "tensor 2 is missing"),
        (execute(&handle, &[(1, buffer, 3600), (2, buffer, 0)], workspace), "512 bytes from 3600"),
        (execute(&handle, &[(1, buffer, 8), (2, buffer, 0)], workspace), "not aligned to 16"),
    ] {
        let error = refused.expect_err(says);
        assert!(error.contains(says), "{error}, not {says}");
    }
    assert_eq!(fakes.state(EXECUTED), 2);
}

#[test]
fn a_plan_keeps_its_handle_and_a_captured_one_stays() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let fakes = Fakes::new("cudnn-lives");
    let handle = fakes.handle();
    let plan = fakes.plan(&handle).expect("a plan");
    drop(handle);
    assert_eq!(fakes.state(HANDLES), 1, "the plan holds it");
    drop(plan);
    assert_eq!((fakes.state(HANDLES), fakes.state(DESCRIPTORS), fakes.state(LATE)), (0, 0, 0));
    let handle = fakes.handle();
    let plan = fakes.plan(&handle).expect("a plan");
    let tensors = [(1, &fakes.buffer, 0), (2, &fakes.buffer, 512)];
    let workspace = Some((&fakes.buffer, 1024));
    let run = || handle.execute(&plan, &fakes.stream, &tensors, workspace);
    let graph = Graph::capture(&fakes.stream, run).expect("a graph");
    drop((plan, handle, graph));
    assert_eq!(fakes.state(HANDLES), 1, "graphs may launch its kernels at any time");
    assert!(fakes.state(DESCRIPTORS) > 0);
}
