//! What a source is, and the readers, one file each.

use std::io;
use std::path::Path;

use super::jpeg::Scratch;
use super::store::{Location, Store};
use super::{Area, Cut, Image};
use listed::ListedFile;

mod array;
pub mod began;
pub mod below;
pub mod cifar;
pub(in crate::data) mod decode;
mod first_frame;
pub mod image_folder;
mod leftovers;
pub mod listed;
pub mod mnist;
pub mod packed;
mod sized;
pub mod subset;
pub mod synthetic;
pub mod tar;

/// Which part of a picture is wanted.
pub struct Wanted<'a> {
    /// From the picture's width and height; `None`: all of it.
    pub area: &'a dyn Fn([u32; 2]) -> Option<Area>,
    /// What decoding needs, kept from picture to picture.
    pub(in crate::data) scratch: &'a mut Scratch,
}

/// A data set, by sample id (0..len): where each sample lies and what its bytes mean. It holds the
/// set's index and fetches nothing; several threads use it at once.
pub trait Source: Send + Sync {
    /// Samples.
    fn len(&self) -> u64;
    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Class names, in label order.
    fn classes(&self) -> &[String];
    /// Channels of every image (1 or 3).
    fn channels(&self) -> u32;
    /// The label, without decoding.
    fn label(&self, id: u64) -> u32;
    /// Where the sample's bytes lie; `None`: it has none and is drawn from its number.
    fn location(&self, id: u64) -> Option<Location<'_>>;
    /// The sample's picture from its bytes (none where it has no location); an error says what is
    /// wrong with them.
    fn decode(&self, id: u64, bytes: &[u8]) -> Result<Image, String>;
    /// At least the wanted part of the picture; whole where decoding a part saves nothing.
    fn decode_part(&self, id: u64, bytes: &[u8], _wanted: Wanted<'_>) -> Result<Cut, String> {
        self.decode(id, bytes).map(Cut::from)
    }
    /// A hash of the bytes of a sample without a location, where it has any; 0: it has none.
    fn held(&self, _id: u64) -> u64 {
        0
    }
    /// Whether the file in which the sample lies with others was written since the run began, as
    /// far as this process has seen: its place there may be another sample's now.
    fn is_rewritten(&self, _id: u64, _store: &dyn Store) -> bool {
        false
    }
    /// Files that hold many samples each, with what is known of each since it was listed: none
    /// where every sample is a file, or is drawn.
    fn listed(&self) -> Vec<(&Path, &ListedFile)> {
        Vec::new()
    }
    /// Those of them that are this set's alone.
    fn files(&self) -> Vec<&Path> {
        self.listed().into_iter().map(|(path, _)| path).collect()
    }
    /// How to name the sample in a message.
    fn name(&self, id: u64) -> String;
    /// Appends the sample's name within the set, which is the same wherever the set lies and
    /// whatever else it holds; false: samples of this format have none.
    fn key(&self, _id: u64, _into: &mut Vec<u8>) -> bool {
        false
    }
    /// Changes when the set changes (names, sizes): part of a run's fingerprint.
    fn fingerprint(&self) -> u64;
    /// What of the set is not used, and what its owner should look at: a sentence each, for the
    /// console.
    fn remarks(&self) -> &[String] {
        &[]
    }
    /// What has come to the set since its run began and is not used: a sentence for the console.
    fn news(&self) -> Option<&str> {
        None
    }
    /// Keeps the listing in this folder as the run's own, where its format has one that can be.
    ///
    /// # Errors
    /// It cannot be written.
    fn keep(&self, _folder: &Path) -> io::Result<()> {
        Ok(())
    }
}
