//! Readers: image_folder, cifar, mnist, synthetic.

/// Which part of a data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Split {
    /// What is learned from.
    Train,
    /// What the error is measured on.
    Validation,
}

impl Split {
    /// `"train"` or `"validation"`: the configuration key and the folder name.
    pub fn name(self) -> &'static str {
        match self {
            Split::Train => "train",
            Split::Validation => "validation",
        }
    }

    /// Separates the random streams of the splits.
    pub(crate) fn number(self) -> u64 {
        match self {
            Split::Train => 0,
            Split::Validation => 1,
        }
    }
}
