//! Which elements of a convolution's kernel ever see its input. One that meets padding alone, at
//! every place of the window, has the gradient 0 whatever a device's kernel says: oneDNN's for bf16
//! (`jit_bf16:avx512_core_bf16`) multiplies by stale memory there.

use super::operation::Window;

/// The rows and columns of a kernel that meet the input somewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taps {
    rows: Vec<bool>,
    columns: Vec<bool>,
}

impl Taps {
    /// Of a window that makes planes of size `to` from planes of size `from`.
    pub fn of(window: Window, from: [usize; 2], to: [usize; 2]) -> Self {
        let along = |axis: usize| -> Vec<bool> {
            let meets = |tap: usize| {
                (0..to[axis]).any(|at| {
                    let place = at * window.stride[axis] + tap * window.dilation[axis];
                    let inside = place.checked_sub(window.padding[axis]);
                    inside.is_some_and(|inside| inside < from[axis])
                })
            };
            (0..window.kernel[axis]).map(meets).collect()
        };
        Self { rows: along(0), columns: along(1) }
    }

    /// Whether each meets the input.
    pub fn all_live(&self) -> bool {
        self.rows.iter().chain(&self.columns).all(|&live| live)
    }

    /// Sets the gradients of the others to 0, in planes of `[rows, columns]`.
    pub fn silence(&self, gradients: &mut [f32]) {
        for (at, gradient) in gradients.iter_mut().enumerate() {
            let (row, column) = (at / self.columns.len(), at % self.columns.len());
            if !(self.rows[row % self.rows.len()] && self.columns[column]) {
                *gradient = 0.0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(kernel: usize, stride: usize, padding: usize, dilation: usize) -> Window {
        Window {
            kernel: [kernel; 2],
            stride: [stride; 2],
            padding: [padding; 2],
            padding_end: [padding; 2],
            dilation: [dilation; 2],
        }
    }

    #[test]
    fn taps_that_only_padding_meets_are_found() {
        // A plane of one element: of three taps the middle one.
        let taps = Taps::of(window(3, 2, 1, 1), [1, 1], [1, 1]);
        assert_eq!(
            (&taps.rows[..], &taps.columns[..]),
            (&[false, true, false][..], &[false, true, false][..])
        );
        // Two elements at stride 2: the window stands at -1 alone, and its last tap sees one.
        let taps = Taps::of(window(3, 2, 1, 1), [2, 2], [1, 1]);
        assert_eq!(taps.rows, [false, true, true]);
        // Dilated over the end.
        let taps = Taps::of(window(3, 1, 2, 2), [2, 2], [2, 2]);
        assert_eq!(taps.rows, [false, true, false]);
        assert!(!taps.all_live());
        assert!(Taps::of(window(3, 1, 1, 1), [2, 2], [2, 2]).all_live());
        assert!(Taps::of(window(3, 2, 1, 1), [3, 3], [2, 2]).all_live());
    }

    #[test]
    fn their_gradients_become_zero_and_no_others() {
        let taps = Taps { rows: vec![true, false], columns: vec![false, true, true] };
        let mut gradients: Vec<f32> = (1..13).map(|x| x as f32).collect();
        gradients[1] = -7.0;
        gradients[3] = f32::NAN;
        taps.silence(&mut gradients);
        assert_eq!(gradients, [0.0, -7.0, 3.0, 0.0, 0.0, 0.0, 0.0, 8.0, 9.0, 0.0, 0.0, 0.0]);
    }
}
