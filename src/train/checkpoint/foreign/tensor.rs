//! One tensor of a foreign file: where its elements lie, and how they become f32.

/// What an element is. Little-endian.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Element {
    F32,
    /// IEEE 754's binary16.
    F16,
    /// The upper half of an f32.
    Bf16,
    F64,
    /// Counters and the like, by the file's word for it: no weights.
    Other(String),
}

impl Element {
    /// Bytes of one; `None`: not known.
    pub fn bytes(&self) -> Option<usize> {
        match self {
            Self::F32 => Some(4),
            Self::F16 | Self::Bf16 => Some(2),
            Self::F64 => Some(8),
            Self::Other(_) => None,
        }
    }

    /// How people call it.
    pub fn name(&self) -> &str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F64 => "f64",
            Self::Other(word) => word,
        }
    }
}

/// How elements are to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sign {
    /// As they lie in the file.
    Stored,
    /// Each with the other sign.
    Turned,
}

/// A tensor.
#[derive(Debug, Clone)]
pub(super) struct Tensor<'a> {
    pub name: String,
    pub shape: Vec<usize>,
    pub element: Element,
    pub sign: Sign,
    /// Elements from one index to the next, by dimension.
    strides: Vec<usize>,
    /// From its first element on.
    storage: &'a [u8],
}

impl<'a> Tensor<'a> {
    /// One whose elements lie row by row, and are all of `storage`.
    pub fn contiguous(
        name: String,
        shape: Vec<usize>,
        element: Element,
        storage: &'a [u8],
    ) -> Self {
        let strides = strides_of(&shape);
        Self { name, shape, element, sign: Sign::Stored, strides, storage }
    }

    /// The same under another name.
    pub fn called(&self, name: &str) -> Self {
        Self { name: name.to_owned(), ..self.clone() }
    }

    /// A view of a storage from its element `start` on; `strides` in elements.
    ///
    /// # Errors
    /// It reaches beyond the storage.
    pub fn view(
        name: String,
        element: Element,
        shape: Vec<usize>,
        strides: Vec<usize>,
        start: usize,
        storage: &'a [u8],
    ) -> Result<Self, String> {
        if shape.len() != strides.len() {
            let (sizes, steps) = (shape.len(), strides.len());
            return Err(format!("tensor {name:?} has {sizes} sizes and {steps} strides"));
        }
        let beyond = || {
            let held = storage.len();
            format!(
                "tensor {name:?} of shape {shape:?} from element {start} on reaches beyond its \
                 storage of {held} bytes"
            )
        };
        // Nobody reads elements of a type that is not known.
        let Some(width) = element.bytes() else {
            return Ok(Self { name, shape, element, sign: Sign::Stored, strides, storage: &[] });
        };
        let last = match shape.contains(&0) {
            true => None,
            false => {
                let reach = |sum: usize, (size, stride): (&usize, &usize)| {
                    sum.checked_add((size - 1).checked_mul(*stride)?)
                };
                let last = shape.iter().zip(&strides).try_fold(start, reach);
                Some(last.ok_or_else(beyond)?)
            }
        };
        let end = last.map_or(Some(0), |last| last.checked_add(1)?.checked_mul(width));
        if end.is_none_or(|end| end > storage.len()) {
            return Err(beyond());
        }
        let from = if last.is_some() { start * width } else { 0 };
        let storage = &storage[from..];
        Ok(Self { name, shape, element, sign: Sign::Stored, strides, storage })
    }

    /// Elements as f32, row by row; `None` where they are no fractions, or not as many as `into`.
    pub fn read(&self, into: &mut [f32]) -> Option<()> {
        self.read_stored(into)?;
        if self.sign == Sign::Turned {
            into.iter_mut().for_each(|value| *value = -*value);
        }
        Some(())
    }

    fn read_stored(&self, into: &mut [f32]) -> Option<()> {
        let width = self.element.bytes()?;
        let count = self.shape.iter().try_fold(1usize, |all, size| all.checked_mul(*size))?;
        if count != into.len() {
            return None;
        }
        if self.element == Element::F32 && self.strides == strides_of(&self.shape) {
            let fours = self.storage.get(..count * width)?.chunks_exact(width);
            for (value, four) in into.iter_mut().zip(fours) {
                *value = f32::from_le_bytes([four[0], four[1], four[2], four[3]]);
            }
            return Some(());
        }
        let mut index = vec![0; self.shape.len()];
        let mut at = 0;
        for value in into {
            *value = self.value(self.storage.get(at * width..(at + 1) * width)?)?;
            // The next index, the last dimension fastest.
            for dimension in (0..index.len()).rev() {
                index[dimension] += 1;
                at += self.strides[dimension];
                if index[dimension] < self.shape[dimension] {
                    break;
                }
                at -= index[dimension] * self.strides[dimension];
                index[dimension] = 0;
            }
        }
        Some(())
    }

    fn value(&self, bytes: &[u8]) -> Option<f32> {
        Some(match self.element {
            Element::F32 => f32::from_le_bytes(bytes.try_into().ok()?),
            Element::F16 => half::f16::from_le_bytes(bytes.try_into().ok()?).to_f32(),
            Element::Bf16 => half::bf16::from_le_bytes(bytes.try_into().ok()?).to_f32(),
            Element::F64 => f64::from_le_bytes(bytes.try_into().ok()?) as f32,
            Element::Other(_) => return None,
        })
    }
}

/// Of elements that lie row by row.
fn strides_of(shape: &[usize]) -> Vec<usize> {
    let mut strides: Vec<usize> = vec![1; shape.len()];
    for at in (1..shape.len()).rev() {
        // A stride that no usize holds belongs to a tensor without elements.
        strides[at - 1] = strides[at].saturating_mul(shape[at]);
    }
    strides
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(
        shape: &[usize],
        strides: &[usize],
        start: usize,
        storage: &[u8],
    ) -> Option<Vec<f32>> {
        let view = view(shape, strides, start, storage).ok()?;
        let mut values = vec![0.0; shape.iter().product()];
        view.read(&mut values).map(|()| values)
    }

    fn view<'a>(
        shape: &[usize],
        strides: &[usize],
        start: usize,
        storage: &'a [u8],
    ) -> Result<Tensor<'a>, String> {
        Tensor::view("t".into(), Element::F32, shape.to_vec(), strides.to_vec(), start, storage)
    }

    #[test]
    fn views_are_read_by_their_strides() {
        let six: Vec<u8> = (0..6).flat_map(|i| (i as f32).to_le_bytes()).collect();
        assert_eq!(tensor(&[2, 3], &[3, 1], 0, &six), Some(vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0]));
        assert_eq!(tensor(&[3, 2], &[1, 3], 0, &six), Some(vec![0.0, 3.0, 1.0, 4.0, 2.0, 5.0]));
        assert_eq!(tensor(&[2], &[2], 1, &six), Some(vec![1.0, 3.0]));
        assert_eq!(tensor(&[3], &[0], 5, &six), Some(vec![5.0; 3]));
        assert_eq!(tensor(&[], &[], 2, &six), Some(vec![2.0]));
        assert_eq!(tensor(&[0, 4], &[4, 1], 6, &six), Some(vec![]));
        for (shape, strides, start) in [
            (&[7][..], &[1][..], 0),
            (&[2, 3], &[3, 1], 1),
            (&[2], &[usize::MAX], 1),
            (&[usize::MAX, usize::MAX], &[1, 1], 0),
            (&[1], &[1], usize::MAX),
            (&[2], &[], 0),
        ] {
            assert!(view(shape, strides, start, &six).is_err(), "{shape:?}");
        }
    }
}
