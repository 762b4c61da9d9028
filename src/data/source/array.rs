//! Numpy arrays within a pickle: where the pictures of CIFAR's Python version lie.

use std::ops::Range;

use crate::data::pickle::{Id, Pickle};

/// Where the elements of an array are.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Elements {
    /// In the file, as they are.
    At(Range<usize>),
    /// Written as text in the file.
    Held(Vec<u8>),
}

/// A numpy array of bytes with two dimensions.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Array {
    /// The first dimension.
    pub rows: usize,
    /// The second.
    pub columns: usize,
    /// Row by row.
    pub elements: Elements,
}

/// A numpy array of unsigned bytes with two dimensions.
pub(super) fn array(pickle: &Pickle<'_>, id: Id) -> Result<Array, String> {
    let (name, arguments, state) = pickle.call(id).ok_or("no numpy array")?;
    // numpy 2 has moved its inner modules.
    let name = name.replace("numpy._core.", "numpy.core.");
    let parts = match (name.as_str(), arguments, state.and_then(|state| pickle.items(state))) {
        ("numpy.core.multiarray._reconstruct", _, Some([_, shape, kind, by_column, data])) => {
            (*shape, *kind, *by_column, *data)
        }
        ("numpy.core.numeric._frombuffer", [data, kind, shape, order], _) => {
            (*shape, *kind, *order, *data)
        }
        _ => return Err(format!("no numpy array: {name:?}")),
    };
    let (shape, kind, order, data) = parts;
    match (pickle.integer(order), pickle.bytes(order)) {
        (Some(0), _) | (_, Some(b"C")) => {}
        // True or "F": the first dimension runs fastest.
        (Some(1), _) | (_, Some(b"F")) => return Err("the array lies column by column".into()),
        _ => return Err("the array does not say how it lies".into()),
    }
    match pickle.call(kind) {
        Some(("numpy.dtype", [first, ..], _)) if pickle.bytes(*first) == Some(b"u1") => {}
        _ => return Err("the array's elements are no unsigned bytes".into()),
    }
    let shape = pickle.integers(shape).unwrap_or_default();
    let [rows, columns] = shape[..] else {
        return Err(format!("the array has {} dimensions, not 2", shape.len()));
    };
    let (rows, columns) = (usize::try_from(rows), usize::try_from(columns));
    let (Ok(rows), Ok(columns)) = (rows, columns) else {
        return Err("the array's shape is negative".into());
    };
    let elements = elements(pickle, data)?;
    let length = match &elements {
        Elements::At(range) => range.len(),
        Elements::Held(bytes) => bytes.len(),
    };
    if rows.checked_mul(columns) != Some(length) {
        return Err(format!("the array of {rows} x {columns} has {length} bytes"));
    }
    Ok(Array { rows, columns, elements })
}

/// Bytes as they are, or as Python 3 writes them for Python 2: as text, a character a byte.
fn elements(pickle: &Pickle<'_>, data: Id) -> Result<Elements, String> {
    if let Some(place) = pickle.place(data) {
        return Ok(Elements::At(place));
    }
    match pickle.call(data) {
        Some(("_codecs.encode", [text, codec], _)) if pickle.bytes(*codec) == Some(b"latin1") => {
            let text = pickle.bytes(*text).and_then(|bytes| std::str::from_utf8(bytes).ok());
            let text = text.ok_or("the array's elements are no text")?;
            let held: Option<Vec<u8>> =
                text.chars().map(|c| u8::try_from(u32::from(c)).ok()).collect();
            Ok(Elements::Held(held.ok_or("the array's elements are no bytes")?))
        }
        _ => Err("the array's elements are not in the file".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &[u8]) -> Result<Pickle<'_>, String> {
        Pickle::read(body)
    }

    #[test]
    fn a_program_in_a_pickle_does_not_run() {
        let marker = std::env::temp_dir().join(format!("pickle-{}", std::process::id()));
        let command = format!("touch {}", marker.to_string_lossy().into_owned());
        let mut body = b"\x80\x02cos\nsystem\nU".to_vec();
        body.push(command.len() as u8);
        body.extend(command.as_bytes());
        body.extend(b"\x85R.");
        let pickle = read(&body).expect("a call is data");
        let text = array(&pickle, pickle.root()).expect_err("no array");
        assert_eq!(text, "no numpy array: \"os.system\"");
        assert!(!marker.exists());
    }

    #[test]
    fn damage_is_an_error_wherever_it_strikes() {
        let whole = b"\x80\x02}q\x00(U\x04dataq\x01cnumpy.core.multiarray\n_reconstruct\nq\x02\
                      cnumpy\nndarray\nq\x03K\x00\x85U\x01b\x87R(K\x01K\x02K\x03\x86cnumpy\ndtype\n\
                      U\x02u1K\x00K\x01\x87R\x89T\x06\0\0\0abcdeftbU\x06labels](K\x04K\x09eu.";
        let pickle = read(whole).expect("reads");
        let found = pickle.entry(pickle.root(), "data").map(|id| array(&pickle, id));
        let two = found.expect("there").expect("an array");
        let Elements::At(range) = &two.elements else { panic!("as they are") };
        assert_eq!((two.rows, two.columns, &whole[range.clone()]), (2, 3, &b"abcdef"[..]));
        for length in 0..whole.len() {
            assert!(read(&whole[..length]).is_err(), "{length}");
        }
        // Whatever a byte is turned into: an error or other data, never a panic.
        for at in 0..whole.len() {
            for byte in 0..=255 {
                let mut body = whole.to_vec();
                body[at] = byte;
                if let Ok(pickle) = read(&body) {
                    let data = pickle.entry(pickle.root(), "data");
                    let _ = data.map(|id| array(&pickle, id));
                }
            }
        }
    }

    #[test]
    fn bytes_written_as_text_are_bytes() {
        let body = b"\x80\x02c_codecs\nencode\nX\x03\0\0\0a\xc3\xbfX\x06\0\0\0latin1\x86R.";
        let pickle = read(body).expect("reads");
        assert_eq!(elements(&pickle, pickle.root()), Ok(Elements::Held(vec![b'a', 0xFF])));
    }
}
