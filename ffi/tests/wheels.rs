//! NVRTC and cuDNN as their wheels have them, without a card: kernels become machine code, and a
//! convolution a plan. Where they are not (`cluster-scripts/setup.sh --cuda`, `--nvrtc` for the
//! first, or `KINTSUGI_CUDA` names their folder) each test says that it was skipped.

use std::io::Write;
use std::sync::OnceLock;

use kintsugi_ffi::cuda::cudnn::{Descriptor, Plan, Values};
use kintsugi_ffi::cuda::sys::cudnn::{attribute, kind, of, value};
use kintsugi_ffi::cuda::{Cudnn, Error, Found, Missing, Nvrtc, Places};

/// One source: the fake driver of `cuda.rs` runs what the host's compiler makes of it.
const KERNELS: &str = include_str!("cuda/kernels.cu");

/// A card that nobody needs to have: made of an H100's public properties.
const DEVICE: &str = include_str!("cuda/h100.json");

/// Loaded once: that is how the program does it.
fn found() -> &'static Found {
    static FOUND: OnceLock<Found> = OnceLock::new();
    FOUND.get_or_init(|| Found::look(&Places::usual(None)))
}

/// Past the capture of tests' output, since it passes.
fn skipped(what: &str, missing: &Missing) {
    let line = format!("skipped: {what} ({missing})\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

fn nvrtc(what: &str) -> Option<&'static Nvrtc> {
    let found = found().nvrtc.as_ref();
    found.map_err(|missing| skipped(what, missing)).ok().map(|(_, nvrtc)| nvrtc)
}

fn cudnn(what: &str) -> Option<&'static Cudnn> {
    let found = found().cudnn.as_ref();
    found.map_err(|missing| skipped(what, missing)).ok().map(|(_, cudnn)| cudnn)
}

#[test]
fn kernels_become_machine_code_without_spills() {
    let Some(nvrtc) = nvrtc("machine code of kernels") else { return };
    assert!(nvrtc.version().0 >= 12, "{:?}", nvrtc.version());
    // Older ones do not know the newest kind of device.
    let known = if nvrtc.version() < (12, 8) { 2 } else { 3 };
    for architecture in ["sm_80", "sm_90", "sm_100"].into_iter().take(known) {
        let options = ["--ptxas-options=-v", "--fmad=false"];
        let cubin = nvrtc.compile("kernels.cu", KERNELS, architecture, &options);
        let cubin = cubin.expect("it compiles");
        assert!(cubin.bytes.starts_with(b"\x7fELF"));
        for kernel in ["scale_add", "block_sums"] {
            let compiled = format!("Compiling entry function '{kernel}' for '{architecture}'");
            assert!(cubin.log.contains(&compiled), "{}", cubin.log);
        }
        let clean = cubin.log.matches("0 bytes spill stores, 0 bytes spill loads").count();
        assert_eq!(clean, 2, "{}", cubin.log);
        let text = String::from_utf8_lossy(&cubin.bytes);
        assert!(text.contains("scale_add"), "a kernel is found by its own name");
    }
}

#[test]
fn a_source_that_does_not_compile_is_told_with_its_line() {
    let Some(nvrtc) = nvrtc("messages of the kernels' compiler") else { return };
    let source = "extern \"C\" __global__ void wrong(int *to)\n{\n    *to = nothing;\n}\n";
    let error = nvrtc.compile("wrong.cu", source, "sm_90", &[]).expect_err("it is wrong");
    assert!(matches!(error, Error::Source { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("wrong.cu(3)") && text.contains("nothing"), "{text}");
    let error = nvrtc.compile("right.cu", "", "sm_1", &[]).expect_err("there is no such device");
    assert!(error.to_string().contains("architecture"), "{error}");
}

/// `[N, C, H, W]`, the channels side by side.
fn tensor(cudnn: &Cudnn, id: i64, dims: [i64; 4], element: i32) -> Result<Descriptor, Error> {
    let [_, c, h, w] = dims;
    Descriptor::new(cudnn, kind::TENSOR)?
        .set(attribute::TENSOR_DATA_TYPE, Values::Words(of::DATA_TYPE, &[element]))?
        .set(attribute::TENSOR_DIMENSIONS, Values::I64(&dims))?
        .set(attribute::TENSOR_STRIDES, Values::I64(&[c * h * w, 1, c * w, c]))?
        .set(attribute::TENSOR_ID, Values::I64(&[id]))?
        .set(attribute::TENSOR_ALIGNMENT, Values::I64(&[16]))?
        .finalize()
}

/// A 3x3 convolution of bf16, as a graph of one operation.
fn convolution(cudnn: &Cudnn) -> Result<Descriptor, Error> {
    let x = tensor(cudnn, 1, [128, 64, 56, 56], value::BF16)?;
    let w = tensor(cudnn, 2, [64, 64, 3, 3], value::BF16)?;
    let y = tensor(cudnn, 3, [128, 64, 56, 56], value::BF16)?;
    let f32 = Values::Words(of::DATA_TYPE, &[value::F32]);
    let mode = Values::Words(of::CONVOLUTION_MODE, &[value::CROSS_CORRELATION]);
    let both = Values::I64(&[1, 1]);
    let how = Descriptor::new(cudnn, kind::CONVOLUTION)?
        .set(attribute::CONVOLUTION_COMPUTE_TYPE, f32)?
        .set(attribute::CONVOLUTION_MODE, mode)?
        .set(attribute::CONVOLUTION_SPATIAL_DIMS, Values::I64(&[2]))?
        .set(attribute::CONVOLUTION_PRE_PADDINGS, both)?
        .set(attribute::CONVOLUTION_POST_PADDINGS, both)?
        .set(attribute::CONVOLUTION_DILATIONS, both)?
        .set(attribute::CONVOLUTION_STRIDES, both)?
        .finalize()?;
    let operation = Descriptor::new(cudnn, kind::CONVOLUTION_FORWARD)?
        .set(attribute::FORWARD_X, Values::Descriptors(&[&x]))?
        .set(attribute::FORWARD_W, Values::Descriptors(&[&w]))?
        .set(attribute::FORWARD_Y, Values::Descriptors(&[&y]))?
        .set(attribute::FORWARD_CONVOLUTION, Values::Descriptors(&[&how]))?
        .set(attribute::FORWARD_ALPHA, Values::F32(&[1.0]))?
        .set(attribute::FORWARD_BETA, Values::F32(&[0.0]))?
        .finalize()?;
    Descriptor::new(cudnn, kind::OPERATION_GRAPH)?
        .set(attribute::GRAPH_OPERATIONS, Values::Descriptors(&[&operation]))?
        .finalize()
}

#[test]
fn a_convolution_gets_a_plan_for_a_card_that_is_not_there() {
    let Some(cudnn) = cudnn("plans of cuDNN") else { return };
    let device = Descriptor::new(cudnn, kind::DEVICE_PROPERTIES)
        .and_then(|it| it.set(attribute::DEVICE_JSON, Values::Text(DEVICE.trim().as_bytes())))
        .and_then(Descriptor::finalize)
        .expect("it reads such properties");
    let graph = convolution(cudnn).expect("a graph");
    let mode = Values::Words(of::HEURISTIC_MODE, &[value::HEURISTIC_A]);
    let heuristic = Descriptor::new(cudnn, kind::ENGINE_HEURISTIC)
        .and_then(|it| it.set(attribute::HEURISTIC_GRAPH, Values::Descriptors(&[&graph])))
        .and_then(|it| it.set(attribute::HEURISTIC_MODE, mode))
        .and_then(|it| it.set(attribute::HEURISTIC_DEVICE, Values::Descriptors(&[&device])))
        .and_then(Descriptor::finalize)
        .expect("it proposes");
    // What a proposal is made of outlives the names that it has here.
    drop(graph);
    let proposed = heuristic.descriptors(attribute::HEURISTIC_RESULTS, kind::ENGINE_CONFIG);
    let proposed = proposed.expect("some");
    let plan = proposed.iter().find_map(|config| {
        Descriptor::new(cudnn, kind::EXECUTION_PLAN)
            .and_then(|it| it.set(attribute::PLAN_CONFIG, Values::Descriptors(&[config])))
            .and_then(|it| it.set(attribute::PLAN_DEVICE, Values::Descriptors(&[&device])))
            .and_then(Descriptor::finalize)
            .ok()
    });
    let plan = plan.expect("one of the proposals can be built");
    let graph = convolution(cudnn).expect("the same");
    let plan = Plan::new(plan, &graph).expect("it says what it needs");
    assert!(plan.workspace_bytes() < 1 << 30, "{}", plan.workspace_bytes());
    let json = plan.json().expect("it can be kept");
    assert!(json.starts_with(b"{") && json.ends_with(b"}"), "{}", String::from_utf8_lossy(&json));
    let again = Descriptor::new(cudnn, kind::EXECUTION_PLAN)
        .and_then(|it| it.set(attribute::PLAN_DEVICE, Values::Descriptors(&[&device])))
        .and_then(|it| it.set(attribute::PLAN_JSON, Values::Text(&json)))
        .and_then(Descriptor::finalize)
        .and_then(|it| Plan::new(it, &graph));
    assert_eq!(again.and_then(|plan| plan.json()), Ok(json));
    let wrong = convolution(cudnn).and_then(|it| Plan::new(it, &graph));
    assert!(matches!(wrong.err(), Some(Error::Refused { .. })), "a graph is no plan");
}

#[test]
fn what_cudnn_refuses_is_told_in_its_own_words() {
    let Some(cudnn) = cudnn("errors of cuDNN") else { return };
    let empty = Descriptor::new(cudnn, kind::TENSOR).and_then(Descriptor::finalize);
    let error = empty.err().expect("a tensor of nothing");
    let text = error.to_string();
    assert!(text.starts_with("cudnnBackendFinalize: ") && text.contains("CUDNN_STATUS_"), "{text}");
    let number = Values::Words(of::INT64, &[1]);
    let wrong = Descriptor::new(cudnn, kind::TENSOR).and_then(|it| it.set(900, number));
    assert!(matches!(wrong.err(), Some(Error::Refused { .. })));
}
