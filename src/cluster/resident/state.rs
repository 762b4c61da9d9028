//! One state of a rank as a slot holds it: how large it is, to read, and to write.

/// What a caller may store beside the tensors, at most; a longer one is left out with a warning.
pub const EXTRA_BYTES_MAX: usize = 256 << 10;

/// Elements of a rank's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Trained elements; momentum is as long.
    pub parameters: usize,
    /// Running statistics.
    pub statistics: usize,
}

/// One state, to read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlotView<'a> {
    /// Committed steps.
    pub step: u64,
    /// The world's generation when it was committed.
    pub generation: u32,
    /// Trained elements.
    pub parameters: &'a [f32],
    /// As long as `parameters`.
    pub momentum: &'a [f32],
    /// Running statistics.
    pub statistics: &'a [f32],
    /// What the caller stored with it.
    pub extra: &'a [u8],
}

/// One state, to write. It counts only after `Slots::commit`.
#[derive(Debug)]
pub struct SlotMut<'a> {
    /// Trained elements.
    pub parameters: &'a mut [f32],
    /// As long as `parameters`.
    pub momentum: &'a mut [f32],
    /// Running statistics.
    pub statistics: &'a mut [f32],
}
