//! Lays the tensors of a graph out in flat vectors.
