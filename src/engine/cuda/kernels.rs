//! The source of all kernels, and the machine code that NVRTC makes of it for a kind of card.

use std::path::{Path, PathBuf};

use kintsugi_ffi::cuda::{Cubin, Error, Nvrtc};
use kintsugi_ffi::os;

use crate::engine::plan::tensor::ElementType;

/// What comes first; then the kernels of each element type; then those that have none.
const PRELUDE: &str = include_str!("kernels/prelude.cu");
const ELEMENTS: [&str; 2] =
    [include_str!("kernels/element_f32.cu"), include_str!("kernels/element_bf16.cu")];
const OF_ELEMENTS: [&str; 9] = [
    include_str!("kernels/elementwise.cu"),
    include_str!("kernels/convolution.cu"),
    include_str!("kernels/depthwise.cu"),
    include_str!("kernels/pooling.cu"),
    include_str!("kernels/pooling_groups.cu"),
    include_str!("kernels/lrn.cu"),
    SOFTMAX,
    include_str!("kernels/norm.cu"),
    include_str!("kernels/norm_planes.cu"),
];
/// Losses are f32's, whatever activations are.
const SOFTMAX: &str = include_str!("kernels/softmax.cu");
const OF_NONE: [&str; 4] = [
    include_str!("kernels/copy.cu"),
    include_str!("kernels/statistics.cu"),
    include_str!("kernels/dropout.cu"),
    include_str!("kernels/adaptive.cu"),
];

/// As both compilers round alike: no multiplication is joined with an addition unless it says so.
const OPTIONS: [&str; 2] = ["--std=c++17", "--fmad=false"];

/// Where machine code is kept, below the user's folder for such things.
const FOLDER: &str = "kintsugi/cuda";

/// What of the source computes with activations of this type: others would take seconds to
/// compile.
pub fn source(element: ElementType) -> String {
    let [f32, bf16] = ELEMENTS;
    let first = match element {
        ElementType::Bf16 => &[f32, SOFTMAX, bf16][..],
        _ => &[f32],
    };
    [&[PRELUDE], &OF_NONE[..], first, &OF_ELEMENTS].concat().join("\n")
}

/// Compiles the kernels of one type of elements for an architecture.
///
/// # Errors
/// NVRTC's; with its messages where it does not take the source.
pub fn compile(
    nvrtc: &Nvrtc,
    element: ElementType,
    architecture: &str,
    more: &[&str],
) -> Result<Cubin, Error> {
    let options = [&OPTIONS[..], more].concat();
    nvrtc.compile("kernels.cu", &source(element), architecture, &options)
}

/// The same, from a file where it was compiled before: that takes seconds. A file that cannot be
/// read, is damaged or cannot be written changes nothing but the time.
///
/// # Errors
/// As of `compile`.
pub fn compiled(nvrtc: &Nvrtc, element: ElementType, architecture: &str) -> Result<Vec<u8>, Error> {
    let ((major, minor), options) = (nvrtc.version(), OPTIONS.join(" "));
    // Builds of one version differ in size, if in anything.
    let build = std::fs::metadata(nvrtc.place()).map_or(0, |file| file.len());
    let of = format!("{major}.{minor} {build} {architecture} {options}");
    let key = format!("{of}\n{}", source(element));
    let file = folder().map(|folder| folder.join(format!("{:032x}.cubin", hash(key.as_bytes()))));
    if let Some(kept) = file.as_deref().and_then(kept) {
        return Ok(kept);
    }
    let code = compile(nvrtc, element, architecture, &[])?.bytes;
    if let Some(file) = file {
        // Whoever cannot keep it compiles again.
        let _ = keep(&file, &code);
    }
    Ok(code)
}

fn hash(bytes: &[u8]) -> u128 {
    xxhash_rust::xxh3::xxh3_128(bytes)
}

fn folder() -> Option<PathBuf> {
    let variable = |name| os::variable(name).filter(|value| !value.is_empty());
    let home = || variable("HOME").map(|home| Path::new(&home).join(".cache"));
    Some(variable("XDG_CACHE_HOME").map(PathBuf::from).or_else(home)?.join(FOLDER))
}

/// What a file holds, if it is whole: its hash comes first.
fn kept(file: &Path) -> Option<Vec<u8>> {
    let bytes = std::fs::read(file).ok()?;
    let (own, code) = bytes.split_at_checked(HASH_BYTES)?;
    (hash(code).to_le_bytes() == own).then(|| code.to_vec())
}

const HASH_BYTES: usize = 16;

/// Whole at any time for whoever else looks.
fn keep(file: &Path, code: &[u8]) -> std::io::Result<()> {
    let part = file.with_extension(format!("{}.part", std::process::id()));
    std::fs::create_dir_all(file.parent().unwrap_or(file))?;
    let whole = [&hash(code).to_le_bytes()[..], code].concat();
    let written = std::fs::write(&part, whole).and_then(|()| std::fs::rename(&part, file));
    written.inspect_err(|_| drop(std::fs::remove_file(&part)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_code_is_kept_whole_or_not_at_all() {
        let name = format!("kintsugi-cubin-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let file = folder.join("a.cubin");
        assert_eq!(kept(&file), None);
        keep(&file, b"code").expect("a folder of our own");
        assert_eq!(kept(&file).as_deref(), Some(&b"code"[..]));
        let mut damaged = std::fs::read(&file).expect("it is there");
        damaged[HASH_BYTES] ^= 1;
        for bytes in [&damaged[..], &damaged[..3]] {
            std::fs::write(&file, bytes).expect("as before");
            assert_eq!(kept(&file), None);
        }
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}
