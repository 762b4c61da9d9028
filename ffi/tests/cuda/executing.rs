//! Executing cuDNN's plans without a card: a library of our own (`cuda/cudnn.c`) computes what it
//! is given in the fake driver's memory, and counts.

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use kintsugi_ffi::cuda::cudnn::{Descriptor, Handle, Plan, Values};
use kintsugi_ffi::cuda::library::Library;
use kintsugi_ffi::cuda::sys::cudnn::{attribute, kind, of, value};
use kintsugi_ffi::cuda::{Buffer, Context, Cudnn, Error, Found, Places, Stream};

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
        let nothing = Path::new("/dev/null");
        for (name, source) in [("libcudnn.so.9", &*source), ("libcublasLt.so.13", nothing)] {
            let mut compiler = Command::new("cc");
            compiler.args(["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]);
            compiler.args(["-fvisibility=hidden", "-o"]).arg(root.join(name));
            compiler.args(["-x", "c"]).arg(source);
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

    /// A plan that heuristics propose, and the graph that it is for.
    fn proposed(&self, handle: &Handle, told: &Told) -> Result<(Plan, Descriptor), Error> {
        let graph = told.graph(handle)?;
        let mode = Values::Words(of::HEURISTIC_MODE, &[value::HEURISTIC_A]);
        let configs = Descriptor::new(&self.cudnn, kind::ENGINE_HEURISTIC)?
            .set(attribute::HEURISTIC_GRAPH, Values::Descriptors(&[&graph]))?
            .set(attribute::HEURISTIC_MODE, mode)?
            .finalize()?
            .descriptors(attribute::HEURISTIC_RESULTS, kind::ENGINE_CONFIG)?;
        let engines = configs[0].descriptors(attribute::CONFIG_ENGINE, kind::ENGINE)?;
        let notes = engines[0].words(attribute::ENGINE_NUMERICAL_NOTES, of::NUMERICAL_NOTE, 8)?;
        assert!(notes.is_empty());
        let plan = Descriptor::new(&self.cudnn, kind::EXECUTION_PLAN)?
            .set(attribute::PLAN_HANDLE, Values::Handle(handle))?
            .set(attribute::PLAN_CONFIG, Values::Descriptors(&[&configs[0]]))?
            .finalize()?;
        Ok((Plan::new(plan, &graph)?, graph))
    }

    /// The plan of two samples of eight channels of 4 x 4 in bf16: 512 bytes each way.
    fn plan(&self, handle: &Handle) -> Result<Plan, Error> {
        let told = Told {
            element: value::BF16,
            sizes: [[2, 8, 4, 4], [8, 8, 1, 1], [2, 8, 4, 4]],
            ..Told::default()
        };
        Ok(self.proposed(handle, &told)?.0)
    }

    /// Executes a plan on numbers of x, w and y, and returns what they are then. The workspace lies
    /// right behind them, and no byte further is written.
    fn execute(&self, handle: &Handle, plan: &Plan, numbers: [&[f32]; 3]) -> [Vec<f32>; 3] {
        const AT: [usize; 3] = [0, 256, 512];
        let (workspace, buffer) = (1024, &Buffer::new(&self.context, 16384).expect("a buffer"));
        self.stream.fill(buffer, 0..buffer.bytes(), 0x11).expect("it is filled");
        for (at, numbers) in AT.iter().zip(numbers) {
            let bytes: Vec<u8> = numbers.iter().flat_map(|one| one.to_ne_bytes()).collect();
            self.stream.write(buffer, *at, &bytes).expect("it fits");
        }
        let tensors = [(1, buffer, AT[0]), (2, buffer, AT[1]), (3, buffer, AT[2])];
        let place = Some((buffer, workspace));
        handle.execute(plan, &self.stream, &tensors, place).expect("it is executed");
        let mut all = vec![0; buffer.bytes()];
        self.stream.read(buffer, 0, &mut all).expect("as many");
        let (used, behind) = all[workspace..].split_at(plan.workspace_bytes());
        assert!(used.iter().all(|byte| *byte == 0xff), "all of the workspace is used");
        assert!(behind.iter().all(|byte| *byte == 0x11), "and nothing behind it");
        let read = |(at, numbers): (usize, &[f32])| {
            let bytes = &all[at..at + 4 * numbers.len()];
            let words = bytes.chunks_exact(4).map(|word| word.try_into().expect("four"));
            words.map(f32::from_ne_bytes).collect()
        };
        let [x, w, y] = numbers;
        [(AT[0], x), (AT[1], w), (AT[2], y)].map(read)
    }
}

/// What cuDNN is told of a convolution. Tensors 1, 2 and 3 are x, w and y, with channels last.
#[derive(Clone, Copy)]
struct Told {
    operation: i32,
    element: i32,
    sizes: [[i64; 4]; 3],
    before: [i64; 2],
    after: [i64; 2],
    stride: [i64; 2],
    dilation: [i64; 2],
}

impl Default for Told {
    fn default() -> Self {
        Self {
            operation: kind::CONVOLUTION_FORWARD,
            element: value::F32,
            sizes: [[1; 4]; 3],
            before: [0; 2],
            after: [0; 2],
            stride: [1; 2],
            dilation: [1; 2],
        }
    }
}

impl Told {
    fn graph(&self, handle: &Handle) -> Result<Descriptor, Error> {
        let cudnn = handle.cudnn();
        let tensor = |at: usize| {
            let [n, c, h, w] = self.sizes[at];
            Descriptor::new(cudnn, kind::TENSOR)?
                .set(attribute::TENSOR_DATA_TYPE, Values::Words(of::DATA_TYPE, &[self.element]))?
                .set(attribute::TENSOR_DIMENSIONS, Values::I64(&[n, c, h, w]))?
                .set(attribute::TENSOR_STRIDES, Values::I64(&[c * h * w, 1, c * w, c]))?
                .set(attribute::TENSOR_ID, Values::I64(&[at as i64 + 1]))?
                .set(attribute::TENSOR_ALIGNMENT, Values::I64(&[16]))?
                .finalize()
        };
        let (x, w, y) = (tensor(0)?, tensor(1)?, tensor(2)?);
        let f32 = Values::Words(of::DATA_TYPE, &[value::F32]);
        let mode = Values::Words(of::CONVOLUTION_MODE, &[value::CROSS_CORRELATION]);
        let window = Descriptor::new(cudnn, kind::CONVOLUTION)?
            .set(attribute::CONVOLUTION_COMPUTE_TYPE, f32)?
            .set(attribute::CONVOLUTION_MODE, mode)?
            .set(attribute::CONVOLUTION_SPATIAL_DIMS, Values::I64(&[2]))?
            .set(attribute::CONVOLUTION_PRE_PADDINGS, Values::I64(&self.before))?
            .set(attribute::CONVOLUTION_POST_PADDINGS, Values::I64(&self.after))?
            .set(attribute::CONVOLUTION_DILATIONS, Values::I64(&self.dilation))?
            .set(attribute::CONVOLUTION_STRIDES, Values::I64(&self.stride))?
            .finalize()?;
        let alpha = match self.operation {
            kind::CONVOLUTION_FORWARD => attribute::FORWARD_ALPHA,
            kind::CONVOLUTION_BACKWARD_DATA => attribute::DATA_ALPHA,
            _ => attribute::FILTER_ALPHA,
        };
        // All three have the others behind it, in one order.
        let operation = Descriptor::new(cudnn, self.operation)?
            .set(alpha, Values::F32(&[1.0]))?
            .set(alpha + 1, Values::F32(&[0.0]))?
            .set(alpha + 2, Values::Descriptors(&[&window]))?
            .set(alpha + 3, Values::Descriptors(&[&w]))?
            .set(alpha + 4, Values::Descriptors(&[&x]))?
            .set(alpha + 5, Values::Descriptors(&[&y]))?
            .finalize()?;
        Descriptor::new(cudnn, kind::OPERATION_GRAPH)?
            .set(attribute::GRAPH_OPERATIONS, Values::Descriptors(&[&operation]))?
            .set(attribute::GRAPH_HANDLE, Values::Handle(handle))?
            .finalize()
    }
}

#[test]
fn a_plan_is_executed_only_on_what_has_room_for_its_tensors() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let fakes = Fakes::new("cudnn-room");
    let (handle, other, buffer) = (fakes.handle(), fakes.handle(), &fakes.buffer);
    let plan = fakes.plan(&handle).expect("a plan");
    assert_eq!(plan.workspace_bytes(), 1024);
    let all = [(1, buffer, 0), (2, buffer, 2048), (3, buffer, 512)];
    let [x, w, y] = all;
    let workspace = Some((buffer, 1024));
    let execute = |handle: &Handle, tensors: &[(i64, &Buffer, usize)], workspace| {
        let done = handle.execute(&plan, &fakes.stream, tensors, workspace);
        done.map_err(|error| error.to_string())
    };
    assert_eq!(execute(&handle, &all, workspace), Ok(()));
    // As far back as it fits.
    assert_eq!(execute(&handle, &[(1, buffer, 3584), w, y], workspace), Ok(()));
    for (refused, says) in [
        (execute(&other, &all, workspace), "a plan of another handle"),
        (execute(&handle, &all, None), "needs a workspace"),
        (execute(&handle, &all, Some((buffer, 3328))), "1024 bytes from 3328 on, of 4096"),
        (execute(&handle, &all, Some((buffer, 16))), "not aligned to 256"),
        (execute(&handle, &[x, y], workspace), "tensor 2 is missing"),
        (execute(&handle, &[(1, buffer, 3600), w, y], workspace), "512 bytes from 3600"),
        (execute(&handle, &[(1, buffer, 8), w, y], workspace), "not aligned to 16"),
    ] {
        let error = refused.expect_err(says);
        assert!(error.contains(says), "{error}, not {says}");
    }
    assert_eq!(fakes.state(EXECUTED), 2);
}

#[test]
fn a_plan_keeps_its_handle() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let fakes = Fakes::new("cudnn-lives");
    let handle = fakes.handle();
    let plan = fakes.plan(&handle).expect("a plan");
    drop(handle);
    assert_eq!(fakes.state(HANDLES), 1, "the plan holds it");
    drop(plan);
    assert_eq!((fakes.state(HANDLES), fakes.state(DESCRIPTORS), fakes.state(LATE)), (0, 0, 0));
}

#[test]
fn a_plan_computes_and_so_does_the_one_that_was_kept() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let fakes = Fakes::new("cudnn-computes");
    let handle = fakes.handle();
    // A picture of 3 x 3 with two channels, zeros to its left, by one filter of 1 x 2.
    let told = Told {
        sizes: [[1, 2, 3, 3], [1, 2, 1, 2], [1, 1, 3, 3]],
        before: [0, 1],
        ..Told::default()
    };
    let x: [f32; 18] = std::array::from_fn(|at| at as f32);
    let w = [1.0, 10.0, 100.0, 1000.0];
    let (plan, graph) = fakes.proposed(&handle, &told).expect("a plan");
    assert_eq!(plan.workspace_bytes() % 512, 0);
    let [.., y] = fakes.execute(&handle, &plan, [&x, &w, &[7.0; 9]]);
    // Left pixel by 1 and 10, own one by 100 and 1000.
    let wanted = [1000.0, 3210.0, 5432.0, 7600.0, 9876.0, 12098.0, 14200.0, 16542.0, 18764.0];
    assert_eq!(y, wanted);

    let json = plan.json().expect("it can be kept");
    let again = |json: &[u8]| {
        let plan = Descriptor::new(&fakes.cudnn, kind::EXECUTION_PLAN)?
            .set(attribute::PLAN_HANDLE, Values::Handle(&handle))?
            .set(attribute::PLAN_JSON, Values::Text(json))?
            .finalize()?;
        Plan::new(plan, &graph)
    };
    assert!(again(&json[..json.len() - 2]).is_err(), "half of it is no plan");
    let kept = again(&json).expect("the same plan");
    assert_eq!(kept.json().expect("again"), json);
    assert_eq!(kept.workspace_bytes(), plan.workspace_bytes());
    let [.., y] = fakes.execute(&handle, &kept, [&x, &w, &[7.0; 9]]);
    assert_eq!(y, wanted);
}

/// The three products of one convolution, with everything that one can have: y by (x by w), x by
/// (y by w) and w by (x by y) are one sum. It is exact, of small whole numbers.
#[test]
fn forward_and_backward_are_products_of_one_convolution() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let fakes = Fakes::new("cudnn-products");
    let handle = fakes.handle();
    let forward = Told {
        // Two groups; 3 samples, so that all three have a plan or none.
        sizes: [[3, 4, 3, 1], [2, 2, 2, 2], [3, 2, 2, 2]],
        before: [1, 2],
        after: [1, 1],
        stride: [2, 1],
        dilation: [1, 2],
        ..Told::default()
    };
    let numbers = |count: usize, factor: usize| -> Vec<f32> {
        (1..=count).map(|at| (at * factor % 11) as f32 - 5.0).collect()
    };
    let (x, w, y) = (numbers(36, 3), numbers(16, 7), numbers(24, 5));
    let sum = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let ran = |operation| {
        let (plan, _) = fakes.proposed(&handle, &Told { operation, ..forward }).expect("a plan");
        fakes.execute(&handle, &plan, [&x, &w, &y])
    };
    let result = sum(&ran(kind::CONVOLUTION_FORWARD)[2], &y);
    assert_ne!(result, 0.0);
    assert_eq!(sum(&ran(kind::CONVOLUTION_BACKWARD_DATA)[0], &x), result);
    assert_eq!(sum(&ran(kind::CONVOLUTION_BACKWARD_FILTER)[1], &w), result);
}

#[test]
fn what_does_not_fit_together_and_a_third_of_the_rest_has_no_plan() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let fakes = Fakes::new("cudnn-refuses");
    let handle = fakes.handle();
    let code = |told: &Told| {
        fakes.proposed(&handle, told).err().and_then(|error| error.code()).unwrap_or_default()
    };
    let told = Told { sizes: [[1, 2, 3, 3], [1, 2, 1, 1], [1, 1, 3, 3]], ..Told::default() };
    assert_eq!(code(&told), 0);
    // The rule of `cudnn.c`: 2 channels, 3 filters, 1 row.
    let refused = Told { sizes: [[1, 2, 3, 3], [3, 2, 1, 1], [1, 3, 3, 3]], ..told };
    assert_eq!(code(&refused), 3000);
    for wrong in [
        Told { before: [0, 1], ..told },
        Told { stride: [2, 1], ..told },
        Told { dilation: [0, 1], ..told },
        Told { sizes: [[1, 2, 3, 3], [1, 3, 1, 1], [1, 1, 3, 3]], ..told },
        Told { sizes: [[2, 2, 3, 3], [1, 2, 1, 1], [1, 1, 3, 3]], ..told },
    ] {
        assert_eq!(code(&wrong), 2000);
    }
}
