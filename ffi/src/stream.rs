//! Streaming (non-temporal) stores for the update of resident state.
