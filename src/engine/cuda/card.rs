//! The card of this process: the first that it may see (`CUDA_VISIBLE_DEVICES` says which). It is
//! opened once for each type of elements, when the first engine wants it, with kernels compiled for
//! it.

use std::sync::{Arc, OnceLock};

use kintsugi_ffi::cuda::{Context, Driver, Error, Found, Function, Module, Places};

use xxhash_rust::xxh3::xxh3_64;

use super::kernels;
use crate::engine::error::EngineError;
use crate::engine::plan::tensor::ElementType;

impl From<Error> for EngineError {
    fn from(error: Error) -> Self {
        match error.ends_the_process() {
            true => Self::Lost(format!("the card is lost to this process: {error}")),
            false => Self::Device(error.to_string()),
        }
    }
}

/// What such arithmetic begins with.
pub const KIND: &str = "CUDA";

/// A card with its kernels.
pub struct Card {
    /// Everything that is made on it belongs to this.
    pub context: Arc<Context>,
    /// What decides the last bits: the kind of card, and its machine code by hash.
    pub arithmetic: String,
    module: Module,
}

impl Card {
    /// The process's own, with kernels of this type of elements.
    ///
    /// # Errors
    /// No driver, no card, or no compiler: the same answer for as long as the process lives.
    pub fn own(element: ElementType) -> Result<Arc<Self>, EngineError> {
        type Opened = OnceLock<Result<Arc<Card>, EngineError>>;
        static OWN: [Opened; 2] = [OnceLock::new(), OnceLock::new()];
        let own = &OWN[usize::from(element == ElementType::Bf16)];
        own.get_or_init(|| Self::open(element).map(Arc::new)).clone()
    }

    fn open(element: ElementType) -> Result<Self, EngineError> {
        let blame = |what: &str| EngineError::Device(format!("device.kind: \"cuda\": {what}"));
        let driver = Driver::open(None).map_err(|missing| blame(&missing.to_string()))?;
        let devices = driver.devices()?;
        let device = devices.first().ok_or_else(|| blame("this process sees no card"))?;
        let context = Context::of(device)?;
        let found = Found::look(&Places::usual(None));
        let (_, nvrtc) = found.nvrtc.map_err(|missing| {
            blame(&format!("{missing}; `cluster-scripts/setup.sh --cuda` fetches it"))
        })?;
        let architecture = device.architecture()?;
        let code = kernels::compiled(&nvrtc, element, &architecture)?;
        let module = Module::load(&context, &code)?;
        let arithmetic = format!("{KIND} {architecture} {:016x}", xxh3_64(&code));
        Ok(Self { context, arithmetic, module })
    }

    /// A kernel.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn kernel(&self, name: &str) -> Result<Function, EngineError> {
        Ok(self.module.function(name)?)
    }
}
