//! How tensors lie on a card: channels last, in groups of eight lanes, as tensor cores want them.
//! Lanes behind the last channel are numbers that nobody reads as data.

use crate::engine::plan::tensor::{Desc, ElementType, Order};

/// Channels are rounded up to whole groups of so many.
pub const LANES: usize = 8;
/// `[n, c, h, w]` with the channels innermost.
pub const CHANNELS_LAST: Order = Order::Device(0);
/// `[k, c, r, s]` or `[groups, k / groups, c / groups, r, s]` with the input channels innermost.
pub const FILTER: Order = Order::Device(1);

/// Lanes of so many channels.
pub fn lanes(channels: usize) -> usize {
    channels.next_multiple_of(LANES)
}

/// The same as `desc`, in an order of this device: of four dimensions with channels last.
pub fn settled(desc: &Desc) -> Desc {
    match (desc.order, desc.dims.len()) {
        (Order::Any, 4) => channels_last(&desc.dims, desc.element),
        (Order::Any, _) => Desc::plain(&desc.dims, desc.element),
        _ => desc.clone(),
    }
}

/// `[n, c, h, w]`.
pub fn channels_last(dims: &[usize], element: ElementType) -> Desc {
    let elements = dims[0] * dims[2] * dims[3] * lanes(dims[1]);
    let (dims, bytes) = (dims.to_vec(), elements * element.bytes());
    Desc { dims, element, order: CHANNELS_LAST, bytes }
}

/// A filter's weights. Those of one group have whole groups of lanes on both sides.
pub fn filter(dims: &[usize], element: ElementType) -> Desc {
    let elements = match *dims {
        [k, c, r, s] => lanes(k) * r * s * lanes(c),
        _ => dims.iter().product(),
    };
    Desc { dims: dims.to_vec(), element, order: FILTER, bytes: elements * element.bytes() }
}

/// Distances of neighbours in elements, by dimension.
pub fn strides(desc: &Desc) -> Vec<usize> {
    match (desc.order, &desc.dims[..]) {
        (CHANNELS_LAST, &[_, c, h, w]) => vec![h * w * lanes(c), 1, w * lanes(c), lanes(c)],
        (FILTER, &[_, c, r, s]) => vec![r * s * lanes(c), 1, s * lanes(c), lanes(c)],
        (FILTER, &[_, k, c, r, s]) => vec![k * r * s * c, r * s * c, 1, s * c, c],
        (_, dims) => {
            let mut strides = vec![1; dims.len()];
            for at in (1..dims.len()).rev() {
                strides[at - 1] = strides[at] * dims[at];
            }
            strides
        }
    }
}

/// Elements, those that are no data among them.
pub fn elements(desc: &Desc) -> usize {
    desc.bytes / desc.element.bytes()
}

/// Pixels of a tensor with channels: all but these.
pub fn pixels(data: &Desc) -> usize {
    data.dims.iter().product::<usize>() / data.dims[1]
}

/// Numbers from one pixel to the next of a tensor whose channels are innermost, and of a matrix.
pub fn pitch(desc: &Desc) -> usize {
    if desc.order == CHANNELS_LAST { lanes(desc.dims[1]) } else { desc.dims[1] }
}

/// Whether there are such.
pub fn is_padded(desc: &Desc) -> bool {
    elements(desc) != desc.dims.iter().product::<usize>()
}

/// Whether the same bytes are the same tensor, whatever their orders are called.
pub fn lie_alike(a: &Desc, b: &Desc) -> bool {
    let (of_a, of_b) = (strides(a), strides(b));
    let alike = |at: usize| a.dims[at] == 1 || of_a[at] == of_b[at];
    let same = a.dims == b.dims && a.element == b.element && a.bytes == b.bytes;
    same && (0..a.dims.len()).all(alike)
}

/// A plane's place and that of its elements, for kernels that take any order: of `[n, c, h, w]` or
/// `[n, c]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Planes {
    /// n, c, h, w; c counts lanes, where there are more of them.
    pub dims: [usize; 4],
    /// Of these.
    pub strides: [usize; 4],
}

impl Planes {
    /// Of a tensor, if it is one.
    pub fn of(desc: &Desc) -> Option<Self> {
        let (dims, strides) = match (desc.dims.len(), strides(desc)) {
            (4, of) => ([desc.dims[0], desc.dims[1], desc.dims[2], desc.dims[3]], of),
            (2, of) => ([desc.dims[0], desc.dims[1], 1, 1], vec![of[0], of[1], 1, 1]),
            _ => return None,
        };
        let mut planes = Self { dims, strides: strides.try_into().ok()? };
        if desc.order == CHANNELS_LAST {
            planes.dims[1] = lanes(dims[1]);
        }
        Some(planes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const F32: ElementType = ElementType::F32;

    #[test]
    fn channels_are_the_innermost_and_padded() {
        let desc = channels_last(&[2, 3, 4, 5], F32);
        assert_eq!((elements(&desc), is_padded(&desc)), (2 * 4 * 5 * 8, true));
        assert_eq!(strides(&desc), [160, 1, 40, 8]);
        assert!(!is_padded(&channels_last(&[2, 16, 4, 5], F32)));
        let planes = Planes::of(&desc).expect("four dimensions");
        assert_eq!(planes.dims, [2, 8, 4, 5]);
    }

    #[test]
    fn a_filter_of_one_group_is_padded_on_both_sides() {
        let desc = filter(&[10, 3, 5, 5], F32);
        assert_eq!((elements(&desc), strides(&desc)), (16 * 25 * 8, vec![200, 1, 40, 8]));
        let grouped = filter(&[4, 2, 3, 5, 5], F32);
        assert_eq!((elements(&grouped), is_padded(&grouped)), (4 * 2 * 3 * 25, false));
        assert_eq!(strides(&grouped), [150, 75, 1, 15, 3]);
    }

    #[test]
    fn what_is_left_open_is_settled_and_nothing_else() {
        assert_eq!(settled(&Desc::any(&[1, 8, 2, 2], F32)).order, CHANNELS_LAST);
        assert_eq!(settled(&Desc::any(&[1, 8], F32)).order, Order::Plain);
        let plain = Desc::plain(&[1, 8, 2, 2], F32);
        assert_eq!(settled(&plain), plain);
        assert_eq!(strides(&plain), [32, 4, 2, 1]);
    }
}
