//! Pools: by groups of eight channels where these are last, else by elements.

use crate::engine::cuda::call::{At, Call, Launch};
use crate::engine::cuda::layout::{CHANNELS_LAST, LANES, Planes, lanes};
use crate::engine::plan::operation::{Direction, Pass, Pooling, Refusal, Role, Window};
use crate::engine::plan::tensor::Desc;

/// The pool's kernel, of those whose names have `groups`, and what it has before sizes.
fn begun(
    kind: Pooling,
    groups: &str,
    src: &Desc,
    pass: &Pass<usize>,
    at: &dyn Fn(Role) -> At,
) -> Launch {
    let launch = |pool, pass| Launch::of(&format!("{pool}_pool{groups}_{pass}"), src.element);
    let inside = usize::from(kind == Pooling::AverageInside);
    match (kind, pass) {
        (Pooling::Max, Pass::Forward(direction)) => {
            let kept = *direction == Direction::Training;
            let winners = if kept { at(Role::Workspace) } else { at(Role::Dst) };
            let places = [at(Role::Src), at(Role::Dst), winners];
            launch("max", "forward").at(&places).ints(&[usize::from(kept)])
        }
        (Pooling::Max, Pass::Backward(_)) => {
            let places = [at(Role::DiffDst), at(Role::Workspace), at(Role::DiffSrc)];
            launch("max", "backward").at(&places)
        }
        (_, Pass::Forward(_)) => {
            let places = [at(Role::Src), at(Role::Dst)];
            launch("average", "forward").at(&places).ints(&[inside])
        }
        (_, Pass::Backward(_)) => {
            let places = [at(Role::DiffDst), at(Role::DiffSrc)];
            launch("average", "backward").at(&places).ints(&[inside])
        }
    }
}

/// What the card is told.
pub fn pool(
    kind: Pooling,
    src: &Desc,
    dst: &Desc,
    window: &Window,
    pass: &Pass<usize>,
    at: &dyn Fn(Role) -> At,
) -> Result<Call, Refusal> {
    let (x, y) = (planes(src)?, planes(dst)?);
    let by_groups = src.order == CHANNELS_LAST && dst.order == CHANNELS_LAST;
    let launch = begun(kind, if by_groups { "_groups" } else { "" }, src, pass, at);
    let [n, c, h, w] = match pass {
        Pass::Forward(_) => y.dims,
        Pass::Backward(_) => x.dims,
    };
    let windows = |launch: Launch| {
        let launch = launch.ints(&x.dims[2..]).ints(&y.dims[2..]).ints(&window.kernel);
        launch.ints(&window.stride).ints(&window.padding)
    };
    if by_groups {
        let groups = lanes(c) / LANES;
        return windows(launch.ints(&[n, groups])).threads(n * groups * h * w);
    }
    let launch = windows(launch.ints(&x.dims[..2]));
    launch.ints(&x.strides).ints(&y.strides).threads(n * c * h * w)
}

/// A tensor as planes, however they lie.
pub fn planes(desc: &Desc) -> Result<Planes, Refusal> {
    Planes::of(desc).ok_or_else(|| Refusal(format!("{:?} are no planes", desc.dims)))
}
