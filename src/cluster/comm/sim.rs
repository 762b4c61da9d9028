//! `sim` communicator.
