//! What a kernel of a plan reads and writes in a pass: where its values lie in the arena, which
//! weights it reads as copies, and which in the state itself.

use kintsugi_ffi::arena::{Arena, Span};
use kintsugi_ffi::dnnl::{Data, Error, Primitive};

use super::weights::Weights;
use crate::engine::error::EngineError;
use crate::engine::plan::operation::Role;
use crate::engine::plan::tensor::Place;
use crate::engine::source::WeightSource;

/// One step's.
pub struct Operands<'a> {
    /// As the plan has them, in the arena where they lie now.
    pub arguments: &'a [(Role, Place<Span>)],
    /// The copies of weights that the program holds, by the plan's number.
    pub copies: &'a [usize],
}

/// A tensor in the state itself: which copy it stands for, and its numbers.
type Lent<'a> = Option<(usize, &'a [f32])>;

impl Operands<'_> {
    fn weights(&self) -> impl Iterator<Item = usize> {
        let numbers = self.arguments.iter().filter_map(|(_, place)| place.weight());
        numbers.map(|number| self.copies[number])
    }

    /// Brings the copies up to date that it reads.
    pub fn refresh(
        &self,
        weights: &mut Weights,
        source: &dyn WeightSource,
    ) -> Result<(), EngineError> {
        let lent = self.lent(weights);
        let mut copied = self.weights().filter(|&copy| Some(copy) != lent);
        copied.try_for_each(|copy| weights.refresh(copy, source))
    }

    /// Of several the first: nobody holds the state twice.
    fn lent(&self, weights: &Weights) -> Option<usize> {
        self.weights().find(|&copy| weights.lent(copy).is_some())
    }

    /// Runs a kernel that has these operands; copies are up to date. The state is held, if at all,
    /// while the kernel runs.
    pub fn run(
        &self,
        primitive: &mut Primitive,
        weights: &Weights,
        source: &dyn WeightSource,
        arena: &Arena,
        images: &[f32],
    ) -> Result<(), EngineError> {
        let lent = self.lent(weights);
        let Some((copy, tensor)) = lent.and_then(|copy| Some((copy, weights.lent(copy)?))) else {
            return Ok(self.execute(primitive, weights, arena, images, None)?);
        };
        let mut done = Ok(());
        source.read(tensor, &mut |numbers| {
            done = self.execute(primitive, weights, arena, images, Some((copy, numbers)));
        })?;
        Ok(done?)
    }

    fn execute(
        &self,
        primitive: &mut Primitive,
        weights: &Weights,
        arena: &Arena,
        images: &[f32],
        lent: Lent<'_>,
    ) -> Result<(), Error> {
        let places = self.arguments.iter().zip(primitive.accesses());
        let values = places.filter_map(|((_, place), access)| Some((place.value()?, access)));
        let mut lease = arena.lease(values);
        let mut values = lease.arguments();
        let data = |(_, place): &(Role, Place<Span>)| match *place {
            Place::Value(_) => Data::Lent(values.next().expect("all values were leased")),
            Place::Image => Data::Read(images),
            Place::Weight(number) => Data::Read(match lent {
                Some((copy, numbers)) if copy == self.copies[number] => numbers,
                _ => weights.data(self.copies[number]),
            }),
        };
        let mut data: Vec<Data<'_>> = self.arguments.iter().map(data).collect();
        primitive.execute(&mut data)
    }
}
