//! Texts on the wire: ranks gather words of 64 bits.

/// The words of a text, which is cut at a character where it is too long.
pub fn of_text<const WORDS: usize>(text: &str) -> [u64; WORDS] {
    let mut bytes = vec![0u8; WORDS * size_of::<u64>()];
    let length = floor_char_boundary(text, bytes.len());
    bytes[..length].copy_from_slice(&text.as_bytes()[..length]);
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(size_of::<u64>())) {
        *word = u64::from_le_bytes(bytes.try_into().expect("chunks of eight"));
    }
    words
}

/// The text that these words are.
pub fn to_text(words: &[u64]) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_owned()
}

fn floor_char_boundary(text: &str, bytes_max: usize) -> usize {
    let end = text.len().min(bytes_max);
    (0..=end).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0)
}
