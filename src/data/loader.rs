//! Decode threads that run ahead of the workers.
