//! A decoded picture, whole or a part, as large as it is or smaller.

/// One decoded sample: interleaved RGB (or grey) bytes, height x width x channels.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Image {
    pub height: u32,
    pub width: u32,
    pub channels: u32,
    pub pixels: Vec<u8>,
}

/// A part of a picture that may be decoded smaller than it is, in whole pixels of the smaller one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Area {
    /// How much smaller.
    pub shrink: Shrink,
    /// Column and row of its first pixel.
    pub from: [u32; 2],
    /// Columns and rows.
    pub size: [u32; 2],
}

/// A decoded picture, or the part of it that was wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// What was decoded.
    pub image: Image,
    /// How much smaller than it is.
    pub shrink: Shrink,
    /// Column and row of its first pixel in the whole picture, as it was decoded.
    pub from: [u32; 2],
    /// Width and height of the whole picture, as it is.
    pub whole: [u32; 2],
}

impl From<Image> for Cut {
    fn from(image: Image) -> Self {
        let whole = [image.width, image.height];
        Self { image, shrink: Shrink::None, from: [0, 0], whole }
    }
}

/// How many pixels across and down become one: a JPEG's transform gives means of squares of pixels
/// for less than it gives the pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Shrink {
    /// Each stays.
    #[default]
    None,
    /// Two.
    Half,
    /// Four.
    Quarter,
    /// Eight.
    Eighth,
}

impl Shrink {
    /// The most that leaves a part of this width and height at least `target` pixels wide and high.
    pub(super) fn most(part: [f64; 2], target: u32) -> Self {
        let leaves = |shrink: &Self| {
            let least = f64::from(target) * f64::from(shrink.times());
            part.iter().all(|&side| side >= least)
        };
        [Self::Eighth, Self::Quarter, Self::Half].into_iter().find(leaves).unwrap_or_default()
    }

    /// Pixels across, and down, that become one: 1, 2, 4 or 8.
    pub fn times(self) -> u32 {
        match self {
            Self::None => 1,
            Self::Half => 2,
            Self::Quarter => 4,
            Self::Eighth => 8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_side_becomes_shorter_than_the_target() {
        for (part, expected) in [
            ([63.0, 500.0], Shrink::None),
            ([64.0, 64.0], Shrink::Half),
            ([500.0, 127.9], Shrink::Half),
            ([128.0, 128.0], Shrink::Quarter),
            ([256.0, 255.9], Shrink::Quarter),
            ([256.0, 16_384.0], Shrink::Eighth),
        ] {
            assert_eq!(Shrink::most(part, 32), expected, "{part:?}");
        }
    }
}
