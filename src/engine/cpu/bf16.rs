//! What a processor has for bf16, by the name that oneDNN gives its instruction set.

use crate::engine::error::EngineError;
use crate::engine::plan::tensor::ElementType;

/// How it computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    /// With instructions for bf16.
    Native,
    /// oneDNN widens to f32 and rounds the result.
    Emulated,
    /// oneDNN has no kernels for training.
    Lacking,
}

/// What `isa` has. Of names that oneDNN may learn later its kernels decide.
pub fn support(isa: &str) -> Support {
    match isa {
        "avx512_core" | "avx512_core_vnni" => Support::Emulated,
        "sse41" | "avx" | "avx2" | "avx2_vnni" | "avx2_vnni_2" => Support::Lacking,
        _ => Support::Native,
    }
}

/// Refuses bf16 where nothing computes it.
pub fn check(element: ElementType, isa: &str) -> Result<(), EngineError> {
    match element {
        ElementType::Bf16 if support(isa) == Support::Lacking => {
            Err(EngineError::Refused(format!(
                "device.precision: \"bf16\" needs a processor with AVX-512, this one has {isa}; \
                 write \"f32\""
            )))
        }
        _ => Ok(()),
    }
}

/// What to say of a run in this precision, once.
pub fn remark(element: ElementType, isa: &str) -> Option<String> {
    let slow = element == ElementType::Bf16 && support(isa) == Support::Emulated;
    slow.then(|| {
        format!(
            "device.precision: this processor ({isa}) has neither AMX nor AVX512-BF16, so bf16 is \
             emulated: a step takes 2 to 3 times as long as with \"f32\" (seen with resnet18)"
        )
    })
}

/// What this processor computes in: tests of both leave bf16 out where it cannot be had.
#[cfg(test)]
pub fn computed_here() -> impl Iterator<Item = ElementType> {
    let isa = kintsugi_ffi::dnnl::isa();
    let both = [ElementType::F32, ElementType::Bf16].into_iter();
    both.filter(move |element| check(*element, &isa).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_no_instructions_for_bf16_is_told_how_slow_it_is() {
        let told = |isa| remark(ElementType::Bf16, isa).is_some();
        for isa in ["avx512_core_bf16", "avx512_core_amx", "avx512_core_fp16", "avx10_1_512"] {
            assert!(!told(isa) && check(ElementType::Bf16, isa).is_ok(), "{isa}");
        }
        for isa in ["avx512_core", "avx512_core_vnni"] {
            assert!(told(isa) && check(ElementType::Bf16, isa).is_ok(), "{isa}");
            assert_eq!(remark(ElementType::F32, isa), None);
        }
        for isa in ["sse41", "avx", "avx2", "avx2_vnni_2"] {
            let refusal = check(ElementType::Bf16, isa).map_err(|error| error.to_string());
            assert!(refusal.is_err_and(|text| text.contains(isa) && text.contains("\"f32\"")));
            assert!(check(ElementType::F32, isa).is_ok() && !told(isa));
        }
    }
}
