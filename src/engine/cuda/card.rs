//! The card of this process: of those that it may see (`CUDA_VISIBLE_DEVICES`) the processes of a
//! machine take them by turns, by names that the kernel frees when they die. It is opened once for
//! each type of elements, when the first engine wants it, with kernels compiled for it.

use std::fmt::Display;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Arc, OnceLock};

use kintsugi_ffi::cuda::{Context, Cudnn, Device, Driver, Error, Found, Function, Module, Places};

use xxhash_rust::xxh3::xxh3_64;

use super::kernels;
use crate::engine::error::EngineError;
use crate::engine::plan::tensor::ElementType;

impl From<Error> for EngineError {
    fn from(error: Error) -> Self {
        if error.is_out_of_memory() {
            return Self::Lost(format!("the card is full: {error}"));
        }
        match error.ends_the_process() {
            true => Self::Lost(format!("the card is lost to this process: {error}")),
            false => Self::Device(error.to_string()),
        }
    }
}

/// What such arithmetic begins with.
pub const KIND: &str = "CUDA";

/// What a refusal begins with.
const REFUSED: &str = "device.kind: \"cuda\"";
/// The first with conversions to bf16.
const ARCHITECTURE_MIN: u32 = 80;
/// Processes that share a card at most.
const SHARES_MAX: usize = 64;

/// Which of the machine's cards is this process's, and as which of those that share it.
pub struct Place {
    device: Device,
    /// From 0 on.
    pub share: usize,
    /// Has the place's name until this process is gone; then who replaces it finds it free.
    _holder: Option<UnixDatagram>,
}

impl Place {
    /// This process's own, taken when it is first asked for.
    ///
    /// # Errors
    /// No driver or no card.
    pub fn own() -> Result<&'static Self, EngineError> {
        static OWN: OnceLock<Result<Place, EngineError>> = OnceLock::new();
        OWN.get_or_init(Self::take).as_ref().map_err(Clone::clone)
    }

    /// The first card that nobody has, else the first that fewest have.
    fn take() -> Result<Self, EngineError> {
        let blame = |error: &dyn Display| EngineError::Refused(format!("{REFUSED}: {error}"));
        let driver = Driver::open(None).map_err(|missing| blame(&missing))?;
        let devices = driver.devices().map_err(|error| blame(&error))?;
        let first = devices.first().ok_or_else(|| blame(&"this process sees no card"))?;
        for share in 0..SHARES_MAX {
            for device in &devices {
                let uuid = device.uuid().map_err(|error| blame(&error))?;
                let name = SocketAddr::from_abstract_name(format!("kintsugi-card-{uuid}-{share}"));
                if let Ok(holder) = name.and_then(|name| UnixDatagram::bind_addr(&name)) {
                    let (device, _holder) = (device.clone(), Some(holder));
                    return Ok(Self { device, share, _holder });
                }
            }
        }
        Ok(Self { device: first.clone(), share: SHARES_MAX, _holder: None })
    }
}

/// A card with its kernels.
pub struct Card {
    /// Everything that is made on it belongs to this.
    pub context: Arc<Context>,
    /// What plans are made and executed by.
    pub cudnn: Cudnn,
    /// What decides the last bits: the card's name and architecture, its machine code by hash, and
    /// cuDNN's version, which with the name decides its plans.
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
        let blame = |error: &dyn Display| EngineError::Refused(format!("{REFUSED}: {error}"));
        let Place { device, .. } = Place::own()?;
        let context = Context::of(device).map_err(|error| blame(&error))?;
        let places = Places::usual(None);
        let fetch = |missing: &dyn Display| {
            blame(&format_args!("{missing}; `cluster-scripts/setup.sh --cuda` fetches it"))
        };
        let (_, nvrtc) = Found::nvrtc(&places).map_err(|missing| fetch(&missing))?;
        let (_, cudnn) = Found::cudnn(&places).map_err(|missing| fetch(&missing))?;
        let architecture = device.architecture().map_err(|error| blame(&error))?;
        let number = architecture.trim_start_matches("sm_").parse::<u32>();
        if number.is_ok_and(|number| number < ARCHITECTURE_MIN) {
            return Err(blame(&format_args!(
                "this card is of {architecture}, and kernels need sm_{ARCHITECTURE_MIN} or newer"
            )));
        }
        let code = kernels::compiled(&nvrtc, element, &architecture);
        let code = code.map_err(|error| blame(&error))?;
        let module = Module::load(&context, &code).map_err(|error| blame(&error))?;
        let (code, version) = (xxh3_64(&code), cudnn.version());
        let name = device.name().map_err(|error| blame(&error))?;
        let arithmetic = format!("{KIND} {name} {architecture} {code:016x} cuDNN {version}");
        Ok(Self { context, cudnn, arithmetic, module })
    }

    /// A kernel.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn kernel(&self, name: &str) -> Result<Function, EngineError> {
        Ok(self.module.function(name)?)
    }
}
