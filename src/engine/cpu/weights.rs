//! Parameters and statistics in the layouts that programs want: one copy per layout, shared by all
//! programs that want the same, brought up to date when computing first reaches it. A matrix that
//! is wanted as the state has it needs no copy: a kernel reads it where it lies (see `lent`).

use std::rc::Rc;

use kintsugi_ffi::arena::Buffer;
use kintsugi_ffi::dnnl::{Context, Data, Error, MemoryDesc, Primitive, PrimitiveDesc};
use kintsugi_ffi::operation::{ElementType, Operation, Role};

use crate::engine::error::EngineError;
use crate::engine::plan::steps::WeightUse;
use crate::engine::source::WeightSource;
use crate::model::{Layout, TensorSpec};

/// One tensor in one layout.
struct Held {
    tensor: usize,
    desc: Rc<MemoryDesc>,
    /// Empty while it is only lent, or written elsewhere.
    buffer: Buffer,
    /// From row-major f32; `None` if this copy is that itself.
    reorder: Option<Reorder>,
    /// Whether kernels may read the state itself instead.
    lendable: bool,
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
    fn new(context: &Context, from: Rc<MemoryDesc>, to: Rc<MemoryDesc>) -> Result<Self, Error> {
        let operation = PrimitiveDesc::new(context, &Operation::Reorder { from, to })?;
        let scratch_bytes = operation.scratchpad_bytes();
        let mut args = vec![Role::Src, Role::Dst];
        if scratch_bytes > 0 {
            args.push(Role::Scratchpad);
        }
        let primitive = Primitive::new(&operation, &args)?;
        Ok(Self { primitive, scratch: Buffer::zeroed(scratch_bytes), scratch_bytes })
    }

    fn run(&mut self, from: &[f32], to: &mut [f32]) -> Result<(), Error> {
        let mut args = vec![Data::Read(from), Data::Write(to)];
        if self.scratch_bytes > 0 {
            args.push(Data::Write(self.scratch.as_mut_slice()));
        }
        self.primitive.execute(&mut args)
    }
}

impl Held {
    /// Has memory for its numbers.
    fn reserve(&mut self) {
        if self.buffer.bytes() < self.desc.bytes() {
            self.buffer = Buffer::zeroed(self.desc.bytes());
        }
    }

    /// Takes a tensor's numbers over, row-major.
    fn fill(&mut self, numbers: &[f32]) -> Result<(), Error> {
        self.reserve();
        lay_out(&mut self.reorder, numbers, self.buffer.as_mut_slice())
    }
}

/// Writes row-major numbers as a copy has them.
fn lay_out(reorder: &mut Option<Reorder>, from: &[f32], to: &mut [f32]) -> Result<(), Error> {
    match reorder {
        Some(reorder) => reorder.run(from, to),
        None => {
            to[..from.len()].copy_from_slice(from);
            Ok(())
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

    #[cfg(test)]
    /// Bytes of all copies.
    pub fn bytes(&self) -> usize {
        self.copies.iter().flatten().map(|copy| copy.buffer.bytes()).sum()
    }

    /// The state has changed: no copy is current.
    pub fn renew(&mut self) {
        self.copies.iter_mut().flatten().for_each(|copy| copy.current = false);
    }

    /// The tensor that a kernel is to read in the state itself, instead of copy `at`: one whose
    /// layout is the state's, unless it was copied for who cannot promise that the state stays.
    pub fn lent(&self, at: usize) -> Option<&TensorSpec> {
        let copy = self.copies.get(at).and_then(Option::as_ref).expect(LIVES);
        (copy.lendable && !copy.current).then(|| &self.tensors[copy.tensor])
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

    /// Gives copy `at` memory, unless kernels read the state.
    pub fn reserve(&mut self, at: usize) {
        let copy = self.copies.get_mut(at).and_then(Option::as_mut).expect(LIVES);
        if !copy.lendable {
            copy.reserve();
        }
    }

    /// Writes the state's numbers of copy `at` elsewhere.
    pub fn load(
        &mut self,
        at: usize,
        source: &dyn WeightSource,
        into: &mut [f32],
    ) -> Result<(), EngineError> {
        let copy = self.copies.get_mut(at).and_then(Option::as_mut).expect(LIVES);
        let mut laid_out = Ok(());
        source.read(&self.tensors[copy.tensor], &mut |numbers| {
            laid_out = lay_out(&mut copy.reorder, numbers, into);
        })?;
        Ok(laid_out?)
    }

    fn create(&mut self, tensor: usize, desc: Rc<MemoryDesc>) -> Result<usize, Error> {
        let plain = row_major(&desc)?;
        let reorder = match plain == *desc {
            true => None,
            false => Some(Reorder::new(&self.context, Rc::new(plain), desc.clone())?),
        };
        let lendable = is_lendable(&self.tensors[tensor], &desc);
        let (buffer, users, current) = (Buffer::zeroed(0), 0, false);
        let copy = Held { tensor, desc, buffer, reorder, lendable, users, current };
        let free = self.copies.iter().position(Option::is_none);
        let at = free.unwrap_or_else(|| {
            self.copies.push(None);
            self.copies.len() - 1
        });
        self.copies[at] = Some(copy);
        Ok(at)
    }

    /// The copy that a program wants; to be released.
    pub fn acquire(&mut self, wanted: &WeightUse<MemoryDesc>) -> Result<usize, EngineError> {
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

/// Whether kernels read a tensor in the state itself, where it lies as they want it. Only matrices
/// and filters: a kernel has one of them at most, so it never holds the state twice; vectors are
/// small.
pub fn is_lendable(tensor: &TensorSpec, wanted: &MemoryDesc) -> bool {
    tensor.shape.len() > 1 && row_major(wanted).is_ok_and(|plain| plain == *wanted)
}

/// How states have a tensor.
fn row_major(wanted: &MemoryDesc) -> Result<MemoryDesc, Error> {
    MemoryDesc::plain(&wanted.dims(), ElementType::F32)
}

/// Why a copy is there.
const LIVES: &str = "a program's copies live until it releases them";
