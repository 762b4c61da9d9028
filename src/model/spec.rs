//! Building and checking graphs: shape inference, TOML model files, costs.
