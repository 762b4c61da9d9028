//! Layers, one file each: forward, backward, what is saved between, cost.
