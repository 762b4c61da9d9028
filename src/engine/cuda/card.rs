//! The cards of this process: of those that it may see (`CUDA_VISIBLE_DEVICES`) the workers of all
//! processes of a machine take them by turns, by names that the kernel frees when they die. Each is
//! opened once for each type of elements, when the first engine wants it, with kernels compiled for
//! it.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use kintsugi_ffi::cuda::{
    Context, Cudnn, Device, Driver, Error, Found, Function, Missing, Module, Places,
};

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
fn refused(reason: &dyn Display) -> EngineError {
    EngineError::Refused(format!("{REFUSED}: {reason}"))
}

/// The first with conversions to bf16.
const ARCHITECTURE_MIN: u32 = 80;
/// Processes that share a card at most.
const SHARES_MAX: usize = 64;

/// Which of the machine's cards is a worker's, and as which of those that share it.
pub struct Place {
    device: Device,
    /// What no other card has.
    pub uuid: String,
    /// From 0 on.
    pub share: usize,
    /// Has the place's name until this process is gone; then who replaces it finds it free.
    _holder: Option<UnixDatagram>,
}

impl Place {
    /// Of this process's worker of that number, taken when it is first asked for, as are those of
    /// the workers before it.
    ///
    /// # Errors
    /// No driver or no card.
    pub fn of(worker: usize) -> Result<Arc<Self>, EngineError> {
        static OWN: Mutex<Vec<Arc<Place>>> = Mutex::new(Vec::new());
        let mut own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
        while own.len() <= worker {
            own.push(Arc::new(Self::take()?));
        }
        Ok(Arc::clone(&own[worker]))
    }

    /// The first card that nobody has, else the first that fewest have.
    fn take() -> Result<Self, EngineError> {
        let devices = devices()?;
        let first = devices.first();
        let first = first.ok_or_else(|| refused(&"this process sees no card"))?;
        for share in 0..SHARES_MAX {
            if let Some(place) = Self::named(&devices, share)? {
                return Ok(place);
            }
        }
        let uuid = first.uuid().map_err(|error| refused(&error))?;
        Ok(Self { device: first.clone(), uuid, share: SHARES_MAX, _holder: None })
    }

    /// The first card that nobody has as this one of those that share it.
    fn named(devices: &[Device], share: usize) -> Result<Option<Self>, EngineError> {
        for device in devices {
            let uuid = device.uuid().map_err(|error| refused(&error))?;
            let name = SocketAddr::from_abstract_name(format!("kintsugi-card-{uuid}-{share}"));
            if let Ok(holder) = name.and_then(|name| UnixDatagram::bind_addr(&name)) {
                let (device, _holder) = (device.clone(), Some(holder));
                return Ok(Some(Self { device, uuid, share, _holder }));
            }
        }
        Ok(None)
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
    /// That of this process's worker of that number, with kernels of this type of elements.
    ///
    /// # Errors
    /// No driver, no card, or no compiler: the same answer for as long as the process lives.
    pub fn of(worker: usize, element: ElementType) -> Result<Arc<Self>, EngineError> {
        type Opened = Arc<OnceLock<Result<Arc<Card>, EngineError>>>;
        static ALL: Mutex<BTreeMap<(String, bool), Opened>> = Mutex::new(BTreeMap::new());
        let place = Place::of(worker)?;
        let key = (place.uuid.clone(), element == ElementType::Bf16);
        let opened = {
            let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(all.entry(key).or_default())
        };
        opened.get_or_init(|| Self::open(&place.device, element).map(Arc::new)).clone()
    }

    fn open(device: &Device, element: ElementType) -> Result<Self, EngineError> {
        let architecture = architecture(device).map_err(|reason| refused(&reason))?;
        let context = Context::of(device).map_err(|error| refused(&error))?;
        let places = Places::usual(None);
        let (_, nvrtc) = Found::nvrtc(&places).map_err(|missing| refused(&fetch(&missing)))?;
        let (_, cudnn) = Found::cudnn(&places).map_err(|missing| refused(&fetch(&missing)))?;
        let code = kernels::compiled(&nvrtc, element, &architecture);
        let code = code.map_err(|error| refused(&error))?;
        let module = Module::load(&context, &code).map_err(|error| refused(&error))?;
        let (code, version) = (xxh3_64(&code), cudnn.version());
        let name = device.name().map_err(|error| refused(&error))?;
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

fn fetch(missing: &Missing) -> String {
    format!("{missing}; `cluster-scripts/setup.sh --cuda` fetches it")
}

/// What machine code it runs.
fn architecture(device: &Device) -> Result<String, String> {
    let architecture = device.architecture().map_err(|error| error.to_string())?;
    let number = architecture.trim_start_matches("sm_").parse::<u32>();
    match number.is_ok_and(|number| number < ARCHITECTURE_MIN) {
        true => Err(format!(
            "this card is of {architecture}, and kernels need sm_{ARCHITECTURE_MIN} or newer"
        )),
        false => Ok(architecture),
    }
}

/// Every card that this process sees.
fn devices() -> Result<Vec<Device>, EngineError> {
    let driver = Driver::open(None).map_err(|missing| refused(&missing))?;
    driver.devices().map_err(|error| refused(&error))
}

/// How many there are.
///
/// # Errors
/// No driver, or its.
pub fn count() -> Result<usize, EngineError> {
    devices().map(|devices| devices.len())
}

/// Longest answer of the driver: seconds where many cards were asleep.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Whether this process sees a card, which can compute with what is installed, as so many workers
/// of all ranks would. None is opened.
///
/// # Errors
/// It sees one that cannot, and why; or the driver does not answer.
pub fn is_there(workers: usize) -> Result<bool, String> {
    let (send, answer) = channel();
    // Nobody listens any more where it took too long.
    let ask = move || drop(send.send(usable()));
    std::thread::Builder::new().spawn(ask).map_err(|error| error.to_string())?;
    let silent = |_| format!("the driver does not answer within {} s", ANSWER_MAX.as_secs());
    let kinds = answer.recv_timeout(ANSWER_MAX).map_err(silent)??;
    let Some(first) = kinds.first() else { return Ok(false) };
    if let Some(other) = kinds.iter().find(|kind| workers > 1 && *kind != first) {
        return Err(two_kinds(first, other));
    }
    Ok(true)
}

/// The kinds of the cards, and all libraries loaded for them.
fn usable() -> Result<Vec<String>, String> {
    let kinds = kinds()?;
    if !kinds.is_empty() {
        let places = Places::usual(None);
        Found::nvrtc(&places).map_err(|missing| fetch(&missing))?;
        Found::cudnn(&places).map_err(|missing| fetch(&missing))?;
    }
    Ok(kinds)
}

/// Names and architectures of all cards that can compute.
fn kinds() -> Result<Vec<String>, String> {
    let devices = match Driver::open(None).map(|driver| driver.devices()) {
        Err(Missing::Nowhere { .. }) => return Ok(Vec::new()),
        Err(Missing::Call(error)) | Ok(Err(error)) if error.is_no_device() => return Ok(Vec::new()),
        Err(missing) => return Err(missing.to_string()),
        Ok(Err(error)) => return Err(error.to_string()),
        Ok(Ok(devices)) => devices,
    };
    let kind = |device: &Device| {
        let name = device.name().map_err(|error| error.to_string())?;
        architecture(device).map(|architecture| format!("{name} {architecture}"))
    };
    devices.iter().map(kind).collect()
}

fn two_kinds(one: &str, other: &str) -> String {
    format!(
        "workers compute on cards of one kind, and these would on {one} and {other}: \
         CUDA_VISIBLE_DEVICES with cards of one kind, or device.kind = \"cpu\""
    )
}

/// What decides the last bits on the cards of so many workers: the same on all.
///
/// # Errors
/// As of `Card::of`; or the cards are of two kinds: a micro-batch's bits would depend on which of
/// the workers was free.
pub fn arithmetic(workers: usize, element: ElementType) -> Result<String, EngineError> {
    let first = Card::of(0, element)?;
    for worker in 1..workers {
        let other = Card::of(worker, element)?;
        if other.arithmetic != first.arithmetic {
            let reason = two_kinds(&first.arithmetic, &other.arithmetic);
            return Err(refused(&reason));
        }
    }
    Ok(first.arithmetic.clone())
}
