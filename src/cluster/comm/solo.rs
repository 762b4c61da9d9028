//! `solo` communicator.
