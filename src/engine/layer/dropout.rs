//! Dropout (Srivastava et al. 2014), inverted: survivors are scaled in training, nothing happens
//! otherwise. Saves its mask, which is drawn from the run's own streams.

use kintsugi_ffi::dnnl::{Algorithm, Arg, Direction, MemoryDesc, Operation, Order};

use super::{InputGradients, Layer};
use crate::config::seed::{Stream, purpose};
use crate::engine::error::EngineError;
use crate::engine::program::{Builder, Place, Step, Tensor};

/// Zeroes elements with probability `rate`.
pub struct Dropout {
    rate: f32,
    mask: Option<Tensor>,
}

impl Dropout {
    /// `rate` in 0..1.
    pub fn new(rate: f32) -> Self {
        Self { rate, mask: None }
    }

    /// `tensor` times the mask, row-major as the mask is.
    fn apply(
        &self,
        builder: &mut Builder<'_>,
        tensor: &Tensor,
        mask: &Tensor,
    ) -> Result<Tensor, EngineError> {
        let desc: &MemoryDesc = &mask.desc.clone();
        let tensor = builder.convert(tensor, desc)?;
        let algorithm = Algorithm::Multiply;
        let operation =
            builder.choose(&Operation::Binary { algorithm, a: desc, b: desc, to: desc })?;
        let result = builder.result(&operation, Arg::Dst)?;
        let args = [(Arg::Src, &tensor), (Arg::Src1, mask), (Arg::Dst, &result)];
        builder.run(&operation, &args, &[(&tensor, &result)])?;
        Ok(result)
    }
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
    ) -> Result<Tensor, EngineError> {
        if builder.direction == Direction::Inference || self.rate == 0.0 {
            return Ok(inputs[0].clone());
        }
        let dims = inputs[0].desc.dims();
        let desc = builder.desc(&dims, Order::Plain)?;
        let mask = builder.value(desc);
        if let Place::Value(value) = mask.place {
            let elements = dims.iter().product();
            let step = Step::Mask { value, elements, rate: self.rate, node: builder.node };
            builder.step(step, vec![value]);
        }
        let output = self.apply(builder, &inputs[0], &mask)?;
        self.mask = Some(mask);
        Ok(output)
    }

    fn backward(
        &mut self,
        builder: &mut Builder<'_>,
        gradient: &Tensor,
        _wanted: &[bool],
    ) -> Result<InputGradients, EngineError> {
        match &self.mask {
            None => Ok(vec![Some(gradient.clone())]),
            Some(mask) => Ok(vec![Some(self.apply(builder, gradient, mask)?)]),
        }
    }

    fn saved(&self) -> Vec<Tensor> {
        self.mask.iter().cloned().collect()
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
