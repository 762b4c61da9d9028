//! Writes messages in the form of protobuf, field by field, as the documentation of its encoding
//! says: ONNX's models and TensorBoard's events.

/// A message that is being written.
#[derive(Debug, Clone, Default)]
pub struct Message(pub Vec<u8>);

impl Message {
    fn put_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn key(&mut self, number: u32, kind: u64) {
        self.put_varint(u64::from(number) << 3 | kind);
    }

    /// An integer.
    pub fn integer(mut self, number: u32, value: i64) -> Self {
        self.key(number, 0);
        self.put_varint(value as u64);
        self
    }

    /// A number of four bytes.
    pub fn float(mut self, number: u32, value: f32) -> Self {
        self.key(number, 5);
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// A number of eight bytes.
    pub fn double(mut self, number: u32, value: f64) -> Self {
        self.key(number, 1);
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// Bytes as they are.
    pub fn bytes(mut self, number: u32, value: &[u8]) -> Self {
        self.key(number, 2);
        self.put_varint(value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }

    /// A text.
    pub fn text(self, number: u32, value: &str) -> Self {
        self.bytes(number, value.as_bytes())
    }

    /// A message within.
    pub fn within(self, number: u32, value: &Self) -> Self {
        self.bytes(number, &value.0)
    }
}
