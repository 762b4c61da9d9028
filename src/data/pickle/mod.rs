//! Python pickles read as data. A pickle is a program for a small machine that may import and call
//! anything; here an import is a name and a call is a record of what would be called. Nothing is
//! looked up and nothing runs. Known are the instructions that lists, dictionaries, texts, numbers,
//! numpy arrays and PyTorch's weights are written with, in protocols 2 to 5.

mod machine;

use std::collections::HashSet;
use std::ops::Range;

pub use machine::Id;
use machine::{Callee, VALUES_MAX, Value};

/// A file's values.
#[derive(Debug)]
pub struct Pickle<'a> {
    file: &'a [u8],
    values: Vec<Value>,
    root: Id,
}

impl<'a> Pickle<'a> {
    /// Runs through the whole file. An error says where it stopped, and why.
    ///
    /// # Errors
    /// It is no pickle, is damaged, needs other instructions, or asks for too much memory.
    pub fn read(file: &'a [u8]) -> Result<Self, String> {
        Self::read_within(file, VALUES_MAX)
    }

    /// The same, with at most so many values.
    ///
    /// # Errors
    /// As `read`.
    pub fn read_within(file: &'a [u8], values_max: usize) -> Result<Self, String> {
        let (values, root) = machine::run(file, values_max)?;
        Ok(Self { file, values, root })
    }

    /// What the file holds.
    pub fn root(&self) -> Id {
        self.root
    }

    /// The entry of a dictionary.
    pub fn entry(&self, dictionary: Id, key: &str) -> Option<Id> {
        let entries = self.entries(dictionary)?;
        let is = |id: &Id| self.bytes(*id).is_some_and(|bytes| bytes == key.as_bytes());
        entries.iter().rev().find(|(name, _)| is(name)).map(|(_, value)| *value)
    }

    /// A text's or bytes' own bytes.
    pub fn bytes(&self, id: Id) -> Option<&[u8]> {
        match &self.values[id] {
            Value::Bytes(range) => Some(&self.file[range.clone()]),
            _ => None,
        }
    }

    /// Where they lie in the file.
    pub fn place(&self, id: Id) -> Option<Range<usize>> {
        match &self.values[id] {
            Value::Bytes(range) => Some(range.clone()),
            _ => None,
        }
    }

    /// A list's or tuple's items.
    pub fn items(&self, id: Id) -> Option<&[Id]> {
        match &self.values[id] {
            Value::Sequence(items) => Some(items),
            _ => None,
        }
    }

    /// A whole number; true is 1.
    pub fn integer(&self, id: Id) -> Option<i64> {
        match self.values[id] {
            Value::Integer(value) => Some(value),
            _ => None,
        }
    }

    /// A list of whole numbers.
    pub fn integers(&self, id: Id) -> Option<Vec<i64>> {
        self.items(id)?.iter().map(|item| self.integer(*item)).collect()
    }

    /// A list of texts.
    pub fn texts(&self, id: Id) -> Option<Vec<String>> {
        let text = |id: &Id| Some(String::from_utf8_lossy(self.bytes(*id)?).into_owned());
        self.items(id)?.iter().map(text).collect()
    }

    /// The called function's name, its arguments and the state of the result.
    pub fn call(&self, id: Id) -> Option<(&str, &[Id], Option<Id>)> {
        let Value::Call(call) = &self.values[id] else { return None };
        let called = (self.name(call.name)?, self.items(call.arguments)?, call.state);
        (call.callee == Callee::Function).then_some(called)
    }

    /// The class of an object that is made without its say.
    pub fn class(&self, id: Id) -> Option<&str> {
        match &self.values[id] {
            Value::Call(call) if call.callee == Callee::Class => self.name(call.name),
            _ => None,
        }
    }

    /// `module.name`.
    pub fn name(&self, id: Id) -> Option<&str> {
        match &self.values[id] {
            Value::Name(name) => Some(name),
            _ => None,
        }
    }

    /// Every `module.name` of the file, used or not, but those that are only the class of objects
    /// that are made without its say: what such an object holds is data.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let (mut classes, mut functions) = (HashSet::new(), HashSet::new());
        for value in &self.values {
            if let Value::Call(call) = value {
                match call.callee {
                    Callee::Class => classes.insert(call.name),
                    Callee::Function => functions.insert(call.name),
                };
            }
        }
        let ids = (0..self.values.len())
            .filter(move |id| !classes.contains(id) || functions.contains(id));
        ids.filter_map(|id| self.name(id))
    }

    /// The entries of a dictionary in their order, or those that are set in what a call without
    /// arguments gives: what it is given as arguments, nobody knows.
    pub fn entries(&self, id: Id) -> Option<&[(Id, Id)]> {
        match &self.values[id] {
            Value::Dictionary(entries) => Some(entries),
            Value::Call(call) if self.items(call.arguments)?.is_empty() => Some(&call.entries),
            _ => None,
        }
    }

    /// Whether something is done to what a call gives: a state, or entries that are set in it.
    pub fn is_changed(&self, id: Id) -> bool {
        match &self.values[id] {
            Value::Call(call) => call.state.is_some() || !call.entries.is_empty(),
            _ => false,
        }
    }

    /// How the file calls what lies outside of the pickle.
    pub fn outside(&self, id: Id) -> Option<Id> {
        match &self.values[id] {
            Value::Outside(name) => Some(*name),
            _ => None,
        }
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
        assert!(entry("c").is_none());
    }

    #[test]
    fn a_file_that_asks_for_too_much_is_refused() {
        assert!(read(b"\x80\x02X\xff\xff\xff\xff.").expect_err("short").contains("too early"));
        let text = read(b"\x80\x02P1\n.").expect_err("an id as text");
        let reason = "the instruction 0x50, which no file of pictures or weights needs";
        assert_eq!(text, format!("byte 2 of the pickle: {reason}"));
        let mut many = vec![0x80, 2];
        many.resize(VALUES_MAX + 4, b'N');
        assert!(read(&many).expect_err("many").contains("more than"));
    }

    #[test]
    fn what_is_named_twice_is_held_once() {
        // Two long texts, joined to a name again and again: five bytes of the file each.
        let half = vec![b'a'; 200];
        let mut body = b"\x80\x04".to_vec();
        for _ in 0..2 {
            body.extend([&[0x8C, 200][..], &half, &[0x94]].concat());
        }
        body.extend(b"h\x00h\x01\x93".repeat(1000));
        body.push(b'.');
        assert!(read(&body).expect_err("long").contains("a name of more than 256 bytes"));
        // The same value on the stack for ever.
        let mut body = b"\x80\x02Nq\x00".to_vec();
        body.extend(b"h\x00".repeat(2000));
        body.push(b'.');
        let text = Pickle::read_within(&body, 1000).expect_err("many");
        assert!(text.contains("more than 1000 values on the stack"), "{text}");
        // A list that holds itself, in lists that hold it: no more than its instructions.
        let nested = [&b"\x80\x02]q\x00h\x00a"[..], &b"]h\x00aq\x00".repeat(10_000), b"."].concat();
        let pickle = read(&nested).expect("data");
        assert_eq!(pickle.integers(pickle.root()), None);
    }

    #[test]
    fn what_is_set_in_the_result_of_a_call_is_found() {
        let body = b"\x80\x02ccollections\nOrderedDict\n)R(X\x01\0\0\0aK\x07u}b.";
        let pickle = read(body).expect("reads");
        let found = pickle.entry(pickle.root(), "a").and_then(|id| pickle.integer(id));
        assert_eq!(found, Some(7));
        assert!(pickle.names().eq(["collections.OrderedDict"]));
        let (name, arguments, state) = pickle.call(pickle.root()).expect("a call");
        assert_eq!((name, arguments.len(), state.is_some()), ("collections.OrderedDict", 0, true));
        assert!(pickle.is_changed(pickle.root()));
        // What such a call is given is not looked into, so it is no dictionary that can be read.
        let given =
            b"\x80\x02ccollections\nOrderedDict\n](\x8c\x01aK\x07\x86e\x85R(X\x01\0\0\0bK\x07u.";
        let pickle = read(given).expect("reads");
        assert!(pickle.entries(pickle.root()).is_none());
        assert!(read(b"\x80\x02ccollections\nOrderedDict\n)R}b}b.").is_err(), "two states");
        let body = b"\x80\x02X\x01\0\0\0kQ.";
        let pickle = read(body).expect("reads");
        let name = pickle.outside(pickle.root()).and_then(|id| pickle.bytes(id));
        assert_eq!(name, Some(&b"k"[..]));
    }
}
