//! Arithmetic on elements that lie alike, of one tensor or of two.

use crate::engine::cuda::call::{Argument, At, Call, Launch, THREADS};
use crate::engine::cuda::layout::{LANES, elements, is_padded, strides};
use crate::engine::plan::operation::{Algorithm, Function, Pass, Refusal, Role};
use crate::engine::plan::tensor::Desc;

/// Elements of a block where tensors lie alike.
const BLOCK_ELEMENTS: usize = 2 * THREADS * LANES;

/// Zeros for lanes that a kernel does not write.
pub fn cleared(desc: &Desc, at: At) -> Option<Call> {
    is_padded(desc).then_some(Call::Clear { at, bytes: desc.bytes })
}

/// The last argument is their number.
fn over_elements(launch: Launch, count: usize) -> Result<Call, Refusal> {
    // The last block's elements are numbered beyond it.
    let last = count.next_multiple_of(BLOCK_ELEMENTS);
    i32::try_from(last)
        .map_err(|_| Refusal(format!("{count} elements are too many: raise train.accumulate")))?;
    launch.ints(&[count]).over([last / BLOCK_ELEMENTS, 1])
}

/// What the card is told.
pub fn binary(
    algorithm: Algorithm,
    a: &Desc,
    b: &Desc,
    at: &dyn Fn(Role) -> At,
) -> Result<Vec<Call>, Refusal> {
    let code = match algorithm {
        Algorithm::Add => 0,
        Algorithm::Multiply => 1,
        Algorithm::AddRelu => 2,
    };
    let places = [at(Role::Src), at(Role::Src1), at(Role::Dst)];
    if a.dims == b.dims && a.order == b.order {
        let name = if a.element == b.element { "binary" } else { "binary_mask" };
        let launch = Launch::of(name, a.element).at(&places).ints(&[code]);
        return Ok(vec![over_elements(launch, elements(a))?]);
    }
    if a.element != b.element || a.dims.len() != 4 {
        return Err(Refusal(format!("{algorithm:?} of {a:?} and {b:?}")));
    }
    let along = |(at, stride): (usize, usize)| if b.dims[at] == 1 { 0 } else { stride };
    let of_b: Vec<usize> = strides(b).into_iter().enumerate().map(along).collect();
    let count = a.dims.iter().product();
    let launch = Launch::of("binary_strided", a.element).at(&places).ints(&[code, count]);
    let launch = launch.ints(&a.dims[1..]).ints(&strides(a)).ints(&of_b);
    // In place the lanes behind the last channel are there already.
    let clear = (places[0] != places[2]).then(|| cleared(a, places[2])).flatten();
    Ok(clear.into_iter().chain([launch.threads(count)?]).collect())
}

/// What the card is told.
pub fn pointwise(
    function: Function,
    data: &Desc,
    pass: &Pass<usize>,
    at: &dyn Fn(Role) -> At,
) -> Result<Call, Refusal> {
    let (code, factor) = match function {
        Function::Relu => (0, 0.0),
        Function::Relu6 => (1, 0.0),
        Function::Sigmoid => (2, 0.0),
        Function::Silu => (3, 0.0),
        Function::HardSigmoid => (4, 0.0),
        Function::HardSwish => (5, 0.0),
        Function::Scale(factor) => (6, factor),
    };
    let launch = match pass {
        Pass::Forward(_) => {
            let places = [at(Role::Src), at(Role::Dst)];
            Launch::of("pointwise_forward", data.element).at(&places)
        }
        Pass::Backward(_) => {
            let seen = if function.is_seen_from_result() { Role::Dst } else { Role::Src };
            let places = [at(seen), at(Role::DiffDst), at(Role::DiffSrc)];
            Launch::of("pointwise_backward", data.element).at(&places)
        }
    };
    let launch = launch.ints(&[code]).arguments(&[Argument::Float(factor)]);
    over_elements(launch, elements(data))
}
