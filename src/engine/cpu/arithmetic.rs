//! What decides the last bits of what an engine computes, apart from the program: the library, the
//! instructions that it uses here, and the caches, after which it cuts long sums into pieces.
//! Processors of one kind agree, others need not.

use std::path::Path;

use kintsugi_ffi::dnnl;

use crate::observe::build;

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

/// Behind an instruction set: with shorter vectors than it has.
const HINTED: &str = "+ymm";

/// Where the kernel tells of the first processor's caches; the others' are alike.
const CACHES: &str = "/sys/devices/system/cpu/cpu0/cache";
/// Before their sizes, from the first level on.
const BESIDE: &str = ", caches ";
/// Entries that are looked at.
const CACHES_MAX: usize = 8;

/// What this process computes with, for example `oneDNN 3.2.0-5d1f09c2 avx512_core_amx, caches 48K
/// 2048K`. A library of one version may be built otherwise, and the loader's path decides which is
/// taken.
pub fn arithmetic() -> String {
    let (major, minor, patch) = dnnl::version();
    let build = dnnl::file().and_then(|file| build::of(&file).ok());
    let build = build.map_or_else(String::new, |build| format!("-{:08x}", build >> 32));
    let vectors = if dnnl::prefers_ymm() { HINTED } else { "" };
    let caches = caches(Path::new(CACHES));
    format!("oneDNN {major}.{minor}.{patch}{build} {}{vectors}{caches}", isa())
}

/// Sizes of the caches of data; nothing where the kernel does not tell them.
fn caches(folder: &Path) -> String {
    let of = |index: usize| {
        let read =
            |file: &str| std::fs::read_to_string(folder.join(format!("index{index}/{file}")));
        let holds_data = read("type").is_ok_and(|kind| kind.trim() != "Instruction");
        read("size").ok().filter(|_| holds_data)
    };
    let sizes: Vec<String> = (0..CACHES_MAX).filter_map(of).collect();
    let sizes: Vec<&str> = sizes.iter().map(|size| size.trim()).collect();
    if sizes.is_empty() { String::new() } else { format!("{BESIDE}{}", sizes.join(" ")) }
}

/// The instruction set that it uses here.
pub fn isa() -> String {
    dnnl::isa()
}

/// What to do so that processes that compute with these have equal bits.
pub fn cure(kinds: &[String]) -> String {
    let without = |kind: &String| kind.split(BESIDE).next().unwrap_or_default().to_owned();
    let mut computing: Vec<String> = kinds.iter().map(without).collect();
    computing.sort();
    computing.dedup();
    if computing.len() == 1 {
        return "for equal bits start all ranks on processors of one kind".into();
    }
    let parts = || computing.iter().filter_map(|kind| kind.rsplit_once(' '));
    let library = parts().next().map(|(library, _)| library);
    if parts().any(|(other, _)| Some(other) != library) {
        return "start all ranks with one file of the library (LD_LIBRARY_PATH comes before what \
                kintsugi was built with)"
            .into();
    }
    let hinted = |isa: &str| isa.trim_end_matches(HINTED).to_owned();
    let sets: Vec<String> = parts().map(|(_, isa)| hinted(isa)).collect();
    if sets.iter().all(|set| *set == sets[0]) {
        return "start all ranks with one ONEDNN_CPU_ISA_HINTS".into();
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
        let own = arithmetic();
        let (library, _) = own.split_once(", ").unwrap_or((&own, ""));
        let build = library.split(' ').nth(1).and_then(|version| version.split_once('-'));
        assert!(own.starts_with("oneDNN 3.") && build.is_some_and(|(_, b)| b.len() == 8), "{own}");
        let amx = "oneDNN 3.2.0 avx512_core_amx";
        assert!(cured(&[amx, "oneDNN 3.2.0 avx512_core"]).ends_with("=AVX512_CORE"));
        assert!(cured(&["oneDNN 3.2.0 avx2", amx, amx]).ends_with("ISA=AVX2"));
        assert!(cured(&["oneDNN 3.2.0 avx2_vnni", amx]).ends_with("ISA=AVX2"));
        for other in ["oneDNN 3.1.0 avx2", "oneDNN 3.2.0-00000001 avx512_core_amx"] {
            assert!(cured(&[other, amx]).contains("one file of the library"));
        }
        assert!(cured(&[&format!("{amx}+ymm"), amx]).ends_with("one ONEDNN_CPU_ISA_HINTS"));
        let [small, large] = ["32K 512K", "48K 2048K"].map(|size| format!("{amx}, caches {size}"));
        assert!(cured(&[&small, &large, &small]).ends_with("processors of one kind"));
        assert!(cured(&[&small, "oneDNN 3.2.0 avx2, caches 32K 512K"]).ends_with("ISA=AVX2"));
    }

    #[test]
    fn caches_of_data_are_told_by_size() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(caches(folder.path()), "");
        for (index, kind, size) in
            [(0, "Data", "32K"), (1, "Instruction", "64K"), (2, "Unified", "512K")]
        {
            let own = folder.path().join(format!("index{index}"));
            std::fs::create_dir(&own).expect("made");
            std::fs::write(own.join("type"), format!("{kind}\n")).expect("written");
            std::fs::write(own.join("size"), format!("{size}\n")).expect("written");
        }
        assert_eq!(caches(folder.path()), ", caches 32K 512K");
    }
}
