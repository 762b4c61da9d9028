//! The order of samples: pure functions of (seed, epoch, position), O(1) memory (DESIGN 4.7).
