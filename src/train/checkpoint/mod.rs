//! Checkpoints as in DESIGN 5.
