//! Decodes a part of a JPEG: of what lies outside it only as much as the file's form demands.
//!
//! Symbols are read up to the last row that the part needs; the transform is done for the blocks
//! that it touches. Grey levels are libjpeg's, bit for bit (its accurate transform, its default
//! interpolation of chroma). Baseline files of grey, or of luma and chroma (4:4:4, 4:2:2, 4:2:0),
//! in one scan are read here. Of all others, and of whatever is damaged where it is looked at,
//! this says [`NotOurs`]: the whole decoder is asked then, and its verdict is the one that counts.

mod bits;
mod colour;
mod decode;
mod encode;
mod header;
mod inverse;
mod standard;
mod table;
#[cfg(test)]
mod tests;

pub(super) use decode::{Jpeg, Scratch};
pub use encode::{Form, encode};
pub(super) use header::has_disputed_colours;

/// Not a file that is decoded here, or a damaged one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NotOurs;
