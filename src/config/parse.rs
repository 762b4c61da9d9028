//! Reads TOML and `-s` overrides into a `Config`; refuses with key, value and what to write instead.
