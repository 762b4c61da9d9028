//! A call with the kernel that it launches.

use kintsugi_ffi::cuda::{self, Buffer, Function, Shape, Stream};

use super::call::{Argument, At, Call, THREADS};
use super::card::Card;
use super::convolutions::Plans;
use crate::engine::error::EngineError;

/// What can be put into a stream.
#[allow(missing_docs)]
pub enum Bound {
    /// Zeros in so many bytes.
    Clear { at: At, bytes: usize },
    /// cuDNN's plan of this number: source, weights, result and workspace.
    Product { plan: usize, at: [At; 4] },
    /// A kernel over so many blocks.
    Launch { kernel: Function, shape: Shape, arguments: Vec<Argument> },
}

impl Bound {
    /// Finds a call's kernel.
    pub fn new(card: &Card, call: Call) -> Result<Self, EngineError> {
        Ok(match call {
            Call::Clear { at, bytes } => Self::Clear { at, bytes },
            Call::Product { plan, src, weights, dst, workspace } => {
                Self::Product { plan, at: [src, weights, dst, workspace] }
            }
            Call::Launch { kernel, blocks: [x, y], arguments } => {
                let threads = [THREADS as u32, 1, 1];
                let shape = Shape { blocks: [x, y, 1], threads, shared_bytes: 0 };
                Self::Launch { kernel: card.kernel(&kernel)?, shape, arguments }
            }
        })
    }

    /// Puts it into a stream. `sent` is what went to the card with the micro-batch; `place` says
    /// where all else lies.
    pub fn perform<'m>(
        &self,
        stream: &Stream,
        plans: &Plans,
        sent: &'m Buffer,
        place: impl Fn(At) -> (&'m Buffer, usize),
    ) -> Result<(), cuda::Error> {
        match self {
            Self::Clear { at, bytes } => {
                let (buffer, start) = place(*at);
                stream.clear(buffer, start..start + bytes)
            }
            Self::Product { plan, at } => plans.execute(*plan, stream, at.map(place)),
            Self::Launch { kernel, shape, arguments } => {
                let given = |argument: &Argument| match *argument {
                    Argument::Place(at) => {
                        let (buffer, start) = place(at);
                        cuda::Argument::Memory(buffer, start)
                    }
                    Argument::Sent(at) => cuda::Argument::Memory(sent, at),
                    Argument::Int(value) => cuda::Argument::I32(value),
                    Argument::Word(value) => cuda::Argument::U64(value),
                    Argument::Float(value) => cuda::Argument::F32(value),
                };
                let arguments: Vec<_> = arguments.iter().map(given).collect();
                kernel.launch(stream, *shape, &arguments)
            }
        }
    }
}
