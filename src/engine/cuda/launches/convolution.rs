//! Products with weights by the own kernels: convolutions, and matrices as such.

use crate::engine::cuda::call::{At, Call, Launch};
use crate::engine::cuda::layout::{FILTER, lanes};
use crate::engine::plan::operation::{ProductPass, Refusal, Role, Window};
use crate::engine::plan::tensor::{Desc, ElementType};

/// A convolution's sizes, in the order of the kernels.
pub struct Convolved {
    element: ElementType,
    from: [usize; 5],
    to: [usize; 4],
    window: Window,
    groups: usize,
    filter_lanes: usize,
}

impl Convolved {
    /// Of a convolution.
    pub fn new(src: &Desc, weights: &Desc, dst: &Desc, window: &Window) -> Self {
        let grouped = weights.dims.len() == 5;
        let groups = if grouped { weights.dims[0] } else { 1 };
        let inputs = weights.dims[if grouped { 2 } else { 1 }];
        let padded = weights.order == FILTER && !grouped;
        Self {
            element: src.element,
            from: [src.dims[0], src.dims[2], src.dims[3], src.dims[1], lanes(src.dims[1])],
            to: [dst.dims[2], dst.dims[3], dst.dims[1], lanes(dst.dims[1])],
            window: *window,
            groups,
            filter_lanes: if padded { lanes(inputs) } else { inputs },
        }
    }

    /// A matrix is a filter of one element over planes of one, and has no lanes too many.
    pub fn linear(src: &Desc, weights: &Desc, dst: &Desc) -> Self {
        let ([n, from], to) = ([src.dims[0], src.dims[1]], dst.dims[1]);
        Self {
            element: src.element,
            from: [n, 1, 1, from, from],
            to: [1, 1, to, to],
            window: Window::whole([1, 1]),
            groups: 1,
            filter_lanes: weights.dims[1],
        }
    }

    fn geometry(&self, launch: Launch) -> Launch {
        let Window { kernel, stride, padding, dilation, .. } = &self.window;
        let launch = launch.ints(&self.from).ints(&self.to).ints(kernel).ints(stride);
        launch.ints(padding).ints(dilation).ints(&[self.groups])
    }

    /// What the card is told; the bias is left.
    pub fn calls(
        &self,
        pass: &ProductPass<usize>,
        at: &dyn Fn(Role) -> At,
    ) -> Result<Vec<Call>, Refusal> {
        let [n, h, w, _, x_lanes] = self.from;
        let [oh, ow, k, y_lanes] = self.to;
        match pass {
            ProductPass::Forward { .. } => {
                let places = [at(Role::Src), at(Role::Weights), at(Role::Dst)];
                let launch = Launch::of("conv_forward", self.element).at(&places);
                let launch = self.geometry(launch.ints(&[self.filter_lanes]));
                Ok(vec![launch.threads(n * oh * ow * y_lanes)?])
            }
            ProductPass::BackwardData(_) => {
                let places = [at(Role::Weights), at(Role::DiffDst), at(Role::DiffSrc)];
                let launch = Launch::of("conv_backward_data", self.element).at(&places);
                let launch = self.geometry(launch.ints(&[self.filter_lanes]));
                Ok(vec![launch.threads(n * h * w * x_lanes)?])
            }
            ProductPass::BackwardWeights(_) => {
                let places = [at(Role::Src), at(Role::DiffDst), at(Role::DiffWeights)];
                let launch = Launch::of("conv_backward_weights", self.element).at(&places);
                let [rows, columns] = self.window.kernel;
                let weights = k * (self.from[3] / self.groups) * rows * columns;
                Ok(vec![self.geometry(launch).threads(weights)?])
            }
        }
    }
}
