//! What decides the last bits of what an engine computes, apart from the program: the library and
//! the instructions that it uses here. Processors of one kind agree, others need not.

use kintsugi_ffi::dnnl;

/// The variable that keeps oneDNN from newer instructions.
const LIMIT: &str = "ONEDNN_MAX_CPU_ISA";

/// Instruction sets that oneDNN chooses from, each with all before it; those of `avx2_vnni` stand
/// beside them.
const SETS: [&str; 9] = [
    "sse41",
    "avx",
    "avx2",
    "avx512_core",
    "avx512_core_vnni",
    "avx512_core_bf16",
    "avx512_core_fp16",
    "avx512_core_amx",
    "avx512_core_amx_fp16",
];
/// What all that it lists beside them have.
const COMMON: &str = "avx2";

/// What this process computes with, for example `oneDNN 3.2.0 avx512_core_amx`.
pub fn arithmetic() -> String {
    let (major, minor, patch) = dnnl::version();
    format!("oneDNN {major}.{minor}.{patch} {}", isa())
}

/// The instruction set that it uses here.
pub fn isa() -> String {
    dnnl::isa()
}

/// What to do so that processes that compute with these have equal bits.
pub fn cure(kinds: &[String]) -> String {
    let parts = || kinds.iter().filter_map(|kind| kind.rsplit_once(' '));
    let library = parts().next().map(|(library, _)| library);
    if parts().any(|(other, _)| Some(other) != library) {
        return "start all ranks with one version of the library".into();
    }
    let place = |isa: &str| SETS.iter().position(|set| *set == isa);
    let least = parts().filter_map(|(_, isa)| place(isa)).min();
    let known = parts().all(|(_, isa)| place(isa).is_some());
    let isa = least.filter(|_| known).map_or(COMMON, |least| SETS[least]).to_uppercase();
    format!("for equal bits start all ranks with {LIMIT}={isa}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cured(kinds: &[&str]) -> String {
        cure(&kinds.iter().map(|kind| (*kind).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn what_all_have_is_the_cure() {
        assert!(arithmetic().starts_with("oneDNN 3."), "{}", arithmetic());
        let amx = "oneDNN 3.2.0 avx512_core_amx";
        assert!(cured(&[amx, "oneDNN 3.2.0 avx512_core"]).ends_with("=AVX512_CORE"));
        assert!(cured(&["oneDNN 3.2.0 avx2", amx, amx]).ends_with("ISA=AVX2"));
        assert!(cured(&["oneDNN 3.2.0 avx2_vnni", amx]).ends_with("ISA=AVX2"));
        assert!(cured(&["oneDNN 3.1.0 avx2", amx]).contains("one version"));
    }
}
