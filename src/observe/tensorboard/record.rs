//! TensorBoard's file format, as little of it as scalars need. A file is a row of TFRecords: length
//! (u64, little-endian), its masked CRC-32C, body, the body's masked CRC-32C. A body is a protobuf
//! `Event`: 1 wall_time (double), 2 step (int64), 3 file_version (text), 5 summary, 7 session_log;
//! a `Summary` holds `Value`s (1) with 1 tag (string) and 2 simple_value (float); a `SessionLog`
//! of status (1) START (1) makes readers drop what they know of this step and later ones.

use crate::observe::protobuf::Message;

/// A named number.
#[derive(Debug, Clone, PartialEq)]
pub struct Scalar {
    /// As in TensorBoard's list; what stands before `/` groups.
    pub tag: &'static str,
    /// Its value.
    pub value: f64,
}

impl Scalar {
    /// A named number.
    pub fn new(tag: &'static str, value: f64) -> Self {
        Self { tag, value }
    }
}

/// Castagnoli's polynomial, reflected.
const POLYNOMIAL: u32 = 0x82F6_3B78;

const TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ POLYNOMIAL } else { crc >> 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

/// CRC-32C.
pub fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| TABLE[((crc ^ u32::from(*byte)) & 0xFF) as usize] ^ (crc >> 8);
    !bytes.iter().fold(!0, step)
}

/// As TFRecord stores it: the CRC of something that holds CRCs would tell little.
pub fn masked_crc32c(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xA282_EAD8)
}

/// A body as a record of the file.
pub fn frame(body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(body.len() + 16);
    record.extend(length);
    record.extend(masked_crc32c(&length).to_le_bytes());
    record.extend(body);
    record.extend(masked_crc32c(body).to_le_bytes());
    record
}

/// The first record of a file.
pub fn file_version(time: f64) -> Vec<u8> {
    at(time, 0).text(3, "brain.Event:2").0
}

/// From here on, steps from `step` on are told anew.
pub fn session_start(time: f64, step: i64) -> Vec<u8> {
    let start = Message::default().integer(1, 1);
    at(time, step).within(7, &start).0
}

/// Several numbers of one step.
pub fn scalars(time: f64, step: i64, scalars: &[Scalar]) -> Vec<u8> {
    let summary = scalars.iter().fold(Message::default(), |summary, scalar| {
        let value = Message::default().text(1, scalar.tag).float(2, scalar.value as f32);
        summary.within(1, &value)
    });
    at(time, step).within(5, &summary).0
}

/// An `Event` of a time and a step, to be gone on with.
fn at(time: f64, step: i64) -> Message {
    Message::default().double(1, time).integer(2, step.max(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_castagnolis() {
        // RFC 3720, B.4.
        assert_eq!(crc32c(&[0; 32]), 0x8A91_36AA);
        assert_eq!(crc32c(&[0xFF; 32]), 0x62A8_AB43);
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
    }

    #[test]
    fn an_event_is_the_documented_protobuf() {
        let event = scalars(1.0, 300, &[Scalar::new("a/b", 0.5)]);
        let expected = [
            &[0x09][..],
            &1f64.to_le_bytes(),
            &[0x10, 0xAC, 0x02],
            &[0x2A, 12, 0x0A, 10, 0x0A, 3],
            b"a/b",
            &[0x15],
            &0.5f32.to_le_bytes(),
        ];
        assert_eq!(event, expected.concat());
    }
}
