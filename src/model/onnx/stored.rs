//! The values of a file's tensors. Nothing is taken before the bytes that are there have been
//! counted against the shape.

use super::error::OnnxError;
use super::proto::{BFLOAT16, BOOL, FLOAT, FLOAT16, INT32, INT64, NUMBERS_MAX, Place, Tensor};
use super::wire::varint;

/// A part of a file that lies beside the model's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct FilePart<'a> {
    pub file: &'a str,
    pub offset: u64,
    pub bytes: u64,
}

/// Reads such a part, or says why not.
pub type Beside<'f> = dyn Fn(FilePart<'_>) -> Result<Vec<u8>, String> + 'f;

/// Elements of all tensors of a model together: 8 GiB.
pub const ELEMENTS_MAX: usize = 1 << 31;

fn refuse(tensor: &Tensor<'_>, reason: String) -> OnnxError {
    OnnxError::Tensor { name: tensor.name.to_owned(), reason }
}

/// The elements of a tensor of f32, f16 or bf16.
pub fn floats(tensor: &Tensor<'_>, beside: &Beside<'_>) -> Result<Vec<f32>, OnnxError> {
    let Some(width) = width_bytes(tensor.kind) else {
        let text = format!(
            "element type {} is not float32, float16 or bfloat16: export the model in float32 \
             (`model.float()`)",
            tensor.kind
        );
        return Err(refuse(tensor, text));
    };
    let elements = tensor.elements().filter(|&elements| elements <= ELEMENTS_MAX);
    let Some(elements) = elements else {
        let text = format!("shape {:?} has more than {ELEMENTS_MAX} elements", tensor.dims);
        return Err(refuse(tensor, text));
    };
    let bytes = width * elements;
    let held = match tensor.place {
        Place::Raw(held) => held,
        Place::Row(held) if tensor.kind == FLOAT => held,
        Place::Row(row) => return halves_of_row(tensor, row, elements),
        Place::Outside { .. } => return outside(tensor, bytes, beside),
    };
    counted(tensor, held.len(), bytes)?;
    Ok(as_floats(tensor.kind, held))
}

/// Bytes of an element of this type; `None` where it is none that is read.
fn width_bytes(kind: i64) -> Option<usize> {
    match kind {
        FLOAT => Some(4),
        FLOAT16 | BFLOAT16 => Some(2),
        _ => None,
    }
}

fn outside(tensor: &Tensor<'_>, bytes: usize, beside: &Beside<'_>) -> Result<Vec<f32>, OnnxError> {
    let Place::Outside { file, offset, length } = tensor.place else { return Ok(Vec::new()) };
    if let Some(length) = length {
        counted(tensor, usize::try_from(length).unwrap_or(usize::MAX), bytes)?;
    }
    let part = FilePart { file, offset, bytes: bytes as u64 };
    let read = beside(part).map_err(|reason| refuse(tensor, reason))?;
    counted(tensor, read.len(), bytes)?;
    Ok(as_floats(tensor.kind, &read))
}

fn counted(tensor: &Tensor<'_>, found: usize, wanted: usize) -> Result<(), OnnxError> {
    if found == wanted {
        return Ok(());
    }
    let text = format!("{found} bytes, but its shape {:?} needs {wanted}", tensor.dims);
    Err(refuse(tensor, text))
}

fn as_floats(kind: i64, bytes: &[u8]) -> Vec<f32> {
    if kind == FLOAT {
        let (words, _) = bytes.as_chunks::<4>();
        return words.iter().map(|word| f32::from_le_bytes(*word)).collect();
    }
    let (halves, _) = bytes.as_chunks::<2>();
    halves.iter().map(|half| widened(kind, u16::from_le_bytes(*half))).collect()
}

fn widened(kind: i64, bits: u16) -> f32 {
    match kind {
        FLOAT16 => half::f16::from_bits(bits).to_f32(),
        _ => half::bf16::from_bits(bits).to_f32(),
    }
}

/// In a row each half stands as the whole number that its bits are.
fn halves_of_row(
    tensor: &Tensor<'_>,
    mut row: &[u8],
    elements: usize,
) -> Result<Vec<f32>, OnnxError> {
    let mut values = Vec::new();
    while !row.is_empty() && values.len() <= elements {
        let bits = varint(&mut row)?;
        let bits = u16::try_from(bits)
            .map_err(|_| refuse(tensor, format!("{bits} in its row has more than 16 bits")))?;
        values.push(widened(tensor.kind, bits));
    }
    if values.len() != elements {
        return Err(not_all(tensor, elements));
    }
    Ok(values)
}

fn not_all(tensor: &Tensor<'_>, elements: usize) -> OnnxError {
    refuse(tensor, format!("its row has not the {elements} numbers of its shape"))
}

/// The elements of a small tensor of whole numbers; `None` where it holds others.
pub fn integers(tensor: &Tensor<'_>) -> Result<Option<Vec<i64>>, OnnxError> {
    let bytes_each = match tensor.kind {
        INT64 => 8,
        INT32 => 4,
        BOOL => 1,
        _ => return Ok(None),
    };
    let elements = tensor.elements().filter(|&elements| elements <= NUMBERS_MAX);
    let Some(elements) = elements else {
        let text = format!("shape {:?}: more than {NUMBERS_MAX} whole numbers", tensor.dims);
        return Err(refuse(tensor, text));
    };
    let mut values = Vec::new();
    match tensor.place {
        Place::Outside { .. } => {
            let text = "whole numbers in another file: write them into the model itself";
            return Err(refuse(tensor, text.into()));
        }
        Place::Raw(raw) => {
            counted(tensor, raw.len(), bytes_each * elements)?;
            values.extend(raw.chunks_exact(bytes_each).map(signed));
        }
        Place::Row(mut row) => {
            while !row.is_empty() && values.len() <= elements {
                values.push(varint(&mut row)? as i64);
            }
            if values.len() != elements {
                return Err(not_all(tensor, elements));
            }
        }
    }
    Ok(Some(values))
}

/// A little-endian number of up to eight bytes.
fn signed(bytes: &[u8]) -> i64 {
    let negative = bytes.len() > 1 && bytes.last().is_some_and(|&last| last >= 0x80);
    let mut word = [if negative { 0xff } else { 0 }; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    i64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing(_: FilePart<'_>) -> Result<Vec<u8>, String> {
        Err("no file".into())
    }

    fn tensor(kind: i64, dims: &[usize], place: Place<'static>) -> Tensor<'static> {
        Tensor { name: "t", kind, dims: dims.to_vec(), place }
    }

    #[test]
    fn floats_lie_raw_in_a_row_or_in_another_file() {
        let raw: &[u8] = &[0, 0, 128, 63, 0, 0, 0, 192];
        let read = |place| floats(&tensor(FLOAT, &[2], place), &nothing);
        assert_eq!(read(Place::Raw(raw)), Ok(vec![1.0, -2.0]));
        assert_eq!(read(Place::Row(raw)), Ok(vec![1.0, -2.0]));
        let place = Place::Outside { file: "data", offset: 8, length: Some(8) };
        let beside = |part: FilePart<'_>| {
            assert_eq!(part, FilePart { file: "data", offset: 8, bytes: 8 });
            Ok(raw.to_vec())
        };
        assert_eq!(floats(&tensor(FLOAT, &[2], place), &beside), Ok(vec![1.0, -2.0]));
    }

    #[test]
    fn halves_become_f32() {
        let read = |kind, place| floats(&tensor(kind, &[2], place), &nothing);
        // 0x3C00 and 0xC000, 0x3F80 and 0xC040.
        let f16: &[u8] = &[0, 0x3C, 0, 0xC0];
        let bf16: &[u8] = &[0x80, 0x3F, 0x40, 0xC0];
        assert_eq!(read(FLOAT16, Place::Raw(f16)), Ok(vec![1.0, -2.0]));
        assert_eq!(read(BFLOAT16, Place::Raw(bf16)), Ok(vec![1.0, -3.0]));
        let row: &[u8] = &[0x80, 0x78, 0x80, 0x80, 0x03];
        assert_eq!(read(FLOAT16, Place::Row(row)), Ok(vec![1.0, -2.0]));
        let place = Place::Outside { file: "data", offset: 2, length: None };
        let beside = |part: FilePart<'_>| {
            assert_eq!(part, FilePart { file: "data", offset: 2, bytes: 4 });
            Ok(f16.to_vec())
        };
        assert_eq!(floats(&tensor(FLOAT16, &[2], place), &beside), Ok(vec![1.0, -2.0]));
    }

    #[test]
    fn what_does_not_fit_its_shape_is_refused_before_it_is_taken() {
        let place = |length| Place::Outside { file: "data", offset: 0, length };
        for (kind, dims, place, message) in [
            (FLOAT, &[3][..], Place::Raw(&[0; 8]), "8 bytes, but its shape [3] needs 12"),
            (FLOAT, &[1 << 30, 1 << 30], Place::Raw(&[]), "more than 2147483648 elements"),
            (FLOAT, &[1 << 31], place(Some(4)), "4 bytes"),
            (FLOAT, &[1], place(None), "no file"),
            (11, &[1], Place::Raw(&[0; 8]), "model.float()"),
            (FLOAT16, &[3], Place::Raw(&[0; 8]), "8 bytes, but its shape [3] needs 6"),
            (BFLOAT16, &[2], Place::Row(&[1]), "its row has not the 2 numbers"),
            (BFLOAT16, &[1], Place::Row(&[1, 1]), "its row has not the 1 numbers"),
            (FLOAT16, &[1], Place::Row(&[0x80, 0x80, 4]), "65536 in its row has more than 16"),
        ] {
            let error = floats(&tensor(kind, dims, place), &nothing).expect_err(message);
            assert!(error.to_string().contains(message), "{error}");
        }
    }

    #[test]
    fn whole_numbers_are_read_in_both_forms() {
        let read = |kind, dims: &[usize], place| integers(&tensor(kind, dims, place));
        let minus_one = [255u8; 8].as_slice();
        assert_eq!(read(INT64, &[], Place::Raw(minus_one)), Ok(Some(vec![-1])));
        assert_eq!(read(INT32, &[1], Place::Raw(&minus_one[..4])), Ok(Some(vec![-1])));
        assert_eq!(read(INT64, &[2], Place::Row(&[7, 1])), Ok(Some(vec![7, 1])));
        assert_eq!(read(BOOL, &[], Place::Raw(&[1])), Ok(Some(vec![1])));
        assert_eq!(read(FLOAT, &[], Place::Raw(&[0; 4])), Ok(None));
        assert!(read(INT64, &[3], Place::Row(&[7, 1])).is_err());
        assert!(read(INT64, &[65], Place::Row(&[7])).is_err());
    }
}
