//! Where arithmetic runs: `cpu` through oneDNN.
