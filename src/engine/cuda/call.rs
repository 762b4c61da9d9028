//! One thing that a card is told, and the way to write it down.

use crate::engine::plan::operation::Refusal;
use crate::engine::plan::placement::Span;
use crate::engine::plan::steps::Way;
use crate::engine::plan::tensor::{ElementType, Place};

/// Threads of a block, as kernels are written for.
pub const THREADS: usize = 256;
/// Where something lies.
pub type At = Place<Span>;

/// An argument of a kernel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Argument {
    /// A pointer.
    Place(At),
    /// A pointer to what was sent with the micro-batch, so many bytes behind its start.
    Sent(usize),
    /// `int`
    Int(i32),
    /// `unsigned long long`
    Word(u64),
    /// `float`
    Float(f32),
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Call {
    /// Zeros in so many bytes.
    Clear { at: At, bytes: usize },
    /// cuDNN's plan of this number, with what it works in.
    Product { plan: usize, src: At, weights: At, dst: At, workspace: At },
    /// A kernel over so many blocks.
    Launch { kernel: String, blocks: [u32; 2], arguments: Vec<Argument> },
}

impl Call {
    /// In a word.
    pub fn kind(&self) -> &str {
        match self {
            Self::Clear { .. } => "clear",
            Self::Product { .. } => "product",
            Self::Launch { kernel, .. } => kernel,
        }
    }
}

/// One line of a script.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Line<C = Call> {
    /// This weight, by its number in the plan, is read from here on.
    Weight(usize),
    /// A kernel, or zeros.
    Call(C),
    /// From staging memory to the card.
    Up { from: usize, to: Span, bytes: usize },
    /// From the card to the host: the next output.
    Down { from: At, bytes: usize },
    /// A copy between the tiers of memory begins, beside the lines that follow.
    Begin { way: Way, near: Span, far_offset: usize },
    /// It has ended before what follows begins.
    End { way: Way, near: Span, far_offset: usize },
}

impl Line {
    /// The same with its call in other words.
    pub fn map<C, E>(self, call: impl FnOnce(Call) -> Result<C, E>) -> Result<Line<C>, E> {
        Ok(match self {
            Self::Weight(weight) => Line::Weight(weight),
            Self::Call(own) => Line::Call(call(own)?),
            Self::Up { from, to, bytes } => Line::Up { from, to, bytes },
            Self::Down { from, bytes } => Line::Down { from, bytes },
            Self::Begin { way, near, far_offset } => Line::Begin { way, near, far_offset },
            Self::End { way, near, far_offset } => Line::End { way, near, far_offset },
        })
    }
}

/// Collects the arguments of a launch; a size that no `int` holds is told at the end.
pub struct Launch {
    kernel: String,
    arguments: Vec<Argument>,
    too_large: Option<usize>,
}

impl Launch {
    /// Of this name.
    pub fn new(kernel: &str) -> Self {
        Self { kernel: kernel.into(), arguments: Vec::new(), too_large: None }
    }

    /// One of the kernels that are there for every element type.
    pub fn of(kernel: &str, element: ElementType) -> Self {
        Self::new(&format!("{kernel}_{}", word(element)))
    }

    /// Pointers.
    pub fn at(mut self, places: &[At]) -> Self {
        self.arguments.extend(places.iter().map(|&place| Argument::Place(place)));
        self
    }

    /// Whole numbers, none of them negative.
    pub fn ints(mut self, values: &[usize]) -> Self {
        for &value in values {
            let int = i32::try_from(value).ok();
            self.too_large = self.too_large.or(int.is_none().then_some(value));
            self.arguments.push(Argument::Int(int.unwrap_or_default()));
        }
        self
    }

    /// Others.
    pub fn arguments(mut self, arguments: &[Argument]) -> Self {
        self.arguments.extend_from_slice(arguments);
        self
    }

    /// So many blocks in each of two dimensions.
    pub fn over(self, blocks: [usize; 2]) -> Result<Call, Refusal> {
        let large = |size| {
            Refusal(format!(
                "{}: {size} is more than a kernel counts: raise train.accumulate",
                self.kernel
            ))
        };
        let blocks = blocks.map(|count| i32::try_from(count.max(1)).map_err(|_| large(count)));
        let [x, y] = blocks;
        if let Some(size) = self.too_large {
            return Err(large(size));
        }
        let blocks = [x?.unsigned_abs(), y?.unsigned_abs()];
        Ok(Call::Launch { kernel: self.kernel, blocks, arguments: self.arguments })
    }

    /// A thread for each of so many.
    pub fn threads(self, count: usize) -> Result<Call, Refusal> {
        // The last block's threads are numbered beyond it.
        match i32::try_from(count + THREADS) {
            Ok(_) => self.over([count.div_ceil(THREADS), 1]),
            Err(_) => Err(Refusal(format!(
                "{}: {count} elements are too many: raise train.accumulate",
                self.kernel
            ))),
        }
    }
}

/// As kernels' names have it.
pub fn word(element: ElementType) -> &'static str {
    match element {
        ElementType::Bf16 => "bf16",
        _ => "f32",
    }
}
