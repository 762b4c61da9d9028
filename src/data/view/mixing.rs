//! Pictures of a micro-batch mixed in pairs: mixup (Zhang et al. 2018, "mixup: Beyond Empirical
//! Risk Minimization", equation 1) and cutmix (Yun et al. 2019, "CutMix", section 3.1), each
//! picture with the one before it, as torchvision's `v2.MixUp` and `v2.CutMix` do. A pure function
//! of the micro-batch and of (seed, step, owner): whoever computes it anew mixes alike.

use crate::config::Config;
use crate::config::seed::{Stream, purpose};
use crate::config::variates::beta;
use crate::data::{Batch, Mixed};

/// What a run asks for. Where it asks for both, each micro-batch draws one of them.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Mixing {
    /// `data.mixup_alpha`
    pub mixup_alpha: Option<f64>,
    /// `data.cutmix_alpha`
    pub cutmix_alpha: Option<f64>,
    /// `run.seed`
    pub seed: u64,
}

/// What is done to the pictures.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mix {
    /// Each is `share` of itself and the rest of its partner.
    Blend { share: f32 },
    /// Columns and rows from the first corner to below the second show the partner.
    Paste { from: [usize; 2], to: [usize; 2] },
}

impl Mix {
    /// What a picture of this side keeps of its own.
    fn share(self, side: usize) -> f32 {
        match self {
            Self::Blend { share } => share,
            Self::Paste { from, to } => {
                let pasted = (to[0] - from[0]) * (to[1] - from[1]);
                (1.0 - pasted as f64 / (side * side) as f64) as f32
            }
        }
    }
}

impl Mixing {
    /// Of a run.
    pub fn of(config: &Config) -> Self {
        let (data, seed) = (&config.data, config.run.seed);
        Self { mixup_alpha: data.mixup_alpha, cutmix_alpha: data.cutmix_alpha, seed }
    }

    /// Mixes the pictures of an owner's micro-batch, `[n, channels, side, side]` with n labels.
    pub(in crate::data) fn apply(&self, batch: &mut Batch, step: u64, owner: u32, side: usize) {
        let stream = &mut Stream::new(&[self.seed, purpose::MIX, step, u64::from(owner)]);
        let Some(mix) = self.draw(stream, side) else { return };
        let Some(&last) = batch.labels.last() else { return };
        let each = batch.images.len() / batch.labels.len();
        match mix {
            Mix::Blend { share } => {
                with_partners(&mut batch.images, each, 0..each, |own, other| {
                    own * share + other * (1.0 - share)
                })
            }
            Mix::Paste { from, to } => {
                for plane in (0..each).step_by(side * side) {
                    for row in from[1]..to[1] {
                        let start = plane + row * side;
                        let columns = start + from[0]..start + to[0];
                        with_partners(&mut batch.images, each, columns, |_, other| other);
                    }
                }
            }
        }
        let mut partners = Vec::with_capacity(batch.labels.len());
        partners.push(last);
        partners.extend_from_slice(&batch.labels[..batch.labels.len() - 1]);
        batch.mixed = Some(Mixed { partners, share: mix.share(side) });
    }

    fn draw(&self, stream: &mut Stream, side: usize) -> Option<Mix> {
        let (cuts, alpha) = match (self.mixup_alpha, self.cutmix_alpha) {
            (None, None) => return None,
            (Some(alpha), None) => (false, alpha),
            (None, Some(alpha)) => (true, alpha),
            (Some(mixup), Some(cutmix)) => match stream.below(2) {
                0 => (false, mixup),
                _ => (true, cutmix),
            },
        };
        let share = beta(stream, alpha);
        Some(match cuts {
            false => Mix::Blend { share: share as f32 },
            true => paste(share, [0; 2].map(|_: i32| stream.below(side as u64) as usize), side),
        })
    }
}

/// A box whose middle is `at` and whose sides are `sqrt(1 - share)` of the picture's, as much of it
/// as lies within.
fn paste(share: f64, at: [usize; 2], side: usize) -> Mix {
    let reach = (0.5 * (1.0 - share).sqrt() * side as f64) as usize;
    let from = at.map(|middle| middle.saturating_sub(reach));
    Mix::Paste { from, to: at.map(|middle| (middle + reach).min(side)) }
}

/// Values that are mixed at a time: their partners' are kept beside them.
const BLOCK: usize = 256;

/// Replaces the values of `range` in each picture of `each` values by a function of them and of
/// those of the picture before it; the last one comes before the first.
fn with_partners(
    images: &mut [f32],
    each: usize,
    range: std::ops::Range<usize>,
    mix: impl Fn(f32, f32) -> f32,
) {
    let last = images.len() - each;
    for start in range.clone().step_by(BLOCK) {
        let length = BLOCK.min(range.end - start);
        let mut kept = [0.0; BLOCK];
        kept[..length].copy_from_slice(&images[last + start..last + start + length]);
        // From the last one on, so that each partner is still as it was.
        for picture in (1..images.len() / each).rev().map(|picture| picture * each) {
            let (before, own) = images.split_at_mut(picture);
            let partner = &before[picture - each + start..][..length];
            let own = &mut own[start..start + length];
            own.iter_mut().zip(partner).for_each(|(own, &other)| *own = mix(*own, other));
        }
        let first = images[start..start + length].iter_mut();
        first.zip(&kept).for_each(|(own, &other)| *own = mix(*own, other));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIDE: usize = 20;
    const CHANNELS: usize = 2;
    const EACH: usize = CHANNELS * SIDE * SIDE;

    /// Pictures of one value each, their own number.
    fn batch(pictures: usize) -> Batch {
        let images = (0..pictures * EACH).map(|at| (at / EACH) as f32).collect();
        Batch { images, labels: (0..pictures as u32).collect(), ..Batch::default() }
    }

    fn mixing(mixup_alpha: Option<f64>, cutmix_alpha: Option<f64>) -> Mixing {
        Mixing { mixup_alpha, cutmix_alpha, seed: 3 }
    }

    fn mixed(mixing: Mixing, step: u64, owner: u32) -> Batch {
        let mut batch = batch(5);
        mixing.apply(&mut batch, step, owner, SIDE);
        batch
    }

    /// Whether values of both pictures stand side by side.
    fn is_pasted(batch: &Batch) -> bool {
        batch.images.iter().all(|value| value.fract() == 0.0)
    }

    #[test]
    fn each_picture_meets_the_one_before_it() {
        let blended = mixed(mixing(Some(1.0), None), 4, 1);
        let how = blended.mixed.as_ref().expect("it was mixed");
        assert_eq!(how.partners, [4, 0, 1, 2, 3]);
        for (picture, values) in blended.images.chunks(EACH).enumerate() {
            let (own, other) = (picture as f32, how.partners[picture] as f32);
            let wanted = own * how.share + other * (1.0 - how.share);
            assert!(values.iter().all(|&value| value == wanted), "{picture}");
        }
    }

    #[test]
    fn a_box_shows_the_partner_and_its_area_is_the_partners_share() {
        let mut shares = Vec::new();
        for step in 0..20 {
            let pasted = mixed(mixing(None, Some(1.0)), step, 1);
            let how = pasted.mixed.as_ref().expect("it was mixed");
            assert!(is_pasted(&pasted));
            for (picture, values) in pasted.images.chunks(EACH).enumerate() {
                let own = values.iter().filter(|&&value| value == picture as f32).count();
                assert_eq!(how.share, (own as f64 / EACH as f64) as f32);
                let planes: Vec<&[f32]> = values.chunks(SIDE * SIDE).collect();
                assert_eq!(planes[0], planes[1], "the same box in every channel");
            }
            shares.push(how.share);
        }
        shares.sort_by(f32::total_cmp);
        shares.dedup();
        assert!(shares.len() > 10, "each micro-batch draws its own: {shares:?}");
    }

    /// `python -P tests/library/soft_targets.py`: where torchvision 0.29 cuts for these draws.
    #[test]
    fn boxes_are_torchvisions() {
        for (share, at, from, to, kept) in TORCHVISION {
            let mix = paste(share, at, 20);
            assert_eq!(mix, Mix::Paste { from, to }, "{share} {at:?}");
            assert!((f64::from(mix.share(20)) - kept).abs() < 1e-7);
        }
    }
    type Row = (f64, [usize; 2], [usize; 2], [usize; 2], f64);
    const TORCHVISION: [Row; 5] = [
        (0.3, [0, 19], [0, 11], [8, 20], 0.82),
        (0.75, [10, 3], [5, 0], [15, 8], 0.8),
        (0.0, [10, 10], [0, 0], [20, 20], 0.0),
        (0.99, [5, 5], [4, 4], [6, 6], 0.99),
        (1.0, [4, 9], [4, 9], [4, 9], 1.0),
    ];

    #[test]
    fn it_is_drawn_from_seed_step_and_owner_and_one_of_both_each_time() {
        let both = mixing(Some(0.4), Some(1.0));
        assert_eq!(mixed(both, 7, 2), mixed(both, 7, 2));
        assert_ne!(mixed(both, 7, 2), mixed(both, 7, 3));
        assert_ne!(mixed(both, 7, 2), mixed(both, 8, 2));
        assert_ne!(mixed(both, 7, 2), mixed(Mixing { seed: 4, ..both }, 7, 2));
        let pasted = (0..100).filter(|&step| is_pasted(&mixed(both, step, 0))).count();
        assert!((30..70).contains(&pasted), "{pasted} of 100");
    }

    #[test]
    fn nothing_is_asked_for_nothing_is_done_and_one_picture_meets_itself() {
        assert_eq!(mixed(Mixing::default(), 7, 2), batch(5));
        let mut none = Batch::default();
        mixing(Some(1.0), None).apply(&mut none, 0, 0, SIDE);
        assert_eq!(none, Batch::default());
        let mut one = batch(1);
        mixing(None, Some(1.0)).apply(&mut one, 0, 0, SIDE);
        assert_eq!(one.images, batch(1).images);
        assert_eq!(one.mixed.expect("it was mixed").partners, [0]);
    }
}
