//! Windows that slide over height and width: what convolutions and poolings say of them, and the
//! sizes that come out.

use serde::{Deserialize, Serialize};

/// Largest channel count, kernel, stride, padding or feature count.
pub const SIZE_MAX: usize = 1 << 20;

/// Channels, height, width of one sample (a flat vector is `[n, 1, 1]`).
pub type Shape = [usize; 3];

/// Sizes along height and width. In a model file one number stands for both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Written", into = "Written")]
pub struct Pair(pub [usize; 2]);

#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a number, or [height, width]")]
enum Written {
    Both(usize),
    Each([usize; 2]),
}

impl From<Written> for Pair {
    fn from(written: Written) -> Self {
        match written {
            Written::Both(size) => Self::both(size),
            Written::Each(sizes) => Self(sizes),
        }
    }
}

impl From<Pair> for Written {
    fn from(Pair([height, width]): Pair) -> Self {
        if height == width { Self::Both(height) } else { Self::Each([height, width]) }
    }
}

impl Pair {
    /// The same along both.
    pub const fn both(size: usize) -> Self {
        Self([size; 2])
    }

    /// Elements of a rectangle of these sizes.
    pub fn area(self) -> usize {
        self.0[0] * self.0[1]
    }

    fn one() -> Self {
        Self::both(1)
    }
}

/// Padding along height and width. In a model file one number stands for every side, two for both
/// sides of height and of width, four for `[top, left, bottom, right]` (ONNX's order).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "WrittenPadding", into = "WrittenPadding")]
pub struct Padding {
    /// Above, and to the left.
    pub begin: Pair,
    /// Below, and to the right.
    pub end: Pair,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a number, [height, width], or [top, left, bottom, right]")]
enum WrittenPadding {
    Every(usize),
    Both([usize; 2]),
    Each([usize; 4]),
}

impl From<WrittenPadding> for Padding {
    fn from(written: WrittenPadding) -> Self {
        match written {
            WrittenPadding::Every(size) => Self::every(size),
            WrittenPadding::Both(sizes) => Self::both(Pair(sizes)),
            WrittenPadding::Each([top, left, bottom, right]) => {
                Self { begin: Pair([top, left]), end: Pair([bottom, right]) }
            }
        }
    }
}

impl From<Padding> for WrittenPadding {
    fn from(padding: Padding) -> Self {
        let sides = padding.sides();
        match sides {
            [top, left, bottom, right] if (top, left) != (bottom, right) => Self::Each(sides),
            [top, left, ..] if top != left => Self::Both([top, left]),
            [size, ..] => Self::Every(size),
        }
    }
}

impl Padding {
    /// The same on every side.
    pub const fn every(size: usize) -> Self {
        Self::both(Pair::both(size))
    }

    /// The same on both sides of height and of width.
    pub const fn both(sizes: Pair) -> Self {
        Self { begin: sizes, end: sizes }
    }

    /// Other padding around this.
    pub fn with(self, other: Self) -> Self {
        let sum = |a: Pair, b: Pair| Pair([0, 1].map(|axis| a.0[axis].saturating_add(b.0[axis])));
        Self { begin: sum(self.begin, other.begin), end: sum(self.end, other.end) }
    }

    /// `[top, left, bottom, right]`.
    pub fn sides(self) -> [usize; 4] {
        let (Pair([top, left]), Pair([bottom, right])) = (self.begin, self.end);
        [top, left, bottom, right]
    }

    fn none() -> Self {
        Self::every(0)
    }

    /// At the begin and at the end of an axis.
    fn along(self, axis: usize) -> [usize; 2] {
        [self.begin.0[axis], self.end.0[axis]]
    }
}

/// A convolution. Each of `groups` reads its own part of the channels and gives its own part of
/// the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Conv {
    pub channels: usize,
    pub kernel: Pair,
    #[serde(default = "Pair::one")]
    pub stride: Pair,
    #[serde(default = "Padding::none")]
    pub padding: Padding,
    /// Distance of two elements of the kernel; 1: they are neighbours.
    #[serde(default = "Pair::one")]
    pub dilation: Pair,
    #[serde(default = "one")]
    pub groups: usize,
    #[serde(default = "yes")]
    pub bias: bool,
}

/// A pooling; padding is no element of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct MaxPool {
    pub kernel: Pair,
    pub stride: Pair,
    #[serde(default = "Padding::none")]
    pub padding: Padding,
    /// The last window may reach over the end, as PyTorch's `ceil_mode`.
    #[serde(default)]
    pub ceil_mode: bool,
}

/// A pooling by the mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct AvgPool {
    pub kernel: Pair,
    pub stride: Pair,
    #[serde(default = "Padding::none")]
    pub padding: Padding,
    /// The last window may reach over the end, as PyTorch's `ceil_mode`.
    #[serde(default)]
    pub ceil_mode: bool,
    /// Whether padding counts as zeros in the mean (PyTorch's name and default).
    #[serde(default = "yes")]
    pub count_include_pad: bool,
}

impl Conv {
    /// A square kernel at every position, no padding, one group, with a bias.
    pub const fn new(channels: usize, kernel: usize) -> Self {
        Self {
            channels,
            kernel: Pair::both(kernel),
            stride: Pair::both(1),
            padding: Padding::every(0),
            dilation: Pair::both(1),
            groups: 1,
            bias: true,
        }
    }

    /// Dimensions of its weights, `[out, in of a group, height, width]`, for `inputs` channels.
    pub fn weight_shape(&self, inputs: usize) -> [usize; 4] {
        let Pair([height, width]) = self.kernel;
        [self.channels, inputs / self.groups.max(1), height, width]
    }

    /// The shape of its result, or why there is none.
    pub fn result(&self, [inputs, height, width]: Shape) -> Result<Shape, String> {
        let Self { channels, groups, .. } = *self;
        if !(1..=SIZE_MAX).contains(&channels) {
            return Err(format!("channels = {channels} is not in 1..={SIZE_MAX}"));
        }
        if groups == 0 || !inputs.is_multiple_of(groups) || !channels.is_multiple_of(groups) {
            return Err(format!(
                "groups = {groups} must divide the input's {inputs} channels and its own {channels}"
            ));
        }
        let side = |axis: usize, length| {
            self.axis(axis).positions(length, Rounding::Down).map_err(|reason| along(axis, &reason))
        };
        Ok([channels, side(0, height)?, side(1, width)?])
    }

    fn axis(&self, axis: usize) -> Axis {
        Axis {
            kernel: self.kernel.0[axis],
            stride: self.stride.0[axis],
            padding: self.padding.along(axis),
            dilation: self.dilation.0[axis],
        }
    }
}

impl MaxPool {
    /// A square kernel, no padding, rounded down.
    pub const fn new(kernel: usize, stride: usize) -> Self {
        let (kernel, stride) = (Pair::both(kernel), Pair::both(stride));
        Self { kernel, stride, padding: Padding::every(0), ceil_mode: false }
    }

    /// The shape of its result, or why there is none.
    pub fn result(&self, [channels, height, width]: Shape) -> Result<Shape, String> {
        let side = |axis: usize, length| {
            let (kernel, padding) = (self.kernel.0[axis], self.padding.along(axis));
            let most = padding[0].max(padding[1]);
            if most > kernel / 2 {
                let reason = format!("padding {most} is more than half of kernel {kernel}");
                return Err(along(axis, &reason));
            }
            let rounding = if self.ceil_mode { Rounding::Up } else { Rounding::Down };
            let stride = self.stride.0[axis];
            let own = Axis { kernel, stride, padding, dilation: 1 };
            own.positions(length, rounding).map_err(|reason| along(axis, &reason))
        };
        Ok([channels, side(0, height)?, side(1, width)?])
    }

    /// Padding below and to the right, with what the last windows reach over: `from` and `to` are
    /// the sizes before and after.
    pub fn padding_end(&self, from: [usize; 2], to: [usize; 2]) -> [usize; 2] {
        [0, 1].map(|axis| {
            let (kernel, [begin, end]) = (self.kernel.0[axis], self.padding.along(axis));
            let last = to[axis].saturating_sub(1) * self.stride.0[axis] + kernel;
            last.saturating_sub(from[axis] + begin).max(end)
        })
    }
}

impl AvgPool {
    /// A square kernel, no padding, rounded down.
    pub const fn new(kernel: usize, stride: usize) -> Self {
        let MaxPool { kernel, stride, padding, ceil_mode } = MaxPool::new(kernel, stride);
        Self { kernel, stride, padding, ceil_mode, count_include_pad: true }
    }

    /// Where its windows are.
    pub fn window(&self) -> MaxPool {
        let Self { kernel, stride, padding, ceil_mode, .. } = *self;
        MaxPool { kernel, stride, padding, ceil_mode }
    }

    /// Whether the mean is over the part of a window that is not padding. What a window of
    /// `ceil_mode` reaches over is never counted.
    pub fn counts_inside_only(&self) -> bool {
        !self.count_include_pad || self.padding == Padding::none()
    }

    /// The shape of its result, or why there is none.
    pub fn result(&self, input: Shape) -> Result<Shape, String> {
        if self.ceil_mode && !self.counts_inside_only() {
            return Err(
                "with ceil_mode and padding, say count_include_pad = false: no kernel here \
                        counts the one and not the other"
                    .into(),
            );
        }
        self.window().result(input)
    }
}

fn one() -> usize {
    1
}
fn yes() -> bool {
    true
}
fn along(axis: usize, reason: &str) -> String {
    format!("along its {}: {reason}", ["height", "width"][axis])
}

/// Whether a last window that is not wholly within the padded input counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rounding {
    Down,
    Up,
}

/// A window along one axis.
#[derive(Debug, Clone, Copy)]
struct Axis {
    kernel: usize,
    stride: usize,
    /// At its begin and at its end.
    padding: [usize; 2],
    dilation: usize,
}

impl Axis {
    /// How many positions it has over `length` (torch.nn.MaxPool2d, section "Shape").
    fn positions(self, length: usize, rounding: Rounding) -> Result<usize, String> {
        let Self { kernel, stride, padding: [begin, end], dilation } = self;
        let sizes = [kernel, stride, dilation];
        if sizes.iter().any(|size| !(1..=SIZE_MAX).contains(size)) || begin.max(end) > SIZE_MAX {
            return Err(format!(
                "kernel {kernel}, stride {stride} and dilation {dilation} must be in \
                 1..={SIZE_MAX}, padding {} below",
                begin.max(end)
            ));
        }
        let (padded, reach) = (length + begin + end, dilation * (kernel - 1) + 1);
        if padded < reach {
            let kernel = match dilation {
                1 => format!("kernel {kernel}"),
                _ => format!("kernel {kernel} with dilation {dilation}"),
            };
            return Err(format!("{kernel} is larger than the padded input of {padded}"));
        }
        let free = padded - reach;
        Ok(match rounding {
            Rounding::Down => free / stride + 1,
            Rounding::Up => {
                let positions = free.div_ceil(stride) + 1;
                // No window begins in the padding at the end.
                if (positions - 1) * stride >= length + begin { positions - 1 } else { positions }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(kernel: usize, stride: usize, padding: usize, dilation: usize) -> Axis {
        Axis { kernel, stride, padding: [padding; 2], dilation }
    }

    #[test]
    fn windows_round_down_or_up() {
        assert_eq!(axis(7, 2, 3, 1).positions(224, Rounding::Down), Ok(112));
        assert_eq!(axis(2, 2, 0, 1).positions(5, Rounding::Down), Ok(2));
        assert_eq!(axis(2, 2, 0, 1).positions(5, Rounding::Up), Ok(3));
        assert_eq!(axis(3, 2, 0, 1).positions(112, Rounding::Up), Ok(56));
        // torch.nn.MaxPool2d(2, 3, padding=1, ceil_mode=True) makes 2 of 5: the third would begin
        // in the padding.
        assert_eq!(axis(2, 3, 1, 1).positions(5, Rounding::Up), Ok(2));
        assert_eq!(axis(3, 1, 0, 2).positions(7, Rounding::Down), Ok(3));
        assert!(axis(5, 1, 1, 1).positions(2, Rounding::Down).is_err());
        assert!(axis(1, 0, 0, 1).positions(2, Rounding::Down).is_err());
        assert!(axis(3, 1, 0, 3).positions(6, Rounding::Down).is_err());
    }

    #[test]
    fn the_padding_at_the_end_makes_room_for_the_last_window() {
        let pool = MaxPool { ceil_mode: true, ..MaxPool::new(3, 2) };
        assert_eq!(pool.result([4, 112, 7]), Ok([4, 56, 3]));
        assert_eq!(pool.padding_end([112, 7], [56, 3]), [1, 0]);
    }

    #[test]
    fn one_number_stands_for_both_sizes() {
        let read = |text: &str| toml::from_str::<Conv>(&format!("channels = 4\n{text}"));
        let conv = read("kernel = [1, 7]\npadding = [0, 3]\nstride = 2").expect("is right");
        assert_eq!((conv.kernel, conv.stride), (Pair([1, 7]), Pair::both(2)));
        assert_eq!(conv.result([4, 8, 8]), Ok([4, 4, 4]));
        let error = read("kernel = [1, 2, 3]").expect_err("three").to_string();
        assert!(error.contains("[height, width]"), "{error}");
        let written = serde_json::to_string(&conv).expect("is JSON");
        assert!(written.contains("\"kernel\":[1,7],\"stride\":2"), "{written}");
    }

    #[test]
    fn padding_may_differ_by_side() {
        let read = |padding: &str| {
            let text = format!("kernel = 3\nstride = 2\npadding = {padding}");
            toml::from_str::<MaxPool>(&text)
        };
        let pool = read("[0, 1, 1, 0]").expect("is right");
        assert_eq!(pool.padding, Padding { begin: Pair([0, 1]), end: Pair([1, 0]) });
        // Of 6 rows the third window takes the row below, of 6 columns the first the one before.
        assert_eq!(pool.result([1, 6, 6]), Ok([1, 3, 3]));
        assert_eq!(pool.padding_end([6, 6], [3, 3]), [1, 0]);
        assert_eq!(read("0").expect("is right").result([1, 6, 6]), Ok([1, 2, 2]));
        for (written, again) in
            [("[1, 1, 1, 1]", "1"), ("[1, 0]", "[1,0]"), ("[0, 1, 1, 0]", "[0,1,1,0]")]
        {
            let padding = read(written).expect("is right").padding;
            assert_eq!(serde_json::to_string(&padding).expect("is JSON"), again);
        }
        let error = read("[1, 2, 3]").expect_err("three").to_string();
        assert!(error.contains("[top, left, bottom, right]"), "{error}");
        let wide = read("[0, 0, 2, 0]").expect("is right").result([1, 6, 6]);
        assert!(wide.is_err_and(|error| error.contains("padding 2 is more than half")));
    }

    #[test]
    fn groups_divide_both_channel_counts() {
        let conv = Conv { groups: 3, ..Conv::new(6, 1) };
        assert_eq!(conv.result([9, 2, 2]), Ok([6, 2, 2]));
        assert_eq!(conv.weight_shape(9), [6, 3, 1, 1]);
        for (groups, inputs) in [(0, 9), (3, 8), (4, 8)] {
            let error = Conv { groups, ..conv }.result([inputs, 2, 2]).expect_err("no divisor");
            assert!(error.contains("groups"), "{error}");
        }
    }

    #[test]
    fn a_mean_that_no_kernel_counts_is_refused() {
        let pool = AvgPool { padding: Padding::every(1), ceil_mode: true, ..AvgPool::new(3, 2) };
        assert!(pool.result([1, 6, 6]).expect_err("both").contains("count_include_pad"));
        let inside = AvgPool { count_include_pad: false, ..pool };
        assert_eq!(inside.result([1, 6, 6]), Ok([1, 4, 4]));
    }
}
