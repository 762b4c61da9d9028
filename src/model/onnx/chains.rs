//! What is known before there is an image: constants, and the chains of Shape, Gather, Concat,
//! Expand and the like that torch writes where it does not optimise.

use super::proto::{FLOAT, NUMBERS_MAX, Node, is_fraction};
use super::state::{Found, State, integer, size};
use super::stored;
use super::value::{Dim, Held, Value};

/// The value of a node that needs no image; `None` where it needs one.
pub(super) fn known<'a>(
    state: &mut State<'a>,
    node: &Node<'a>,
) -> Result<Option<Value<'a>>, String> {
    let is_flow = |at| {
        matches!(
            state.optional(node, at),
            Some(Value::Flow(_) | Value::Padded(..) | Value::Grouped { .. })
        )
    };
    let flows = (0..node.inputs.len()).any(is_flow);
    match node.op {
        "Constant" => constant(state, node).map(Some),
        "Shape" => shape(state, node).map(Some),
        "CastLike" => cast_like(state, node).map(Some),
        "Identity" | "Cast" => renamed(state, node).map(Some),
        _ if flows => Ok(None),
        "Gather" => gather(state, node).map(Some),
        "Slice" => slice(state, node).map(Some),
        "Concat" => concat(state, node).map(Some),
        "Expand" => expand(state, node).map(Some),
        "ConstantOfShape" => filled(state, node).map(Some),
        "Transpose" => transpose(state, node).map(Some),
        "Squeeze" | "Unsqueeze" | "Reshape" => match state.maybe_numbers(node, 0)? {
            Some(numbers) => Ok(Some(Value::Numbers(numbers))),
            None => reshaped(state, node).map(Some),
        },
        "Add" | "Sub" | "Mul" | "Div" => arithmetic(state, node).map(Some),
        _ => Ok(None),
    }
}

/// Another name of the same thing. A tensor has the newer one: torch's, where it has merged equals.
fn renamed<'a>(state: &State<'a>, node: &Node<'a>) -> Found<'a> {
    let value = state.value(node, 0)?.clone();
    let to = integer(node, "to", FLOAT)?;
    if node.op == "Cast" && holds_fractions(&value) && !is_fraction(to) {
        return Err(format!("to = {to}: a layer's result, or a tensor, stays a fraction here"));
    }
    Ok(match value {
        Value::Held(held) => {
            let name = node.outputs.first().copied().unwrap_or(held.name);
            Value::Held(Held { name, ..held })
        }
        other => other,
    })
}

/// Only a type is taken of its second input.
fn cast_like<'a>(state: &State<'a>, node: &Node<'a>) -> Found<'a> {
    let (value, like) = (state.value(node, 0)?, state.value(node, 1)?);
    if holds_fractions(value) && !holds_fractions(like) {
        return Err(format!(
            "as {}: a layer's result, or a tensor, stays a fraction here",
            like.about()
        ));
    }
    Ok(value.clone())
}

fn holds_fractions(value: &Value<'_>) -> bool {
    match value {
        Value::Numbers(_) => false,
        Value::Held(held) => is_fraction(held.tensor.kind),
        Value::Flow(_) | Value::Padded(..) | Value::Grouped { .. } | Value::Fill { .. } => true,
    }
}

fn constant<'a>(state: &mut State<'a>, node: &Node<'a>) -> Found<'a> {
    let found = |name: &str| node.attribute(name).map_err(|error| error.to_string());
    if let Some(tensor) = found("value")?.and_then(|attribute| attribute.tensor) {
        if let Some(numbers) = stored::integers(&tensor).map_err(|error| error.to_string())? {
            return Ok(Value::Numbers(numbers.into_iter().map(Dim::Known).collect()));
        }
        let name = node.outputs.first().copied().unwrap_or_default();
        let origin = state.next_origin();
        return Ok(Value::Held(Held { name, tensor, origin, transposed: false }));
    }
    if let Some(attribute) = found("value_ints")? {
        return Ok(Value::Numbers(attribute.integers.into_iter().map(Dim::Known).collect()));
    }
    if let Some(attribute) = found("value_int")? {
        return Ok(Value::Numbers(vec![Dim::Known(attribute.integer)]));
    }
    match found("value_float")? {
        Some(attribute) => Ok(Value::Fill { value: attribute.float, dims: Vec::new() }),
        None => Err("its value is of a kind that is not read".into()),
    }
}

fn shape<'a>(state: &State<'a>, node: &Node<'a>) -> Found<'a> {
    let known = |dims: &[usize]| dims.iter().map(|&dim| Dim::Known(dim as i64)).collect();
    let dims: Vec<Dim> = match state.value(node, 0)? {
        Value::Flow(flow) => flow.dims.clone(),
        Value::Held(held) => known(&held.dims()),
        Value::Fill { dims, .. } => known(dims),
        between @ (Value::Padded(..) | Value::Grouped { .. }) => {
            return Err(format!("its input 0 is {}", between.about()));
        }
        Value::Numbers(numbers) => vec![Dim::Known(numbers.len() as i64)],
    };
    let rank = dims.len() as i64;
    let place = |number: i64| (if number < 0 { number + rank } else { number }).clamp(0, rank);
    let start = place(integer(node, "start", 0)?);
    let end = place(integer(node, "end", rank)?).max(start);
    Ok(Value::Numbers(dims[start as usize..end as usize].to_vec()))
}

fn gather<'a>(state: &State<'a>, node: &Node<'a>) -> Found<'a> {
    let numbers = state.numbers(node, 0)?;
    let picked = state.known_numbers(node, 1)?;
    let length = numbers.len() as i64;
    let pick = |index: i64| {
        let at = usize::try_from(if index < 0 { index + length } else { index }).ok();
        let found = at.and_then(|at| numbers.get(at)).copied();
        found.ok_or_else(|| format!("index {index} of {length} numbers"))
    };
    Ok(Value::Numbers(picked.into_iter().map(pick).collect::<Result<_, _>>()?))
}

fn slice<'a>(state: &State<'a>, node: &Node<'a>) -> Found<'a> {
    let numbers = state.numbers(node, 0)?;
    let one = |found: Option<Vec<i64>>, default: i64| match found.as_deref() {
        None => Ok(default),
        Some([number]) => Ok(*number),
        Some(others) => Err(format!("slices along {} axes", others.len())),
    };
    let length = numbers.len() as i64;
    let place = |number: i64| (if number < 0 { number + length } else { number }).clamp(0, length);
    let start = place(one(state.attribute_or_input(node, "starts", 1)?, 0)?);
    let end = place(one(state.attribute_or_input(node, "ends", 2)?, length)?).max(start);
    match one(state.attribute_or_input(node, "steps", 4)?, 1)? {
        1 => Ok(Value::Numbers(numbers[start as usize..end as usize].to_vec())),
        step => Err(format!("slices in steps of {step}")),
    }
}

fn bounded(numbers: Vec<Dim>) -> Found<'static> {
    match numbers.len() {
        0..=NUMBERS_MAX => Ok(Value::Numbers(numbers)),
        found => Err(format!("{found} numbers; up to {NUMBERS_MAX} are computed with")),
    }
}

fn concat<'a>(state: &State<'a>, node: &Node<'a>) -> Found<'a> {
    let mut all = Vec::new();
    for at in 0..node.inputs.len() {
        all.extend(state.numbers(node, at)?);
    }
    bounded(all)
}

/// One value of a shape that is known.
fn expand<'a>(state: &State<'a>, node: &Node<'a>) -> Found<'a> {
    if let Some(numbers) = state.maybe_numbers(node, 0)? {
        let [to] = state.known_numbers(node, 1)?[..] else {
            return Err("whole numbers in more than a row".into());
        };
        return match (&numbers[..], size(to)?) {
            (_, 1) => Ok(Value::Numbers(numbers)),
            ([one], to) if to <= NUMBERS_MAX => Ok(Value::Numbers(vec![*one; to])),
            _ => bounded(numbers),
        };
    }
    let value = state.scalar(node, 0)?.ok_or("its input 0 is not given")?;
    let dims = state.known_numbers(node, 1)?.into_iter().map(size).collect::<Result<_, _>>()?;
    Ok(Value::Fill { value, dims })
}

fn filled<'a>(state: &State<'a>, node: &Node<'a>) -> Found<'a> {
    let dims: Vec<usize> =
        state.known_numbers(node, 0)?.into_iter().map(size).collect::<Result<_, _>>()?;
    let attribute = node.attribute("value").map_err(|error| error.to_string())?;
    let Some(tensor) = attribute.and_then(|attribute| attribute.tensor) else {
        return Ok(Value::Fill { value: 0.0, dims });
    };
    let numbers = stored::integers(&tensor).map_err(|error| error.to_string())?;
    match (numbers.as_deref(), &dims[..]) {
        (Some([one]), &[length]) if length <= NUMBERS_MAX => {
            Ok(Value::Numbers(vec![Dim::Known(*one); length]))
        }
        (Some(_), _) => Err(format!("whole numbers of shape {dims:?}")),
        (None, _) => {
            let nowhere = |_: stored::FilePart<'_>| Err("in another file".to_owned());
            let values = stored::floats(&tensor, &nowhere).map_err(|error| error.to_string())?;
            let [value] = values[..] else { return Err("its value is not one number".into()) };
            Ok(Value::Fill { value, dims })
        }
    }
}

/// Of a matrix, which then is read by columns.
fn transpose<'a>(state: &State<'a>, node: &Node<'a>) -> Found<'a> {
    let mut held = state.held(node, 0)?;
    let order = super::state::integers(node, "perm")?;
    if held.tensor.dims.len() != 2 || !(order.is_empty() || order == [1, 0]) {
        let dims = held.dims();
        return Err(format!("a tensor of shape {dims:?} in the order {order:?}: only of a matrix"));
    }
    held.transposed = !held.transposed;
    Ok(Value::Held(held))
}

/// A tensor in another shape of as many elements.
fn reshaped<'a>(state: &State<'a>, node: &Node<'a>) -> Found<'a> {
    Err(format!(
        "{} in another shape: export the tensor as it is used",
        state.value(node, 0)?.about()
    ))
}

fn arithmetic<'a>(state: &State<'a>, node: &Node<'a>) -> Found<'a> {
    let (a, b) = (state.numbers(node, 0)?, state.numbers(node, 1)?);
    let length = a.len().max(b.len());
    let at = |row: &[Dim], index: usize| match row {
        [one] => Some(*one),
        row => row.get(index).copied(),
    };
    let one = |index: usize| {
        let (Some(a), Some(b)) = (at(&a, index), at(&b, index)) else {
            return Err("rows of different lengths".to_owned());
        };
        let (x, y) = match (a, b) {
            (Dim::Known(x), Dim::Known(y)) => (x, y),
            (Dim::Batch, Dim::Known(1)) if matches!(node.op, "Mul" | "Div") => return Ok(a),
            (Dim::Known(1), Dim::Batch) if node.op == "Mul" => return Ok(b),
            _ => return Err("computes with the number of samples".to_owned()),
        };
        let result = match node.op {
            "Add" => x.checked_add(y),
            "Sub" => x.checked_sub(y),
            "Mul" => x.checked_mul(y),
            _ => x.checked_div(y),
        };
        result.map(Dim::Known).ok_or_else(|| format!("{} of {x} and {y}", node.op))
    };
    bounded((0..length).map(one).collect::<Result<_, _>>()?)
}
