//! The tiers of out-of-core training: an arena near the processor, in which all is computed, and a
//! far one for what does not fit. One thread for each direction copies between them while others
//! compute. What is copied when is the plan's business; bytes come back as they went.

pub mod copies;
pub mod far;
mod lanes;
pub mod link;
