//! Takes Rust source apart into words, as far as finding imports needs: comments are gone, a string
//! or character is one word, `::` is one word.

/// A word of the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Word {
    /// A name or keyword.
    Name(String),
    /// What stands in quotes.
    Text(String),
    /// `::`.
    Path,
    /// Any other sign.
    Sign(char),
}

impl Word {
    /// Its name, if it is one.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Name(name) => Some(name),
            _ => None,
        }
    }

    /// Whether it is this name.
    pub fn is(&self, name: &str) -> bool {
        self.name() == Some(name)
    }
}

fn in_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// All words of a file.
pub fn words(text: &str) -> Vec<Word> {
    let chars: Vec<char> = text.chars().collect();
    let mut words = Vec::new();
    let mut at = 0;
    while at < chars.len() {
        let next = chars.get(at + 1).copied().unwrap_or(' ');
        match chars[at] {
            '/' if next == '/' => at = line_end(&chars, at),
            '/' if next == '*' => at = comment_end(&chars, at),
            '"' => at = quoted(&chars, at, &mut words),
            '\'' => at = character_or_lifetime(&chars, at, &mut words),
            'r' if next == '"' || next == '#' => at = raw_or_name(&chars, at, &mut words),
            ':' if next == ':' => {
                words.push(Word::Path);
                at += 2;
            }
            c if in_name(c) => at = name(&chars, at, &mut words),
            c if c.is_whitespace() => at += 1,
            c => {
                words.push(Word::Sign(c));
                at += 1;
            }
        }
    }
    words
}

fn line_end(chars: &[char], at: usize) -> usize {
    chars[at..].iter().position(|c| *c == '\n').map_or(chars.len(), |length| at + length)
}

fn comment_end(chars: &[char], at: usize) -> usize {
    let end = chars[at..].windows(2).position(|two| two == ['*', '/']);
    end.map_or(chars.len(), |length| at + length + 2)
}

fn quoted(chars: &[char], at: usize, words: &mut Vec<Word>) -> usize {
    let mut end = at + 1;
    while end < chars.len() && chars[end] != '"' {
        end += if chars[end] == '\\' { 2 } else { 1 };
    }
    words.push(Word::Text(chars[at + 1..end.min(chars.len())].iter().collect()));
    end + 1
}

fn character_or_lifetime(chars: &[char], at: usize, words: &mut Vec<Word>) -> usize {
    let is_character = chars.get(at + 1) == Some(&'\\') || chars.get(at + 2) == Some(&'\'');
    if !is_character {
        return at + 1 + chars[at + 1..].iter().take_while(|c| in_name(**c)).count();
    }
    let first = if chars.get(at + 1) == Some(&'\\') { at + 3 } else { at + 2 };
    let length = chars[first..].iter().position(|c| *c == '\'').unwrap_or(0);
    words.push(Word::Text(String::new()));
    first + length + 1
}

/// `r"..."`, `r#"..."#`, or a name that begins with an r.
fn raw_or_name(chars: &[char], at: usize, words: &mut Vec<Word>) -> usize {
    let fences = chars[at + 1..].iter().take_while(|c| **c == '#').count();
    let begin = at + 1 + fences;
    if chars.get(begin) != Some(&'"') {
        return name(chars, at, words);
    }
    let ends = |end: usize| chars[end + 1..].iter().take(fences).filter(|c| **c == '#').count();
    let mut end = begin + 1;
    while end < chars.len() && !(chars[end] == '"' && ends(end) == fences) {
        end += 1;
    }
    words.push(Word::Text(chars[begin + 1..end.min(chars.len())].iter().collect()));
    end + 1 + fences
}

fn name(chars: &[char], at: usize, words: &mut Vec<Word>) -> usize {
    let length = chars[at..].iter().take_while(|c| in_name(**c)).count();
    let text: String = chars[at..at + length].iter().collect();
    // `b"..."` and `c"..."` are texts.
    if chars.get(at + length) == Some(&'"') && (text == "b" || text == "c") {
        return quoted(chars, at + length, words);
    }
    words.push(Word::Name(text));
    at + length
}
