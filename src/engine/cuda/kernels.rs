//! The source of all kernels, and the machine code that NVRTC makes of it for a kind of card.

use kintsugi_ffi::cuda::{Cubin, Error, Nvrtc};

/// What comes first; then the kernels of each element type; then those that have none.
const PRELUDE: &str = include_str!("kernels/prelude.cu");
const ELEMENTS: [&str; 2] =
    [include_str!("kernels/element_f32.cu"), include_str!("kernels/element_bf16.cu")];
const OF_ELEMENTS: [&str; 6] = [
    include_str!("kernels/elementwise.cu"),
    include_str!("kernels/convolution.cu"),
    include_str!("kernels/pooling.cu"),
    include_str!("kernels/lrn.cu"),
    include_str!("kernels/softmax.cu"),
    include_str!("kernels/norm.cu"),
];
const OF_NONE: [&str; 4] = [
    include_str!("kernels/copy.cu"),
    include_str!("kernels/statistics.cu"),
    include_str!("kernels/dropout.cu"),
    include_str!("kernels/adaptive.cu"),
];

/// As both compilers round alike: no multiplication is joined with an addition unless it says so.
const OPTIONS: [&str; 2] = ["--std=c++17", "--fmad=false"];

/// All of it, as one text.
pub fn source() -> String {
    let mut parts = vec![PRELUDE];
    for element in ELEMENTS {
        parts.push(element);
        parts.extend(OF_ELEMENTS);
    }
    parts.extend(OF_NONE);
    parts.join("\n")
}

/// Compiles all kernels for an architecture.
///
/// # Errors
/// NVRTC's; with its messages where it does not take the source.
pub fn compile(nvrtc: &Nvrtc, architecture: &str, more: &[&str]) -> Result<Cubin, Error> {
    let options = [&OPTIONS[..], more].concat();
    nvrtc.compile("kernels.cu", &source(), architecture, &options)
}
