//! Parameters and statistics in the layouts that programs want: one copy per layout, reordered
//! once per load, shared by all programs that want the same.

use std::rc::Rc;

use kintsugi_ffi::dnnl::{
    Arg, Buffer, Context, Data, Error, MemoryDesc, Operation, Order, Primitive, PrimitiveDesc, Span,
};

use super::program::WeightUse;
use crate::engine::error::EngineError;
use crate::model::{Layout, TensorKind, TensorSpec};

/// One tensor in one layout.
struct Held {
    tensor: usize,
    desc: Rc<MemoryDesc>,
    buffer: Buffer,
    /// From row-major; `None` if this copy is row-major itself.
    reorder: Option<Reorder>,
    users: usize,
}

/// A change of layout and the scratch memory that it needs.
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

/// All copies. Every tensor has at least one once parameters were loaded.
pub struct Weights {
    context: Context,
    tensors: Vec<TensorSpec>,
    copies: Vec<Option<Held>>,
    loaded: bool,
}

impl Weights {
    /// No copies yet.
    pub fn new(context: &Context, layout: &Layout) -> Self {
        let (context, tensors) = (context.clone(), layout.tensors.clone());
        Self { context, tensors, copies: Vec::new(), loaded: false }
    }

    /// Whether `load` was called.
    pub fn loaded(&self) -> bool {
        self.loaded
    }

    /// Bytes of all copies.
    pub fn bytes(&self) -> usize {
        self.copies.iter().flatten().map(|copy| copy.buffer.bytes()).sum()
    }

    /// Brings every copy up to date. Tensors that no program reads yet are kept row-major; such
    /// copies go once a program holds another.
    pub fn load(&mut self, parameters: &[f32], statistics: &[f32]) -> Result<(), EngineError> {
        for tensor in 0..self.tensors.len() {
            let used = |copy: &Held| copy.tensor == tensor && copy.users > 0;
            let any_used = self.copies.iter().flatten().any(used);
            for slot in &mut self.copies {
                let idle = slot.as_ref().is_some_and(|c| c.tensor == tensor && c.users == 0);
                if idle && any_used {
                    *slot = None;
                }
            }
            if !self.copies.iter().flatten().any(|copy| copy.tensor == tensor) {
                let desc = MemoryDesc::new(&self.tensors[tensor].shape, Order::Plain)?;
                self.create(tensor, Rc::new(desc))?;
            }
        }
        for copy in self.copies.iter_mut().flatten() {
            let spec = &self.tensors[copy.tensor];
            let source = match spec.kind {
                TensorKind::Statistic => &statistics[spec.range()],
                TensorKind::Weight | TensorKind::Bias => &parameters[spec.range()],
            };
            match &mut copy.reorder {
                Some(reorder) => reorder.run(source, &mut copy.buffer)?,
                None => copy.buffer.as_mut_slice()[..source.len()].copy_from_slice(source),
            }
        }
        self.loaded = true;
        Ok(())
    }

    fn create(&mut self, tensor: usize, desc: Rc<MemoryDesc>) -> Result<usize, Error> {
        let plain = MemoryDesc::new(&desc.dims(), Order::Plain)?;
        let reorder = match plain == *desc {
            true => None,
            false => Some(Reorder::new(&self.context, &plain, &desc)?),
        };
        let buffer = Buffer::zeroed(desc.bytes());
        let copy = Held { tensor, desc, buffer, reorder, users: 0 };
        let free = self.copies.iter().position(Option::is_none);
        let at = free.unwrap_or_else(|| {
            self.copies.push(None);
            self.copies.len() - 1
        });
        self.copies[at] = Some(copy);
        Ok(at)
    }

    /// The copy that a program wants, made from another if it is new; to be released.
    pub fn acquire(&mut self, wanted: &WeightUse) -> Result<usize, EngineError> {
        let of_tensor = |copy: &Held| copy.tensor == wanted.tensor;
        let same = |copy: &Held| of_tensor(copy) && *copy.desc == *wanted.desc;
        let find = |slot: &Option<Held>| slot.as_ref().is_some_and(same);
        let at = match self.copies.iter().position(find) {
            Some(at) => at,
            None => {
                let source = self.copies.iter().flatten().find(|copy| of_tensor(copy));
                let mut filled = Buffer::zeroed(wanted.desc.bytes());
                if let Some(source) = source {
                    let from = if source.desc.dims() == wanted.desc.dims() {
                        source.desc.clone()
                    } else {
                        // Row-major: only such copies have other dimensions (see `load`).
                        Rc::new(MemoryDesc::new(&wanted.desc.dims(), Order::Plain)?)
                    };
                    let mut reorder = Reorder::new(&self.context, &from, &wanted.desc)?;
                    reorder.run(source.buffer.as_slice(), &mut filled)?;
                }
                let at = self.create(wanted.tensor, wanted.desc.clone())?;
                if let Some(copy) = &mut self.copies[at] {
                    copy.buffer = filled;
                }
                at
            }
        };
        if let Some(copy) = &mut self.copies[at] {
            copy.users += 1;
        }
        Ok(at)
    }

    /// A program that read copy `at` is gone. The copy goes with the last, unless it is the only
    /// one of its tensor.
    pub fn release(&mut self, at: usize) {
        let Some(copy) = self.copies.get_mut(at).and_then(Option::as_mut) else { return };
        copy.users -= 1;
        let (users, tensor) = (copy.users, copy.tensor);
        let copies = self.copies.iter().flatten().filter(|copy| copy.tensor == tensor).count();
        if users == 0 && copies > 1 {
            self.copies[at] = None;
        }
    }

    /// The numbers of copy `at`.
    pub fn data(&self, at: usize) -> &[f32] {
        self.copies
            .get(at)
            .and_then(Option::as_ref)
            .map(|copy| copy.buffer.as_slice())
            .expect("a program's copies live until it releases them")
    }
}
