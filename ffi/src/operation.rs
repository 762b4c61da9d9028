//! Every operation that is asked of a device, as data: the one vocabulary of plans and of the
//! libraries that they are realised with. It names no library and holds no memory. A descriptor
//! (`D`) says how a tensor lies, a hint (`H`) which forward kernel a backward one belongs to, each
//! in the words of who asks.

/// What the elements of a tensor are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElementType {
    /// IEEE 754 single precision.
    F32,
    /// The upper half of an f32.
    Bf16,
    /// Bytes that only the device understands.
    Raw,
}

impl ElementType {
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
            Self::Raw => 1,
        }
    }
}

/// What a forward pass is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// A backward pass follows: workspaces and statistics are written.
    Training,
    /// Nothing follows.
    Inference,
}

/// Which pass. The tensors of a backward pass are the gradients of those of the forward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Pass<H> {
    Forward(Direction),
    Backward(H),
}

impl<H> Pass<H> {
    fn map<'a, I>(&'a self, hint: impl Fn(&'a H) -> I) -> Pass<I> {
        match self {
            Self::Forward(direction) => Pass::Forward(*direction),
            Self::Backward(of) => Pass::Backward(hint(of)),
        }
    }
}

/// Which pass of a product with weights: backward there are two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ProductPass<H> {
    Forward {
        direction: Direction,
        activation: Activation,
    },
    /// The gradient of the source.
    BackwardData(H),
    /// The gradients of weights and bias.
    BackwardWeights(H),
}

impl<H> ProductPass<H> {
    fn map<'a, I>(&'a self, hint: impl Fn(&'a H) -> I) -> ProductPass<I> {
        match self {
            Self::Forward { direction, activation } => {
                ProductPass::Forward { direction: *direction, activation: *activation }
            }
            Self::BackwardData(of) => ProductPass::BackwardData(hint(of)),
            Self::BackwardWeights(of) => ProductPass::BackwardWeights(hint(of)),
        }
    }
}

/// Whether ReLU is applied within the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Activation {
    None,
    Relu,
}

/// How two tensors become one, element by element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Algorithm {
    Add,
    Multiply,
    AddRelu,
}

/// A sliding window over height and width; sizes in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Window {
    pub kernel: [usize; 2],
    pub stride: [usize; 2],
    /// Above and to the left.
    pub padding: [usize; 2],
    /// Below and to the right.
    pub padding_end: [usize; 2],
    /// Distance of two elements of a kernel; 1: they are neighbours.
    pub dilation: [usize; 2],
}

impl Window {
    /// All of a plane of this size.
    pub fn whole(size: [usize; 2]) -> Self {
        let (none, one) = ([0; 2], [1; 2]);
        Self { kernel: size, stride: one, padding: none, padding_end: none, dilation: one }
    }
}

/// Which pooling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// The largest.
    Max,
    /// The mean over the window, padding counted.
    Average,
    /// The mean over the part of the window that is not padding.
    AverageInside,
}

/// What a softmax gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum SoftmaxForm {
    Probabilities,
    /// Their natural logarithms.
    Logarithms,
}

/// What becomes of each element.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Function {
    /// `max(x, 0)`.
    Relu,
    /// `min(max(x, 0), 6)`.
    Relu6,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// `x / (1 + exp(-x))`.
    Silu,
    /// `min(max(x / 6 + 1 / 2, 0), 1)`.
    HardSigmoid,
    /// `x min(max(x / 6 + 1 / 2, 0), 1)`.
    HardSwish,
    /// Times a constant.
    Scale(f32),
}

impl Function {
    /// Whether a backward pass reads the forward result; else it reads the source.
    pub fn is_seen_from_result(self) -> bool {
        matches!(self, Self::Relu | Self::Relu6 | Self::Sigmoid)
    }
}

/// What a batch norm centres and scales by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Statistics {
    /// The micro-batch's own mean and (biased) variance, which it computes.
    Batch,
    /// The running ones, which it reads.
    Running,
}

/// Batch normalisation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Norm {
    /// Which statistics.
    pub statistics: Statistics,
    /// Added to the variance.
    pub epsilon: f32,
    /// ReLU within; in training this adds a workspace.
    pub activation: Activation,
}

/// Local response normalisation across channels: `x (k + alpha / size * sum x^2)^-beta`.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub struct Lrn {
    pub size: usize,
    pub alpha: f32,
    pub beta: f32,
    pub k: f32,
}

/// What an argument of an operation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Role {
    Src,
    Src1,
    Dst,
    Weights,
    Bias,
    Mean,
    Variance,
    Scale,
    Shift,
    /// What a forward pass leaves for its backward pass, in the device's own form.
    Workspace,
    /// Memory that one execution needs for itself.
    Scratchpad,
    DiffSrc,
    DiffDst,
    DiffWeights,
    DiffBias,
    DiffScale,
    DiffShift,
    /// One of several sources.
    Source(usize),
}

/// What an operation does with an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Access {
    Read,
    Write,
}

/// An operation on tensors of given descriptors.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub enum Operation<D, H> {
    Reorder {
        from: D,
        to: D,
    },
    /// The part of a tensor from `offsets` on that has the size of `to`. Refused where the order
    /// of `from` does not allow it.
    Cut {
        from: D,
        to: D,
        offsets: Vec<usize>,
    },
    Concat {
        sources: Vec<D>,
        axis: usize,
    },
    /// Of `b`, a size of 1 stands for any.
    Binary {
        algorithm: Algorithm,
        a: D,
        b: D,
        to: D,
    },
    /// Weights of several groups have one dimension more, the groups, before all others.
    Conv {
        src: D,
        weights: D,
        bias: Option<D>,
        dst: D,
        window: Window,
        pass: ProductPass<H>,
    },
    Linear {
        src: D,
        weights: D,
        bias: Option<D>,
        dst: D,
        pass: ProductPass<H>,
    },
    Pointwise {
        function: Function,
        data: D,
        pass: Pass<H>,
    },
    /// Over the second dimension.
    Softmax {
        form: SoftmaxForm,
        data: D,
        pass: Pass<H>,
    },
    Pool {
        kind: Pooling,
        src: D,
        dst: D,
        window: Window,
        pass: Pass<H>,
    },
    Lrn {
        lrn: Lrn,
        data: D,
        pass: Pass<H>,
    },
    BatchNorm {
        norm: Norm,
        data: D,
        pass: Pass<H>,
    },
}

impl<D, H> Operation<D, H> {
    /// The same in other words.
    ///
    /// # Errors
    /// What `desc` says of a descriptor that it has no word for.
    pub fn map<'a, E, I, X>(
        &'a self,
        desc: impl Fn(&'a D) -> Result<E, X>,
        hint: impl Fn(&'a H) -> I,
    ) -> Result<Operation<E, I>, X> {
        let optional = |bias: &'a Option<D>| bias.as_ref().map(&desc).transpose();
        Ok(match self {
            Self::Reorder { from, to } => Operation::Reorder { from: desc(from)?, to: desc(to)? },
            Self::Cut { from, to, offsets } => {
                Operation::Cut { from: desc(from)?, to: desc(to)?, offsets: offsets.clone() }
            }
            Self::Concat { sources, axis } => {
                let sources = sources.iter().map(desc).collect::<Result<_, _>>()?;
                Operation::Concat { sources, axis: *axis }
            }
            Self::Binary { algorithm, a, b, to } => {
                let (a, b, to) = (desc(a)?, desc(b)?, desc(to)?);
                Operation::Binary { algorithm: *algorithm, a, b, to }
            }
            Self::Conv { src, weights, bias, dst, window, pass } => {
                let (src, weights, dst) = (desc(src)?, desc(weights)?, desc(dst)?);
                let (bias, window, pass) = (optional(bias)?, *window, pass.map(hint));
                Operation::Conv { src, weights, bias, dst, window, pass }
            }
            Self::Linear { src, weights, bias, dst, pass } => {
                let (src, weights, dst) = (desc(src)?, desc(weights)?, desc(dst)?);
                Operation::Linear { src, weights, bias: optional(bias)?, dst, pass: pass.map(hint) }
            }
            Self::Pointwise { function, data, pass } => Operation::Pointwise {
                function: *function,
                data: desc(data)?,
                pass: pass.map(hint),
            },
            Self::Softmax { form, data, pass } => {
                Operation::Softmax { form: *form, data: desc(data)?, pass: pass.map(hint) }
            }
            Self::Pool { kind, src, dst, window, pass } => {
                let (src, dst, pass) = (desc(src)?, desc(dst)?, pass.map(hint));
                Operation::Pool { kind: *kind, src, dst, window: *window, pass }
            }
            Self::Lrn { lrn, data, pass } => {
                Operation::Lrn { lrn: *lrn, data: desc(data)?, pass: pass.map(hint) }
            }
            Self::BatchNorm { norm, data, pass } => {
                Operation::BatchNorm { norm: *norm, data: desc(data)?, pass: pass.map(hint) }
            }
        })
    }

    /// The roles that an execution reads, then those that it writes. A device may have no
    /// workspace; a scratchpad is not among them.
    pub fn roles(&self) -> Vec<(Role, Access)> {
        let (read, written) = self.read_and_written();
        let read = read.into_iter().map(|role| (role, Access::Read));
        read.chain(written.into_iter().map(|role| (role, Access::Write))).collect()
    }

    fn read_and_written(&self) -> (Vec<Role>, Vec<Role>) {
        use Role::{
            Bias, DiffBias, DiffDst, DiffScale, DiffShift, DiffSrc, DiffWeights, Dst, Mean, Scale,
            Shift, Source, Src, Src1, Variance, Weights, Workspace,
        };
        let with = |roles: &[Role], more: Option<Role>| [roles, more.as_slice()].concat();
        match self {
            Self::Reorder { .. } | Self::Cut { .. } => (vec![Src], vec![Dst]),
            Self::Concat { sources, .. } => ((0..sources.len()).map(Source).collect(), vec![Dst]),
            Self::Binary { .. } => (vec![Src, Src1], vec![Dst]),
            Self::Conv { bias, pass, .. } | Self::Linear { bias, pass, .. } => match pass {
                ProductPass::Forward { .. } => {
                    (with(&[Src, Weights], bias.as_ref().map(|_| Bias)), vec![Dst])
                }
                ProductPass::BackwardData(_) => (vec![Weights, DiffDst], vec![DiffSrc]),
                ProductPass::BackwardWeights(_) => {
                    (vec![Src, DiffDst], with(&[DiffWeights], bias.as_ref().map(|_| DiffBias)))
                }
            },
            Self::Pointwise { pass: Pass::Forward(_), .. }
            | Self::Softmax { pass: Pass::Forward(_), .. } => (vec![Src], vec![Dst]),
            Self::Pointwise { function, .. } if !function.is_seen_from_result() => {
                (vec![Src, DiffDst], vec![DiffSrc])
            }
            Self::Pointwise { .. } | Self::Softmax { .. } => (vec![Dst, DiffDst], vec![DiffSrc]),
            Self::Pool { pass: Pass::Forward(_), .. }
            | Self::Lrn { pass: Pass::Forward(_), .. } => (vec![Src], vec![Dst, Workspace]),
            Self::Pool { .. } => (vec![DiffDst, Workspace], vec![DiffSrc]),
            Self::Lrn { .. } => (vec![Src, DiffDst, Workspace], vec![DiffSrc]),
            Self::BatchNorm { pass: Pass::Backward(_), .. } => (
                vec![Src, Mean, Variance, Scale, DiffDst, Workspace],
                vec![DiffSrc, DiffScale, DiffShift],
            ),
            Self::BatchNorm { norm, .. } => match norm.statistics {
                Statistics::Batch => {
                    (vec![Src, Scale, Shift], vec![Dst, Mean, Variance, Workspace])
                }
                Statistics::Running => {
                    (vec![Src, Scale, Shift, Mean, Variance], vec![Dst, Workspace])
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_words_say_the_same() {
        let window = Window::whole([3, 3]);
        let pass = ProductPass::BackwardWeights(7);
        let conv = Operation::Conv { src: 1, weights: 2, bias: Some(3), dst: 4, window, pass };
        let doubled = |known: &i32| if *known < 5 { Ok(2 * known) } else { Err("unknown") };
        let said = conv.map(doubled, |hint: &i32| hint.to_string());
        let wanted = "Ok(Conv { src: 2, weights: 4, bias: Some(6), dst: 8, window: Window { \
                      kernel: [3, 3], stride: [1, 1], padding: [0, 0], padding_end: [0, 0], \
                      dilation: [1, 1] }, pass: BackwardWeights(\"7\") })";
        assert_eq!(format!("{said:?}"), wanted);
        let unknown: Operation<i32, i32> = Operation::Reorder { from: 1, to: 5 };
        assert_eq!(unknown.map(doubled, |_| ()).map(drop), Err("unknown"));
    }

    #[test]
    fn what_is_read_comes_before_what_is_written() {
        let concat: Operation<(), ()> = Operation::Concat { sources: vec![(), ()], axis: 1 };
        let wanted = [
            (Role::Source(0), Access::Read),
            (Role::Source(1), Access::Read),
            (Role::Dst, Access::Write),
        ];
        assert_eq!(concat.roles(), wanted);
    }
}
