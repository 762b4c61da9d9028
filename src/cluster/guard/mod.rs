//! Hung ranks are made dead ranks. ULFM sees deaths, not silence, and no survivor can
//! expel a process that still lives: so each rank under mpirun starts a *guardian*, a process of
//! its own that watches a page of shared words and kills its rank when that stands still. Ranks
//! that merely wait for another one are never killed.
//!
//! `board` what the words mean · `report` the rank's side: it says what it does · `judge` decides
//! (pure) · `watch` the guardian's side: samples, kills, cleans up · `last_words` why a process
//! ended, for whoever reports it · `ends` those of a whole attempt · `start` the guardian is
//! started · `forgotten` a replacement that its launcher never answers starts itself again.

pub mod board;
pub mod ends;
pub mod forgotten;
pub mod judge;
pub mod last_words;
pub mod report;
pub mod segment;
pub mod start;
pub mod watch;

pub use start::{Charge, start};
