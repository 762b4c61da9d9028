//! Protobuf's encoding (protobuf.dev/programming-guides/encoding): a message is a row of fields,
//! each a number, a kind and a value. Read by reference, written into a vector.

/// What a field holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content<'a> {
    /// An integer of up to ten bytes, seven bits each.
    Varint(u64),
    /// Four bytes, little-endian.
    Fixed32(u32),
    /// Eight bytes, little-endian.
    Fixed64(u64),
    /// A text, a message, or a row of numbers.
    Bytes(&'a [u8]),
}

/// The encoding is broken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Broken(pub String);

/// The fields of a message, in the order in which they were written.
#[derive(Debug, Clone)]
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    /// Of a message's bytes.
    pub fn of(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    fn varint(&mut self) -> Result<u64, Broken> {
        varint(&mut self.rest)
    }

    fn take(&mut self, bytes: u64) -> Result<&'a [u8], Broken> {
        let left = self.rest.len();
        let ends = usize::try_from(bytes).ok().filter(|&bytes| bytes <= left);
        let Some(bytes) = ends else {
            let text = format!("a field of {bytes} bytes where {left} are left: the file is cut");
            return Err(Broken(text));
        };
        let (own, rest) = self.rest.split_at(bytes);
        self.rest = rest;
        Ok(own)
    }

    fn field(&mut self) -> Result<(u32, Content<'a>), Broken> {
        let key = self.varint()?;
        let number = u32::try_from(key >> 3).ok().filter(|&number| number > 0);
        let number = number.ok_or_else(|| Broken(format!("field number {}", key >> 3)))?;
        let content = match key & 7 {
            0 => Content::Varint(self.varint()?),
            1 => Content::Fixed64(u64::from_le_bytes(whole(self.take(8)?))),
            2 => {
                let bytes = self.varint()?;
                Content::Bytes(self.take(bytes)?)
            }
            5 => Content::Fixed32(u32::from_le_bytes(whole(self.take(4)?))),
            kind => return Err(Broken(format!("a field of kind {kind}, which none here has"))),
        };
        Ok((number, content))
    }
}

/// What `take` has measured.
fn whole<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut own = [0; N];
    own.copy_from_slice(bytes);
    own
}

/// Takes one integer off the front.
pub fn varint(rest: &mut &[u8]) -> Result<u64, Broken> {
    const BYTES_MAX: usize = 10;
    let mut value = 0;
    for at in 0..BYTES_MAX {
        let Some((&byte, after)) = rest.split_first() else {
            return Err(Broken("an integer has no end: the file is cut".into()));
        };
        *rest = after;
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(Broken(format!("an integer of more than {BYTES_MAX} bytes")))
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Content<'a>), Broken>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::protobuf::Message;

    #[test]
    fn what_is_written_is_read() {
        let within = Message::default().text(1, "name");
        let message =
            Message::default().integer(1, -1).float(3, 0.5).within(20, &within).integer(4, 300);
        let fields: Vec<_> = Fields::of(&message.0).map(|field| field.expect("whole")).collect();
        let expected = [
            (1, Content::Varint(u64::MAX)),
            (3, Content::Fixed32(0.5f32.to_bits())),
            (20, Content::Bytes(&within.0)),
            (4, Content::Varint(300)),
        ];
        assert_eq!(fields, expected);
        // The example of the encoding's own guide: field 1 is 150.
        assert_eq!(Message::default().integer(1, 150).0, [0x08, 0x96, 0x01]);
    }

    #[test]
    fn a_cut_or_foreign_message_ends_with_an_error() {
        let whole = Message::default().text(1, "name").0;
        for cut in 1..whole.len() {
            let read: Result<Vec<_>, _> = Fields::of(&whole[..cut]).collect();
            assert!(read.expect_err("cut").to_string().contains("the file is cut"), "{cut}");
        }
        let huge = [0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 1];
        let endless = [0x08; 1].into_iter().chain([0xff; 11]).collect::<Vec<u8>>();
        for (bytes, message) in [
            (&huge[..], "where 1 are left"),
            (&endless, "more than 10 bytes"),
            (&[0x0b], "of kind 3"),
            (&[0x02, 0], "field number 0"),
        ] {
            let read: Result<Vec<_>, _> = Fields::of(bytes).collect();
            let error = read.expect_err(message).to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}
