//! How much smaller than it is a picture is decoded: a JPEG's transform gives means of squares of
//! pixels for less than it gives the pixels.

/// How many pixels across and down become one.
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
