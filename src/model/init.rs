//! First weights, a pure function of (seed, tensor).
