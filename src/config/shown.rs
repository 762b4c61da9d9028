//! Names as people are shown them: what a file, a class or a tensor is called may hold anything,
//! and a terminal obeys what it is sent.

use std::ffi::OsStr;
use std::fmt::Write;
use std::path::Path;

/// A name made fit for a line of text.
pub trait Shown {
    /// The name in one line: control characters and those that turn the direction of writing are
    /// escaped (`\u{1b}`, `\n`), bytes that are not UTF-8 too (`\xff`). All else stays.
    fn shown(&self) -> String;
}

impl Shown for OsStr {
    fn shown(&self) -> String {
        let mut line = String::new();
        for chunk in self.as_encoded_bytes().utf8_chunks() {
            for c in chunk.valid().chars() {
                match c.is_control() || turns_writing(c) {
                    true => line.extend(c.escape_default()),
                    false => line.push(c),
                }
            }
            for byte in chunk.invalid() {
                // Writing to a string never fails.
                let _ = write!(line, "\\x{byte:02x}");
            }
        }
        line
    }
}

impl Shown for Path {
    fn shown(&self) -> String {
        self.as_os_str().shown()
    }
}

impl Shown for str {
    fn shown(&self) -> String {
        OsStr::new(self).shown()
    }
}

/// Unicode's marks, embeddings, overrides and isolates: they can make a name look like another.
fn turns_writing(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn nothing_that_a_terminal_obeys_is_left_in_a_name() {
        assert_eq!("a/Käse 猫\\1.jpg".shown(), "a/Käse 猫\\1.jpg");
        assert_eq!("e\u{1b}[31mRED\nnl".shown(), "e\\u{1b}[31mRED\\nnl");
        assert_eq!("\u{9b}31m\u{7f}\u{202e}gpj".shown(), "\\u{9b}31m\\u{7f}\\u{202e}gpj");
        let bytes = OsStr::from_bytes(b"n\xff\xfe.jpg\xc3");
        assert_eq!(Path::new(bytes).shown(), "n\\xff\\xfe.jpg\\xc3");
    }
}
