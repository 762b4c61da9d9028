//! What a micro-batch whose values leave is expected to take, and what one took: for who tells it.

use super::play::Forecast;

/// Of one batch size. Copies of weights that stay are laid out once a state: that time is in
/// neither figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Expected {
    /// Samples of the micro-batch.
    pub samples: usize,
    /// Bytes that it takes of the near tier.
    pub near_bytes: u64,
    /// Bytes of the far tier.
    pub far_bytes: u64,
    /// By measured prices.
    pub forecast: Forecast,
    /// The quickest of a few micro-batches, once they are computed.
    pub took_seconds: Option<f64>,
}
