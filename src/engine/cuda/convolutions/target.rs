//! The card that plans are made for: one at hand, or one that need not be there.

use kintsugi_ffi::cuda::cudnn::{Descriptor, Handle, Values};
use kintsugi_ffi::cuda::sys::cudnn::{attribute, kind, of};
use kintsugi_ffi::cuda::{Cudnn, Error};

/// What plans are made for.
pub enum Target<'a> {
    /// A card at hand, on which they are executed.
    Card(&'a Handle),
    /// One of these properties: nothing is executed.
    Described(&'a Cudnn, Descriptor),
}

impl<'a> Target<'a> {
    /// A card of these properties, as cuDNN writes them in JSON.
    ///
    /// # Errors
    /// cuDNN's: something is missing there.
    pub fn described(cudnn: &'a Cudnn, json: &str) -> Result<Self, Error> {
        let device = Descriptor::new(cudnn, kind::DEVICE_PROPERTIES)?
            .set(attribute::DEVICE_JSON, Values::Text(json.trim().as_bytes()))?
            .finalize()?;
        Ok(Self::Described(cudnn, device))
    }

    /// The library.
    pub fn cudnn(&self) -> &Cudnn {
        match self {
            Self::Card(handle) => handle.cudnn(),
            Self::Described(cudnn, _) => cudnn,
        }
    }

    /// A graph of one operation.
    pub fn graph(&self, operation: &Descriptor) -> Result<Descriptor, Error> {
        let graph = Descriptor::new(self.cudnn(), kind::OPERATION_GRAPH)?
            .set(attribute::GRAPH_OPERATIONS, Values::Descriptors(&[operation]))?;
        match self {
            Self::Card(handle) => graph.set(attribute::GRAPH_HANDLE, Values::Handle(handle))?,
            Self::Described(..) => graph,
        }
        .finalize()
    }

    /// What heuristics propose for a graph, the best first.
    pub fn proposed(&self, graph: &Descriptor, mode: i32) -> Result<Vec<Descriptor>, Error> {
        let mode = [mode];
        let heuristic = Descriptor::new(self.cudnn(), kind::ENGINE_HEURISTIC)?
            .set(attribute::HEURISTIC_GRAPH, Values::Descriptors(&[graph]))?
            .set(attribute::HEURISTIC_MODE, Values::Words(of::HEURISTIC_MODE, &mode))?;
        match self {
            // The graph knows it.
            Self::Card(_) => heuristic,
            Self::Described(_, device) => {
                heuristic.set(attribute::HEURISTIC_DEVICE, Values::Descriptors(&[device]))?
            }
        }
        .finalize()?
        .descriptors(attribute::HEURISTIC_RESULTS, kind::ENGINE_CONFIG)
    }

    /// A plan from a proposal or from JSON.
    pub fn plan(&self, name: i32, values: Values<'_>) -> Result<Descriptor, Error> {
        // JSON comes before the card that it is read for.
        let plan = Descriptor::new(self.cudnn(), kind::EXECUTION_PLAN)?.set(name, values)?;
        match self {
            Self::Card(handle) => plan.set(attribute::PLAN_HANDLE, Values::Handle(handle))?,
            Self::Described(_, device) => {
                plan.set(attribute::PLAN_DEVICE, Values::Descriptors(&[device]))?
            }
        }
        .finalize()
    }
}
