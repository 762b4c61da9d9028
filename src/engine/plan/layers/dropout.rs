//! Dropout (Srivastava et al. 2014), inverted: survivors are scaled in training, nothing happens
//! otherwise. Its mask is drawn from the run's own streams.

use crate::config::seed::{Stream, purpose};
use crate::engine::error::EngineError;
use crate::engine::plan::builder::Builder;
use crate::engine::plan::layer::{Forward, InputGradients, Kept, Layer};
use crate::engine::plan::operation::{Algorithm, Direction, Operation, Role};
use crate::engine::plan::steps::Action;
use crate::engine::plan::tensor::Tensor;
use crate::model::saved::Auxiliary;

/// Zeroes elements with probability `rate`.
pub struct Dropout {
    rate: f32,
}

impl Dropout {
    /// `rate` in 0..1.
    pub fn new(rate: f32) -> Self {
        Self { rate }
    }
}

/// `tensor` times the mask, row-major as the mask is. The mask is f32, so that its factor is exact.
fn apply(builder: &mut Builder<'_>, tensor: &Tensor, mask: &Tensor) -> Result<Tensor, EngineError> {
    let (desc, b) = (builder.row_major(&mask.desc.dims), &mask.desc);
    let tensor = builder.convert(tensor, &desc)?;
    let algorithm = Algorithm::Multiply;
    let choice = builder.choose(&Operation::Binary { algorithm, a: &desc, b, to: &desc })?;
    let result = builder.result(&choice, Role::Dst)?;
    let arguments = [(Role::Src, &tensor), (Role::Src1, mask), (Role::Dst, &result)];
    builder.run(&choice, &arguments, &[(&tensor, &result)]);
    Ok(result)
}

/// Writes a mask: element i (row-major over the micro-batch) is word i of the stream keyed by
/// `(DROPOUT, key, node)`, so masks do not depend on layouts, threads or devices.
pub fn fill_mask(mask: &mut [f32], rate: f32, key: [u64; 3], node: usize) {
    let mut stream = Stream::new(&[purpose::DROPOUT, key[0], key[1], key[2], node as u64]);
    let kept = 1.0 / (1.0 - rate);
    let threshold = f64::from(rate);
    for value in mask {
        *value = if stream.unit() < threshold { 0.0 } else { kept };
    }
}

impl Layer for Dropout {
    fn forward(
        &mut self,
        builder: &mut Builder<'_>,
        inputs: &[Tensor],
    ) -> Result<Forward, EngineError> {
        let input = &inputs[0];
        if builder.direction() == Direction::Inference || self.rate == 0.0 {
            return Ok(Forward::new(input.clone(), input.clone()));
        }
        let dims = &input.desc.dims;
        let mask = builder.value(builder.row_major_f32(dims));
        if let Some(value) = mask.place.value() {
            let elements = dims.iter().product();
            let action = Action::Mask { value, elements, rate: self.rate, node: builder.node };
            builder.step(action, Vec::new(), vec![value]);
        }
        let output = apply(builder, input, &mask)?;
        let auxiliary = vec![(Auxiliary::DropoutMask, mask)];
        Ok(Forward { input: input.clone(), output, auxiliary })
    }

    fn backward(
        &mut self,
        builder: &mut Builder<'_>,
        kept: &Kept,
        gradient: &Tensor,
        _wanted: &[bool],
    ) -> Result<InputGradients, EngineError> {
        match kept.auxiliary(Auxiliary::DropoutMask) {
            None => Ok(vec![Some(gradient.clone())]),
            Some(mask) => Ok(vec![Some(apply(builder, gradient, mask)?)]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_drops_its_rate_and_keeps_the_mean() {
        let mut mask = vec![0.0; 100_000];
        fill_mask(&mut mask, 0.3, [1, 2, 3], 4);
        let dropped = mask.iter().filter(|&&x| x == 0.0).count() as f64 / 1e5;
        assert!((dropped - 0.3).abs() < 0.01, "{dropped}");
        let mean = mask.iter().map(|&x| f64::from(x)).sum::<f64>() / 1e5;
        assert!((mean - 1.0).abs() < 0.01, "{mean}");
    }

    #[test]
    fn masks_differ_by_key_and_node_only() {
        let draw = |key, node| {
            let mut mask = vec![0.0; 64];
            fill_mask(&mut mask, 0.5, key, node);
            mask
        };
        assert_eq!(draw([1, 2, 3], 4), draw([1, 2, 3], 4));
        assert_ne!(draw([1, 2, 3], 4), draw([1, 2, 3], 5));
        assert_ne!(draw([1, 2, 3], 4), draw([1, 2, 4], 4));
    }
}
