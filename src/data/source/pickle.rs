//! Python pickles read as data. A pickle is a program for a small machine that may import and call
//! anything; here an import is a name and a call is a record of what would be called. Nothing is
//! looked up and nothing runs. Known are the instructions that lists, dictionaries, texts, numbers
//! and numpy arrays are written with, in protocols 2 to 5.

use std::collections::HashMap;
use std::ops::Range;

/// Most values of one file: a bound on the memory that a small file can ask for.
const VALUES_MAX: usize = 4 << 20;

/// A value's place.
pub(super) type Id = usize;

#[derive(Debug, Clone, PartialEq)]
enum Value {
    /// None, a truth value, a fraction: nothing that is asked for.
    Other,
    Integer(i64),
    /// Text or bytes, where they lie in the file.
    Bytes(Range<usize>),
    Sequence(Vec<Id>),
    Dictionary(Vec<(Id, Id)>),
    /// `module.name`.
    Name(String),
    /// What is called, with what, and what is given to the result.
    Call {
        name: Id,
        arguments: Id,
        state: Option<Id>,
    },
}

/// A file's values.
#[derive(Debug)]
pub(super) struct Pickle<'a> {
    file: &'a [u8],
    values: Vec<Value>,
    root: Id,
}

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

/// The machine while it reads.
struct Machine<'a> {
    file: &'a [u8],
    at: usize,
    values: Vec<Value>,
    stack: Vec<Id>,
    /// Heights of the stack at the marks.
    marks: Vec<usize>,
    /// Numbered values; numbers are those of the file, in any order.
    memo: HashMap<usize, Id>,
}

impl<'a> Pickle<'a> {
    /// Runs through the whole file. An error says where it stopped, and why.
    pub(super) fn read(file: &'a [u8]) -> Result<Self, String> {
        let memo = HashMap::new();
        let (stack, marks) = (Vec::new(), Vec::new());
        let mut machine = Machine { file, at: 0, values: Vec::new(), stack, marks, memo };
        if file.first() != Some(&0x80) {
            return Err("not a Python pickle of protocol 2 or later".into());
        }
        // Every instruction is at least a byte, so the file's length bounds the loop.
        loop {
            let at = machine.at;
            let wrong = |reason| format!("byte {at} of the pickle: {reason}");
            let code = machine.byte().map_err(wrong)?;
            if code == b'.' {
                let root = machine.pop().map_err(wrong)?;
                return Ok(Self { file, values: machine.values, root });
            }
            machine.step(code).map_err(wrong)?;
        }
    }

    /// What the file holds.
    pub(super) fn root(&self) -> Id {
        self.root
    }

    /// The entry of a dictionary.
    pub(super) fn entry(&self, dictionary: Id, key: &str) -> Option<Id> {
        let Value::Dictionary(entries) = &self.values[dictionary] else { return None };
        let is = |id: &Id| self.bytes(*id).is_some_and(|bytes| bytes == key.as_bytes());
        entries.iter().rev().find(|(name, _)| is(name)).map(|(_, value)| *value)
    }

    fn bytes(&self, id: Id) -> Option<&[u8]> {
        match &self.values[id] {
            Value::Bytes(range) => Some(&self.file[range.clone()]),
            _ => None,
        }
    }

    fn items(&self, id: Id) -> Option<&[Id]> {
        match &self.values[id] {
            Value::Sequence(items) => Some(items),
            _ => None,
        }
    }

    fn integer(&self, id: Id) -> Option<i64> {
        match self.values[id] {
            Value::Integer(value) => Some(value),
            _ => None,
        }
    }

    /// A list of whole numbers.
    pub(super) fn integers(&self, id: Id) -> Option<Vec<i64>> {
        self.items(id)?.iter().map(|item| self.integer(*item)).collect()
    }

    /// A list of texts.
    pub(super) fn texts(&self, id: Id) -> Option<Vec<String>> {
        let text = |id: &Id| Some(String::from_utf8_lossy(self.bytes(*id)?).into_owned());
        self.items(id)?.iter().map(text).collect()
    }

    /// The called name, its arguments and the state of the result.
    fn call(&self, id: Id) -> Option<(&str, &[Id], Option<Id>)> {
        let Value::Call { name, arguments, state } = &self.values[id] else { return None };
        let Value::Name(name) = &self.values[*name] else { return None };
        Some((name, self.items(*arguments)?, *state))
    }

    /// A numpy array of unsigned bytes with two dimensions.
    pub(super) fn array(&self, id: Id) -> Result<Array, String> {
        let (name, arguments, state) = self.call(id).ok_or("no numpy array")?;
        // numpy 2 has moved its inner modules.
        let name = name.replace("numpy._core.", "numpy.core.");
        let parts = match (name.as_str(), arguments, state.and_then(|state| self.items(state))) {
            ("numpy.core.multiarray._reconstruct", _, Some([_, shape, kind, by_column, data])) => {
                (*shape, *kind, *by_column, *data)
            }
            ("numpy.core.numeric._frombuffer", [data, kind, shape, order], _) => {
                (*shape, *kind, *order, *data)
            }
            _ => return Err(format!("no numpy array: {name:?}")),
        };
        let (shape, kind, order, data) = parts;
        // True or "F": the first dimension runs fastest.
        if self.values[order] == Value::Integer(1) || self.bytes(order) == Some(b"F") {
            return Err("the array lies column by column".into());
        }
        match self.call(kind) {
            Some(("numpy.dtype", [first, ..], _)) if self.bytes(*first) == Some(b"u1") => {}
            _ => return Err("the array's elements are no unsigned bytes".into()),
        }
        let shape = self.integers(shape).unwrap_or_default();
        let [rows, columns] = shape[..] else {
            return Err(format!("the array has {} dimensions, not 2", shape.len()));
        };
        let (rows, columns) = (usize::try_from(rows), usize::try_from(columns));
        let (Ok(rows), Ok(columns)) = (rows, columns) else {
            return Err("the array's shape is negative".into());
        };
        let elements = self.elements(data)?;
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
    fn elements(&self, data: Id) -> Result<Elements, String> {
        if let Value::Bytes(range) = &self.values[data] {
            return Ok(Elements::At(range.clone()));
        }
        match self.call(data) {
            Some(("_codecs.encode", [text, codec], _)) if self.bytes(*codec) == Some(b"latin1") => {
                let text = self.bytes(*text).and_then(|bytes| std::str::from_utf8(bytes).ok());
                let text = text.ok_or("the array's elements are no text")?;
                let held: Option<Vec<u8>> =
                    text.chars().map(|c| u8::try_from(u32::from(c)).ok()).collect();
                Ok(Elements::Held(held.ok_or("the array's elements are no bytes")?))
            }
            _ => Err("the array's elements are not in the file".into()),
        }
    }
}

impl Machine<'_> {
    fn take(&mut self, length: usize) -> Result<Range<usize>, String> {
        let end = self.at.checked_add(length).filter(|end| *end <= self.file.len());
        let end = end.ok_or("the file ends too early")?;
        let range = self.at..end;
        self.at = end;
        Ok(range)
    }

    fn byte(&mut self) -> Result<u8, String> {
        let at = self.take(1)?.start;
        Ok(self.file[at])
    }

    /// An unsigned number of so many bytes, the lowest first.
    fn number(&mut self, bytes: usize) -> Result<usize, String> {
        let range = self.take(bytes)?;
        let number = self.file[range].iter().rev().fold(0u64, |n, byte| n << 8 | u64::from(*byte));
        usize::try_from(number).map_err(|_| "a length that no file has".into())
    }

    /// A signed number of up to eight bytes, the lowest first.
    fn signed(&mut self, bytes: usize) -> Result<i64, String> {
        if bytes > 8 {
            return Err(format!("a whole number of {bytes} bytes"));
        }
        let range = self.take(bytes)?;
        let digits = &self.file[range];
        let fill = if digits.last().is_some_and(|top| top & 0x80 != 0) { 0xFF } else { 0 };
        let mut whole = [fill; 8];
        whole[..bytes].copy_from_slice(digits);
        Ok(i64::from_le_bytes(whole))
    }

    fn line(&mut self) -> Result<&str, String> {
        let rest = &self.file[self.at..];
        let length = rest.iter().position(|byte| *byte == b'\n').ok_or("a name without an end")?;
        let line = std::str::from_utf8(&rest[..length]).map_err(|_| "a name that is no text")?;
        self.at += length + 1;
        Ok(line)
    }

    fn push(&mut self, value: Value) -> Result<(), String> {
        if self.values.len() == VALUES_MAX {
            return Err(format!("more than {VALUES_MAX} values"));
        }
        self.stack.push(self.values.len());
        self.values.push(value);
        Ok(())
    }

    fn pop(&mut self) -> Result<Id, String> {
        self.stack.pop().ok_or_else(|| "nothing is on the stack".into())
    }

    fn top(&self) -> Result<Id, String> {
        self.stack.last().copied().ok_or_else(|| "nothing is on the stack".into())
    }

    /// What lies above the last mark.
    fn marked(&mut self) -> Result<Vec<Id>, String> {
        let mark = self.marks.pop().filter(|mark| *mark <= self.stack.len());
        Ok(self.stack.split_off(mark.ok_or("no mark is set")?))
    }

    fn bytes_of(&mut self, width: usize) -> Result<(), String> {
        let length = self.number(width)?;
        let range = self.take(length)?;
        self.push(Value::Bytes(range))
    }

    fn tuple(&mut self, length: usize) -> Result<(), String> {
        let from = self.stack.len().checked_sub(length).ok_or("nothing is on the stack")?;
        let items = self.stack.split_off(from);
        self.push(Value::Sequence(items))
    }

    fn append(&mut self, items: Vec<Id>) -> Result<(), String> {
        let list = self.top()?;
        match &mut self.values[list] {
            Value::Sequence(all) => all.extend(items),
            _ => return Err("what is appended to is no list".into()),
        }
        Ok(())
    }

    fn set(&mut self, pairs: &[Id]) -> Result<(), String> {
        let dictionary = self.top()?;
        let Value::Dictionary(all) = &mut self.values[dictionary] else {
            return Err("what an entry is set in is no dictionary".into());
        };
        if !pairs.len().is_multiple_of(2) {
            return Err("a key without a value".into());
        }
        all.extend(pairs.chunks_exact(2).map(|pair| (pair[0], pair[1])));
        Ok(())
    }

    fn remember(&mut self, number: usize) -> Result<(), String> {
        let top = self.top()?;
        if self.memo.len() == VALUES_MAX {
            return Err(format!("more than {VALUES_MAX} numbered values"));
        }
        self.memo.insert(number, top);
        Ok(())
    }

    fn recall(&mut self, number: usize) -> Result<(), String> {
        let id = self.memo.get(&number).ok_or("a value that is not there")?;
        self.stack.push(*id);
        Ok(())
    }

    /// A name from the two texts on the stack.
    fn stacked_name(&mut self) -> Result<(), String> {
        let (name, module) = (self.pop()?, self.pop()?);
        let text = |id: Id| match &self.values[id] {
            Value::Bytes(range) => std::str::from_utf8(&self.file[range.clone()]).ok(),
            _ => None,
        };
        let name = text(module).zip(text(name)).map(|(module, name)| format!("{module}.{name}"));
        self.push(Value::Name(name.ok_or("a name that is no text")?))
    }

    fn build(&mut self) -> Result<(), String> {
        let (given, built) = (self.pop()?, self.top()?);
        match &mut self.values[built] {
            Value::Call { state, .. } => *state = Some(given),
            _ => return Err("a state for what was not made by a call".into()),
        }
        Ok(())
    }

    /// One instruction.
    fn step(&mut self, code: u8) -> Result<(), String> {
        match code {
            0x80 => match self.byte()? {
                2..=5 => Ok(()),
                other => Err(format!("protocol {other}; 2 to 5 are read")),
            },
            0x95 => self.take(8).map(drop),
            b'(' => {
                self.marks.push(self.stack.len());
                Ok(())
            }
            b'N' => self.push(Value::Other),
            b'G' => self.take(8).and_then(|_| self.push(Value::Other)),
            0x88 => self.push(Value::Integer(1)),
            0x89 => self.push(Value::Integer(0)),
            b'K' | b'M' | b'J' | 0x8A => self.whole_number(code),
            b'U' | b'C' | 0x8C => self.bytes_of(1),
            b'T' | b'X' | b'B' => self.bytes_of(4),
            0x8D | 0x8E | 0x96 => self.bytes_of(8),
            b'}' => self.push(Value::Dictionary(Vec::new())),
            b']' | b')' => self.push(Value::Sequence(Vec::new())),
            0x85 => self.tuple(1),
            0x86 => self.tuple(2),
            0x87 => self.tuple(3),
            b't' => self.marked().and_then(|items| self.push(Value::Sequence(items))),
            b'a' => self.pop().and_then(|item| self.append(vec![item])),
            b'e' => self.marked().and_then(|items| self.append(items)),
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.set(&[key, value])
            }
            b'u' => self.marked().and_then(|pairs| self.set(&pairs)),
            b'q' => self.number(1).and_then(|number| self.remember(number)),
            b'r' => self.number(4).and_then(|number| self.remember(number)),
            0x94 => self.remember(self.memo.len()),
            b'h' => self.number(1).and_then(|number| self.recall(number)),
            b'j' => self.number(4).and_then(|number| self.recall(number)),
            b'c' => {
                let name = format!("{}.{}", self.line()?.to_owned(), self.line()?);
                self.push(Value::Name(name))
            }
            0x93 => self.stacked_name(),
            b'R' => {
                let (arguments, name) = (self.pop()?, self.pop()?);
                self.push(Value::Call { name, arguments, state: None })
            }
            b'b' => self.build(),
            other => Err(format!("the instruction {other:#04x}, which no set of pictures needs")),
        }
    }

    fn whole_number(&mut self, code: u8) -> Result<(), String> {
        let value = match code {
            b'K' => self.number(1)? as i64,
            b'M' => self.number(2)? as i64,
            b'J' => self.signed(4)?,
            _ => {
                let bytes = self.number(1)?;
                self.signed(bytes)?
            }
        };
        self.push(Value::Integer(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &[u8]) -> Result<Pickle<'_>, String> {
        Pickle::read(body)
    }

    #[test]
    fn what_python_writes_is_read() {
        // pickle.dumps({'a': [1, 300, -5, 2**40], b'b': ['x', 'y']}, protocol=4), framed by hand.
        let body = b"\x80\x04}(\x8c\x01a](K\x01M\x2c\x01J\xfb\xff\xff\xff\x8a\x06\0\0\0\0\0\x01e\
                     C\x01b](\x8c\x01x\x94h\x00eu.";
        let pickle = read(body).expect("reads");
        let entry = |key| pickle.entry(pickle.root(), key);
        let numbers = entry("a").and_then(|id| pickle.integers(id));
        assert_eq!(numbers, Some(vec![1, 300, -5, 1 << 40]));
        assert_eq!(entry("b").and_then(|id| pickle.texts(id)), Some(vec!["x".into(), "x".into()]));
        assert!(entry("c").is_none() && pickle.array(pickle.root()).is_err());
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
        let text = pickle.array(pickle.root()).expect_err("no array");
        assert_eq!(text, "no numpy array: \"os.system\"");
        assert!(!marker.exists());
    }

    #[test]
    fn damage_is_an_error_wherever_it_strikes() {
        let whole = b"\x80\x02}q\x00(U\x04dataq\x01cnumpy.core.multiarray\n_reconstruct\nq\x02\
                      cnumpy\nndarray\nq\x03K\x00\x85U\x01b\x87R(K\x01K\x02K\x03\x86cnumpy\ndtype\n\
                      U\x02u1K\x00K\x01\x87R\x89T\x06\0\0\0abcdeftbU\x06labels](K\x04K\x09eu.";
        let pickle = read(whole).expect("reads");
        let array = pickle.entry(pickle.root(), "data").map(|id| pickle.array(id));
        let array = array.expect("there").expect("an array");
        let Elements::At(range) = &array.elements else { panic!("as they are") };
        assert_eq!((array.rows, array.columns, &whole[range.clone()]), (2, 3, &b"abcdef"[..]));
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
                    let _ = data.map(|id| pickle.array(id));
                }
            }
        }
    }

    #[test]
    fn bytes_written_as_text_are_bytes() {
        let body = b"\x80\x02c_codecs\nencode\nX\x03\0\0\0a\xc3\xbfX\x06\0\0\0latin1\x86R.";
        let pickle = read(body).expect("reads");
        assert_eq!(pickle.elements(pickle.root()), Ok(Elements::Held(vec![b'a', 0xFF])));
    }

    #[test]
    fn a_file_that_asks_for_too_much_is_refused() {
        assert!(read(b"\x80\x02X\xff\xff\xff\xff.").expect_err("short").contains("too early"));
        let text = read(b"\x80\x02P1\n.").expect_err("a persistent id");
        assert_eq!(
            text,
            "byte 2 of the pickle: the instruction 0x50, which no set of pictures needs"
        );
        let mut many = vec![0x80, 2];
        many.resize(VALUES_MAX + 4, b'N');
        assert!(read(&many).expect_err("many").contains("more than"));
    }
}
