//! Crops, resized middles and changed colours through the whole loader.

use kintsugi::config::{ColorJitter, Crop, Data, Look};
use kintsugi::data::Normalization;
use kintsugi::data::loader::{Loader, LoaderOptions};
use kintsugi::data::sampler::Order;

use super::{options, synthetic, take_all};

#[test]
fn whatever_is_drawn_of_a_sample_does_not_depend_on_threads() {
    let jitter = ColorJitter { brightness: 0.4, contrast: 0.4, saturation: 0.4, hue: 0.1 };
    let random = Crop::Random { scale: [0.08, 1.0], ratio: [0.75, 1.3] };
    let order = Order::new(100, 3, 5, 36).expect("valid");
    let mut seen = Vec::new();
    for look in [
        Look { jitter, ..Look::default() },
        Look { crop: random, jitter, flip: 0.3, ..Look::default() },
        Look { crop: Crop::Centre, resize: Some(20), ..Look::default() },
    ] {
        let take = |threads, prefetch| {
            let options = LoaderOptions { look, ..options(threads, prefetch) };
            take_all(&Loader::new(synthetic(100), order.clone(), options), 0..4, 3)
        };
        let plain = take(0, 0);
        assert!(take(1, 2) == plain && take(3, 4) == plain, "{look:?}");
        seen.push(plain);
    }
    assert!(seen[0] != seen[1] && seen[1] != seen[2] && seen[0] != seen[2]);
}

/// torchvision's `GoogLeNet._transform_input`, which its published weights need.
fn transform_input(channel: usize, value: f32) -> f32 {
    let Normalization { mean, deviation } = Normalization::IMAGENET;
    value * (deviation[channel] / 0.5) + (mean[channel] - 0.5) / 0.5
}

#[test]
fn a_mean_and_a_deviation_of_a_half_are_what_googlenets_transform_makes_of_imagenets() {
    let half = Data { mean: Some([0.5; 3]), deviation: Some([0.5; 3]), ..Data::default() };
    let order = Order::new(100, 1, 5, 36).expect("valid");
    let take = |normalization| {
        let options = LoaderOptions { normalization, augment: false, ..options(0, 0) };
        Loader::new(synthetic(100), order.clone(), options).take(0, 0).expect("taken")
    };
    let usual = take(Normalization::of(&Data::default()));
    let halves = take(Normalization::of(&half));
    let plane = 16 * 16;
    for (at, (usual, half)) in usual.images.iter().zip(&halves.images).enumerate() {
        let wanted = transform_input(at / plane % 3, *usual);
        assert!((half - wanted).abs() < 1e-6, "{at}: {half} and {wanted}");
    }
}
