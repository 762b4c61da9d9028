//! The recovery ladder: a pure machine (`machine`) and the driver that performs it (`driver`).
