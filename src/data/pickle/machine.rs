//! The machine that reads a pickle: a stack, marks and numbered values. It imports and calls
//! nothing: an import is a name, a call is a record of what would be called.

use std::collections::HashMap;
use std::ops::Range;

/// Most values of one file: a bound on the memory that a small file can ask for.
pub(super) const VALUES_MAX: usize = 4 << 20;
/// Longest `module.name`, in bytes: two texts of the file may be joined to any number of names.
pub(super) const NAME_BYTES_MAX: usize = 256;

/// A value's place.
pub type Id = usize;

/// What a file holds, piece by piece; pieces name each other by place.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
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
    Call(Box<Call>),
    /// What lies outside of the pickle, and how the file calls it.
    Outside(Id),
}

/// What is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Callee {
    /// A function, or a class that has its say: what comes of it, only running it would tell.
    Function,
    /// A class whose objects are made without its own say: what they hold is what they are given.
    Class,
}

/// A call that nobody makes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Call {
    pub callee: Callee,
    pub name: Id,
    pub arguments: Id,
    /// What the result is built with.
    pub state: Option<Id>,
    /// What is set in the result, where it is a dictionary.
    pub entries: Vec<(Id, Id)>,
}

/// Runs through the whole file: its values, and which of them it is all about.
pub(super) fn run(file: &[u8], values_max: usize) -> Result<(Vec<Value>, Id), String> {
    let memo = HashMap::new();
    let (stack, marks) = (Vec::new(), Vec::new());
    let mut machine = Machine { file, at: 0, values: Vec::new(), values_max, stack, marks, memo };
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
            return Ok((machine.values, root));
        }
        machine.step(code).map_err(wrong)?;
    }
}

/// The machine while it reads.
struct Machine<'a> {
    file: &'a [u8],
    at: usize,
    values: Vec<Value>,
    values_max: usize,
    stack: Vec<Id>,
    /// Heights of the stack at the marks.
    marks: Vec<usize>,
    /// Numbered values; numbers are those of the file, in any order.
    memo: HashMap<usize, Id>,
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

    /// A signed number, the lowest byte first; one of more than eight (the state of a generator of
    /// random numbers) is nothing that is asked for.
    fn signed(&mut self, bytes: usize) -> Result<Value, String> {
        let range = self.take(bytes)?;
        let digits = &self.file[range];
        let fill = if digits.last().is_some_and(|top| top & 0x80 != 0) { 0xFF } else { 0 };
        let mut whole = [fill; 8];
        let Some(low) = whole.get_mut(..bytes) else { return Ok(Value::Other) };
        low.copy_from_slice(digits);
        Ok(Value::Integer(i64::from_le_bytes(whole)))
    }

    fn line(&mut self) -> Result<&str, String> {
        let rest = &self.file[self.at..];
        let length = rest.iter().position(|byte| *byte == b'\n').ok_or("a name without an end")?;
        let line = std::str::from_utf8(&rest[..length]).map_err(|_| "a name that is no text")?;
        self.at += length + 1;
        Ok(line)
    }

    fn push(&mut self, value: Value) -> Result<(), String> {
        if self.values.len() == self.values_max {
            return Err(format!("more than {} values", self.values_max));
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
            // A list of somebody's class: nobody asks what is in it.
            Value::Call(_) => {}
            _ => return Err("what is appended to is no list".into()),
        }
        Ok(())
    }

    fn set(&mut self, pairs: &[Id]) -> Result<(), String> {
        let dictionary = self.top()?;
        let all = match &mut self.values[dictionary] {
            Value::Dictionary(all) => all,
            Value::Call(call) => &mut call.entries,
            _ => return Err("what an entry is set in is no dictionary".into()),
        };
        if !pairs.len().is_multiple_of(2) {
            return Err("a key without a value".into());
        }
        all.extend(pairs.chunks_exact(2).map(|pair| (pair[0], pair[1])));
        Ok(())
    }

    fn remember(&mut self, number: usize) -> Result<(), String> {
        let top = self.top()?;
        if self.memo.len() == self.values_max {
            return Err(format!("more than {} numbered values", self.values_max));
        }
        self.memo.insert(number, top);
        Ok(())
    }

    fn recall(&mut self, number: usize) -> Result<(), String> {
        let id = self.memo.get(&number).ok_or("a value that is not there")?;
        if self.stack.len() == self.values_max {
            return Err(format!("more than {} values on the stack", self.values_max));
        }
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
        let both = text(module).zip(text(name)).ok_or("a name that is no text")?;
        let name = named(both.0, both.1)?;
        self.push(Value::Name(name))
    }

    fn call(&mut self, callee: Callee) -> Result<(), String> {
        let (arguments, name) = (self.pop()?, self.pop()?);
        let call = Call { callee, name, arguments, state: None, entries: Vec::new() };
        self.push(Value::Call(Box::new(call)))
    }

    fn build(&mut self) -> Result<(), String> {
        let (given, built) = (self.pop()?, self.top()?);
        match &mut self.values[built] {
            Value::Call(call) if call.state.is_some() => return Err("a second state".into()),
            Value::Call(call) => call.state = Some(given),
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
                let module = self.line()?.to_owned();
                let name = named(&module, self.line()?)?;
                self.push(Value::Name(name))
            }
            0x93 => self.stacked_name(),
            b'R' => self.call(Callee::Function),
            0x81 => self.call(Callee::Class),
            b'Q' => self.pop().and_then(|id| self.push(Value::Outside(id))),
            b'b' => self.build(),
            other => Err(format!(
                "the instruction {other:#04x}, which no file of pictures or weights needs"
            )),
        }
    }

    fn whole_number(&mut self, code: u8) -> Result<(), String> {
        let value = match code {
            b'K' => Value::Integer(self.number(1)? as i64),
            b'M' => Value::Integer(self.number(2)? as i64),
            b'J' => self.signed(4)?,
            _ => {
                let bytes = self.number(1)?;
                self.signed(bytes)?
            }
        };
        self.push(value)
    }
}

fn named(module: &str, name: &str) -> Result<String, String> {
    match module.len() + name.len() < NAME_BYTES_MAX {
        true => Ok(format!("{module}.{name}")),
        false => Err(format!("a name of more than {NAME_BYTES_MAX} bytes")),
    }
}
