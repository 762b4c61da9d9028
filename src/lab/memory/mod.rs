//! Experiments on memory (Imai et al.; Negishi et al.): a file of measures, each of which becomes a
//! part of one page. A part says of itself how its figures came about: by placement alone, by steps
//! that were computed, or from a model of a driver.

pub mod file;
mod fits;
pub mod make;
mod managed;
mod page;
pub mod part;
mod steps;
mod trade;
