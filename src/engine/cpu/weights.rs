//! Parameters and statistics in the layouts that programs want: one copy per layout, shared by all
//! programs that want the same, brought up to date when computing first reaches it.

use std::rc::Rc;

use kintsugi_ffi::dnnl::{
    Arg, Buffer, Context, Data, Element, Error, MemoryDesc, Operation, Order, Primitive,
    PrimitiveDesc, Span,
};

use super::program::WeightUse;
use crate::engine::error::EngineError;
use crate::engine::source::WeightSource;
use crate::model::{Layout, TensorSpec};

/// One tensor in one layout.
struct Held {
    tensor: usize,
    desc: Rc<MemoryDesc>,
    buffer: Buffer,
    /// From row-major f32; `None` if this copy is that itself.
    reorder: Option<Reorder>,
    /// Programs that read it.
    users: usize,
    /// Whether it has the numbers of the state at hand.
    current: bool,
}

/// A change of layout or element type, and the scratch memory that it needs.
struct Reorder {
    primitive: Primitive,
    scratch: Buffer,
    scratch_bytes: usize,
}

impl Reorder {
    fn new(context: &Context, from: &MemoryDesc, to: &MemoryDesc) -> Result<Self, Error> {
        let operation = PrimitiveDesc::new(context, &Operation::Reorder { from, to })?;
        let scratch_bytes = operation.scratchpad_bytes();
        let mut args = vec![Arg::Src, Arg::Dst];
        if scratch_bytes > 0 {
            args.push(Arg::Scratchpad);
        }
        let primitive = Primitive::new(&operation, &args)?;
        Ok(Self { primitive, scratch: Buffer::zeroed(scratch_bytes), scratch_bytes })
    }

    fn run(&mut self, from: &[f32], to: &mut Buffer) -> Result<(), Error> {
        let mut args = vec![Data::Read(from), Data::Write(to.as_mut_slice())];
        if self.scratch_bytes > 0 {
            args.push(Data::Arena(Span { offset: 0, bytes: self.scratch_bytes }));
        }
        self.primitive.execute(&mut self.scratch, &mut args)
    }
}

impl Held {
    /// Takes a tensor's numbers over, row-major.
    fn fill(&mut self, numbers: &[f32]) -> Result<(), Error> {
        match &mut self.reorder {
            Some(reorder) => reorder.run(numbers, &mut self.buffer),
            None => {
                self.buffer.as_mut_slice()[..numbers.len()].copy_from_slice(numbers);
                Ok(())
            }
        }
    }
}

/// All copies.
pub struct Weights {
    context: Context,
    tensors: Vec<TensorSpec>,
    copies: Vec<Option<Held>>,
}

impl Weights {
    /// No copies yet.
    pub fn new(context: &Context, layout: &Layout) -> Self {
        let (context, tensors) = (context.clone(), layout.tensors.clone());
        Self { context, tensors, copies: Vec::new() }
    }

    /// Bytes of all copies.
    pub fn bytes(&self) -> usize {
        self.copies.iter().flatten().map(|copy| copy.buffer.bytes()).sum()
    }

    /// The state has changed: no copy is current.
    pub fn renew(&mut self) {
        self.copies.iter_mut().flatten().for_each(|copy| copy.current = false);
    }

    /// Brings copy `at` up to date, unless it is.
    pub fn refresh(&mut self, at: usize, source: &dyn WeightSource) -> Result<(), EngineError> {
        let copy = self.copies.get_mut(at).and_then(Option::as_mut).expect(LIVES);
        if copy.current {
            return Ok(());
        }
        let mut filled = Ok(());
        source.read(&self.tensors[copy.tensor], &mut |numbers| filled = copy.fill(numbers))?;
        filled?;
        copy.current = true;
        Ok(())
    }

    fn create(&mut self, tensor: usize, desc: Rc<MemoryDesc>) -> Result<usize, Error> {
        let plain = MemoryDesc::new(&desc.dims(), Element::F32, Order::Plain)?;
        let reorder = match plain == *desc {
            true => None,
            false => Some(Reorder::new(&self.context, &plain, &desc)?),
        };
        let buffer = Buffer::zeroed(desc.bytes());
        let copy = Held { tensor, desc, buffer, reorder, users: 0, current: false };
        let free = self.copies.iter().position(Option::is_none);
        let at = free.unwrap_or_else(|| {
            self.copies.push(None);
            self.copies.len() - 1
        });
        self.copies[at] = Some(copy);
        Ok(at)
    }

    /// The copy that a program wants; to be released.
    pub fn acquire(&mut self, wanted: &WeightUse) -> Result<usize, EngineError> {
        let same = |copy: &Held| copy.tensor == wanted.tensor && *copy.desc == *wanted.desc;
        let find = |slot: &Option<Held>| slot.as_ref().is_some_and(same);
        let at = match self.copies.iter().position(find) {
            Some(at) => at,
            None => self.create(wanted.tensor, wanted.desc.clone())?,
        };
        if let Some(copy) = &mut self.copies[at] {
            copy.users += 1;
        }
        Ok(at)
    }

    /// A program that read copy `at` is gone. The copy goes with the last.
    pub fn release(&mut self, at: usize) {
        let Some(copy) = self.copies.get_mut(at).and_then(Option::as_mut) else { return };
        copy.users -= 1;
        if copy.users == 0 {
            self.copies[at] = None;
        }
    }

    /// The numbers of copy `at`.
    pub fn data(&self, at: usize) -> &[f32] {
        self.copies.get(at).and_then(Option::as_ref).expect(LIVES).buffer.as_slice()
    }
}

/// Why a copy is there.
const LIVES: &str = "a program's copies live until it releases them";
